"""Log records of the package's own work."""

import logging

import pytest

from treadle.telemetry import LOGGER, record


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
