"""`python -m benchmarks [NAME ...]`: prints tables, writes benchmarks/results/NAME.json.

Peers are measured where `.venv-peers/NAME` holds them; `python -m benchmarks peers` makes those environments.
"""

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping

from benchmarks.containers import containers
from benchmarks.environments import make
from benchmarks.files import files
from benchmarks.gateway import gateway
from benchmarks.hosted import hosted
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
    "hosted": hosted,
}


def main() -> None:
    wanted = sys.argv[1:] or list(BENCHMARKS)
    known = [*BENCHMARKS, "peers"]
    if unknown := [name for name in wanted if name not in known]:
        sys.exit(f"unknown benchmark {', '.join(unknown)}: known are {', '.join(known)}")
    machine = f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(machine)
    RESULTS.mkdir(exist_ok=True)
    for name in wanted:
        if name == "peers":
            make()
            continue
        measured = {"machine": machine, "at": time.strftime("%F %T"), "rows": BENCHMARKS[name]()}
        (RESULTS / f"{name}.json").write_text(json.dumps(measured, indent=2), "utf-8")


if __name__ == "__main__":
    main()
