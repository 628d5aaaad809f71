"""Programs in a sandbox: what they see, what is kept of what they write, and that none outlives its owner."""

import ctypes
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.abc
import pytest
from anyio import to_thread

from tests.processes import children
from treadle.errors import InvalidArgument, InvalidType, SandboxError
from treadle.sandbox import CompletedRun, LocalSandbox, Process, local
from treadle.sandbox.processes import OUTPUT_LIMIT_BYTES, LocalProcess, Output

PATH = os.environ["PATH"]

FAMILY = """
sh -c 'sleep 600 & echo $!; wait' &
echo $$ $!
wait
"""
"""A program with a child and a grandchild. It tells the three numbers on two lines, in any order."""


@pytest.fixture
def sandbox(tmp_path: Path) -> LocalSandbox:
    return LocalSandbox(tmp_path, environment={"PATH": PATH}, grace_s=2)


@pytest.fixture
def news(tmp_path: Path) -> Path:
    """A pipe with a name, by which a program tells a test how far it is."""
    path = tmp_path / "news"
    os.mkfifo(path)
    return path


async def meet(news: Path, family: list[int]) -> None:
    """Wait for the two lines that `FAMILY` writes to `news`, and put its three numbers into `family`."""

    def read() -> str:
        with news.open(encoding="utf-8") as lines:
            return lines.readline() + lines.readline()

    with anyio.fail_after(10):
        family += map(int, (await to_thread.run_sync(read, abandon_on_cancel=True)).split())


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and stat.read_text("utf-8").rpartition(")")[2].split()[0] == "Z")


class Impostor(anyio.abc.Process):
    """A process that is whatever the test says."""

    def __init__(self, pid: int, returncode: int | None) -> None:
        self._pid = pid
        self._returncode = returncode

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def returncode(self) -> int | None:
        return self._returncode

    async def wait(self) -> int:
        if self._returncode is None:
            await anyio.sleep_forever()
        return self._returncode or 0

    async def aclose(self) -> None:
        pass

    @property
    def stdin(self) -> None:
        raise NotImplementedError

    @property
    def stdout(self) -> None:
        raise NotImplementedError

    @property
    def stderr(self) -> None:
        raise NotImplementedError

    def terminate(self) -> None:
        raise NotImplementedError

    def kill(self) -> None:
        raise NotImplementedError

    def send_signal(self, signal: int) -> None:
        raise NotImplementedError


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process group that no sandbox started."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


@pytest.fixture
def unused_pid() -> int:
    with subprocess.Popen(["true"]) as process:
        return process.pid


def new_children(before: set[int]) -> set[int]:
    """Others are what other tests of this process keep."""
    return children(os.getpid()) - before


def keep(_: LocalProcess) -> None:
    pass


async def test_a_run_gives_both_outputs_and_the_exit_code(sandbox: LocalSandbox) -> None:
    run = await sandbox.run(["sh", "-c", "echo out; echo err >&2; exit 3"])

    assert run == CompletedRun("out\n", "err\n", 3)


async def test_a_program_starts_in_the_workspace(sandbox: LocalSandbox) -> None:
    assert (await sandbox.run(["pwd", "-P"])).stdout == f"{sandbox.workdir}\n"


async def test_a_program_can_start_in_a_folder_of_the_workspace(sandbox: LocalSandbox) -> None:
    await sandbox.write("sub/file", b"")

    assert (await sandbox.run(["pwd", "-P"], cwd="sub")).stdout == f"{sandbox.workdir}/sub\n"


async def test_a_program_can_start_in_a_temporary_folder(sandbox: LocalSandbox) -> None:
    async with sandbox:
        folder = await sandbox.tempdir()
        assert (await sandbox.run(["pwd", "-P"], cwd=folder)).stdout == f"{folder}\n"


@pytest.fixture
def link_to_root(tmp_path: Path) -> str:
    Path(tmp_path, "link").symlink_to("/")
    return "link"


