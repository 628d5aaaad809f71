"""A turn whose code runs at the provider is cut at every await point; the next turn is always taken."""

from typing import Any

import anyio
import pytest

from tests.conftest import ROUTES
from tests.loop.cutting import Way, cut, stepping
from tests.loop.test_cancel_everywhere import play
from treadle import Approval, Harness, Result, ToolLoopOptions, aagent_session
from treadle.conversation.events import CodeExecution, ToolCall, ToolResult
from treadle.conversation.request import ModelRequest
from treadle.sandbox.workspace import LocalSandbox
from treadle.testing import Step, call, runs, say, think

CODE = runs(
    "both()",
    call("wait", n=1) + call("double", n=2),
    call("wait", n=3),
    stdout=lambda answers: " ".join(answers),
)


async def wait(n: int) -> int:
    """Wait."""
    await anyio.sleep(0.001)
    return n


def double(n: int) -> int:
    """Double."""
    return 2 * n


def script(request: ModelRequest) -> Step:
    if "again" in request.messages[-1].text:
        return say("fine")
    return think("hm") + say("I look.") + CODE + say("done")


async def yes(approval: Approval) -> bool:
    await anyio.sleep(0.001)
    return True


def check_events(result: Result) -> None:
    """Each call has its one result, behind it, and all code that began has ended."""
    told: dict[str, int] = {}
    for event in result.events:
        match event:
            case ToolCall(id=id_):
                assert id_ not in told
                told[id_] = 1
            case ToolResult(id=id_):
                assert told[id_] == 1
                told[id_] = 2
            case _:
                pass
    assert set(told.values()) <= {2}
    code = [each.phase for each in result.events if isinstance(each, CodeExecution)]
    assert code.count("start") == code.count("end")


@pytest.mark.parametrize("permissions", ["full", "ask"])
@pytest.mark.parametrize("reader_s", [None, 0.0], ids=["whole", "streamed"])
@pytest.mark.parametrize("way", ["cancel", "interrupt"])
async def test_whatever_await_is_cut_the_next_turn_is_taken(
    way: Way, reader_s: float | None, permissions: Any, folder: LocalSandbox
) -> None:
    options: dict[str, Any] = {"options": ToolLoopOptions(programmatic=True), "tools": [wait, double]}
    if permissions == "ask":
        options |= {"permissions": "ask", "on_approval": yes}
    points, reached = 0, True
    with stepping():
        async with ROUTES["anthropic"].serve(script) as (_, where):
            while reached:
                session = aagent_session(Harness.TOOL_LOOP, sandbox=folder, **options, **where)
                with anyio.fail_after(20):
                    task, reached = await cut(session, play(session, "go", reader_s), points, way)
                    if not task.cancelled() and (cut_off := task.result()):
                        assert cut_off.stop_reason in ("done", "cancelled")
                        check_events(cut_off)
                    result = await play(session, "again", reader_s)
                assert result
                assert result.raise_for_error().text == "fine"
                points += 1
    assert points > 20
