"""Skills, code as a model writes it with each, and what must come of that."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_MADE = Path(__file__).parent / "made"
_EXAMPLES = Path(__file__).parents[2] / "examples" / "skills"


@dataclass(frozen=True)
class Job:
    """One thing to be done with a skill."""

    skill: Path
    """Its folder."""
    prompt: str
    code: str
    """Imports from the skill as if its folder were on the import path."""
    makes: Mapping[str, object]
    """All new files by their path: each as `formats.content` reads it."""


JOBS: Mapping[str, Job] = {
    "gif-maker": Job(
        _EXAMPLES / "gif-maker",
        "Create a bouncing ball GIF.",
        """
from core.easing import bounce
from core.gif_builder import GIFBuilder
from core.shapes import ball, canvas

gif = GIFBuilder(width=120, height=120, fps=20)
for at in range(20):
    frame = canvas(120, 120, "#202040")
    ball(frame, 20 + 4 * at, 105 - 90 * bounce(at / 19), 12, "orange")
    gif.add_frame(frame)
print(gif.save("bouncing_ball.gif"))
""",
        {"bouncing_ball.gif": [5] * 20},
    ),
    "word-report": Job(
        _MADE / "word-report",
        "Write a report on the sales in May, in Word.",
        """
from report.document import Report

report = Report("Sales in May")
report.section("Summary", "The north sold most.")
report.table([["Region", "Sold"], ["North", 12]])
report.save("sales.docx")
""",
        {"sales.docx": ["Sales in May", "Summary", "The north sold most.", "Region", "Sold", "North", "12"]},
    ),
    "spreadsheet": Job(
        _MADE / "spreadsheet",
        "Put the sales into a spreadsheet.",
        """
from sheet.workbook import write

write("sales.xlsx", "Sales", [["Region", "Sold"], ["North", 12], ["South", 7]])
""",
        {"sales.xlsx": ["Region", "Sold", "North", "12", "South", "7", "=SUM(B2:B3)"]},
    ),
    "slides": Job(
        _MADE / "slides",
        "Make slides for the board, in the folder out.",
        """
import os

from deck.presentation import Deck

os.makedirs("out", exist_ok=True)
deck = Deck("Sales in May", "For the board")
deck.slide("Regions", ["North: 12", "South: 7"])
deck.save("out/sales.pptx")
""",
        {"out/sales.pptx": [["Sales in May", "For the board"], ["Regions", "North: 12", "South: 7"]]},
    ),
    "chart": Job(
        _MADE / "chart",
        "Draw a chart of the sales.",
        """
from core.bars import bars

bars("sales.png", {"North": 12, "South": 7}, title="Sales in May")
""",
        {"sales.png": (600, 400)},
    ),
    "bundle": Job(
        _MADE / "bundle",
        "Pack the notes, with a list of them.",
        """
from bundler.pack import pack

pack("notes.zip", {"a.txt": "first", "b/ü.txt": "sécond"})
""",
        {
            "contents/notes.txt": "a.txt 5\nb/ü.txt 7\n",
            "notes.zip": {"a.txt": b"first", "b/ü.txt": "sécond".encode()},
        },
    ),
}
