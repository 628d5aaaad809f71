"""A local folder as a sandbox: what can be reached in it, and what cannot be reached from it."""

import os
import stat
import sys
from pathlib import Path

import anyio
import pytest

import treadle.sandbox
from treadle.errors import InvalidArgument, InvalidType, SandboxError
from treadle.sandbox import LocalSandbox, Sandbox, local
from treadle.sandbox.base import WatchedFolder
from treadle.sandbox.workspace import READ_LIMIT_BYTES


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_bytes(b"secret")
    return folder


@pytest.fixture
def folder(tmp_path: Path, outside: Path) -> Path:
    """A workspace with links, good ones and bad ones."""
    folder = tmp_path / "workspace"
    (folder / "sub").mkdir(parents=True)
    (folder / "file").write_bytes(b"inside")
    (folder / "good").symlink_to("sub/../file")
    (folder / "new-good").symlink_to("sub/made")
    (folder / "bad").symlink_to(outside / "secret")
    (folder / "new-bad").symlink_to(outside / "made")
    (folder / "up").symlink_to("../outside")
    (folder / "circle").symlink_to("circle")
    (folder / "workspace-2").symlink_to("../workspace-2")
    (tmp_path / "workspace-2").mkdir()
    os.mkfifo(folder / "pipe")
    return folder


