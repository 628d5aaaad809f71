"""Code that runs at the provider calls your tool; results go back in a user message, with no container named.

Without a key it runs against a scripted fake provider; MODEL=anthropic/claude-sonnet-4-5 asks a real one.
"""

import json
import os
from typing import Any

import treadle
from treadle.testing import call, runs, say, upstream

LOANS = {
    "north": [{"title": "Tides", "days_late": 12}, {"title": "Moss", "days_late": 0}],
    "harbor": [{"title": "Ropes", "days_late": 31}, {"title": "Kelp", "days_late": 3}],
}
TOOLS: list[Any] = [
    {"type": "code_execution_20250825", "name": "code_execution"},
    {
        "type": "function",
        "function": {
            "name": "loans",
            "description": "What a branch has lent: a JSON list of {title, days_late}.",
            "parameters": {
                "type": "object",
                "properties": {"branch": {"type": "string", "enum": list(LOANS)}},
                "required": ["branch"],
            },
        },
        "allowed_callers": ["code_execution_20250825"],
    },
]
QUESTION = {"role": "user", "content": "Which loan of our branches north and harbor is latest?"}

CODE = """
import asyncio, json
north, harbor = await asyncio.gather(loans({"branch": "north"}), loans({"branch": "harbor"}))
print(max(json.loads(north) + json.loads(harbor), key=lambda loan: loan["days_late"]))
"""
SCRIPT = [
    say("I compare the branches.")
    + runs(CODE, call("loans", branch="north") + call("loans", branch="harbor"), stdout="Ropes 31\n")
    + say("Ropes, lent at the harbor, is 31 days late.")
]


def result(made: Any) -> dict[str, Any]:
    arguments = json.loads(made.function.arguments)
    print(f"{made.function.name}({arguments['branch']!r}) called by {made.caller.type}")
    return {"type": "tool_result", "tool_use_id": made.id, "content": json.dumps(LOANS[arguments["branch"]])}


def ask(model: str) -> None:
    messages: list[Any] = [QUESTION]
    while True:
        message = treadle.completion(model, messages, tools=TOOLS).choices[0].message
        calls = message.get("tool_calls")
        if not calls:
            break
        messages += [
            {"role": "assistant", "content": message.content, "tool_calls": calls},
            {"role": "user", "content": list(map(result, calls))},
        ]
    print(message.content)


def main() -> None:
    if "MODEL" in os.environ:
        ask(os.environ["MODEL"])
        return
    with upstream.running(SCRIPT) as fake:
        os.environ.update(ANTHROPIC_BASE_URL=fake.base_url, ANTHROPIC_API_KEY="any-key")
        ask("anthropic/claude-sonnet-4-5")


if __name__ == "__main__":
    main()
