"""Skills in folders: what is read, what is left out, what is refused."""

import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.errors import InvalidArgument, InvalidType, SkillInvalid, status_of
from treadle.skills import package as package_module
from treadle.skills.package import (
    MAX_BYTES,
    MAX_ENTRIES,
    MAX_FILE_BYTES,
    MAX_FILES,
    Intake,
    Package,
    read_folder,
)

SKILL = b"---\nname: pdf\ndescription: Fills in forms.\n---\nRun `scripts/fill.py`.\n"

Write = Callable[[Mapping[str, bytes]], Path]


def written(folder: Path, files: Mapping[str, bytes]) -> Path:
    """`folder`, with `files` and a SKILL.md in it."""
    for path, data in {"SKILL.md": SKILL, **files}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


@pytest.fixture(params=["descriptors", "paths"])
def write(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Write:
    """Writes a folder `pdf`, which is then read both ways: by descriptors, and as where there are none."""
    if request.param == "paths":
        monkeypatch.setattr(package_module, "_BY_DESCRIPTOR", False)
    return lambda files: written(tmp_path / "pdf", files)


def oddities(package: Package) -> list[tuple[str, str]]:
    assert {problem.severity for problem in package.problems} <= {"warning"}
    return [(problem.file, problem.rule) for problem in package.problems]


def refused(folder: Path, *, strict: bool = False) -> str:
    with pytest.raises(SkillInvalid) as caught:
        read_folder(folder, strict=strict)
    return str(caught.value)


def test_a_folder_is_read_whole_and_in_order(write: Write) -> None:
    folder = write({"scripts/fill.py": b"print()", "a.bin": b"\x00\xff", "B.txt": b"", "..note": b"n"})

    package = read_folder(folder, strict=True)

    assert package.manifest.name == "pdf"
    assert package.problems == ()
    assert list(package.files.items()) == [
        ("..note", b"n"),
        ("B.txt", b""),
        ("SKILL.md", SKILL),
        ("a.bin", b"\x00\xff"),
        ("scripts/fill.py", b"print()"),
    ]


def test_paths_of_every_kind_are_taken(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write({})
    monkeypatch.chdir(folder)

    assert read_folder(folder) == read_folder(str(folder)) == read_folder(".", strict=True)


def test_what_tools_leave_behind_is_left_out_without_a_word(write: Write) -> None:
    package = read_folder(
        write({".git/config": b"", "a/__pycache__/b.pyc": b"", "a/.DS_Store": b"", "a/b.py": b""}),
        strict=True,
    )

    assert list(package.files) == ["SKILL.md", "a/b.py"]
    assert package.problems == ()


def test_links_and_what_is_no_regular_file_are_left_out_with_a_warning(write: Write, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"secret")
    folder = write({})
    (folder / "file").symlink_to(tmp_path / "outside" / "secret")
    (folder / "folder").symlink_to(tmp_path / "outside")
    (folder / "loop").symlink_to(".")
    (folder / "gone").symlink_to("nowhere")
    os.mkfifo(folder / "pipe")

    package = read_folder(folder, strict=True)

    assert list(package.files) == ["SKILL.md"]
    assert oddities(package) == [
        ("file", "it is a link, and is left out"),
        ("folder", "it is a link, and is left out"),
        ("gone", "it is a link, and is left out"),
        ("loop", "it is a link, and is left out"),
        ("pipe", "it is no regular file, and is left out"),
    ]


def test_a_manifest_that_is_a_link_is_none(write: Write, tmp_path: Path) -> None:
    folder = write({})
    (folder / "SKILL.md").rename(tmp_path / "elsewhere.md")
    (folder / "SKILL.md").symlink_to(tmp_path / "elsewhere.md")

    assert refused(folder).startswith("SKILL.md: a skill has this file at its top: ")


def test_the_folder_itself_may_be_a_link_and_has_its_own_name(write: Write, tmp_path: Path) -> None:
    folder = write({})
    (tmp_path / "other").symlink_to(folder)

    assert read_folder(tmp_path / "other", strict=True) == read_folder(folder)


def test_a_manifest_in_another_spelling_is_odd_and_gets_its_name(write: Write) -> None:
    folder = write({})
    (folder / "SKILL.md").rename(folder / "skill.md")

    package = read_folder(folder)

    assert dict(package.files) == {"SKILL.md": SKILL}
    assert oddities(package) == [("skill.md", "its name is SKILL.md")]
    assert refused(folder, strict=True) == "skill.md: its name is SKILL.md: rename it"


def test_a_manifest_is_not_one_that_only_ends_so_or_is_deeper(write: Write) -> None:
    folder = write({"OLDSKILL.md": SKILL, "inner/SKILL.md": SKILL})
    (folder / "SKILL.md").unlink()

    assert refused(folder).startswith("SKILL.md: a skill has this file at its top: ")


def test_what_is_wrong_in_the_manifest_refuses_the_package(write: Write) -> None:
    folder = write({"SKILL.md": b"---\nname: pdf\n---\n"})

    with pytest.raises(
        SkillInvalid, match=r"^SKILL\.md, line 1: a skill has a description: write "
    ) as caught:
        read_folder(folder)

    assert caught.value.problems == (str(caught.value),)
    assert isinstance(caught.value, InvalidArgument)
    assert status_of(caught.value) == 400


def test_a_strict_reader_refuses_what_a_lenient_one_warns_of_and_says_all_of_it(write: Write) -> None:
    fields = "".join(f"field-{count}: x\n" for count in range(7))
    folder = write({"SKILL.md": f"---\nname: Other\ndescription: b\n{fields}---\nbody".encode()})

    assert len(read_folder(folder).problems) == 9
    with pytest.raises(SkillInvalid) as caught:
        read_folder(folder, strict=True)
    assert caught.value.problems == tuple(map(str, read_folder(folder).problems))
    assert str(caught.value) == "; ".join(caught.value.problems[:5]) + "; and 4 more"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"a\xffb", "a\\udcffb"),
        (b"a\nb", "a\\nb"),
        (b"a\x1bb", "a\\x1bb"),
        (b"a\\b", "a\\b"),
        ("a\u202eb".encode(), "a\\u202eb"),
        ("a\u2028b".encode(), "a\\u2028b"),
    ],
)
def test_a_name_that_cannot_be_shown_is_odd_and_left_out(write: Write, name: bytes, shown: str) -> None:
    folder = write({})
    for path in (os.fsdecode(name), f"inner-{os.fsdecode(name)}/x"):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).touch()

    package = read_folder(folder)

    assert list(package.files) == ["SKILL.md"]
    assert [problem.file for problem in package.problems] == [shown, f"inner-{shown}"]
    assert refused(folder, strict=True).startswith(f"{shown}: a name is 1 to 255 bytes of UTF-8")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("A.txt", "a.txt"),
        ("A/b.txt", "a/b.txt"),
        ("A/b.txt", "a/c.txt"),
        ("A", "a/c.txt"),
        ("STRASSE", "straße"),
        ("caf\u00e9", "cafe\u0301"),
    ],
)
def test_names_that_differ_only_in_case_are_odd_and_kept(write: Write, first: str, second: str) -> None:
    folder = write({first: b"1", second: b"2"})

    package = read_folder(folder)

    assert dict(package.files) == {"SKILL.md": SKILL, first: b"1", second: b"2"}
    [(_, rule)] = oddities(package)
    assert rule.startswith("it is the same path as '")
    assert "where case does not count" in refused(folder, strict=True)


