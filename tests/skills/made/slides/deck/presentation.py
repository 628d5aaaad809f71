"""A presentation: a title, then slides with points."""

from collections.abc import Sequence

from pptx import Presentation

TITLE, POINTS = 0, 1
"""Layouts of the template that comes with python-pptx."""


class Deck:
    def __init__(self, title: str, subtitle: str = "") -> None:
        self._presentation = Presentation()
        self._add(TITLE, title, subtitle)

    def slide(self, title: str, points: Sequence[str]) -> None:
        self._add(POINTS, title, "\n".join(points))

    def _add(self, layout: int, title: str, text: str) -> None:
        slide = self._presentation.slides.add_slide(self._presentation.slide_layouts[layout])
        slide.shapes.title.text = title
        slide.placeholders[1].text = text

    def save(self, path: str) -> None:
        self._presentation.save(path)