@pytest.mark.parametrize("cwd", ["..", "/", "link"])
@pytest.mark.usefixtures("link_to_root")
async def test_a_program_cannot_start_outside(sandbox: LocalSandbox, cwd: str) -> None:
    with pytest.raises(SandboxError, match="leads out of the workspace"):
        await sandbox.run(["pwd"], cwd=cwd)


async def test_a_run_has_no_input(sandbox: LocalSandbox) -> None:
    assert await sandbox.run(["cat"], timeout=10) == CompletedRun("", "", 0)


async def test_a_signal_is_a_negative_exit_code(sandbox: LocalSandbox) -> None:
    assert (await sandbox.run(["sh", "-c", "kill -KILL $$"])).exit_code == -signal.SIGKILL


async def test_output_that_is_not_utf8_is_replaced(sandbox: LocalSandbox) -> None:
    assert (await sandbox.run(["printf", r"caf\351 \303\251\n"])).stdout == "caf\ufffd é\n"


async def test_a_started_program_can_be_talked_to(sandbox: LocalSandbox) -> None:
    async with await sandbox.exec(["cat"]) as process:
        assert isinstance(process, Process)
        assert process.exit_code is None
        await process.stdin.send(b"hello")
        assert await process.stdout.receive() == b"hello"
        await process.stdin.aclose()
        assert await process.wait() == 0

    assert process.exit_code == 0


async def test_both_outputs_may_flood_and_are_cut(sandbox: LocalSandbox) -> None:
    over = 123_456
    size = OUTPUT_LIMIT_BYTES + over
    flood = f"head -c {size} /dev/zero | tr '\\0' a; head -c {size} /dev/zero | tr '\\0' b >&2; echo end"

    run = await sandbox.run(["sh", "-c", flood], timeout=60)

    assert run.exit_code == 0
    assert run.stdout == "a" * OUTPUT_LIMIT_BYTES + f"\n[{over + 4} more bytes were cut]\n"
    assert run.stderr == "b" * OUTPUT_LIMIT_BYTES + f"\n[{over} more bytes were cut]\n"


def test_output_is_not_cut_inside_a_character() -> None:
    output = Output(limit_bytes=4)
    for chunk in ("aé€".encode()[:5], "aé€".encode()[5:], b"\xff"):
        output.feed(chunk)

    assert output.text() == "aé\n[3 more bytes were cut]\n"


def test_output_that_ends_inside_a_character_says_so() -> None:
    output = Output()
    output.feed("é".encode()[:1])

    assert output.text() == "\ufffd"


CREDENTIALS = [
    "ANTHROPIC_BASE_URL",
    "OPENAI_ORGANIZATION",
    "LITELLM_LOG",
    "AZURE_REGION",
    "AWS_PROFILE",
    "GEMINI_MODEL",
    "CODEX_HOME",
    "CURSOR_X",
    "VERTEXAI_PROJECT",
    "CLAUDE_CODE_X",
    "CLAUDE_PID",
    "CLAUDECODE",
    "GOOGLE_API_KEY",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "MY_API_KEY_2",
    "GITHUB_TOKEN",
    "MY_SECRETS",
    "my_secret",
]


async def test_programs_do_not_see_what_may_be_a_credential(tmp_path: Path) -> None:
    plain = {"PATH": PATH, "GOOGLE_CLOUD_PROJECT": "p", "CLAUDE_X": "x", "HOME": "/h"}
    sandbox = LocalSandbox(tmp_path, environment=plain | dict.fromkeys(CREDENTIALS, "hidden"))

    seen = (await sandbox.run(["env"])).stdout.splitlines()

    assert set(seen) - {"_=/usr/bin/env"} == {f"{name}={value}" for name, value in plain.items()}


async def test_the_callers_environment_is_laid_on_top_whole(sandbox: LocalSandbox) -> None:
    run = await sandbox.run(["env"], env={"OPENAI_API_KEY": "meant", "PATH": f"{PATH}:/more"})

    assert {"OPENAI_API_KEY=meant", f"PATH={PATH}:/more"} <= set(run.stdout.splitlines())


