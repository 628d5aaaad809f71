"""Shell commands as cells: a program for each."""

from treadle.errors import InvalidArgument, InvalidType

MAX_COMMAND_BYTES = (128 << 10) - 1
"""Linux takes no longer argument."""


def program(command: str) -> str:
    """A cell of Python that runs `command` in a shell, and leaves no names behind.

    Raises:
        InvalidArgument: no shell could be given that.
        InvalidType: it is no text.
    """
    if not isinstance(command, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may have no types
        raise InvalidType(f"a command is a str, not {type(command).__name__}")
    if "\0" in command:
        raise InvalidArgument(
            "a command has no NUL in it: write what has one into a file, by `printf` or `put`"
        )
    try:
        size = len(command.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidArgument("a command must be valid Unicode: it has half of a surrogate pair") from None
    if size > MAX_COMMAND_BYTES:
        raise InvalidArgument(
            f"a command of {size} bytes is too long: the limit is {MAX_COMMAND_BYTES}. "
            "Write it into a file, and run that"
        )
    return f"__import__('treadle.sandbox.guest.shell', fromlist=['run']).run({command!r})"
