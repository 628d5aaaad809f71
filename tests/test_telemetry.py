"""Log records of the package's own work."""

import logging

import pytest

from tests.conftest import KEY, Route
from treadle import Harness, aagent
from treadle.sandbox.workspace import LocalSandbox
from treadle.telemetry import LOGGER, record
from treadle.testing import call, fail, say


def test_an_event_is_logged_with_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="treadle"):
        record("turn ended", {"calls": 2, "reason": "done"})

    (logged,) = caplog.records
    assert logged.getMessage() == "turn ended calls=2 reason='done'"
    assert (logged.name, logged.levelno) == ("treadle", logging.DEBUG)
    assert vars(logged)["treadle"] == {"calls": 2, "reason": "done"}


def test_an_event_has_the_level_that_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="treadle"):
        record("turn failed", {}, level=logging.WARNING)

    assert [logged.levelname for logged in caplog.records] == ["WARNING"]


class Loud:
    def __repr__(self) -> str:
        raise AssertionError("nobody asked for the text")


def test_what_nobody_wants_to_hear_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="treadle"):
        record("turn ended", {"loud": Loud()})

    assert caplog.records == []
    assert not LOGGER.isEnabledFor(logging.DEBUG - 1)


def test_a_line_break_in_a_value_makes_no_second_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="treadle"):
        record("tool call", {"tool": "100%s\nWARNING forged"})

    assert caplog.messages == [r"tool call tool='100%s\nWARNING forged'"]


def look_up(word: str) -> str:
    """Look a word up."""
    return "the-result"


def written(caplog: pytest.LogCaptureFixture) -> str:
    """Whatever a handler could write down of the package's own records."""
    own = [each for each in caplog.records if each.name == "treadle"]
    return "\n".join(f"{each.getMessage()} {vars(each)}" for each in own)


async def test_a_turn_is_told_without_what_was_said_and_without_the_key(
    route: Route, folder: LocalSandbox, caplog: pytest.LogCaptureFixture
) -> None:
    script = [call("look_up", word="the-argument"), say("the-final-text")]
    with caplog.at_level(logging.DEBUG, logger="treadle"):
        async with route.serve(script) as (_, where):
            await aagent(Harness.TOOL_LOOP, "the-prompt", sandbox=folder, tools=[look_up], **where)

    told = written(caplog)
    for event in ("model call model=", "tool call tool='look_up'", "turn ended session="):
        assert event in told
    for secret in (KEY, "the-prompt", "the-argument", "the-result", "the-final-text"):
        assert secret not in told


async def test_a_failed_turn_is_told_by_the_class_of_its_error_alone(
    route: Route, folder: LocalSandbox, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="treadle"):
        async with route.serve([fail(401, f"wrong key {KEY} for the-prompt")]) as (_, where):
            await aagent(Harness.TOOL_LOOP, "the-prompt", sandbox=folder, **where)

    told = written(caplog)
    assert "turn failed error='AuthenticationError'" in told
    assert KEY not in told
    assert "the-prompt" not in told
