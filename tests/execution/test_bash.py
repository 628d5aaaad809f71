"""Shell commands as cells of a container."""

import asyncio
import random
import string
from collections.abc import AsyncGenerator

import anyio
import pytest

from treadle.errors import InvalidArgument, InvalidType, SandboxError
from treadle.execution import Began, CellResult, Container, Containers, Ended, MemoryJournal, Rules
from treadle.execution.shell import MAX_COMMAND_BYTES, program
from treadle.sandbox.container import ContainerDied
from treadle.sandbox.isolation import isolated
from treadle.sandbox.ladder import probe

REPORT = probe()
pytestmark = pytest.mark.skipif(REPORT.rung is None, reason=f"no containers here: {REPORT.why}")
NAMESPACES = REPORT.name in ("1", "2")
LIMIT_S = 0.6


@pytest.fixture
def journal() -> MemoryJournal:
    return MemoryJournal()


@pytest.fixture
async def container(journal: MemoryJournal) -> AsyncGenerator[Container]:
    async with Containers(isolated(), Rules(journal=journal)) as containers:
        yield await containers.create("team-a")


async def bash(container: Container, command: str, limit_s: float | None = None) -> CellResult:
    return await (await container.bash(command, limit_s=limit_s)).finished()


async def python(container: Container, code: str) -> CellResult:
    return await (await container.execute(code)).finished()


def told(result: CellResult) -> tuple[str, str, int]:
    return result.stdout, result.stderr, result.return_code


async def test_a_command_gives_its_output_its_status_and_its_files(container: Container) -> None:
    cell = await container.bash("echo one; echo two >&2; printf abc > found.txt; exit 3")

    result = await cell.finished()

    assert told(result) == ("one\n", "two\n", 3)
    assert [(each.path, each.data) for each in result.files] == [("found.txt", b"abc")]
    assert (result.timed_out, result.truncated, result.tool_calls) == (False, False, 0)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("true", ("", "", 0)),
        ("", ("", "", 0)),
        ("# only a comment", ("", "", 0)),
        ("false", ("", "", 1)),
        ("exit 300", ("", "", 44)),
        ("kill -TERM $$; sleep 9", ("", "", 143)),
        ("kill -KILL $$", ("", "", 137)),
        ("cat; read line; echo $?", ("1\n", "", 0)),
        ("trap 'echo caught' INT; kill -INT $$", ("caught\n", "", 0)),
        ("yes | head -n 1", ("y\n", "", 0)),
        ("printf '\\xff\\0\\xfe'", ("\ufffd\0\ufffd", "", 0)),
        ('[ "$(pwd)" = "$HOME" ] && echo home', ("home\n", "", 0)),
        ("echo \"it's\" '\"\"\"' \\\\ `echo b` $'\\x41' {a,b}", ('it\'s """ \\ b A a b\n', "", 0)),
        ("cat <<'end'\n'''\\n{x}%s\nend\necho two", ("'''\\n{x}%s\ntwo\n", "", 0)),
        ("echo é\u2028\u202e😀", ("é\u2028\u202e😀\n", "", 0)),
        ("printf 'a\r\nb' | wc -c", ("4\n", "", 0)),
    ],
)
async def test_a_command_comes_to_what_a_shell_makes_of_it(
    container: Container, command: str, expected: tuple[str, str, int]
) -> None:
    assert told(await bash(container, command)) == expected


async def test_an_error_of_the_shell_is_its_own_words_and_no_traceback(container: Container) -> None:
    result = await bash(container, "no-such-program")
    assert result.return_code == 127
    assert result.stderr.endswith("no-such-program: command not found\n")

    result = await bash(container, "if then 'unclosed")
    assert result.return_code == 2
    assert "Traceback" not in result.stderr


@pytest.mark.skipif(not NAMESPACES, reason="/dev is the host's there")
async def test_descriptors_have_their_names(container: Container) -> None:
    assert told(await bash(container, "cat <(echo a); echo b > /dev/stdout; echo c > /dev/stderr")) == (
        "a\nb\n",
        "c\n",
        0,
    )
    assert (await bash(container, "exec 5< /dev/stdout")).return_code == 1


async def test_commands_are_given_as_they_are(container: Container) -> None:
    chance = random.Random(7)
    for _ in range(20):
        text = "".join(chance.choices(string.printable + "\x01\x7f\\'\"$`é\u2028", k=200))
        end = "".join(chance.choices(string.ascii_letters, k=20))
        result = await bash(container, f"cat <<'{end}'\n{text}\n{end}")
        assert told(result) == (f"{text}\n", "", 0)


