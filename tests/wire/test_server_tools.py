"""What a provider's own tools did, in the fields that users of LiteLLM know."""

from typing import Any

import pytest

from treadle.wire.chat_completions.server_tools import server_tool_fields

BASH = {
    "type": "server_tool_use",
    "id": "srvtoolu_1",
    "name": "bash_code_execution",
    "input": {"command": "ls"},
}
RAN: dict[str, Any] = {"type": "bash_code_execution_tool_result", "tool_use_id": "srvtoolu_1"}
SEARCHED: dict[str, Any] = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_2", "content": []}


def ran(**content: Any) -> Any:
    return server_tool_fields([BASH, {**RAN, "content": content}], {"id": "container_1"})


@pytest.mark.parametrize(
    ("content", "status", "logs"),
    [
        ({"stdout": "a\n", "stderr": "", "return_code": 0}, "completed", "a\n"),
        ({"stdout": "a\n", "stderr": "b\n", "return_code": 1}, "completed", "a\nSTDERR: b\n"),
        ({"stdout": "", "stderr": "b\n"}, "completed", "STDERR: b\n"),
        ({"type": "bash_code_execution_tool_result_error", "error_code": "unavailable"}, "failed", None),
    ],
)
def test_what_a_shell_printed_is_told_with_its_command(content: Any, status: str, logs: str | None) -> None:
    assert ran(**content)["code_interpreter_results"] == [
        {
            "type": "code_interpreter_call",
            "id": "srvtoolu_1",
            "code": "ls",
            "container_id": "container_1",
            "status": status,
            "outputs": None if logs is None else [{"type": "logs", "logs": logs}],
        }
    ]


def test_a_message_without_server_tools_has_none_of_the_fields() -> None:
    assert server_tool_fields([{"type": "text", "text": "a"}, SEARCHED], None) == {}


def test_what_is_no_run_of_code_is_a_result_and_nothing_else() -> None:
    viewed: dict[str, Any] = {
        "type": "text_editor_code_execution_tool_result",
        "tool_use_id": "srvtoolu_3",
        "content": {},
    }

    assert server_tool_fields([viewed], None) == {"tool_results": [viewed]}


@pytest.mark.parametrize("odd", [{"content": None}, {"content": []}, {"tool_use_id": [1]}, {}])
def test_a_result_of_another_shape_is_told_as_far_as_it_goes(odd: dict[str, Any]) -> None:
    told = server_tool_fields([{**BASH, "id": None, "input": 5}, {**RAN, **odd}], None)

    assert told["tool_results"] == [{**RAN, **odd}]
