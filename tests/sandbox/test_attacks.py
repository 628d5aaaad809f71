"""Attacks on containers: each is contained, leaves nothing behind, and disturbs nobody."""

import os
import random
import re
import secrets
import shutil
import site
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import pytest

if sys.platform != "linux":
    pytest.skip("containers are Linux's", allow_module_level=True)

from tests.sandbox.laboratory import (
    ATTACKS,
    DEFAULTS,
    PRELUDE,
    Attack,
    Laboratory,
    Surroundings,
    came_to,
    check,
    ticks_of,
    user_of,
)
from treadle.errors import SandboxError
from treadle.sandbox.box import ENVIRONMENT, Mount
from treadle.sandbox.container import Container, ContainerDied
from treadle.sandbox.engine import Engine
from treadle.sandbox.kernel import landlock, libc
from treadle.sandbox.ladder import probe

pytestmark = pytest.mark.attack
REPOSITORY = Path(__file__).parents[2]
SHARED = REPOSITORY.parent / "shared" / "attacks"
ORDINARY = 65_534
"""The number of `nobody`."""
RUNG = probe().name or "2"
SHARED_RUNG = RUNG in ("3", "3b")
"""Without namespaces: see `test_shared_rungs`."""

OWN = [
    pytest.param(attack, id=attack.name)
    for path in sorted(ATTACKS.glob("[a-z]*.py"))
    if (attack := Attack.read(path, RUNG)).is_for(RUNG)
]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def laboratory(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Laboratory]:
    canary = tmp_path_factory.mktemp("canary")
    (canary / "untouched").write_text("untouched", "utf-8")
    secret, planted = secrets.token_hex(12), secrets.token_hex(12)
    with socket.socket(socket.AF_UNIX) as listening, pytest.MonkeyPatch.context() as patch:
        listening.bind(str(canary / "socket"))
        listening.listen()
        patch.setenv("CANARY_SECRET", f"canary-{secret}")
        known = {
            "CANARY": str(canary),
            "ENVIRONMENT": [*ENVIRONMENT, "LD_LIBRARY_PATH"],
            "HOST_PATHS": [
                str(REPOSITORY),
                str(canary),
                str(Path.home()) if Path.home() != Path("/") else "?",
            ],
            "PLANTED_HEX": f"canary-{planted}".encode().hex(),
            "HOST_PID": os.getpid(),
            "SECRET_HALF": secret,
            "SOCKET": str(canary / "socket"),
        }
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(Engine())
            except SandboxError as error:
                pytest.skip(str(error))
            yield Laboratory(canary, known, stack)


@pytest.fixture
async def around(laboratory: Laboratory) -> AsyncGenerator[Surroundings]:
    async with laboratory.surroundings() as around:
        yield around


@pytest.mark.parametrize("attack", OWN)
async def test_our_own_attacks_are_contained(laboratory: Laboratory, attack: Attack) -> None:
    if attack.options.get("machine", libc.MACHINE) != libc.MACHINE:
        pytest.skip(f"it is for {attack.options['machine']}")
    if (needed := int(attack.options.get("landlock", "0"))) > landlock.abi():
        pytest.skip(f"version {landlock.abi()} of Landlock, and it is about {needed}")

    await check(laboratory, attack)


def test_there_are_enough_attacks_and_each_says_what_it_is() -> None:
    paths = sorted(ATTACKS.glob("[a-z]*.py"))

    assert len(paths) >= 45
    for path in paths:
        attack = Attack.read(path)
        tries, outcome = path.read_text("utf-8").splitlines()[:2]
        assert tries.startswith("# ")
        assert outcome.startswith("# ")
        # the first cell is the control: the same done legally
        assert len(attack.steps) >= 2
        assert attack.steps[0].verdict.split()[0] in {"prints", "raises", "stopped"}


@dataclass(frozen=True, slots=True)
class Shared:
    """What one of the shared attacks must come to, beside what is legal."""

    printed: str
    """A pattern of all that it prints."""
    verdict: str = "prints"
    limit_s: float = 20.0
    legal: str = "assert open('/workspace/legal', 'w').write('x') == 1"
    """Works before, and afterwards where there is an afterwards."""
    machine: str | None = None
    memory_mib: int = DEFAULTS.memory_mib


