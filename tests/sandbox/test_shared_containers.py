"""What containers without namespaces have of their own: files, ends and limits. See `test_shared_rungs`."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

if sys.platform != "linux":
    pytest.skip("containers are Linux's", allow_module_level=True)

from treadle.errors import CapabilityUnsupported, SandboxError
from treadle.sandbox.box import Limits, Mount
from treadle.sandbox.container import Container, ContainerDied
from treadle.sandbox.engine import Engine
from treadle.sandbox.kernel import tree
from treadle.sandbox.ladder import check_minimum, probe

RUNG = probe().name
pytestmark = [
    pytest.mark.attack,
    pytest.mark.skipif(
        RUNG not in ("3", "3b") or "TREADLE_TESTS_ROOM" not in os.environ,
        reason="they are run by test_shared_rungs, where a leak cannot hurt",
    ),
]
LIMITS = Limits(memory_mib=256, processes=48, disk_mib=48, files=2_000, file_mib=16, open_files=64)
SPREAD = """
import os, signal, time
for number in range(6):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for fd in range(64):
                try: os.close(fd)
                except OSError: pass
            while number % 2:
                pass
            time.sleep(600)
        os._exit(0)
time.sleep(0.2)
"""
"""Leaves processes behind that have sessions of their own and no parent; half of them compute."""


@pytest.fixture
async def engine() -> AsyncGenerator[Engine]:
    async with Engine(limits=LIMITS) as running:
        yield running


@pytest.fixture
async def container(engine: Engine) -> AsyncGenerator[Container]:
    async with await engine.make() as made:
        yield made


def alive(pids: Iterable[int]) -> list[int]:
    known = tree.parents()
    return [pid for pid in pids if pid in known and known[pid][1] not in "ZX"]


async def gone(pids: Iterable[int]) -> bool:
    watched = list(pids)
    for _ in range(250):
        if not alive(watched):
            return True
        await anyio.sleep(0.02)
    return False


async def whole(container: Container) -> list[int]:
    """All processes of a container that has spread."""
    outcome = await container.execute(SPREAD)
    assert outcome.failure is None, outcome.stderr
    pids = alive([container.pid, *tree.below(container.pid, tree.parents())])
    assert len(pids) >= 8
    return pids


def left(*paths: str) -> list[str]:
    return [path for path in paths if os.path.lexists(path)]


async def removed(path: str) -> bool:
    for _ in range(250):
        if not left(path):
            return True
        await anyio.sleep(0.02)
    return False


async def test_the_host_is_on_a_rung_without_namespaces_and_says_what_it_lacks(engine: Engine) -> None:
    report = probe()

    assert (report.rung, report.name, engine.rung) == (3, RUNG, RUNG)
    assert report.name == ("3" if os.geteuid() == 0 else "3b")
    assert {each.name: each.by for each in report.abilities}["disk"].startswith("by watchdog")
    assert any("PID namespace" in each for each in report.lacks)
    assert check_minimum(None, report) is report
    with pytest.raises(CapabilityUnsupported, match=f"isolates code on rung {RUNG} "):
        check_minimum(2, report)
    if RUNG == "3b":
        with pytest.raises(CapabilityUnsupported, match="Leave minimum_rung out"):
            check_minimum(3, report)


async def test_code_finds_its_folders_by_its_environment(container: Container) -> None:
    code = """
import os, pathlib, shutil, tempfile
assert os.getcwd() == os.environ["HOME"] == str(pathlib.Path.home())
text = pathlib.Path(os.environ["INPUT_DIR"], "a").read_text()
pathlib.Path(os.environ["OUTPUT_DIR"], "a.txt").write_text(text)
with tempfile.NamedTemporaryFile() as file:
    print(file.name.startswith(os.environ["TMPDIR"]), os.environ["TMPDIR"].startswith(os.getcwd()))
