"""Snapshots of a folder, and changes: what is seen, what is skipped, and that the diffs are true."""

import mmap
import os
import re
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.sandbox import local
from treadle.sandbox.diffs import Effort, unified
from treadle.sandbox.snapshot import Change, Snapshot, changes
from treadle.sandbox.watch import (
    FILE_LIMIT_BYTES,
    SKIPPED_FOLDERS,
    TEXT_BUDGET_BYTES,
    TEXT_LIMIT_BYTES,
    Snapshots,
)

HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@\n")


def patched(old: str, diff: str) -> str:
    """`old` after `diff`, applied as strictly as can be."""
    lines = re.findall(r"[^\n]*\n|[^\n]+", old)
    new: list[str] = []
    at = 0
    body = re.sub(r"\n\\ No newline at end of file\n", "\0", diff).split("\n", 2)[2:]
    for line in re.findall(r"[^\n\0]*[\n\0]", "".join(body)):
        text = line[1:].removesuffix("\0")
        if hunk := HUNK.fullmatch(line):
            start = int(hunk[1]) - (hunk[2] != "0")
            new += lines[at:start]
            at = start
        if line[0] in " -":
            assert lines[at] == text
            at += 1
        if line[0] in " +":
            new.append(text)
    return "".join([*new, *lines[at:]])


def digest(content: bytes) -> str:
    return sha256(content).hexdigest()


def write(root: Path, files: Mapping[str, bytes]) -> None:
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)


def at_call(number: int, act: Callable[[], object]) -> Callable[[], None]:
    """A `check` that does `act` at its `number`th call. The first call is the walk of the root."""
    calls = iter(range(1, 1_000_000))

    def check() -> None:
        if next(calls) == number:
            act()

    return check


async def test_a_snapshot_has_the_digest_of_every_regular_file(tmp_path: Path) -> None:
    files = {"a": b"", "b/c.txt": b"text", "b/d/e": b"\0\xff", ".hidden": b"h", "venv.txt": b"v"}
    write(tmp_path, files)
    write(tmp_path, {f"x/{folder}/y": b"skipped" for folder in SKIPPED_FOLDERS})
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "folder-link").symlink_to("b")

    snapshot = await local(tmp_path).snapshot()

    assert snapshot == Snapshot({path: digest(content) for path, content in files.items()})
    assert {
        ".git",
        "node_modules",
        ".venv",
        "venv",
        "__pycache__",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
    } == SKIPPED_FOLDERS


async def test_changes_are_sorted_and_have_their_diffs(tmp_path: Path) -> None:
    lines = "".join(f"{number}\n" for number in range(1, 10))
    write(tmp_path, {"z": b"old\n", "m": lines.encode(), "same": b"s"})
    sandbox = local(tmp_path)
    before = await sandbox.snapshot()

    write(tmp_path, {"m": lines.replace("5", "five").encode(), "a/new": b"n\nm"})
    os.unlink(tmp_path / "z")  # noqa: PTH108
    after = await sandbox.snapshot()

    assert changes(before, after) == [
        Change(
            "a/new",
            "created",
            "--- /dev/null\n+++ b/a/new\n@@ -0,0 +1,2 @@\n+n\n+m\n\\ No newline at end of file\n",
        ),
        Change(
            "m",
            "modified",
            "--- a/m\n+++ b/m\n@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n",
        ),
        Change("z", "deleted", "--- a/z\n+++ /dev/null\n@@ -1 +0,0 @@\n-old\n"),
    ]
    assert changes(before, before) == []


async def test_a_folder_that_did_not_change_gives_the_same_snapshot(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"a", "b/c": b"c"})
    snapshots = Snapshots(str(tmp_path), clock_ns=lambda: 2**62)

    assert snapshots.look() is snapshots.look()


async def test_what_was_read_again_and_is_the_same_gives_the_same_snapshot(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"a", "large": b"l"})
    os.truncate(tmp_path / "large", FILE_LIMIT_BYTES + 1)
    snapshots = Snapshots(str(tmp_path), clock_ns=lambda: 0)

    assert snapshots.look() is snapshots.look()


