"""Containers by id, their cells, and the calls that wait for somebody."""

import asyncio
import gc
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import treadle
from treadle.conversation.request import ToolSpec
from treadle.errors import ContainerGone, InvalidArgument, InvalidTool, SandboxError, TooManyContainers
from treadle.execution.cell import MAX_CODES, Cell
from treadle.execution.container import Container
from treadle.execution.containers import Containers
from treadle.execution.journal import Answered, Began, Called, Ended, Entry, MemoryJournal, Recorded
from treadle.execution.rules import Rules
from treadle.sandbox.container import ContainerDied
from treadle.sandbox.engine import Engine, Packages
from treadle.sandbox.isolation import Isolated, isolated
from treadle.sandbox.ladder import probe

REPORT = probe()
pytestmark = pytest.mark.skipif(REPORT.rung is None, reason=f"no containers here: {REPORT.why}")

SEARCH = ToolSpec("search", "Search.", {"type": "object", "properties": {"q": {"type": "string"}}})


@dataclass
class Clock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def rules(clock: Clock) -> Rules:
    return Rules(now=clock, idle_s=270, per_owner=2, in_all=3)


@pytest.fixture
async def containers(rules: Rules) -> AsyncGenerator[Containers]:
    async with Containers(isolated(), rules) as running:
        yield running


@pytest.fixture
async def container(containers: Containers) -> Container:
    return await containers.create("team-a")


async def answer_all(cell: Cell, how: Callable[[Mapping[str, Any]], str]) -> None:
    async for request in cell:
        await cell.answer(request.id, how(request.arguments))


async def test_code_asks_and_somebody_answers(container: Container) -> None:
    code = "rows = await search('a')\nprint(rows[0]['n'], await search(q='b'))"
    cell = await container.execute(code, tools=[SEARCH])
    seen: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = []
    async for request in cell:
        assert cell.state == "waiting"
        assert cell.waiting == (request,)
        seen.append((request.name, request.arguments, request.caller))
        await cell.answer(request.id, '[{"n": 1}]' if request.arguments == {"q": "a"} else "text")

    caller = {"type": "code_execution", "cell": cell.id}
    assert seen == [("search", {"q": "a"}, caller), ("search", {"q": "b"}, caller)]
    assert cell.state == "done"
    assert (cell.result.stdout, cell.result.return_code, cell.result.tool_calls) == ("1 text\n", 0, 2)


async def test_gathered_calls_wait_together_and_are_answered_in_any_order(container: Container) -> None:
    code = "import asyncio\nprint(await asyncio.gather(*[search(str(n)) for n in range(5)]))"
    cell = await container.execute(code, tools=[SEARCH])
    requests = [await anext(cell) for _ in range(5)]
    assert cell.waiting == tuple(requests)
    for request in reversed(requests):
        await cell.answer(request.id, f"<{request.arguments['q']}>")

    assert (await cell.finished()).stdout == "['<0>', '<1>', '<2>', '<3>', '<4>']\n"
    assert [request async for request in cell] == []


@pytest.mark.parametrize(
    ("kind", "shown"),
    [("ToolError", "ToolError no"), ("ToolDenied", "ToolDenied no"), ("TimeoutError", "TimeoutError no")],
)
async def test_a_call_can_fail(kind: str, shown: str, container: Container) -> None:
    code = "try:\n    await search('a')\nexcept Exception as error:\n    print(type(error).__name__, error)"
    cell = await container.execute(code, tools=[SEARCH])
    request = await anext(cell)
    await cell.fail(request.id, "no", kind=kind)

    assert (await cell.finished()).stdout == f"{shown}\n"


async def test_functions_are_run_here_and_checked_like_everywhere(container: Container) -> None:
    seen: list[int] = []

    def double(n: int) -> int:
        """Twice as much."""
        seen.append(n)
        return 2 * n

    async def rows() -> list[dict[str, int]]:
        """Some rows."""
        return [{"a": 1}]

    @treadle.tool(requires_approval=True)
    def delete() -> None:
        """Delete all."""
        raise NotImplementedError

    @treadle.tool(timeout=0.05)
    async def slow() -> None:
        """Take long."""
        await asyncio.sleep(60)

    code = """
print(await double(4), (await rows())[0]["a"], await double({"n": "5"}))
for call in (lambda: double("x"), delete, slow, search):
    try:
        print(await call())
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0])
"""
    cell = await container.execute(code, tools=[double, rows, delete, slow, SEARCH])
    async for request in cell:
        assert request.name == "search"
        await cell.answer(request.id, "from outside")

    assert cell.result.stdout.splitlines() == [
        "8 1 10",
        "ToolError ValidationError: 1 error in double_args",
        "ToolDenied delete needs somebody's approval, and nobody is asked here",
        "ToolError TimeoutError: slow was still running after 0.05 s and was given up",
        "from outside",
    ], cell.result.stderr
    assert seen == [4, 5]
    assert cell.result.tool_calls == 7


