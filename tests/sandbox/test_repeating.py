"""A container that is made once more with its seed draws the same, and no two others do."""

import hashlib
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from treadle.errors import InvalidArgument
from treadle.sandbox.container import Container
from treadle.sandbox.engine import Engine
from treadle.sandbox.ladder import probe
from treadle.sandbox.repeating import checked_seed, fingerprint

REPORT = probe()
pytestmark = pytest.mark.skipif(REPORT.rung is None, reason=f"no containers here: {REPORT.why}")

SEED = hashlib.sha256(b"a seed of the tests").hexdigest()
DRAWN = """
import json, os, random, secrets, tempfile, uuid
again = random.Random()
told = [
    random.random(), random.sample(range(1000), 9), again.random(), random.SystemRandom().random(),
    str(uuid.uuid4()), secrets.token_hex(8), secrets.randbelow(10**9), os.urandom(8).hex(),
    os.getrandom(8).hex(), os.path.basename(tempfile.mkdtemp()),
]
random.seed()
again.seed()
told += [random.random(), again.random()]
print(json.dumps(told))
"""
HASHED = """
import subprocess, sys
words = {str(number) * 3 for number in range(50)}
print(list(words), hash("a"), hash(b"b"), flush=True)
code = "print(list({str(number) * 3 for number in range(50)}), hash('a'), hash(b'b'))"
print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout, end="")
"""
FORKED = """
import json, os, random
reading, writing = os.pipe()

def tell():
    os.write(writing, json.dumps([os.urandom(8).hex(), random.random()]).encode() + b"\\n")

def in_a_child(work):
    if (pid := os.fork()) == 0:
        work()
        tell()
        os._exit(0)
    os.waitpid(pid, 0)

for _ in range(2):
    in_a_child(lambda: None)
in_a_child(lambda: in_a_child(lambda: None))
tell()
print(json.dumps([json.loads(line) for line in os.read(reading, 4096).splitlines()]))
"""
THREADS = """
import json, os, threading
drawn = []
threads = [threading.Thread(target=lambda: drawn.extend(os.urandom(8) for _ in range(500))) for _ in range(8)]
for each in threads: each.start()
for each in threads: each.join()
print(len(drawn), len(set(drawn)))
"""
REFUSED = """
import os
for size in (-1, 1.5, "1"):
    try:
        os.urandom(size)
    except (TypeError, ValueError) as error:
        print(type(error).__name__, error)
print(os.urandom(0), len(os.urandom(1)), len(os.urandom(True)))
large = os.urandom(1_000_000)
print(len(large), len(set(large)), large[:32] == large[32:64])
"""
SEARCHED = """
import re
first, rest = {first!r}, {rest!r}
found = 0
pattern = re.compile(b"[" + re.escape(first) + b"]" + re.escape(rest), re.DOTALL)
planted = {planted}
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", buffering=0) as memory:
    for line in maps:
        start, end = (int(each, 16) for each in line.split()[0].split("-"))
        if line.split()[1][0] == "r" and "[v" not in line:
            try:
                memory.seek(start)
                found += len(pattern.findall(memory.read(end - start)))
            except (OSError, OverflowError):
                pass
print(found > 0)
"""
"""Looks for bytes in the memory of its own process; the pattern itself is not what is found."""


@pytest.fixture
async def engine() -> AsyncGenerator[Engine]:
    async with Engine() as running:
        yield running


async def printed(container: Container, code: str) -> str:
    outcome = await container.execute(code)
    assert outcome.failure is None, outcome.stderr
    return outcome.stdout


async def drawn(engine: Engine, seed: str | None, code: str = DRAWN) -> list[Any]:
    async with await engine.make(seed=seed) as container:
        return json.loads(await printed(container, code))


async def test_containers_of_one_seed_draw_the_same_also_those_of_another_engine(engine: Engine) -> None:
    first, second = await drawn(engine, SEED), await drawn(engine, SEED.upper())
    async with Engine() as other:
        third = await drawn(other, SEED)

    assert first == second == third
    assert len(set(map(str, first))) == 12


async def test_containers_without_a_seed_draw_nothing_in_common(engine: Engine) -> None:
    told = [await drawn(engine, seed) for seed in (None, None, SEED)]

    for values in zip(*told, strict=True):
        assert len(set(map(str, values))) == 3


async def test_a_cell_goes_on_where_the_one_before_stopped(engine: Engine) -> None:
    async with await engine.make(seed=SEED) as container, await engine.make(seed=SEED) as other:
        told = [[await printed(each, DRAWN) for _ in range(2)] for each in (container, other)]

    assert told[0] == told[1]
    assert told[0][0] != told[0][1]


async def test_sets_have_one_order_in_all_containers_and_programs_that_these_start(engine: Engine) -> None:
    async with Engine() as other, await engine.make() as container, await other.make() as another:
        told = await printed(container, HASHED) + await printed(another, HASHED)

    assert len(told.splitlines()) == 4
    assert len(set(told.splitlines())) == 1


async def test_children_repeat_neither_their_parent_nor_each_other_but_those_of_the_seed(
    engine: Engine,
) -> None:
    told = await drawn(engine, SEED, FORKED)

    assert told == await drawn(engine, SEED, FORKED)
    assert len({values[0] for values in told}) == len({values[1] for values in told}) == len(told) == 5


async def test_threads_repeat_no_bytes(engine: Engine) -> None:
    async with await engine.make() as container:
        assert await printed(container, THREADS) == "4000 4000\n"


async def test_random_bytes_are_asked_for_as_ever(engine: Engine) -> None:
    async with await engine.make() as container:
        assert await printed(container, REFUSED) == (
            "ValueError negative argument not allowed\n"
            "TypeError 'float' object cannot be interpreted as an integer\n"
            "TypeError 'str' object cannot be interpreted as an integer\n"
            "b'' 1 1\n"
            "1000000 256 False\n"
        )


@pytest.mark.skipif(REPORT.name in ("3", "3b"), reason="without namespaces no code reads its own memory so")
async def test_no_container_finds_the_seed_of_another_in_its_memory(engine: Engine) -> None:
    async with await engine.make(seed=SEED), await engine.make() as later:
        for written in (SEED.encode("ascii"), bytes.fromhex(SEED)):
            halves = {"first": written[:1], "rest": written[1:]}
            assert await printed(later, SEARCHED.format(**halves, planted="None")) == "False\n"
            assert await printed(later, SEARCHED.format(**halves, planted="first + rest")) == "True\n"


@pytest.mark.parametrize("wrong", ["", "ab" * 31, "g" * 64, "ab" * 33, "ab" * 32 + "\n", b"ab" * 32, 7])
async def test_what_is_no_seed_is_refused_and_not_repeated_in_the_error(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="64 hexadecimal digits") as raised:
        await Engine().make(seed=wrong)

    assert not wrong or str(wrong) not in str(raised.value)


def test_a_new_seed_is_another_each_time() -> None:
    assert len({checked_seed(None) for _ in range(100)}) == 100
    assert checked_seed(checked_seed(None))


def test_a_fingerprint_tells_packages_and_kinds_of_paths_apart_but_no_two_paths() -> None:
    told = [fingerprint(packages, root) for packages in ("", "one", "two") for root in ("", "/tmp/a")]

    assert len(set(told)) == 6
    assert fingerprint("one", "/tmp/b") == fingerprint("one", "/tmp/a")


def test_a_fingerprint_tells_interpreters_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint("", "")
    monkeypatch.setattr("sys.version", "3.11.0 (of another build)")

    assert fingerprint("", "") != before
