"""Containers from their start to their end, also when their host or their zygote ends first."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from treadle.errors import SandboxError
from treadle.sandbox import claims
from treadle.sandbox import engine as engine_module
from treadle.sandbox.box import Limits, Mount
from treadle.sandbox.bridge.frames import Call
from treadle.sandbox.container import Container, ContainerDied
from treadle.sandbox.engine import Engine, Packages
from treadle.sandbox.ladder import probe
from treadle.sandbox.rungs import check_packages

REPORT = probe()
pytestmark = pytest.mark.skipif(REPORT.rung is None, reason=f"no containers here: {REPORT.why}")
needs_a_root = pytest.mark.skipif(
    REPORT.name in ("3", "3b"),
    reason="without namespaces, paths are those of the host: see test_shared_rungs",
)


@pytest.fixture
async def engine() -> AsyncGenerator[Engine]:
    async with Engine() as running:
        yield running


@pytest.fixture
async def container(engine: Engine) -> AsyncGenerator[Container]:
    async with await engine.make() as made:
        yield made


def alive(pid: int) -> bool:
    """Whether a process runs; one that is only not reaped yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@needs_a_root
async def test_what_a_cell_leaves_behind_is_there_for_the_next(container: Container) -> None:
    first = await container.execute("import math\nx = 20\nopen('a.txt', 'w').write('kept')\nprint('one')")
    second = await container.execute("print(math.floor(x / 3), open('/workspace/a.txt').read())")

    assert (first.stdout, first.failure) == ("one\n", None)
    assert second.stdout == "6 kept\n"


async def test_what_fails_is_told_and_the_container_goes_on(container: Container) -> None:
    failed = await container.execute("def f():\n    return 1 / 0\n\nf()")

    assert failed.failure
    assert failed.failure.kind == "ZeroDivisionError"
    assert 'File "<cell 1>", line 2, in f' in failed.stderr
    assert "return 1 / 0" in failed.stderr
    assert "/treadle/" not in failed.stderr
    assert (await container.execute("print('on')")).stdout == "on\n"


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        ("raise SystemExit(3)", "SystemExit", "3"),
        ("x = (", "SyntaxError", "SyntaxError: '(' was never closed"),
        ("await missing()", "NameError", "NameError: name 'missing' is not defined"),
        (
            "class E(Exception):\n    def __str__(self): raise ValueError\nraise E",
            "E",
            "<exception str() failed>",
        ),
    ],
)
async def test_failures_of_every_kind(code: str, kind: str, message: str, container: Container) -> None:
    failure = (await container.execute(code)).failure

    assert failure
    assert failure.kind == kind
    assert message in failure.message


async def test_calls_go_to_the_host_and_their_results_come_back(container: Container) -> None:
    seen: list[Call] = []

    async def answer(call: Call) -> object:
        seen.append(call)
        if call.name == "fail":
            raise ValueError("no such city")
        return {"city": call.arguments["city"], "degrees": 20}

    code = """
import asyncio
one = await weather({"city": "Oslo"})
two, three = await asyncio.gather(weather(city="Rome"), weather(city="Bern"))
print(one["degrees"], two["city"], three["city"])
try:
    await fail({})
except Exception as error:
    print(type(error).__name__, error)
async def main():
    return await weather(city="Bonn")
print(asyncio.run(main())["city"])
"""
    outcome = await container.execute(code, tools=["weather", "fail"], on_call=answer)

    assert outcome.failure is None, outcome.stderr
    assert outcome.stdout == "20 Rome Bern\nToolError no such city\nBonn\n"
    assert [call.id for call in seen] == [1, 2, 3, 4, 5]


async def test_processes_share_locks_queues_and_memory(container: Container) -> None:
    if container.root:
        pytest.skip("without namespaces there is no /dev/shm of its own")
    code = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.shared_memory import SharedMemory

def square(x):
    return x * x

fork = multiprocessing.get_context("fork")
with fork.Lock(), fork.Pool(2) as pool:
    print(pool.map(square, range(4)))
with ProcessPoolExecutor(2, mp_context=fork) as pool:
    print(list(pool.map(square, range(3))))
