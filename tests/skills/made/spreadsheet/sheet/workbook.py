"""A workbook of one sheet."""

from collections.abc import Sequence

from openpyxl import Workbook
from openpyxl.styles import Font
from openpyxl.utils import get_column_letter


def write(path: str, title: str, rows: Sequence[Sequence[object]]) -> None:
    book = Workbook()
    sheet = book.active
    sheet.title = title
    for row in rows:
        sheet.append(list(row))
    for cell in sheet[1]:
        cell.font = Font(bold=True)
    for column, value in enumerate(rows[-1], start=1):
        if isinstance(value, int | float):
            letter = get_column_letter(column)
            sheet[f"{letter}{len(rows) + 1}"] = f"=SUM({letter}2:{letter}{len(rows)})"
    book.save(path)
