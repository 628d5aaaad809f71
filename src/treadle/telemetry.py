"""What the package says of its own work: log records without prompts, arguments, results or keys."""

import logging
from collections.abc import Mapping

LOGGER = logging.getLogger("treadle")
LOGGER.addHandler(logging.NullHandler())  # without one, Python prints warnings where nobody set up logging


def is_recording(level: int = logging.DEBUG) -> bool:
    """Whether anybody reads what `record` writes; if not, its fields need not be made."""
    return LOGGER.isEnabledFor(level)


def record(event: str, fields: Mapping[str, object], *, level: int = logging.DEBUG) -> None:
    """Log `event` with `fields`, which are attributes of the record too (`record.treadle`)."""
    if LOGGER.isEnabledFor(level):
        text = " ".join(f"{name}={value!r}" for name, value in fields.items())
        LOGGER.log(level, "%s %s", event, text, extra={"treadle": dict(fields)})