queue = fork.Queue()
process = fork.Process(target=queue.put, args=("said",))
process.start()
print(queue.get(timeout=5))
process.join()
memory = SharedMemory(create=True, size=16)
memory.buf[:3] = b"abc"
print(bytes(memory.buf[:3]))
memory.close()
memory.unlink()
"""
    outcome = await container.execute(code, limit_s=20)

    assert outcome.stdout == "[0, 1, 4, 9]\n[0, 1, 4]\nsaid\nb'abc'\n", outcome.stderr


async def test_many_calls_at_once_and_large_results(container: Container) -> None:
    async def answer(call: Call) -> object:
        await anyio.sleep(0.001)
        return "x" * int(call.arguments["n"])

    code = """
import asyncio
sizes = await asyncio.gather(*[get(n=i) for i in range(1000)])
print(sum(map(len, sizes)))
print(len(await get(n=3_000_000)))
"""
    outcome = await container.execute(code, tools=["get"], on_call=answer)

    assert outcome.stdout == "499500\n3000000\n", outcome.stderr


async def test_a_result_that_is_no_json_or_too_large_is_an_error_in_the_code(container: Container) -> None:
    async def answer(call: Call) -> object:
        return {"nan": float("nan"), "object": object(), "large": "x" * 5_000_000}[call.arguments["what"]]

    code = """
for what in ("nan", "object", "large"):
    try:
        await get(what=what)
    except Exception as error:
        print(what, type(error).__name__)
"""
    outcome = await container.execute(code, tools=["get"], on_call=answer)

    assert outcome.stdout == "nan ToolError\nobject ToolError\nlarge ToolError\n", outcome.stderr


async def test_waiting_for_a_call_is_not_running(container: Container) -> None:
    async def answer(call: Call) -> object:
        await anyio.sleep(0.6)
        return 1

    outcome = await container.execute("print(await get({}))", tools=["get"], on_call=answer, limit_s=0.3)

    assert (outcome.stdout, outcome.timed_out) == ("1\n", False)
    assert outcome.duration_s > 0.5


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "import asyncio; await asyncio.sleep(60)",
        "import re; re.match(r'(a+)+$', 'a' * 40 + 'b')",
        "import threading; threading.Event().wait()",
        "try:\n    while True: pass\nexcept Exception: pass",
    ],
)
async def test_code_that_takes_too_long_is_stopped_and_its_container_stays(
    code: str, container: Container
) -> None:
    began = time.monotonic()
    await container.execute("kept = 5")
    outcome = await container.execute(code, limit_s=0.3)

    assert outcome.timed_out
    assert outcome.failure
    assert outcome.failure.kind == "CellInterrupted"
    assert time.monotonic() - began < 5
    assert (await container.execute("print(kept)")).stdout == "5\n"


async def test_code_that_cannot_be_stopped_ends_with_its_container(container: Container) -> None:
    code = "import signal\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)\nwhile True: pass"
    with pytest.raises(ContainerDied) as died:
        await container.execute(code, limit_s=0.3)

    assert died.value.reason == "timeout"
    with pytest.raises(ContainerDied):
        await container.execute("print(1)")


async def test_a_cancelled_cell_is_stopped_and_its_container_stays(container: Container) -> None:
    await container.execute("kept = 5")
    with anyio.move_on_after(0.2):
        await container.execute("import time\nwhile True: time.sleep(0.01)")

    assert (await container.execute("print(kept)")).stdout == "5\n"


async def test_two_cells_at_once_are_refused(container: Container) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(container.execute, "import time; time.sleep(0.3)")
        await anyio.sleep(0.05)
        with pytest.raises(SandboxError, match="running already"):
            await container.execute("print(1)")


async def test_output_beyond_what_is_kept_loses_its_middle(engine: Engine) -> None:
    async with Engine(limits=Limits(output_kib=8)) as small, await small.make() as container:
        outcome = await container.execute("for i in range(100_000): print(i)")

    assert outcome.truncated
    assert outcome.stdout.startswith("0\n1\n2\n")
    assert outcome.stdout.endswith("99998\n99999\n")
    assert "bytes left out]" in outcome.stdout
    assert len(outcome.stdout) < 12 * 1024


async def test_idle_containers_cost_no_time(container: Container) -> None:
    await container.execute(
        "import threading\ndef spin():\n    while True: pass\n"
        "threading.Thread(target=spin, daemon=True).start()"
    )
    await anyio.sleep(0.1)  # until it is frozen
    tree = descendants(container.pid)
    spent = [ticks(pid) for pid in (container.pid, *tree)]
    await anyio.sleep(0.5)

    assert tree
    assert [ticks(pid) for pid in (container.pid, *tree)] == spent
    assert (await container.execute("print(1)")).stdout == "1\n"


def ticks(pid: int) -> int:
    """Of the processor, that a process used."""
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@needs_a_root
async def test_folders_of_the_host(tmp_path: Path) -> None:
    shown, written = tmp_path / "shown", tmp_path / "written"
    for folder in (shown, written):
        folder.mkdir(mode=0o700)
        (folder / "secret.txt").write_text("of the host", "utf-8")
        (folder / "secret.txt").chmod(0o600)
    mounts = [Mount(str(shown), "/workspace/shown"), Mount(str(written), "/workspace/written", writable=True)]
    code = """
