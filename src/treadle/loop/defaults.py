"""What a turn may take unless the caller says; apart from the limits, so that it costs nothing to import."""

DEFAULT_MAX_TURNS = 100
DEFAULT_MAX_REPEATS = 10
