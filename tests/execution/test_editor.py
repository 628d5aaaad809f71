"""The text editor of a container, as a model uses it."""

from collections.abc import AsyncGenerator, Mapping
from types import MappingProxyType
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.execution import Container, ContainerGone, Containers, Created, Edited, EditFailed, Viewed
from treadle.execution.editor import (
    MAX_FILE_BYTES,
    MAX_LINE_CHARS,
    MAX_LISTED,
    MAX_SHOWN_CHARS,
    Editor,
    _difference,  # pyright: ignore[reportPrivateUsage]
    _lines,  # pyright: ignore[reportPrivateUsage]
)
from treadle.sandbox.container import ContainerDied
from treadle.sandbox.files import FileEntry, Listing
from treadle.sandbox.isolation import isolated
from treadle.sandbox.ladder import probe

REPORT = probe()
pytestmark = pytest.mark.skipif(REPORT.rung is None, reason=f"no containers here: {REPORT.why}")
POEM = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n"


@pytest.fixture
async def container() -> AsyncGenerator[Container]:
    async with Containers(isolated()) as containers:
        yield await containers.create("team-a")


async def view(container: Container, path: str, **more: object) -> Viewed:
    seen = await container.edit({"command": "view", "path": path, **more})
    assert isinstance(seen, Viewed)
    return seen


async def create(container: Container, path: str, text: str) -> Created:
    made = await container.edit({"command": "create", "path": path, "file_text": text})
    assert isinstance(made, Created)
    return made


async def replace(container: Container, path: str, old: str, new: str) -> Edited:
    done = await container.edit({"command": "str_replace", "path": path, "old_str": old, "new_str": new})
    assert isinstance(done, Edited)
    return done


async def insert(container: Container, path: str, line: int, text: str) -> Edited:
    done = await container.edit({"command": "insert", "path": path, "insert_line": line, "insert_text": text})
    assert isinstance(done, Edited)
    return done


async def failed(container: Container, asked: Any) -> EditFailed:
    with pytest.raises(EditFailed) as caught:
        await container.edit(asked)
    str(caught.value).encode("utf-8")
    assert len(str(caught.value)) < 10_000
    return caught.value


async def code(container: Container, text: str) -> str:
    result = await (await container.execute(text)).finished()
    assert result.return_code == 0, result.stderr
    return result.stdout


async def test_a_file_is_created_seen_changed_and_seen_by_code(container: Container) -> None:
    assert await create(container, "/workspace/new/poem.txt", POEM) == Created(is_file_update=False)
    assert await view(container, "new/poem.txt") == Viewed(POEM[:-1], 8, 1, 8)

    changed = await replace(container, "new/poem.txt", "five", "5\n5.5")

    context = [" two", " three", " four"], [" six", " seven", " eight"]
    assert changed == Edited([*context[0], "-five", "+5", "+5.5", *context[1]], 2, 7, 2, 8)
    assert await code(container, "print(open('new/poem.txt').read().split())") == (
        "['one', 'two', 'three', 'four', '5', '5.5', 'six', 'seven', 'eight']\n"
    )
    assert await create(container, "new/poem.txt", "") == Created(is_file_update=True)
    assert await view(container, "new/poem.txt") == Viewed("", 0, 1, 0)
    assert await create(container, "new/poem.txt", "again") == Created(is_file_update=True)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([1, 1], Viewed("one", 1, 1, 8)),
        ([2, 4], Viewed("two\nthree\nfour", 3, 2, 8)),
        ([7, -1], Viewed("seven\neight", 2, 7, 8)),
        ([8, 99], Viewed("eight", 1, 8, 8)),
        (None, Viewed(POEM[:-1], 8, 1, 8)),
    ],
)
async def test_some_lines_are_viewed(container: Container, lines: Any, expected: Viewed) -> None:
    await container.put("poem.txt", POEM.encode())
    assert await view(container, "poem.txt", view_range=lines) == expected


