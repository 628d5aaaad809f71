"""`treadle run`, as a process of its own against the strict fake."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from treadle.testing import Script, call, fail, say, slow, upstream

TOOLS = '''
from pathlib import Path

def shout(text: str) -> str:
    """Shout."""
    Path("shouted.txt").write_text(text)
    return text.upper()

number = 5
'''
LIMIT_S = 60


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "my_tools.py").write_text(TOOLS, "utf-8")
    return tmp_path


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if "API_KEY" not in name}
    return {**kept, "OPENAI_API_KEY": "key-of-the-test", "NO_COLOR": "1", **more}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-X", "dev", "-W", "error", "-m", "treadle.cli.main", *arguments]


def treadle(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def run(folder: Path, script: Script, *arguments: str) -> subprocess.CompletedProcess[str]:
    with upstream.running(script) as fake:
        ran = treadle(folder, "run", "hi", "--model", "openai/gpt-5", "--api-base", fake.base_url, *arguments)
        assert fake.refusals == []
        return ran


SHOUT = [say("I shout. ") + call("shout", text="hey"), say("\x1b[31mdone")]


def test_text_goes_to_standard_output_and_the_rest_beside_it(workspace: Path) -> None:
    ran = run(workspace, SHOUT, "--tools", "my_tools:shout", "--workspace", ".")

    assert (ran.returncode, ran.stdout) == (0, "I shout. \n[31mdone\n")
    assert '→ shout(text="hey")  0.' in ran.stderr
    assert "created shouted.txt" in ran.stderr
    assert "2 model calls, 20 tokens in, 10 out, cost unknown" in ran.stderr


def test_json_is_one_object(workspace: Path) -> None:
    ran = run(workspace, SHOUT, "--tools", "my_tools:shout", "--json")
    told: dict[str, Any] = json.loads(ran.stdout)

    assert ran.returncode == 0
    assert told["text"] == "\x1b[31mdone"
    assert told["usage"]["calls"] == 2
    assert (told["stop_reason"], told["error"], told["cost_known"]) == ("done", None, False)
    assert [file["path"] for file in told["files"]] == ["shouted.txt"]


def test_a_tool_error_is_shown(workspace: Path) -> None:
    ran = run(workspace, [call("shout"), say("ok")], "--tools", "my_tools:shout")

    assert ran.returncode == 0
    assert "✗ shout()" in ran.stderr
    assert "ValidationError" in ran.stderr


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [('{"n": 3}', 0, ""), ('{"n": "x"}', 4, "$.n: 'x' is not of type 'integer'"), ("no", 4, "no json")],
)
def test_an_output_schema_is_enforced(workspace: Path, answer: str, code: int, words: str) -> None:
    (workspace / "schema.json").write_text(json.dumps(SCHEMA), "utf-8")
    ran = run(workspace, [say(answer)] * 2, "--output-schema", "schema.json", "--json")

    assert ran.returncode == code
    told: dict[str, Any] = json.loads(ran.stdout)
    assert told["output"] == ({"n": 3} if code == 0 else None)
    if words != "no json":
        assert words in ran.stderr


@pytest.mark.parametrize(
    ("script", "arguments", "code", "words"),
    [
        ([fail(401, "who are you")], [], 1, "AuthenticationError"),
        (
            [call("shout", text="a"), say("x")],
            ["--tools", "my_tools:shout", "--max-turns", "1"],
            3,
            "max_turns",
        ),
        ([slow(say("x"), first_byte_s=20)], ["--timeout", "0.5"], 3, "timeout"),
    ],
)
def test_exit_codes(workspace: Path, script: Script, arguments: list[str], code: int, words: str) -> None:
    ran = run(workspace, script, *arguments)

    assert ran.returncode == code
    assert words in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing option '--model'"),
        (["--model", "nonsense"], "unknown model 'nonsense'"),
        (["--model", "groq/x"], "GROQ_API_KEY"),
        (["--model", "openai/x", "--tools", "my_tools"], "write MODULE:FUNCTION"),
        (["--model", "openai/x", "--tools", "nowhere:f"], "No module named 'nowhere'"),
        (["--model", "openai/x", "--tools", "my_tools:nothing"], "nothing"),
        (["--model", "openai/x", "--tools", "my_tools:number"], "tool"),
        (["--model", "openai/x", "--workspace", "nowhere"], "does not exist"),
        (["--model", "openai/x", "--permissions", "ask"], "needs a terminal"),
        (["--model", "openai/x", "--permissions", "edit"], "'edit' is not one of"),
        (["--model", "openai/x", "--output-schema", "my_tools.py"], "--output-schema my_tools.py"),
        (["--model", "openai/x", "--output-schema", "list.json"], "must be of an object"),
        (["--model", "openai/x", "--output-schema", "wrong.json"], "wrong.json"),
        (["--model", "openai/x", "--max-turns", "0"], "max-turns"),
    ],
)
def test_wrong_use_is_exit_code_2_and_says_what_to_do(
    workspace: Path, arguments: list[str], words: str
) -> None:
    (workspace / "list.json").write_text('{"type": "array"}', "utf-8")
    (workspace / "wrong.json").write_text('{"type": "objekt"}', "utf-8")
    ran = treadle(workspace, "run", "hi", *arguments)

    assert ran.returncode == 2
    assert words in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.fixture
def slow_fake() -> Iterator[upstream.Upstream]:
    with upstream.running([slow(say("many little pieces of text " * 40), between_s=0.05)]) as fake:
        yield fake


def heed_ctrl_c() -> None:
    """A background job of a shell ignores Ctrl-C, and so would all that it starts: this program too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_the_turn_and_tells_the_part_so_far(
    workspace: Path, slow_fake: upstream.Upstream
) -> None:
    arguments = ["run", "hi", "--model", "openai/gpt-5", "--api-base", slow_fake.base_url]
    with subprocess.Popen(
        command(*arguments),
        cwd=workspace,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_ctrl_c,
    ) as process:
        assert process.stdout
        first = process.stdout.read(5)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=LIMIT_S)

    assert (process.returncode, first) == (130, "many ")
    assert len(rest) < 40 * 27
    assert "cancelled: 0 model calls" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(("typed", "shouted"), [("y", True), ("n", False)])