async def test_programs_inherit_the_environment_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = local(tmp_path)
    monkeypatch.setenv("TREADLE_PLAIN", "seen")
    monkeypatch.setenv("TREADLE_TOKEN", "hidden")

    seen = (await sandbox.run(["env"])).stdout.splitlines()

    assert "TREADLE_PLAIN=seen" in seen
    assert "TREADLE_TOKEN=hidden" not in seen


@pytest.mark.parametrize(
    ("cmd", "error"),
    [
        ("ls -l", InvalidType),
        (b"ls", InvalidType),
        (None, InvalidType),
        (["ls", 1], InvalidType),
        ([], InvalidArgument),
        (["no-such-program"], SandboxError),
        (["/"], SandboxError),
        (["ls", "\0"], SandboxError),
    ],
)
async def test_a_command_that_cannot_start_is_refused(
    sandbox: LocalSandbox, cmd: list[str], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await sandbox.run(cmd)


async def test_an_environment_of_something_other_than_text_is_refused(sandbox: LocalSandbox) -> None:
    numbers: dict[str, str] = {"N": 1}  # pyright: ignore[reportAssignmentType]
    with pytest.raises(InvalidType, match="env must map str to str"):
        await sandbox.run(["true"], env=numbers)


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
async def test_a_timeout_must_be_positive(sandbox: LocalSandbox, timeout: float) -> None:
    with pytest.raises(InvalidArgument, match="timeout"):
        await sandbox.run(["true"], timeout=timeout)


async def test_a_timeout_kills_the_program_and_its_descendants(sandbox: LocalSandbox, news: Path) -> None:
    family: list[int] = []

    async with anyio.create_task_group() as group:
        group.start_soon(meet, news, family)
        with pytest.raises(SandboxError, match="'sh' was killed after 1 s"):
            await sandbox.run(["sh", "-c", f"exec > news; {FAMILY}"], timeout=1)

    assert len(family) == 3
    assert not any(map(lives, family))


async def test_a_cancelled_run_leaves_no_process(sandbox: LocalSandbox, news: Path) -> None:
    family: list[int] = []

    async with anyio.create_task_group() as group:
        group.start_soon(sandbox.run, ["sh", "-c", f"exec > news; {FAMILY}"])
        await meet(news, family)
        assert all(map(lives, family))
        group.cancel_scope.cancel()

    assert len(family) == 3
    assert not any(map(lives, family))


async def test_a_run_that_is_cancelled_before_it_starts_leaves_no_process(sandbox: LocalSandbox) -> None:
    before = children(os.getpid())
    with anyio.CancelScope() as scope:
        scope.cancel()
        await sandbox.run(["touch", "started"])

    assert scope.cancelled_caught
    assert not new_children(before)


async def test_leaving_the_block_kills_a_started_program(sandbox: LocalSandbox, news: Path) -> None:
    family: list[int] = []

    async with await sandbox.exec(["sh", "-c", f"exec > news; {FAMILY}"]) as process:
        await meet(news, family)

    assert process.exit_code == -signal.SIGTERM
    assert process.pid in family
    assert not any(map(lives, family))


async def test_closing_the_sandbox_kills_what_runs(sandbox: LocalSandbox, news: Path) -> None:
    family: list[int] = []
    process = await sandbox.exec(["sh", "-c", f"exec > news; {FAMILY}"])
    await meet(news, family)

    await sandbox.close()
    await sandbox.close()
    await process.kill()

    assert process.exit_code == -signal.SIGTERM
    assert not any(map(lives, family))


async def test_a_run_ends_when_its_sandbox_is_closed(sandbox: LocalSandbox, news: Path) -> None:
    runs: list[CompletedRun] = []
    family: list[int] = []

    async def run() -> None:
        runs.append(await sandbox.run(["sh", "-c", f"echo said; exec > news; {FAMILY}"]))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await meet(news, family)
            await sandbox.close()

    assert [run.exit_code for run in runs] == [-signal.SIGTERM]


async def test_a_program_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path, news: Path) -> None:
    sandbox = LocalSandbox(tmp_path, environment={"PATH": PATH}, grace_s=0.1)
    family: list[int] = []

    async with await sandbox.exec(["sh", "-c", f"trap '' TERM; exec > news; {FAMILY}"]) as process:
        await meet(news, family)

    assert process.exit_code == -signal.SIGKILL
    assert not any(map(lives, family))


