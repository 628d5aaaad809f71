"""Attacks on what containers are shown: nobody changes it, and nobody sees what others are shown."""

import sys
from collections.abc import AsyncGenerator

import pytest

if sys.platform != "linux":
    pytest.skip("containers are Linux's", allow_module_level=True)

from treadle.sandbox.container import Container
from treadle.sandbox.engine import Engine
from treadle.sandbox.ladder import probe
from treadle.sandbox.showing import Held, ShownFolders
from treadle.sandbox.shown import Shown

pytestmark = [
    pytest.mark.attack,
    pytest.mark.skipif(probe().rung is None, reason=f"no containers here: {probe().why}"),
]
GIF = Shown(
    "gif", {"core/__init__.py": b"", "core/a.py": b"A = 1\n", "run": b"#!/bin/sh\necho ran\n"}, "1" * 64
)
SECRET = Shown("secret", {"core/__init__.py": b"", "core/key.py": b"KEY = 'of others'\n"}, "2" * 64)
HOW = """
import ctypes, os, shutil, stat, subprocess
libc = ctypes.CDLL(None, use_errno=True)

def attempt(what):
    try:
        made = what()
    except OSError as error:
        return type(error).__name__
    return f"DONE: {made!r}"

def called(name, *arguments):
    if getattr(libc, name)(*arguments):
        raise OSError(ctypes.get_errno(), name)

def state():
    found = []
    for folder, folders, files in os.walk(AT, followlinks=True):
        for path in [os.path.join(folder, each) for each in folders + files]:
            found.append((path, os.stat(path).st_mode, os.path.isfile(path) and open(path, "rb").read()))
    return sorted(found)

before = state()
"""
CHANGES = """
file, folder, new = f"{AT}/gif/core/a.py", f"{AT}/gif/core", f"{AT}/gif/new"
open("mine", "w").write("mine")
attempts = {
    "create": lambda: open(new, "w"),
    "append": lambda: open(file, "a"),
    "open to write": lambda: os.open(file, os.O_RDWR),
    "truncate": lambda: os.truncate(file, 0),
    "unlink": lambda: os.unlink(file),
    "rmdir": lambda: os.rmdir(f"{AT}/gif"),
    "rmtree": lambda: shutil.rmtree(f"{AT}/gif"),
    "rename": lambda: os.rename(file, "a.py"),
    "rename the folder": lambda: os.rename(f"{AT}/gif", f"{AT}/other"),
    "replace": lambda: os.replace("mine", file),
    "unlink the folder": lambda: os.unlink(f"{AT}/gif"),
    "link in it": lambda: os.symlink("/tmp", new),
    "link beside it": lambda: os.symlink("/tmp", f"{AT}/new"),
    "folder beside it": lambda: os.mkdir(f"{AT}/new"),
    "replace all of it": lambda: os.rename(AT, f"{AT}2"),
    "hard link out of it": lambda: os.link(file, "linked"),
    "hard link into it": lambda: os.link("mine", new),
    "pipe": lambda: os.mkfifo(new),
    "bytecode": lambda: os.mkdir(f"{folder}/__pycache__"),
    "extended attribute": lambda: os.setxattr(file, "user.x", b"x"),
    "mount": lambda: called("mount", b"none", f"{AT}/gif".encode(), b"tmpfs", 0, None),
    "mount again": lambda: called("mount", None, f"{AT}/gif".encode(), None, 32 | 4096, None),
    "unmount": lambda: called("umount2", f"{AT}/gif".encode(), 2),
    "namespace of its own": lambda: called("unshare", 0x10020000),
}
print({name: said for name, what in attempts.items() if (said := attempt(what)).startswith("DONE")})
for path in (file, folder, f"{AT}/gif"):  # without a user of one's own these only seem to be done
    attempt(lambda: os.chmod(path, 0o777)), attempt(lambda: os.utime(path, (0, 0)))
    attempt(lambda: os.chown(path, os.getuid(), os.getgid()))
subprocess.run(["sh", "-c", f"echo x > {file}; rm -rf {AT}/gif; chmod -R 777 {AT}"], stderr=-3)
print(state() == before, subprocess.run([f"{AT}/gif/run"], capture_output=True, text=True).stdout)
"""
OTHERS = """
import sys
print(os.listdir(AT), [each for each in sys.path + os.environ["PYTHONPATH"].split(":") if "secret" in each])
tries = [f"{AT}/secret", f"{AT}/secret/core/key.py", f"{AT}/gif/../secret", f"{AT}/gif/../../skills/secret"]
tries += [SOURCE, f"{SOURCE}/core/key.py", os.path.dirname(SOURCE)]
tries += [f"/proc/1/root{SOURCE}", f"/.host{SOURCE}"]
own = os.path.realpath(f"{AT}/gif")
tries += [os.path.dirname(own)] if own != "/skills/gif" else []
for each in tries:
    for look in (os.listdir, lambda path: open(path).read()):
        if (said := attempt(lambda: look(each))).startswith("DONE"):
            print(each, said)
try:
    from core.key import KEY
    print(KEY)
except ImportError as error:
    print(type(error).__name__)
"""


@pytest.fixture
async def folders() -> AsyncGenerator[ShownFolders]:
    made = ShownFolders()
    yield made
    await made.close()


@pytest.fixture
async def engine(folders: ShownFolders) -> AsyncGenerator[Engine]:
    async with Engine() as running:
        yield running


async def run(container: Container, held: Held, code: str, other: str = "") -> str:
    at = f"{container.root}/skills"
    outcome = await container.execute(f"AT, SOURCE = {at!r}, {other!r}\n{HOW}\n{code}")
    assert outcome.failure is None, outcome.stderr
    assert held.mounts
    return outcome.stdout


async def test_what_is_shown_cannot_be_changed(engine: Engine, folders: ShownFolders) -> None:
    held = await folders.hold([GIF])
    container, other = await engine.make(held.mounts), await engine.make(held.mounts)

    assert await run(container, held, CHANGES) == "{}\nTrue ran\n\n"
    assert await run(other, held, "from core.a import A; print(A)") == "1\n"


async def test_nobody_sees_what_others_are_shown(engine: Engine, folders: ShownFolders) -> None:
    held, secret = await folders.hold([GIF]), await folders.hold([SECRET])
    container, other = await engine.make(held.mounts), await engine.make(secret.mounts)
    (mount,) = secret.mounts

    assert await run(other, secret, "from core.key import KEY; print(KEY)") == "of others\n"
    assert await run(container, held, OTHERS, mount.source) == "['gif'] []\nModuleNotFoundError\n"


async def test_who_is_shown_nothing_has_no_folder_for_it(engine: Engine, folders: ShownFolders) -> None:
    container = await engine.make()
    code = f"import os; print(os.path.exists({container.root + '/skills'!r}))"
    assert (await container.execute(code)).stdout == "False\n"


async def test_the_working_folder_has_another_name(engine: Engine, folders: ShownFolders) -> None:
    container = await engine.make()
    code = f"""
import os
alias = {container.root + "/sandbox"!r}
open(f"{{alias}}/x", "w").write("1")
print(open("x").read(), sorted(os.listdir(alias)))
for change, more in ((os.unlink, ()), (os.rename, (f"{{alias}}2",)), (os.rmdir, ()), (os.mkdir, ())):
    try:
        print("DONE", change(alias, *more))
    except OSError:
        pass
"""
    assert (await container.execute(code)).stdout == "1 ['in', 'out', 'x']\n"
    assert await container.get("/sandbox/x") == b"1"
    await container.put("/sandbox/sub/y", b"2")
    assert await container.get("sub/y") == b"2"
