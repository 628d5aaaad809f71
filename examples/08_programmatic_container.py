"""A second question, in a new conversation, goes to the container of the first: the files are still there.

Without a key it runs against a scripted fake provider; MODEL=anthropic/claude-sonnet-4-5 asks a real one.
"""

import os
from typing import Any

import treadle
from treadle.testing import runs, say, upstream

TOOLS: list[Any] = [{"type": "code_execution_20250825", "name": "code_execution"}]
WRITE: list[Any] = [
    {"role": "user", "content": "With code, write the squares of 1 to 9 into /tmp/squares.txt."}
]
READ: list[Any] = [{"role": "user", "content": "With code, add up the numbers in /tmp/squares.txt."}]

SCRIPT = [
    runs("open('/tmp/squares.txt', 'w').write(' '.join(str(n * n) for n in range(1, 10)))")
    + say("They are in /tmp/squares.txt."),
    runs("print(sum(map(int, open('/tmp/squares.txt').read().split())))", stdout="285\n")
    + say("Their sum is 285."),
]


def ask(model: str) -> None:
    first = treadle.completion(model, WRITE, tools=TOOLS)
    print(first.choices[0].message.content)
    container_id = first.get("container", {}).get("id")
    second = treadle.completion(model, READ, tools=TOOLS, container=container_id)
    print(second.choices[0].message.content)
    print("the same container:", second.get("container", {}).get("id") == container_id)
    for ran in second.choices[0].message.provider_specific_fields.get("code_interpreter_results", []):
        print(ran["code"], "->", ran["outputs"])


def main() -> None:
    if "MODEL" in os.environ:
        ask(os.environ["MODEL"])
        return
    with upstream.running(SCRIPT) as fake:
        os.environ.update(ANTHROPIC_BASE_URL=fake.base_url, ANTHROPIC_API_KEY="any-key")
        ask("anthropic/claude-sonnet-4-5")


if __name__ == "__main__":
    main()