async def test_a_file_that_was_touched_is_not_changed(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"a"})
    sandbox = local(tmp_path)
    before = await sandbox.snapshot()
    os.utime(tmp_path / "a", ns=(1, 1))

    assert changes(before, await sandbox.snapshot()) == []


async def test_a_rewrite_whose_time_stamp_was_put_back_is_seen(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"old"})
    os.utime(tmp_path / "a", ns=(10**18, 10**18))
    snapshots = Snapshots(str(tmp_path))
    before = snapshots.look()
    write(tmp_path, {"a": b"new"})
    os.utime(tmp_path / "a", ns=(10**18, 10**18))

    assert [change.kind for change in changes(before, snapshots.look())] == ["modified"]


@pytest.mark.parametrize(
    ("lag_ns", "is_seen"),
    [(0, True), (49_000_000, True), (3_000_000_000, False)],
)
def test_a_rewrite_that_leaves_the_stamp_is_seen_if_the_last_look_came_soon_after_a_change(
    tmp_path: Path, lag_ns: int, is_seen: bool
) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"old")

    def clock_ns() -> int:
        return file.stat().st_ctime_ns + lag_ns

    snapshots = Snapshots(str(tmp_path), clock_ns=clock_ns)
    with file.open("r+b") as handle, mmap.mmap(handle.fileno(), 0) as memory:
        memory[:] = b"OLD"  # the page is dirty from now on: to change it again leaves the stamp alone
        before = snapshots.look()
        stamp = file.stat()
        memory[:] = b"new"
        assert file.stat() == stamp
        after = snapshots.look()

    assert [change.kind for change in changes(before, after)] == ["modified"] * is_seen


@pytest.mark.parametrize(("second", "is_seen"), [(10**18, True), (10**18 + 1, False)])
def test_a_stamp_in_whole_seconds_is_trusted_two_seconds_later(
    tmp_path: Path, second: int, is_seen: bool
) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"old")
    snapshots = Snapshots(str(tmp_path), clock_ns=lambda: file.stat().st_ctime_ns + 1_900_000_000)
    with file.open("r+b") as handle, mmap.mmap(handle.fileno(), 0) as memory:
        memory[:] = b"OLD"
        os.utime(file, ns=(second, second))
        before = snapshots.look()
        memory[:] = b"new"
        after = snapshots.look()

    assert [change.kind for change in changes(before, after)] == ["modified"] * is_seen


def test_rewrites_of_one_size_in_quick_succession_are_all_seen(tmp_path: Path) -> None:
    snapshots = Snapshots(str(tmp_path))
    for number in range(100):
        content = b"%04d" % number
        write(tmp_path, {"a": content})
        assert snapshots.look().files == {"a": digest(content)}


async def test_binary_and_large_files_have_no_diff(tmp_path: Path) -> None:
    large = b"x" * TEXT_LIMIT_BYTES
    write(tmp_path, {"nul": b"a\0", "latin": b"\xe9", "grows": large, "shrinks": large + b"y", "edge": large})
    sandbox = local(tmp_path)
    before = await sandbox.snapshot()
    write(tmp_path, {"nul": b"a", "latin": b"e", "grows": large + b"y", "shrinks": large, "edge": b"z"})

    found = {change.path: change.diff is not None for change in changes(before, await sandbox.snapshot())}

    assert found == {"nul": False, "latin": False, "grows": False, "shrinks": False, "edge": True}


async def test_an_empty_file_has_an_empty_diff(tmp_path: Path) -> None:
    sandbox = local(tmp_path)
    before = await sandbox.snapshot()
    write(tmp_path, {"a": b""})
    after = await sandbox.snapshot()

    assert changes(before, after) == [Change("a", "created", "")]
    assert changes(after, before) == [Change("a", "deleted", "")]