NO_FILE = "(PermissionError|FileNotFoundError|OSError)"
FORK = "assert child(lambda: None) == 0"
KNOWN_RESULTS = {
    "01": Shared(r"blocked after (\d|[1-4]\d) 11\n", legal=FORK, memory_mib=1024),
    "02": Shared(r"blocked at (\d|\d\d|1\d\d|2[0-4]\d) MiB\n", legal="assert bytearray(50 << 20)"),
    "03": Shared("", "dies memory: more than 256 MiB", legal=FORK),
    "04": Shared(
        r"pids \['1', '2'\]\n"
        + "".join(
            rf"blocked /proc/{name} {NO_FILE}\n" for name in ("1/environ", "1/mem", "1/root/etc/shadow")
        )
        + "".join(rf"blocked /proc/{name} {NO_FILE}\n" for name in ("kcore", r"self/\.\./1/maps"))
        + "".join(rf"blocked /proc/{name} {NO_FILE}\n" for name in ("sysrq-trigger", "1/fd")),
        legal="assert open('/proc/self/status').read()",
    ),
    "05": Shared(r"ptrace 1 rc -1 errno 1\nptrace 1 rc -1 errno 1\nprocess_vm_readv -1 1\n"),
    "06": Shared(
        r'\{"t": "done", "id": 1, "err": null\}\n'
        r'\{"t":"call","id":99,"name":"delete_everything","args":\{\}\}\n'
    ),
    "07": Shared("", "dies violation: the end of cell 424242", legal="assert await echo(a=1) == {'a': 1}"),
    "08": Shared("", "stopped", 0.5, legal="assert re.match('(a+)+$', 'aaa')"),
    "09": Shared("", "stopped|dies timeout", 0.5, legal="assert (1 << 4000) * (1 << 4000)"),
    "10": Shared(
        r"blocked 1 1\nblocked 1 1\nalive\n", "raises ProcessLookupError", legal="os.kill(os.getpid(), 0)"
    ),
    "11": Shared(r"(?s)x{60000}.*\n\[\d+ bytes left out\]\n.*x\n", "truncated", legal="print('x', end='')"),
    "12": Shared(r"\[('(report.txt|up|root)'(, )?){3}\]\n"),
    "13": Shared(r"fifo blocked 1\ndev blocked 1\nunix socket made\n"),
    "14": Shared(r"blocked 27\n"),
    "15": Shared(r"blocked at MiB (\d|[1-4]\d) 28\ninodes blocked at (1\d{3}|2[01]\d\d) 28\n"),
    "16": Shared(r"\d+ bytes for 80 MiB\nblocked 28\n"),
    "17": Shared(
        r"blocked 1\nblocked 1\nblocked 1\n"
        r"(su [1-9]\d* .*|blocked FileNotFoundError)\n"
        r"(mount 0 .*|blocked \w+)\n"
        r"(unshare [1-9]\d* .*|blocked \w+)\n",
        legal="assert subprocess.run(['true']).returncode == 0",
    ),
    "18": Shared(r"(blocked [^\n]*\n){14}", machine="x86_64"),
    "19": Shared(
        r"(blocked [^\n]* (OSError 97|ConnectionRefusedError 111|FileNotFoundError 2)\n){11}"
        r"blocked dns gaierror\n",
        legal="[each.close() for each in socket.socketpair()]",
    ),
    "20": Shared(r"(blocked (1|13|30|2) ){16}\nblocked plant (13|30)\n"),
    "21": Shared("", "dies exit: status 7", legal="assert await echo(a=1) == {'a': 1}"),
    "22": Shared("", "dies exit", 1.0, legal="assert await echo(a=1) == {'a': 1}"),
    "23": Shared(
        r"blocked at (\d|[1-4]\d) can't start new thread\n", legal="threading.Thread(target=int).start()"
    ),
    "24": Shared(r"left \d+\n", legal=FORK),
    "25": Shared("", "raises SystemExit"),
}
IN_PLACE_OF = {
    "04": Shared(
        "",
        "raises PermissionError",  # already at listing /proc
        legal="assert os.listdir('/workspace')",
    ),
    "05": Shared(r"ptrace 1 rc -1 errno 1\nptrace \d+ rc -1 errno 1\nprocess_vm_readv -1 1\n"),
    "10": Shared(
        r"blocked 1 1\nblocked \d+ 1\nalive\nalive after kill -1\n", legal="os.kill(os.getpid(), 0)"
    ),
    "13": Shared(r"fifo blocked 1\ndev blocked 1\nsock blocked 97\n"),
    "15": Shared("", "dies disk: more than 48 MiB"),
    "16": Shared("", "dies disk: more than 48 MiB"),
    "17": Shared(
        KNOWN_RESULTS["17"].printed.replace("mount 0", r"mount \d"),
        legal="assert subprocess.run(['true']).returncode == 0",
    ),
}
"""Where there are no namespaces."""
ON_3B = {
    # the kernel's limit is for the user, and others of that user may end meanwhile: then a watchdog
    "01": Shared(r"blocked after \d\d? 11\n", "prints|dies processes", legal=FORK, memory_mib=1024),
    "23": Shared(
        r"blocked at \d\d? can't start new thread\n",
        "prints|dies processes",
        legal="threading.Thread(target=int).start()",
    ),
    # a change of mode says that it went well, and does nothing
    "20": Shared(r"(blocked (1|13|30|2) |CHANGED \S+\n){16}\nblocked plant (13|30)\n"),
}
"""In place of those, where the code has the user of the host."""
EXPECTED = KNOWN_RESULTS | (IN_PLACE_OF if SHARED_RUNG else {}) | (ON_3B if RUNG == "3b" else {})


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no attacks at {SHARED}")
@pytest.mark.parametrize("number", KNOWN_RESULTS)
async def test_the_shared_attacks_are_contained(laboratory: Laboratory, number: str) -> None:
    expected = EXPECTED[number]
    if expected.machine not in {None, libc.MACHINE}:
        pytest.skip(f"it is for {expected.machine}")
    if number == "10" and landlock.abi() < 6:
        pytest.skip(f"version {landlock.abi()} of Landlock knows nothing of signals")
    (path,) = SHARED.glob(f"{number}_*.py")
    code = path.read_text("utf-8")
    if number == "07":
        code = code.replace('"err":None', '"error":None')  # it is about other frames than ours
    if SHARED_RUNG and number in {"15", "16"}:
        code += "\ntime.sleep(2)"  # for the watchdog

    async with laboratory.surroundings(replace(DEFAULTS, memory_mib=expected.memory_mib)) as around:
        container = await around.container()
        legal = await laboratory.run(container, expected.legal)
        assert legal.failure is None
        outcome = await laboratory.try_to_run(container, code, expected.limit_s)
        if isinstance(outcome, ContainerDied):
            wanted = re.fullmatch(r"(?:.*\|)?dies (\w+)(?:: (.*))?", expected.verdict)
            assert wanted, str(outcome)
            assert (outcome.reason, (wanted[2] or "") in str(outcome)) == (wanted[1], True)
            return
        assert came_to(outcome) in expected.verdict.split("|"), outcome.stderr
        assert re.fullmatch(expected.printed, outcome.stdout)
        # the fork bomb and the threads are still there, and may use up all there is
        if number not in {"01", "23"}:
            legal = await laboratory.run(container, expected.legal)
            assert legal.failure is None
        if number in {"12", "13"}:
            collected = await container.collect()
            assert collected.files == []
            assert {each.reason for each in collected.skipped} <= {"it is a link", "it is a socket"}
            assert len(collected.skipped) == {"12": 3, "13": 0 if SHARED_RUNG else 1}[number]


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no attacks at {SHARED}")
def test_each_of_the_shared_attacks_has_a_known_result() -> None:
    assert {path.name[:2] for path in SHARED.glob("*.py")} == KNOWN_RESULTS.keys()