async def test_a_program_may_use_its_grace_to_tidy_up(sandbox: LocalSandbox, news: Path) -> None:
    family: list[int] = []
    tidy = "trap 'echo tidied > note; kill $!; exit 7' TERM"

    async with await sandbox.exec(["sh", "-c", f"{tidy}; exec > news; {FAMILY}"]) as process:
        await meet(news, family)

    assert process.exit_code == 7
    assert await sandbox.read("note") == b"tidied\n"


async def test_a_run_ends_what_its_program_left_behind(sandbox: LocalSandbox) -> None:
    with anyio.fail_after(10):
        run = await sandbox.run(["sh", "-c", "sleep 600 & echo $!"])

    assert run.exit_code == 0
    assert not lives(int(run.stdout))


@pytest.mark.usefixtures("news")
async def test_what_a_program_left_behind_has_its_grace_too(sandbox: LocalSandbox) -> None:
    child = "trap 'sleep 0.1; echo tidied > note; exit' TERM; echo > news; while true; do sleep 0.05; done"

    with anyio.fail_after(10):
        await sandbox.run(["sh", "-c", '"$@" & read news < news', "sh", "sh", "-c", child])

    assert await sandbox.read("note") == b"tidied\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt orphans")
async def test_orphans_that_this_process_adopts_are_reaped(sandbox: LocalSandbox) -> None:
    prctl, set_child_subreaper = ctypes.CDLL(None).prctl, 36
    prctl(set_child_subreaper, 1)
    try:
        with anyio.fail_after(1.5):  # less than the grace: a zombie would hold up the run until it is over
            run = await sandbox.run(["sh", "-c", "sleep 600 & echo $!"])
    finally:
        prctl(set_child_subreaper, 0)

    with pytest.raises(ProcessLookupError):
        os.kill(int(run.stdout), 0)


@pytest.mark.skipif(sys.platform != "linux", reason="needs the setsid command")
@pytest.mark.usefixtures("news")
async def test_a_program_that_left_its_group_does_not_hold_up_the_run(sandbox: LocalSandbox) -> None:
    deserter = "setsid sh -c 'echo $$ > news; exec sleep 600' & read pid < news; echo $pid"

    with anyio.fail_after(10):
        run = await sandbox.run(["sh", "-c", deserter])

    assert lives(int(run.stdout))
    os.kill(int(run.stdout), signal.SIGKILL)


async def test_a_number_that_was_given_to_a_stranger_is_not_signalled(
    stranger: subprocess.Popen[bytes],
) -> None:
    forgotten: list[LocalProcess] = []
    process = LocalProcess(Impostor(stranger.pid, returncode=0), forgotten.append)

    await process.kill()

    assert forgotten == [process]
    assert stranger.poll() is None


async def test_a_program_that_the_kernel_holds_is_given_up(
    unused_pid: int, caplog: pytest.LogCaptureFixture
) -> None:
    process = LocalProcess(Impostor(unused_pid, returncode=None), keep, grace_s=0.01, reap_s=0.02)

    with anyio.fail_after(5):
        await process.kill()

    assert caplog.record_tuples == [
        (
            "treadle.sandbox.processes",
            logging.WARNING,
            f"process {unused_pid} outlived SIGKILL by 0.02 s: left alone",
        )
    ]


async def test_without_process_groups_the_program_itself_is_ended(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "killpg")

    async with await sandbox.exec(["cat"]) as process:
        pass

    assert process.exit_code == -signal.SIGTERM


def test_the_package_imports_where_posix_is_missing() -> None:
    program = """
import os, signal, importlib
for module, names in ((os, "killpg O_NOFOLLOW O_NONBLOCK WNOHANG mkfifo setsid"), (signal, "SIGKILL")):
    for name in names.split():
        delattr(module, name)
for name in "base diffs paths processes snapshot watch workspace".split():
    importlib.import_module(f"treadle.sandbox.{name}")
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
