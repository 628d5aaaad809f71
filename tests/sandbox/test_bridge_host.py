"""The host's end of the bridge: held back, flooded, and unread."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import anyio
import pytest

from treadle.sandbox.bridge.frames import Call, Ready, Said, Violation, frame
from treadle.sandbox.bridge.host import Bridge


@dataclass
class Ends:
    """A bridge, and the socket of the guest."""

    guest: socket.socket
    said: list[Said] = field(default_factory=list[Said])
    gone: list[str | None] = field(default_factory=list[str | None])
    hold_at: int | None = None
    """After how many frames it is held."""

    def __post_init__(self) -> None:
        self.bridge = Bridge(self._hear, self.gone.append)

    def _hear(self, said: Said) -> None:
        if said == Ready():
            raise Violation("not now")
        self.said.append(said)
        if self.hold_at and len(self.said) % self.hold_at == 0:
            self.bridge.hold()


@pytest.fixture
async def ends() -> AsyncGenerator[Ends]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        ends = Ends(theirs)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: ends.bridge, ours)
        yield ends
        ends.bridge.close()
        await anyio.sleep(0.01)


def calls(count: int) -> bytes:
    return b"".join(frame({"t": "call", "id": n, "name": "x", "args": {}}) for n in range(1, count + 1))


async def test_a_bridge_that_is_held_hands_on_nothing_of_what_came_at_once(ends: Ends) -> None:
    ends.hold_at = 3
    ends.guest.send(calls(10))
    await anyio.sleep(0.02)
    at_first = len(ends.said)
    for _ in range(5):
        ends.bridge.go_on()
        await anyio.sleep(0.01)

    assert at_first == 3
    assert [each.id for each in ends.said if isinstance(each, Call)] == list(range(1, 11))


async def test_a_bridge_that_is_held_makes_the_guest_wait(ends: Ends) -> None:
    ends.bridge.hold()
    sent = 0
    with pytest.raises(BlockingIOError):  # noqa: PT012  it is the last one that fails
        for _ in range(100):
            sent += ends.guest.send(calls(1000))
    await anyio.sleep(0.02)

    assert ends.said == []
    ends.bridge.go_on()
    await anyio.sleep(0.1)
    assert len(ends.said) > 100


async def test_nothing_is_heard_after_a_violation(ends: Ends) -> None:
    one = frame({"t": "call", "id": 1, "name": "x", "args": {}})
    ends.guest.send(one + frame({"t": "ready"}) + one)
    await anyio.sleep(0.01)
    ends.bridge.data_received(one)
    ends.bridge.go_on()

    assert ends.said == [Call(1, "x", {})]
    assert ends.gone[0] == "not now"


async def test_frames_are_made_when_they_can_be_written_and_not_before(ends: Ends) -> None:
    made: list[int] = []

    def make(number: int) -> bytes:
        made.append(number)
        return frame({"t": "ret", "id": number, "value": "x" * 1_000_000})

    data, at_first = bytearray(), list[int]()
    async with anyio.create_task_group() as group:
        for number in range(1, 21):
            group.start_soon(ends.bridge.send, lambda number=number: make(number))
        await anyio.sleep(0.05)
        at_first += made
        with anyio.fail_after(10):
            while len(data) < 20_000_000:
                data += await asyncio.get_running_loop().sock_recv(ends.guest, 1 << 20)

    assert len(at_first) <= 2
    assert made == list(range(1, 21))
    (size,) = struct.unpack_from(">I", data)
    assert json.loads(data[4 : 4 + size])["id"] == 1


async def test_who_waits_to_write_when_the_guest_goes_waits_no_longer(ends: Ends) -> None:
    big = frame({"t": "ret", "id": 1, "value": "x" * 1_000_000})
    with anyio.fail_after(2):
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(ends.bridge.send, lambda: big)
            await anyio.sleep(0.05)
            ends.guest.close()

    assert ends.gone == [None]


async def test_a_frame_that_cannot_be_made_does_not_hold_up_the_next(ends: Ends) -> None:
    def fail() -> bytes:
        raise ValueError("no frame")

    with pytest.raises(ValueError, match="no frame"):
        await ends.bridge.send(fail)
    await ends.bridge.send(lambda: b"next")

    assert ends.guest.recv(10) == b"next"