async def test_threads_do_not_compute_between_cells(laboratory: Laboratory, around: Surroundings) -> None:
    container = await around.container()
    spinning = """
def spin():
    global turns
    while True:
        turns += 1

turns = 0
threading.Thread(target=spin, daemon=True).start()
child_of_ours = os.fork()
if child_of_ours == 0:
    spin()
"""
    assert came_to(await laboratory.run(container, spinning)) == "prints"

    assert await used(container) == 0
    # the control: in a cell they go on
    assert came_to(
        await laboratory.run(container, "before = turns; time.sleep(0.3); assert turns > before")
    ) == ("prints")
    assert await used(container) == 0


WAKERS = {
    "a timer": """
class Event(ctypes.Structure):
    _fields_ = [
        ("value", ctypes.c_void_p),
        ("number", ctypes.c_int),
        ("how", ctypes.c_int),
        ("rest", ctypes.c_char * 48),
    ]

timer = ctypes.c_void_p()
if C.timer_create(1, ctypes.byref(Event(None, signal.SIGCONT, 0)), ctypes.byref(timer)) == 0:
    C.timer_settime(timer, 0, ctypes.byref((ctypes.c_long * 4)(0, 5_000_000, 0, 5_000_000)), None)
""",
    "a watched file": """
import fcntl

watch = C.inotify_init1(0)
C.inotify_add_watch(watch, b"/dev/zero", 0x0FFF)
said(lambda: fcntl.fcntl(watch, fcntl.F_SETOWN, os.getpid()))
said(lambda: fcntl.fcntl(watch, 10, signal.SIGCONT))  # F_SETSIG
said(lambda: fcntl.fcntl(watch, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK))
""",
}
SPIN = """
for number in (signal.SIGCONT, signal.SIGIO):
    signal.signal(number, lambda *_: None)
threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()
"""


