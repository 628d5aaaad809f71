"""Runs attacks in containers, and looks at what came of them, inside and all around."""

import os
import re
import shlex
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio

from treadle.sandbox.box import Limits, RungName
from treadle.sandbox.bridge.frames import Call
from treadle.sandbox.container import Container, ContainerDied, Outcome
from treadle.sandbox.engine import Engine
from treadle.sandbox.kernel import tree

ATTACKS = Path(__file__).with_name("attacks")
PRELUDE = (ATTACKS / "_prelude.py").read_text("utf-8")
TOOLS = ("echo", "sleep", "big", "slow_tool")
DEFAULTS = Limits(memory_mib=256, processes=48, disk_mib=48, files=2_000, file_mib=16, open_files=64)
"""Small: what an attack gets hold of cannot hurt the machine of the tests."""
MOST_KEPT = 200_000
"""Of what one cell prints: 80 KiB of each stream, and a note."""
GRACE_S = 1.0
MARGIN_S = 3.0
"""For a busy machine, and nothing like the length of a hang."""
NEVER_LOOKED_AT = {"tmp", "proc", "sys", "dev", "run", "var"}
"""At the root of the host: others write there all the time."""


@dataclass(frozen=True, slots=True)
class Step:
    """A cell, and what it must come to."""

    code: str
    verdict: str
    """`prints`, `truncated`, `stopped`, `raises KIND`, or `dies REASON: part of the message`."""
    printed: str
    fresh: bool
    """Whether it runs in a container of its own."""


@dataclass(frozen=True, slots=True)
class Attack:
    """A file of `attacks`: cells, each with what it must come to.

    A line `# %% VERDICT` begins a cell (`# %% new VERDICT`: in a new container), lines `# > TEXT` are what it
    must print, and `#: name=value` sets a limit.
    """

    name: str
    steps: Sequence[Step]
    options: Mapping[str, str]

    @classmethod
    def read(cls, path: Path, rung: RungName = "2") -> "Attack":
        """On a rung without namespaces, a line `# 3% VERDICT` stands for the verdict of a cell, and lines
        `# 3> TEXT` for all that it must print; with `3b` for that rung alone. `skipped`: nothing is in it.
        """
        head, *cells = re.split(r"^# %% ", path.read_text("utf-8"), flags=re.MULTILINE)
        words = [word for line in re.findall(r"^#: (.*)", head, re.MULTILINE) for word in shlex.split(line)]
        options = dict(word.split("=", 1) for word in words)
        steps = [
            _step(cell, ("3b", "3") if rung == "3b" else ("3",) if rung == "3" else ()) for cell in cells
        ]
        return cls(path.stem, steps, options)

    def is_for(self, rung: RungName) -> bool:
        return rung.startswith(tuple(self.options.get("rungs", rung).split(",")))

    @property
    def limit_s(self) -> float:
        return float(self.options.get("limit_s", "20"))

    @property
    def limits(self) -> Limits:
        changed = {name: int(value) for name, value in self.options.items() if name in Limits.__slots__}
        return Limits(**{**{name: getattr(DEFAULTS, name) for name in Limits.__slots__}, **changed})


def _step(cell: str, rungs: Sequence[str]) -> Step:
    verdict, code = cell.split("\n", 1)
    changed = [found[1] for rung in rungs if (found := re.search(rf"^# {rung}% (.*)", code, re.MULTILINE))]
    told = [lines for rung in rungs if (lines := re.findall(rf"^# {rung}> ?(.*)", code, re.MULTILINE))]
    usual = [] if changed else re.findall(r"^# > ?(.*)", code, re.MULTILINE)
    fresh = verdict.startswith("new ")
    printed = "".join(f"{line}\n" for line in [*told, usual][0])
    return Step(code, [*changed, verdict.removeprefix("new ")][0], printed, fresh)


@dataclass(slots=True)
class Site:
    """An engine with an innocent container in it, which lives as long as the engine does."""

    engine: Engine
    innocent: Container