async def test_two_tools_of_one_name_are_refused(container: Container) -> None:
    def search() -> None:
        """Search."""

    with pytest.raises(InvalidTool, match="two tools are named 'search'"):
        await container.execute("pass", tools=[search, SEARCH])


async def test_wrong_answers_are_refused_and_the_call_still_waits(container: Container) -> None:
    cell = await container.execute("print(await search('a'))", tools=[SEARCH])
    request = await anext(cell)
    with pytest.raises(InvalidArgument, match="no call 'x'"):
        await cell.answer("x", "text")
    with pytest.raises(InvalidArgument, match="choose one of ToolError"):
        await cell.fail(request.id, "no", kind="SystemExit")
    with pytest.raises(InvalidArgument, match="is waiting"):
        assert cell.result
    await cell.answer(request.id, "text")
    with pytest.raises(InvalidArgument, match="waits for an answer"):
        await cell.answer(request.id, "again")

    assert (await cell.finished()).stdout == "text\n"


async def test_a_call_that_nobody_answers_raises_in_the_code(rules: Rules) -> None:
    async with Containers(isolated(), replace(rules, wait_s=0.1)) as containers:
        container = await containers.create("team-a")
        code = "try:\n    await search('a')\nexcept TimeoutError as error:\n    print(error)"
        cell = await container.execute(code, tools=[SEARCH])

        assert (await cell.finished()).stdout == "search was not answered within 0.1 s\n"


@pytest.mark.parametrize(
    ("code", "return_code"),
    [
        ("pass", 0),
        ("1 / 0", 1),
        ("import sys; sys.exit(7)", 7),
        ("raise SystemExit", 0),
        ("raise SystemExit('no')", 1),
        ("x = (", 1),
    ],
)
async def test_a_return_code_says_how_it_ended(code: str, return_code: int, container: Container) -> None:
    assert (await (await container.execute(code)).finished()).return_code == return_code


async def test_variables_and_files_stay_and_new_files_are_told(container: Container) -> None:
    first = await container.execute("x = 20\nopen('a.txt', 'w').write('one')")
    second = await (
        await _after(first, container, "open('b/c.bin', 'wb').write(bytes([0, 255]))", "b")
    ).finished()
    third = await (await container.execute("print(x, open('a.txt').read())")).finished()

    assert [(file.path, file.data) for file in first.result.files] == [("a.txt", b"one")]
    assert [(file.path, file.data) for file in second.files] == [("b/c.bin", b"\x00\xff")]
    assert (third.stdout, third.files) == ("20 one\n", [])


async def _after(cell: Cell, container: Container, code: str, folder: str) -> Cell:
    await cell.finished()
    return await container.execute(f"import os\nos.makedirs({folder!r})\n{code}")


async def test_one_cell_at_a_time(container: Container) -> None:
    cell = await container.execute("await search('a')", tools=[SEARCH])
    with pytest.raises(SandboxError, match="is running"):
        await container.execute("pass")
    cell.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cell.finished()

    assert (await (await container.execute("print('on')")).finished()).stdout == "on\n"


async def test_an_owner_finds_only_its_own(containers: Containers, container: Container) -> None:
    assert containers.find(container.id, "team-a") is container
    for identity, owner in ((container.id, "team-b"), ("container_x", "team-a")):
        with pytest.raises(ContainerGone, match="there is no container"):
            containers.find(identity, owner)


async def test_ids_cannot_be_guessed(containers: Containers, container: Container) -> None:
    other = await containers.create("team-a")

    assert len(container.id) > 30
    assert container.id != other.id


