"""Landlock: what a process that restricted itself may still touch, and which rights a kernel knows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("Landlock is Linux's", allow_module_level=True)

from treadle.sandbox.kernel import landlock

VERSION = landlock.abi()
SOURCE = str(Path(landlock.__file__).parents[3])
needed = pytest.mark.skipif(VERSION == 0, reason="this kernel has no Landlock")

PRELUDE = """
import errno, os, signal, socket, sys
from treadle.sandbox.kernel import landlock, libc
from treadle.sandbox.kernel.landlock import DEVICE, EXECUTE, READ, READ_FILE, WRITE

def say(name, act):
    try:
        act()
    except OSError as error:
        print(name, errno.errorcode[error.errno])
    else:
        print(name, "done")

def write(path):
    with open(path, "w") as file:
        file.write("x")

os.chdir(sys.argv[1])
"""


def run(folder: Path, code: str) -> dict[str, str]:
    """What the lines of `code` say, in a process of its own whose folder is `folder`."""
    ran = subprocess.run(
        [sys.executable, "-c", PRELUDE + code, str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": os.defpath, "PYTHONPATH": SOURCE},
    )
    assert ran.stderr == ""
    return dict(line.rsplit(" ", 1) for line in ran.stdout.splitlines())


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("read", "write", "hidden"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name, "utf-8")
        program = tmp_path / name / "program"
        program.write_text("#!/bin/sh\n", "utf-8")
        program.chmod(0o755)
    (tmp_path / "alone").write_text("alone", "utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("version", "bits"), [(1, 13), (2, 14), (3, 15), (4, 15), (5, 16), (6, 16), (7, 16), (9, 16)]
)
def test_a_kernel_is_asked_only_for_what_its_version_knows(version: int, bits: int) -> None:
    assert landlock.handled(version) == (1 << bits) - 1


def test_reading_and_writing_are_apart() -> None:
    assert landlock.READ & landlock.WRITE_FILE == 0
    assert landlock.READ | landlock.WRITE == landlock.WRITE
    for never in (landlock.MAKE_CHAR, landlock.MAKE_BLOCK, landlock.IOCTL_DEV):
        assert (landlock.READ | landlock.WRITE | landlock.DEVICE) & never == 0


@needed
def test_what_no_rule_names_is_denied(tree: Path) -> None:
    said = run(
        tree,
        """
libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
landlock.restrict([("read", READ), ("write", WRITE), ("alone", READ_FILE), ("not there", WRITE)])
for where in ("read", "write", "hidden"):
    say(f"list {where}", lambda: os.listdir(where))
    say(f"open {where}", lambda: open(f"{where}/file").close())
    say(f"write {where}", lambda: write(f"{where}/file"))
    say(f"new {where}", lambda: write(f"{where}/new"))
    say(f"truncate {where}", lambda: os.truncate(f"{where}/file", 0))
    say(f"folder {where}", lambda: os.mkdir(f"{where}/folder"))
    say(f"link {where}", lambda: os.symlink("/etc/passwd", f"{where}/link"))
    say(f"remove {where}", lambda: os.unlink(f"{where}/program"))
say("open alone", lambda: open("alone").close())
say("write alone", lambda: write("alone"))
say("list .", lambda: os.listdir("."))
say("new .", lambda: write("new"))
say("through a link", lambda: open("write/link").close())
say("up", lambda: os.listdir("write/../hidden"))
""",
    )

    kinds = ("list", "open", "write", "new", "truncate", "folder", "link", "remove")
    assert said == {
        **{f"{kind} write": "done" for kind in kinds},
        **{f"{kind} hidden": "EACCES" for kind in kinds},
        **{f"{kind} read": "done" if kind in {"list", "open"} else "EACCES" for kind in kinds},
        # without version 3 the kernel does not know of truncating
        **({} if VERSION >= 3 else {f"truncate {where}": "done" for where in ("read", "hidden")}),
        "open alone": "done",
        "write alone": "EACCES",
        "list .": "EACCES",
        "new .": "EACCES",
        "through a link": "EACCES",
        "up": "EACCES",
    }
    assert (tree / "hidden" / "file").read_text("utf-8") == ("hidden" if VERSION >= 3 else "")
    assert not (tree / "new").exists()


@needed
def test_programs_start_from_where_they_may_only(tree: Path) -> None:
    said = run(
        tree,
        """