def test_a_thousand_files_are_read_and_not_one_more(write: Write) -> None:
    folder = write({f"{count:04}": b"" for count in range(MAX_FILES - 1)})
    assert len(read_folder(folder).files) == MAX_FILES

    (folder / "more").touch()
    assert refused(folder) == "more: a skill has at most 1,000 files: remove what it does not need"


def test_a_file_of_ten_mebibytes_is_read_and_no_larger_one(write: Write) -> None:
    folder = write({"large": b""})
    os.truncate(folder / "large", MAX_FILE_BYTES)
    assert len(read_folder(folder).files["large"]) == MAX_FILE_BYTES

    os.truncate(folder / "large", MAX_FILE_BYTES << 10)
    assert refused(folder) == "large: a file has at most 10,485,760 bytes: make it smaller"


def test_thirty_mebibytes_are_read_and_no_more(write: Write) -> None:
    folder = write({"a": b"", "b": b"", "c": b""})
    for name in "ab":
        os.truncate(folder / name, MAX_FILE_BYTES)
    os.truncate(folder / "c", MAX_FILE_BYTES - len(SKILL))
    assert sum(map(len, read_folder(folder).files.values())) == MAX_BYTES

    os.truncate(folder / "c", MAX_FILE_BYTES - len(SKILL) + 1)
    assert refused(folder) == "c: with it the files have more than 31,457,280 bytes: make them smaller"