def test_approvals_are_asked_at_the_terminal(workspace: Path, typed: str, shouted: bool) -> None:
    script = [call("shout", text="hey"), say("ok")]
    ours, theirs = pty.openpty()
    with upstream.running(script) as fake:
        arguments = ["run", "hi", "--model", "openai/gpt-5", "--api-base", fake.base_url]
        arguments += ["--tools", "my_tools:shout", "--permissions", "ask"]
        with subprocess.Popen(
            command(*arguments),
            cwd=workspace,
            env=environment(),
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            timer = threading.Timer(LIMIT_S, process.kill)
            timer.start()
            os.write(ours, f"{typed}\n".encode())
            _, errors = process.communicate()
            timer.cancel()
        told: Any = fake.requests[1].body
    os.close(ours)
    os.close(theirs)

    assert process.returncode == 0
    assert 'run shout(text="hey")?' in errors
    assert (workspace / "shouted.txt").exists() == shouted
    assert told["messages"][-1]["content"] == ("HEY" if shouted else "denied: the user said no")


def test_the_demo_says_that_its_model_is_scripted_and_finds_the_bug(tmp_path: Path) -> None:
    ran = treadle(tmp_path, "demo")

    assert ran.returncode == 0
    assert "The model is NOT: it is a script" in ran.stderr
    assert "verdict='request_changes'" in ran.stdout
    assert "AssertionError: 11.0 != 9.0" in ran.stdout
    assert "created REVIEW.md" in ran.stderr


def test_without_the_extra_the_command_says_what_to_install(tmp_path: Path) -> None:
    hide = "import sys; sys.modules['click'] = None; sys.modules['jsonschema'] = None\n"
    start = "from treadle.cli.main import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", hide + start], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )

    assert ran.returncode == 2
    assert "pip install 'treadle[cli]'" in ran.stderr
