"""Skills in archives: what real ones have in them, and what hostile ones try."""

import io
import random
import stat
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.errors import SkillInvalid
from treadle.skills import archive as archive_module
from treadle.skills.archive import Entry, read_archive, read_entries, write_archive
from treadle.skills.package import MAX_BYTES, MAX_ENTRIES, MAX_FILES, Package, read_folder

SKILL = b"---\nname: pdf\ndescription: Fills in forms.\n---\nRun `scripts/fill.py`.\n"

Items = Iterable[tuple[str | zipfile.ZipInfo, bytes]]
Content = Mapping[str, bytes] | Items


def packed(content: Content, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    target = io.BytesIO()
    items = cast("Items", content.items() if isinstance(content, Mapping) else content)
    with zipfile.ZipFile(target, "w", compression) as archive:
        for path, data in items:
            archive.writestr(path, data)
    return target.getvalue()


def read(content: Content | bytes, *, strict: bool = True) -> Package:
    data = content if isinstance(content, bytes) else packed(content)
    return read_archive(io.BytesIO(data), strict=strict)


def refused(content: Content | bytes, *, strict: bool = True) -> str:
    with pytest.raises(SkillInvalid) as caught:
        read(content, strict=strict)
    assert caught.value.problems
    return str(caught.value)


def entry(name: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.create_system = 3
    info.external_attr = mode << 16
    return info


@pytest.mark.parametrize("top", ["", "pdf/"])
def test_an_archive_is_read_with_its_skill_at_the_top_or_in_one_folder(top: str) -> None:
    package = read([(f"{top}SKILL.md", SKILL), (f"{top}core/x.py", b"x"), (f"{top}core/__init__.py", b"")])

    assert package.manifest.name == "pdf"
    assert dict(package.files) == {"SKILL.md": SKILL, "core/x.py": b"x", "core/__init__.py": b""}
    assert package.problems == ()


def test_folders_of_their_own_and_what_macos_adds_are_no_part_of_it() -> None:
    package = read(
        [("pdf/", b""), ("pdf/SKILL.md", SKILL), ("__MACOSX/", b""), ("__MACOSX/pdf/._SKILL.md", b"x")]
    )

    assert list(package.files) == ["SKILL.md"]
    assert package.problems == ()


def test_s6_files_keep_their_folders_and_only_a_whole_name_is_a_manifest() -> None:
    flat = read({"SKILL.md": SKILL, "core/x.py": b"1", "other/x.py": b"2", "..data": b"3"})
    assert list(flat.files) == ["..data", "SKILL.md", "core/x.py", "other/x.py"]

    assert "a skill has this file at its top" in refused({"OLDSKILL.md": SKILL})
    assert "a skill has this file at its top" in refused({"a/SKILL.md": SKILL, "b/SKILL.md": SKILL})


def test_what_public_skills_have_is_taken_with_a_warning_at_most() -> None:
    fonts = {f"pdf/fonts/{n}.ttf": random.Random(n).randbytes(60_000) for n in range(83)}
    head = f'---\nname: pdf\ndescription: "Fills in forms. {"Use it. " * 131}"\n---\n'
    large = head.encode() + b"Line of text.\n" * 5_300
    package = read(
        {**fonts, "pdf/SKILL.md": large, "pdf/a/__init__.py": b"", "pdf/scripts/kit.tar.gz": b"\x1f\x8b"}
    )

    assert len(package.files) == 86
    assert [(problem.severity, problem.file) for problem in package.problems] == [
        ("warning", "scripts/kit.tar.gz"),
        ("warning", "SKILL.md"),
    ]
    named = SKILL.replace(b"name: pdf", b"name: claude-pdf")
    [problem] = read({"claude-pdf/SKILL.md": named}).problems
    assert problem.severity == "warning"


def test_what_is_written_is_read_again_and_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    (tmp_path / "pdf" / "core").mkdir(parents=True)
    (tmp_path / "pdf" / "SKILL.md").write_bytes(SKILL)
    (tmp_path / "pdf" / "core" / "ü.bin").write_bytes(bytes(3 << 20))
    package = read_folder(tmp_path / "pdf", strict=True)

    data = write_archive(package)

    assert read(data) == package
    assert write_archive(read(data)) == data
    assert set(zipfile.ZipFile(io.BytesIO(data)).namelist()) == {"pdf/SKILL.md", "pdf/core/ü.bin"}


def test_files_that_are_sent_one_by_one_hold_to_the_same_rules() -> None:
    def sent(*paths: str) -> Package:
        return read_entries([Entry(path, lambda limit: SKILL[:limit]) for path in paths], strict=True)

    assert list(sent("pdf/SKILL.md", "pdf/a/b").files) == ["SKILL.md", "a/b"]
    for path in ("/pdf/x", "../x", "pdf/../../x", "pdf/x\\y", "pdf/x\0", "other/x", "pdf/skill.MD"):
        with pytest.raises(SkillInvalid):
            sent("pdf/SKILL.md", path)
    for folder in ("", "..", ".", "a\\b"):
        with pytest.raises(SkillInvalid):
            sent(f"{folder}/SKILL.md", f"{folder}/x")


# Hostile


@pytest.mark.parametrize(
    "path",
    [
        *("/etc/passwd", "../x", "a/../../x", "C:\\x", "..\\x", "a//x", "./x", "a/./x"),
        *("skill.md", "a\nb", "x" * 256),
    ],
)
def test_a_path_that_leads_elsewhere_is_refused(path: str) -> None:
    assert refused([("SKILL.md", SKILL), (path, b"x")])
    assert "x" not in read([("SKILL.md", SKILL), (path, b"x")], strict=False).files


@pytest.mark.parametrize("folder", ["", "..", ".", "a\\b", "\u202e"])
def test_a_folder_that_leads_elsewhere_is_not_taken_off(folder: str) -> None:
    assert "a skill has this file at its top" in refused([(f"{folder}/SKILL.md", SKILL)], strict=False)


def test_a_name_with_nul_is_not_cut_off_there() -> None:
    data = packed([("SKILL.md", SKILL), ("a.py#b.txt", b"x")]).replace(b"a.py#b.txt", b"a.py\0b.txt")

    assert r"a.py\x00b.txt: a name is" in refused(data)


def test_a_name_that_is_no_utf8_is_refused_and_one_without_the_flag_is_read() -> None:
    data = packed([("SKILL.md", SKILL), ("b++.txt", b"x")])

    assert "b\u00fc.txt" in read(data.replace(b"b++.txt", "b\u00fc.txt".encode())).files
    assert "of UTF-8" in refused(data.replace(b"b++.txt", b"b\xff\xfe.txt"))


@pytest.mark.parametrize("pair", [("a.txt", "A.txt"), ("x", "x/y"), ("caf\u00e9", "cafe\u0301")])
def test_names_that_are_one_on_other_systems_are_refused(pair: tuple[str, str]) -> None:
    assert "where case does not count" in refused({"SKILL.md": SKILL, pair[0]: b"", pair[1]: b""})


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_file_that_is_there_twice_is_refused() -> None:
    assert "a file is there once" in refused([("SKILL.md", SKILL), ("a", b"1"), ("a", b"2")])


@pytest.mark.parametrize(("kind", "said"), [(stat.S_IFLNK, "a link"), (stat.S_IFIFO, "no regular file")])
def test_links_and_devices_are_refused_or_left_out(kind: int, said: str) -> None:
    content = [("SKILL.md", SKILL), (entry("x", kind | 0o777), b"/etc/passwd")]

    assert f"x: it is {said}" in refused(content)
    assert list(read(content, strict=False).files) == ["SKILL.md"]


def test_s13_a_bomb_is_refused_before_it_is_unpacked() -> None:
    bomb = packed({"SKILL.md": SKILL, **{str(n): bytes(9 << 20) for n in range(4)}})
    tracemalloc.start()
    try:
        assert "compressed to one part in 200 at most" in refused(bomb, strict=False)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


def test_a_size_that_is_a_lie_unpacks_no_more_than_it_says() -> None:
    data = packed({"SKILL.md": SKILL, "x": bytes(8 << 20)})
    lie = data.replace(struct.pack("<L", 8 << 20), struct.pack("<L", 10))

    with pytest.raises(SkillInvalid):
        read(lie, strict=False)


def test_thirty_mebibytes_are_taken_and_no_more() -> None:
    content = {"SKILL.md": SKILL, "a": bytes(10 << 20), "b": bytes(10 << 20)}
    rest = MAX_BYTES - (20 << 20) - len(SKILL)

    assert len(read(packed({**content, "c": bytes(rest)}, zipfile.ZIP_STORED)).files) == 4
    over = packed({**content, "c": bytes(rest + 1)}, zipfile.ZIP_STORED)
    assert refused(over).startswith("c: with it the files have more than 31,457,280 bytes")


def test_many_entries_are_refused_by_number_and_by_the_length_of_their_list() -> None:
    few = packed([("SKILL.md", SKILL), *((str(n), b"") for n in range(MAX_FILES))], zipfile.ZIP_STORED)
    assert "a skill has at most 1,000 files" in refused(few)
    many = packed([("SKILL.md", SKILL), *((str(n), b"") for n in range(MAX_ENTRIES))], zipfile.ZIP_STORED)
    assert "a skill has at most 10,000 files and folders, not 10,001" in refused(many)
    long = packed([("SKILL.md", SKILL), *((f"{n:0200}", b"") for n in range(18_000))], zipfile.ZIP_STORED)
    assert "the list in an archive has at most 4,194,304 bytes" in refused(long)


def test_an_archive_with_a_password_is_refused() -> None:
    data = bytearray(packed({"SKILL.md": SKILL}))
    data[data.rindex(b"PK\1\2") + 8] |= 1

    assert refused(bytes(data)).startswith("SKILL.md: nothing in an archive is encrypted")


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_are_refused(compression: int) -> None:
    assert "stored or deflated" in refused(packed({"SKILL.md": SKILL}, compression))


def test_an_archive_in_an_archive_is_not_looked_into() -> None:
    inner = packed({"../../evil": b"x"})
    package = read({"SKILL.md": SKILL, "a.zip": inner})

    assert package.files["a.zip"] == inner
    assert [problem.rule for problem in package.problems] == ["it is an archive, and nobody looks into it"]
    assert "a skill has this file at its top" in refused({"pdf.zip": packed({"SKILL.md": SKILL})})


def test_zip64_is_refused_since_its_list_has_another_length() -> None:
    data = packed({"SKILL.md": SKILL})
    at = data.rindex(b"PK\5\6")

    assert "no ZIP64" in refused(data[:at] + b"PK\6\7" + bytes(16) + data[at:])


def test_an_archive_that_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "MAX_ARCHIVE_BYTES", 100)

    assert "an archive has at most 100 bytes" in refused({"SKILL.md": SKILL})


WHOLE = packed({"pdf/SKILL.md": SKILL, "pdf/a.py": b"print()" * 99})


@pytest.mark.parametrize(
    "data",
    [b"", b"PK", b"PK\5\6", b"no archive at all", WHOLE[:-10], WHOLE[10:], WHOLE[:60]],
    ids=["nothing", "its mark", "its end", "text", "without its end", "without its beginning", "cut"],
)
def test_what_is_no_archive_is_refused(data: bytes) -> None:
    assert refused(data, strict=False).startswith(".: an archive is a ZIP")


@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=8))
def test_however_an_archive_is_damaged_it_is_a_skill_or_a_typed_error(changes: list[tuple[int, int]]) -> None:
    data = bytearray(WHOLE)
    for at, value in changes:
        data[at] = value
    try:
        package = read(bytes(data), strict=False)
    except SkillInvalid:
        return
    assert "SKILL.md" in package.files