@dataclass(slots=True)
class Laboratory:
    """Where attacks are run. The sites are made once for each set of limits."""

    canary: Path
    """A folder of the host that nobody may write to."""
    known: Mapping[str, Any]
    """What the code is told, by name."""
    stack: AsyncExitStack
    rung: RungName | None = None
    """None: the best that there is."""
    sites: dict[str, Site] = field(default_factory=dict[str, Site])
    misled: list[Call] = field(default_factory=list[Call])
    """Calls of tools that were not declared."""

    async def site(self, limits: Limits) -> Site:
        key = repr(limits)
        if key not in self.sites:
            engine = await self.stack.enter_async_context(Engine(limits=limits, rung=self.rung))
            innocent = await engine.make()
            outcome = await self.run(innocent, f"{PRELUDE}\n{INNOCENT}{'' if innocent.root else LISTENS}")
            assert outcome.failure is None, outcome.stderr
            self.sites[key] = Site(engine, innocent)
        return self.sites[key]

    async def answer(self, call: Call) -> object:
        match call.name:
            case "echo":
                return call.arguments
            case "sleep":
                await anyio.sleep(call.arguments["seconds"])
                return None
            case "slow_tool":
                await anyio.sleep(30)
                return None
            case "big":
                return "x" * (1 << 20)
            case _:
                self.misled.append(call)
                return None

    async def run(self, container: Container, code: str, limit_s: float = 20) -> Outcome:
        """Run a cell. That the host waits for longer than it says is a TimeoutError."""
        user = user_of(container) if container.root else 0
        with anyio.fail_after(limit_s + GRACE_S + MARGIN_S):
            outcome = await container.execute(
                there(container, code), tools=TOOLS, on_call=self.answer, limit_s=limit_s
            )
        if not container.root:
            return outcome
        return replace(outcome, stdout=outcome.stdout.replace(container.root, "").replace(str(user), "1000"))

    async def try_to_run(
        self, container: Container, code: str, limit_s: float = 20
    ) -> Outcome | ContainerDied:
        """Run a cell that may be the last of its container."""
        try:
            return await self.run(container, code, limit_s)
        except ContainerDied as error:
            return error

    @asynccontextmanager
    async def surroundings(self, limits: Limits = DEFAULTS) -> AsyncGenerator["Surroundings"]:
        """Make containers in here: afterwards nothing may be left of them, and nothing else be different."""
        site = await self.site(limits)
        before = self._state()
        async with innocent_at_work(site.innocent), AsyncExitStack() as stack:
            around = Surroundings(self, site.engine, stack)
            yield around
        for _ in range(100):  # transports close in later rounds of the event loop
            if self._state() == before:
                break
            await anyio.sleep(0.01)
        assert self._state() == before
        assert self.misled == []
        outcome = await self.run(site.innocent, "print(secret, sorted(os.listdir('/workspace')))")
        assert outcome.stdout == "mine ['in', 'mine', 'out']\n"

    def _state(self) -> tuple[object, ...]:
        """Of the host: descriptors, threads, files that nobody may touch."""
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        # workers of the pool come and go by themselves
        threads = sorted(each.name for each in threading.enumerate() if not each.name.startswith("AnyIO"))
        canary = {str(path): _touched(path) for path in sorted(self.canary.rglob("*"))}
        root = {each.name: _touched(each) for each in Path("/").iterdir() if each.name not in NEVER_LOOKED_AT}
        return descriptors, threads, canary, root


def there(container: Container, code: str) -> str:
    """The code, with the paths of this container, where it has no root of its own."""
    return re.sub(r"(?<![\w/}])(/workspace|/tmp)\b", rf"{container.root}\1", code)


@dataclass(slots=True)
class Surroundings:
    """What attacks are made in."""

    laboratory: Laboratory
    engine: Engine
    stack: AsyncExitStack

    async def container(self) -> Container:
        """One that knows the prelude, and is gone without a trace when the surroundings are left."""
        container = await self.stack.enter_async_context(traceless(self.engine))
        known = "".join(f"{name} = {value!r}\n" for name, value in self.laboratory.known.items())
        outcome = await container.execute(PRELUDE + known)
        assert outcome.failure is None
        return container


@asynccontextmanager
async def traceless(engine: Engine) -> AsyncGenerator[Container]:
    """A container. In the end it is closed, and none of its processes may be left."""
    container = await engine.make()
    with population(engine, container) as processes:
        assert container.pid in processes()
        try:
            yield container
        finally:
            began = time.monotonic()
            await container.close()
            while left := processes() or folder_of(container):
                assert time.monotonic() < began + MARGIN_S, f"there are left: {[*map(described, left)]}"
                await anyio.sleep(0.01)


def described(left: int | str) -> str:
    """A process, for whoever has to find out why it is still there; or a folder."""
    if isinstance(left, str):
        return left
    try:
        lines = Path(f"/proc/{left}/status").read_text("ascii", "replace").splitlines()
    except OSError:
        return f"{left}: gone by now"
    wanted = ("State", "PPid", "Uid", "SigPnd", "ShdPnd", "SigBlk", "Threads")
    return f"{left}: {' '.join(line for line in lines if line.startswith(wanted))}"


def user_of(container: Container) -> int:
    """The number outside of the user that the code is."""
    try:
        status = Path(f"/proc/{container.pid}/status").read_text("ascii", "replace")
    except FileNotFoundError:  # it has ended
        return 0
    (found,) = re.findall(r"^Uid:\t\d+\t(\d+)", status, re.MULTILINE)  # the effective one
    return int(found)


