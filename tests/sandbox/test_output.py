"""What code prints, as the host keeps it and tells it."""

import anyio
import pytest

from treadle.sandbox.output import MAX_UNTOLD_BYTES, Kept, Live, Output

TEXT = "aé€😀" * 50


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
async def test_chunks_are_whole_characters_wherever_they_are_cut(size: int) -> None:
    told: list[str] = []

    async def listen(name: str, text: str) -> None:
        told.append(text)

    live = Live(listen)
    data = TEXT.encode()
    for at in range(0, len(data), size):
        live.add("stdout", data[at : at + size])
        if at % 5 == 0:
            await anyio.lowlevel.checkpoint()
    await live.close()

    assert "".join(told) == TEXT


async def test_what_is_no_utf_8_is_replaced_and_half_a_character_told_at_the_end() -> None:
    told: list[tuple[str, str]] = []

    async def listen(name: str, text: str) -> None:
        told.append((name, text))

    live = Live(listen)
    live.add("stdout", b"a\xff\xe2\x82")
    live.add("stderr", b"\xe2")
    await anyio.sleep(0.01)
    early = list(told)
    await live.close()

    assert early == [("stdout", "a�")]
    assert told[1:] == [("stdout", "�"), ("stderr", "�")]


async def test_a_flood_between_two_chunks_takes_no_more_than_its_share() -> None:
    told: list[str] = []

    async def listen(name: str, text: str) -> None:
        told.append(text)

    live = Live(listen)
    for _ in range(1000):
        live.add("stdout", b"x" * 10_000)
    await live.close()

    assert len("".join(told)) < MAX_UNTOLD_BYTES * 1.25 + 100
    assert told[0].endswith("x" * 100)
    assert f"\n[{10_000_000 - MAX_UNTOLD_BYTES * 5 // 4} bytes left out]\n" in told[0]


def test_small_and_large_pieces_are_kept_alike() -> None:
    data = bytes(range(256)) * 10
    for size in (1, 7, 100, 5000):
        kept = Kept(100, 30)
        for at in range(0, len(data), size):
            kept.add(data[at : at + size])

        assert kept.take() == (data[:100], len(data) - 130, data[-30:])
        assert kept.take() == (b"", 0, b"")


def test_what_was_taken_does_not_come_again() -> None:
    output = Output("stdout", 10, 4)
    output.data_received(b"12345678901234567890")

    assert output.take() == ("1234567890\n[6 bytes left out]\n7890", True)
    output.data_received(b"on")
    assert output.take() == ("on", False)
