"""`treadle serve` as a process: its first lines, how fast they come, and how it ends."""

import io
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest

import treadle
from tests.processes import alive, descendants
from treadle import Harness, ToolLoopOptions, sandbox
from treadle.gateway.skill_forms import MAX_FORM_BYTES
from treadle.sandbox.ladder import probe
from treadle.skills.archive import read_archive
from treadle.testing import call, say, slow
from treadle.testing.upstream import running

START_LIMIT_S = 6.0
"""On a machine that others use too; `python -m benchmarks gateway` has the real figure."""


@contextmanager
def serve(
    *arguments: str, variables: Mapping[str, str]
) -> Generator[tuple["subprocess.Popen[str]", list[str]]]:
    """The process, and what it printed until it was ready."""
    environment = {
        k: v for k, v in os.environ.items() if not k.endswith(("_KEY", "_BASE", "_proxy", "_PROXY"))
    }
    home = tempfile.TemporaryDirectory()
    process = subprocess.Popen(
        [sys.executable, "-m", "treadle.cli.main", "serve", "--port", "0", *arguments],
        env={**environment, "PYTHONUNBUFFERED": "1", "TREADLE_HOME": home.name, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    lines: list[str] = []
    try:
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if line.startswith("try: "):
                break
        yield process, lines
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
        home.cleanup()


def address_and_key(lines: list[str]) -> tuple[str, str]:
    text = "\n".join(lines)
    address = re.search(r"listening on (http://\S+)", text)
    key = re.search(r"admin key .*: (sk-\S+)", text)
    assert address, text
    assert key, text
    return address[1], key[1]


def test_a_program_of_any_model_runs_and_stops_with_the_server() -> None:
    if probe().rung is None:
        pytest.skip(f"no containers here: {probe().why}")
    tools: Any = [
        {"type": "code_execution_20260120", "name": "code_execution"},
        {"name": "look", "input_schema": {"type": "object"}, "allowed_callers": ["code_execution_20260120"]},
    ]
    messages: list[Any] = [{"role": "user", "content": "Go."}]
    script = [call("litellm_code_execution", code="print(await look())\nawait look()")]
    with (
        running(script, api_key="sk-up-0123") as fake,
        serve("--upstream", fake.base_url, variables={"TREADLE_UPSTREAM_KEY": "sk-up-0123"}) as (
            process,
            lines,
        ),
    ):
        address, key = address_and_key(lines)
        with anthropic.Anthropic(base_url=address, api_key=key, max_retries=0) as package:
            asked: Any = {"model": "any", "max_tokens": 100, "tools": tools}
            client: Any = package.messages
            first = client.create(**asked, messages=messages)
            assert [block.type for block in first.content] == ["server_tool_use", "tool_use"]
            assert first.container
            result = {"type": "tool_result", "tool_use_id": first.content[1].id, "content": "seen"}
            messages += [
                {"role": "assistant", "content": first.content},
                {"role": "user", "content": [result]},
            ]
            second = client.create(**asked, messages=messages, container=first.container.id)
            assert [block.type for block in second.content] == ["tool_use"]
        below = descendants(process.pid)
        assert below
        process.terminate()
        process.wait(20)
        assert alive(below) == set()


def test_skills_are_uploaded_to_the_whole_server_and_read_back() -> None:
    with serve("--upstream", "http://127.0.0.1:1/v1", variables={}) as (_, lines):
        address, key = address_and_key(lines)
        with anthropic.Anthropic(base_url=address, api_key=key, max_retries=0) as package:
            text = b"---\nname: pdf\ndescription: Fills in forms.\n---\nRun it.\n"
            skill = package.skills.create(files=[("pdf/SKILL.md", text), ("pdf/a", bytes(9_000_000))])
            content = package.beta.skills.versions.download("latest", skill_id=skill.id).read()
            assert sorted(read_archive(io.BytesIO(content)).files) == ["SKILL.md", "a"]
            with pytest.raises(anthropic.BadRequestError, match=r"SKILL.md, line 1: a SKILL.md begins"):
                package.skills.create(files=[("pdf/SKILL.md", b"x")])
            with pytest.raises(anthropic.APIStatusError, match="the body is longer than"):
                package.skills.create(files=[("pdf/SKILL.md", text), ("pdf/a", bytes(MAX_FORM_BYTES))])
            package.skills.delete(skill.id)
            with pytest.raises(anthropic.NotFoundError, match="not found"):
                package.skills.retrieve(skill.id)


def test_it_tells_its_address_its_key_and_a_line_that_works(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    with running([say("Hello.")], api_key="sk-up-0123") as fake:
        config.write_text(
            "model_list:\n- model_name: mine\n  litellm_params: {model: openai/m, "
            f"api_key: os.environ/UP_KEY, api_base: {fake.base_url}, rpm: 9}}\n",
            "utf-8",
        )
        began = time.monotonic()
        with serve("--config", str(config), variables={"UP_KEY": "sk-up-0123"}) as (process, lines):
            assert time.monotonic() - began < START_LIMIT_S
            line = lines[-1].removeprefix("try: ")
            ran = subprocess.run(
                ["sh", "-c", f"{line} -s"], capture_output=True, text=True, check=True, timeout=20
            )
            assert json.loads(ran.stdout)["choices"][0]["message"]["content"] == "Hello."
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 0
            assert process.stderr is not None
            assert "model_list[0].litellm_params.rpm has no effect here" in process.stderr.read()


def test_a_key_that_is_known_already_is_not_shown(tmp_path: Path) -> None:
    variables = {"OPENAI_API_KEY": "sk-openai-0123", "TREADLE_MASTER_KEY": "sk-admin-0123"}
    with serve(variables=variables) as (process, lines):
        assert "sk-admin-0123" not in "\n".join(lines)
        ran = subprocess.run(
            ["sh", "-c", lines[-1].removeprefix("try: ") + " -s"],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
        assert [each["id"] for each in json.loads(ran.stdout)["data"]] == ["openai/*"]
        process.terminate()
        assert process.wait(10) in (0, -signal.SIGTERM)


def test_a_stream_that_runs_is_finished_when_the_process_is_told_to_stop() -> None:
    step = slow(say("One two three four five six seven eight nine ten."), between_s=0.2)
    with (
        running([step]) as fake,
        serve("--upstream", fake.base_url, variables={"TREADLE_UPSTREAM_KEY": "k"}) as (process, lines),
    ):
        address, key = address_and_key(lines)
        with openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0) as client:
            chunks = client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "Count."}], stream=True
            )
            first = next(iter(chunks))
            process.terminate()
            text = "".join(chunk.choices[0].delta.content or "" for chunk in [first, *chunks])
        assert text == "One two three four five six seven eight nine ten."
        assert process.wait(10) in (0, -signal.SIGTERM)