@pytest.mark.parametrize(
    "lines", [[0, 1], [-1, 2], [9, 9], [3, 2], [1], [1, 2, 3], ["1", "2"], [True, True], [1.5, 2], "1-2", {}]
)
async def test_lines_that_there_are_not_are_refused(container: Container, lines: Any) -> None:
    await container.put("poem.txt", POEM.encode())
    error = await failed(container, {"command": "view", "path": "poem.txt", "view_range": lines})
    assert error.error_code == "invalid_tool_input"


async def test_text_that_is_not_there_once_is_not_replaced(container: Container) -> None:
    text = "aaa\nb b\nc\r\nd\r\n"
    await container.put("a.txt", text.encode())
    for old, error_code, matches, says in [
        ("x", "string_not_found", 0, "exactly as given"),
        ("c\nd", "string_not_found", 0, "CR and LF"),
        ("b", "invalid_tool_input", 2, "2 times"),
        ("aa", "invalid_tool_input", 2, "2 times"),
        ("\n", "invalid_tool_input", 4, "4 times"),
        ("", "invalid_tool_input", None, "old_str"),
        ("c", "invalid_tool_input", None, "same"),
    ]:
        new = old if matches is None else "y"
        error = await failed(
            container, {"command": "str_replace", "path": "a.txt", "old_str": old, "new_str": new}
        )
        assert (error.error_code, error.matches) == (error_code, matches)
        assert says in str(error)
    assert await container.get("a.txt") == text.encode()


async def test_text_without_a_replacement_goes_away(container: Container) -> None:
    await container.put("a.txt", b"a\nb\n")
    changed = await container.edit({"command": "str_replace", "path": "a.txt", "old_str": "a\nb\n"})
    assert changed == Edited(["-a", "-b"], 1, 2, 0, 0)
    assert await container.get("a.txt") == b""


@pytest.mark.parametrize(
    ("before", "line", "text", "after", "expected"),
    [
        ("a\nb\n", 1, "x", "a\nx\nb\n", Edited([" a", "+x", " b"], 1, 2, 1, 3)),
        ("a\nb\n", 0, "x\ny\n", "x\ny\na\nb\n", Edited(["+x", "+y", " a", " b"], 1, 2, 1, 4)),
        ("a\nb\n", 2, "x", "a\nb\nx\n", Edited([" a", " b", "+x"], 1, 2, 1, 3)),
        ("a\nb", 2, "x", "a\nb\nx\n", Edited([" a", "-b", "+b", "+x"], 1, 2, 1, 3)),
        ("", 0, "x", "x\n", Edited(["+x"], 0, 0, 1, 1)),
        ("a\n", 1, "", "a\n\n", Edited([" a", "+"], 1, 1, 1, 2)),
        ("a\u2028b\x0cc\n", 1, "x", "a\u2028b\x0cc\nx\n", Edited([" a\u2028b\x0cc", "+x"], 1, 1, 1, 2)),
    ],
)
async def test_lines_are_inserted(
    container: Container, before: str, line: int, text: str, after: str, expected: Edited
) -> None:
    await container.put("a.txt", before.encode())
    assert await insert(container, "a.txt", line, text) == expected
    assert (await container.get("a.txt")).decode() == after


@pytest.mark.parametrize("line", [-1, 3, 10**30, "1", True, None, 0.5])
async def test_nothing_is_inserted_where_there_is_no_line(container: Container, line: Any) -> None:
    await container.put("a.txt", b"a\nb\n")
    error = await failed(
        container, {"command": "insert", "path": "a.txt", "insert_line": line, "insert_text": "x"}
    )
    assert error.error_code == "invalid_tool_input"
    assert await container.get("a.txt") == b"a\nb\n"