def start(path):
    pid = os.posix_spawn(path, [path], {})
    os.waitpid(pid, 0)

libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
system = [(each, READ) for each in ("/usr", "/bin", "/lib", "/lib64")]
landlock.restrict([*system, ("read", READ), ("alone", READ_FILE), ("hidden", READ_FILE)])
say("read", lambda: start("read/program"))
say("write", lambda: start("write/program"))
say("hidden", lambda: start("hidden/program"))
""",
    )

    assert said == {"read": "done", "write": "EACCES", "hidden": "EACCES"}


@needed
def test_children_and_later_rules_give_nothing_back(tree: Path) -> None:
    said = run(
        tree,
        """
libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
landlock.restrict([("read", READ)])
landlock.restrict([("read", READ), ("write", WRITE), ("/", WRITE)])
say("read", lambda: open("read/file").close())
say("write", lambda: write("write/file"))
sys.stdout.flush()
if os.fork() == 0:
    say("child", lambda: open("hidden/file").close())
    sys.stdout.flush()
    os._exit(0)
os.wait()
""",
    )

    assert said == {"read": "done", "write": "EACCES", "child": "EACCES"}


@needed
def test_files_do_not_move_out_of_what_is_writable(tree: Path) -> None:
    said = run(
        tree,
        """
libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
landlock.restrict([("read", READ), ("write", WRITE)])
say("out", lambda: os.rename("write/file", "hidden/stolen"))
say("link out", lambda: os.link("write/file", "hidden/stolen"))
say("in", lambda: os.rename("hidden/file", "write/stolen"))
say("link in", lambda: os.link("read/file", "write/stolen"))
say("within", lambda: os.rename("write/file", "write/moved"))
""",
    )

    assert said.pop("within") == "done"
    assert set(said) == {"out", "link out", "in", "link in"}
    assert set(said.values()) <= {"EACCES", "EXDEV"}
    assert sorted(each.name for each in (tree / "hidden").iterdir()) == ["file", "program"]


@needed
@pytest.mark.skipif(VERSION < 6, reason=f"version {VERSION} of Landlock knows nothing of signals")
def test_signals_and_abstract_sockets_stay_inside(tree: Path) -> None:
    said = run(
        tree,
        """
outside = socket.socket(socket.AF_UNIX)
outside.bind("\\0treadle-landlock-" + str(os.getpid()))
outside.listen()
name = outside.getsockname()
ready, go = os.pipe()
if os.fork() == 0:
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    landlock.restrict([("read", READ)])
    say("signal", lambda: os.kill(os.getppid(), signal.SIGKILL))
    say("connect", lambda: socket.socket(socket.AF_UNIX).connect(name))
    own = os.fork()
    if own == 0:
        signal.pause()
    say("own child", lambda: os.kill(own, signal.SIGKILL))
    sys.stdout.flush()
    os._exit(0)
os.wait()
""",
    )

    assert said == {"signal": "EPERM", "connect": "EPERM", "own child": "done"}


@needed
@pytest.mark.skipif(VERSION < 4, reason=f"version {VERSION} of Landlock knows nothing of networks")
def test_no_port_is_bound_or_reached(tree: Path) -> None:
    said = run(
        tree,
        """
libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
landlock.restrict([("read", READ)])
say("bind", lambda: socket.socket().bind(("127.0.0.1", 0)))
say("connect", lambda: socket.socket().connect(("127.0.0.1", 1)))
""",
    )

    assert said == {"bind": "EACCES", "connect": "EACCES"}


@needed
def test_it_is_refused_while_privileges_could_be_gained(tree: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may restrict itself in any case")
    assert run(tree, 'say("restrict", lambda: landlock.restrict([("read", READ)]))') == {"restrict": "EPERM"}


@needed
def test_no_descriptor_stays_open(tree: Path) -> None:
    said = run(
        tree,
        """
libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
before = os.listdir("/proc/self/fd")
landlock.restrict([("/proc", READ), ("read", READ), ("not there", READ)])
assert os.listdir("/proc/self/fd") == before
try:
    landlock.restrict([("read\\0", READ)])
except ValueError:
    pass
assert os.listdir("/proc/self/fd") == before
say("all", lambda: None)
""",
    )

    assert said == {"all": "done"}