def test_the_tool_loop_goes_through_it(tmp_path: Path) -> None:
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    home = tmp_path / "home"
    variables = {"TREADLE_UPSTREAM_KEY": "sk-up-0123", "TREADLE_HOME": str(home)}
    script = [call("add", a=1, b=2), say("Three.")]
    with (
        running(script, api_key="sk-up-0123") as fake,
        serve("--upstream", f"{fake.base_url}/v1/messages", variables=variables) as (_, lines),
    ):
        address, key = address_and_key(lines)
        result = treadle.agent(
            Harness.TOOL_LOOP,
            "1 + 2?",
            sandbox=sandbox.local(tmp_path),
            model="litellm_proxy/claude-x",
            api_base=address,
            api_key=key,
            tools=[add],
            metadata={"job": "tests"},
            options=ToolLoopOptions(completion_kwargs={"extra_headers": {"x-litellm-tags": "nightly"}}),
        )
        assert result.text == "Three."
        assert [request.path for request in fake.requests] == ["/v1/messages"] * 2
        spent: dict[str, object] = {}
        for _ in range(50):  # accounts are written each second
            answer = httpx2.get(f"{address}/spend?by=tag", headers={"x-api-key": key})
            spent = {each["tag"]: each["requests"] for each in answer.json()["data"]}
            if spent:
                break
            time.sleep(0.1)
        assert spent == {"harness": 2, "tool_loop": 2, "nightly": 2}
        with closing(sqlite3.connect(home / "gateway.db")) as database:
            assert {row[0] for row in database.execute("SELECT metadata FROM spend")} == {'{"job": "tests"}'}


def test_a_start_that_cannot_listen_makes_no_key(tmp_path: Path) -> None:
    variables = {"OPENAI_API_KEY": "sk-openai-0123", "TREADLE_HOME": str(tmp_path)}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with serve("--port", port, variables=variables) as (process, lines):
            assert process.wait(20) == 1
            assert lines == []
            assert process.stderr is not None
            said = process.stderr.read()
            assert said.startswith(f"treadle serve: cannot listen on 127.0.0.1:{port}: ")
            assert len(said.splitlines()) == 1
    with serve("--port", port, variables=variables) as (_, lines):
        address, key = address_and_key(lines)
        assert address == f"http://127.0.0.1:{port}"
        assert httpx2.get(f"{address}/v1/models", headers={"x-api-key": key}).status_code == 200