def test_sixteen_levels_are_read_and_no_more(write: Write) -> None:
    deep = "d/" * 15
    assert f"{deep}f" in read_folder(write({f"{deep}f": b""})).files

    assert refused(write({f"{deep}d/f": b""})).startswith(f"{deep}d/f: a path has at most 16 parts")


def test_a_long_path_is_refused(write: Write) -> None:
    long = "/".join(["é" * 100] * 5)

    assert read_folder(write({f"{long}/{'f' * 19}": b""})).files
    assert "a path has at most 1,024 bytes" in refused(write({f"{long}/{'f' * 20}": b""}))


def test_a_folder_of_folders_without_end_is_refused(write: Write) -> None:
    folder = write({})
    for count in range(MAX_ENTRIES):
        (folder / str(count)).mkdir()

    assert refused(folder).startswith(".: a skill has at most 10,000 files and folders")


@pytest.mark.parametrize("path", ["/nowhere/at/all", "a\0b", "\ud800", ""])
def test_a_path_that_leads_nowhere_is_refused(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(SkillInvalid):
        read_folder(path)


def test_a_file_is_no_folder(write: Write) -> None:
    assert "it cannot be read (Not a directory)" in refused(write({}) / "SKILL.md")


def test_what_is_no_path_is_refused() -> None:
    with pytest.raises(InvalidType, match="not int"):
        read_folder(7)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_folder_that_is_replaced_by_a_link_meanwhile_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(b"secret")
    folder = written(tmp_path / "pdf", {"inner/file": b"ours"})
    opened = vars(package_module)["_opened"]

    def replace() -> None:
        (folder / "inner").rename(tmp_path / "moved")
        (folder / "inner").symlink_to(tmp_path / "outside")

    @contextmanager
    def racing(path: str, above: int | None) -> Generator[int | None]:
        if path == "inner" and moment == "before":
            replace()
        with opened(path, above) as descriptor:
            if path == "inner" and moment == "after":
                replace()
            yield descriptor

    monkeypatch.setattr(package_module, "_opened", racing)

    if moment == "after":
        assert read_folder(folder).files["inner/file"] == b"ours"
    else:
        assert refused(folder).startswith("inner: it cannot be read (")


# What an archive may say, and no folder


def test_an_archive_holds_to_the_same_rules() -> None:
    intake = Intake()
    wanted = [
        path
        for path in (
            "SKILL.md",
            "/etc/passwd",
            "../x",
            "a/../x",
            "a//x",
            "a\\x",
            "a/.git/x",
            "./x",
            "a/",
            "..x",
            "",
        )
        if intake.wants(path)
    ]
    for path in wanted:
        intake.add(path, SKILL if path == "SKILL.md" else b"")

    package = intake.package("pdf")

    assert list(package.files) == ["..x", "SKILL.md"]
    assert [problem.file for problem in package.problems] == [
        "/etc/passwd", "../x", "a/../x", "a//x", "a\\x", "./x", "a/", "",
    ]  # fmt: skip


def test_a_file_that_is_there_twice_is_refused() -> None:
    intake = Intake()
    intake.add("SKILL.md", SKILL)

    with pytest.raises(SkillInvalid, match=r"^SKILL\.md: a file is there once: "):
        intake.add("SKILL.md", b"")


def test_a_path_that_is_file_and_folder_is_odd() -> None:
    intake = Intake()
    intake.add("SKILL.md", SKILL)
    intake.add("a", b"")
    intake.add("a/b", b"")

    assert [problem.file for problem in intake.package(None).problems] == ["a"]


@given(st.lists(st.text(alphabet="aAb./\\\n\udcffé", max_size=8), max_size=12))
def test_every_path_that_is_taken_stays_in_its_folder(paths: list[str]) -> None:
    intake = Intake()
    for path in ["SKILL.md", *dict.fromkeys(paths)]:
        if intake.wants(path):
            intake.add(path, SKILL)

    for path in intake.package(None).files:
        assert os.path.normpath(f"/skill/{path}") == f"/skill/{path}"
        assert path.isprintable()
        assert path.encode()
