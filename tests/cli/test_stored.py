"""`treadle db` and `treadle keys`, as processes."""

import re
import stat
from pathlib import Path

import pytest

from tests.cli.processes import treadle


def test_keys_are_made_listed_and_deleted(tmp_path: Path) -> None:
    home = str(tmp_path / "home")

    made = treadle(tmp_path, "keys", "create", "ci", TREADLE_HOME=home)
    assert made.returncode == 0
    secret = made.stdout.strip()
    assert re.fullmatch(r"sk-[\w-]{43}", secret)
    assert stat.S_IMODE((tmp_path / "home" / "gateway.db").stat().st_mode) == 0o600

    listed = treadle(tmp_path, "keys", "list", TREADLE_HOME=home)
    assert listed.stdout.startswith(f"ci  sk-...{secret[-4:]}  ")
    assert secret not in listed.stdout

    again = treadle(tmp_path, "keys", "create", "ci", TREADLE_HOME=home)
    assert (again.returncode, "choose another" in again.stderr) == (1, True)

    wrong = treadle(tmp_path, "keys", "create", "a\nb", TREADLE_HOME=home)
    assert (wrong.returncode, "alias" in wrong.stderr) == (2, True)

    assert treadle(tmp_path, "keys", "delete", "ci", TREADLE_HOME=home).returncode == 0
    assert treadle(tmp_path, "keys", "list", TREADLE_HOME=home).stdout == ""
    assert treadle(tmp_path, "keys", "delete", "ci", TREADLE_HOME=home).returncode == 2


def test_a_backup_is_a_database_that_can_be_used(tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    treadle(tmp_path, "keys", "create", "ci", TREADLE_HOME=str(home))
    other.mkdir()

    done = treadle(tmp_path, "db", "backup", "other/gateway.db", TREADLE_HOME=str(home))
    assert done.returncode == 0
    assert treadle(tmp_path, "keys", "list", TREADLE_HOME=str(other)).stdout.startswith("ci ")
    again = treadle(tmp_path, "db", "backup", "other/gateway.db", TREADLE_HOME=str(home))
    assert (again.returncode, "name another one" in again.stderr) == (2, True)


def test_the_database_is_upgraded_where_it_is(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"

    done = treadle(tmp_path, "db", "upgrade", DATABASE_URL=url)

    assert done.returncode == 0
    assert re.search(r"x\.db is of revision \d{4}", done.stdout)


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("mysql://u:secret-word@h/d", 2, "'mysql' cannot be used"),
        ("postgresql://u:secret-word@127.0.0.1:1/d", 1, "failed"),
    ],
)
def test_a_database_that_cannot_be_used_is_an_error_without_its_password(
    tmp_path: Path, url: str, code: int, said: str
) -> None:
    done = treadle(tmp_path, "db", "upgrade", DATABASE_URL=url)

    assert done.returncode == code
    assert said in done.stderr
    assert "secret-word" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_backup_of_postgresql_names_its_own_tool(tmp_path: Path) -> None:
    done = treadle(tmp_path, "db", "backup", "x", DATABASE_URL="postgresql://u:p@h/d")

    assert done.returncode == 2
    assert "pg_dump" in done.stderr