def folder_of(container: Container) -> list[str]:
    """What of its folder is left on the host; nothing, where it has a root of its own."""
    return [container.root] if container.root and Path(container.root).exists() else []


@contextmanager
def population(engine: Engine, container: Container) -> Generator[Callable[[], list[int]]]:
    """Tells which processes a container has."""
    if container.root:
        # who loses its supervisor is adopted by the zygote
        (zygote, _) = tree.parents()[container.pid]
        yield lambda: adopted(zygote, {each.pid for each in engine.containers} - {container.pid})
        return
    namespace = os.open(f"/proc/{container.pid}/ns/pid", os.O_RDONLY)  # its number is not given to another
    try:
        yield lambda: processes_of(namespace)
    finally:
        os.close(namespace)


def adopted(zygote: int, others: set[int]) -> list[int]:
    """The processes of a zygote that are not those of other containers; those that ended are not counted."""
    known = tree.parents()
    apart = {each for pid in others for each in (pid, *tree.below(pid, known))}
    return [pid for pid in tree.below(zygote, known) if pid not in apart and known[pid][1] not in "ZX"]


def processes_of(namespace: int) -> list[int]:
    """The processes in a PID namespace, by their numbers outside; those that ended are not counted."""
    number, found = os.fstat(namespace).st_ino, list[int]()
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                if (each / "ns" / "pid").stat().st_ino == number:
                    found.append(int(each.name))
            except (FileNotFoundError, PermissionError):  # it has ended, or is somebody else's
                continue
    return found


def ticks_of(container: Container) -> int:
    """Processor time of what the code runs, in hundredths of a second."""
    total = 0
    for pid in tree.below(container.pid, tree.parents()):
        fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total


INNOCENT = """
import socket
secret, ticks = "mine", 0
open("/workspace/mine", "w").write(secret)
open("/tmp/mine", "w").write(secret)
"""
LISTENS = """
listening = socket.socket(socket.AF_UNIX)
listening.bind("\\0innocent")
listening.listen()
"""
WORK = """
while await tick(number=ticks):
    ticks += 1
print(ticks)
"""


@asynccontextmanager
async def innocent_at_work(innocent: Container) -> AsyncGenerator[None]:
    """A container that calls a tool again and again meanwhile, and gets each answer."""
    leaving, numbers = anyio.Event(), list[int]()

    async def tick(call: Call) -> object:
        numbers.append(call.arguments["number"])
        await anyio.sleep(0.02)
        return not leaving.is_set()

    outcome: list[Outcome] = []

    async def work() -> None:
        outcome.append(await innocent.execute(WORK, tools=["tick"], on_call=tick))

    failed: BaseException | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(work)
        try:
            yield
        except Exception as error:  # outside of the group: it would cancel the innocent one
            failed = error
        leaving.set()
    if failed:
        raise failed
    assert outcome[0].failure is None
    assert outcome[0].stdout == f"{numbers[-1]}\n"
    assert numbers == list(range(numbers[0], numbers[-1] + 1))


def _touched(path: Path) -> tuple[int, ...]:
    found = path.lstat()
    return found.st_mode, found.st_uid, found.st_size, found.st_mtime_ns


async def check(laboratory: Laboratory, attack: Attack) -> None:
    """Run an attack; what it comes to must be what its file says."""
    async with laboratory.surroundings(attack.limits) as around:
        container = await around.container()
        for step in attack.steps:
            if step.verdict == "skipped":
                continue
            if step.fresh:
                container = await around.container()
            await check_step(laboratory, container, step, attack.limit_s)


async def check_step(laboratory: Laboratory, container: Container, step: Step, limit_s: float) -> None:
    began = time.monotonic()
    outcome = await laboratory.try_to_run(container, step.code, limit_s)
    if isinstance(outcome, ContainerDied):
        wanted, _, message = step.verdict.partition(": ")
        assert wanted == f"dies {outcome.reason}", str(outcome)
        assert message in str(outcome)
        assert outcome.reason != "timeout" or time.monotonic() - began >= limit_s
        return
    printed = "" if outcome.truncated else outcome.stdout
    assert (came_to(outcome), printed) == (step.verdict, step.printed), outcome.stderr
    assert outcome.failure or outcome.truncated or outcome.stderr == ""
    assert len(outcome.stdout) + len(outcome.stderr) < MOST_KEPT


def came_to(outcome: Outcome) -> str:
    """The verdict that would be right."""
    if outcome.timed_out:
        assert outcome.failure
        assert outcome.failure.kind == "CellInterrupted"
        return "stopped"
    if outcome.failure:
        return f"raises {outcome.failure.kind}"
    return "truncated" if outcome.truncated else "prints"
