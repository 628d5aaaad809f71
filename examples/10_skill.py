"""A stored skill: any model uses it, its code runs in a container, and the GIF that it makes comes back.

Without a key a scripted model plays its part; MODEL=openai/gpt-5 asks a real one. The code needs pillow:
`treadle packages build data` makes the package set that has it.
"""

import base64
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import treadle
from treadle.testing import ScriptedModel, call, say

SKILL = Path(__file__).parent / "skills" / "gif-maker"
CODE = """
from core.easing import hop
from core.gif_builder import GIFBuilder
from core.shapes import ball, canvas

gif = GIFBuilder(120, 120, fps=12)
for at in range(12):
    frame = canvas(120, 120, "white")
    ball(frame, 60, 100 - 80 * hop(at / 12), 12, "crimson")
    gif.add_frame(frame)
print(gif.save("bouncing_ball.gif"))
"""
SCRIPTED = ScriptedModel([call("litellm_code_execution", code=CODE), say("It bounces for one second.")])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DATABASE_URL"] = f"sqlite:///{folder}/skills.db"
        added = subprocess.run(  # noqa: S603 - the command line of this package
            [sys.executable, "-m", "treadle.cli.main", "skills", "add", str(SKILL)],
            capture_output=True,
            text=True,
            check=True,
        )
        try:
            answer = treadle.completion(
                os.environ.get("MODEL") or SCRIPTED,
                [{"role": "user", "content": "Create a bouncing ball GIF."}],
                container={"skills": [{"type": "custom", "skill_id": added.stdout.strip()}]},
            )
        except treadle.CapabilityUnsupported as error:
            print(error)
            return
    print(answer.choices[0].message.content)
    for block in answer.choices[0].message.blocks:
        if block.type == "code_execution_tool_result":
            print(block.content.stdout, block.content.stderr, sep="")
    for file in answer.get("_litellm_generated_files", []):
        print(f"{file.path}: {file.mime_type}, {len(base64.b64decode(file.content_base64)):,} bytes")


if __name__ == "__main__":
    main()
