"""Containers that are shown folders, made with several package sets; and a tool that runs code in them."""

import sys
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Literal

import anyio
import pytest

if sys.platform != "linux":
    pytest.skip("containers are Linux's", allow_module_level=True)

from tests.sandbox.wheels import shop, wheel
from treadle.errors import InvalidArgument, InvalidType, SandboxError
from treadle.execution import CellResult, Container, Containers, Rules, Shown, TooManyContainers
from treadle.execution.cell import Cell
from treadle.execution.code_tool import RunsCode
from treadle.execution.engines import ENGINE_IDLE_S
from treadle.sandbox import showing
from treadle.sandbox.builds import build
from treadle.sandbox.isolation import isolated
from treadle.sandbox.ladder import probe
from treadle.sandbox.packages import Wanted
from treadle.tools.function import FunctionTools
from treadle.tools.toolset import Answer, CodeCall, ProgramEnd

pytestmark = pytest.mark.skipif(probe().rung is None, reason=f"no containers here: {probe().why}")

CLASS = "class GIFBuilder:\n    of = '{}'\n"
GIF = Shown("gif", {"core/gif_builder.py": CLASS.format("gif").encode(), "SKILL.md": b"# GIF"}, "1" * 64)
OTHER = Shown("other", {"core/gif_builder.py": CLASS.format("other").encode()}, "2" * 64)
BUILDER = "from core.gif_builder import GIFBuilder\nprint(GIFBuilder.of)"


class Clock:
    def __init__(self) -> None:
        self.time = 1e9

    def __call__(self) -> float:
        return self.time


@pytest.fixture
async def containers() -> AsyncGenerator[Containers]:
    async with Containers(isolated()) as made:
        yield made


async def run(container: Container, code: str) -> str:
    cell = await container.execute(code)
    result = await cell.finished()
    assert result.return_code == 0, result.stderr
    assert not result.removed
    return result.stdout


async def test_code_imports_what_it_is_shown_in_cells_shells_and_programs(containers: Containers) -> None:
    container = await containers.create("team-a", folders=[GIF])
    assert container.shown == {"gif": "1" * 64}
    assert await run(container, BUILDER) == "gif\n"
    await container.put("program.py", BUILDER.encode())
    shell = await container.bash(f"python3 program.py; cat {container.skills_at}/gif/SKILL.md")
    assert (await shell.finished()).stdout == "gif\n# GIF"
    program = "import subprocess; print(subprocess.check_output(['python3', 'program.py'], text=True))"
    assert await run(container, program) == "gif\n\n"
    assert await container.get("/skills/gif/SKILL.md") == b"# GIF"
    listed = [each.path for each in await container.list("/skills/gif")]
    assert listed == ["SKILL.md", "core", "core/gif_builder.py"]
    viewed = await container.edit({"command": "view", "path": "/skills/gif/core/gif_builder.py"})
    assert "class GIFBuilder" in str(viewed)
    for path in ("/skills/gif/new", "/skills/new", "/skills/gif/SKILL.md"):
        with pytest.raises(SandboxError, match="read-only"):
            await container.put(path, b"")


@pytest.mark.parametrize(("folders", "first"), [([GIF, OTHER], "gif"), ([OTHER, GIF], "other")])
async def test_of_two_modules_the_first_is_imported_and_what_the_code_writes_goes_before(
    containers: Containers, folders: Sequence[Shown], first: str
) -> None:
    container = await containers.create("team-a", folders=folders)
    assert await run(container, BUILDER) == f"{first}\n"
    second = await containers.create("team-a", folders=folders)
    await second.put("core/gif_builder.py", CLASS.format("own").encode())
    await second.put("core/__init__.py", b"")
    assert await run(second, BUILDER) == "own\n"


async def test_what_is_shown_is_not_among_the_files_of_a_cell(containers: Containers) -> None:
    container = await containers.create("team-a", folders=[GIF])
    cell = await container.execute(f"{BUILDER}\nopen('made.txt', 'w').write('1')")
    assert [each.path for each in (await cell.finished()).files] == ["made.txt"]


async def test_a_folder_is_kept_while_a_container_has_it_and_removed_in_the_end() -> None:
    clock = Clock()
    async with Containers(isolated(), Rules(now=clock)) as containers:
        container = await containers.create("team-a", folders=[GIF])
        again = await containers.create("team-a", folders=[GIF])
        await container.close()
        await container.close()
        containers._shown.kept_s = -1  # pyright: ignore[reportPrivateUsage] - all that nobody uses goes at once
        containers._shown.sweep()  # pyright: ignore[reportPrivateUsage]
        assert await run(again, BUILDER) == "gif\n"