async def test_a_container_that_nobody_uses_ends(
    containers: Containers, container: Container, clock: Clock
) -> None:
    assert container.expires_at.timestamp() == clock.now + 270
    clock.now += 269
    await (await container.execute("pass")).finished()
    assert container.expires_at.timestamp() == clock.now + 270
    clock.now += 270
    with pytest.raises(ContainerGone, match="was not used for too long"):
        await container.execute("pass")
    with pytest.raises(ContainerGone):
        containers.find(container.id, "team-a")
    await containers.sweep()
    with pytest.raises(ContainerGone):
        await container.get("/workspace/x")


async def test_a_container_that_waits_for_an_answer_is_not_idle(
    containers: Containers, container: Container, clock: Clock
) -> None:
    cell = await container.execute("print(await search('a'))", tools=[SEARCH])
    request = await anext(cell)
    clock.now += 3000
    await containers.sweep()

    assert container.expires_at.timestamp() == pytest.approx(clock.now + 900 + 270, abs=2)
    await cell.answer(request.id, "text")
    assert (await cell.finished()).stdout == "text\n"
    assert container.expires_at.timestamp() == clock.now + 270


async def test_however_it_is_used_a_container_grows_old(
    containers: Containers, container: Container, clock: Clock
) -> None:
    for _ in range(15):
        clock.now += 240
        if container.expired:
            break
        await (await container.execute("pass")).finished()

    assert container.expired
    assert clock.now - 1_000_000 == 3600


async def test_owners_and_hosts_have_limits(containers: Containers, container: Container) -> None:
    second = await containers.create("team-a")
    with pytest.raises(TooManyContainers, match="'team-a' has 2 containers, and may have 2"):
        await containers.create("team-a")
    await containers.create("team-b")
    with pytest.raises(TooManyContainers, match="there are 3 containers"):
        await containers.create("team-c")
    await second.close()
    await containers.create("team-a")


async def test_containers_that_are_being_made_count(containers: Containers) -> None:
    outcomes: list[str] = []

    async def create() -> None:
        try:
            outcomes.append((await containers.create("team-a")).owner)
        except TooManyContainers:
            outcomes.append("too many")

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(create)

    assert sorted(outcomes) == ["team-a", "team-a", "too many", "too many"]


async def test_room_that_one_made_is_taken_by_no_other_who_looks_for_some_at_once(rules: Rules) -> None:
    async with Containers(isolated(), replace(rules, makes_room=True)) as containers:
        before = [await containers.create("team-a") for _ in range(2)]
        after: list[Container] = []

        async def create() -> None:
            after.append(await containers.create("team-a"))

        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(create)

        assert [each.expired for each in before] == [True, True]
        assert [each.expired for each in after] == [False, False]


async def test_above_the_limit_of_memory_the_least_used_ends(rules: Rules, clock: Clock) -> None:
    async with Containers(isolated(), replace(rules, memory_mib=100)) as containers:
        old = await containers.create("team-a")
        await (await old.execute("x = bytearray(60 << 20)")).finished()
        clock.now += 1
        new = await containers.create("team-a")
        await (await new.execute("x = bytearray(60 << 20)")).finished()
        await containers.sweep()

        assert old.expired
        assert not new.expired