async def test_a_folder_is_seen_two_levels_deep(container: Container) -> None:
    await code(
        container,
        "import os\nos.makedirs('a/b/c/d')\n"
        "for path in ('top', 'a/one', 'a/b/two', 'a/b/c/three'):\n    open(path, 'w').write('x')\n"
        "os.symlink('/etc', 'a/link')\nos.mkdir('odd\\nname')",
    )
    listed = Viewed(
        "/workspace/a/\n/workspace/a/b/\n/workspace/a/b/c/\n/workspace/a/b/two (1 bytes)\n"
        "/workspace/a/link (a link)\n/workspace/a/one (1 bytes)",
        None,
        None,
        None,
    )
    assert await view(container, "/workspace/a") == listed
    assert await view(container, "/workspace/a/") == listed
    whole = (await view(container, "/workspace")).content.split("\n")
    assert whole[0] == "/workspace/"
    assert "/workspace/odd\\nname/" in whole
    assert "/workspace/a/b/" in whole
    assert not any(line.startswith("/workspace/a/b/c") for line in whole)
    assert (await view(container, "")).content.split("\n")[:2] == ["./", "a/"]

    error = await failed(container, {"command": "view", "path": "a", "view_range": [1, 2]})
    assert error.error_code == "invalid_tool_input"
    assert "folder" in str(error)


async def test_what_is_deep_in_a_folder_hides_nothing_of_its_first_levels(container: Container) -> None:
    await code(
        container,
        "import os\nos.makedirs('a/b/c')\n"
        "for n in range(12_000):\n    os.close(os.open(f'a/b/c/{n}', os.O_CREAT))\n"
        "os.mkdir('z')\nfor n in range(1_200):\n    os.close(os.open(f'z/{n}', os.O_CREAT))",
    )
    lines = (await view(container, "/workspace")).content.split("\n")
    assert "/workspace/z/" in lines
    assert len(lines) == MAX_LISTED + 2
    assert lines[-1].startswith("(there is more")
    assert (await view(container, "a")).content == "a/\na/b/\na/b/c/"


