"""`treadle packages`, as a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sandbox.wheels import LINUX_ALONE, shop, source, wheel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason=LINUX_ALONE)

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = shop(tmp_path, monkeypatch)
    wheel(folder, "tiny")
    monkeypatch.chdir(tmp_path)
    return folder


def treadle(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-X", "dev", "-W", "error", "-m", "treadle.cli.main", "packages", *arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.usefixtures("links")
def test_a_set_is_built_and_listed() -> None:
    Path("own.txt").write_text("# mine\nTiny >= 1\n", "utf-8-sig")
    built = treadle("build", "own", "--requirements", "own.txt")
    again = treadle("build", "own", "--requirements", "own.txt")
    listed = treadle("list")

    assert built.returncode == 0, built.stderr
    assert built.stdout.startswith(f"own: 1 package, 0.0 MiB, Python {VERSION} (")
    assert "Successfully installed tiny-1.0" in built.stderr
    assert (again.returncode, again.stdout) == (0, built.stdout)
    assert "own is built already" in again.stderr
    assert listed.stdout == (
        built.stdout + "data: not built for this Python: run `treadle packages build data`\n"
    )
    assert (listed.returncode, listed.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("Data",), "1 to 64 of a-z"),
        (("own",), "there is no built-in set 'own', only data"),
        (("data", "--requirements", "own.txt"), "the set 'data' is built in"),
        (("own", "--requirements", "own.txt"), "own.txt, line 2: '-e .': a folder cannot be installed"),
        (("own", "--requirements", "raw.txt"), "raw.txt cannot be read as UTF-8 text"),
        (("own", "--requirements", "long.txt"), "long.txt has more than 500 lines or 64 KiB"),
        (("own", "--requirements", "gone.txt"), "does not exist"),
        (("own", "--timeout", "0"), "0"),
    ],
)
def test_wrong_options_end_with_2(arguments: tuple[str, ...], told: str, links: Path) -> None:
    Path("own.txt").write_text("tiny\n-e .\n", "utf-8")
    Path("raw.txt").write_bytes(b"\xff\xfe")
    Path("long.txt").write_text("#" * 70_000, "utf-8")
    ran = treadle("build", *arguments)

    assert (ran.returncode, ran.stdout) == (2, "")
    assert told in ran.stderr
    assert not (links.parent / "store").exists()


def test_what_cannot_be_built_ends_with_1(links: Path, tmp_path: Path) -> None:
    source(links, "late", tmp_path / "trace")
    Path("own.txt").write_text("late\n", "utf-8")
    ran = treadle("build", "own", "--requirements", "own.txt")

    assert (ran.returncode, ran.stdout) == (1, "")
    assert "Error: there is no wheel of 'late' for Python" in ran.stderr


@pytest.mark.usefixtures("links")
def test_sets_that_cannot_be_used_are_listed_with_the_reason() -> None:
    Path("store").mkdir(mode=0o755)
    Path("store/old-0123456789abcdef").mkdir(mode=0o755)
    listed = treadle("list")

    assert listed.returncode == 0
    assert listed.stdout.splitlines()[0].startswith(
        "old-0123456789abcdef: cannot be used: manifest.json: No such file"
    )


@pytest.mark.usefixtures("links")
def test_a_store_that_others_can_write_to_is_an_error() -> None:
    Path("store").mkdir()
    Path("store").chmod(0o777)
    listed = treadle("list")

    assert (listed.returncode, listed.stdout) == (1, "")
    assert "can be written by others" in listed.stderr
