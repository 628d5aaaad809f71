"""Control groups: found, made for each container, and gone with it, however it ends."""

import glob
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import anyio
import pytest

if sys.platform != "linux":
    pytest.skip("control groups are Linux's", allow_module_level=True)

import treadle
from tests.sandbox import lesser_hosts
from treadle.sandbox.box import MIB, Limits
from treadle.sandbox.claims import claim
from treadle.sandbox.container import Container, ContainerDied
from treadle.sandbox.engine import Engine
from treadle.sandbox.kernel import cgroups
from treadle.sandbox.kernel.cgroups import Place
from treadle.sandbox.ladder import probe

needs_group = pytest.mark.skipif(probe().rung != 1, reason=f"no control group here: {probe().rungs[0].why}")
needs_no_group = pytest.mark.skipif(
    os.geteuid() != 0 or probe().rung is None, reason="needs to become a user without a group"
)
LIMITS = Limits(memory_mib=96, processes=16)


@pytest.mark.parametrize(
    ("groups", "mounts", "found"),
    [
        (
            "0::/user.slice/one.scope\n",
            "30 23 0:28 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate",
            [
                (2, "/sys/fs/cgroup/user.slice/one.scope", "/sys/fs/cgroup/user.slice/one.scope"),
                (2, "/sys/fs/cgroup/user.slice", "/sys/fs/cgroup/user.slice"),
            ],
        ),
        (
            "4:memory:/a\n3:cpu,cpuacct:/b\n0::/\n",
            "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
            "36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
            "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
            [
                (2, "/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified"),
                (1, "/sys/fs/cgroup/memory/a", "/sys/fs/cgroup/cpu/b"),
            ],
        ),
        (
            "4:memory:/\n",
            "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
            [(1, "/sys/fs/cgroup/memory", "")],
        ),
        (
            "0::/docker/x/y\n",
            "30 23 0:28 /docker/x /sys/fs/my\\040groups ro - cgroup2 cgroup2 rw",
            [
                (2, "/sys/fs/my groups/y", "/sys/fs/my groups/y"),
                (2, "/sys/fs/my groups", "/sys/fs/my groups"),
            ],
        ),
        ("0::/../above\n", "30 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw", []),
        ("3:cpu:/\n", "30 23 0:28 / /sys/fs/cgroup rw - cgroup cgroup rw,cpu", []),
        ("", "30 23 0:28 / /sys rw - sysfs sysfs rw", []),
    ],
)
def test_the_places_for_groups_are_those_of_the_process(
    groups: str, mounts: str, found: list[tuple[int, str, str]]
) -> None:
    assert list(cgroups.places(groups, mounts)) == [Place(*each) for each in found]


def test_a_group_that_cannot_be_made_leaves_nothing_and_no_descriptor(tmp_path: Path) -> None:
    descriptors = len(list(Path("/proc/self/fd").iterdir()))

    for version in (1, 2):
        place = Place(version, str(tmp_path), str(tmp_path / "missing") if version == 1 else str(tmp_path))
        with pytest.raises(FileNotFoundError):
            cgroups.make(place, "one", Limits())

    assert list(tmp_path.iterdir()) == []
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def test_a_group_in_use_or_gone_is_told_apart_when_it_is_removed(tmp_path: Path) -> None:
    (tmp_path / "used" / "inner").mkdir(parents=True)
    (tmp_path / "free").mkdir()

    assert cgroups.remove([str(tmp_path / "free"), str(tmp_path / "never")])
    assert not cgroups.remove([str(tmp_path / "used")])
    assert sorted(each.name for each in tmp_path.iterdir()) == ["used"]


@pytest.fixture
async def engine() -> AsyncGenerator[Engine]:
    async with Engine(LIMITS, rung="1") as running:
        yield running


@pytest.fixture
async def container(engine: Engine) -> AsyncGenerator[Container]:
    async with await engine.make() as made:
        yield made


def beginnings(engine: Engine) -> list[str]:
    """What names of its groups begin with."""
    assert engine._zygote  # pyright: ignore[reportPrivateUsage]
    claimed = engine._zygote._claim  # pyright: ignore[reportPrivateUsage]
    assert claimed
    return claimed.folder.with_suffix(".lock").read_text("utf-8").splitlines()


def found(begin: list[str]) -> list[str]:
    return [group for each in begin for group in glob.glob(f"{glob.escape(each)}*")]  # noqa: PTH207


async def until(happened: Callable[[], bool]) -> None:
    for _ in range(500):
        if happened():
            return
        await anyio.sleep(0.01)
    raise AssertionError("it did not happen within 5 s")


def read(*path: object) -> str:
    return Path(*map(str, path)).read_text("ascii")


