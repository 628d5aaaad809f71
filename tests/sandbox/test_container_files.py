"""Files in and out of real containers, while hostile code runs in them."""

import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest

from treadle.errors import InvalidType, SandboxError
from treadle.sandbox.box import MIB, Limits, Mount
from treadle.sandbox.container import Container, ContainerDied
from treadle.sandbox.control import FileMissing
from treadle.sandbox.engine import Engine
from treadle.sandbox.files import CollectedFile, FileEntry, Skipped

PROBE = (
    "from treadle.sandbox.kernel import libc\n"
    "libc.unshare(libc.CLONE_NEWUSER | libc.CLONE_NEWNS | libc.CLONE_NEWPID | libc.CLONE_NEWNET)"
)


def namespaces() -> bool:
    if sys.platform != "linux":
        return False
    return subprocess.run([sys.executable, "-c", PROBE], check=False, capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not namespaces(), reason="no user namespaces are to be had on this machine")
Make = Callable[..., Awaitable[Container]]


@pytest.fixture
async def make() -> AsyncGenerator[Make]:
    """Makes containers with the limits that are given."""
    engines: list[Engine] = []

    async def one(**limits: int) -> Container:
        engine = Engine(Limits(**limits))
        engines.append(engine)
        await engine.start()
        return await engine.make()

    with anyio.fail_after(60):
        yield one
        for engine in engines:
            await engine.close()


@pytest.fixture
async def container(make: Make) -> Container:
    return await make()


async def run(container: Container, code: str) -> str:
    outcome = await container.execute(code, limit_s=20)
    assert outcome.failure is None, outcome
    return outcome.stdout


@asynccontextmanager
async def running(container: Container, code: str) -> AsyncGenerator[None]:
    """`code` runs again and again, until the block is left."""
    loop = "import os\nwhile not os.path.exists('/tmp/stop'):\n" + "".join(
        f"    {line}\n" for line in code.splitlines()
    )
    async with anyio.create_task_group() as group:
        group.start_soon(run, container, loop)
        yield
        await container.put("/tmp/stop", b"")


