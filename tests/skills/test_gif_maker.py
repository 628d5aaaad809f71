"""The skill `gif-maker` as plain Python: its modules, with no container around them."""

import runpy
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.skills.formats import gif_delays
from tests.skills.jobs import JOBS
from treadle.errors import SandboxError
from treadle.sandbox.packages import find

SKILL = JOBS["gif-maker"].skill
EASING: Mapping[str, Callable[..., float]] = runpy.run_path(str(SKILL / "core" / "easing.py"))
STEPS = [step / 500 for step in range(501)]
BEGIN = """
from core.gif_builder import GIFBuilder
from core.shapes import ball, canvas

def frames(count):
    for at in range(count):
        frame = canvas(60, 40)
        ball(frame, 10 + at, 20, 8, "navy")
        yield frame
"""


def python(folder: Path, code: str) -> str:
    """What `code` prints in `folder`, with the skill and pillow on its import path."""
    try:
        pillow = find("data").folder
    except SandboxError as error:
        pytest.skip(str(error))
    path = f"import sys; sys.dont_write_bytecode = True; sys.path[:0] = {[str(SKILL), pillow]!r}"
    ran = subprocess.run(
        [sys.executable, "-I", "-c", path + BEGIN + code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


@pytest.mark.parametrize("name", ["linear", "ease_in", "ease_out", "ease_in_out"])
def test_an_easing_goes_from_0_to_1_and_never_back(name: str) -> None:
    values = [EASING[name](step) for step in STEPS]

    assert (values[0], values[-1], values) == (0, 1, sorted(values))
    assert (EASING[name](-3), EASING[name](7)) == (0, 1)


def test_a_hop_ends_where_it_begins() -> None:
    assert [EASING["hop"](step) for step in (0, 0.25, 0.5, 0.75, 1)] == [0, 0.75, 1, 0.75, 0]


@settings(max_examples=25)
@given(st.integers(0, 8), st.floats(0.1, 0.9))
def test_what_is_dropped_bounces_as_often_as_is_said_each_time_lower(times: int, kept: float) -> None:
    heights = [EASING["bounce"](step / 4000, times=times, kept=kept) for step in range(4001)]

    assert (heights[0], heights[-1]) == (1, pytest.approx(0, abs=1e-9))
    assert min(heights) > -1e-9
    peaks = [
        here
        for before, here, after in zip(heights, heights[1:], heights[2:], strict=False)
        if before < here > after and here > 1e-3
    ]
    told = [kept ** (2 * count) for count in range(1, times + 1)]
    assert peaks == pytest.approx([peak for peak in told if peak > 1e-3], rel=0.05)


def test_what_never_ends_is_no_bounce() -> None:
    with pytest.raises(ValueError, match="kept between 0 and 1"):
        EASING["bounce"](0.5, kept=1)


@pytest.mark.parametrize(("fps", "delays"), [(20, [5] * 6), (30, [3, 4, 3, 3, 4, 3]), (0.5, [200] * 6)])
def test_a_gif_is_as_long_as_its_frames_together(tmp_path: Path, fps: float, delays: list[int]) -> None:
    printed = python(
        tmp_path,
        f"""
gif = GIFBuilder(60, 40, fps={fps})
for frame in frames(6):
    gif.add_frame(frame)
print(gif.save("deep/down.gif"), len(gif))
""",
    )

    data = (tmp_path / "deep" / "down.gif").read_bytes()
    assert gif_delays(data) == delays
    told: dict[str, Any] = {"path": "deep/down.gif", "frames": 6, "seconds": sum(delays) / 100}
    told["bytes"] = len(data)
    assert printed == f"Saved({', '.join(f'{name}={value!r}' for name, value in told.items())}) 6\n"


def test_frames_that_are_equal_are_one_and_it_is_shown_once_if_that_is_wanted(tmp_path: Path) -> None:
    printed = python(
        tmp_path,
        """
gif = GIFBuilder(60, 40, fps=10)
for frame in frames(2):
    gif.add_frame(frame)
    gif.add_frame(frame)
print(gif.save("once.gif", loop=False).frames, gif.save("again.gif").frames)
""",
    )

    once, again = ((tmp_path / name).read_bytes() for name in ("once.gif", "again.gif"))
    assert printed == "2 2\n"
    assert gif_delays(once) == gif_delays(again) == [20, 20]
    assert (b"NETSCAPE2.0" in once, b"NETSCAPE2.0" in again) == (False, True)


def test_what_cannot_be_is_said_with_what_to_do(tmp_path: Path) -> None:
    printed = python(
        tmp_path,
        """
full = GIFBuilder(60, 40)
full.add_frame(canvas(60, 40))
for asked in (
    lambda: GIFBuilder(0, 40),
    lambda: GIFBuilder(60, 40, fps=51),
    lambda: GIFBuilder(60, 40).save("empty.gif"),
    lambda: full.add_frame(canvas(61, 40)),
    lambda: full.save("a.png"),
    lambda: full.save("a.gif", colors=1),
    lambda: [full.add_frame(canvas(60, 40)) for _ in range(600)],
):
    try:
        asked()
    except ValueError as error:
        print(error)
""",
    )

    assert printed.splitlines() == [
        "width and height are 1 pixel or more, not 0 and 40",
        "fps is above 0 and at most 50, not 51",
        "there are no frames: call add_frame first",
        "a frame has (60, 40) pixels, not (61, 40): use frame.resize((60, 40))",
        "path ends with .gif, not '.png'",
        "colors are 2 to 256, not 1",
        "a GIF has at most 600 frames: lower fps, or make it shorter",
    ]
    assert list(tmp_path.iterdir()) == []
