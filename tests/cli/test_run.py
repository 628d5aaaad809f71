"""`treadle run`, as a process of its own against the strict fake."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import LIMIT_S, at_a_terminal, command, environment, heed_ctrl_c, run, treadle
from treadle.testing import Script, call, fail, say, slow, upstream

TOOLS = '''
from pathlib import Path

def shout(text: str) -> str:
    """Shout."""
    Path("shouted.txt").write_text(text)
    return text.upper()

number = 5
'''


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "my_tools.py").write_text(TOOLS, "utf-8")
    return tmp_path


ASKING = ("--tools", "my_tools:shout", "--permissions", "ask")
SHOUT = [say("I shout. ") + call("shout", text="hey"), say("\x1b[31mdone")]


def test_text_goes_to_standard_output_and_the_rest_beside_it(workspace: Path) -> None:
    ran = run(workspace, SHOUT, "--tools", "my_tools:shout", "--workspace", ".")

    assert (ran.returncode, ran.stdout) == (0, "I shout. \n[31mdone\n")
    assert '→ shout(text="hey")  0.' in ran.stderr
    assert "created shouted.txt" in ran.stderr
    assert "2 model calls, 20 tokens in, 10 out, cost unknown" in ran.stderr


def test_json_is_one_object(workspace: Path) -> None:
    ran = run(workspace, SHOUT, "--tools", "my_tools:shout", "--json")
    told: dict[str, Any] = json.loads(ran.stdout)

    assert ran.returncode == 0
    assert told["text"] == "\x1b[31mdone"
    assert told["usage"]["calls"] == 2
    assert (told["stop_reason"], told["error"], told["cost_known"]) == ("done", None, False)
    assert [file["path"] for file in told["files"]] == ["shouted.txt"]


def test_a_tool_error_is_shown(workspace: Path) -> None:
    ran = run(workspace, [call("shout"), say("ok")], "--tools", "my_tools:shout")

    assert ran.returncode == 0
    assert "✗ shout()" in ran.stderr
    assert "ValidationError" in ran.stderr


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [('{"n": 3}', 0, ""), ('{"n": "x"}', 4, "$.n: 'x' is not of type 'integer'"), ("no", 4, "no json")],
)
def test_an_output_schema_is_enforced(workspace: Path, answer: str, code: int, words: str) -> None:
    (workspace / "schema.json").write_text(json.dumps(SCHEMA), "utf-8")
    ran = run(workspace, [say(answer)] * 2, "--output-schema", "schema.json", "--json")

    assert ran.returncode == code
    told: dict[str, Any] = json.loads(ran.stdout)
    assert told["output"] == ({"n": 3} if code == 0 else None)
    if words != "no json":
        assert words in ran.stderr


@pytest.mark.parametrize(
    ("script", "arguments", "code", "words"),
    [
        ([fail(401, "who are you")], [], 1, "AuthenticationError"),
        (
            [call("shout", text="a"), say("x")],
            ["--tools", "my_tools:shout", "--max-turns", "1"],
            3,
            "max_turns",
        ),
        ([slow(say("x"), first_byte_s=20)], ["--timeout", "0.5"], 3, "timeout"),
        (
            [call("shout", text="a"), say("x")],
            ["--tools", "my_tools:shout", "--max-tokens", "5"],
            3,
            "15 tokens; the limit is 5",
        ),
        ([say("x", stop_reason="length")], [], 3, "length"),
        ([say("x", stop_reason="content_filter")], [], 5, "content_filter"),
    ],
)
def test_exit_codes(workspace: Path, script: Script, arguments: list[str], code: int, words: str) -> None:
    ran = run(workspace, script, *arguments)

    assert ran.returncode == code
    assert words in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing option '--model'"),
        (["--model", "nonsense"], "unknown model 'nonsense'"),
        (["--model", "groq/x"], "GROQ_API_KEY"),
        (["--model", "openai/x", "--tools", "my_tools"], "write MODULE:FUNCTION"),
        (["--model", "openai/x", "--tools", "nowhere:f"], "No module named 'nowhere'"),
        (["--model", "openai/x", "--tools", "my_tools:nothing"], "nothing"),
        (["--model", "openai/x", "--tools", "my_tools:number"], "tool"),
        (["--model", "openai/x", "--workspace", "nowhere"], "does not exist"),
        (["--model", "openai/x", "--permissions", "ask"], "needs a terminal"),
        (["--model", "openai/x", "--permissions", "edit"], "'edit' is not one of"),
        (["--model", "openai/x", "--output-schema", "my_tools.py"], "--output-schema my_tools.py"),
        (["--model", "openai/x", "--output-schema", "list.json"], "must be of an object"),
        (["--model", "openai/x", "--output-schema", "wrong.json"], "wrong.json"),
        (["--model", "openai/x", "--max-turns", "0"], "max-turns"),
    ],
)
def test_wrong_use_is_exit_code_2_and_says_what_to_do(
    workspace: Path, arguments: list[str], words: str
) -> None:
    (workspace / "list.json").write_text('{"type": "array"}', "utf-8")
    (workspace / "wrong.json").write_text('{"type": "objekt"}', "utf-8")
    ran = treadle(workspace, "run", "hi", *arguments)

    assert ran.returncode == 2
    assert words in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.fixture
def slow_fake() -> Iterator[upstream.Upstream]:
    with upstream.running([slow(say("many little pieces of text " * 40), between_s=0.05)]) as fake:
        yield fake


def test_ctrl_c_ends_the_turn_and_tells_the_part_so_far(
    workspace: Path, slow_fake: upstream.Upstream
) -> None:
    arguments = ["run", "hi", "--model", "openai/gpt-5", "--api-base", slow_fake.base_url]
    with subprocess.Popen(
        command(*arguments),
        cwd=workspace,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_ctrl_c,
    ) as process:
        assert process.stdout
        first = process.stdout.read(5)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=LIMIT_S)

    assert (process.returncode, first) == (130, "many ")
    assert len(rest) < 40 * 27
    assert "cancelled: 0 model calls" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("y\n", "HEY"),
        ("n\n", "denied: the user said no"),
        ("\n", "denied: the user said no"),
        ("maybe\nY\n", "HEY"),
        ('e\n{"text": "you"}\n', '[the user changed the arguments to {"text": "you"}]\nYOU'),
        ("e\n\n", "HEY"),
        ('e\nno JSON\ne\n{"words": 1}\nn\n', "denied: the user said no"),
    ],
)
def test_approvals_are_asked_at_the_terminal(workspace: Path, typed: str, told: str) -> None:
    script = [call("shout", text="hey"), say("ok")]
    code, errors, bodies = at_a_terminal(workspace, script, typed, *ASKING)

    assert code == 0
    assert 'run shout(text="hey")?' in errors
    assert bodies[1]["messages"][-1]["content"] == told
    assert (workspace / "shouted.txt").exists() == ("denied" not in told)
    assert errors.count("not taken: ") == (2 if "no JSON" in typed else 0)


def test_always_is_asked_once(workspace: Path) -> None:
    script = [call("shout", text="a") + call("shout", text="b"), call("shout", text="c"), say("ok")]
    code, errors, bodies = at_a_terminal(workspace, script, "a\n", *ASKING)

    assert (code, errors.count("run shout(")) == (0, 1)
    assert [message["content"] for message in bodies[2]["messages"] if message["role"] == "tool"] == [
        *("A", "B", "C")
    ]


def test_a_session_file_keeps_the_conversation(workspace: Path) -> None:
    kept = workspace / "kept.json"
    script = [call("shout", text="hey"), say("first"), say("second")]
    with upstream.running(script) as fake:
        for prompt in ("one", "two"):
            arguments = ["run", prompt, "--model", "openai/gpt-5", "--api-base", fake.base_url]
            ran = treadle(workspace, *arguments, "--tools", "my_tools:shout", "--session", "kept.json")
            assert ran.returncode == 0, ran.stderr
        last: Any = fake.requests[-1].body
        assert fake.refusals == []

    assert [message["role"] for message in last["messages"]] == [
        *("user", "assistant", "tool", "assistant", "user")
    ]
    assert len(json.loads(kept.read_text("utf-8"))["history"]) == 6
    assert kept.stat().st_mode & 0o777 == 0o600


def test_a_session_goes_on_after_a_failed_turn(workspace: Path) -> None:
    with upstream.running([fail(400, "bad day"), say("fine")]) as fake:
        arguments = ["--model", "openai/gpt-5", "--api-base", fake.base_url, "--session", "kept.json"]
        failed = treadle(workspace, "run", "one", *arguments)
        ran = treadle(workspace, "run", "two", *arguments)
        last: Any = fake.requests[-1].body

    assert (failed.returncode, ran.returncode) == (1, 0)
    (message,) = last["messages"]
    assert [part["text"] for part in message["content"]] == ["one", "two"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("no JSON", "cannot be read"),
        ("[]", "this is no session"),
        ('{"version": 2, "history": []}', "this is no session"),
        ('{"version": 1, "history": [{"role": "robot"}]}', "history[0]"),
        (None, "its folder is not there"),
    ],
)
def test_what_is_no_session_file_is_exit_code_2(workspace: Path, content: str | None, words: str) -> None:
    path = workspace / ("gone/kept.json" if content is None else "kept.json")
    if content is not None:
        path.write_text(content, "utf-8")
    ran = treadle(workspace, "run", "hi", "--model", "openai/gpt-5", "--session", str(path))

    assert ran.returncode == 2
    assert words in ran.stderr
    assert content is None or path.read_text("utf-8") == content


def test_several_tools_at_once(workspace: Path) -> None:
    nap = "import time\ndef nap(n: int) -> int:\n    'Sleep.'\n    time.sleep(0.5)\n    return n\n"
    (workspace / "naps.py").write_text(nap, "utf-8")
    script = [call("nap", n=1) + call("nap", n=2) + call("nap", n=3), say("ok")]
    ran = run(workspace, script, "--tools", "naps:nap", "--parallel", "3")

    assert ran.returncode == 0
    assert ran.stderr.count("→ nap(") == 3


def test_without_the_extra_the_command_says_what_to_install(tmp_path: Path) -> None:
    hide = "import sys; sys.modules['click'] = None; sys.modules['jsonschema'] = None\n"
    start = "from treadle.cli.main import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", hide + start], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )

    assert ran.returncode == 2
    assert "pip install 'treadle[cli]'" in ran.stderr
