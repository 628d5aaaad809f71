"""Frames in, an animated GIF out."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from PIL import Image

MAX_FRAMES = 600
MAX_FPS = 50
"""A GIF counts in hundredths of a second, and viewers slow down what is shown for less than two."""
_LOOKED_AT = 16
"""Frames that the colors are chosen from."""
_THUMB = 96


@dataclass(frozen=True)
class Saved:
    """What was written."""

    path: str
    frames: int
    """In the file, where equal ones in a row are one."""
    seconds: float
    bytes: int


class GIFBuilder:
    """Collects frames of one size and saves them as an animated GIF."""

    def __init__(self, width: int = 320, height: int = 240, fps: float = 20) -> None:
        if width < 1 or height < 1:
            raise ValueError(f"width and height are 1 pixel or more, not {width} and {height}")
        if not 0 < fps <= MAX_FPS:
            raise ValueError(f"fps is above 0 and at most {MAX_FPS}, not {fps}")
        self.size = (width, height)
        self.fps = fps
        self._frames: list[Image.Image] = []

    def __len__(self) -> int:
        return len(self._frames)

    def add_frame(self, frame: Image.Image) -> None:
        """Take a picture as the next frame; it may be drawn on again afterwards.

        Raises:
            ValueError: it has another size, or there are too many.
        """
        if frame.size != self.size:
            raise ValueError(
                f"a frame has {self.size} pixels, not {frame.size}: use frame.resize({self.size})"
            )
        if len(self) == MAX_FRAMES:
            raise ValueError(f"a GIF has at most {MAX_FRAMES} frames: lower fps, or make it shorter")
        self._frames.append(frame.convert("RGB") if frame.mode != "RGB" else frame.copy())

    def save(self, path: str, *, colors: int = 128, loop: bool = True) -> Saved:
        """Write the GIF, and the folders that lead to it.

        Args:
            path: ends with `.gif`.
            colors: at most so many, 2 to 256, the same for all frames: so what stands still does not flicker.
            loop: whether it begins again, for ever.

        Raises:
            ValueError: there are no frames, or an argument is wrong.
        """
        if not self._frames:
            raise ValueError("there are no frames: call add_frame first")
        if not 2 <= colors <= 256:
            raise ValueError(f"colors are 2 to 256, not {colors}")
        target = Path(path)
        if target.suffix.lower() != ".gif":
            raise ValueError(f"path ends with .gif, not {target.suffix!r}")
        target.parent.mkdir(parents=True, exist_ok=True)
        palette = _overview(self._frames).quantize(colors)
        first, *others = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in self._frames]
        durations = _durations_ms(len(self), self.fps)
        again = 0 if loop else None
        first.save(target, save_all=True, append_images=others, duration=durations, disposal=1, loop=again)
        with Image.open(target) as written:
            frames = getattr(written, "n_frames", 1)
        return Saved(path, frames, sum(durations) / 1000, target.stat().st_size)


def _overview(frames: Sequence[Image.Image]) -> Image.Image:
    """Small copies of some of the frames, side by side."""
    step = max(1, len(frames) // _LOOKED_AT)
    chosen = frames[::step][:_LOOKED_AT]
    strip = Image.new("RGB", (_THUMB * len(chosen), _THUMB))
    for at, frame in enumerate(chosen):
        strip.paste(frame.resize((_THUMB, _THUMB), Image.Resampling.NEAREST), (at * _THUMB, 0))
    return strip


def _durations_ms(count: int, fps: float) -> list[int]:
    """How long each frame is shown, in whole hundredths of a second: together as long as `count / fps`."""
    ends = [round(100 * at / fps) for at in range(count + 1)]
    return [10 * (end - begin) for begin, end in pairwise(ends)]