print(open("shown/secret.txt").read(), open("written/secret.txt").read())
for act in (lambda: open("shown/new", "w"), lambda: open("shown/secret.txt", "a")):
    try:
        act()
    except OSError as error:
        print(error.errno)
open("written/new.txt", "w").write("of the container")
"""
    async with Engine(mounts=mounts) as engine, await engine.make() as container:
        outcome = await container.execute(code)

    assert outcome.stdout == "of the host of the host\n30\n30\n", outcome.stderr
    assert (written / "new.txt").read_text("utf-8") == "of the container"
    assert (written / "new.txt").stat().st_uid == os.geteuid()


@needs_a_root
async def test_packages_and_what_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "greeting.py").write_text("WORD = 'hello'\n", "utf-8")
    (tmp_path / "broken.py").write_text("1 / 0\n", "utf-8")
    packages = Packages(str(tmp_path), ["greeting", "broken"])
    async with Engine(packages=packages) as engine, await engine.make() as container:
        outcome = await container.execute("import greeting, sys; print(greeting.WORD, greeting.__file__)")

    assert outcome.stdout == "hello /opt/packages/greeting.py\n"


async def test_a_zygote_that_ends_takes_its_containers_along_and_another_starts(engine: Engine) -> None:
    container = await engine.make()
    zygote: Any = engine._zygote  # pyright: ignore[reportPrivateUsage]
    zygote._process.send_signal(signal.SIGKILL)
    with pytest.raises(ContainerDied):
        await container.execute("import time; time.sleep(20)")
    await anyio.sleep(0.5)

    assert not alive(container.pid)
    async with await engine.make() as another:
        assert (await another.execute("print(1)")).stdout == "1\n"


async def test_a_zygote_is_replaced_after_some_time_and_its_containers_live_on(
    monkeypatch: pytest.MonkeyPatch, engine: Engine
) -> None:
    monkeypatch.setattr(engine_module, "MAX_FORKS", 2)
    made = [await engine.make() for _ in range(5)]

    assert [(await each.execute("print(2)")).stdout for each in made] == ["2\n"] * 5
    assert len(engine._retired) == 2  # pyright: ignore[reportPrivateUsage]


HOST = """
import asyncio, json, os, sys
from treadle.sandbox.engine import Engine

async def main():
    async with Engine() as engine:
        made = [await engine.make() for _ in range(3)]
        for each in made:
            await each.execute("import subprocess; subprocess.Popen(['sleep', '99'], start_new_session=True)")
        print(json.dumps([each.pid for each in made]), flush=True)
        await made[0].execute("while True: pass", limit_s=1000)

asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_a_host_that_is_killed(how: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOST],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    ) as host:
        assert host.stdout
        line = host.stdout.readline()
        pids: list[int] = json.loads(line)
        tree = [pid for first in pids for pid in (first, *descendants(first))]
        host.send_signal(how)
        host.wait(20)
        until = time.monotonic() + 5
        while any(map(alive, tree)) and time.monotonic() < until:
            time.sleep(0.02)

    assert len(tree) >= 9
    assert [pid for pid in tree if alive(pid)] == []


def descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8").split()
    return [each for child in map(int, children) for each in (child, *descendants(child))]


async def test_two_hosts_never_share_a_user(engine: Engine) -> None:
    if os.geteuid() != 0:
        pytest.skip("an ordinary user has no other ids to give")
    own = [user((await engine.make()).pid) for _ in range(3)]
    host = await asyncio.create_subprocess_exec(sys.executable, "-c", HOST, stdout=subprocess.PIPE)
    assert host.stdout
    theirs = [user(pid) for pid in json.loads(await host.stdout.readline())]
    host.kill()
    await host.wait()

    assert len({*own, *theirs}) == 6
    assert min(*own, *theirs) > 1_000_000