def reasons(skipped: Sequence[Skipped]) -> dict[str, str]:
    return {each.path: each.reason for each in skipped}


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder of the host, for a mount."""
    (tmp_path / "file").write_text("host's", "utf-8")
    tmp_path.chmod(0o755)
    return tmp_path


async def test_mounted_folders_are_listed_and_not_collected_with_what_they_are_in(shared: Path) -> None:
    async with Engine(mounts=[Mount(str(shared), "/workspace/out/host", writable=True)]) as engine:
        container = await engine.make()
        marks = await container.marks()

        await container.execute("open('/workspace/out/host/new', 'w').close(); open('out/own', 'w').close()")

        assert [file.path for file in (await container.collect(since=marks)).files] == ["own"]
        assert {entry.path for entry in await container.list("/workspace/out")} == {
            "host",
            "host/file",
            "host/new",
            "own",
        }


async def test_what_was_there_and_is_gone_is_told(container: Container) -> None:
    await container.execute("open('out/a', 'w').close(); open('out/b', 'w').close()")
    marks = await container.marks()

    await container.execute(
        "import os; os.remove('out/a'); open('out/b', 'w').write('b'); open('out/c', 'w')"
    )

    collected = await container.collect(since=marks)
    assert collected.files == [CollectedFile("b", b"b", is_new=False), CollectedFile("c", b"", is_new=True)]
    assert collected.removed == ["a"]


async def test_pipes_of_a_mounted_folder_are_neither_opened_nor_replaced(shared: Path) -> None:
    os.mkfifo(shared / "pipe")
    (shared / "link").symlink_to("/etc/passwd")
    async with Engine(mounts=[Mount(str(shared), "/workspace/out/host")]) as engine:
        container = await engine.make()

        with anyio.fail_after(5):
            found = await container.collect("/workspace/out/host")

        assert found.files == [CollectedFile("file", b"host's")]
        assert found.skipped == [Skipped("link", "it is a link"), Skipped("pipe", "it is a named pipe")]
        with pytest.raises(SandboxError, match="it is a pipe"):
            await container.get("out/host/pipe")
        with pytest.raises(SandboxError, match="a pipe is in the way"):
            await container.put("out/host/pipe", b"")
        with pytest.raises(SandboxError, match="it is read-only"):
            await container.put("out/host/file", b"")
        assert (shared / "file").read_text("utf-8") == "host's"


async def test_a_mount_elsewhere_is_read_by_its_place(shared: Path) -> None:
    async with Engine(mounts=[Mount(str(shared), "/data")]) as engine:
        container = await engine.make()

        assert await container.get("/data/file") == b"host's"
        assert [each.path for each in await container.list("/data")] == ["file"]


@pytest.mark.parametrize("size", [0, 1, 65536, 65537, 3 * 65536, 5_000_000])
async def test_what_was_put_is_what_the_code_and_a_get_find(container: Container, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)

    await container.put("in/new/folder/data.bin", data[:size])

    found = await run(container, "print(len(open('/workspace/in/new/folder/data.bin','rb').read()))")
    assert found == f"{size}\n"
    assert await container.get("/workspace/in/new/folder/data.bin") == data[:size]


async def test_a_file_is_replaced_and_the_code_sees_one_of_both_whole(container: Container) -> None:
    first, second = b"a" * 500_000, b"b" * 500_000
    await container.put("x", first)

    async with running(container, "found = open('/workspace/x').read()\nassert len(set(found)) == 1"):
        for _ in range(20):
            await container.put("x", second)
            await container.put("x", first)

    assert await container.get("x") == first


WAYS = """
import os
os.symlink('/tmp', 'link'); os.symlink('/tmp/new', 'linked'); os.mkdir('folder'); open('file', 'w').close()
os.mkdir('closed', 0)
s = __import__('socket').socket(1); s.bind('socket')
"""


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("../x", "must not go up"),
        ("folder/../../etc/x", "must not go up"),
        ("/etc/passwd", "in none of /workspace, /tmp"),
        ("/workspaces", "in none of /workspace, /tmp"),
        ("", "a folder is in the way"),
        ("/tmp", "a folder is in the way"),
        ("x\0y", "NUL"),
        ("linked", "a link is in the way"),
        ("link/x", "a link is in the way: '/workspace/link'"),
        ("file/x", "a file is in the way: '/workspace/file'"),
        ("folder", "a folder is in the way"),
        ("socket", "a socket is in the way"),
        ("closed/x", "no permission"),
        ("n" * 256, "a name is too long"),
        ("n" * 5000, "too long"),
        ("\udcff", "valid Unicode"),
    ],
)
async def test_a_put_where_none_may_be_is_refused(container: Container, path: str, reason: str) -> None:
    await run(container, WAYS)

    with pytest.raises(SandboxError, match=reason):
        await container.put(path, b"x")

    assert await container.list("/tmp") == []
    assert [each.path for each in await container.list() if each.path.endswith(".part")] == []


async def test_values_of_wrong_types_are_refused(container: Container) -> None:
    with pytest.raises(InvalidType, match="bytes, not str"):
        await container.put("x", "text")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidType, match="a str, not bytes"):
        await container.get(b"x")  # pyright: ignore[reportArgumentType]


async def test_a_file_that_is_replaced_keeps_its_mode(container: Container) -> None:
    await container.put("a", b"1")
    assert await run(container, "import os\nprint(oct(os.stat('a').st_mode))\nos.chmod('a', 0o751)") == (
        "0o100644\n"
    )

    await container.put("a", b"2")

    assert await run(container, "print(oct(os.stat('a').st_mode), open('a').read())") == "0o100751 2\n"


async def test_a_file_over_the_limit_is_refused(make: Make) -> None:
    container = await make(file_mib=1)

    with pytest.raises(SandboxError, match="1048577 bytes are too many: the limit of a file is 1048576"):
        await container.put("x", b"x" * (MIB + 1))

    await container.put("x", b"x" * MIB)


async def test_a_full_disk_is_told_and_nothing_is_left_of_the_file(make: Make) -> None:
    container = await make(disk_mib=4)
    await container.put("first", b"x" * 3 * MIB)

    with pytest.raises(SandboxError, match=r"'second' cannot be put .* the disk of the container is full"):
        await container.put("second", b"x" * 3 * MIB)

    assert [each.path for each in await container.list()] == ["first", "in", "out"]
    await container.put("third", b"x" * 100_000)


async def test_a_disk_without_room_for_one_more_file_is_told(make: Make) -> None:
    container = await make(files=100)
    code = "n = 0\ntry:\n    while True: open(f'f{n}', 'w').close(); n += 1\nexcept OSError: pass"
    await run(container, code)

    with pytest.raises(SandboxError, match="the disk of the container is full"):
        await container.put("x", b"")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("linked", "it is a link"),
        ("link/x", "a link is in the way"),
        ("folder", "it is a folder"),
        ("socket", "it is a socket"),
        ("closed/x", "no permission"),
        ("missing", "there is no such file"),
        ("missing/x", "there is no folder '/workspace/missing'"),
        ("/proc/1/environ", "in none of"),
        ("/etc/passwd", "in none of"),
    ],
)
async def test_only_regular_files_are_given(container: Container, path: str, reason: str) -> None:
    await run(container, WAYS)

    with pytest.raises(SandboxError, match=reason):
        await container.get(path)


async def test_a_file_over_the_limit_of_a_get_says_its_size(container: Container) -> None:
    await container.put("x", b"12345678")

    assert await container.get("x", limit=8) == b"12345678"
    with pytest.raises(SandboxError, match="it has 8 bytes: the limit is 7"):
        await container.get("x", limit=7)


async def test_a_list_tells_every_kind(container: Container) -> None:
    await run(container, "import os\nos.utime('in', (7.5, 7.5))\n" + WAYS)
    await container.put("folder/a", b"123")

    found = await container.list()

    assert not found.cut
    assert [(each.path, each.kind) for each in found] == [
        ("closed", "folder"),
        ("file", "file"),
        ("folder", "folder"),
        ("folder/a", "file"),
        ("in", "folder"),
        ("link", "link"),
        ("linked", "link"),
        ("out", "folder"),
        ("socket", "other"),
    ]
    assert found[4] == FileEntry("in", "folder", found[4].size, 7.5)
    assert found[3].size == 3
    assert await container.list("folder") == [FileEntry("a", "file", 3, found[3].mtime)]


async def test_a_list_goes_as_deep_as_it_is_told(container: Container) -> None:
    await container.put("/tmp/a/b/c/d", b"")
    for depth, paths in [
        (1, ["a"]),
        (2, ["a", "a/b"]),
        (4, ["a", "a/b", "a/b/c", "a/b/c/d"]),
        (None, ["a", "a/b", "a/b/c", "a/b/c/d"]),
    ]:
        assert [each.path for each in await container.list("/tmp", depth=depth)] == paths


async def test_what_is_missing_is_told_from_what_is_refused(container: Container) -> None:
    await run(container, "import os\nos.symlink('/etc', 'link')")
    for path in ("a", "a/b", "/tmp/a/b/c"):
        with pytest.raises(FileMissing):
            await container.get(path)
    with pytest.raises(FileMissing):
        await container.list("a")
    for path in ("link", "link/passwd", "/etc/passwd", "../a", ""):
        with pytest.raises(SandboxError) as caught:
            await container.get(path)
        assert not isinstance(caught.value, FileMissing)


async def test_a_list_of_too_much_is_cut(container: Container) -> None:
    await run(container, "for n in range(12_000): open(f'/tmp/{n}', 'w').close()")

    found = await container.list("/tmp")

    assert (len(found), found.cut) == (10_000, True)


async def test_a_list_of_no_folder_is_refused(container: Container) -> None:
    await run(container, WAYS)

    with pytest.raises(SandboxError, match="a link is in the way"):
        await container.list("link")
    with pytest.raises(SandboxError, match="there is no folder"):
        await container.list("nothing")


OUT = """
import os, socket
os.chdir('/workspace/out')
open('good.txt', 'w').write('good'); os.mkdir('sub'); open('sub/two\\nlines.txt', 'w').write('2')
os.symlink('/etc/passwd', 'link'); os.symlink('/etc', 'linked_folder')
s = socket.socket(socket.AF_UNIX); s.bind('socket')
open('hard', 'w').write('h'); os.link('hard', 'hard2')
open('closed', 'w').write('secret'); os.chmod('closed', 0)
os.mkdir('closed_folder'); open('closed_folder/x', 'w').close(); os.chmod('closed_folder', 0)
open(b'bad\\xff\\xc3\\xa9', 'w').close(); open('n' * 255, 'w').write('long'); open('é', 'w').write('é')
os.mkdir('l' * 250)
for n in range(4): os.mkdir('l' * 250 + '/' + '/'.join(['m' * 250] * (n + 1)))
os.chdir('/workspace')
"""


async def test_only_regular_files_are_collected_and_the_others_told(container: Container) -> None:
    await run(container, OUT)

    found = await container.collect()

    assert found.files == [
        CollectedFile("good.txt", b"good"),
        CollectedFile("n" * 255, b"long"),
        CollectedFile("sub/two\nlines.txt", b"2"),
        CollectedFile("é", "é".encode()),
    ]
    told = reasons(found.skipped)
    long = next(path for path in told if path.startswith("lll"))
    assert told == {
        "link": "it is a link",
        "linked_folder": "it is a link",
        "socket": "it is a socket",
        "hard": "it has 2 hard links",
        "hard2": "it has 2 hard links",
        "closed": "it cannot be read: no permission",
        "closed_folder": "it cannot be read: no permission",
        "bad\\udcffé": "its name is not valid UTF-8",
        long: "its path has more than 1024 bytes",
    }


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("os.rmdir('/workspace/out')", "there is no folder '/workspace/out'"),
        (
            "os.rmdir('/workspace/out'); os.symlink('/etc', '/workspace/out')",
            "a link is in the way: '/workspace/out'",
        ),
        ("os.rename('/workspace', '/tmp/w')", None),
    ],
)
async def test_a_folder_that_is_gone_gives_nothing(
    container: Container, code: str, reason: str | None
) -> None:
    outcome = await container.execute(f"import os\n{code}")

    found = await container.collect()

    assert found.files == []
    if reason is None:  # `/` is none of the code's to change
        assert outcome.failure
    else:
        assert found.skipped == [Skipped(".", reason)]
    assert (await container.marks()).seen == frozenset()


async def test_no_more_files_and_bytes_than_asked_for(container: Container) -> None:
    await run(container, "for n in range(5): open(f'out/{n}', 'w').write('1234567890')")

    few = await container.collect(max_files=2)
    small = await container.collect(max_bytes=25)

    assert [each.path for each in few.files] == ["0", "1"]
    assert reasons(few.skipped) == dict.fromkeys("234", "there are more than 2 files")
    assert [each.path for each in small.files] == ["0", "1"]
    too_many = "it has 10 bytes: with it there would be more than 25"
    assert reasons(small.skipped) == dict.fromkeys("234", too_many)


async def test_of_very_many_files_a_part_is_told(container: Container) -> None:
    await run(container, "for n in range(15_000): open(f'out/{n}', 'w').close()")

    found = await container.collect()

    assert len(found.files) == 100
    assert len(found.skipped) == 1001
    assert found.skipped[-1] == Skipped(".", "13900 more were skipped")


async def test_more_than_is_looked_at_is_told(make: Make) -> None:
    container = await make(files=30_000)
    await run(container, "for n in range(26_000): open(f'out/{n}', 'w').close()")

    found = await container.collect()

    assert found.skipped[-1].reason.startswith("there are more than 25000 files and folders")


async def test_holes_are_bytes_too(container: Container) -> None:
    await run(container, "import os\nfor n in range(50): os.truncate(os.open(f'out/{n}', 66), 60 << 20)")

    found = await container.collect(max_bytes=64 * MIB)

    assert [(each.path, len(each.data)) for each in found.files] == [("0", 60 * MIB)]
    assert len(found.skipped) == 49
    assert (await container.stats())["disk"] < MIB


async def test_only_what_changed_since_is_collected(container: Container) -> None:
    await run(
        container, "import os\nfor n in 'abcd': open(f'out/{n}', 'w').write(n)\nos.symlink('a', 'out/p')"
    )
    marks = await container.marks()
    first = await container.collect(since=marks)
    await run(
        container,
        "open('out/a', 'w').write('A')\nopen('out/new', 'w').close()\nopen('out/t', 'w').write('b')\n"
        "s = os.stat('out/b'); os.rename('out/t', 'out/b')\n"
        "os.utime('out/b', ns=(s.st_atime_ns, s.st_mtime_ns))",
    )

    second = await container.collect(since=marks)
    third = await container.collect(since=second.marks)

    assert (first.files, first.skipped) == ([], [])
    assert [each.path for each in second.files] == ["a", "b", "new"]
    assert second.skipped == []
    assert third.files == []


async def test_thousands_of_folders_in_each_other_are_not_entered(container: Container) -> None:
    await run(
        container,
        "import os\nos.chdir('out')\nfor n in range(4000): os.mkdir('d'); os.chdir('d')\n"
        "open('deep', 'w').close()\nos.chdir('/workspace')",
    )

    found = await container.collect()

    assert found.files == []
    assert found.skipped == [Skipped("/".join("d" * 33), "it is more than 32 folders deep")]
    assert len(await container.list("out")) == 33


async def test_the_code_gets_no_lease_for_which_others_would_wait(container: Container) -> None:
    told = await run(
        container,
        "import fcntl, os\nf = os.open('out/x', os.O_CREAT | os.O_RDWR)\n"
        "try:\n    fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_WRLCK)\nexcept PermissionError as error:\n"
        "    print(error.errno)",
    )

    with anyio.fail_after(5):
        found = await container.collect()

    assert told == "1\n"
    assert [each.path for each in found.files] == ["x"]


async def test_a_file_that_is_a_link_now_and_then_is_never_followed(container: Container) -> None:
    await container.put("/tmp/content", b"mine")
    swap = """open('/tmp/a', 'w').write('mine'); os.rename('/tmp/a', '/workspace/out/x')
