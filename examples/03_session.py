"""A session: prompts that share a history, and a human who is asked before a tool runs."""

import os
import tempfile

import treadle
from treadle import Approval, Harness, sandbox, tool
from treadle.testing import ScriptedModel, call, say

NOTES: list[str] = []


@tool(requires_approval=True)
def delete_notes() -> str:
    """Delete every note."""
    NOTES.clear()
    return "deleted"


def add_note(text: str) -> int:
    """Add a note and give the number of notes."""
    NOTES.append(text)
    return len(NOTES)


def ask(approval: Approval) -> bool:
    print(f"asked about {approval.tool}: no")
    return False


SCRIPTED = ScriptedModel(
    [
        call("add_note", text="buy milk"),
        say("Noted."),
        call("delete_notes"),
        say("You said no, so I kept it."),
    ]
)


def main() -> None:
    with treadle.agent_session(
        Harness.TOOL_LOOP,
        sandbox=sandbox.local(tempfile.mkdtemp()),
        model=os.environ.get("MODEL") or SCRIPTED,
        instructions="You keep notes.",
        tools=[add_note, delete_notes],
        on_approval=ask,
    ) as session:
        print(session.run("Remember: buy milk.").text)
        print(session.run("Forget everything.").text)
        print(f"{len(session.history())} messages, {session.usage.total_tokens} tokens, notes: {NOTES}")


if __name__ == "__main__":
    main()
