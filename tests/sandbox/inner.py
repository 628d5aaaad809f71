"""draft"""

import os, sys, re, secrets, socket, pytest
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from tests.sandbox.laboratory import *
from tests.sandbox.test_attacks import KNOWN_RESULTS, SHARED, REPOSITORY
from treadle.sandbox.box import ENVIRONMENT
from treadle.sandbox.container import ContainerDied
from treadle.sandbox.engine import Engine


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
async def laboratory(tmp_path_factory):
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
            "SECRET_HALF": secret,
            "SOCKET": str(canary / "socket"),
        }
        async with AsyncExitStack() as stack:
            engine = await stack.enter_async_context(Engine())
            print("RUNG", engine.rung)
            yield Laboratory(canary, known, stack)


OWN = [pytest.param(Attack.read(p, shared=True), id=p.stem) for p in sorted(ATTACKS.glob("[a-z]*.py"))]


@pytest.mark.parametrize("attack", OWN)
async def test_own(laboratory, attack):
    await check(laboratory, attack)


@pytest.mark.parametrize("number", KNOWN_RESULTS)
async def test_shared(laboratory, number):
    expected = KNOWN_RESULTS[number]
    (path,) = SHARED.glob(f"{number}_*.py")
    code = path.read_text("utf-8")
    if number == "07":
        code = code.replace('"err":None', '"error":None')
    async with laboratory.surroundings(replace(DEFAULTS, memory_mib=expected.memory_mib)) as around:
        container = await around.container()
        legal = await laboratory.run(container, expected.legal)
        assert legal.failure is None, legal.stderr
        outcome = await laboratory.try_to_run(container, code, expected.limit_s)
        if isinstance(outcome, ContainerDied):
            wanted = re.fullmatch(r"(?:.*\|)?dies (\w+)(?:: (.*))?", expected.verdict)
            assert wanted, str(outcome)
            assert (outcome.reason, (wanted[2] or "") in str(outcome)) == (wanted[1], True)
            return
        assert came_to(outcome) in expected.verdict.split("|"), outcome.stderr
        assert re.fullmatch(expected.printed, outcome.stdout), outcome.stdout
        if number not in {"01", "23"}:
            legal = await laboratory.run(container, expected.legal)
            assert legal.failure is None
        if number in {"12", "13"}:
            collected = await container.collect()
            assert collected.files == []
            assert {each.reason for each in collected.skipped} <= {"it is a link", "it is a socket"}
