"""The code says when it waits for calls and goes on by itself no more: once, and after the last of them."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import anyio
import pytest

from tests.sandbox.test_container import FORGE
from treadle.sandbox.bridge.frames import Call
from treadle.sandbox.container import Container, ContainerDied, Outcome
from treadle.sandbox.engine import Engine
from treadle.sandbox.ladder import probe

REPORT = probe()
pytestmark = pytest.mark.skipif(REPORT.rung is None, reason=f"no containers here: {REPORT.why}")
SETTLED_S = 0.1
"""After which the code would have said what it has to say."""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def engine() -> AsyncGenerator[Engine]:
    async with Engine() as running:
        yield running


@pytest.fixture
async def container(engine: Engine) -> AsyncGenerator[Container]:
    async with await engine.make() as made:
        yield made


@dataclass
class Listener:
    """Answers a call when the code waits after it, and the oldest first; so that it hears all there is."""

    patience_s: float = 5.0
    heard: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    open: list[asyncio.Event] = field(default_factory=list[asyncio.Event])

    async def answer(self, call: Call) -> object:
        said = asyncio.Event()
        self.open.append(said)
        with anyio.move_on_after(self.patience_s):
            await said.wait()
        return call.arguments

    def hear(self, calls: int, answers: int) -> None:
        self.heard.append((calls, answers))
        asyncio.get_running_loop().call_soon(self._let_go)

    def _let_go(self) -> None:
        if self.open:
            self.open.pop(0).set()

    async def run(self, container: Container, code: str) -> Outcome:
        with anyio.fail_after(15):
            outcome = await container.execute(
                f"import asyncio, threading, time\n{code}",
                tools=["ask"],
                on_call=self.answer,
                on_idle=self.hear,
            )
        assert outcome.failure is None, outcome.failure
        return outcome


SAID = {
    "one call": ("await ask()", [(1, 0)]),
    "one after another": ("for n in range(3): await ask()", [(1, 0), (2, 1), (3, 2)]),
    "without a loop": ("for n in range(3): ask.sync()", [(1, 0), (2, 1), (3, 2)]),
    "gathered": ("await asyncio.gather(*(ask() for n in range(3)))", [(3, 0), (3, 1), (3, 2)]),
    "as they are answered": (
        "for each in asyncio.as_completed([ask() for n in range(3)]): await each",
        [(3, 0), (3, 1), (3, 2)],
    ),
    "the first of several, and then another": (
        "tasks = [asyncio.ensure_future(ask()) for n in range(2)]\n"
        "await asyncio.wait(tasks, return_when='FIRST_COMPLETED')\nawait ask()\nawait asyncio.wait(tasks)",
        [(2, 0), (3, 1), (3, 2)],
    ),
    "some turns of the loop apart": (
        "async def later(turns):\n    for n in range(turns): await asyncio.sleep(0)\n    await ask()\n"
        "await asyncio.gather(*(later(turns) for turns in (0, 20, 5)))",
        [(3, 0), (3, 1), (3, 2)],
    ),
    "tasks in tasks": (
        "async def nest(depth):\n    if depth: await asyncio.ensure_future(nest(depth - 1))\n"
        "    await ask()\nawait asyncio.gather(nest(0), nest(1))",
        [(2, 0), (2, 1), (3, 2)],
    ),
    "a timer is still to come": (
        "async def later():\n    await asyncio.sleep(0.3)\n    await ask()\n"
        "await asyncio.gather(ask(), later())",
        [(1, 0), (2, 1)],
    ),
    "a loop of its own": ("async def main(): await ask()\nasyncio.run(main())\nasyncio.run(main())", None),
    "in a task, and without a loop": (
        "async def both():\n    waits = asyncio.ensure_future(ask())\n    await asyncio.sleep(0)\n"
        "    ask.sync()\n    await waits\nawait both()",
        [(2, 0), (2, 1)],
    ),
    "a call that is given up": (
        "waits = asyncio.ensure_future(ask())\nawait asyncio.sleep(0)\nwaits.cancel()\nawait ask()",
        [(2, 0), (2, 1)],
    ),
}


@pytest.mark.parametrize(("code", "said"), SAID.values(), ids=SAID)
async def test_the_code_says_that_it_waits(
    code: str, said: list[tuple[int, int]] | None, container: Container
) -> None:
    listener = Listener()
    for _ in range(2):  # the counts are of a cell
        listener.heard.clear()
        await listener.run(container, code)

        assert listener.heard == (said or [(1, 0), (2, 1)])


async def test_of_a_hundred_gathered_calls_it_is_said_once_after_the_last(container: Container) -> None:
    listener = Listener()
    for _ in range(20):
        listener.heard.clear()
        await listener.run(container, "await asyncio.gather(*(ask(n=n) for n in range(100)))")

        assert listener.heard[0] == (100, 0)
        assert listener.heard == sorted(set(listener.heard))


THREADS = {
    "another computes, and calls then": "def work():\n    time.sleep(0.3)\n    ask.sync()\n"
    "other = threading.Thread(target=work)\nother.start()\nawait ask()\nother.join()",
    "two loops": "def work(): asyncio.run(ask())\nother = threading.Thread(target=work)\n"
    "other.start()\nawait ask()\nother.join()",
    "in a pool": "await asyncio.gather(*(asyncio.to_thread(ask.sync) for n in range(3)), ask())",
    "a loop in a loop": "async def main(): await ask()\nawait asyncio.sleep(0)\nasyncio.run(main())",
}


@pytest.mark.parametrize("code", THREADS.values(), ids=THREADS)
async def test_with_other_threads_nothing_is_said(code: str, container: Container) -> None:
    listener = Listener(SETTLED_S)

    await listener.run(container, code)

    assert listener.heard == []


async def test_of_a_loop_that_always_has_something_to_do_nothing_is_said(container: Container) -> None:
    listener = Listener(SETTLED_S)
    code = "waits = asyncio.ensure_future(ask())\nwhile not waits.done(): await asyncio.sleep(0)"

    await listener.run(container, code)

    assert listener.heard == []


async def test_a_task_of_an_earlier_cell_is_heard_in_the_later(container: Container) -> None:
    listener = Listener()
    begun = "async def later():\n    while not go: await asyncio.sleep(0.01)\n    return await ask(a=1)\n"
    await listener.run(container, f"go = []\n{begun}left = asyncio.ensure_future(later())\nawait ask()")
    listener.heard.clear()

    outcome = await listener.run(container, "go.append(1)\nprint(await left, await ask())")

    assert outcome.stdout == "{'a': 1} {}\n"
    assert listener.heard == [(1, 0), (2, 1)]


async def test_what_waits_when_its_cell_is_interrupted_does_not_speak_for_the_next(
    container: Container,
) -> None:
    waits = "import asyncio\nwaits = asyncio.ensure_future(ask())\nwhile True: await asyncio.sleep(0)"
    listener = Listener()
    for _ in range(10):
        with anyio.move_on_after(0.05):
            await container.execute(waits, tools=["ask"], on_call=Listener().answer, on_idle=listener.hear)
        listener.heard.clear()
        await listener.run(container, "await asyncio.sleep(0)\nawait asyncio.gather(ask(), ask())")

        assert listener.heard == [(2, 0), (2, 1)]


async def test_where_nobody_wants_to_know_nothing_is_said(container: Container) -> None:
    async def echo(call: Call) -> object:
        await anyio.sleep(SETTLED_S)
        return call.arguments

    outcome = await container.execute(
        "import asyncio\nprint(await asyncio.gather(echo(), echo()))", tools=["echo"], on_call=echo
    )

    assert outcome.stdout == "[{}, {}]\n"  # to say so would end the container


FORGED = {
    "without a call": ["idle(1, 0)"],
    "twice": ["call(1)", "idle(1, 0)", "idle(1, 0)"],
    "of more calls than there were": ["call(1)", "idle(2, 0)"],
    "of more answers than calls": ["call(1)", "idle(1, 2)"],
    "back": ["call(1)", "call(2)", "idle(2, 1)", "idle(1, 1)"],
    "no number": ["call(1)", "idle(1, True)"],
    "a flood": ["call(1)", "call(2)", *(["idle(2, 0)", "idle(2, 1)", "idle(2, 2)"] * 100)],
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
async def test_what_the_code_would_never_say_of_its_waiting_ends_the_container(
    forged: list[str], container: Container
) -> None:
    known = (
        f"{FORGE}\ndef call(n): forge({{'t': 'call', 'id': n, 'name': 'ask', 'args': {{}}}})\n"
        "def idle(n, m): forge({'t': 'idle', 'calls': n, 'answers': m})\n"
    )
    with pytest.raises(ContainerDied, match=r"that it waits after|nothing known"):
        await Listener().run(container, "\n".join([known, *forged, "time.sleep(10)"]))


async def test_to_say_it_where_nobody_asked_ends_the_container(container: Container) -> None:
    code = f"{FORGE}\nforge({{'t': 'idle', 'calls': 1, 'answers': 0}})\ntime.sleep(10)"
    with pytest.raises(ContainerDied, match="that it waits after 1 calls"):
        await container.execute(code)
