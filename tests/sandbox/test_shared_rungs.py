"""Rungs 3 and 3b, on hosts like a plain Docker container: no namespaces and no mounts are to be had.

All attacks, and what containers without namespaces have of their own, in a process that gave up the means to
make namespaces: so the ladder finds the rung by itself. Files are in a file system of their own with a size.
"""

import os
import re
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("containers are Linux's", allow_module_level=True)

from tests.sandbox import lesser_hosts
from treadle.sandbox.kernel import landlock

pytestmark = pytest.mark.attack
REPOSITORY = Path(__file__).parents[2]
SHARED = REPOSITORY.parent / "shared"
ORDINARY = 65_534
LIMIT_S = 400
FILES = (
    "test_attacks.py",
    "test_shared_containers.py",
    "test_engine.py",
    "test_shown_attacks.py",
    "test_repeating.py",
)
BIND = """
set -e
mount --make-rprivate /
place=$1; user=$2; shift 2
while [ "$1" != -- ]; do mount --bind "$1" "$place/$2"; shift 2; done
shift
mount -t tmpfs -o size=300m,nr_inodes=30k,mode=1777 room "$place/room"
mount -t tmpfs -o size=100m,nr_inodes=1k,mode=1777 room "$place/filled"
if [ "$user" != 0 ]; then
    exec setpriv --reuid=$user --regid=$user --clear-groups --no-new-privs "$@"
fi
exec "$@"
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody may enter, for mounts that nobody else sees."""
    folder = Path(tempfile.mkdtemp(prefix="treadle-shared-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a host of either kind")
@pytest.mark.skipif(
    not all(map(shutil.which, ("unshare", "mount", "setpriv"))), reason="needs the tools of util-linux"
)
@pytest.mark.parametrize(("user", "rung", "abi"), [(0, "3", 4), (ORDINARY, "3b", 6)])
def test_all_attacks_are_contained_without_namespaces(user: int, rung: str, abi: int, place: Path) -> None:
    if landlock.abi() < abi:
        pytest.skip(f"Landlock ABI {landlock.abi()}, and rung {rung} needs {abi}")
    if not lesser_hosts.can_make_namespaces():
        pytest.skip("needs a mount namespace, to show the interpreter at a place that all may enter")
    binds = {sys.base_prefix: "python", str(REPOSITORY): "treadle", site.getsitepackages()[0]: "packages"}
    if SHARED.is_dir():
        binds[str(SHARED)] = "shared"
    for name in (*binds.values(), "room", "filled", "home"):
        (place / name).mkdir()
    os.chown(place / "home", user, user)
    python = place / "python" / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    environment = {
        "PATH": os.defpath,
        "HOME": str(place / "home"),
        "TMPDIR": str(place / "room"),
        "TREADLE_TESTS_ROOM": str(place / "filled"),
        "LD_LIBRARY_PATH": str(place / "python" / "lib"),
        "PYTHONPATH": f"{place / 'treadle' / 'src'}:{place / 'packages'}:{place / 'treadle'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # the interpreter may have some of its own
    }
    tests = [str(place / "treadle" / "tests" / "sandbox" / name) for name in FILES]
    plugins = ["-p", "no:cacheprovider", "-p", "anyio.pytest_plugin", "-p", "xdist.plugin"]
    # an ordinary user's limit of processes counts those of all containers: another test's bomb takes them all
    at_once = "2" if user == 0 else "0"
    chosen = ["-m", "not slow and not xfail", "-n", at_once, "-q", "--tb=short"]
    command = [str(python), "-c", lesser_hosts.DOCKER, "-m", "pytest", *tests, *plugins, *chosen]
    shown = [word for source, name in binds.items() for word in (source, name)]

    ran = subprocess.run(
        ["unshare", "--mount", "sh", "-c", BIND, "sh", str(place), str(user), *shown, "--", *command],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=place,
        env=environment,
    )

    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
    counted = {name: int(number) for number, name in re.findall(r"(\d+) (\w+)", ran.stdout.splitlines()[-1])}
    assert counted["passed"] > 115, ran.stdout[-3000:]
    # mounts, paths of a root of its own, what needs the other kind of user, shared attacks that are not here
    assert counted.get("skipped", 0) <= (13 if SHARED.is_dir() else 40), ran.stdout[-3000:]
    assert processes_below(place) == []


def processes_below(place: Path) -> list[str]:
    """Processes that run the interpreter of the test, or are anywhere in its folders."""
    found = list[str]()
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            for link in ("exe", "cwd"):
                try:
                    target = str((each / link).readlink())
                except OSError:
                    continue
                if target.startswith(str(place)):
                    found.append(f"{each.name} {link} {target}")
    return found