os.symlink('/etc/passwd', '/tmp/b'); os.rename('/tmp/b', '/workspace/out/x')
os.symlink('/dev/full', '/tmp/c'); os.rename('/tmp/c', '/workspace/out/x')"""
    seen: set[str] = set()
    rounds = 0

    async with running(container, swap):
        with anyio.fail_after(10):
            while rounds < 200 or len(seen) < 2:  # on a busy machine the code gets its turn late
                found = await container.collect()
                assert {each.data for each in found.files} <= {b"mine"}
                seen |= {each.reason for each in found.skipped} | {"file" for _ in found.files}
                rounds += 1


async def test_a_folder_that_is_a_link_now_and_then_is_never_entered(container: Container) -> None:
    await run(container, "import os\nos.makedirs('/tmp/other'); os.makedirs('out/d/d')")
    await container.put("out/d/d/x", b"mine")
    await container.put("/tmp/other/x", b"other")
    swap = """import shutil
os.rename('/workspace/out/d', '/workspace/d')
try: os.symlink('/tmp/other', '/workspace/out/d')
except FileExistsError: shutil.rmtree('/workspace/out/d', ignore_errors=True)
else: os.unlink('/workspace/out/d')
while True:
    try: os.rename('/workspace/d', '/workspace/out/d')
    except OSError: shutil.rmtree('/workspace/out/d', ignore_errors=True)
    else: break"""
    gone = 0

    async with running(container, swap):
        for _ in range(200):
            found = await container.collect()
            assert {each.data for each in found.files} <= {b"mine"}
            try:
                await container.put("out/d/put", b"mine")
            except SandboxError:
                gone += 1

    assert [each.path for each in await container.list("/tmp/other")] == ["x"]
    assert await container.get("/tmp/other/x") == b"other"


async def test_a_growing_file_ends_where_the_limit_is(container: Container) -> None:
    grow = """f = os.open('/workspace/out/x', os.O_CREAT | os.O_RDWR | os.O_TRUNC)
