"""`treadle`: the commands, each loaded when it is called."""

import sys
from importlib.util import find_spec


def main() -> None:
    """The console script."""
    if not (find_spec("click") and find_spec("jsonschema")):
        print("the command line needs an extra: pip install 'treadle[cli]'", file=sys.stderr)
        sys.exit(2)
    from treadle.cli.commands import treadle

    treadle()


if __name__ == "__main__":
    main()