async def test_a_file_over_the_limit_is_reported_only_when_it_crosses_it(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"a", "huge": b"h"})
    os.truncate(tmp_path / "huge", FILE_LIMIT_BYTES + 1)
    sandbox = local(tmp_path)
    small = await sandbox.snapshot()
    os.truncate(tmp_path / "a", FILE_LIMIT_BYTES + 1)
    large = await sandbox.snapshot()
    os.unlink(tmp_path / "a")  # noqa: PTH108
    gone = await sandbox.snapshot()

    assert small == Snapshot({"a": digest(b"a")}, unread=frozenset({"huge"}))
    assert changes(small, large) == [Change("a", "modified", None)]
    assert changes(large, small) == [Change("a", "modified", None)]
    assert changes(large, gone) == []


def test_a_file_of_just_the_limit_is_read(tmp_path: Path) -> None:
    write(tmp_path, {"a": b""})
    os.truncate(tmp_path / "a", FILE_LIMIT_BYTES)

    assert Snapshots(str(tmp_path)).look() == Snapshot({"a": digest(bytes(FILE_LIMIT_BYTES))})


def test_a_file_that_grows_over_the_limit_while_it_is_read_is_given_up(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"a"})
    os.truncate(tmp_path / "a", FILE_LIMIT_BYTES)

    def grow() -> None:
        os.truncate(tmp_path / "a", FILE_LIMIT_BYTES + 1)

    assert Snapshots(str(tmp_path)).look(at_call(5, grow)) == Snapshot({}, unread=frozenset({"a"}))


def test_a_file_that_vanishes_during_the_look_is_absent(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"a", "b": b"b"})

    snapshot = Snapshots(str(tmp_path)).look(at_call(2, (tmp_path / "a").unlink))

    assert snapshot == Snapshot({"b": digest(b"b")})


def test_a_folder_that_vanishes_during_the_look_is_absent(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"a"})
    (tmp_path / "b").mkdir()

    snapshot = Snapshots(str(tmp_path)).look(at_call(2, (tmp_path / "b").rmdir))

    assert snapshot == Snapshot({"a": digest(b"a")})


def test_a_link_planted_during_the_look_is_not_followed(tmp_path: Path) -> None:
    write(tmp_path, {"w/a": b"a", "outside": b"secret"})

    def plant() -> None:
        (tmp_path / "w/a").unlink()
        (tmp_path / "w/a").symlink_to(tmp_path / "outside")

    snapshots = Snapshots(str(tmp_path / "w"))

    assert snapshots.look(at_call(2, plant)) == Snapshot({}, unread=frozenset({"a"}))
    assert snapshots.look() == Snapshot({})


def test_a_pipe_planted_during_the_look_does_not_hang_it(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"a"})

    def plant() -> None:
        (tmp_path / "a").unlink()
        os.mkfifo(tmp_path / "a")

    assert Snapshots(str(tmp_path)).look(at_call(2, plant)) == Snapshot({}, unread=frozenset({"a"}))


def test_a_file_that_could_not_be_read_is_tried_again(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"a"})
    snapshots = Snapshots(str(tmp_path), clock_ns=lambda: 2**62)
    (tmp_path / "a").rename(tmp_path / "b")

    def hide() -> None:
        (tmp_path / "b").rename(tmp_path / "hidden")
        (tmp_path / "b").symlink_to("hidden")

    assert snapshots.look(at_call(2, hide)) == Snapshot({}, unread=frozenset({"b"}))
    (tmp_path / "b").unlink()
    (tmp_path / "hidden").rename(tmp_path / "b")
    assert snapshots.look() == Snapshot({"b": digest(b"a")})


def test_a_workspace_that_is_gone_is_empty(tmp_path: Path) -> None:
    assert Snapshots(str(tmp_path / "absent")).look() == Snapshot({})