@pytest.mark.parametrize("waker", WAKERS)
async def test_nothing_wakes_a_frozen_container(
    laboratory: Laboratory, around: Surroundings, waker: str
) -> None:
    container, other = await around.container(), await around.container()
    await laboratory.run(container, WAKERS[waker] + SPIN)

    # what others do with files that all containers see is news to a watch
    busy = "for _ in range(10):\n    open('/dev/zero').close()\n    time.sleep(0.01)"
    await laboratory.run(other, busy)

    assert await used(container) <= 1


async def used(container: Container) -> int:
    """Processor time of half a second in which no cell runs, in hundredths of a second."""
    await anyio.sleep(0.1)  # the last steps on the way into the ice
    before = ticks_of(container)
    await anyio.sleep(0.5)
    return ticks_of(container) - before


SHARING = """
kept = bytearray(60 << 20)
for _ in range(8):
    if os.fork() == 0:
        for at in range(0, %s, 4096):
            kept[at] = 1
        time.sleep(20)
time.sleep(1)
print("shared")
"""


async def test_memory_that_processes_share_since_a_fork_counts_once(laboratory: Laboratory) -> None:
    async with laboratory.surroundings(replace(DEFAULTS, memory_mib=192)) as around:
        container = await around.container()

        assert (await laboratory.run(container, SHARING % 0)).stdout == "shared\n"
        # the control: what each takes for itself counts
        died = await laboratory.try_to_run(container, SHARING % "len(kept)")
        assert isinstance(died, ContainerDied)
        assert died.reason == "memory"


async def test_a_storm_of_interrupts_interrupts_cells_at_worst(
    laboratory: Laboratory, around: Surroundings
) -> None:
    container = await around.container()
    storm = """
storm = os.fork()
if storm == 0:
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        os.kill(os.getppid(), signal.SIGUSR1)
        time.sleep(0.0001)
    os._exit(0)
while True:
    time.sleep(1)
"""
    assert came_to(await laboratory.run(container, storm)) == "raises CellInterrupted"

    verdict = ""
    with anyio.fail_after(10):
        # the last: an interrupt came between the end of a wait and its result
        while verdict not in {"prints", "raises ChildProcessError"}:
            verdict = came_to(await laboratory.run(container, "os.waitpid(storm, 0)"))
            assert verdict in {"prints", "raises CellInterrupted", "raises ChildProcessError"}
    assert (await laboratory.run(container, "print('calm')")).stdout == "calm\n"