for n in range(50): os.write(f, b'x' * 50_000)
os.close(f)"""

    async with running(container, grow):
        for _ in range(50):
            found = await container.collect(max_bytes=1_000_000)
            assert sum(len(each.data) for each in found.files) <= 1_000_000


async def test_files_that_are_made_and_removed_all_the_time_hold_up_nobody(container: Container) -> None:
    code = """for n in range(300): open(f'/workspace/out/{n}', 'w').close()
os.makedirs('/workspace/out/d/d/d', exist_ok=True)
for n in range(300): os.unlink(f'/workspace/out/{n}')
os.removedirs('/workspace/out/d/d/d'); os.makedirs('/workspace/out', exist_ok=True)"""

    async with running(container, code):
        for _ in range(100):
            await container.collect()
            with anyio.fail_after(5), suppress(SandboxError):
                await container.list("out")


async def test_memory_is_watched_while_files_are_collected(make: Make) -> None:
    container = await make(memory_mib=64)
    await run(container, "for n in range(2_000): open(f'out/{n}', 'w').close()")
    code = """import os, time
for n in range(6):
    if not os.fork():
        x = bytearray(40 << 20); time.sleep(30)
time.sleep(30)"""

    async def collect() -> None:
        while True:
            await container.collect()

    async with anyio.create_task_group() as group:

        async def grow() -> None:
            with pytest.raises(ContainerDied) as died:
                await container.execute(code)
            assert died.value.reason == "memory"

        group.start_soon(grow)
        with pytest.raises(ContainerDied), anyio.fail_after(10):
            await collect()


async def test_many_at_once_wait_for_each_other(container: Container) -> None:
    async def one(number: int) -> None:
        data = bytes([number]) * 200_000
        await container.put(f"{number}", data)
        assert await container.get(f"{number}") == data

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(one, number)


async def test_one_that_is_cancelled_leaves_nothing_behind(container: Container) -> None:
    await container.put("x", b"x" * 1000)
    for delay_ms in range(10):
        with anyio.move_on_after(delay_ms / 1000):
            await container.put("big", b"x" * 30 * MIB)
        with anyio.move_on_after(delay_ms / 1000), suppress(SandboxError):
            await container.get("big")
        assert await container.get("x") == b"x" * 1000
        assert [each.path for each in await container.list() if each.path.endswith(".part")] == []


async def test_a_container_that_is_gone_says_so(container: Container) -> None:
    with pytest.raises(ContainerDied):
        await container.execute("import os; os._exit(4)")

    for attempt in (container.put("x", b""), container.get("x"), container.list(), container.collect()):
        with pytest.raises(ContainerDied):
            await attempt


def held(pid: int) -> tuple[int, int]:
    """Descriptors and MiB of a process."""
    try:
        descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except PermissionError:  # where the host is no root
        descriptors = 0
    return descriptors, int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * 4096 // MIB


async def test_pid_1_keeps_nothing_of_what_it_did(container: Container) -> None:
    await run(container, OUT + "for n in range(9_000): os.makedirs(f'/tmp/d{n % 30}/{n}')")
    await container.list("/tmp")
    before = held(container.pid)

    await container.put("x", b"x" * 60 * MIB)
    for delay_ms in (0, 1, 2, 3, 5):
        for work in (
            container.collect("/"),
            container.collect("/tmp"),
            container.get("x"),
            container.list("/tmp"),
        ):
            with anyio.move_on_after(delay_ms / 1000), suppress(SandboxError):
                await work
    await container.collect(max_bytes=10)
    await container.get("x")
    await container.list("/tmp")

    after = held(container.pid)
    assert after[0] == before[0]
    assert after[1] <= before[1] + 2


async def test_stats_may_be_asked_for_in_between(container: Container) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(container.put, "x", b"x" * 10 * MIB)
        for _ in range(10):
            assert (await container.stats())["processes"] == 1
