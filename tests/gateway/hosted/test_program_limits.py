"""What a program may take: calls, time, output, containers; and what one that waits takes of the machine."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import anyio
import openai
import pytest
from anyio import to_thread

from tests.gateway.hosted.conftest import OTHER_KEY, Shop
from tests.gateway.hosted.programs import CODE, Loop, ToolOfClient
from tests.processes import descendants
from treadle.execution.rules import Rules
from treadle.hosted.host import Host, HostLimits
from treadle.testing import call, say

LOOK = ToolOfClient("look", "what", lambda what: f"saw {what}")
each_client = pytest.mark.parametrize(("kind", "wire"), [("anthropic", "chat"), ("openai", "messages")])
streamed_or_not = pytest.mark.parametrize("streamed", [False, True])
TOO_MANY = (anthropic.RateLimitError, openai.RateLimitError)


@asynccontextmanager
async def hosting(shop: Shop, rules: Rules | None = None, **limits: Any) -> AsyncGenerator[Shop]:
    """`shop`, with a host of its own."""
    rules = rules or Rules(per_owner=1000)
    host = Host(shop.host.library, shop.host.files, HostLimits(**limits), shop.host.settings, rules)
    async with host.opened():
        await host.containers()
        yield replace(shop, host=host)


@streamed_or_not
@each_client
async def test_of_two_hundred_calls_at_once_as_many_are_asked_as_may_wait(
    shop: Shop, kind: str, wire: str, *, streamed: bool
) -> None:
    code = (
        "import asyncio\nsaid = await asyncio.gather(*(look(f'n{n}') for n in range(200)))\n"
        "print(len(said), said == [f'saw n{n}' for n in range(200)])"
    )
    async with shop.serving([call(CODE, code=code), say("So.")], wire) as serving:
        loop = Loop(serving.client(kind, streamed=streamed), [LOOK])
        last = await loop.to_the_end()
        assert [len(answer.calls) for answer in loop.answers] == [128, 72, 0]
        assert [run["stdout"] for run in last.runs] == ["200 True\n"]
        assert len(serving.fake.requests) == 2


@each_client
async def test_a_call_beyond_the_limit_of_a_program_is_an_error_that_ends_the_code(
    shop: Shop, kind: str, wire: str
) -> None:
    code = "for n in range(9):\n    await look(f'n{n}')"
    async with (
        hosting(shop, calls=3) as small,
        small.serving(
            [call(CODE, code=code), call(CODE, code="print(await look('more'))"), say("So.")], wire
        ) as serving,
    ):
        loop = Loop(serving.client(kind), [LOOK])
        await loop.to_the_end()
        assert [len(answer.calls) for answer in loop.answers] == [1, 1, 1, 1, 0]
        first, second = [run for answer in loop.answers for run in answer.runs]
        assert first["return_code"] == 1
        assert "ToolError: not run: one run of code may call tools 3 times" in first["stderr"]
        assert second["stdout"] == "saw more\n", "the next run counts anew"


async def test_a_program_may_make_a_thousand_calls(shop: Shop) -> None:
    code = (
        "import asyncio\n"
        "said = await asyncio.gather(*(look(f'n{n}') for n in range(1003)), return_exceptions=True)\n"
        "print(sum(isinstance(each, ToolError) for each in said))"
    )
    async with shop.serving([call(CODE, code=code), say("So.")], "chat") as serving:
        loop = Loop(serving.client("anthropic"), [LOOK])
        last = await loop.to_the_end()
        assert sum(len(answer.calls) for answer in loop.answers) == 1000
        assert [run["stdout"] for run in last.runs] == ["3\n"]


@each_client
async def test_time_in_which_code_waits_does_not_count_and_time_in_which_it_runs_does(
    shop: Shop, kind: str, wire: str
) -> None:
    code = "print(await look('a'), flush=True)\nwhile True:\n    pass"
    async with (
        hosting(shop, code_s=0.8) as quick,
        quick.serving([call(CODE, code=code), say("Stopped.")], wire) as serving,
    ):
        loop = Loop(serving.client(kind), [LOOK])
        await loop.step()
        await anyio.sleep(1.2)
        loop.messages += loop.results()
        last = await loop.step()
        (run,) = last.runs
        assert run["stdout"] == "saw a\n", "it waited for longer than it may run"
        assert run["return_code"] != 0
        assert "[stopped: it ran for 0.8 s]" in run["stderr"]
        assert last.text == "Stopped."


@each_client
async def test_what_a_program_prints_is_cut_in_its_middle(shop: Shop, kind: str, wire: str) -> None:
    code = "print('first', await look('a'))\nprint('x' * 3_000_000)\nprint('last')"
    async with shop.serving([call(CODE, code=code), say("Long.")], wire) as serving:
        loop = Loop(serving.client(kind), [LOOK])
        last = await loop.to_the_end()
        (run,) = last.runs
        assert run["stdout"].startswith("first saw a\n")
        assert run["stdout"].endswith("last\n")
        assert len(run["stdout"]) < 100_000
        assert last.text == "Long."


@streamed_or_not
@each_client
async def test_where_no_container_may_be_made_no_model_is_asked(
    shop: Shop, kind: str, wire: str, *, streamed: bool
) -> None:
    waits = [call(CODE, code="print(await look('a'))")]
    rules = Rules(per_owner=2, in_all=3, makes_room=True)
    async with (
        hosting(shop, rules) as small,
        small.serving([*waits * 2, say("Three.")], wire) as serving,
        small.serving(waits, wire, key=OTHER_KEY) as theirs,
    ):
        first, second, third = (Loop(serving.client(kind, streamed=streamed), [LOOK]) for _ in range(3))
        await first.step()
        await second.step()
        with pytest.raises(TOO_MANY, match="'key:key-1' has 2 containers, and may have 2: close one"):
            await third.step()
        assert len(serving.fake.requests) == 2, "both of the programs that wait, and nothing more"

        other = Loop(theirs.client(kind, streamed=streamed), [LOOK])
        await other.step()
        one_more = Loop(theirs.client(kind, streamed=streamed), [LOOK])
        with pytest.raises(TOO_MANY, match="there are 3 containers, as many as are allowed"):
            await one_more.step()
        assert len(theirs.fake.requests) == 1

        first.messages += first.results()
        assert (await first.step()).text == "Three.", "a program that waits goes on all the same"


def cpu_s(pids: set[int]) -> float:
    """Seconds of processor time that processes have taken."""
    taken = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        taken += int(fields[11]) + int(fields[12])
    return taken / 100


async def test_programs_that_wait_take_no_processor_time(shop: Shop) -> None:
    async with shop.serving([call(CODE, code="print(await look('a'))")] * 3, "chat") as serving:
        for _ in range(3):
            await Loop(serving.client("anthropic"), [LOOK]).step()
        ours = descendants()
        before, own = await to_thread.run_sync(cpu_s, ours), time.process_time()
        await anyio.sleep(2)
        assert await to_thread.run_sync(cpu_s, ours) - before <= 0.05
        assert time.process_time() - own <= 0.2
