"""`treadle run --code`, as a process of its own against the strict fake."""

import json
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import (
    LIMIT_S,
    at_a_terminal,
    command,
    environment,
    heed_ctrl_c,
    run,
    treadle,
)
from treadle.sandbox.ladder import probe
from treadle.testing import Script, call, say, upstream

pytestmark = pytest.mark.skipif(probe().rung is None, reason=probe().why)

TOOLS = '''
def price(item: str) -> dict[str, int]:
    """The price of an item."""
    return {"cents": len(item) * 100}

def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"
'''
PROGRAM = """\
prices = [await price(item) for item in ("nut", "bolt")]
print("together", sum(each["cents"] for each in prices))
open("bill.txt", "w").write("nut, bolt")
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "my_tools.py").write_text(TOOLS, "utf-8")
    return tmp_path


def coded(code: str) -> Script:
    return [call("code_execution", code=code), say("done")]


def test_code_its_calls_its_output_and_its_end_are_shown(workspace: Path) -> None:
    ran = run(workspace, coded(PROGRAM), "--code", "--tools", "my_tools:price")
    lines = ran.stderr.splitlines()

    assert (ran.returncode, ran.stdout) == (0, "done\n")
    assert lines[:2] == ["code:", '   1  prices = [await price(item) for item in ("nut", "bolt")]']
    assert [line.split("  0.")[0] for line in lines if "price(item=" in line] == [
        '  → price(item="nut")',
        '  → price(item="bolt")',
    ]
    assert "| together 700" in lines
    assert any(line.startswith("→ code, 2 tool calls  0.") for line in lines)
    assert "created bill.txt in the container (9 bytes)" in lines
    assert "spared by code: 1 model call, about 3 tokens" in ran.stderr
    assert "1 file was in the container alone, and not saved: --out FOLDER saves such" in lines
    assert not (workspace / "bill.txt").exists()


def test_files_are_saved_where_the_user_says_and_replace_nothing(workspace: Path) -> None:
    arguments = ("--code", "--tools", "my_tools:price", "--out", "made")
    first = run(workspace, coded(PROGRAM), *arguments)
    again = run(workspace, coded(PROGRAM), *arguments)

    assert (first.returncode, again.returncode) == (0, 0)
    assert "saved made/bill.txt\n" in first.stderr
    assert "saved made/bill-2.txt\n" in again.stderr
    assert sorted(path.name for path in (workspace / "made").iterdir()) == ["bill-2.txt", "bill.txt"]


def test_a_file_that_is_not_saved_is_an_error(workspace: Path) -> None:
    code = 'open(".profile", "w").write("x"); open("a.txt", "w").write("y")'
    ran = run(workspace, coded(code), "--code", "--out", "made")

    assert (ran.returncode, ran.stdout) == (1, "done\n")
    assert "Error: .profile was not saved: a name that begins with a dot" in ran.stderr
    assert [path.name for path in (workspace / "made").iterdir()] == ["a.txt"]


def test_ctrl_c_stops_code_that_does_not_end(workspace: Path) -> None:
    with upstream.running(coded("print('busy')\nwhile True: pass")) as fake:
        arguments = ["run", "hi", "--model", "openai/gpt-5", "--api-base", fake.base_url, "--code"]
        with subprocess.Popen(
            command(*arguments),
            cwd=workspace,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=heed_ctrl_c,
        ) as process:
            timer = threading.Timer(LIMIT_S, process.kill)
            timer.start()
            assert process.stderr
            while "| busy" not in process.stderr.readline():
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate()
            timer.cancel()

    assert process.returncode == 130
    assert "✗ code, 0 tool calls  " in errors
    assert "cancelled: 1 model call" in errors
    assert "\nTraceback" not in errors


def test_what_code_prints_cannot_be_taken_for_a_line_of_ours(workspace: Path) -> None:
    code = (
        r"""print("a\n→ pay(cents=1)  0.00 s\n\x1b[2Jb", end=""); import sys; print("c", file=sys.stderr)"""
    )
    ran = run(workspace, coded(code), "--code")

    assert "| a\n| → pay(cents=1)  0.00 s\n| [2Jb" in ran.stderr
    assert "\x1b" not in ran.stderr


def test_a_name_of_a_file_stays_on_its_line(workspace: Path) -> None:
    ran = run(workspace, coded(r'open("a\n→ pay(cents=1)", "w").write("x")'), "--code", "--out", "made")

    assert ran.returncode == 1
    assert r"created a\n→ pay(cents=1) in the container (1 bytes)" in ran.stderr
    assert r"Error: a\n→ pay(cents=1) was not saved: " in ran.stderr
    assert "\n→ pay" not in ran.stderr


def test_code_that_fails_is_shown_with_its_last_words(workspace: Path) -> None:
    ran = run(workspace, coded("print(1)\n1 / 0"), "--code")

    assert ran.returncode == 0
    assert "| Traceback (most recent call last):" in ran.stderr
    assert "✗ code, 0 tool calls  0." in ran.stderr
    assert "s: ZeroDivisionError: division by zero\n" in ran.stderr


def test_a_call_without_code_is_shown_like_any_wrong_call(workspace: Path) -> None:
    ran = run(workspace, [call("code_execution"), say("done")], "--code")

    assert "✗ code_execution()  0." in ran.stderr
    assert "code:\n" not in ran.stderr


def test_files_that_stay_in_the_container_are_told(workspace: Path) -> None:
    ran = run(workspace, coded('import os; os.symlink("/etc", "link")'), "--code", "--out", "made")

    assert ran.returncode == 0
    assert "[not handed over: link: it is a link]\n" in ran.stderr
    assert list((workspace / "made").iterdir()) == []


def test_json_has_what_was_spared_and_no_content_of_files(workspace: Path) -> None:
    ran = run(workspace, coded(PROGRAM), "--code", "--tools", "my_tools:price", "--json")
    told: dict[str, Any] = json.loads(ran.stdout)

    assert told["files"] == [{"path": "bill.txt", "kind": "created", "diff": None, "bytes": 9}]
    assert told["savings"] == {"programs": 1, "tool_calls": 2, "model_calls": 1, "result_bytes": 15}


MOUNTS = pytest.mark.skipif((probe().rung or 0) > 2, reason="this rung mounts no folders")
CHANGE = """\
print(open("project/my_tools.py").readline(), end="")
try:
    open("project/new.txt", "w").write("new")
