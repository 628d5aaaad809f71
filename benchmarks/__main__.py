"""`python -m benchmarks [NAME ...]`: prints tables, writes benchmarks/results/NAME.json.

Peers are measured where `.venv-peers/NAME` holds them; `python -m benchmarks peers` makes those environments.
`bfcl` makes its own when it is first run.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from functools import partial

from benchmarks.bfcl import TASKS, bfcl
from benchmarks.containers import containers
from benchmarks.environments import make
from benchmarks.files import files
from benchmarks.gateway import gateway
from benchmarks.hosted import hosted
from benchmarks.idle import idle
from benchmarks.loop import growth, loop
from benchmarks.processes import RESULTS
from benchmarks.programmatic import programmatic
from benchmarks.programs import programs
from benchmarks.startup import first_byte, imports

BENCHMARKS: dict[str, Callable[[], Mapping[str, object]]] = {
    "loop": loop,
    "growth": growth,
    "imports": imports,
    "first_byte": first_byte,
    "files": files,
    "containers": containers,
    "programs": programs,
    "programmatic": programmatic,
    "gateway": gateway,
    "bfcl": bfcl,
    "idle": idle,
    "hosted": hosted,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="All, or those named.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join([*BENCHMARKS, "peers"]))
    parser.add_argument("--tasks", type=int, default=TASKS, help=f"of bfcl, 1 to 200; {TASKS} by default")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in {*BENCHMARKS, "peers"}]:
        parser.error(f"unknown benchmark {', '.join(unknown)}: known are {', '.join([*BENCHMARKS, 'peers'])}")
    if not 1 <= given.tasks <= 200:
        parser.error(f"--tasks {given.tasks}: BFCL's multi-turn base set has 200")
    known = {**BENCHMARKS, "bfcl": partial(bfcl, given.tasks)}
    machine = f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(machine)
    RESULTS.mkdir(exist_ok=True)
    for name in given.names or known:
        if name == "peers":
            make()
            continue
        measured = {"machine": machine, "at": time.strftime("%F %T"), "rows": known[name]()}
        (RESULTS / f"{name}.json").write_text(json.dumps(measured, indent=2), "utf-8")


if __name__ == "__main__":
    main()