os.mkdir("folder"); shutil.copy("out/a.txt", "folder/b"); shutil.copytree("folder", "other")
os.rename("other/b", "in/b"); shutil.rmtree("other")
"""
    await container.put("/workspace/in/a", b"text")

    outcome = await container.execute(code)

    assert (outcome.failure, outcome.stdout) == (None, "True False\n")
    assert [(each.path, each.data) for each in (await container.collect()).files] == [("a.txt", b"text")]
    assert await container.get("/workspace/in/b") == b"text"
    paths = [each.path for each in await container.list()]
    assert paths == ["folder", "folder/b", "in", "in/a", "in/b", "out", "out/a.txt"]
    assert container.root not in outcome.stdout + outcome.stderr


async def test_files_of_the_host_are_not_given_by_any_path(container: Container) -> None:
    links = "import os; os.symlink('/etc', 'e'); os.symlink('/etc/passwd', 'p'); os.symlink('..', 'u')"
    await container.execute(links)

    for path in ("/etc/passwd", "../../etc/passwd", "e/passwd", "p", "u/tmp", "/workspace/../x", "x\0"):
        with pytest.raises(SandboxError):
            await container.get(path)
        with pytest.raises(SandboxError):
            await container.put(path, b"x")
    collected = await container.collect("/workspace")
    assert (collected.files, {each.reason for each in collected.skipped}) == ([], {"it is a link"})


async def test_what_the_host_puts_in_counts(engine: Engine, container: Container) -> None:
    for number in range(3):
        await container.put(f"{number}", bytes(15 << 20))
    with pytest.raises(SandboxError, match="disk of the container is full"):
        await container.put("more", bytes(15 << 20))
    assert (await container.execute("print(1)")).stdout == "1\n"

    async def fill() -> None:
        for number in range(2_000):
            await container.put(f"many/{number}", b"")
            made.append(number)

    made: list[int] = []
    with pytest.raises(SandboxError, match="disk of the container is full"):
        await fill()
    assert len(made) > 1_900


async def test_a_folder_of_the_host_is_refused_with_the_way_out(tmp_path: Path) -> None:
    async def start() -> None:
        async with Engine(mounts=[Mount(str(tmp_path), "/workspace/x")]):
            pass

    with pytest.raises(SandboxError, match=r"no mount namespace\. Put the files in"):
        await start()


async def test_closing_ends_whatever_the_code_started(engine: Engine) -> None:
    container, other = await engine.make(), await engine.make()
    pids, others = await whole(container), await whole(other)

    began = time.monotonic()
    await container.close()

    assert await gone(pids)
    assert time.monotonic() - began < 2
    assert await removed(container.root)
    assert alive(others) == others
    await other.close()
    assert await gone(others)


async def test_a_fork_bomb_ends_with_its_container(engine: Engine) -> None:
    container = await engine.make()
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    with suppress(ContainerDied):  # or the soft interrupt reached the first of them
        await container.execute(bomb, limit_s=0.5)
    pids = [container.pid, *tree.below(container.pid, tree.parents())]
    await container.close()

    assert await gone(pids)
    assert await removed(container.root)


def kill_group(container: Container) -> None:
    os.killpg(os.getpgid(container.pid), signal.SIGKILL)


def kill_supervisor(container: Container) -> None:
    os.kill(container.pid, signal.SIGKILL)


@pytest.mark.parametrize("kill", [kill_supervisor, kill_group])
async def test_nothing_outlives_a_supervisor_that_is_killed(
    kill: Callable[[Container], None], engine: Engine
) -> None:
    container, other = await engine.make(), await engine.make()
    pids, others = await whole(container), await whole(other)

    kill(container)

    assert await gone(pids)
    assert await removed(container.root)
    assert alive(others) == others
    with pytest.raises(ContainerDied):
        await container.execute("1")


async def test_nothing_outlives_a_supervisor_that_is_killed_while_code_forks(engine: Engine) -> None:
    container = await engine.make()
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    pids = list[int]()

    async def kill() -> None:
        with anyio.fail_after(5):
            while len(pids) <= 10:  # and not much later: of too many the watchdog would be the end
                await anyio.sleep(0.01)
                pids[:] = [container.pid, *tree.below(container.pid, tree.parents())]
        kill_supervisor(container)

    async with anyio.create_task_group() as group:
        group.start_soon(kill)
        with pytest.raises(ContainerDied):
            await container.execute(bomb)

    assert len(pids) > 10
    assert await gone(pids)
    assert await removed(container.root)


HOST = f"""
import asyncio, json, os, sys
from treadle.sandbox.box import Limits
from treadle.sandbox.engine import Engine
from treadle.sandbox.kernel import tree

async def main():
    async with Engine(rung={RUNG!r}, limits=Limits(memory_mib=256, processes=48, disk_mib=48)) as engine:
        made = [await engine.make() for _ in range(2)]
        for each in made:
            await each.execute({SPREAD!r})
        known = tree.parents()
        (zygote, _) = known[made[0].pid]
        pids = [pid for each in made for pid in (each.pid, *tree.below(each.pid, known))]
        print(json.dumps([zygote, pids, [each.root for each in made]]), flush=True)
        await made[0].execute("while True: pass", limit_s=1000)

asyncio.run(main())
"""


@pytest.mark.parametrize("whom", ["host", "zygote", "group", "host and zygote"])
async def test_nothing_outlives_a_host_that_is_killed(whom: str) -> None:
    host = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOST, stdout=subprocess.PIPE, start_new_session=True
    )
    assert host.stdout
    zygote, pids, roots = json.loads(await host.stdout.readline())
    if whom == "group":
        os.killpg(host.pid, signal.SIGKILL)
    if "host" in whom:
        host.kill()
    if "zygote" in whom:
        os.kill(zygote, signal.SIGKILL)

    assert await gone([*pids, zygote])
    if host.returncode is None:
        host.kill()
    await host.wait()
    assert len(pids) >= 16
    # what is left of their folders goes with the next engine that starts
    async with Engine(limits=LIMITS):
        pass
    assert left(*roots) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="one user has one number")
async def test_who_had_a_user_before_is_ended_before_it_is_given_again(engine: Engine) -> None:
    first = await engine.make()
    user = int(tree.status(first.pid)["Uid"]) - 0x0100_0000
    stranger = await asyncio.create_subprocess_exec(
        "sleep", "60", user=user + 1, group=user + 1, start_new_session=True
    )

    second = await engine.make()

    with anyio.fail_after(5):
        assert await stranger.wait() == -signal.SIGKILL
    assert (await second.execute("print(1)")).stdout == "1\n"


async def test_a_file_system_is_never_filled_to_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several containers may each stay below their own limits, and be too many together."""
    monkeypatch.setattr(tempfile, "tempdir", os.environ["TREADLE_TESTS_ROOM"])
    before = free_mib()
    assert before < 200, "only where a small file system is there to be filled"
    fill = """
import time
with open("x", "wb") as file:
    while True:
        file.write(bytes(1 << 18))
        time.sleep(0.01)
"""
    async with Engine(limits=Limits(disk_mib=4_000, file_mib=2_000, memory_mib=256)) as engine:
        container = await engine.make()
        with pytest.raises(ContainerDied, match="nearly full") as died:
            await container.execute(fill)
        assert died.value.reason == "disk"
        assert await removed(container.root)
    assert free_mib() >= before - 1


def free_mib() -> int:
    found = os.statvfs(tempfile.gettempdir())
    return found.f_bavail * found.f_frsize >> 20