def test_old_texts_make_room_for_new_ones_within_the_budget(tmp_path: Path) -> None:
    per_budget = TEXT_BUDGET_BYTES // TEXT_LIMIT_BYTES
    text = b"x" * TEXT_LIMIT_BYTES
    names = [f"{number:03}" for number in range(per_budget + 2)]
    write(tmp_path, dict.fromkeys(names, text))
    snapshots = Snapshots(str(tmp_path))
    first = snapshots.look()
    changed = {names[5]: b"5" + text[1:], "new": b"n" + text[1:], names[-1]: b"unknown before"}
    write(tmp_path, changed)
    second = snapshots.look()

    assert set(first.texts) == set(names[:per_budget])
    assert sum(map(len, second.texts.values())) <= TEXT_BUDGET_BYTES
    assert set(changed) <= set(second.texts)
    assert {change.path: change.diff is not None for change in changes(first, second)} == {
        names[5]: True,
        "new": True,
        names[-1]: False,
    }
    (tmp_path / names[5]).write_bytes(b"again")
    assert [change.diff is not None for change in changes(second, snapshots.look())] == [True]


def test_many_texts_that_change_at_once_stay_within_the_budget(tmp_path: Path) -> None:
    names = [f"{number:03}" for number in range(TEXT_BUDGET_BYTES // TEXT_LIMIT_BYTES + 3)]
    snapshots = Snapshots(str(tmp_path))
    before = snapshots.look()
    write(tmp_path, dict.fromkeys(names, b"x" * TEXT_LIMIT_BYTES))

    found = changes(before, snapshots.look())

    assert [change.path for change in found] == names
    assert [change.diff is None for change in found] == [False] * (len(names) - 3) + [True] * 3


async def test_two_looks_at_once_both_see_the_folder(tmp_path: Path) -> None:
    write(tmp_path, {"a": b"a", "b": b"b"})
    sandbox = local(tmp_path)
    found: list[Snapshot] = []

    async def look() -> None:
        found.append(await sandbox.snapshot())

    async with anyio.create_task_group() as group:
        group.start_soon(look)
        group.start_soon(look)

    assert found == [Snapshot({"a": digest(b"a"), "b": digest(b"b")})] * 2


async def test_a_cancelled_look_ends_soon_and_the_next_one_is_right(tmp_path: Path) -> None:
    write(tmp_path, {f"{number}/a": b"a" for number in range(3)})
    snapshots = Snapshots(str(tmp_path))
    began, cancelled = threading.Event(), threading.Event()
    calls: list[None] = []

    def check() -> None:
        calls.append(None)
        began.set()
        assert cancelled.wait(10)
        anyio.from_thread.check_cancelled()

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(to_thread.run_sync, snapshots.look, check)
            await to_thread.run_sync(began.wait, 10)
            group.cancel_scope.cancel()
            cancelled.set()

    assert len(calls) == 1
    assert snapshots.look().files == {f"{number}/a": digest(b"a") for number in range(3)}


async def test_a_cancelled_snapshot_raises_nothing_else(tmp_path: Path) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await local(tmp_path).snapshot()

    assert scope.cancelled_caught


@pytest.mark.parametrize(
    ("name", "shown", "header"),
    [
        (b"a b", "a b", "b/a b"),
        ("é".encode(), "é", "b/é"),
        (b"x\n+++ b/y", "x\n+++ b/y", '"b/x\\n+++ b/y"'),
        (b"\xff", "\\xff", "b/\\xff"),
    ],
)
async def test_odd_names_can_be_shown_and_forge_no_diff(
    tmp_path: Path, name: bytes, shown: str, header: str
) -> None:
    sandbox = local(tmp_path)
    before = await sandbox.snapshot()
    write(tmp_path, {os.fsdecode(name): b"1\n"})

    diff = f"--- /dev/null\n+++ {header}\n@@ -0,0 +1 @@\n+1\n"
    assert changes(before, await sandbox.snapshot()) == [Change(shown, "created", diff)]


def test_a_snapshot_shows_no_file_content() -> None:
    assert "secret" not in repr(Snapshot({"a": "0"}, {"a": b"secret"}))


lines = st.lists(
    st.sampled_from(["a\n", "b\n", "c\n", "\n", "d\r\n", "e\u2028f\n", "g\x0ch\rg\n"]), max_size=30
)


def joined(whole: list[str], rest: str) -> str:
    return "".join(whole) + rest


texts = st.builds(joined, lines, st.sampled_from(["", "", "a", "b"]))


@given(texts, texts, st.sampled_from([0, 5, 100, 10**6]))
def test_a_diff_turns_the_old_text_into_the_new_one(old: str, new: str, effort: int) -> None:
    diff = unified(old, new, old_name="a/x", new_name="b/x", effort=Effort(effort))

    assert patched(old, diff) == new
    assert bool(diff) == (old != new)


def test_texts_made_to_be_slow_to_compare_are_replaced_where_effort_ends() -> None:
    old = "".join(f"{number * 7919 % 101}\n" for number in range(40_000))
    new = "".join(f"{number * 104_729 % 103}\n" for number in range(40_000))
    effort = Effort(1_000)

    diff = unified(f"head\n{old}tail\n", f"head\n{new}tail\n", old_name="a/x", new_name="b/x", effort=effort)

    assert patched(f"head\n{old}tail\n", diff) == f"head\n{new}tail\n"
    assert effort == Effort(1_000)


def test_the_effort_of_one_comparison_is_that_of_all() -> None:
    many = {f"{number:02}": f"{number}\n".encode() for number in range(50)}
    old = Snapshot({path: digest(text) for path, text in many.items()}, many)
    other = {path: text + b"more\n" for path, text in many.items()}
    new = replace(old, files={path: digest(text) for path, text in other.items()}, texts=other)

    found = changes(old, new)

    assert [patched(many[change.path].decode(), change.diff or "") for change in found] == [
        text.decode() for text in other.values()
    ]


PATHS = ["a", "b.txt", "d/b", "d/e/c", "d/e/f", ".git/x", "d/node_modules/y"]
CONTENTS = [b"", b"x\n", b"x", b"y\n", b"x\ny\nz\n", b"x\nY\nz", "é\n".encode(), b"\0b", b"\xff"]

acts = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(PATHS), st.sampled_from(CONTENTS)),
    st.tuples(st.just("delete"), st.sampled_from(PATHS), st.none()),
    st.tuples(st.just("touch"), st.sampled_from(PATHS), st.none()),
    st.tuples(st.just("look"), st.none(), st.none()),
)


