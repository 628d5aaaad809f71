"""A bar chart; the package has the name of that of `gif-maker`, as the packages of many skills do."""

from collections.abc import Mapping

from matplotlib.figure import Figure


def bars(path: str, values: Mapping[str, float], *, title: str = "") -> None:
    figure = Figure(figsize=(6, 4), dpi=100)
    axes = figure.subplots()
    axes.bar(list(values), list(values.values()))
    axes.set_title(title)
    figure.savefig(path)
