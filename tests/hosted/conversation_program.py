"""One request with a skill, a file and code, told as JSON: a program, for machines of another kind.

It imports nothing of the tests: users who may not read these run it too.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from treadle.conversation.blocks import Document, Message, Opaque, Text
from treadle.conversation.request import ModelRequest, NativeTool
from treadle.errors import TreadleError
from treadle.hosted.host import Caller, Host
from treadle.hosted.library import Library
from treadle.hosted.model import Hosted
from treadle.hosted.turn import FILES
from treadle.sandbox.ladder import probe
from treadle.skills.package import read_folder
from treadle.skills.store import Reader, Skills
from treadle.storage.database import Database
from treadle.testing import ScriptedModel, call, say

SKILL = {
    "SKILL.md": "---\nname: gif\ndescription: Makes GIFs.\n---\nCall core.\n",
    "core/x.py": "y = 5\n",
}
CODE = """
import os, core.x
print(core.x.y, os.listdir('{root}/skills/gif'), open('{root}/workspace/in/a.csv').read())
open('out.txt', 'w').write('made')
"""


async def told(folder: Path) -> dict[str, Any]:
    for path, text in SKILL.items():
        place = folder / "gif" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, "utf-8")
    async with Database.open(f"sqlite:///{folder}/treadle.db") as database:
        skills = Skills(database)
        made = await skills.create("key:me", read_folder(folder / "gif"))
        root = ".." if probe().rootless else ""
        file = f"{root}/workspace/in/a.csv"
        steps = [
            call(made.id.replace("-", "_")),
            call("litellm_code_execution", code=CODE.format(root=root)),
            call("litellm_bash_code_execution", command=f"cat {file} $INPUT_DIR/a.csv"),
            call("litellm_text_editor_code_execution", command="view", path=file),
            call("litellm_text_editor_code_execution", command="view", path=f"{root}/skills/gif/core/x.py"),
            say("Done."),
        ]
        model, host = ScriptedModel(steps), Host(Library(skills))
        sent = Message("user", (Text("Go."), Document("data:text/csv;base64,MTsy", title="a.csv")))
        tool = NativeTool("anthropic_messages", {"type": "code_execution_20250825", "name": "code_execution"})
        container = {"skills": [{"type": "custom", "skill_id": made.id}]}
        request = ModelRequest("m", (sent,), tools=(tool,), extra={"container": container})
        say_so: dict[str, Any] = {"rung": probe().name}
        async with host.opened():
            try:
                reply = await Hosted(model, host, Caller("key:me", Reader("key:me"))).complete(request)
                raws: list[Any] = [each.raw for each in reply.message.blocks if isinstance(each, Opaque)]
                say_so["results"] = [
                    each["content"] for each in raws if each["type"].endswith("_tool_result")
                ]
                say_so["files"] = reply.beside[FILES]
            except TreadleError as error:
                say_so["error"] = [type(error).__name__, str(error)]
        return {**say_so, "asked": [repr(each) for each in model.requests]}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.write(json.dumps(asyncio.run(told(Path(folder)))))
