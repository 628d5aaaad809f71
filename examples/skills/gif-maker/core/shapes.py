"""Pictures to begin with, and shapes with smooth edges, which pillow alone does not draw."""

from PIL import Image, ImageColor, ImageDraw

_FINER = 4
"""A shape is drawn so many times larger, and made smaller."""


def canvas(width: int, height: int, color: str = "white") -> Image.Image:
    """A frame of one color; `color` is a name or `#rrggbb`."""
    return Image.new("RGB", (width, height), color)


def ball(frame: Image.Image, x: float, y: float, radius: float, color: str, *, squash: float = 1.0) -> None:
    """Draw a ball on `frame`, in pixels from its upper left corner.

    Args:
        frame: is drawn on.
        x: of the center.
        y: of the center; what is squashed stands as low as what is not.
        radius: of the ball.
        color: a name or `#rrggbb`.
        squash: its height, as a part of what it is else; it becomes wider by as much.
    """
    wide, high = radius / squash, radius * squash
    left, top = x - wide, y + radius - 2 * high
    corner = int(left) - 1, int(top) - 1
    size = int(2 * wide) + 4, int(2 * high) + 4
    mask = Image.new("L", (size[0] * _FINER, size[1] * _FINER))
    box = (left - corner[0], top - corner[1], left - corner[0] + 2 * wide, top - corner[1] + 2 * high)
    ImageDraw.Draw(mask).ellipse([side * _FINER for side in box], fill=255)
    frame.paste(ImageColor.getrgb(color), corner, mask.resize(size, Image.Resampling.BOX))
