"""Folders that containers are shown: what may be in them, where they clash, and how long they are kept."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import anyio
import pytest

from treadle.errors import InvalidArgument, InvalidType, SandboxError
from treadle.sandbox.shown import MAX_BYTES, MAX_FILES, MAX_SHOWN, Clash, Shown, clashes

if sys.platform != "linux":
    pytest.skip("containers are Linux's", allow_module_level=True)

from treadle.sandbox import showing
from treadle.sandbox.claims import claim
from treadle.sandbox.showing import Held, ShownFolders


def shown(name: str = "gif", digest: str = "0" * 64, files: Mapping[str, bytes] | None = None) -> Shown:
    return Shown(name, files or {"SKILL.md": b"# GIF"}, digest)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("../x", "lead downwards"),
        ("a/../../x", "lead downwards"),
        ("./a", "lead downwards"),
        ("a//b", "lead downwards"),
        ("a/", "lead downwards"),
        ("", "lead downwards"),
        ("/etc/passwd", "must be relative"),
        ("a\0b", "no NUL"),
        ("a\nb", "no control characters"),
        ("\udc80", "valid Unicode"),
        ("a" * 256, "too long"),
        ("/".join(["a" * 200] * 6), "too long"),
    ],
)
def test_a_path_that_leads_elsewhere_is_refused_before_anything_is_written(path: str, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        Shown("gif", {"a/b": b"", path: b""}, "0" * 64)


@pytest.mark.parametrize("name", ["", "..", ".", "a/b", "a:b", "a\0", "-a", ".a", "a" * 129, "é"])
def test_a_name_that_is_no_folder_of_its_own_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="the name of a folder"):
        Shown(name, {}, "0" * 64)


def test_what_cannot_be_a_folder_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="a digest is"):
        Shown("gif", {}, "../" * 8)
    with pytest.raises(InvalidArgument, match="both a file and a folder 'a/b'"):
        Shown("gif", {"a/b": b"", "a/b/c/d": b""}, "0" * 64)
    with pytest.raises(InvalidType, match="must be bytes"):
        Shown("gif", {"a": "text"}, "0" * 64)  # pyright: ignore[reportArgumentType] - as a caller without types
    with pytest.raises(InvalidArgument, match="more than"):
        Shown("gif", {str(number): b"" for number in range(MAX_FILES + 1)}, "0" * 64)
    with pytest.raises(InvalidArgument, match="more than"):
        Shown("gif", {"a": b"x" * MAX_BYTES, "b": b"x"}, "0" * 64)


def test_what_was_checked_stays_as_it_is() -> None:
    files = {"a": b"1"}
    made = Shown("gif", files, "0" * 64)
    files["../b"] = b"2"
    assert dict(made.files) == {"a": b"1"}


@pytest.mark.parametrize(
    ("folders", "found"),
    [
        ({"one": ["core/a.py", "SKILL.md"], "two": ["lib/a.py", "SKILL.md"]}, []),
        ({"one": ["core.py"], "two": ["core.py"]}, [Clash("core", "one", ("two",))]),
        (
            {"one": ["core/__init__.py"], "two": ["core/a.py"], "three": ["core.py"]},
            [Clash("core", "one", ("two", "three"))],
        ),
        # without `__init__.py` both are parts of one package, and of that clashes what is twice
        ({"one": ["scripts/a.py"], "two": ["scripts/b.py"]}, []),
        (
            {"one": ["scripts/a.py", "scripts/c/d.py"], "two": ["scripts/a.py", "scripts/c/d.py"]},
            [Clash("scripts.a", "one", ("two",)), Clash("scripts.c.d", "one", ("two",))],
        ),
        # a package that says that it is one goes before parts of packages, also later
        (
            {"one": ["core/a.py"], "two": ["core/__init__.py"]},
            [Clash("core", "two", ("one",))],
        ),
        ({"one": ["my-tool.py", "__init__.py"], "two": ["my-tool.py", "__init__.py"]}, []),
    ],
)
def test_modules_that_several_folders_have_are_found(
    folders: Mapping[str, list[str]], found: list[Clash]
) -> None:
    made = [Shown(name, dict.fromkeys(paths, b""), "0" * 64) for name, paths in folders.items()]
    assert list(clashes(made)) == found


@pytest.mark.parametrize("winner", ["one", "two"])
def test_python_imports_what_is_said_to_be_used(tmp_path: Path, winner: str) -> None:
    files = {"one": ["core/a.py"], "two": ["core/a.py"]}
    files["two"] += ["core/__init__.py"] if winner == "two" else []
    for name, paths in files.items():
        for path in paths:
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_text("", "utf-8")
    code = (
        f"import sys; sys.path[:0] = {[str(tmp_path / name) for name in files]}; import core.a as m; print(m)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    (clash,) = clashes([Shown(name, dict.fromkeys(paths, b""), "0" * 64) for name, paths in files.items()])
    assert clash.used == winner
    assert f"/{clash.used}/core/a.py" in said


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def place(held: Held) -> Path:
    (mount,) = held.mounts
    return Path(mount.source)


async def gone(path: Path) -> bool:
    for _ in range(200):
        if not os.path.exists(path):  # noqa: PTH110, ASYNC240
            return True
        await anyio.sleep(0.01)
    return False


async def test_the_same_content_is_written_once_whatever_it_is_called() -> None:
    folders = ShownFolders()
    files = {"core/__init__.py": b"", "core/a.py": b"A = 1", "run": b"#!/bin/sh\n", "deep/er/data": b"\0" * 9}
    first = await folders.hold([shown("gif", files=files)])
    again = await folders.hold([shown("other", files=files)])
    try:
        assert place(first) == place(again)
        assert [mount.target for mount in (*first.mounts, *again.mounts)] == ["/skills/gif", "/skills/other"]
        found = {str(each.relative_to(place(first))): each for each in place(first).rglob("*")}
        assert {path: each.read_bytes() for path, each in found.items() if each.is_file()} == files
        modes = {path: oct(each.stat().st_mode & 0o777) for path, each in found.items()}
        assert {modes[path] for path in ("core", "deep", "deep/er", "run")} == {"0o555"}
        assert {modes[path] for path in ("core/a.py", "deep/er/data")} == {"0o444"}
        assert first.digests == {"gif": "0" * 64}
    finally:
        await folders.close()
    assert not os.path.exists(place(first).parent)  # noqa: PTH110, ASYNC240


async def test_what_nobody_uses_is_removed_in_time_and_what_is_used_is_not() -> None:
    clock = Clock()
    folders = ShownFolders(kept_s=10, now=clock)
    used = await folders.hold([shown(digest="1" * 64)])
    unused = await folders.hold([shown(digest="2" * 64)])
    unused.let_go()
    unused.let_go()
    clock.time = 9
    folders.sweep()
    assert place(await folders.hold([shown(digest="2" * 64)])).exists()
    (await folders.hold([shown(digest="3" * 64)])).let_go()
    clock.time = 30
    folders.sweep()
    assert place(used).exists()
    assert place(unused).exists()  # somebody has it again
    used.let_go()
    clock.time = 41
    folders.sweep()
    assert await gone(place(used))
    await folders.close()


async def test_the_bytes_are_bounded_and_what_was_not_used_for_longest_goes_first() -> None:
    clock = Clock()
    folders = ShownFolders(most_bytes=250, now=clock)
    held: list[Held] = []
    for number in range(3):
        clock.time = number
        held.append(await folders.hold([shown(digest=str(number) * 64, files={"data": b"x" * 100})]))
    places = [place(each) for each in held]
    clock.time = 5
    held[1].let_go()
    clock.time = 6
    held[0].let_go()
    held[2].let_go()
    folders.sweep()
    assert await gone(places[1])
    assert places[0].exists()
    assert places[2].exists()
    await folders.close()


async def test_who_is_cancelled_leaves_the_writing_to_the_others() -> None:
    folders = ShownFolders()
    made = shown(files={"data": b"x" * 5_000_000})
    loop = asyncio.get_running_loop()
    first, second = loop.create_task(folders.hold([made])), loop.create_task(folders.hold([made]))
    await anyio.lowlevel.checkpoint()
    first.cancel()
    held = await second
    with pytest.raises(asyncio.CancelledError):
        await first
    assert (place(held) / "data").stat().st_size == 5_000_000
    await folders.close()


async def test_what_cannot_be_written_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = ShownFolders()
    await folders.hold([shown(digest="1" * 64)])
    before = {each.name for each in place(await folders.hold([shown(digest="1" * 64)])).parent.iterdir()}

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(showing, "_write_file", full)
        with pytest.raises(SandboxError, match=r"'gif' cannot be shown.*No space left"):
            await folders.hold([shown()])
    held = await folders.hold([shown()])
    assert {each.name for each in place(held).parent.iterdir()} == before | {place(held).name}
    await folders.close()


async def test_too_many_folders_two_of_one_name_and_a_closed_place_are_refused() -> None:
    folders = ShownFolders()
    with pytest.raises(InvalidArgument, match="32 folders at most"):
        await folders.hold([shown(f"n{number}") for number in range(MAX_SHOWN + 1)])
    with pytest.raises(InvalidArgument, match="two folders are named 'gif'"):
        await folders.hold([shown(), shown()])
    await folders.close()
    with pytest.raises(SandboxError, match="closed"):
        await folders.hold([shown()])


KILLED = """
import asyncio
from treadle.sandbox.showing import ShownFolders
from treadle.sandbox.shown import Shown

async def main():
    held = await ShownFolders().hold([Shown("gif", {"a/b": b"1"}, "0" * 64)])
    print(held.mounts[0].source, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_what_a_killed_process_left_is_removed_by_the_next_start() -> None:
    source = str(Path(showing.__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", KILLED],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
    ) as process:
        assert process.stdout
        left = Path(process.stdout.readline().strip())
        assert left.is_dir()
        process.send_signal(signal.SIGKILL)
    assert (left / "a" / "b").is_file()
    claim(users=False).release()
    assert not left.parent.exists()
