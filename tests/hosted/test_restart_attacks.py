"""What could go wrong when a container is made anew: wrong answers, lost programs, stolen containers."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.hosted.conftest import ME, ask, results
from tests.hosted.test_restarts import Street, failed, printed, rows, runs
from treadle.conversation.blocks import Message, Opaque, Text, ToolResult, user
from treadle.conversation.request import ModelRequest, Reply
from treadle.errors import ContainerBusy, ContainerExpired, InvalidArgument, StorageError
from treadle.hosted.host import HostLimits
from treadle.hosted.records import ALIVE_S, BEAT_S, KEPT_S, Records
from treadle.models.base import OnDelta
from treadle.sandbox.ladder import probe
from treadle.storage.database import Database
from treadle.testing import ScriptedModel, say

pytestmark = pytest.mark.skipif(probe().rung is None, reason=f"no containers here: {probe().why}")


_asks = ContextVar("asks", default=False)
"""Whether a request is being answered: what a host does beside goes well."""


class Flaky(Database):
    """A database that can be made to fail."""

    fails_at: int | None = None
    """Which use of it fails, from now on counted down."""

    def _use(self) -> None:
        if self.fails_at is not None and _asks.get():
            self.fails_at -= 1
            if self.fails_at == -1:
                raise StorageError("the database is away")

    @asynccontextmanager
    async def begin(self, *, alone: bool = False) -> AsyncGenerator[AsyncConnection]:
        self._use()
        async with super().begin(alone=alone) as connection:
            yield connection

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[AsyncConnection]:
        self._use()
        async with super().read() as connection:
            yield connection

    @asynccontextmanager
    async def quick(self) -> AsyncGenerator[AsyncConnection]:
        self._use()
        async with super().quick() as connection:
            yield connection


@pytest.fixture
async def street(tmp_path: Path) -> AsyncGenerator[Street]:
    database = Flaky(f"sqlite:///{tmp_path}/treadle.db")
    async with database.opened():
        yield Street(database, {})


async def test_after_a_program_that_diverged_the_next_one_of_the_turn_asks_anew(street: Street) -> None:
    code = "import time\nprint(await look('same' if time.time() < {until} else 'other'), await look('then'))"
    until = time.time() + 4
    async with street.host() as house:
        await street.ask(house, [runs(code.format(until=until))])
        street.answer(lambda what: "of before")
        await street.ask(house)
    street.answer()
    await anyio.sleep(max(0.0, until - time.time()))
    async with street.host() as house:
        await street.ask(house, [runs("print(await look('same'))"), say("So.")])
        assert street.asked() == ["same"]
        street.answer(lambda what: "of now")
        assert printed(await street.ask(house)) == "of now\n"


async def test_a_program_that_catches_everything_is_stopped_where_it_diverges(street: Street) -> None:
    code = (
        "import time\n"
        "while True:\n"
        "    try:\n"
        "        await look(str(time.time_ns()))\n"
        "    except BaseException:\n"
        "        pass\n"
    )
    async with street.host() as house:
        await street.ask(house, [runs(code)])
        street.answer()
        await street.ask(house)
    street.answer()
    async with street.host() as house:
        with anyio.fail_after(60):
            reply = await street.ask(house, [say("So.")])
        assert "ReplayDiverged" in failed(reply)
        assert reply.message.calls == ()


async def test_what_a_stopped_run_left_is_not_made_up_when_another_waits_there(street: Street) -> None:
    async with street.host() as house:
        await street.ask(house, [runs("x = 0"), say("Done.")])
        street.messages.append(user("Go on."))
        with anyio.move_on_after(3):
            await street.ask(house, [runs("import time\nx = 1\ntime.sleep(60)")])
        assert (
            printed(await street.ask(house, [runs("print(x)"), runs("print(await look('a'), x)")])) == "1\n"
        )
    street.answer()
    async with street.host() as house:
        reply = await street.ask(house, [say("So.")])
        assert "stopped in the middle" in failed(reply)


async def test_a_run_that_took_too_long_is_not_repeated_for_one_that_waits(street: Street) -> None:
    street.limits = HostLimits(code_s=0.5)
    async with street.host() as house:
        await street.ask(house, [runs("x = 1\nwhile True: x += 1"), runs("print(await look('a'), x)")])
    street.answer()
    async with street.host() as house:
        assert "took too long" in failed(await street.ask(house, [say("So.")]))


async def test_a_history_without_the_program_is_refused_and_it_keeps_waiting(street: Street) -> None:
    async with street.host() as house:
        await street.ask(house, [runs("print(await look('a'))")])
    street.answer()
    whole = list(street.messages)
    reply = whole[1]
    without = tuple(block for block in reply.blocks if not isinstance(block, Opaque))
    async with street.host() as house:
        street.messages[1] = replace(reply, blocks=without)
        with pytest.raises(InvalidArgument, match="as they came"):
            await street.ask(house)
        street.messages = whole
        assert printed(await street.ask(house, [say("So.")])) == "saw a\n"


async def test_a_request_without_answers_is_refused_and_the_program_keeps_waiting(street: Street) -> None:
    async with street.host() as house:
        await street.ask(house, [runs("print(await look('a'))")])
    whole = list(street.messages)
    async with street.host() as house:
        street.messages = whole
        street.messages.append(user("What?"))
        with pytest.raises(InvalidArgument):
            await street.ask(house, [say("Never.")])
        street.messages.pop()
        street.answer()
        assert printed(await street.ask(house, [say("So.")])) == "saw a\n"


async def test_in_the_place_of_a_lost_container_programs_wait_too(street: Street) -> None:
    async with street.host() as house:
        await street.ask(house, [runs("import time\nprint(time.time_ns())"), say("Done.")])
        street.messages.append(user("Go on."))
        await street.ask(house, [runs("print(await look('a'))")])
    street.answer()
    async with street.host() as house:
        await street.ask(house, [runs("print(await look('b'))"), say("So.")])
        assert street.asked() == ["b"]
        street.answer()
        assert printed(await street.ask(house)) == "saw b\n"
    street.messages.append(user("Go on."))
    async with street.host() as house:
        assert printed(await street.ask(house, [runs("print(3)"), say("So.")])) == "3\n"


@pytest.mark.parametrize("argument", ["float('nan')", "'\\ud800'", "'\\0'", "10 ** 400", "1e308 * 10"])
async def test_arguments_that_are_hardly_json_are_matched(street: Street, argument: str) -> None:
    anything: Any = {"type": "object", "properties": {"what": {}}, "required": ["what"]}
    street.tools = (street.tools[0], replace(street.tools[1], parameters=anything))
    code = f"try:\n    print(await look({argument}))\nexcept Exception as e:\n    print(e)\nawait look('b')"
    script = [runs(code), say("So.")]
    async with street.host() as house:
        while calls := (await street.ask(house, script)).message.calls:
            street.messages.append(Message("user", tuple(ToolResult(each.id, "seen") for each in calls)))
        street.messages.append(user("Go on."))
    async with street.host() as house:
        assert printed(await street.ask(house, [runs("print(3)"), say("So.")])) == "3\n"


async def test_equal_values_of_other_kinds_are_other_arguments(street: Street) -> None:
    anything: Any = {"type": "object", "properties": {"what": {}}, "required": ["what"]}
    street.tools = (street.tools[0], replace(street.tools[1], parameters=anything))
    code = (
        "import asyncio, time\n"
        "one, other = (1, True) if time.time() < {until} else (True, 1)\n"
        "async def ask(x):\n"
        "    return repr(x) + await look(x)\n"
        "print(sorted(await asyncio.gather(ask(one), ask(other))), await look('b'))"
    )
    until = time.time() + 4
    async with street.host() as house:
        await street.ask(house, [runs(code.format(until=until))])
        street.answer(repr)
        await street.ask(house)
    street.answer(repr)
    await anyio.sleep(max(0.0, until - time.time()))
    async with street.host() as house:
        assert printed(await street.ask(house, [say("So.")])) == "['11', 'TrueTrue'] 'b'\n"


async def test_more_output_than_is_kept_is_compared_too(street: Street) -> None:
    async with street.host() as house:
        await street.ask(house, [runs("for n in range(400_000): print(n, 'x' * 20)\nx = 1"), say("Done.")])
    street.messages.append(user("Go on."))
    async with street.host() as house:
        assert printed(await street.ask(house, [runs("print(x)"), say("So.")])) == "1\n"


async def test_calls_that_had_no_answer_when_the_code_ended_hinder_nothing(street: Street) -> None:
    code = (
        "import asyncio\n"
        "task = asyncio.ensure_future(look('left'))\n"
        "await asyncio.sleep(0.1)\n"
        "print('done')\n"
    )
    async with street.host() as house:
        reply = await street.ask(house, [runs(code), say("Done.")])
        assert street.asked() == ["left"]
        street.answer()
        await anyio.sleep(0.3)
        reply = await street.ask(house)
        assert printed(reply) == "done\n"
    street.messages.append(user("Go on."))
    async with street.host() as house:
        assert printed(await street.ask(house, [runs("print(3)"), say("So.")])) == "3\n"


async def test_nested_loops_and_threads_go_on(street: Street) -> None:
    code = (
        "import asyncio, threading\n"
        "found = []\n"
        "async def inner(name):\n"
        "    found.append(await look(name))\n"
        "    found.append(await look(name + '!'))\n"
        "threads = [threading.Thread(target=lambda n=n: asyncio.run(inner(n))) for n in 'pq']\n"
        "[t.start() for t in threads]\n"
        "[t.join() for t in threads]\n"
        "print(sorted(found), await look('end'))\n"
    )
    async with street.host() as house:
        await street.ask(house, [runs(code), say("Done.")])
        asked = 0
        while True:
            asked += len(street.asked())
            if street.asked() == ["end"]:
                break
            street.answer()
            await street.ask(house)
    street.answer()
    async with street.host() as house:
        reply = await street.ask(house, [say("So.")])
        assert printed(reply) == "['saw p', 'saw p!', 'saw q', 'saw q!'] saw end\n"
        assert asked == 5


async def test_a_process_that_paused_does_not_go_on_with_what_was_taken_from_it(street: Street) -> None:
    async with street.host() as first, street.host() as second:
        await street.ask(first, [runs("x = 1"), say("Done.")])
        street.messages.append(user("Go on."))
        street.ahead_s = ALIVE_S + 1  # the first is late, and taken for dead
        request = street.request()
        await street.ask(second, [runs("x = 2\nprint(x)"), say("So.")])
        for _ in range(2):
            with pytest.raises(ContainerBusy):
                await first.hosted([runs("print(x)"), say("Wrong.")]).complete(request)
        street.messages.append(user("Go on."))
        assert printed(await street.ask(second, [runs("print(x)"), say("So.")])) == "2\n"


async def test_a_process_that_does_not_know_what_it_lost_writes_nothing(street: Street) -> None:
    async with street.host() as house:
        await street.ask(house, [runs("print(await look('a'), await look('b'))")])
        street.answer()
        other = Records(street.database, now=lambda: time.time() + ALIVE_S + 1)
        assert street.container
        async with other.opened():
            assert await other.claim(street.container, ME)
            with pytest.raises(ContainerBusy, match="was taken by another process"):
                await street.ask(house)
            with pytest.raises(ContainerBusy, match="is held by another process"):
                await street.ask(house)
        await street.ask(house, [say("So.")])  # that has let it go
        street.answer()
        assert printed(await street.ask(house)) == "saw a saw b\n"


async def test_a_request_of_long_ago_does_not_undo_what_ran_since(street: Street) -> None:
    async with street.host() as house:
        await street.ask(house, [runs("x = await look('a')\nprint(x)"), runs("y = x"), say("So.")])
        street.answer()
        early = list(street.messages)
        await street.ask(house)
        street.messages.append(user("Go on."))
        await street.ask(house, [runs("x = 'later'"), say("So.")])
        street.messages.append(user("Go on."))
    async with street.host() as house:
        late, street.messages = street.messages, early
        with pytest.raises(InvalidArgument, match="answered long ago"):
            await street.ask(house)
        street.messages = late
        assert printed(await street.ask(house, [runs("print(x, y)"), say("So.")])) == "later saw a\n"


async def test_a_reply_that_was_lost_is_made_again(street: Street) -> None:
    async with street.host() as house:
        await street.ask(house, [runs("x = await look('a')\nprint(x)"), runs("y = x"), say("So.")])
        street.answer()
        await street.ask(house)
        street.messages.pop()
    async with street.host() as house:
        assert printed(await street.ask(house, [say("So.")])) == "saw a\n"


async def test_a_container_that_is_deleted_while_its_model_thinks_is_not_written_down(street: Street) -> None:
    async with street.host() as house:

        class Thinks(ScriptedModel):
            async def complete(self, request: ModelRequest, on_delta: OnDelta | None = None) -> Reply:
                for place in house.host.places(ME):
                    await house.host.delete(place.container.id, ME)
                return await super().complete(request, on_delta)

        reply = await house.hosted(Thinks([runs("print(1)"), say("Done.")])).complete(street.request())
        assert printed(reply) == "1\n"
        assert await rows(street.database) == {"containers": 0, "container_entries": 0, "container_blobs": 0}


async def test_tasks_that_earlier_code_left_are_asked_and_answered_again(street: Street) -> None:
    left = (
        "import asyncio\n"
        "found = []\n"
        "async def later():\n"
        "    for name in 'pq':\n"
        "        await event.wait()\n"
        "        found.append(await look(name))\n"
        "event = asyncio.Event()\n"
        "task = asyncio.ensure_future(later())\n"
        "print('begun')"
    )
    async with street.host() as house:
        await street.ask(
            house, [runs(left), runs("event.set()\nprint(await look('a'))\nawait task\nprint(found)")]
        )
        while "q" not in street.asked():
            street.answer()
            await street.ask(house)
    street.answer()
    async with street.host() as house:
        reply = await street.ask(house, [runs("print(found)"), say("So.")])
        assert [each["stdout"] for each in results(reply)] == [
            "saw a\n['saw p', 'saw q']\n",
            "['saw p', 'saw q']\n",
        ]
    street.messages.append(user("Go on."))
    async with street.host() as house:
        reply = await street.ask(house, [runs("print(found)"), say("So.")])
        assert printed(reply) == "['saw p', 'saw q']\n"


async def test_folders_modes_and_what_was_removed_are_as_they_were(street: Street) -> None:
    first = (
        "import os, time, pathlib\n"
        "os.makedirs('deep/empty')\n"
        "pathlib.Path('run.sh').write_text(f'#!/bin/sh\\necho {time.time_ns()}\\n')\n"
        "os.chmod('run.sh', 0o755)\n"
        "pathlib.Path('gone').write_text('x')\n"
        "pathlib.Path('log').write_text(str(time.time_ns()))"
    )
    second = "os.remove('gone')\nopen('log', 'a').write('!')\nprint('ok')"
    look = (
        "import subprocess\n"
        "said = subprocess.run(['./run.sh'], capture_output=True, text=True).stdout\n"
        "print(said, os.listdir('deep'), sorted(os.listdir('.')), open('log').read())"
    )
    async with street.host() as house:
        await street.ask(house, [runs(first), runs(second), runs(look), say("Done.")])
        before = results_of(street)[-1]
    for _ in range(2):
        street.messages.append(user("Go on."))
        async with street.host() as house:
            assert printed(await street.ask(house, [runs(look), say("Done.")])) == before


def results_of(street: Street) -> list[str]:
    """What was printed so far."""
    blocks = [block for message in street.messages for block in message.blocks if isinstance(block, Opaque)]
    contents: list[Any] = [block.raw["content"] for block in blocks if "content" in block.raw]
    return [str(each["stdout"]) for each in contents]


async def test_what_was_deleted_meanwhile_does_not_come_back_in_part(street: Street) -> None:
    async with street.host() as first, street.host() as second:
        await street.ask(first, [runs("x = 1"), say("Done.")])
        assert street.container
        street.messages.append(user("Go on."))
        request = street.request()
        street.ahead_s = ALIVE_S + 1
        await second.host.delete(street.container, ME)
        with pytest.raises(ContainerExpired):
            await first.hosted([runs("open('f', 'w').write('x')"), say("Hm.")]).complete(request)
        assert (await rows(street.database))["containers"] == 0


@pytest.mark.slow
async def test_the_database_may_fail_at_any_moment_and_the_same_request_again_works(street: Street) -> None:
    assert await walk(street, None) == []
    failed_in: list[int] = []
    while True:
        street.messages, street.container = [user("Go.")], None
        failed = await walk(street, len(failed_in))
        failed_in += failed
        if not failed:  # there was no such moment
            break
    assert {1, 2, 3} == set(failed_in)


async def walk(street: Street, fails_at: int | None) -> list[int]:
    """A conversation over a restart at each step; in which of these the database failed."""
    database = street.database
    assert isinstance(database, Flaky)
    failures: list[int] = []
    code = "open('f', 'w').write('x')\nx = 1\nprint(await look('a'))"
    steps: list[list[Any]] = [
        [runs("y = 7\nopen('g', 'w').write('y')\nprint(y)"), say("Done.")],
        [runs(code)],
        [runs("print(await look('b'), y, x, open('f').read())"), say("Hm.")],
        [say("So.")],
    ]
    shown: list[Any] = []
    for number, script in enumerate(steps):
        async with street.host() as house:
            database.fails_at = fails_at if number else None
            _asks.set(True)
            try:
                reply = await street.ask(house, script)
            except StorageError:
                failures.append(number)
                reply = await street.ask(house, script)
            if number:
                fails_at = None if failures else database.fails_at
            database.fails_at = None
            _asks.set(False)
            shown += results(reply)
        if number == 0:
            street.messages.append(user("Go on."))
        elif number < 3:
            if street.asked() != [("a", "b")[number - 1]]:
                break
            street.answer()
    if failures == [1] and "a run of code was stopped in the middle" in shown[1]["stderr"]:
        return failures  # what it asked could not be written down, and it was told nobody
    assert shown[-1]["stdout"] == "saw b 7 1 x\n", (failures, shown)
    return failures


@pytest.mark.parametrize("after_s", [0.05, 0.3, 0.6, 1.0, 1.4])
async def test_a_client_that_leaves_while_its_container_is_made_anew_leaves_nothing_behind(
    street: Street, after_s: float
) -> None:
    slow = "import time\ntime.sleep(0.5)\n"
    async with street.host() as house:
        await street.ask(house, [runs(f"{slow}x = 1"), say("Done.")])
        street.messages.append(user("Go on."))
        await street.ask(house, [runs(f"{slow}print(await look('a'), x)")])
    street.answer()
    async with street.host() as house:
        with anyio.move_on_after(after_s):
            await house.hosted([say("So.")] * 2).complete(street.request())
        assert len(house.host.places(ME)) <= 1
        assert printed(await street.ask(house, [say("So.")])) == "saw a 1\n"
        assert len(house.host.places(ME)) == 1


@pytest.mark.slow
async def test_a_thousand_calls_of_16_kb_are_made_anew_in_seconds(street: Street) -> None:
    code = (
        "total = 0\n"
        "for number in range(249):\n"
        "    import asyncio\n"
        "    for text in await asyncio.gather(*(look(f'{number} {n}') for n in range(4))):\n"
        "        total += len(text)\n"
        "print(total, await look('end'))\n"
    )
    async with street.host() as house:
        await street.ask(house, [runs(code)])
        took: list[float] = []
        while street.asked() != ["end"]:
            began = time.monotonic()
            street.answer(lambda what: what + "x" * (16_000 - len(what)))
            await street.ask(house)
            took.append(time.monotonic() - began)
    first, last = sorted(took[:50])[25], sorted(took[-50:])[25]
    street.answer()
    began = time.monotonic()
    async with street.host() as house:
        assert printed(await street.ask(house, [say("So.")])) == "15936000 saw end\n"
        assert time.monotonic() - began < 30
    assert last < 4 * first


async def test_refused_calls_and_exits_come_out_again(street: Street) -> None:
    code = (
        "try:\n"
        "    await look(1, 2, 3)\n"
        "except Exception as error:\n"
        "    print(type(error).__name__)\n"
        "x = await look('a')\n"
        "try:\n"
        "    await look(*range(9))\n"
        "except Exception as error:\n"
        "    print(type(error).__name__)\n"
    )
    async with street.host() as house:
        await street.ask(house, [runs(f"{code}raise SystemExit(3)"), runs(f"{code}print(await look('b'))")])
        while "b" not in street.asked():
            street.answer(str)
            await street.ask(house)
    street.answer(str)
    async with street.host() as house:
        reply = await street.ask(house, [runs("print(x)"), say("So.")])
        assert [each["return_code"] for each in results(reply)] == [0, 0]
        assert results(reply)[1]["stdout"] == "a\n"


async def test_ids_of_other_containers_and_of_two_programs_are_refused(street: Street) -> None:
    async with street.host() as house:
        await street.ask(house, [runs("print(await look('a'))")])
        street.answer()
        mine, street.messages = street.messages, [user("Go.")]
        own, street.container = street.container, None
        await street.ask(house, [runs("print(await look('b'))")])
        street.answer()
        other = street.messages
    street.container = own
    async with street.host() as house:
        street.messages = other
        with pytest.raises(InvalidArgument, match="no call"):
            await street.ask(house)
        mixed = tuple((*first.blocks, *second.blocks) for first, second in zip(mine, other, strict=True))
        street.messages = [replace(each, blocks=blocks) for each, blocks in zip(mine, mixed, strict=True)]
        with pytest.raises(InvalidArgument, match="unexpected `tool_use_id`"):
            await street.ask(house)
        street.messages = mine
        assert printed(await street.ask(house, [say("So.")])) == "saw a\n"


async def test_files_of_the_caller_are_there_between_runs_of_code(street: Street) -> None:
    def sends(file_id: str, text: str) -> Message:
        return Message(
            "user",
            (Text(text), Opaque("anthropic_messages", {"type": "container_upload", "file_id": file_id})),
        )

    sent = {
        (ME, "file_1"): ("one.csv", b"1"),
        (ME, "file_2"): ("two.csv", b"2"),
        (ME, "file_3"): ("three.csv", b"3"),
    }
    street.messages = [sends("file_1", "Go.")]
    async with street.host() as house:
        house.files.sent.update(sent)
        await street.ask(house, [runs("open('in/one.csv', 'a').write('!')\nprint('ok')"), say("Done.")])
        street.messages.append(sends("file_2", "Go on."))
        await street.ask(house, [runs("import os\nprint(sorted(os.listdir('in')), await look('a'))")])
    street.answer()
    async with street.host() as house:
        house.files.sent.update(sent)
        assert printed(await street.ask(house, [say("So.")])) == "['one.csv', 'two.csv'] saw a\n"
        street.messages.append(sends("file_3", "Go on."))
        read = "print(*(open(f'in/{n}.csv').read() for n in ('one', 'two', 'three')))"
        assert printed(await street.ask(house, [runs(read), say("So.")])) == "1! 2 3\n"
    street.messages.append(user("Go on."))
    async with street.host() as house:
        house.files.sent.update(sent)
        assert printed(await street.ask(house, [runs(read), say("So.")])) == "1! 2 3\n"


async def test_a_stream_goes_on_after_a_restart(street: Street) -> None:
    async with street.host() as house:
        await street.ask(house, [runs("print(await look('a'), await look('b'))")])
    street.answer()
    async with street.host() as house:
        reply = await ask(house.hosted([say("So.")]), street.request(), streamed=True)
        again = await ask(house.hosted([]), street.request(), streamed=True)
        assert again.message == reply.message
    street.messages.append(reply.message)
    street.answer()
    async with street.host() as house:
        reply = await ask(house.hosted([say("So.")]), street.request(), streamed=True)
        assert printed(reply) == "saw a saw b\n"
        assert reply.message.text == "So."


async def test_nothing_is_left_in_the_database_for_ever(street: Street) -> None:
    code = "open('a', 'w').write('x' * 2_000_000)\nopen('b', 'w').write('x' * 2_000_000)\nprint(1)"
    async with street.host() as house:
        for _ in range(2):
            street.messages, street.container = [user("Go.")], None
            await street.ask(house, [runs(code), runs(code), say("Done.")])
        assert street.container
        await house.host.delete(street.container, ME)
        assert await rows(street.database, "blobs", "chunks") == {"blobs": 1, "chunks": 2}
        (left,) = house.host.places(ME)
        street.container = left.container.id
    street.messages.append(user("Go on."))
    async with street.host() as house:
        reply = await street.ask(house, [runs("print(len(open('a').read()))"), say("Done.")])
        assert printed(reply) == "2000000\n"
    street.ahead_s = KEPT_S + 1000
    async with street.host():
        for _ in range(100):
            if not (await rows(street.database))["containers"]:
                break
            await anyio.sleep(0.05)
        tables = ("containers", "container_entries", "container_blobs", "blobs", "chunks", "uploads")
        assert await rows(street.database, *tables) == dict.fromkeys(tables, 0)
        assert await rows(street.database, "holders") == {"holders": 1}


async def test_a_slow_end_of_a_container_does_not_make_others_take_its_process_for_dead(
    street: Street,
) -> None:
    async with street.host() as house:
        await street.ask(house, [runs("x = 1"), say("Done.")])
        (place,) = house.host.places(ME)
        released = anyio.Event()

        class Slow:
            is_over = False

            async def close(self) -> None:
                await released.wait()

        place.turn = Slow()
        street.ahead_s = 400  # it has expired, and this process is late, and says so when it beats
        assert house.host.records
        for _ in range(2):
            await anyio.sleep(BEAT_S + 1)
            assert not house.host.records.is_late
            street.ahead_s += ALIVE_S + 1
        released.set()


async def test_what_happens_while_something_is_written_is_written_next(street: Street) -> None:
    async with street.host() as house:
        await street.ask(house, [runs("x = 1"), say("Done.")])
        (place,) = house.host.places(ME)
        assert place.log
        place.log.put({"a.txt": b"first"})
        async with anyio.create_task_group() as group:
            group.start_soon(place.log.flush)
            await anyio.lowlevel.checkpoint()  # it writes
            place.log.put({"b.txt": b"second"})
        await place.log.flush()
    street.messages.append(user("Go on."))
    async with street.host() as house:
        reply = await street.ask(
            house, [runs("print(x, open('a.txt').read(), open('b.txt').read())"), say("So.")]
        )
        assert printed(reply) == "1 first second\n"
