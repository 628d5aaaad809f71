"""Programs with the `data` set run as they do elsewhere."""

from collections.abc import AsyncGenerator

import anyio
import pytest

from treadle.errors import SandboxError
from treadle.execution import Container, Containers, ToolSpec
from treadle.sandbox import isolated
from treadle.sandbox.ladder import probe
from treadle.sandbox.packages import find

if probe().rung is None:
    pytest.skip(f"no containers here: {probe().why}", allow_module_level=True)
try:
    find("data")
except SandboxError as error:
    pytest.skip(str(error), allow_module_level=True)

PROGRAMS = {
    "group and sort": (
        """
import pandas as pd
frame = pd.DataFrame({"region": ["W", "E", "W", "E"], "revenue": [10, 20, 30, 5]})
totals = frame.groupby("region")["revenue"].sum().sort_values(ascending=False)
print(totals.to_dict())
""",
        "{'W': 40, 'E': 25}\n",
    ),
    "merge, pivot and dates": (
        """
import pandas as pd
sales = pd.DataFrame({"day": pd.to_datetime(["2026-01-31", "2026-02-01", "2026-02-28"]), "item": [1, 2, 1]})
items = pd.DataFrame({"item": [1, 2], "price": [2.5, 4.0]})
merged = sales.merge(items, on="item").assign(month=lambda each: each["day"].dt.strftime("%Y-%m"))
print(merged.pivot_table(index="month", values="price", aggfunc="sum")["price"].round(2).to_dict())
""",
        "{'2026-01': 2.5, '2026-02': 6.5}\n",
    ),
    "what is missing": (
        """
import io
import pandas as pd
frame = pd.read_csv(io.StringIO("a,b\\n1,\\n2,x\\n,y"))
print(frame.isna().sum().to_dict(), frame.dropna().shape, frame["a"].fillna(0).astype(int).tolist())
""",
        "{'a': 1, 'b': 1} (1, 2) [1, 2, 0]\n",
    ),
    "numpy": (
        """
import numpy as np
draws = np.random.default_rng(7).normal(size=1000)
print(draws.shape, abs(draws.mean()) < 0.1, np.linalg.det(np.array([[2.0, 1.0], [1.0, 3.0]])).round(6))
""",
        "(1000,) True 5.0\n",
    ),
}


@pytest.fixture
async def container() -> AsyncGenerator[Container]:
    async with Containers(isolated(packages="data")) as containers:
        yield await containers.create("team")


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_program_prints_what_it_prints_elsewhere(name: str, container: Container) -> None:
    code, printed = PROGRAMS[name]
    with anyio.fail_after(60):
        result = await (await container.execute(code)).finished()

    assert result.stdout == printed, result.stderr


async def test_rows_of_a_tool_become_a_chart_and_a_workbook(container: Container) -> None:
    code = """
import matplotlib.pyplot as plt
import pandas as pd
frame = pd.DataFrame(await sales())
frame.plot.bar(x="region", y="revenue")
plt.savefig("out/chart.png")
frame.to_excel("out/sales.xlsx", index=False)
print(pd.read_excel("out/sales.xlsx")["revenue"].sum())
"""
    with anyio.fail_after(60):
        cell = await container.execute(code, tools=[ToolSpec("sales")])
        async for request in cell:
            await cell.answer(request.id, '[{"region": "W", "revenue": 40}, {"region": "E", "revenue": 25}]')

    assert cell.result.stdout == "65\n", cell.result.stderr
    files = {file.path: file.data for file in cell.result.files}
    assert files["out/chart.png"].startswith(b"\x89PNG")
    assert files["out/sales.xlsx"].startswith(b"PK")


async def test_numpy_draws_the_same_in_containers_of_one_seed_and_else_not() -> None:
    code = """
import numpy as np
print(np.random.random(), np.random.default_rng().random(), np.random.randint(10**9))
np.random.seed()
print(np.random.random(), np.random.RandomState().rand())
"""
    told: list[str] = []
    for seed in ("5eed" * 16, "5eed" * 16, None):
        async with Containers(isolated(packages="data")) as containers:
            container = await containers.create("team", seed=seed)
            told.append((await (await container.execute(code)).finished()).stdout)

    assert told[0] == told[1]
    assert len({*told[0].split(), *told[2].split()}) == 10
