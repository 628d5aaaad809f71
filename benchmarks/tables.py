"""Tables on the terminal: a name, then numbers."""

from collections.abc import Sequence

NAME_WIDTH = 46
WIDTH = 12


def title(name: str, *columns: str) -> None:
    """An empty line, and the head of a table."""
    print(f"\n{name:{NAME_WIDTH}}" + "".join(f"{column:>{WIDTH}}" for column in columns))


def row(name: str, values: Sequence[float | None], *, decimals: int = 2) -> None:
    """A line of the table; what is not known is a dash."""
    cells = ("-" if value is None else f"{value:,.{decimals}f}" for value in values)
    print(f"{name:{NAME_WIDTH}}" + "".join(f"{cell:>{WIDTH}}" for cell in cells))


def ratio(value: float, unit: float | None) -> float | None:
    """`value` in units of `unit`, where that was measured."""
    return value / unit if unit else None
