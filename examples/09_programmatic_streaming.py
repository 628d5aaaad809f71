"""Programmatic tool calling as a stream: words as they come, and chunks folded into the answer to go on from.

Without a key it runs against a scripted fake provider; MODEL=anthropic/claude-sonnet-4-5 asks a real one.
"""

import json
import os
from typing import Any

import treadle
from treadle.testing import call, runs, say, upstream

WAITING_MIN = {"ferry": 25, "tram": 4}
TOOLS: list[Any] = [
    {"type": "code_execution_20250825", "name": "code_execution"},
    {
        "type": "function",
        "function": {
            "name": "waiting",
            "description": "Minutes until the next ferry or tram, as a JSON number.",
            "parameters": {
                "type": "object",
                "properties": {"line": {"type": "string", "enum": list(WAITING_MIN)}},
                "required": ["line"],
            },
        },
        "allowed_callers": ["code_execution_20250825"],
    },
]
QUESTION = {"role": "user", "content": "Ferry or tram, which leaves first?"}

CODE = """
import asyncio
ferry, tram = await asyncio.gather(waiting({"line": "ferry"}), waiting({"line": "tram"}))
print("ferry" if int(ferry) < int(tram) else "tram")
"""
SCRIPT = [
    say("I ask both lines. ")
    + runs(CODE, call("waiting", line="ferry") + call("waiting", line="tram"), stdout="tram\n")
    + say("The tram leaves first.")
]


def result(made: Any) -> dict[str, Any]:
    minutes = WAITING_MIN[json.loads(made.function.arguments)["line"]]
    return {"type": "tool_result", "tool_use_id": made.id, "content": json.dumps(minutes)}


def ask(model: str) -> None:
    messages: list[Any] = [QUESTION]
    while True:
        chunks: list[Any] = []
        with treadle.completion(model, messages, stream=True, tools=TOOLS) as stream:
            for chunk in stream:
                print(chunk.choices[0].delta.get("content") or "", end="", flush=True)
                chunks.append(chunk)
        message = treadle.fold_chunks(chunks).choices[0].message
        calls = message.get("tool_calls")
        if not calls:
            break
        messages += [message, {"role": "user", "content": list(map(result, calls))}]
    print()


def main() -> None:
    if "MODEL" in os.environ:
        ask(os.environ["MODEL"])
        return
    with upstream.running(SCRIPT) as fake:
        os.environ.update(ANTHROPIC_BASE_URL=fake.base_url, ANTHROPIC_API_KEY="any-key")
        ask("anthropic/claude-sonnet-4-5")


if __name__ == "__main__":
    main()
