"""Synchronous calls: one background loop, clean exits, Ctrl-C, forks."""

import asyncio
import itertools
import linecache
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

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


def test_ctrl_c_between_any_two_lines_of_a_call_ends_its_work() -> None:
    """A tracer interrupts the thread that waits, at its 1st, 2nd, ... line in the module of the loop."""

    async def work() -> None:
        began.append(True)
        try:
            await asyncio.sleep(0.002)
        finally:
            ended.append(True)

    async def left() -> list[str]:
        return [str(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    interrupted = 0
    for step in itertools.count(1):
        began, ended = list[bool](), list[bool]()
        background.shut_down()
        tracer = Interruption(step)
        try:
            with tracer:
                background.run(work, instead="await")
        except KeyboardInterrupt:
            interrupted += 1
        if not tracer.raised:
            break
        assert background.run(left, instead="await") == []
        assert began == ended

    assert interrupted > 10


class Interruption:
    """Raise KeyboardInterrupt at the `step`-th line that this thread runs in the module of the loop."""

    def __init__(self, step: int) -> None:
        self.raised = False
        self._left = step

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *details: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        if frame.f_code.co_filename != background.__file__:
            return None
        if event == "line" and not self.raised and not self._leaves_a_block(frame):
            self._left -= 1
            if self._left == 0:
                self.raised = True
                raise KeyboardInterrupt
        return self._trace

    @staticmethod
    def _leaves_a_block(frame: FrameType) -> bool:
        """A tracer is called before `__exit__`, where Python itself never looks for signals."""
        return linecache.getline(background.__file__, frame.f_lineno).lstrip().startswith("with ")


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
