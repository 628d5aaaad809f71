"""Hosts on one database, one after another: what waited in one goes on in the next."""

import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import pytest

from tests.hosted.conftest import ME, OTHER, House, MemoryFiles, results
from tests.skills.test_store import package
from treadle.conversation.blocks import Message, ToolResult, user
from treadle.conversation.request import ModelRequest, NativeTool, Reply, ToolSpec
from treadle.errors import ContainerBusy, ContainerExpired, InvalidArgument
from treadle.execution.rules import Rules
from treadle.hosted.blocks import BASH_TOOL, CODE_TOOL, EDITOR_TOOL
from treadle.hosted.host import Host, HostLimits
from treadle.hosted.library import Library
from treadle.hosted.records import ALIVE_S, Records
from treadle.sandbox.isolation import isolated
from treadle.sandbox.ladder import probe
from treadle.skills.store import Skills
from treadle.storage.database import Database
from treadle.testing import call, say

pytestmark = pytest.mark.skipif(probe().rung is None, reason=f"no containers here: {probe().why}")

CODE = NativeTool("anthropic_messages", {"type": "code_execution_20260120", "name": "code_execution"})
TEXT = {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]}
LOOK = ToolSpec("look", "Looks.", TEXT, extra={"allowed_callers": ["code_execution_20260120"]})
POINT = ToolSpec("point", "Points.", TEXT)


def runs(source: str) -> Any:
    return call(CODE_TOOL, code=source)


@dataclass
class Street:
    """One database, and a conversation that outlives hosts."""

    database: Database
    ids: dict[str, str]
    limits: HostLimits = field(default_factory=lambda: HostLimits(answer_s=30.0))
    ahead_s: float = 0.0
    """By how much its clock is fast."""
    messages: list[Message] = field(default_factory=lambda: [user("Go.")])
    container: str | None = None
    tools: Sequence[Any] = (CODE, LOOK)
    skills: Sequence[str] = ()

    @asynccontextmanager
    async def host(self) -> AsyncGenerator[House]:
        skills, files = Skills(self.database), MemoryFiles()
        records = Records(self.database, now=lambda: time.time() + self.ahead_s)
        host = Host(Library(skills), files, self.limits, isolated(), Rules(now=records.now), records)
        async with host.opened():
            yield House(host, skills, files, self.ids)

    def request(self, **more: Any) -> ModelRequest:
        container: dict[str, Any] = {"id": self.container} if self.container else {}
        if self.skills and not self.container:
            container["skills"] = [{"type": "custom", "skill_id": self.ids[name]} for name in self.skills]
        asked = ModelRequest(
            "m", tuple(self.messages), tools=tuple(self.tools), extra={"container": container}
        )
        return replace(asked, **more)

    async def ask(self, house: House, script: Sequence[Any] = (), owner: str = ME, **more: Any) -> Reply:
        """One request; what it says goes into the conversation."""
        reply = await house.hosted(list(script), owner).complete(self.request(**more))
        self.messages.append(reply.message)
        if reply.container:
            self.container = str(reply.container["id"])
        return reply

    def answer(self, text: Callable[[str], str] = lambda what: f"saw {what}", **more: Any) -> None:
        """All calls of the last reply."""
        calls = self.messages[-1].calls
        told = [ToolResult(each.id, text(json.loads(each.arguments)["what"]), **more) for each in calls]
        self.messages.append(Message("user", tuple(told)))

    def asked(self) -> list[str]:
        """What calls of code the last reply shows."""
        return [json.loads(each.arguments)["what"] for each in self.messages[-1].calls]


@pytest.fixture
async def street(database_url: str) -> AsyncGenerator[Street]:
    async with Database.open(database_url) as database:
        skills = Skills(database)
        core = {"core/__init__.py": b"", "core/x.py": b"y = 5\n"}
        made = await skills.create(ME, package("gif", "Makes GIFs.", "Call core.", core))
        yield Street(database, {"gif": made.id})


def printed(reply: Reply) -> str:
    (ran,) = results(reply)
    return str(ran["stdout"])


def failed(reply: Reply) -> str:
    (ran,) = results(reply)
    assert ran["return_code"] == 1
    return str(ran["stderr"])


async def test_variables_and_files_of_a_conversation_are_there_after_a_restart(street: Street) -> None:
    code = "import random\nx = random.random()\nopen('a.txt', 'w').write('first')\nprint(x)"
    async with street.host() as house:
        drawn = printed(await street.ask(house, [runs(code), say("Done.")]))
    street.messages.append(user("Go on."))
    async with street.host() as house:
        reply = await street.ask(house, [runs("print(x, open('a.txt').read())"), say("Done.")])
        assert printed(reply) == f"{drawn.strip()} first\n"
        assert street.container == reply.container["id"] if reply.container else None


