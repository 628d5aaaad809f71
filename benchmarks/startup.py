"""What a new process pays: the time of an import, and the time until the first byte is on its way."""

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random

from benchmarks.environments import Peer, installed
from benchmarks.measure import Spread, spread
from benchmarks.processes import NO_VARIABLES, ROOT, environment, last_line
from benchmarks.server import content_length, response, whole
from benchmarks.tables import ratio, row, title

ROUNDS = 20
LIMIT_S = 30

BARE = "aiohttp alone"
OURS = "treadle.agent"
NOTHING = "pass"
OUR_IMPORT = "import treadle"


class Failed(Exception):
    """A measured process did not do its work."""


@dataclass(frozen=True, slots=True)
class Start:
    """What a new process is told to do."""

    arguments: tuple[str, ...]
    python: str = sys.executable
    variables: Mapping[str, str] = field(default_factory=lambda: NO_VARIABLES)

    def begin(self, *more: str) -> "subprocess.Popen[str]":
        """Start the process. `-P`: what lies beside a script must not pass for a package of that name."""
        return subprocess.Popen(
            [self.python, "-P", *self.arguments, *more],
            cwd=ROOT,
            env=environment(self.variables),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )


def imports() -> dict[str, dict[str, Spread]]:
    """Milliseconds from the start of a process to its end, and less those of one that imports nothing.

    The latter runs in the same environment, as environments differ in what they load unasked.
    """
    codes = (NOTHING, "import aiohttp", OUR_IMPORT, "import treadle; treadle.agent")
    starts = {code: Start(("-c", code)) for code in codes}
    nothing: dict[str, str] = dict.fromkeys(codes, NOTHING)
    for peer in installed():
        named = {f"{NOTHING} ({peer.name})": NOTHING, **{code: code for code in peer.imports}}
        starts |= {name: _start(peer, "-c", code) for name, code in named.items()}
        nothing |= dict.fromkeys(named, f"{NOTHING} ({peer.name})")
    taken = _in_turns({name: partial(_to_the_end, start) for name, start in starts.items()})
    rows: dict[str, dict[str, Spread]] = {}
    for name, ms in taken.items():
        if name == nothing[name]:
            continue
        without = taken[nothing[name]]
        net = [more - less for more, less in zip(ms, without, strict=True)]
        rows[name] = {"ms": spread(ms), "nothing_ms": spread(without), "net_ms": spread(net)}
    _show_imports(rows)
    return rows


def _show_imports(rows: Mapping[str, Mapping[str, Spread]]) -> None:
    ours = rows[OUR_IMPORT]["net_ms"]["median"] if OUR_IMPORT in rows else None
    title("process start to end, ms", "median", "p95", "pass", "net", "net p95", "x treadle")
    for name, figures in rows.items():
        all_in_all, nothing, net = figures["ms"], figures["nothing_ms"], figures["net_ms"]
        values = (all_in_all["median"], all_in_all["p95"], nothing["median"], net["median"], net["p95"])
        row(name, (*values, ratio(net["median"], ours)), decimals=1)


def first_byte() -> dict[str, Spread]:
    """Milliseconds from the start of a process to the arrival of its first byte at the server."""
    starts = {
        BARE: Start(("benchmarks/starts/aiohttp_alone.py",)),
        OURS: Start(("benchmarks/starts/treadle_agent.py",)),
    }
    for peer in installed():
        starts[peer.label] = _start(peer, f"benchmarks/peers/starts/{peer.script}.py")
    taken = _in_turns({name: partial(_to_the_first_byte, start) for name, start in starts.items()})
    rows = {name: spread(values) for name, values in taken.items()}
    bare, ours = (rows[name]["median"] if name in rows else None for name in (BARE, OURS))
    title("process start to first byte, ms", "median", "p95", "x aiohttp", "x treadle")
    for name, ms in rows.items():
        row(name, (ms["median"], ms["p95"], ratio(ms["median"], bare), ratio(ms["median"], ours)))
    return rows


def _start(peer: Peer, *arguments: str) -> Start:
    return Start(arguments, str(peer.python), peer.variables)


def _in_turns(contestants: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """What each measured in `ROUNDS` rounds, each round in an order of its own. Who fails is left out."""
    measured: dict[str, list[float]] = {name: [] for name in contestants}
    rng = Random(0)
    for number in range(1 + ROUNDS):
        for name in rng.sample([*measured], len(measured)):
            try:
                ms = contestants[name]()
            except Failed as error:
                print(f"  {name}: failed: {error}")
                del measured[name]
                continue
            if number:  # the first round fills the caches
                measured[name].append(ms)
    return measured


def _to_the_end(start: Start) -> float:
    began = time.monotonic_ns()
    process = start.begin()
    _check_end(process)
    return (time.monotonic_ns() - began) / 1e6


def _to_the_first_byte(start: Start) -> float:
    """This process is the server, so that one clock takes both times and nothing but the child runs."""
    with socket.create_server(("127.0.0.1", 0)) as listening, tempfile.TemporaryDirectory() as folder:
        listening.settimeout(LIMIT_S)
        base = f"http://127.0.0.1:{listening.getsockname()[1]}"
        began = time.monotonic_ns()
        process = start.begin(base, folder)
        try:
            arrived = _answer_one(listening)
        except TimeoutError:
            process.kill()
            raise Failed(f"nothing came within {LIMIT_S} s: {last_line(process.communicate()[1])}") from None
        _check_end(process)
    return (arrived - began) / 1e6


def _answer_one(listening: socket.socket) -> int:
    """Answer one request; gives when its first byte came, in ns of the monotonic clock."""
    connection, _ = listening.accept()
    with connection:
        connection.settimeout(LIMIT_S)
        first = connection.recv(1)
        arrived = time.monotonic_ns()
        with connection.makefile("rb") as request:
            head = first + b"".join(iter(request.readline, b"\r\n"))
            request.read(content_length(head))
        connection.sendall(response(whole(1)))
    return arrived


def _check_end(process: "subprocess.Popen[str]") -> None:
    try:
        _, said = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise Failed(f"it still ran after {LIMIT_S} s") from None
    if process.returncode:
        raise Failed(last_line(said))