@needs_group
async def test_everything_of_a_container_is_in_a_group_with_its_limits(
    engine: Engine, container: Container
) -> None:
    outcome = await container.execute("import os; pid = os.fork() or __import__('time').sleep(60)")
    assert outcome.failure is None

    folder = found(beginnings(engine))[0]
    limit = "memory.limit_in_bytes" if engine.group[0].endswith("v1") else "memory.max"
    assert int(read(folder, limit)) == LIMITS.memory_mib * MIB
    inside = read(folder, "cgroup.procs").split()
    assert str(container.pid) in inside
    assert len(inside) == 3
    # the control: nothing else is, not even what it was forked from
    (parent,) = re.findall(r"^PPid:\t(\d+)", read("/proc", container.pid, "status"), re.MULTILINE)
    assert parent not in inside


@needs_group
async def test_the_code_sees_its_group_as_the_root_of_all_groups(container: Container) -> None:
    outcome = await container.execute("print(open('/proc/self/cgroup').read())")

    paths = {line.split(":", 2)[2] for line in outcome.stdout.split()}
    assert paths == {"/"}


@needs_group
async def test_a_group_ends_with_its_container(engine: Engine) -> None:
    begin = beginnings(engine)
    containers = [await engine.make() for _ in range(3)]
    assert len(found(begin)) == 3 * len(begin)

    await containers[0].close()
    with pytest.raises(ContainerDied):
        await containers[1].execute("import os; os._exit(0)")
    await containers[1].close()
    await until(lambda: len(found(begin)) == len(begin))
    await engine.close()
    assert found(begin) == []


TAKE = """
import mmap
taken = mmap.mmap(-1, 200 << 20)
for at in range(0, len(taken), 4096):
    taken[at] = 1
"""


@needs_group
@pytest.mark.parametrize("where", ["in the runner", "in a child", "in a file"])
async def test_too_much_memory_ends_the_container_with_the_reason(container: Container, where: str) -> None:
    code = {
        "in the runner": TAKE,
        "in a child": f"import os, time\nif os.fork() == 0:\n    exec({TAKE!r})\ntime.sleep(20)",
        "in a file": "for n in range(3): open(f'/tmp/{n}', 'wb').write(b'x' * (50 << 20))",
    }[where]

    with anyio.fail_after(15), pytest.raises(ContainerDied) as died:
        await container.execute(code)

    assert died.value.reason == "memory"
    assert "more than 96 MiB" in str(died.value)


@needs_group
async def test_nobody_else_is_touched_by_the_end_of_a_container_that_took_too_much(engine: Engine) -> None:
    async with await engine.make() as one, await engine.make() as other:
        await other.execute("kept = bytearray(40 << 20)")
        with pytest.raises(ContainerDied):
            await one.execute(TAKE)

        assert (await other.execute("print(len(kept))")).stdout == f"{40 << 20}\n"


@needs_group
async def test_a_zygote_that_is_killed_leaves_no_group(engine: Engine) -> None:
    begin = beginnings(engine)
    await engine.make()
    assert found(begin)
    zygote = engine._zygote  # pyright: ignore[reportPrivateUsage]
    assert zygote
    process = zygote._process  # pyright: ignore[reportPrivateUsage]
    assert process

    process.kill()
    await process.wait()
    await until(lambda: not any(read(each, "cgroup.procs") for each in found(begin)))
    await engine.close()

    assert found(begin) == []


KILLED = """
import asyncio, json, os, signal
from treadle.sandbox.engine import Engine

async def main():
    engine = Engine()
    await engine.start()
    await engine.make()
    claimed = engine._zygote._claim.folder.with_suffix(".lock").read_text("utf-8")
    print(json.dumps(claimed.splitlines()), flush=True)
    os.kill(engine._zygote._process.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@needs_group
def test_groups_of_a_dead_host_are_swept_at_the_next_start() -> None:
    source = str(Path(treadle.__file__).parents[1])
    ran = subprocess.run(
        [sys.executable, "-c", KILLED],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    begin: list[str] = json.loads(ran.stdout)
    assert found(begin)

    end = time.monotonic() + 10
    while found(begin):  # the container's processes may need a moment to end
        assert time.monotonic() < end
        claim().release()
        time.sleep(0.01)


@needs_group
async def test_groups_of_a_live_host_are_left_alone(engine: Engine, container: Container) -> None:
    before = found(beginnings(engine))

    claim().release()

    assert found(beginnings(engine)) == before != []
    assert (await container.execute("print('alive')")).stdout == "alive\n"


ASK = """
import asyncio
from treadle.errors import SandboxError
from treadle.sandbox.engine import Engine

async def main():
    async with Engine() as engine:
        print(engine.group)
    try:
        await Engine(rung="1").start()
    except SandboxError as error:
        print(error)

asyncio.run(main())
"""


@needs_no_group
def test_where_rung_1_is_needed_and_there_is_no_group_no_container_is_made() -> None:
    ran = lesser_hosts.on("ordinary user", "-c", ASK)

    group, refusal = ran.stdout.splitlines()
    assert group.startswith("('', '")
    assert refusal.startswith("no control group can be used any more: v")


def test_an_engine_that_was_not_started_knows_of_no_group() -> None:
    assert Engine().group == ("", "")