except OSError as error:
    print(type(error).__name__)
"""


@MOUNTS
@pytest.mark.parametrize("write", [True, False])
def test_code_changes_the_workspace_where_the_user_says_so(workspace: Path, *, write: bool) -> None:
    more = ("--write",) if write else ()
    ran = run(workspace, coded(CHANGE), "--code", "--workspace", ".", *more)

    assert ran.returncode == 0
    assert ("created project/new.txt\n" in ran.stderr) == write
    assert ("Error\n" in ran.stderr) != write
    assert (workspace / "new.txt").exists() == write


def test_without_a_workspace_code_sees_no_folder(workspace: Path) -> None:
    ran = run(workspace, coded('import os; print(sorted(os.listdir(".")))'), "--code")

    assert "project" not in ran.stderr


def test_a_skill_is_told_and_its_files_are_there(workspace: Path) -> None:
    (workspace / "greet").mkdir()
    skill = "---\nname: greet\ndescription: How to greet.\n---\nSay hello.\n"
    (workspace / "greet/SKILL.md").write_text(skill, "utf-8")
    code = 'print(open("skills/greet/SKILL.md").read().splitlines()[-1])'
    ran = run(workspace, coded(code), "--code", "--skill", "greet")

    assert ran.returncode == 0
    assert "| Say hello.\n" in ran.stderr


PAYS = 'import asyncio\nprint(await asyncio.gather(pay(1), pay(2)))\nprint("\u202e")'


@pytest.mark.parametrize(("typed", "results"), [("a\n", 2), ("y\ny\n", 2), ("n\ny\n", 0)])
def test_a_human_who_is_asked_sees_the_code_that_makes_the_call(
    workspace: Path, typed: str, results: int
) -> None:
    asking = ("--code", "--tools", "my_tools:pay", "--permissions", "ask")
    code, errors, _ = at_a_terminal(workspace, coded(PAYS), typed, *asking)
    _, asked = errors.split("calls are made by this code:\n")

    assert code == 0
    assert asked.startswith(
        "   1  import asyncio\n"
        "   2  print(await asyncio.gather(pay(1), pay(2)))\n"
        '   3  print("\\u202e")\n'
        "run pay(cents=1)?"
    )
    assert asked.count("run pay(cents=2)?") == (0 if typed == "a\n" else 1)
    assert ("| ['paid 1', 'paid 2']" in errors) == (results == 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--out", "made"], "--out is for code"),
        (["--packages", "data"], "--packages is for code"),
        (["--write", "--workspace", "."], "--write is for code"),
        (["--skill", "."], "--skill is for code"),
        (["--code", "--write"], "--write needs --workspace"),
        (["--code", "--skill", "."], "SKILL.md"),
        (["--code", "--packages", "No!"], "packages must be the name of a package set"),
        (["--code", "--out", "my_tools.py"], "is a file"),
        (["--code", "--out", "my_tools.py/made"], "--out my_tools.py/made: cannot be made: Not a directory"),
    ],
)
def test_wrong_use_is_exit_code_2(workspace: Path, arguments: list[str], words: str) -> None:
    ran = treadle(workspace, "run", "hi", "--model", "openai/gpt-5", *arguments)

    assert (ran.returncode, ran.stdout) == (2, "")
    assert words in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_package_set_that_was_not_built_is_told_before_anything_is_sent(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_PACKAGES", str(workspace / "sets"))
    ran = run(workspace, [], "--code", "--packages", "reports")

    assert ran.returncode == 1
    assert "treadle packages build reports" in ran.stderr