# The reference implementation


@pytest.fixture(scope="module")
def agentskills(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference validator, from the index, in an environment of its own."""
    home = tmp_path_factory.mktemp("reference")
    try:
        subprocess.run(
            [sys.executable, "-m", "venv", str(home)], check=True, capture_output=True, timeout=120
        )
        install = [str(home / "bin" / "pip"), "install", "-q", "skills-ref"]
        subprocess.run(install, check=True, capture_output=True, timeout=180)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"skills-ref cannot be installed here: {error}")
    return home / "bin" / "agentskills"


HEADS = {
    "name: pdf\ndescription: b\n": True,
    "name: pdf\ndescription: 'It does it. Use it: now.'\nlicense: MIT\nallowed-tools: Bash Read\n": True,
    "name: pdf\ndescription: b\nmetadata:\n  version: 1.0\n": True,
    "name: pdf\ndescription: b\ncompatibility: Python\n": True,
    "name: Pdf\ndescription: b\n": False,
    "name: other\ndescription: b\n": False,
    "name: pdf-\ndescription: b\n": False,
    "name: pdf\n": False,
    "description: b\n": False,
    "name: pdf\ndescription: b\nversion: 1\n": False,
    f"name: pdf\ndescription: b\ncompatibility: {'c' * 501}\n": False,
    "": False,
}


@pytest.mark.slow
def test_the_reference_implementation_agrees(agentskills: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pdf"
    folder.mkdir()
    for head, valid in HEADS.items():
        text = f"---\n{head}---\nbody\n"
        (folder / "SKILL.md").write_text(text, "utf-8")
        theirs = subprocess.run(
            [str(agentskills), "validate", str(folder)], capture_output=True, timeout=60, check=False
        )
        try:
            read({"pdf/SKILL.md": text.encode()})
            ours = True
        except SkillInvalid:
            ours = False
        assert (head, ours, theirs.returncode == 0) == (head, valid, valid)
