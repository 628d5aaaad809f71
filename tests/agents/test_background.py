"""Synchronous calls: one background loop, clean exits, Ctrl-C, forks."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import treadle
from treadle import Harness
from treadle.agents import background
from treadle.sandbox.workspace import LocalSandbox
from treadle.testing import ScriptedModel, call, say, slow, upstream

LIMIT_S = 60

HEAD = """
import sys, tempfile, threading, time, os, signal
import treadle
from treadle import Harness, sandbox
from treadle.testing import ScriptedModel, call, say, slow

BASE = sys.argv[1]
FOLDER = tempfile.mkdtemp()

def ask(prompt="hi", **options):
    return treadle.agent(Harness.TOOL_LOOP, prompt, sandbox=sandbox.local(FOLDER), model="openai/gpt-5",
                         api_base=BASE, api_key="key-of-the-test", **options)
"""


def script(code: str, base_url: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run `code` as a user's script; every warning is an error there."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", HEAD + code, base_url],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=tmp_path,
        check=False,
    )


CLEAN = {
    "plain": "print(ask().text); print(ask().text)",
    "threads": """
threads = [threading.Thread(target=lambda: sys.stdout.write(ask().text + "\\n")) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
""",
    "a stream left half-way": """
stream = ask(stream=True)
next(stream)
print("ok"); print("ok")
""",
    "a stream closed": """
with ask(stream=True) as stream:
    next(stream)
print("ok"); print("ok")
""",
    "asyncio twice": """
import asyncio
async def main():
    print((await treadle.aagent(Harness.TOOL_LOOP, "hi", sandbox=sandbox.local(FOLDER), model="openai/gpt-5",
                                api_base=BASE, api_key="key-of-the-test")).text)
asyncio.run(main())
asyncio.run(main())
""",
    "a fork": """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: forking with threads is the user's own decision
print(ask().text, flush=True)
child = os.fork()
if child == 0:
    print(ask().text, flush=True)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
""",
    "a tool that never ends": """
def hang() -> None:
    "Hang."
    time.sleep(10_000)

model = ScriptedModel([call("hang")])
place = sandbox.local(FOLDER)
result = treadle.agent(Harness.TOOL_LOOP, "hi", sandbox=place, model=model, tools=[hang], timeout=0.2)
assert result.stop_reason == "timeout"
print("ok"); print("ok")
""",
}


@pytest.mark.parametrize("name", CLEAN)
def test_a_script_ends_without_a_word(name: str, tmp_path: Path) -> None:
    with upstream.running([say("ok"), say("ok")]) as fake:
        ran = script(CLEAN[name], fake.base_url, tmp_path)

    assert (ran.stdout, ran.stderr, ran.returncode) == ("ok\nok\n", "", 0)


def test_ctrl_c_ends_the_run_and_its_connection(tmp_path: Path) -> None:
    code = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell would ignore it
print(ask().text)  # what is slow the first time is not to race with the signal
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    ask()
except KeyboardInterrupt:
    print("interrupted")
print(ask().text)
"""
    with upstream.running([say("first"), slow(say("late"), first_byte_s=20), say("next")]) as fake:
        ran = script(code, fake.base_url, tmp_path)

    assert (ran.stdout, ran.stderr, ran.returncode) == ("first\ninterrupted\nnext\n", "", 0)
    assert fake.disconnects == 1


def test_all_sync_calls_share_one_daemon_thread(folder: LocalSandbox) -> None:
    def where() -> str:
        """Tell the threads."""
        return ",".join(thread.name for thread in threading.enumerate() if thread.daemon)

    for _ in range(2):
        model = ScriptedModel([call("where"), say("ok")])
        result = treadle.agent(Harness.TOOL_LOOP, "hi", sandbox=folder, model=model, tools=[where])
        told = next(event.output for event in result.events if isinstance(event, treadle.ToolResult))
        assert told.split(",").count(background.THREAD_NAME) == 1


def test_after_a_shutdown_the_next_call_starts_a_new_loop(folder: LocalSandbox) -> None:
    model = ScriptedModel([say("a"), say("b")])
    treadle.agent(Harness.TOOL_LOOP, "hi", sandbox=folder, model=model)
    background.shut_down()
    background.shut_down()

    assert treadle.agent(Harness.TOOL_LOOP, "hi", sandbox=folder, model=model).text == "b"
