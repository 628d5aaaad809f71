"""Scripts as files: what each key means, and what is said of a wrong one."""

import json

import pytest

from treadle.conversation.blocks import Text, Thinking, ToolCall
from treadle.conversation.usage import Usage
from treadle.errors import InvalidArgument
from treadle.testing import Step, call, fail, runs, say, think
from treadle.testing.upstream import read_script


def test_a_script_is_json_lines_or_one_json_array() -> None:
    steps: list[object] = [{"say": "one"}, {"say": "two"}]
    lines = "\n".join(json.dumps(step) for step in steps)

    assert read_script(lines + "\r\n\n") == [say("one"), say("two")]
    assert read_script(json.dumps(steps, indent=2)) == [say("one"), say("two")]


def test_a_step_may_think_speak_and_call_at_once() -> None:
    calls = [{"name": "sub", "arguments": {"b": 2}}, {"name": "now"}, {"name": "raw", "arguments": "{"}]
    text = json.dumps({"calls": calls, "call": "add", "arguments": {"a": 1}, "say": "So.", "think": "Hm."})

    assert read_script(text) == [
        Step(
            (
                Thinking("Hm.", "c2lnbmF0dXJl"),
                Text("So."),
                ToolCall("", "add", '{"a": 1}'),
                ToolCall("", "sub", '{"b": 2}'),
                ToolCall("", "now", "{}"),
                ToolCall("", "raw", "{"),
            )
        )
    ]


def test_a_step_may_run_code_that_pauses() -> None:
    pauses = [[{"name": "get", "arguments": {"region": "N"}}, {"name": "now"}], [{"name": "get"}]]
    text = json.dumps({"say": "I look.", "runs": "...", "pauses": pauses, "stdout": "1"})

    code = runs("...", call("get", region="N") + call("now"), call("get"), stdout="1")
    assert read_script(text) == [say("I look.") + code]


def test_a_step_may_say_why_it_stops_what_it_cost_and_how_it_is_sent() -> None:
    [step] = read_script(
        '{"say": "So", "stop_reason": "length", "input_tokens": 7, "output_tokens": 0,'
        ' "slow_s": 1, "between_s": 0.5, "cut_after": 0}'
    )

    assert step == Step(
        (Text("So"),),
        "length",
        Usage(input_tokens=7, output_tokens=0, calls=1),
        first_byte_s=1,
        between_s=0.5,
        cut_after=0,
    )


def test_tokens_that_are_not_given_are_those_of_any_step() -> None:
    assert read_script('{"call": "now", "arguments": {}}\n{"think": "Hm.", "say": ""}') == [
        call("now"),
        think("Hm.") + say(""),
    ]


def test_a_step_may_fail() -> None:
    text = (
        '{"fail": 429, "message": "Later.", "retry_after_s": 1, "slow_s": 0.5, "cut_after": 3}\n{"fail": 500}'
    )

    slow_failure = Step(status=429, message="Later.", retry_after_s=1, first_byte_s=0.5, cut_after=3)
    assert read_script(text) == [slow_failure, fail(500)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the script has no steps: write one JSON object a line"),
        ("[]", "the script has no steps: write one JSON object a line"),
        ("[{]", "the script is not JSON: Expecting property name"),
        ('{"say": "x"}\n\nsay', "step 2 is not JSON: Expecting value"),
        ('{"say": "x"}\n"say"', "step 2 is not a JSON object: 'say'"),
        ('[{"say": "x"}, 7]', "step 2 is not a JSON object: '7'"),
        ("{}", "step 1: it has none of 'say', 'think', 'runs', 'call', 'calls' and 'fail'"),
        ('{"stdout": "1"}', "step 1: 'pauses' and 'stdout' belong to 'runs', which is missing"),
        ('{"runs": "1", "pauses": [[], []]}', "step 1: only the first pause of code may be without calls"),
        ('{"calls": []}', "step 1: it has none of 'say', 'think', 'runs', 'call', 'calls' and 'fail'"),
        ('{"say": "x", "arguments": {}}', "step 1: 'arguments' belongs to 'call', which is missing"),
        (
            '{"say": "x"}\n{"fail": 500, "say": "x"}',
            "step 2: unknown key 'say', only slow_s, between_s, cut_after, fail, message, retry_after_s are "
            "known here",
        ),
        (
            '{"calls": [{"name": "f", "id": "a"}]}',
            "step 1: unknown key 'calls.0.id', only name, arguments are known here",
        ),
        ('{"fail": 200}', "step 1: 'fail': Input should be greater than or equal to 400"),
        ('{"say": 1, "slow_s": -1}', "step 1: 'slow_s': Input should be greater than or equal to 0; 'say': "),
        ('{"say": "x", "slow_s": NaN}', "step 1: 'slow_s': Input should be"),
        ('{"say": "x", "stop_reason": "end_turn"}', "step 1: 'stop_reason': Input should be 'stop'"),
        ('{"say": "x", "cut_after": "3"}', "step 1: 'cut_after': Input should be a valid integer"),
    ],
)
def test_a_wrong_script_is_refused_with_the_number_of_the_step(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        read_script(text)

    assert str(error.value).startswith(message)