async def test_rounds_of_calls_are_answered_from_what_was_written_down(street: Street) -> None:
    code = (
        "import asyncio\n"
        "async def both(name):\n"
        "    return await look(name), await look(name + '!')\n"
        "print(*await asyncio.gather(*(both(name) for name in ('a', 'b', 'a'))))\n"
        "print(await look('a'))"
    )
    answers = iter("0123456789")
    async with street.host() as house:
        await street.ask(house, [runs(code)])
        street.answer(lambda what: next(answers))
        await street.ask(house)
        assert street.asked() == ["a!", "b!", "a!"]
    street.answer(lambda what: next(answers))
    async with street.host() as house:
        await street.ask(house)
        assert street.asked() == ["a"]
    street.answer(lambda what: next(answers))
    async with street.host() as house:
        reply = await street.ask(house, [say("So.")])
        assert printed(reply) == "('0', '3') ('1', '4') ('2', '5')\n6\n"
        assert reply.message.text == "So."
        told: Any = reply.beside["usage"]
        assert (told["treadle"]["programs"], told["treadle"]["tool_calls"]) == (1, 7)


async def test_what_waits_keeps_its_ids(street: Street) -> None:
    async with street.host() as house:
        await street.ask(house, [runs("print(await look('a'), await look('b'))")])
        street.answer()
        first = await street.ask(house)
    del street.messages[-1]  # it was lost on its way
    async with street.host() as house:
        again = await street.ask(house, [say("So.")])
        assert again.message.calls == first.message.calls
        street.answer()
        assert printed(await street.ask(house)) == "saw a saw b\n"


async def test_another_answer_to_what_was_answered_is_refused(street: Street) -> None:
    async with street.host() as house:
        await street.ask(house, [runs("print(await look('a'), await look('b'))")])
        street.answer()
        await street.ask(house)
    del street.messages[-2:]
    street.answer(lambda what: "something else")
    async with street.host() as house:
        with pytest.raises(InvalidArgument, match="answered already"):
            await street.ask(house)
        street.messages.pop()
        street.answer()
        await street.ask(house)
        assert street.asked() == ["b"]


async def test_a_program_that_does_something_else_is_stopped_and_nothing_is_asked_again(
    street: Street,
) -> None:
    code = "import time\nprint(await look(str(time.time_ns())), await look('then'))"
    async with street.host() as house:
        await street.ask(house, [runs(code), say("Pity.")])
        (moment,) = street.asked()
        street.answer()
        await street.ask(house)
        assert street.asked() == ["then"]
    street.answer()
    async with street.host() as house:
        reply = await street.ask(house, [say("Pity.")])
        assert "ReplayDiverged" in failed(reply)
        assert f'look({{"what":"{moment}"}})' in failed(reply).replace(" ", "")
        assert reply.message.calls == ()
        street.messages.append(user("Go on."))
        assert printed(await street.ask(house, [runs("print(1)"), say("So.")])) == "1\n"


async def test_a_program_that_ends_without_what_it_had_asked_is_told(street: Street) -> None:
    code = "import time\nif time.time() < {until}:\n    await look('early')\nprint('done')"
    async with street.host() as house:
        await street.ask(house, [runs("x = 1"), say("Begun.")])
        street.messages.append(user("Go on."))
        until = time.time() + 5
        await street.ask(house, [runs(code.format(until=until))])
        street.answer()
    await anyio.sleep(until - time.time())
    async with street.host() as house:
        assert "ReplayDiverged" in failed(await street.ask(house, [say("Pity.")]))


async def test_what_an_earlier_run_printed_must_come_out_again(street: Street) -> None:
    async with street.host() as house:
        await street.ask(house, [runs("import time\nprint(time.time_ns())"), say("Done.")])
        street.messages.append(user("Go on."))
        await street.ask(house, [runs("print(await look('a'))")])
        before = street.container
    street.answer()
    async with street.host() as house:
        script = [runs("print('anew')"), say("So.")]
        reply = await street.ask(house, script)
        first, second = results(reply)
        assert "its run 1 printed something else" in first["stderr"]
        assert second["stdout"] == "anew\n"
        assert street.container != before


