"""`treadle skills`, as processes."""

import zipfile
from pathlib import Path

import pytest

from tests.cli.processes import treadle

ID = "litellm_skill_00000000-0000-4000-8000-000000000000"


def write(folder: Path, name: str = "pdf", description: str = "Fills in forms.") -> Path:
    skill = folder / name
    (skill / "core").mkdir(parents=True, exist_ok=True)
    (skill / "SKILL.md").write_text(f"---\nname: {name}\ndescription: {description}\n---\nRun it.\n", "utf-8")
    (skill / "core" / "fill.py").write_text("print()\n", "utf-8")
    return skill


def test_a_skill_is_added_listed_shown_found_exported_and_deleted(tmp_path: Path) -> None:
    home = {"TREADLE_HOME": str(tmp_path / "home")}
    write(tmp_path)

    added = treadle(tmp_path, "skills", "add", "pdf", "--display-name", "Forms", **home)
    assert (added.returncode, "warning" in added.stderr) == (0, False)
    skill = added.stdout.strip()
    assert skill.startswith("litellm_skill_")
    listed = treadle(tmp_path, "skills", "list", **home).stdout
    assert listed == f"{skill}  pdf  Forms  server, shared with all\n"
    assert treadle(tmp_path, "skills", "search", "forms", **home).stdout == listed
    assert treadle(tmp_path, "skills", "search", "gifs", **home).stdout == ""

    write(tmp_path, description="Better.")
    second = treadle(tmp_path, "skills", "add", "pdf", "--version-of", skill, **home).stdout.strip()
    shown = treadle(tmp_path, "skills", "show", skill, **home).stdout.splitlines()
    assert shown[:2] == [listed.strip(), "Better."]
    assert shown[2].startswith(f"{second}  ")
    first = shown[3].split()[0]

    written = treadle(tmp_path, "skills", "export", skill, "pdf.zip", "--version", first, **home)
    assert written.returncode == 0
    with zipfile.ZipFile(tmp_path / "pdf.zip") as archive:
        assert archive.namelist() == ["pdf/SKILL.md", "pdf/core/fill.py"]
    again = treadle(tmp_path, "skills", "export", skill, "pdf.zip", **home)
    assert (again.returncode, "name another one" in again.stderr) == (2, True)

    assert treadle(tmp_path, "skills", "delete", skill, "--version", first, **home).returncode == 0
    assert treadle(tmp_path, "skills", "delete", skill, "--version", second, **home).returncode == 2
    assert treadle(tmp_path, "skills", "delete", skill, **home).returncode == 0
    assert treadle(tmp_path, "skills", "list", **home).stdout == ""
    gone = treadle(tmp_path, "skills", "show", skill, **home)
    assert (gone.returncode, f"Error: Skill `{skill}` not found.\n" in gone.stderr) == (2, True)


def test_a_skill_is_named_by_its_name_while_no_other_has_it(tmp_path: Path) -> None:
    home = {"TREADLE_HOME": str(tmp_path / "home")}
    write(tmp_path)
    first = treadle(tmp_path, "skills", "add", "pdf", **home).stdout.strip()

    shown = treadle(tmp_path, "skills", "show", "pdf", **home)
    assert shown.stdout == treadle(tmp_path, "skills", "show", first, **home).stdout != ""
    assert treadle(tmp_path, "skills", "export", "pdf", "pdf.zip", **home).returncode == 0
    assert zipfile.is_zipfile(tmp_path / "pdf.zip")
    added = treadle(tmp_path, "skills", "add", "pdf", "--version-of", "pdf", **home).stdout.strip()
    assert treadle(tmp_path, "skills", "delete", "pdf", "--version", added, **home).returncode == 0
    missing = treadle(tmp_path, "skills", "show", "docx", **home)
    assert (missing.returncode, "Skill `docx` not found." in missing.stderr) == (2, True)

    second = treadle(tmp_path, "skills", "add", "pdf", **home).stdout.strip()
    for command in (["show", "pdf"], ["export", "pdf", "x.zip"], ["delete", "pdf"]):
        both = treadle(tmp_path, "skills", *command, **home)
        assert both.returncode == 2
        assert f"several skills are called 'pdf': give the id of one, {second}, {first}" in both.stderr
    assert not (tmp_path / "x.zip").exists()
    assert treadle(tmp_path, "skills", "delete", second, **home).returncode == 0
    assert treadle(tmp_path, "skills", "delete", "pdf", **home).returncode == 0
    assert treadle(tmp_path, "skills", "list", **home).stdout == ""


def test_a_skill_of_a_team_is_added_from_an_archive(tmp_path: Path) -> None:
    home = {"TREADLE_HOME": str(tmp_path / "home")}
    with zipfile.ZipFile(tmp_path / "pdf.zip", "w") as archive:
        archive.write(write(tmp_path) / "SKILL.md", "pdf/SKILL.md")

    assert treadle(tmp_path, "skills", "add", "pdf.zip", "--team", "t", **home).returncode == 0
    assert treadle(tmp_path, "skills", "list", **home).stdout.endswith("  pdf  pdf  team:t\n")
    both = treadle(tmp_path, "skills", "add", "pdf.zip", "--team", "t", "--version-of", ID, **home)
    assert (both.returncode, "--version-of alone" in both.stderr) == (2, True)
    none = treadle(tmp_path, "skills", "add", "pdf.zip", "--version-of", ID, **home)
    assert (none.returncode, f"Error: Skill `{ID}` not found.\n" in none.stderr) == (2, True)


def test_a_package_is_validated_without_a_database(tmp_path: Path) -> None:
    nowhere = {"DATABASE_URL": "postgresql://u:p@127.0.0.1:1/d"}
    skill = write(tmp_path)
    (skill / "kit.zip").write_bytes(b"")

    good = treadle(tmp_path, "skills", "validate", "pdf", **nowhere)
    assert (good.returncode, good.stdout) == (0, "pdf is a skill of 3 files\n")
    assert "warning: kit.zip: it is an archive, and nobody looks into it" in good.stderr

    (skill / "SKILL.md").write_text("---\nname: Pdf\ndescription: b\nversion: 1\n---\nx", "utf-8")
    bad = treadle(tmp_path, "skills", "validate", "pdf", **nowhere)
    assert (bad.returncode, bad.stdout) == (1, "")
    for said in ("error: SKILL.md, line 2: a name is", "error: SKILL.md, line 2: the name is", "line 4: "):
        assert said in bad.stderr


@pytest.mark.parametrize("command", ["validate", "add"])
def test_what_is_no_package_is_refused_in_a_sentence(tmp_path: Path, command: str) -> None:
    (tmp_path / "x.zip").write_bytes(b"no archive\x1b[31m")
    done = treadle(tmp_path, "skills", command, "x.zip", TREADLE_HOME=str(tmp_path / "home"))

    assert done.returncode in (1, 2)
    assert "an archive is a ZIP" in done.stderr
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr
