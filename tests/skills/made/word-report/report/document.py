"""A Word document, written from top to bottom."""

from collections.abc import Sequence

from docx import Document


class Report:
    def __init__(self, title: str) -> None:
        self._document = Document()
        self._document.add_heading(title, level=0)

    def section(self, heading: str, *paragraphs: str) -> None:
        self._document.add_heading(heading, level=1)
        for text in paragraphs:
            self._document.add_paragraph(text)

    def table(self, rows: Sequence[Sequence[object]]) -> None:
        table = self._document.add_table(rows=0, cols=len(rows[0]), style="Table Grid")
        for row in rows:
            for cell, value in zip(table.add_row().cells, row, strict=True):
                cell.text = str(value)

    def save(self, path: str) -> None:
        self._document.save(path)
