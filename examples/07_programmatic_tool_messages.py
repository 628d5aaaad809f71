"""Code that runs at the provider calls your tool; results go back as messages of role "tool", kept in a file.

Without a key it runs against a scripted fake provider; MODEL=anthropic/claude-sonnet-4-5 asks a real one.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import treadle
from treadle.testing import call, runs, say, upstream

STOCK = {"flour": 40, "yeast": 2, "salt": 9}
TOOLS: list[Any] = [
    {"type": "code_execution_20250825", "name": "code_execution"},
    {
        "type": "function",
        "function": {
            "name": "stock",
            "description": "Kilograms of an ingredient in the store, as a JSON number.",
            "parameters": {
                "type": "object",
                "properties": {"ingredient": {"type": "string", "enum": list(STOCK)}},
                "required": ["ingredient"],
            },
        },
        "allowed_callers": ["code_execution_20250825"],
    },
]
QUESTION = {"role": "user", "content": "Of flour, yeast and salt, which is below 5 kg? Stop at the first."}

CODE = """
for ingredient in ["flour", "yeast", "salt"]:
    if float(await stock({"ingredient": ingredient})) < 5:
        print(ingredient)
        break
"""
SCRIPT = [
    runs(CODE, call("stock", ingredient="flour"), call("stock", ingredient="yeast"), stdout="yeast\n")
    + say("Yeast is short.")
]
KEPT = Path(tempfile.mkdtemp()) / "conversation.json"


def result(made: dict[str, Any]) -> dict[str, Any]:
    """The call as it came out of the file: who made it and where the code waits is in there, too."""
    ingredient = json.loads(made["function"]["arguments"])["ingredient"]
    print(f"{ingredient}: {STOCK[ingredient]} kg, asked by {made['caller']['type']}")
    return {"role": "tool", "tool_call_id": made["id"], "content": json.dumps(STOCK[ingredient])}


def ask(model: str) -> None:
    KEPT.write_text(json.dumps([QUESTION]), "utf-8")
    while True:
        messages: list[Any] = json.loads(KEPT.read_text("utf-8"))
        response = treadle.completion(model, messages, tools=TOOLS)
        message = response.model_dump()["choices"][0]["message"]
        calls: list[Any] = message.get("tool_calls") or []
        KEPT.write_text(json.dumps([*messages, message, *map(result, calls)]), "utf-8")
        if not calls:
            break
    print(message["content"])


def main() -> None:
    if "MODEL" in os.environ:
        ask(os.environ["MODEL"])
        return
    with upstream.running(SCRIPT) as fake:
        os.environ.update(ANTHROPIC_BASE_URL=fake.base_url, ANTHROPIC_API_KEY="any-key")
        ask("anthropic/claude-sonnet-4-5")


if __name__ == "__main__":
    main()
