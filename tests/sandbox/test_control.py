"""What the host makes of a PID 1 that says nothing, too much, or nonsense."""

import asyncio
import json
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from treadle.errors import SandboxError
from treadle.sandbox.control import Broken, Control, Steps
from treadle.sandbox.files import Files

ENTRY = ["a", "file", 1, 2, 3, 4, 1, ""]


@dataclass
class Inside:
    """A PID 1 that gives these answers, one for each question; then none."""

    answers: Sequence[tuple[Mapping[str, Any], bytes]]
    asked: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    ended: list[str] = field(default_factory=list[str])

    def files(self, deadline_s: float = 5) -> Files:
        self.steps = Steps(self._send, self._end, deadline_s)
        return Files(self.steps)

    def _send(self, message: Mapping[str, Any], payload: bytes) -> None:
        self.asked.append(message)
        if len(self.asked) <= len(self.answers):
            answer, behind = self.answers[len(self.asked) - 1]
            reply = {"serial": message["serial"], **answer}
            asyncio.get_running_loop().call_soon(self.steps.heard, reply, behind)

    def _end(self, message: str, reason: str) -> SandboxError:
        self.ended.append(reason)
        return SandboxError(message)


def page(*entries: object, more: bool = False) -> tuple[Mapping[str, Any], bytes]:
    return {"more": more, "entries": list(entries), "cut": False}, b""


def entry(**changed: object) -> list[object]:
    names = ("path", "kind", "size", "mtime", "ctime", "inode", "links", "unfit")
    return [changed.get(name, value) for name, value in zip(names, ENTRY, strict=True)]


@pytest.mark.parametrize(
    "answer",
    [
        ({"more": False}, b""),
        ({"more": False, "entries": "a"}, b""),
        ({"more": False, "error": 5}, b""),
        page("a"),
        page([]),
        page(entry(path="../a")),
        page(entry(path="/a")),
        page(entry(path="a//b")),
        page(entry(path="a/./b")),
        page(entry(path="")),
        page(entry(path="a\0b")),
        page(entry(path="\udcff")),
        page(entry(path="a" * 5000)),
        page(entry(size=1 << 200)),
        page(entry(mtime="1")),
        page(entry(inode=1.5)),
        page(entry(unfit=None)),
        page(*[ENTRY] * 10_001),
    ],
)
async def test_a_page_that_says_nonsense_ends_the_container(answer: tuple[Mapping[str, Any], bytes]) -> None:
    inside = Inside([answer])

    with pytest.raises(SandboxError, match="broke the protocol"):
        await inside.files().listing("/workspace")

    assert inside.ended == ["violation"]


@pytest.mark.parametrize(
    "answers",
    [
        [({"more": False}, b"12345")],
        [({"more": True}, b"123"), ({"more": False}, b"45")],
        [({"more": True}, b"")],
    ],
)
async def test_a_file_that_is_more_than_asked_for_ends_the_container(
    answers: Sequence[tuple[Mapping[str, Any], bytes]],
) -> None:
    inside = Inside(answers)

    with pytest.raises(SandboxError, match="broke the protocol"):
        await inside.files().get("a", 4)

    assert inside.ended == ["violation"]


async def test_a_pid_1_that_does_not_answer_ends_the_container() -> None:
    inside = Inside([page(ENTRY, more=True)])

    with pytest.raises(SandboxError, match=r"did not answer within 0.05 s"):
        await inside.files(0.05).listing("/workspace")

    assert inside.ended == ["timeout"]
    assert [each["do"] for each in inside.asked] == ["walk", "more", "stop"]


async def test_a_late_answer_is_not_taken_for_that_of_the_next_question() -> None:
    inside = Inside([])
    files = inside.files()
    with anyio.move_on_after(0.05):
        await files.get("a", 10)
    late = inside.asked[0]["serial"]

    got: list[bytes] = []

    async def get() -> None:
        got.append(await files.get("b", 10))

    async with anyio.create_task_group() as group:
        group.start_soon(get)
        while len(inside.asked) < 3:
            await anyio.lowlevel.checkpoint()
        inside.steps.heard({"serial": late, "more": False}, b"late")
        inside.steps.heard({"serial": inside.asked[-1]["serial"], "more": False}, b"right")

    assert [each["do"] for each in inside.asked] == ["read", "stop", "read"]
    assert got == [b"right"]


async def test_a_reason_is_cut_and_may_quote_anything() -> None:
    inside = Inside([({"more": False, "error": "\udcff" + "x" * 100_000}, b"")])

    with pytest.raises(SandboxError) as refused:
        await inside.files().get("a", 4)

    assert "\\udcff" in str(refused.value)
    assert len(str(refused.value)) < 3_000
    assert inside.ended == []


def framed(body: bytes, behind: bytes = b"") -> bytes:
    return struct.pack(">I", len(body)) + body + behind


async def heard(data: bytes) -> list[tuple[Mapping[str, Any], bytes]]:
    ours, theirs = await _pair()
    theirs.write(data)
    theirs.close()
    found: list[tuple[Mapping[str, Any], bytes]] = []
    try:
        while True:
            found.append(await ours.hear())
    except asyncio.IncompleteReadError:
        return found
    finally:
        ours.close()


async def _pair() -> tuple[Control, asyncio.StreamWriter]:
    left, right = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=right)
    return Control(*await asyncio.open_connection(sock=left)), writer


async def test_messages_and_what_is_behind_them_are_told_apart() -> None:
    first, second = {"op": "files", "size": 3}, {"op": "over"}

    found = await heard(framed(json.dumps(first).encode(), b"abc") + framed(json.dumps(second).encode()))

    assert found == [(first, b"abc"), (second, b"")]


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", (1 << 20) + 1),
        framed(b"{"),
        framed(b"\xff"),
        framed(b"[]"),
        framed(b"[" * 100_000),
        framed(b'{"size": -1}'),
        framed(b'{"size": 65537}'),
        framed(b'{"size": "1"}'),
        framed(b'{"size": 1.0}'),
    ],
)
async def test_what_is_no_message_is_told(data: bytes) -> None:
    with pytest.raises(Broken):
        await heard(data)
