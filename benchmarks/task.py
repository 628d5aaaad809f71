"""The task of 20 regions; imports the standard library only, as the server that plays the model does."""

from random import Random

REGIONS = tuple(f"region-{number}" for number in range(20))
MONTHS = tuple(f"2026-{month:02}" for month in range(1, 13))
PRODUCTS = ("anvil", "bellows", "crucible", "drawplate")

CODE = f"""\
import asyncio
regions = {list(REGIONS)}
found = await asyncio.gather(*[sales(region=region) for region in regions])
totals = {{region: sum(row["revenue"] for row in rows) for region, rows in zip(regions, found)}}
for region in sorted(totals, key=totals.get, reverse=True)[:3]:
    print(region, round(totals[region], 2))
"""

ONE_BY_ONE = f"""\
totals = {{}}
for region in {list(REGIONS)}:
    totals[region] = sum(row["revenue"] for row in await sales(region=region))
for region in sorted(totals, key=totals.get, reverse=True)[:3]:
    print(region, round(totals[region], 2))
"""


def sales(region: str) -> list[dict[str, object]]:
    """The sales of a region, one row for each order. About 2 kB of JSON.

    Args:
        region: its name, such as region-7.
    """
    rng = Random(region)
    return [
        {
            "order": rng.randrange(100_000, 1_000_000),
            "month": rng.choice(MONTHS),
            "product": rng.choice(PRODUCTS),
            "units": rng.randrange(1, 100),
            "revenue": round(rng.uniform(10, 9000), 2),
        }
        for _ in range(24)
    ]
