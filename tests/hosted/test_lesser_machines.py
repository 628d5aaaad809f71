"""Skills on machines that isolate less than others, or not at all."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

if sys.platform != "linux":
    pytest.skip("containers are Linux's", allow_module_level=True)

from tests.hosted.conftest import House, ask
from tests.hosted.test_one_reply import code
from tests.sandbox import lesser_hosts
from treadle.errors import CapabilityUnsupported
from treadle.sandbox import ladder
from treadle.sandbox.facts import Facts
from treadle.sandbox.isolation import isolated
from treadle.testing import call, say

needs_namespaces = pytest.mark.skipif(
    not lesser_hosts.can_make_namespaces(), reason="needs namespaces, to make a machine that has fewer"
)
PROGRAM = Path(__file__).with_name("conversation_program.py").read_text("utf-8")


def told_on(host: str) -> dict[str, Any]:
    ran = lesser_hosts.on(host, "-c", PROGRAM)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@needs_namespaces
@pytest.mark.parametrize(("host", "rung"), [("Docker", "3"), ("Docker, ordinary user", "3b")])
def test_where_containers_have_no_root_the_model_is_told_paths_that_code_can_use(
    host: str, rung: str
) -> None:
    told = told_on(host)

    assert told["rung"] == rung
    assert "error" not in told, told["error"]
    first = told["asked"][0]
    assert "../skills/gif" in first
    assert "../workspace/in/a.csv" in first
    assert "(../workspace, also called ../sandbox)" in first
    assert "Files in ../skills/gif:" in told["asked"][1]
    ran = told["results"][1]
    assert ran["return_code"] == 0, ran
    assert ran["stdout"].startswith("5 [")
    assert ran["stdout"].endswith("1;2\n")
    assert [each["path"] for each in told["files"]] == ["out.txt"]
    assert [each["content"] for each in told["results"][3:]] == ["1;2", "y = 5"]
    assert told["results"][2]["stdout"] == "1;21;2"


@needs_namespaces
def test_where_nothing_can_be_isolated_instructions_are_given_and_code_is_an_error_of_the_caller() -> None:
    told = told_on("filtered")

    assert told["rung"] is None
    assert len(told["asked"]) == 2  # with the result of the first call, and not with one of the code
    assert "Files in /skills/gif:" in told["asked"][1]
    kind, message = told["error"]
    assert kind == "CapabilityUnsupported"
    assert message.startswith("no code can be run isolated here: ")


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_machine_below_the_minimum_runs_no_code_and_says_which_it_is(
    house: House, monkeypatch: pytest.MonkeyPatch, *, streamed: bool
) -> None:
    monkeypatch.setattr(house.host, "settings", isolated(minimum_rung=1))
    monkeypatch.setattr(house.host, "_containers", None)
    seen: dict[str, bool] = dict.fromkeys(map(str, ladder.ABILITIES), True)
    report = ladder.report_of(ladder.probe().host, Facts(seen=seen, no_cgroup="nothing is mounted"))
    monkeypatch.setattr(ladder, "_kept", [report])

    alone = await ask(house.hosted([call(house.tool()), say("Read.")]), house.request(), streamed=streamed)
    assert "Read." in str(alone.message)

    hosted = house.hosted([code("print(1)"), say("never")])
    with pytest.raises(CapabilityUnsupported, match=r"isolates code on rung 2 .* Set minimum_rung to 2"):
        await ask(hosted, house.request(), streamed=streamed)
    assert hosted.usage.calls == 1