def test_an_admin_key_of_the_file_is_named_by_its_setting(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    models = "model_list:\n- {model_name: a, litellm_params: {model: openai/a, api_key: sk-up-0123}}\n"
    config.write_text(f"{models}general_settings: {{master_key: sk-file-0123}}\n", "utf-8")
    with serve("--config", str(config), variables={}) as (_, lines):
        text = "\n".join(lines)
        assert f"admin key: general_settings.master_key of {config}" in text
        assert "Bearer $TREADLE_KEY" in lines[-1]
        assert "sk-file-0123" not in text
    config.write_text(f"{models}general_settings: {{master_key: os.environ/MINE}}\n", "utf-8")
    with serve("--config", str(config), variables={"MINE": "sk-mine-0123"}) as (_, lines):
        assert "Bearer $MINE" in lines[-1]


def test_the_log_goes_to_stderr_without_secrets(tmp_path: Path) -> None:
    variables = {"TREADLE_UPSTREAM_KEY": "sk-up-0123", "TREADLE_HOME": str(tmp_path)}
    question = {"model": "m", "messages": [{"role": "user", "content": "a private question"}]}
    with (
        running([say("a private answer")], api_key="sk-up-0123") as fake,
        serve("--upstream", fake.base_url, "--log-level", "debug", variables=variables) as (process, lines),
    ):
        address, key = address_and_key(lines)
        headers = {"x-api-key": key}
        asked = httpx2.post(f"{address}/v1/chat/completions", headers=headers, json=question)
        assert asked.status_code == 200
        with closing(sqlite3.connect(tmp_path / "gateway.db")) as database:
            database.execute("DROP TABLE spend")
        time.sleep(1.5)  # accounts are written each second
        process.terminate()
        process.wait(10)
        assert process.stderr is not None
        log = process.stderr.read()
    assert re.search(r"^\S+ \S+ DEBUG treadle: request id='req_", log, re.MULTILINE)
    assert re.search(r"^\S+ \S+ (WARNING|ERROR) treadle\S*: .*accounts", log, re.MULTILINE)
    for secret in (key, "sk-up-0123", "private"):
        assert secret not in log


def test_a_second_server_on_one_file_is_told_until_the_first_is_gone(tmp_path: Path) -> None:
    variables = {"TREADLE_HOME": str(tmp_path), "TREADLE_MASTER_KEY": "sk-mine-0123"}
    upstream = ("--upstream", "http://127.0.0.1:1/v1")

    def ran(*arguments: str) -> None:
        command = [sys.executable, "-m", "treadle.cli.main", *arguments]
        done = subprocess.run(
            command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr

    with serve(*upstream, variables=variables) as (first, lines):
        assert lines
        with serve(*upstream, variables=variables) as (second, nothing):
            assert second.wait(20) == 1
            assert nothing == []
            assert second.stderr is not None
            assert "another process serves from" in second.stderr.read()
        ran("keys", "create", "ci")
        ran("skills", "list")
        ran("db", "backup", str(tmp_path / "copy.db"))
        first.kill()
        first.wait()
        with serve(*upstream, variables=variables) as (_, again):
            assert again


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "there is no model to serve: set the key variable of a provider"),
        (("--upstream", "ftp://x"), "api_base is no http"),
        (("--upstream", "http://x", "--config", __file__), "leave --upstream out"),
    ],
)
def test_what_cannot_be_served_is_told_at_once(arguments: tuple[str, ...], said: str) -> None:
    with serve(*arguments, variables={}) as (process, lines):
        assert process.wait(20) == 2
        assert lines == []
        assert process.stderr is not None
        assert said in process.stderr.read()


@pytest.mark.parametrize("key", ["sk-schlüssel", "sk a", "sk-0123 "])
def test_an_admin_key_that_no_header_can_carry_is_refused(key: str) -> None:
    with serve(variables={"OPENAI_API_KEY": "sk-0123", "TREADLE_MASTER_KEY": key}) as (process, lines):
        assert process.wait(20) == 2
        assert lines == []
        assert process.stderr is not None
        said = process.stderr.read()
        assert "the admin key ($TREADLE_MASTER_KEY) holds what cannot be sent in a header" in said
        assert key not in said