async def test_without_a_program_a_container_that_cannot_be_made_anew_is_over(street: Street) -> None:
    async with street.host() as house:
        await street.ask(house, [runs("import time\nprint(time.time_ns())"), say("Done.")])
    street.messages.append(user("Go on."))
    async with street.host() as house:
        with pytest.raises(ContainerExpired, match="printed something else"):
            await street.ask(house)
        with pytest.raises(ContainerExpired, match="never was yours"):
            await street.ask(house)


async def test_nobody_else_gets_a_container_after_a_restart(street: Street) -> None:
    async with street.host() as house:
        await street.ask(house, [runs("print(await look('a'))")])
    street.answer()
    async with street.host() as house:
        with pytest.raises(ContainerExpired, match="never was yours"):
            await street.ask(house, owner=OTHER)
        assert printed(await street.ask(house, [say("So.")])) == "saw a\n"


async def test_a_container_is_held_by_one_living_process(street: Street) -> None:
    async with street.host() as first, street.host() as second:
        await street.ask(first, [runs("print(await look('a'), await look('b'))")])
        street.answer()
        with pytest.raises(ContainerBusy, match="held by another process") as caught:
            await street.ask(second)
        assert 0 < caught.value.retry_after_s <= ALIVE_S
        street.ahead_s = ALIVE_S + 1  # the first is late, and taken for dead
        await street.ask(second, [say("So.")])
        assert street.asked() == ["b"]
        street.answer()
        with pytest.raises(ContainerBusy, match="held by another process"):
            await first.hosted([]).complete(street.request(messages=tuple(street.messages[:3])))
        assert printed(await street.ask(second)) == "saw a saw b\n"


async def test_two_requests_for_one_lost_container_make_it_once(street: Street) -> None:
    async with street.host() as house:
        await street.ask(house, [runs("import time\ntime.sleep(0.3)\nprint(await look('a'))")])
    street.answer()
    request = street.request()
    async with street.host() as house:
        replies: list[Reply] = []

        async def go() -> None:
            replies.append(await house.hosted([say("So.")]).complete(request))

        async with anyio.create_task_group() as group:
            group.start_soon(go)
            group.start_soon(go)
        assert [printed(each) for each in replies] == ["saw a\n"] * 2
        assert len(house.host.places(ME)) == 1


async def test_a_call_that_waited_too_long_times_out_after_a_restart_too(street: Street) -> None:
    code = "try:\n    await look('a')\nexcept TimeoutError as late:\n    print(late)\nprint(await look('b'))"
    async with street.host() as house:
        await street.ask(house, [runs(code)])
    street.answer()
    street.ahead_s = 31.0
    async with street.host() as house:
        await street.ask(house, [say("So.")])
        assert street.asked() == ["b"]
        street.answer()
        reply = await street.ask(house)
        assert printed(reply) == "Calling tool ['look'] timed out (no response after 30s).\nsaw b\n"


async def test_a_container_that_waits_is_not_idle_after_a_restart_either(street: Street) -> None:
    street.limits = HostLimits()
    async with street.host() as house:
        await street.ask(house, [runs("await look('a')")])
    street.answer()
    street.ahead_s = street.limits.answer_s + 100.0  # longer than a container may be idle
    async with street.host() as house:
        assert "timed out (no response after 270s)" in failed(await street.ask(house, [say("So.")]))


async def test_an_answer_that_came_too_late_stays_too_late(street: Street) -> None:
    code = "try:\n    await look('a')\nexcept TimeoutError:\n    print('late')\nprint(await look('b'))"
    street.limits = HostLimits(answer_s=2.0)
    async with street.host() as house:
        await street.ask(house, [runs(code)])
        await anyio.sleep(2.2)
        street.answer()
        await street.ask(house)
        assert street.asked() == ["b"]
    street.answer()
    street.limits = HostLimits(answer_s=30.0)
    async with street.host() as house:
        assert printed(await street.ask(house, [say("So.")])) == "late\nsaw b\n"


async def test_an_error_as_an_answer_is_raised_again(street: Street) -> None:
    code = "try:\n    await look('a')\nexcept ToolError as error:\n    print(error)\nprint(await look('b'))"
    async with street.host() as house:
        await street.ask(house, [runs(code)])
        street.answer(lambda what: "no such thing", is_error=True)
        await street.ask(house)
    street.answer()
    async with street.host() as house:
        assert printed(await street.ask(house, [say("So.")])) == "no such thing\nsaw b\n"


