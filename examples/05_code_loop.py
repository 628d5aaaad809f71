"""The code loop: the model writes code that calls your tool; a chart of it comes back as a file."""

import os

import treadle
from treadle import Harness, sandbox
from treadle.testing import ScriptedModel, call, say

RAIN_MM = {"Oslo": [58, 47, 51], "Rome": [69, 76, 59], "Cairo": [5, 4, 4]}


def rain(city: str) -> list[int]:
    """Rain in a city, in mm, month by month from January."""
    return RAIN_MM[city]


CODE = """
totals = {city: sum(await rain(city)) for city in ("Oslo", "Rome", "Cairo")}
with open("rain.txt", "w") as chart:
    for city, total in totals.items():
        print(f"{city:6}{'#' * (total // 10)}", file=chart)
print(max(totals, key=totals.get))
"""
SCRIPTED = ScriptedModel([call("code_execution", code=CODE), say("It rains most in Rome.")])


def main() -> None:
    try:
        result = treadle.agent(
            Harness.CODE_LOOP,
            "Where does it rain most: Oslo, Rome or Cairo? Draw a chart into rain.txt.",
            sandbox=sandbox.isolated(),
            model=os.environ.get("MODEL") or SCRIPTED,
            tools=[rain],
        )
    except treadle.CapabilityUnsupported as error:
        print(error)
        return
    print(result.text)
    for file in result.files:
        print((file.data or b"").decode())
    print(f"{result.usage.calls} model calls, {result.savings.tool_calls} calls by code")


if __name__ == "__main__":
    main()