async def test_a_container_that_died_says_so(containers: Containers, container: Container) -> None:
    cell = await container.execute("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(ContainerDied):
        await cell.finished()
    with pytest.raises(ContainerGone, match="has ended"):
        await container.execute("pass")
    with pytest.raises(ContainerGone):
        containers.find(container.id, "team-a")


async def test_a_journal_has_each_call_and_answer_before_they_are_delivered(rules: Rules) -> None:
    journal = MemoryJournal()
    async with Containers(isolated(), replace(rules, journal=journal)) as containers:
        container = await containers.create("team-a")
        cell = await container.execute("print(await search('a'))", tools=[SEARCH])
        request = await anext(cell)
        before = await journal.entries(cell.id)
        await cell.answer(request.id, "text")
        await cell.finished()

    assert before == (
        Began(cell.id, "print(await search('a'))", ("search",)),
        Called(cell.id, request.id, "search", {"q": "a"}),
    )
    assert (await journal.entries(cell.id))[2:] == (
        Answered(cell.id, request.id, "text"),
        Ended(cell.id, 0),
    )


@pytest.mark.parametrize("how", ["cancelled", "died"])
async def test_a_journal_has_the_end_of_a_cell_however_it_came(how: str, rules: Rules) -> None:
    journal = MemoryJournal()
    async with Containers(isolated(), replace(rules, journal=journal)) as containers:
        container = await containers.create("team-a")
        code = "await search('a')\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
        cell = await container.execute(code, tools=[SEARCH])
        request = await anext(cell)
        if how == "died":
            await cell.answer(request.id, "text")
        else:
            cell.cancel()
        with pytest.raises((asyncio.CancelledError, ContainerDied)):
            await cell.finished()

        assert (await journal.entries(cell.id))[-1] == Ended(cell.id, None)


async def test_what_no_journal_takes_is_not_delivered(rules: Rules) -> None:
    class Full(MemoryJournal):
        async def append(self, entry: Entry) -> None:
            if isinstance(entry, Answered) and entry.text == "lost":
                raise OSError("the disk is full")
            await super().append(entry)

    async with Containers(isolated(), replace(rules, journal=Full())) as containers:
        container = await containers.create("team-a")
        cell = await container.execute("print(await search('a'))", tools=[SEARCH])
        request = await anext(cell)
        with pytest.raises(OSError, match="the disk is full"):
            await cell.answer(request.id, "lost")
        assert cell.waiting == (request,)
        await cell.answer(request.id, "kept")

        assert (await cell.finished()).stdout == "kept\n"


async def test_a_cell_is_run_again_from_its_journal(rules: Rules) -> None:
    journal = MemoryJournal()
    code = "print(await search('a'), await search('b'), await search('a'))"
    async with Containers(isolated(), replace(rules, journal=journal)) as containers:
        container = await containers.create("team-a")
        cell = await container.execute(code, tools=[SEARCH])
        for answer in ("1", "2"):
            await cell.answer((await anext(cell)).id, answer)
        await anext(cell)  # and here the host fell over
        await container.close()
        entries = await journal.entries(cell.id)

        fresh = await containers.create("team-b")
        again = await fresh.execute(code, tools=[SEARCH], replay=Recorded(entries))
        await answer_all(again, lambda arguments: "3")

        assert again.result.stdout == "1 2 3\n"


async def test_leaving_ends_everything(rules: Rules) -> None:
    async with Containers(isolated(), rules) as containers:
        container = await containers.create("team-a")
        cell = await container.execute("await search('a')", tools=[SEARCH])
        await anext(cell)

    assert cell.state == "done"
    with pytest.raises(ContainerGone):
        await container.execute("pass")


def children() -> set[int]:
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text("ascii").split()))


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_what_containers_are_forked_from_starts_before_one_is_asked_for(rules: Rules) -> None:
    before = children()
    async with Containers(isolated(), rules) as containers:
        with anyio.fail_after(20):
            while not (started := children() - before):  # noqa: ASYNC110 - a process tells nobody
                await anyio.sleep(0.005)
        await containers.create("team-a")
        assert children() - before == started
    assert children() <= before


@pytest.mark.parametrize("after_s", [0, 0.001, 0.01, 0.05, 0.1, 0.2])
async def test_leaving_while_that_starts_leaves_no_process(after_s: float, rules: Rules) -> None:
    before = children()
    open_before = descriptors()
    async with Containers(isolated(), rules):
        await anyio.sleep(after_s)
    assert children() <= before
    assert descriptors() == open_before