async def test_the_callers_own_call_beside_a_program_is_not_lost(street: Street) -> None:
    street.tools = (CODE, LOOK, POINT)
    async with street.host() as house:
        await street.ask(house, [runs("print(await look('a'))") + call("point", what="there")])
        assert sorted(street.asked()) == ["a", "there"]
    street.answer()
    async with street.host() as house:
        reply = await street.ask(house, [say("So.")])
        assert printed(reply) == "saw a\n"
        assert reply.message.text == "So."


async def test_a_skill_is_shown_again(street: Street) -> None:
    street.skills = ("gif",)
    code = "from core.x import y\nz = y\nprint(await look(str(y)))"
    async with street.host() as house:
        await street.ask(house, [runs(code)])
    street.answer()
    async with street.host() as house:
        reply = await street.ask(house, [runs("from core.x import y\nprint(y + z)"), say("So.")])
        assert [each["stdout"] for each in results(reply)] == ["saw 5\n", "10\n"]


async def test_a_skill_that_is_gone_is_told(street: Street) -> None:
    street.skills = ("gif",)
    async with street.host() as house:
        await street.ask(house, [runs("print(await look('a'))")])
        await house.skills.delete(None, street.ids["gif"])
    street.answer()
    async with street.host() as house:
        assert "could not be made anew" in failed(await street.ask(house, [say("Pity.")]))


async def test_a_run_that_was_stopped_makes_a_container_that_ends_with_its_process(street: Street) -> None:
    street.limits = HostLimits(code_s=0.5)
    async with street.host() as house:
        await street.ask(house, [runs("x = 1\nwhile True: pass"), say("Pity.")])
        street.messages.append(user("Go on."))
        await street.ask(house, [runs("print(x)"), say("So.")])
    street.messages.append(user("Go on."))
    async with street.host() as house:
        with pytest.raises(ContainerExpired, match="took too long"):
            await street.ask(house)


async def test_forged_and_stale_calls_are_refused(street: Street) -> None:
    async with street.host() as house:
        await street.ask(house, [runs("print(await look('a'))"), say("So.")])
        street.answer()
        early = list(street.messages)
        await street.ask(house)
        street.messages.append(user("Go on."))
        await street.ask(house, [runs("print(await look('b'))"), say("So.")])
        street.answer()
        await street.ask(house)
    late, street.messages = street.messages, early
    async with street.host() as house:
        with pytest.raises(InvalidArgument, match="answered long ago"):
            await street.ask(house)
        street.messages = late
        street.messages.append(user("Go on."))
        assert printed(await street.ask(house, [runs("print(2)"), say("So.")])) == "2\n"


async def test_what_expired_is_gone(street: Street) -> None:
    async with street.host() as house:
        await street.ask(house, [runs("print(1)"), say("So.")])
    street.messages.append(user("Go on."))
    street.ahead_s = 1000.0
    async with street.host() as house:
        assert await house.host.kept(ME) == []
        with pytest.raises(ContainerExpired):
            await street.ask(house)


async def test_what_ended_leaves_nothing_in_the_database(street: Street) -> None:
    async with street.host() as house:
        await street.ask(house, [runs("open('a', 'w').write('x' * 3_000_000)\nprint(1)"), say("So.")])
        assert street.container
        await house.host.delete(street.container, ME)
        assert await rows(street.database) == {"containers": 0, "container_entries": 0, "container_blobs": 0}
        assert await rows(street.database, "blobs", "chunks") == {"blobs": 1, "chunks": 1}  # of the skill


async def rows(database: Database, *tables: str) -> dict[str, int]:
    from sqlalchemy import text

    counted: dict[str, int] = {}
    async with database.read() as connection:
        for table in tables or ("containers", "container_entries", "container_blobs"):
            counted[table] = (await connection.execute(text(f"SELECT count(*) FROM {table}"))).scalar_one()
    return counted


async def test_what_a_shell_and_an_editor_did_is_there_too(street: Street) -> None:
    script = [
        call(BASH_TOOL, command="echo one > a.txt; mkdir -p deep; echo x > deep/gone"),
        call(EDITOR_TOOL, command="str_replace", path="a.txt", old_str="one", new_str="two"),
        call(BASH_TOOL, command="rm deep/gone"),
        runs("print(await look('a'))"),
    ]
    async with street.host() as house:
        await street.ask(house, script)
    street.answer()
    read = "import os\nprint(open('a.txt').read(), sorted(os.listdir('deep')))"
    async with street.host() as house:
        reply = await street.ask(house, [runs(read), say("So.")])
        assert [each["stdout"] for each in results(reply)] == ["saw a\n", "two\n []\n"]