async def test_the_longest_command_runs_and_a_longer_one_is_refused(container: Container) -> None:
    longest = f"echo {'é' * 50_000} | wc -m; : ".ljust(MAX_COMMAND_BYTES - 50_000, "x")
    assert len(longest.encode()) == MAX_COMMAND_BYTES
    assert told(await bash(container, longest)) == ("50001\n", "", 0)

    with pytest.raises(InvalidArgument, match=f"the limit is {MAX_COMMAND_BYTES}"):
        await container.bash(longest + "x")


@pytest.mark.parametrize("wrong", ["echo \0", "echo \ud800", "\udcff"])
async def test_what_no_shell_can_take_is_refused(container: Container, wrong: str) -> None:
    with pytest.raises(InvalidArgument):
        await container.bash(wrong)
    assert not container.is_busy


async def test_a_command_is_text() -> None:
    for wrong in (b"ls", ["ls"], None):
        with pytest.raises(InvalidType):
            program(wrong)  # type: ignore[arg-type]


async def test_each_command_is_a_new_shell_and_variables_of_python_stay(container: Container) -> None:
    await python(container, "import os\nkept = 41\nos.environ['SET'] = 'by Python'\nos.chdir('/tmp')")
    await bash(container, "cd /tmp; export MADE=x; f() { :; }; echo a > a.txt; echo b > $HOME/b.txt")

    result = await bash(container, "ls; echo $MADE; echo $SET; type f")

    assert told(result)[0] == "b.txt\nin\nout\n\nby Python\n"
    assert result.return_code == 1
    assert (await python(container, "print(kept + 1)")).stdout == "42\n"


async def test_a_command_leaves_no_names_behind(container: Container) -> None:
    names = "print(sorted(globals()))"
    before = (await python(container, names)).stdout
    await python(container, "exec = repr = str = run = None")
    await bash(container, "exit 1")
    assert told(await bash(container, "echo fine")) == ("fine\n", "", 0)
    await python(container, "del exec, repr, str, run")
    assert (await python(container, names)).stdout == before


async def test_the_journal_has_commands_and_runs_them_again(
    container: Container, journal: MemoryJournal
) -> None:
    cell = await container.bash("echo it\\'s; exit 4")
    await cell.finished()

    began, ended = await journal.entries(cell.id)
    assert ended == Ended(cell.id, 4)
    assert isinstance(began, Began)
    assert "echo it" in began.code
    assert told(await python(container, began.code)) == ("it's\n", "", 4)


async def test_output_is_told_while_it_comes(container: Container) -> None:
    heard: list[tuple[str, str]] = []
    came = asyncio.Event()

    async def listen(stream: str, text: str) -> None:
        heard.append((stream, text))
        came.set()

    cell = await container.bash(
        "echo first; until [ -e go ]; do sleep 0.05; done; echo second >&2", on_output=listen
    )
    with anyio.fail_after(10):
        await came.wait()
        assert heard == [("stdout", "first\n")]
        await container.put("go", b"")
        result = await cell.finished()
    assert told(result) == ("first\n", "second\n", 0)
    assert heard == [("stdout", "first\n"), ("stderr", "second\n")]


async def test_much_output_is_cut_and_the_end_is_kept(container: Container) -> None:
    result = await bash(container, "head -c 3000000 /dev/zero | tr '\\0' x; echo end")
    assert result.truncated
    assert result.stdout.endswith("xend\n")
    assert len(result.stdout) < 100_000


async def alone(container: Container) -> bool:
    """Whether nothing runs in it any more but what does from the beginning."""
    sandboxed = container._sandboxed  # pyright: ignore[reportPrivateUsage]
    with anyio.move_on_after(5):
        while (await sandboxed.stats())["processes"] > 1:
            pass
        return True
    return False


@pytest.mark.parametrize(
    "command",
    [
        "sleep 99",
        "sleep 99; echo no",
        "sleep 98 & sleep 99 & wait",
        "(sleep 99 | cat) | cat; :",
        "trap '' TERM INT HUP USR1; sleep 99; :",
        "kill -STOP $$",
        pytest.param(
            "timeout 99 sleep 99; :", marks=pytest.mark.skipif(not NAMESPACES, reason="needs /proc")
        ),
        pytest.param(
            "set -m; sleep 99 & wait", marks=pytest.mark.skipif(not NAMESPACES, reason="needs /proc")
        ),
    ],
)
async def test_a_command_out_of_time_is_ended_and_the_container_goes_on(
    container: Container, command: str
) -> None:
    await python(container, "kept = 41")

    result = await bash(container, command, LIMIT_S)

    assert (result.stdout, result.return_code, result.timed_out) == ("", 1, True)
    assert "Traceback" not in result.stderr
    assert result.duration_s < LIMIT_S + 1
    assert (await python(container, "print(kept + 1)")).stdout == "42\n"
    assert await alone(container)


