"""A hook without a proxy, in LiteLLM's environment: what is wrong is said at its start, or to the client."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import treadle
from tests.skills.test_store import package
from treadle.skills.store import Skills
from treadle.storage.database import Database

pytestmark = pytest.mark.slow

IMPORTED = "import treadle.plugins.litellm_proxy"
PROGRAM = Path(__file__).with_name("hook_program.py")
LIMIT_S = 120


def ran(programs: Path, home: Path, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    source = str(Path(treadle.__file__).parents[1])
    known = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": source}
    return subprocess.run(
        [programs / "python", *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={**known, "LITELLM_LOCAL_MODEL_COST_MAP": "True", **variables},
    )


def test_a_database_that_cannot_be_stops_the_proxy(programs: Path, tmp_path: Path) -> None:
    tried = ran(programs, tmp_path, "-c", IMPORTED, TREADLE_DATABASE_URL="mysql://me:rosebud@host/name")

    assert tried.returncode == 1
    assert "InvalidArgument: a database of kind 'mysql' cannot be used" in tried.stderr
    assert "rosebud" not in tried.stderr


def test_what_is_not_installed_is_named(programs: Path, tmp_path: Path) -> None:
    tried = ran(programs, tmp_path, "-c", f"import sys\nsys.modules['aiosqlite'] = None\n{IMPORTED}")

    assert "pip install 'treadle[gateway]'" in tried.stderr


REFUSED: list[tuple[dict[str, object], str]] = [
    ({"max_iterations": 0}, "max_iterations must be 1 or more"),
    ({"max_iterations": True}, "max_iterations must be 1 or more"),
    ({"max_containers_per_owner": 0}, "max_containers_per_owner must be 1 or more"),
    ({"sandbox_timeout": -1}, "sandbox_timeout must be seconds above 0"),
    ({"sandbox_timeout": "nan"}, "sandbox_timeout must be seconds above 0"),
    ({"database_url": "rosebud"}, "this is no URL of a database"),
    ({"database_url": "postgresql://me:rosebud@host/name"}, "pip install 'treadle[postgres]'"),
]
TRY = """
import json, sys
from treadle.plugins.litellm_proxy import SkillsInjectionHook
for options in json.loads(sys.argv[1]):
    try:
        SkillsInjectionHook(**options)
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_options_that_cannot_be_are_refused(programs: Path, tmp_path: Path) -> None:
    tried = ran(programs, tmp_path, "-c", TRY, json.dumps([options for options, _ in REFUSED]))

    assert tried.stderr == ""
    for line, (_, said) in zip(tried.stdout.splitlines(), REFUSED, strict=True):
        assert line.startswith(("InvalidArgument ", "MissingExtra "))
        assert said in line
        assert "rosebud" not in line


async def stored(url: str) -> str:
    async with Database.open(url) as database:
        return (await Skills(database).create("user:me", package("notes", "Takes notes."))).id


async def told(programs: Path, folder: Path, url: str, skill: str) -> dict[str, Any]:
    tried = ran(programs, folder, str(PROGRAM), url, skill)
    assert tried.returncode == 0, tried.stderr
    return json.loads(tried.stdout)


async def test_a_request_whose_model_never_answers_is_not_kept(programs: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/skills.db"

    assert await told(programs, tmp_path, url, await stored(url)) == {"tools": 2, "kept": False}


async def test_a_database_that_is_away_is_the_servers_fault_and_its_place_is_not_told(
    programs: Path, tmp_path: Path
) -> None:
    (tmp_path / "skills.db").mkdir()

    said = await told(programs, tmp_path, f"sqlite:///{tmp_path}/skills.db", "litellm_skill_1")

    assert (said["code"], said["headers"]) == ("503", {"retry-after": "1"})
    assert said["message"] == "the database of the server does not answer: send the request again"
