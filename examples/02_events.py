"""Watch a turn as it happens: text, tool calls, results."""

import os
import tempfile
from datetime import UTC, datetime

import treadle
from treadle import Done, Harness, Text, ToolCall, ToolResult, sandbox
from treadle.testing import ScriptedModel, call, say


def utc_now() -> datetime:
    """The current time."""
    return datetime(2026, 1, 1, 12, tzinfo=UTC)


SCRIPTED = ScriptedModel([say("Let me look. ") + call("utc_now"), say("It is noon.")])


def main() -> None:
    stream = treadle.agent(
        Harness.TOOL_LOOP,
        "What time is it?",
        sandbox=sandbox.local(tempfile.mkdtemp()),
        model=os.environ.get("MODEL") or SCRIPTED,
        tools=[utc_now],
        stream=True,
    )
    for event in stream:
        match event:
            case Text(delta):
                print(delta, end="")
            case ToolCall(name=name):
                print(f"[{name}", end=" ")
            case ToolResult(output=output):
                print(f"-> {output}]")
            case Done(result):
                print(f"\n{result.stop_reason}, {result.usage.calls} model calls")
            case _:
                pass


if __name__ == "__main__":
    main()