async def test_cells_cancelled_at_any_moment_leave_a_whole_container(
    laboratory: Laboratory, around: Surroundings
) -> None:
    moments = random.Random(4)
    busy = "for number in range(10_000):\n    await echo(a=number)\n    print(number)"
    container = await around.container()
    for _ in range(20):
        with anyio.move_on_after(moments.uniform(0, 0.02)):
            await laboratory.run(container, busy)
        outcome = await laboratory.run(container, "print((await echo(a='whole'))['a'])")
        assert outcome.failure is None
        assert outcome.stdout == "whole\n"


async def test_calls_of_threads_in_the_moment_in_which_a_cell_ends_wait_for_the_next(
    laboratory: Laboratory, around: Surroundings
) -> None:
    spam = """
import asyncio

def spam():
    while True:
        asyncio.run(echo(a=1))

for _ in range(3):
    threading.Thread(target=spam, daemon=True).start()
time.sleep(0.01)
"""
    for _ in range(3):
        container = await around.container()
        for code in (spam, *["time.sleep(0.005)"] * 5):
            assert came_to(await laboratory.run(container, code, 5)) == "prints"


FLICKER = """
import itertools, shutil

def put(path):
    with open(path, "w") as file:
        file.write("inside" * 1000)

ways = [
    lambda: put("/workspace/out/x"),
    lambda: os.symlink("/etc/passwd", "/workspace/out/x"),
    lambda: os.link("/workspace/kept", "/workspace/out/x"),
    lambda: os.mkdir("/workspace/out/x"),
    lambda: os.symlink("/etc", "/workspace/out/x"),
    lambda: (put("/workspace/out/x"), os.truncate("/workspace/out/x", 3)),
]
put("/workspace/kept")
os.makedirs("/workspace/out/folder")
put("/workspace/out/folder/passwd")
print("began")
end = time.monotonic() + 1.5
for way in itertools.cycle(ways):
    if time.monotonic() > end:
        break
    said(lambda: os.unlink("/workspace/out/x"))
    said(lambda: os.rmdir("/workspace/out/x"))
    way()
    os.rename("/workspace/out/folder", "/workspace/away")
    os.symlink("/etc", "/workspace/out/folder")
    os.unlink("/workspace/out/folder")
    os.rename("/workspace/away", "/workspace/out/folder")
"""


async def test_a_collection_is_of_regular_files_only_whatever_the_code_does_meanwhile(
    laboratory: Laboratory, around: Surroundings
) -> None:
    container = await around.container()
    outcomes, seen, rounds = list[str](), set[str](), 0

    async def flicker() -> None:
        outcomes.append(came_to(await laboratory.run(container, FLICKER)))

    async with anyio.create_task_group() as group:
        group.start_soon(flicker)
        while not outcomes:
            with anyio.fail_after(10):
                collected = await container.collect()
            rounds += 1
            for file in collected.files:
                assert set(file.data) <= set(b"inside\0")  # nulls: it was cut while it was read
                seen.add(file.path)
            assert {each.path for each in collected.skipped} <= {"x", "folder", "folder/passwd", "."}
    assert outcomes == ["prints"]
    assert rounds > 5
    assert seen <= {"x", "folder/passwd"}

    # the control: at rest it is all there
    await laboratory.run(container, "shutil.rmtree('/workspace/out'); os.mkdir('/workspace/out'); ways[0]()")
    collected = await container.collect()
    assert [(file.path, len(file.data)) for file in collected.files] == [("x", 6000)]
    assert collected.skipped == []


async def test_a_folder_that_became_a_link_is_not_collected(
    laboratory: Laboratory, around: Surroundings
) -> None:
    container = await around.container()
    await laboratory.run(container, "os.rmdir('/workspace/out'); os.symlink('/etc', '/workspace/out')")

    collected = await container.collect()

    assert collected.files == []
    assert [each.path for each in collected.skipped] == ["."]


async def test_a_process_started_as_its_cell_begins_is_not_left_frozen(
    laboratory: Laboratory, around: Surroundings
) -> None:
    container = await around.container()
    assert came_to(await laboratory.run(container, "assert child(int) == 0")) == "prints"

    for _ in range(400):
        assert came_to(await container.execute("int")) == "prints"
        assert came_to(await container.execute("child(int)", limit_s=0.5)) == "prints"