@pytest.fixture
def sandbox(folder: Path) -> LocalSandbox:
    return local(folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


OUTSIDE = [
    "../outside/secret",
    "bad",
    "new-bad",
    "up/secret",
    "up/made",
    "sub/../../outside/secret",
    "workspace-2/made",
    "/etc/passwd",
    "/etc/../etc/passwd",
    "..",
]

NOT_A_FILE = ["circle", "circle/made", "sub", ".", "", "file/made", "pipe", "nul\0", "half\ud800", "x" * 300]


@pytest.mark.parametrize("path", OUTSIDE)
async def test_what_is_outside_is_not_read(sandbox: LocalSandbox, path: str) -> None:
    with pytest.raises(SandboxError, match="leads out of the workspace"):
        await sandbox.read(path)


@pytest.mark.parametrize("path", OUTSIDE)
async def test_what_is_outside_is_not_written(sandbox: LocalSandbox, outside: Path, path: str) -> None:
    with pytest.raises(SandboxError, match="leads out of the workspace"):
        await sandbox.write(path, b"planted")

    assert contents(outside) == {"secret": b"secret"}


@pytest.mark.parametrize("path", [*NOT_A_FILE, "absent"])
async def test_what_is_no_file_is_not_read(sandbox: LocalSandbox, path: str) -> None:
    with anyio.fail_after(5), pytest.raises(SandboxError):
        await sandbox.read(path)


@pytest.mark.parametrize("path", NOT_A_FILE)
async def test_what_is_no_file_is_not_written(sandbox: LocalSandbox, path: str) -> None:
    with anyio.fail_after(5), pytest.raises(SandboxError):
        await sandbox.write(path, b"x")


async def test_a_link_put_in_place_after_the_check_is_not_followed(
    folder: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve = os.path.realpath

    def resolve_and_plant(path: str) -> str:
        resolved = resolve(path)
        (folder / "late").symlink_to(outside / "secret")
        return resolved

    sandbox = local(folder)
    monkeypatch.setattr(os.path, "realpath", resolve_and_plant)

    with pytest.raises(SandboxError, match="symbolic links"):
        await sandbox.write("late", b"planted")

    assert contents(outside) == {"secret": b"secret"}


async def test_links_within_the_workspace_are_followed(sandbox: LocalSandbox, folder: Path) -> None:
    await sandbox.write("new-good", b"made")

    assert await sandbox.read("good") == b"inside"
    assert contents(folder / "sub") == {"made": b"made"}


async def test_a_written_file_is_read_back(sandbox: LocalSandbox) -> None:
    await sandbox.write("a/b/c.txt", "naïve\r\n")
    await sandbox.write(Path(sandbox.workdir, "a/d"), b"\0\xff")

    assert await sandbox.read(Path("a/b/c.txt")) == "naïve\r\n".encode()
    assert await sandbox.read(f"{sandbox.workdir}/a/d") == b"\0\xff"


async def test_writing_replaces_the_content_and_keeps_the_mode(sandbox: LocalSandbox, folder: Path) -> None:
    (folder / "file").chmod(0o750)

    await sandbox.write("file", b"new")

    assert await sandbox.read("file") == b"new"
    assert stat.S_IMODE(os.stat(folder / "file").st_mode) == 0o750  # noqa: PTH116


async def test_what_utf8_cannot_write_is_refused_before_the_file_is_touched(sandbox: LocalSandbox) -> None:
    with pytest.raises(InvalidArgument, match="UTF-8"):
        await sandbox.write("file", "\ud800")

    assert await sandbox.read("file") == b"inside"


async def test_only_bytes_and_text_can_be_written(sandbox: LocalSandbox) -> None:
    number: str = 1  # pyright: ignore[reportAssignmentType]
    with pytest.raises(InvalidType, match="data must be bytes or str, not int"):
        await sandbox.write("file", number)


async def test_a_huge_file_is_not_read(sandbox: LocalSandbox, folder: Path) -> None:
    os.truncate(folder / "file", READ_LIMIT_BYTES + 1)

    with pytest.raises(SandboxError, match="read it in parts"):
        await sandbox.read("file")


class Bytes(os.PathLike[bytes]):
    def __fspath__(self) -> bytes:
        return b"file"


@pytest.mark.parametrize("path", [None, 1, b"file", Bytes()])
async def test_only_a_path_is_a_path(sandbox: LocalSandbox, path: str) -> None:
    with pytest.raises(InvalidType, match="a path must be"):
        await sandbox.read(path)
    with pytest.raises(InvalidType, match="a path must be"):
        local(path)


@pytest.mark.parametrize("path", ["", "absent", "file", "nul\0"])
def test_a_workspace_must_be_a_folder(folder: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(folder)

    with pytest.raises(SandboxError, match="the workspace"):
        local(path)


def test_the_workdir_is_absolute_and_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)

    sandbox = local("link/.")

    assert sandbox.workdir == str(real.resolve())
    assert repr(sandbox) == f"LocalSandbox({sandbox.workdir!r})"


async def test_temporary_folders_can_be_used_until_the_sandbox_is_closed(sandbox: LocalSandbox) -> None:
    async with sandbox:
        first, second = await sandbox.tempdir(), await sandbox.tempdir()
        await sandbox.write(f"{first}/sub/file", b"x")
        assert await sandbox.read(f"{first}/sub/file") == b"x"
        assert os.listdir(second) == []  # noqa: PTH208

    assert not Path(first).exists()  # noqa: ASYNC240
    assert not Path(second).exists()  # noqa: ASYNC240
    with pytest.raises(SandboxError, match="leads out of the workspace"):
        await sandbox.write(f"{first}/file", b"x")


async def test_a_temporary_folder_of_one_sandbox_is_closed_to_another(
    sandbox: LocalSandbox, tmp_path: Path
) -> None:
    async with sandbox:
        folder = await sandbox.tempdir()
        with pytest.raises(SandboxError, match="leads out of the workspace"):
            await local(tmp_path).write(f"{folder}/file", b"x")


async def test_a_program_is_found_as_it_would_be_started(folder: Path) -> None:
    await local(folder).write("bin/tool", "#!/bin/sh\necho $0\n")
    os.chmod(folder / "bin/tool", 0o755)  # noqa: PTH101
    sandbox = LocalSandbox(folder, environment={"PATH": f"bin{os.pathsep}{os.environ['PATH']}"})

    assert await sandbox.which("tool") == f"{sandbox.workdir}/bin/tool"
    assert await sandbox.which("bin/tool") == f"{sandbox.workdir}/bin/tool"
    assert await sandbox.which("no-such-program") is None
    assert await sandbox.which("") is None
    assert (await sandbox.run(["tool"])).exit_code == 0


async def test_programs_are_found_without_a_search_path(folder: Path) -> None:
    found = await LocalSandbox(folder, environment={}).which("sh")

    assert found is not None
    assert found.endswith("bin/sh")


def test_a_port_is_reached_on_the_loopback_address(sandbox: LocalSandbox) -> None:
    assert sandbox.host_url(8080) == "http://127.0.0.1:8080"


def test_a_local_sandbox_keeps_both_protocols(sandbox: LocalSandbox) -> None:
    typed: Sandbox = sandbox

    assert isinstance(typed, Sandbox)
    assert isinstance(typed, WatchedFolder)
    assert not isinstance(None, WatchedFolder)


def test_the_public_names_are_loaded_when_they_are_asked_for() -> None:
    names = ["CompletedRun", "Isolated", "LocalSandbox", "Process", "Sandbox", "isolated", "local"]
    assert sorted(treadle.sandbox.__all__) == sorted(names)
    assert {name for name in treadle.sandbox.__all__ if getattr(treadle.sandbox, name).__doc__} == set(
        treadle.sandbox.__all__
    )
    assert set(treadle.sandbox.__all__) <= set(dir(treadle.sandbox))
    with pytest.raises(AttributeError, match="has no attribute 'docker'"):
        treadle.sandbox.docker  # noqa: B018


async def test_importing_the_package_loads_nothing_else(folder: Path) -> None:
    program = (
        "import sys, treadle.sandbox; print([m for m in sys.modules if m.startswith(('anyio', 'treadle.'))])"
    )

    run = await local(folder).run([sys.executable, "-c", program])

    assert run.stdout == "['treadle.sandbox']\n"
