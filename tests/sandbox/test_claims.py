"""What an engine claims on the host, where others were there before, or came since."""

import os
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("claims are Linux's", allow_module_level=True)

from treadle.sandbox.claims import (
    _work_is_gone,  # pyright: ignore[reportPrivateUsage]  of root, its place is the machine's own
    claim,
)

ORDINARY = 65_534

TAKEN: dict[str, Callable[[Path], object]] = {
    "a file": lambda place: place.write_bytes(b""),
    "a link that leads nowhere": lambda place: place.symlink_to("/nowhere"),
    "a link to a folder": lambda place: place.symlink_to(place.parent),
    "a pipe": os.mkfifo,
    "a folder that others may enter": lambda place: (place.mkdir(), place.chmod(0o755)),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where an ordinary user has its claims."""
    uid = os.geteuid() or ORDINARY
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: uid)  # root has another place, which its engines share
    return tmp_path / f"treadle-{uid}"


@pytest.mark.parametrize("kind", TAKEN)
def test_what_stands_at_the_place_of_the_claims_is_left_alone(kind: str, place: Path) -> None:
    TAKEN[kind](place)
    before = place.lstat()

    claimed = claim()

    assert claimed.folder.is_dir()
    beside = claimed.folder.parent
    assert beside != place
    assert beside.parent == place.parent
    assert stat.S_IMODE(beside.lstat().st_mode) == 0o700
    claimed.release()
    assert not claimed.folder.exists()
    assert (place.lstat().st_ino, place.lstat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to make files of another user")
def test_files_of_another_user_at_the_place_of_a_dead_claim_are_left_alone(tmp_path: Path) -> None:
    others, ours = tmp_path / "others", tmp_path / "ours"
    for folder in (others, ours):
        (folder / "sub").mkdir(parents=True)
        (folder / "sub" / "file").write_bytes(b"x")
    os.chown(others, ORDINARY, ORDINARY)
    for folder in (others, ours):
        (tmp_path / f"engine-{folder.name}.work").symlink_to(folder)

    _work_is_gone(tmp_path / "engine-others")
    assert _work_is_gone(tmp_path / "engine-ours")

    assert (others / "sub" / "file").read_bytes() == b"x"
    assert others.stat().st_uid == ORDINARY
    assert not ours.exists()