async def test_twenty_at_once_are_no_work_for_the_event_loop(
    containers: Containers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is shown a folder of 83 files and 5 MB; every second one another than the rest.

    What counts is the loop's own work: a machine that others use too stops it for longer than that.
    """
    await containers.create("warm")
    files = {f"core/f{number}.ttf": bytes([number]) * 63_000 for number in range(83)}
    folders = [Shown("big", {**files, "n": bytes([each])}, f"{each:064}") for each in range(11)]
    longest, done, writers = 0.0, anyio.Event(), list[int]()
    write = showing._write_file  # pyright: ignore[reportPrivateUsage]

    def watched(path: Path, data: bytes) -> None:
        writers.append(threading.get_ident())
        write(path, data)

    monkeypatch.setattr(showing, "_write_file", watched)

    async def watch() -> None:
        nonlocal longest
        while not done.is_set():
            began = time.thread_time()
            await anyio.sleep(0.001)
            longest = max(longest, time.thread_time() - began)

    async def make(number: int) -> None:
        shown = folders[number // 2 + 1 if number % 2 else 0]
        container = await containers.create(f"team-{number}", folders=[shown])
        count = f"import os; print(len(os.listdir({container.skills_at + '/big/core'!r})))"
        assert await run(container, count) == "83\n"

    async with anyio.create_task_group() as watching:
        watching.start_soon(watch)
        async with anyio.create_task_group() as making:
            for number in range(20):
                making.start_soon(make, number)
        done.set()
    assert longest < 0.05
    assert len(writers) == 11 * 84
    assert threading.get_ident() not in writers


async def test_wrong_folders_and_sets_are_told_and_cost_nothing(containers: Containers) -> None:
    with pytest.raises(InvalidArgument, match="two folders are named"):
        await containers.create("team-a", folders=[GIF, GIF])
    with pytest.raises(InvalidArgument, match="package set's name"):
        await containers.create("team-a", packages="../data")
    with pytest.raises(InvalidType, match="name of a package set"):
        await containers.create("team-a", packages=5)  # pyright: ignore[reportArgumentType] - as a caller without types
    with pytest.raises(SandboxError, match="`treadle packages build none"):
        await containers.create("team-a", packages="none")
    assert await run(await containers.create("team-a", folders=[GIF]), BUILDER) == "gif\n"


@pytest.fixture(scope="module")
def two_sets(tmp_path_factory: pytest.TempPathFactory) -> object:
    """`small` and `large`, with `tiny` of different versions."""
    with pytest.MonkeyPatch.context() as patch:
        links = shop(tmp_path_factory.mktemp("shop"), patch)
        for name, version in (("small", "1.0"), ("large", "2.1")):
            wheel(links, "tiny", version)
            build(Wanted(name, (f"tiny=={version}",), ("tiny",)))
        yield


VERSION = "import tiny\nprint(tiny.VERSION)"


async def test_containers_of_several_package_sets_count_together(two_sets: object) -> None:
    if probe().name == "3":
        pytest.skip("the sets of this test are in a folder that other users cannot enter")
    async with Containers(isolated(packages="small"), Rules(per_owner=3)) as containers:
        small = await containers.create("team-a")
        large = await containers.create("team-a", packages="large", folders=[GIF])
        again = await containers.create("team-a", packages="small")
        assert [await run(each, VERSION) for each in (small, large, again)] == ["1.0\n", "2.1\n", "1.0\n"]
        assert await run(large, BUILDER) == "gif\n"
        assert containers.find(large.id, "team-a") is large
        with pytest.raises(TooManyContainers):
            await containers.create("team-a", packages="large")


@pytest.mark.parametrize("rules", [Rules(per_owner=2), Rules(in_all=2)], ids=["of one owner", "in all"])
async def test_limits_count_containers_of_all_package_sets_and_those_that_are_being_made(
    two_sets: object, rules: Rules
) -> None:
    if probe().name == "3":
        pytest.skip("the sets of this test are in a folder that other users cannot enter")
    made, refused = list[Container](), list[TooManyContainers]()

    async def make(packages: str | None, owner: str) -> None:
        try:
            made.append(await containers.create(owner, packages=packages))
        except TooManyContainers as error:
            refused.append(error)

    owners = ("team-a", "team-a", "team-a") if rules.per_owner == 2 else ("team-a", "team-b", "team-c")
    async with Containers(isolated(), rules) as containers:
        async with anyio.create_task_group() as group:  # the engine of each set starts meanwhile
            for packages, owner in zip(("small", "large", None), owners, strict=True):
                group.start_soon(make, packages, owner)
        assert (len(made), len(refused)) == (2, 1)
        await made[0].close()
        await make("large", owners[2])
        assert (len(made), len(refused)) == (3, 1)


async def test_the_limit_of_memory_is_of_the_containers_of_all_package_sets(two_sets: object) -> None:
    if probe().name == "3":
        pytest.skip("the sets of this test are in a folder that other users cannot enter")
    clock = Clock()
    async with Containers(isolated(), Rules(now=clock, memory_mib=170)) as containers:
        many: list[Container] = []
        for packages in ("small", "large", None):
            many.append(await containers.create("team-a", packages=packages))
            await run(many[-1], "x = bytearray(60 << 20)")
            clock.time += 1
        await containers.sweep()
        assert [each.expired for each in many] == [True, False, False]
        assert await run(many[1], "print(len(x))") == f"{60 << 20}\n"


async def test_the_engine_of_another_set_is_closed_when_nobody_used_it_for_long(two_sets: object) -> None:
    if probe().name == "3":
        pytest.skip("the sets of this test are in a folder that other users cannot enter")
    clock = Clock()
    async with Containers(isolated(), Rules(now=clock, idle_s=1e9, max_age_s=1e9)) as containers:
        engines = containers._engines  # pyright: ignore[reportPrivateUsage] - what nobody sees from outside
        container = await containers.create("team-a", packages="small")
        clock.time += ENGINE_IDLE_S + 1
        await engines.sweep()
        assert await run(container, VERSION) == "1.0\n"
        await container.close()
        clock.time += ENGINE_IDLE_S + 1
        async with engines.of("small") as engine:
            await engines.sweep()
            assert not engine._closed  # pyright: ignore[reportPrivateUsage]
        clock.time += ENGINE_IDLE_S + 1
        await engines.sweep()
        assert engine._closed  # pyright: ignore[reportPrivateUsage]
        assert await run(await containers.create("team-a", packages="small"), VERSION) == "1.0\n"
        async with engines.of(None) as usual:
            assert not usual._closed  # pyright: ignore[reportPrivateUsage]


class Host:
    on_idle = None

    async def call(self, call: CodeCall, /) -> Answer:
        return Answer(f"about {call.arguments['what']}")

    async def printed(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        pass


def ask(what: str) -> str:
    """Ask."""
    raise AssertionError("the host answers")


class OfConversation(RunsCode):
    """Runs code in the container that it was given."""

    def __init__(self, given: Container) -> None:
        super().__init__("litellm_code_execution", ("Runs Python.",), FunctionTools([ask]))
        self.given = given
        self.results: list[CellResult] = []

    async def container(self) -> Container:
        return self.given

    async def end(self, cell: Cell, notes: Sequence[str]) -> ProgramEnd:
        self.results.append(cell.result)
        return await super().end(cell, notes)


async def test_a_tool_runs_code_in_the_container_of_a_conversation(containers: Containers) -> None:
    tool = OfConversation(await containers.create("team-a", folders=[GIF]))
    assert tool.spec.name == "litellm_code_execution"
    assert tool.spec.description.startswith("Runs Python.\n\n")
    assert "async def ask(" in tool.spec.description
    with pytest.raises(ValueError, match="litellm_code_execution takes"):
        tool.check({})
    code = "import sys\nx = await ask('life')\nprint(x)\nprint('odd', file=sys.stderr)\n"
    code += "open('a.bin', 'wb').write(b'1')"
    end = await tool.execute(tool.check({"code": f"```python\n{code}\n```"}), Host())
    (result,) = tool.results
    assert (result.stdout, result.stderr, result.return_code) == ("about life\n", "odd\n", 0)
    assert [(each.path, each.data) for each in result.files] == [("a.bin", b"1")]
    assert end.text == "about life\nodd\n[files: a.bin]"

    tool.given = await containers.create("team-a")
    assert (await tool.execute({"code": "print(1)"}, Host())).text.startswith("[the container is new")
    assert (await tool.execute({"code": "print(1)"}, Host())).text == "1"

    resumed = OfConversation(tool.given)
    resumed.container_id = "container_of_before"
    assert (await resumed.execute({"code": "print(1)"}, Host())).text.startswith("[the container is new")


async def test_a_run_of_such_a_tool_ends_at_its_limit_and_with_its_container(containers: Containers) -> None:
    tool = OfConversation(await containers.create("team-a"))
    tool.limit_s = 0.2
    assert "ran too long" in (await tool.execute({"code": "while True: pass"}, Host())).text
    end = await tool.execute({"code": "import os; os._exit(3)"}, Host())
    assert end.is_error
    assert "the next run has a new one" in end.text
    assert [each.timed_out for each in tool.results] == [True]