def text_or_none(content: bytes) -> str | None:
    try:
        return None if b"\0" in content else content.decode()
    except UnicodeDecodeError:
        return None


def assert_is_change(change: Change, old: bytes | None, new: bytes | None) -> None:
    kind = "created" if old is None else "deleted" if new is None else "modified"
    old_text, new_text = text_or_none(old or b""), text_or_none(new or b"")
    assert change.kind == kind
    if old_text is None or new_text is None:
        assert change.diff is None
    else:
        assert change.diff is not None
        assert patched(old_text, change.diff) == new_text


@settings(deadline=None)
@given(st.lists(acts, max_size=25))
def test_changes_are_those_that_were_made(acts: list[tuple[str, str, bytes | None]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        snapshots = Snapshots(folder)
        before, was = snapshots.look(), dict[str, bytes]()
        now: dict[str, bytes] = {}
        for act, path, content in [*acts, ("look", "", None)]:
            if content is not None:
                write(root, {path: content})
                now[path] = content
            elif act == "delete":
                (root / path).unlink(missing_ok=True)
                now.pop(path, None)
            elif act == "touch" and path in now:
                (root / path).touch()
            elif act == "look":
                after = snapshots.look()
                seen = {path for path in PATHS[:5] if was.get(path) != now.get(path)}
                found = changes(before, after)
                assert [change.path for change in found] == sorted(seen)
                for change in found:
                    assert_is_change(change, was.get(change.path), now.get(change.path))
                before, was = after, dict(now)