@pytest.mark.parametrize(
    ("asked", "error_code"),
    [
        ({"command": "view", "path": "missing"}, "file_not_found"),
        ({"command": "view", "path": "no/such/folder"}, "file_not_found"),
        ({"command": "str_replace", "path": "missing", "old_str": "a", "new_str": "b"}, "file_not_found"),
        ({"command": "insert", "path": "missing", "insert_line": 0, "insert_text": "b"}, "file_not_found"),
        ({"command": "create", "path": "folder", "file_text": ""}, "invalid_tool_input"),
        ({"command": "create", "path": "", "file_text": ""}, "invalid_tool_input"),
        ({"command": "create", "path": "link", "file_text": ""}, "invalid_tool_input"),
        ({"command": "create", "path": "way/x", "file_text": ""}, "invalid_tool_input"),
        ({"command": "create", "path": "text/x", "file_text": ""}, "invalid_tool_input"),
        ({"command": "create", "path": "../x", "file_text": ""}, "invalid_tool_input"),
        ({"command": "create", "path": "/etc/x", "file_text": ""}, "invalid_tool_input"),
        ({"command": "create", "path": "/proc/self/mem", "file_text": ""}, "invalid_tool_input"),
        ({"command": "create", "path": "x\0y", "file_text": ""}, "invalid_tool_input"),
        ({"command": "create", "path": "x" * 300, "file_text": ""}, "invalid_tool_input"),
        ({"command": "create", "path": "x/" * 3000, "file_text": ""}, "invalid_tool_input"),
        ({"command": "create", "path": "\ud800", "file_text": ""}, "invalid_tool_input"),
        ({"command": "create", "path": "x", "file_text": "\udcff"}, "invalid_tool_input"),
        (
            {"command": "create", "path": "x", "file_text": "é" * (MAX_FILE_BYTES // 2 + 1)},
            "invalid_tool_input",
        ),
        ({"command": "create", "path": "x", "file_text": b"x"}, "invalid_tool_input"),
        ({"command": "create", "path": "x"}, "invalid_tool_input"),
        ({"command": "create", "file_text": "x"}, "invalid_tool_input"),
        ({"command": "create", "path": ["x"], "file_text": "x"}, "invalid_tool_input"),
        ({"command": "create", "path": "x", "file_text": "x", "mode": 511}, "invalid_tool_input"),
        ({"command": "create", "path": "x", "file_text": "x", "\ud800" * 9_000: 1}, "invalid_tool_input"),
        ({"command": "view", "path": "link"}, "invalid_tool_input"),
        ({"command": "view", "path": "way/x"}, "invalid_tool_input"),
        ({"command": "view", "path": "pipe"}, "file_not_found"),
        ({"command": "view", "path": "bytes"}, "invalid_tool_input"),
        ({"command": "view", "path": "closed"}, "invalid_tool_input"),
        ({"command": "view", "path": "long"}, "invalid_tool_input"),
        ({"command": "view", "path": "large"}, "invalid_tool_input"),
        ({"command": "view", "path": "/etc/passwd"}, "invalid_tool_input"),
        ({"command": "view", "path": "/"}, "invalid_tool_input"),
        ({"command": "view", "path": "$HOME/text"}, "file_not_found"),
        ({"command": "undo_edit", "path": "text"}, "invalid_tool_input"),
        ({"command": "\ud800", "path": "text"}, "invalid_tool_input"),
        ({"path": "text"}, "invalid_tool_input"),
        ({}, "invalid_tool_input"),
        ([], "invalid_tool_input"),
        (None, "invalid_tool_input"),
        ("view", "invalid_tool_input"),
    ],
)
async def test_what_cannot_be_done_is_told_with_a_code_and_a_sentence(
    container: Container, asked: Any, error_code: str
) -> None:
    await code(
        container,
        "import os\nos.mkdir('folder')\nopen('text', 'w').write('text')\n"
        "os.symlink('/etc/passwd', 'link')\nos.symlink('/tmp', 'way')\n"
        "open('bytes', 'wb').write(b'\\xff\\xfe')\n"
        f"open('long', 'w').write('x' * {MAX_SHOWN_CHARS + 1})\n"
        f"open('large', 'w').write('x\\n' * {MAX_FILE_BYTES})\n"
        "open('closed', 'w').close()\nos.chmod('closed', 0)",
    )
    error = await failed(container, asked)
    assert error.error_code == error_code
    assert await container.get("text") == b"text"
    assert await code(container, "import os\nprint(os.readlink('link'), os.listdir('folder'))") == (
        "/etc/passwd []\n"
    )


async def test_a_path_may_begin_with_the_variables_of_the_container(container: Container) -> None:
    await container.put("in/sample.csv", b"a,b\n1,2\n")
    assert (await view(container, "$INPUT_DIR/sample.csv")).content == "a,b\n1,2"
    await create(container, "$OUTPUT_DIR/made.txt", "x")
    assert await container.get("/workspace/out/made.txt") == b"x"
    here = (await code(container, "import os\nprint(os.environ['INPUT_DIR'])")).strip()
    assert (await view(container, f"{here}/sample.csv")).total_lines == 2


async def test_a_changed_program_can_be_run_as_before(container: Container) -> None:
    await create(container, "run.sh", "#!/bin/sh\necho one\n")
    assert (await (await container.bash("./run.sh")).finished()).return_code == 126
    await code(container, "import os\nos.chmod('run.sh', 0o750)")

    await replace(container, "run.sh", "one", "two")

    result = await (await container.bash("./run.sh; stat -c %a run.sh")).finished()
    assert result.stdout == "two\n750\n"


async def test_no_change_that_was_asked_for_at_the_same_time_is_lost(container: Container) -> None:
    await create(container, "a.txt", "".join(f"<{n}>\n" for n in range(20)))
    async with anyio.create_task_group() as group:
        for n in range(20):
            group.start_soon(replace, container, "a.txt", f"<{n}>", f"[{n}]")
    assert (await view(container, "a.txt")).content == "\n".join(f"[{n}]" for n in range(20))


async def test_files_are_edited_while_code_runs(container: Container) -> None:
    cell = await container.bash("until grep -q go flag 2>/dev/null; do sleep 0.05; done; cat flag")
    await create(container, "flag", "stay\n")
    await replace(container, "flag", "stay", "go")
    assert (await cell.finished()).stdout == "go\n"


async def test_a_file_that_the_code_keeps_replacing_by_a_link_leads_nowhere(container: Container) -> None:
    swap = (
        "import os\nopen('in/file', 'w').write('mine')\n"
        "for n in range(200_000):\n"
        "    os.symlink('/etc/passwd', 'in/link') if not os.path.lexists('in/link') else None\n"
        "    os.replace('in/link', 'a.txt')\n"
        "    open('in/file', 'w').write('mine')\n    os.replace('in/file', 'a.txt')\n"
        "    if os.path.exists('stop'): break"
    )
    cell = await container.execute(swap)
    seen: set[str] = set()
    for _ in range(60):
        try:
            seen.add((await view(container, "a.txt")).content)
            await replace(container, "a.txt", "mine", "ours")
        except EditFailed as error:
            seen.add(error.error_code)
    await container.put("stop", b"")
    assert (await cell.finished()).return_code == 0
    assert seen <= {"mine", "ours", "", "invalid_tool_input", "file_not_found", "string_not_found"}


async def test_mappings_of_every_kind_are_taken(container: Container) -> None:
    asked = MappingProxyType({"command": "create", "path": "a", "file_text": "x"})
    assert await container.edit(asked) == Created(is_file_update=False)


async def test_a_container_that_is_gone_edits_nothing(container: Container) -> None:
    await container.close()
    with pytest.raises(ContainerGone):
        await container.edit({"command": "view", "path": "a"})


async def test_a_long_line_is_told_by_its_beginning(container: Container) -> None:
    await create(container, "a.txt", "x" * 50_000 + "end")
    changed = await replace(container, "a.txt", "end", "END")
    left_out = 50_003 - MAX_LINE_CHARS
    shown = f"{'x' * MAX_LINE_CHARS} [{left_out} characters left out]"
    assert changed == Edited([f"-{shown}", f"+{shown}"], 1, 1, 1, 1)


class Dying:
    """Files of a container that dies at the first step."""

    root = ""

    async def put(self, path: str, data: bytes) -> None:
        raise ContainerDied("gone", "exit")

    async def get(self, path: str, *, limit: int) -> bytes:
        raise ContainerDied("gone", "exit")

    async def list(self, path: str, *, depth: int) -> Listing:
        return Listing([FileEntry("a", "file", 1, 0.0)], cut=False)


@pytest.mark.parametrize(
    "asked",
    [
        {"command": "view", "path": "a"},
        {"command": "create", "path": "a", "file_text": ""},
        {"command": "insert", "path": "a", "insert_line": 0, "insert_text": ""},
    ],
)
async def test_the_end_of_a_container_is_no_fault_of_the_model(asked: Mapping[str, object]) -> None:
    with pytest.raises(ContainerDied):
        await Editor(Dying()).edit(asked)


lines = st.lists(st.sampled_from(["a\n", "b\n", "\n"]), max_size=8)


@given(lines, lines, lines, lines)
def test_a_hunk_makes_the_new_text_of_the_old(
    head: list[str], removed: list[str], added: list[str], tail: list[str]
) -> None:
    old, new = [*head, *removed, *tail], [*head, *added, *tail]
    hunk = _difference(old, new)

    told_old = [line[1:] + "\n" for line in hunk.lines if line[0] in " -"]
    told_new = [line[1:] + "\n" for line in hunk.lines if line[0] in " +"]
    assert (len(told_old), len(told_new)) == (hunk.old_lines, hunk.new_lines)
    at = hunk.old_start - bool(hunk.old_lines)
    assert at == hunk.new_start - bool(hunk.new_lines)
    assert old[at : at + hunk.old_lines] == told_old
    assert [*old[:at], *told_new, *old[at + hunk.old_lines :]] == new


@given(st.text(st.sampled_from("a\n\r\u2028é"), max_size=20))
def test_lines_make_the_text_again(text: str) -> None:
    assert "".join(_lines(text)) == text
    assert all(line.endswith("\n") for line in _lines(text)[:-1])
    assert all("\n" not in line[:-1] and line for line in _lines(text))