async def test_that_it_cannot_start_is_told_by_the_first_container_and_to_nobody_before(
    rules: Rules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loud.py").write_text("raise SystemExit('the reason')", "utf-8")

    async def open_engine(_: Isolated) -> Engine:
        return Engine(packages=Packages(str(tmp_path), ["loud"]))

    warnings: list[Mapping[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: warnings.append(context))
    monkeypatch.setattr("treadle.execution.engines.open_engine", open_engine)
    before = children()

    async def enter() -> None:
        async with Containers(isolated(), rules) as containers:
            await anyio.lowlevel.checkpoint()  # it begins
            with pytest.raises(SandboxError, match="the reason"):
                await containers.create("team-a")

    await enter()
    gc.collect()
    assert warnings == []
    assert children() <= before


async def test_wrong_use_is_told(rules: Rules) -> None:
    with pytest.raises(InvalidArgument, match="enter `Containers` first"):
        await Containers(isolated(), rules).create("team-a")
    async with Containers(isolated(), rules) as containers:
        with pytest.raises(InvalidArgument, match="needs an owner"):
            await containers.create("")


LEFT_BEHIND = {
    "a task": """
        async def later():
            await asyncio.sleep(0.05)
            return await search("it")
        left = asyncio.create_task(later())
        await asyncio.sleep(0)
    """,
    "a task that begins another": """
        async def later():
            await asyncio.sleep(0.01)
            return await asyncio.create_task(search("it"))
        left = asyncio.create_task(later())
        await asyncio.sleep(0)
    """,
    "a thread": """
        def later():
            time.sleep(0.05)
            search.sync("it")
        left = threading.Thread(target=later, daemon=True)
        left.start()
    """,
}


@pytest.mark.parametrize("name", LEFT_BEHIND)
async def test_a_call_of_what_a_cell_left_behind_is_told_with_the_code_of_that_cell(
    name: str, container: Container
) -> None:
    code = "import asyncio, threading, time\n" + dedent(LEFT_BEHIND[name])
    await (await container.execute(code, tools=[SEARCH])).finished()
    cell = await container.execute("await search('mine'); await asyncio.sleep(0.3)", tools=[SEARCH])

    asked: dict[str, str] = {}
    async for request in cell:
        asked[request.arguments["q"]] = request.code
        await cell.answer(request.id, "found")

    assert asked == {"it": code, "mine": cell.code}


async def test_a_function_that_is_given_to_an_older_pool_of_threads_belongs_to_its_own_cell(
    container: Container,
) -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
import asyncio
pool = ThreadPoolExecutor(1)
pool.submit(search.sync, "first").result()
"""
    second = """
pool.submit(search.sync, "second").result()
await asyncio.get_running_loop().run_in_executor(pool, search.sync, "third")
"""
    asked: dict[str, str] = {}
    for each in (code, second):
        cell = await container.execute(each, tools=[SEARCH])
        async for request in cell:
            asked[request.arguments["q"]] = request.code
            await cell.answer(request.id, "found")
        assert cell.result.return_code == 0, cell.result.stderr

    assert asked == {"first": code, "second": second, "third": second}


async def test_the_code_of_a_cell_long_gone_is_not_kept(container: Container) -> None:
    code = "import asyncio\nasync def later():\n    await go.wait(); await search('it')\n"
    code += "go = asyncio.Event(); left = asyncio.create_task(later()); await asyncio.sleep(0)"
    await (await container.execute(code, tools=[SEARCH])).finished()
    for _ in range(MAX_CODES):
        await (await container.execute("await asyncio.sleep(0)")).finished()
    cell = await container.execute("go.set(); await left", tools=[SEARCH])

    asked: list[str] = []
    async for request in cell:
        asked.append(request.code)
        await cell.answer(request.id, "found")

    assert asked == ["# an earlier program, whose code is not kept"]


async def test_a_container_with_the_seed_of_another_draws_what_that_drew(containers: Containers) -> None:
    code = (
        "import random, uuid\nprint(uuid.uuid4(), random.random())\nprint(await search(q=uuid.uuid4().hex))"
    )
    first = await containers.create("team-a")
    same = await containers.create("team-b", seed=first.seed)
    other = await containers.create("team-b")
    told: list[str] = []
    for container in (first, same, other):
        cell = await container.execute(code, tools=[SEARCH])
        await answer_all(cell, lambda arguments: str(arguments["q"]))
        told.append(cell.result.stdout)

    assert first.seed == same.seed != other.seed
    assert told[0] == told[1]
    assert not set(told[0].split()) & set(told[2].split())


async def test_what_is_no_seed_makes_no_container(containers: Containers) -> None:
    for _ in range(3):
        with pytest.raises(InvalidArgument, match="a seed is 64 hexadecimal digits"):
            await containers.create("team-a", seed="1")

    assert [(await containers.create("team-a")).expired for _ in range(2)] == [False, False]


async def test_containers_have_one_fingerprint_until_their_packages_differ(
    containers: Containers, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {(await containers.create("team-a")).fingerprint for _ in range(2)}

    async def with_packages(settings: Isolated) -> Engine:
        return Engine(settings.limits, Packages(content="others"))

    monkeypatch.setattr("treadle.execution.engines.open_engine", with_packages)
    async with Containers(isolated()) as others:
        [fingerprint] = plain
        assert (await others.create("team-a")).fingerprint not in plain
        assert len(fingerprint) == 16