def user(pid: int) -> int:
    """The real user id of a process, as the host sees it."""
    lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Uid:"))


async def rounds(engine: Engine, count: int) -> None:
    for number in range(count):
        async with await engine.make() as container:
            assert (await container.execute(f"print({number})")).stdout == f"{number}\n"


def taken() -> tuple[int, int]:
    """Descriptors of this process, and mounts that it sees."""
    return len(list(Path("/proc/self/fd").iterdir())), Path("/proc/self/mountinfo").read_text("utf-8").count(
        "\n"
    )


async def test_rounds_of_containers_leave_nothing_behind(engine: Engine) -> None:
    await rounds(engine, 5)
    before = taken()
    await rounds(engine, 60)

    await anyio.sleep(0.1)  # closing ends in a callback of the loop
    assert taken() <= before
    assert engine.containers == set()


@pytest.mark.slow
async def test_thousands_of_rounds_leave_nothing_behind(engine: Engine) -> None:
    await rounds(engine, 50)
    before, memory = taken(), resident_kib()
    await rounds(engine, 10_000)

    await anyio.sleep(0.1)
    assert taken() <= before
    assert resident_kib() - memory < 20_000
    assert processes() < 1000


def resident_kib() -> int:
    return int(Path("/proc/self/statm").read_text("utf-8").split()[1]) * 4


def processes() -> int:
    return len(list(Path("/proc").glob("[0-9]*")))


@pytest.fixture
def installed() -> Iterator[Packages]:
    """In a folder to which everybody has a way: without namespaces, code reads it there."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "greeting.py").write_text("text = 'hello'", "utf-8")
        yield Packages(str(folder))


async def test_an_interpreter_that_code_starts_finds_the_packages(installed: Packages) -> None:
    code = (
        "import subprocess, sys\n"
        "done = subprocess.run([sys.executable, '-c', 'import greeting; print(greeting.text)'], "
        "capture_output=True, text=True)\n"
        "print(done.stdout, done.stderr)"
    )
    async with Engine(packages=installed) as engine, await engine.make() as container:
        assert (await container.execute(code)).stdout == "hello\n \n"


def test_a_package_set_to_which_other_users_have_no_way_is_refused_where_containers_are_such(
    installed: Packages,
) -> None:
    assert installed.folder
    closed = Path(installed.folder, "closed")
    (closed / "set").mkdir(parents=True)
    closed.chmod(0o700)

    with pytest.raises(SandboxError, match=r"closed' is closed to them\. Set TREADLE_PACKAGES"):
        check_packages("3", str(closed / "set"))

    check_packages("3", installed.folder)
    for rung in ("1", "2", "3b"):
        check_packages(rung, str(closed / "set"))


async def test_what_dead_engines_left_is_removed_beside_the_event_loop_and_so_is_what_was_claimed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[tuple[str, int]] = []

    def told(name: str) -> None:
        work = getattr(claims, name)

        def telling(*arguments: Any) -> Any:
            threads.append((name, threading.get_ident()))
            return work(*arguments)

        monkeypatch.setattr(claims, name, telling)

    told("_sweep")
    told("_remove")
    async with Engine():
        pass

    assert [name for name, _ in threads if name == "_sweep"] == ["_sweep"]
    assert threads[-1][0] == "_remove"
    assert threading.get_ident() not in {thread for _, thread in threads}


async def test_an_engine_that_is_cancelled_while_it_claims_lets_go_of_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, goes_on, made = threading.Event(), threading.Event(), list[claims.Claim]()
    claim = claims.claim

    def slow() -> claims.Claim:
        begun.set()
        assert goes_on.wait(20)
        made.append(claim())
        return made[0]

    monkeypatch.setattr(claims, "claim", slow)
    engine = Engine()
    starting = asyncio.get_running_loop().create_task(engine.start())
    await anyio.to_thread.run_sync(begun.wait)
    starting.cancel()  # as `Containers` does when it is left
    await anyio.sleep(0.05)
    assert not starting.done()
    goes_on.set()
    await asyncio.wait([starting])

    assert starting.cancelled()
    assert not made[0].folder.exists()
    assert not made[0].folder.with_suffix(".lock").exists()
    await engine.close()