async def test_a_shell_that_is_interrupted_while_it_starts_is_ended_too(container: Container) -> None:
    await python(
        container,
        "import subprocess, time\nreal = subprocess.Popen\n"
        "def slow(*given, **more):\n    made = real(*given, **more)\n    time.sleep(0.5)\n    return made\n"
        "subprocess.Popen = slow",
    )
    assert (await bash(container, "sleep 99", 0.2)).timed_out

    assert await alone(container)


async def test_a_command_that_is_cancelled_is_ended_and_the_container_goes_on(
    container: Container, journal: MemoryJournal
) -> None:
    await python(container, "kept = 41")
    for wait_s in (0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.3):
        cell = await container.bash("sleep 99; :")
        await anyio.sleep(wait_s)
        cell.cancel()
        with anyio.fail_after(10), pytest.raises(asyncio.CancelledError):
            await cell.finished()
        if entries := await journal.entries(cell.id):
            assert entries[-1] == Ended(cell.id, None)
    assert (await python(container, "print(kept + 1)")).stdout == "42\n"
    assert await alone(container)


async def test_limits_hold_for_commands(container: Container) -> None:
    result = await bash(container, "while :; do :; done", LIMIT_S)
    assert (result.timed_out, result.return_code) == (True, 1)

    result = await bash(container, "head -c 300000000 /dev/zero > big; echo $?")
    assert result.stdout != "0\n"
    await bash(container, "rm -f big")


async def test_what_a_command_leaves_in_the_background_goes_on_with_the_next(container: Container) -> None:
    result = await bash(
        container, "(until [ -e go ]; do sleep 0.05; done; echo late > late.txt) & echo begun"
    )
    assert told(result) == ("begun\n", "", 0)

    await container.put("go", b"")
    result = await bash(container, "until [ -s late.txt ]; do sleep 0.05; done; cat late.txt", 20)
    assert told(result) == ("late\n", "", 0)


async def test_one_cell_at_a_time(container: Container) -> None:
    cell = await container.bash("until [ -e go ]; do sleep 0.05; done")
    with pytest.raises(SandboxError, match="is running"):
        await container.bash("true")
    await container.put("go", b"")
    assert (await cell.finished()).return_code == 0


BROKEN = [
    "import subprocess\nsubprocess.Popen = None",
    "import sys\nsys.modules['subprocess'] = None",
    "import sys\nsys.modules.clear()",
    "import os\nos.waitid = lambda *_: 1 / 0",
    "import builtins\nbuiltins.__import__ = None",
    "__import__ = print",
    "import builtins\nbuiltins.SystemExit = ValueError",
    "import builtins\nclass SystemExit(builtins.SystemExit):\n    code = property(lambda _: 1 / 0)\n"
    "builtins.SystemExit = SystemExit",
    "import builtins\nbuiltins.SystemExit = 5",
    "import builtins\nbuiltins.BaseException = 5",
    "import builtins\nfor name in list(vars(builtins)):\n    setattr(builtins, name, None)",
    "import sys\nsys.modules['treadle.sandbox.guest.shell'].run = lambda _: exit('²')",
    "import sys\nsys.modules['treadle.sandbox.guest.shell'].run = lambda _: exit(10 ** 5000)",
    "import os\nos.environ = None\nos.dup2(0, 1)\nos.dup2(0, 2)",
    "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "import signal\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)",
    "import os\nos.close(0)\nos.close(1)\nos.close(2)",
]


@pytest.mark.parametrize("code", BROKEN)
async def test_code_that_broke_its_interpreter_gets_a_result_or_the_end_of_its_container(
    container: Container, code: str
) -> None:
    with anyio.fail_after(20):
        try:
            await (await container.execute(code)).finished()
            result = await bash(container, "echo out; exit 3", 5)
        except ContainerDied:
            return
    assert (type(result.stdout), type(result.stderr)) == (str, str)
    assert 0 <= result.return_code < 256


async def test_a_folder_that_is_gone_is_told(container: Container) -> None:
    await python(container, "import treadle.sandbox.guest.shell as shell\nshell._folder = '/nowhere'")
    assert told(await bash(container, "true")) == (
        "",
        "the shell cannot be started: No such file or directory\n",
        126,
    )


async def test_where_there_is_no_bash_there_is_sh(container: Container) -> None:
    assert (await bash(container, "echo ${BASH_VERSION:+bash}")).stdout == "bash\n"
    code = "import treadle.sandbox.guest.shell as shell\nshell.SHELLS = ('/nowhere/bash', '/bin/sh')"
    await python(container, code)
    assert told(await bash(container, "echo $0; exit 2")) == ("/bin/sh\n", "", 2)