async def test_a_dead_container_says_so_to_whatever_is_asked(
    laboratory: Laboratory, around: Surroundings
) -> None:
    container = await around.container()
    assert await container.stats()
    with pytest.raises(ContainerDied):
        await laboratory.run(container, "os._exit(1)")

    for ask in (container.stats, container.collect, container.list, lambda: container.execute("1")):
        with anyio.fail_after(2), pytest.raises(SandboxError):
            await ask()


@pytest.mark.skipif(os.geteuid() != 0, reason="one user has one number")
async def test_each_container_has_a_user_of_its_own(around: Surroundings) -> None:
    containers = [await around.container() for _ in range(3)]

    users = {user_of(each) for each in containers}
    assert len(users) == 3
    assert min(users) > 1_000_000


with_mounts = pytest.mark.skipif(SHARED_RUNG, reason="no mounts without namespaces")


@pytest.fixture
def mounted() -> Iterator[Path]:
    """A folder of the host that everybody may write to; its name is short, as those of sockets must be."""
    folder = Path(tempfile.mkdtemp(prefix="host-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


async def ran_with(mount: Mount, code: str) -> str:
    """What code prints in a container with this mount."""
    async with Engine(limits=DEFAULTS, mounts=[mount]) as engine, await engine.make() as container:
        outcome = await container.execute(PRELUDE + code)
    assert outcome.failure is None, outcome.stderr
    return outcome.stdout


def modes_in(folder: Path) -> dict[str, int]:
    return {each.name: stat.S_IMODE(each.lstat().st_mode) for each in folder.iterdir()}


SOCKETS_OF_THE_HOST = """
# the control: pairs in which nobody has a name
one, other = socket.socketpair()
one.send(b"x")
print(other.recv(1))

def reach(one):
    attempt("connect", lambda: one.connect("/data/socket"))
    attempt("sendto", lambda: one.sendto(b"reached", "/data/socket"))
    attempt("bind", lambda: one.bind("/data/another"))

reach(one)
for kind in ("SOCK_STREAM", "SOCK_DGRAM", "SOCK_SEQPACKET"):
    number = getattr(socket, kind)
    attempt(kind, lambda: socket.socket(socket.AF_UNIX, number))
attempt("pair", lambda: reach(socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0]))
"""


@with_mounts
@pytest.mark.parametrize("writable", [False, True])
async def test_sockets_in_mounts_cannot_be_reached(mounted: Path, writable: bool) -> None:
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as calling:
        listening.bind(str(mounted / "socket"))
        (mounted / "socket").chmod(0o777)
        listening.listen()
        listening.setblocking(False)

        printed = await ran_with(Mount(str(mounted), "/data", writable), SOCKETS_OF_THE_HOST)

        first, *results = printed.splitlines()
        assert first == "b'x'"
        found = dict(line.split() for line in results)
        # a stream that is connected goes nowhere else: this is the kernel's own answer
        assert found.pop("sendto") in {"EPERM", "EISCONN"}
        assert found.keys() == {"connect", "bind", "SOCK_STREAM", "SOCK_DGRAM", "SOCK_SEQPACKET", "pair"}
        assert set(found.values()) <= {"EPERM", "EAFNOSUPPORT"}
        with pytest.raises(BlockingIOError):
            listening.accept()
        # the control: there was somebody to be reached
        calling.connect(str(mounted / "socket"))
        listening.accept()[0].close()
    assert modes_in(mounted).keys() == {"socket"}


SETUID = """
os.umask(0o022)
os.close(os.open("/data/program", os.O_CREAT | os.O_WRONLY, 0o644))
attempt("control", lambda: os.chmod("/data/program", 0o755))
for number, bits in enumerate((0o4755, 0o2755, 0o6755)):
    attempt("chmod", lambda: os.chmod("/data/program", bits))
    attempt("fchmod", lambda: os.fchmod(os.open("/data/program", os.O_RDONLY), bits))
    attempt("open", lambda: os.open(f"/data/{number}", os.O_CREAT | os.O_WRONLY, bits))
    attempt("mkdir", lambda: os.mkdir(f"/data/folder-{number}", bits))
"""


@with_mounts
async def test_setuid_files_are_not_made_in_mounts(mounted: Path) -> None:
    printed = await ran_with(Mount(str(mounted), "/data", writable=True), SETUID)

    assert printed.splitlines() == [
        "control DONE",
        *["chmod EPERM", "fchmod EPERM", "open EPERM", "mkdir EPERM"] * 3,
    ]
    assert modes_in(mounted) == {"program": 0o755}


FRAMES = """
import gc

name = bytes.fromhex(NAME_HEX).decode()
planted = ["planted " + name]

def walk():
    frame = sys._getframe()
    while frame:
        yield frame
        frame = frame.f_back

def texts():
    for frame in walk():
        for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
            yield repr(value)
    for each in gc.get_objects():
        for held in gc.get_referents(each):
            if isinstance(held, (str, bytes, bytearray)):
                yield held if isinstance(held, str) else held.decode("latin-1")

seen = {text for text in texts() if name in text and "planted" not in text and text.strip("'") != name}
print(any("planted " + name in text for text in texts()), len(list(walk())) > 3, seen)
"""


@with_mounts
async def test_frames_below_the_code_do_not_know_where_a_mount_is_from(mounted: Path) -> None:
    told = f"NAME_HEX = {mounted.name.encode().hex()!r}\n"

    printed = await ran_with(Mount(str(mounted), "/data"), told + FRAMES)

    # the control: what is there is found, down to the bottom
    assert printed == "True True set()\n"


BIND = """
set -e
mount --make-rprivate /
place=$1; shift
while [ "$1" != -- ]; do mount --bind "$1" "$place/$2"; shift 2; done
shift
exec setpriv --reuid=%(user)d --regid=%(user)d --clear-groups --no-new-privs "$@"
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody may enter, for mounts that nobody else sees."""
    folder = Path(tempfile.mkdtemp(prefix="treadle-ordinary-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(os.geteuid() != 0 or SHARED_RUNG, reason="this is an ordinary user's run")
@pytest.mark.skipif(
    not all(map(shutil.which, ("unshare", "mount", "setpriv"))), reason="needs the tools of util-linux"
)
def test_all_of_this_holds_for_an_ordinary_user(place: Path) -> None:
    # an ordinary user may not enter root's home, where the interpreter may be: all is shown at other places
    binds = {sys.base_prefix: "python", str(REPOSITORY): "treadle", site.getsitepackages()[0]: "packages"}
    if SHARED.is_dir():
        binds[str(SHARED.parent)] = "shared"
    for name in (*binds.values(), "home"):
        (place / name).mkdir()
    home = place / "home"
    os.chown(home, ORDINARY, ORDINARY)
    python = place / "python" / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    tests = place / "treadle" / "tests" / "sandbox" / "test_attacks.py"
    environment = {
        "PATH": os.defpath,
        "HOME": str(home),
        "TMPDIR": str(home),
        "LD_LIBRARY_PATH": str(place / "python" / "lib"),
        "PYTHONPATH": f"{place / 'treadle' / 'src'}:{place / 'packages'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # the interpreter may have some of its own
    }
    plugins = ["-p", "no:cacheprovider", "-p", "anyio.pytest_plugin", "-p", "xdist.plugin"]
    chosen = ["-m", "attack and not slow", "-n", "3"]  # most of the time is spent with waiting
    command = [str(python), "-m", "pytest", str(tests), "-q", "--tb=short", *plugins, *chosen]
    shown = [word for source, name in binds.items() for word in (source, name)]
    script = BIND % {"user": ORDINARY}

    ran = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", str(place), *shown, "--", *command],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=place,
        env=environment,
    )

    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
    counted = dict(re.findall(r"(\d+) (\w+)", ran.stdout.splitlines()[-1]))
    names = {name: int(number) for number, name in counted.items()}
    assert names["passed"] > 80
    # what is skipped is what needs root
    assert names.get("skipped", 0) <= 3, ran.stdout[-3000:]
