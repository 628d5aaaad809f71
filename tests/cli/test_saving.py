"""Files whose names a stranger chose, saved below a folder."""

from pathlib import Path

import pytest

from treadle.cli.saving import MAX_DEPTH, save
from treadle.conversation.events import FileChange


def written(path: str, data: bytes | None = b"new") -> FileChange:
    return FileChange(path, "created", data=data)


def test_files_are_saved_with_their_folders(tmp_path: Path) -> None:
    saved = save([written("a.txt"), written("deep/er/b.bin", b"\0")], tmp_path)

    assert [each.where for each in saved] == [tmp_path / "a.txt", tmp_path / "deep/er/b.bin"]
    assert (tmp_path / "a.txt").read_bytes() == b"new"
    assert (tmp_path / "deep/er/b.bin").read_bytes() == b"\0"


def test_files_that_are_on_this_machine_already_are_none_of_its_business(tmp_path: Path) -> None:
    assert save([written("project/a.txt", None)], tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(b"old")
    saved = save([written("a.tar.gz"), written("a.tar.gz")], tmp_path)

    assert [each.where for each in saved] == [tmp_path / "a.tar-2.gz", tmp_path / "a.tar-3.gz"]
    assert (tmp_path / "a.tar.gz").read_bytes() == b"old"
    assert (tmp_path / "a.tar-3.gz").read_bytes() == b"new"


@pytest.mark.parametrize(
    "path",
    [
        "../a",
        "a/../../b",
        "/etc/a",
        "a//b",
        "a/",
        "",
        ".",
        "./a",
        ".bashrc",
        ".git/hooks/post-commit",
        "a/.hidden",
        "a\0b",
        "a\nb",
        "\x1b[2J",
        "a\u202eb",
        "a\udc80",
        "a\\b",
        "x" * 256,
        "/".join("a" * (MAX_DEPTH + 1)),
    ],
)
def test_a_name_that_is_none_for_a_file_is_not_taken(path: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (saved,) = save([written(path)], folder)

    assert saved.where is None
    assert "is not taken" in saved.fault
    assert list(tmp_path.iterdir()) == [folder]
    assert list(folder.iterdir()) == []


def test_links_that_somebody_put_there_are_not_followed(tmp_path: Path) -> None:
    folder, outside = tmp_path / "out", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (folder / "link").symlink_to(outside)
    (folder / "a.txt").symlink_to(outside / "a.txt")
    through, beside = save([written("link/b.txt"), written("a.txt")], folder)

    assert (through.where, through.fault != "") == (None, True)
    assert beside.where == folder / "a-2.txt"
    assert list(outside.iterdir()) == []


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    (saved,) = save([written("a.txt")], tmp_path / "out")

    assert saved.where == tmp_path / "out/a.txt"
    assert (tmp_path / "real/a.txt").read_bytes() == b"new"


def test_what_cannot_be_written_is_told_and_the_others_are_saved(tmp_path: Path) -> None:
    (tmp_path / "taken").write_bytes(b"a file")
    wrong, right = save([written("taken/a.txt"), written("b.txt")], tmp_path)

    assert (wrong.where, wrong.fault) == (None, "Not a directory")
    assert right.where == tmp_path / "b.txt"
