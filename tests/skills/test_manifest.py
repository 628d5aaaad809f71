"""SKILL.md, well made, odd and hostile."""

import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.skills import frontmatter
from treadle.skills.manifest import MAX_MANIFEST_BYTES, Manifest, read_manifest
from treadle.skills.problems import Problem

HEAD = "name: pdf\ndescription: Fills in forms. Use for PDF files.\n"


def skill(fields: str = "", *, head: str = HEAD, body: str = "# PDF\n\nRun `scripts/fill.py`.\n") -> bytes:
    return f"---\n{head}{fields}---\n{body}".encode()


def read(data: bytes, *, folder: str | None = "pdf") -> tuple[Manifest, Sequence[Problem]]:
    manifest, problems = read_manifest(data, folder=folder)
    assert manifest, problems
    return manifest, problems


def refusal_of(data: bytes, *, strict: bool = False) -> tuple[int | None, str]:
    """Line and rule of the only error."""
    manifest, problems = read_manifest(data, folder="pdf", strict=strict)
    assert manifest is None
    [error] = [problem for problem in problems if problem.severity == "error"]
    assert error.file == "SKILL.md"
    assert error.remedy
    return error.line, error.rule


def odd_in(data: bytes, *, folder: str | None = "pdf") -> tuple[int | None, str]:
    """Line and rule of the only problem: a warning, which a strict reader takes for an error."""
    _, [problem] = read(data, folder=folder)
    assert problem.severity == "warning"
    assert problem.remedy
    manifest, [strictly] = read_manifest(data, folder=folder, strict=True)
    assert manifest is None
    assert strictly == Problem(problem.file, problem.line, problem.rule, problem.remedy, "error")
    return problem.line, problem.rule


def test_every_field_of_the_specification_is_read() -> None:
    fields = (
        "license: Apache-2.0\n"
        "compatibility: Needs Python 3.11\n"
        "allowed-tools: Bash(git:*) Read\n"
        "metadata:\n  author: somebody\n  version: 1.0\n"
    )

    manifest, problems = read_manifest(skill(fields), folder="pdf", strict=True)

    assert problems == ()
    assert manifest == Manifest(
        name="pdf",
        description="Fills in forms. Use for PDF files.",
        body="# PDF\n\nRun `scripts/fill.py`.",
        license="Apache-2.0",
        compatibility="Needs Python 3.11",
        allowed_tools="Bash(git:*) Read",
        metadata={"author": "somebody", "version": "1.0"},
    )


def test_name_and_description_are_enough() -> None:
    manifest, problems = read_manifest(skill(), strict=True)

    assert problems == ()
    assert manifest == Manifest(
        "pdf", "Fills in forms. Use for PDF files.", "# PDF\n\nRun `scripts/fill.py`."
    )


@pytest.mark.parametrize("name", ["a", "7", "a-1", "a-b-c", "a" * 64])
def test_a_name_of_small_letters_digits_and_single_hyphens_is_one(name: str) -> None:
    manifest, problems = read_manifest(
        skill(head=f"name: {name}\ndescription: b\n"), folder=name, strict=True
    )

    assert problems == ()
    assert manifest
    assert manifest.name == name


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("My Skill", "my-skill"),
        ("-a", "a"),
        ("a-", "a"),
        ("a--b", "a-b"),
        ("a_b", "a-b"),
        ("Données", "donnees"),
        ("../../etc/passwd", "etc-passwd"),
        ("a" * 65, "a" * 64),
        ("a" * 63 + "-b", "a" * 63),
    ],
)
def test_another_name_becomes_one_that_fits_a_folder(written: str, name: str) -> None:
    data = skill(head=f"name: {written}\ndescription: b\n")

    line, rule = odd_in(data, folder=None)

    assert line == 2
    assert "a name is 1 to 64 of" in rule
    assert read(data, folder=None)[0].name == name


def test_a_name_of_which_nothing_fits_is_refused() -> None:
    line, rule = refusal_of(skill(head="name: 技能\ndescription: b\n"))

    assert line == 2
    assert "'技能'" in rule


def test_a_name_that_is_not_that_of_the_folder_is_odd() -> None:
    assert odd_in(skill(), folder="forms") == (2, "the name is that of the folder, not 'pdf'")


def test_a_name_that_another_provider_keeps_for_itself_is_a_warning_even_for_a_strict_reader() -> None:
    manifest, problems = read_manifest(skill(head="name: claude-pdf\ndescription: b\n"), strict=True)

    assert manifest
    assert manifest.name == "claude-pdf"
    assert [(problem.line, problem.severity) for problem in problems] == [(2, "warning")]


def test_tags_in_a_description_are_a_warning_even_for_a_strict_reader() -> None:
    manifest, problems = read_manifest(skill(head="name: pdf\ndescription: a <b>c</b>\n"), strict=True)

    assert manifest
    assert manifest.description == "a <b>c</b>"
    assert [(problem.line, problem.severity) for problem in problems] == [(3, "warning")]


def test_a_description_of_several_quoted_sentences_is_read() -> None:
    text = 'description: "Do this: now. Use when: asked. Don\'t # stop --- here."\n'

    manifest, problems = read(skill(head=f"name: pdf\n{text}"))

    assert problems == ()
    assert manifest.description == "Do this: now. Use when: asked. Don't # stop --- here."


def test_a_description_may_be_folded_over_lines() -> None:
    manifest, _ = read(skill(head="name: pdf\ndescription: >\n  Fills in\n  forms.\n\n"))

    assert manifest.description == "Fills in forms."


def test_a_description_has_1024_characters_and_a_longer_one_is_only_told() -> None:
    def described(count: int) -> bytes:
        return skill(head=f"name: pdf\ndescription: {'é' * count}\n")

    assert read(described(1_024))[1] == ()
    manifest, [problem] = read_manifest(described(1_068), folder="pdf", strict=True)
    assert manifest is not None
    assert (problem.severity, problem.line) == ("warning", 3)
    assert problem.rule == "a description has at most 1,024 characters, not 1,068"
    assert read(described(4_096))[0].description == "é" * 4_096
    assert refusal_of(described(4_097)) == (3, "a description has at most 1,024 characters, not 4,097")


@pytest.mark.parametrize(
    ("head", "line", "rule"),
    [
        ("name: pdf\n", 1, "a skill has a description"),
        ("description: b\n", 1, "a skill has a name"),
        ("name:\ndescription: b\n", 2, "a skill has a name"),
        ("name: pdf\ndescription: '  '\n", 3, "a skill has a description"),
        ("name: [pdf]\ndescription: b\n", 2, "`name` is a text"),
        ("name: pdf\ndescription:\n  en: b\n", 3, "`description` is a text"),
    ],
)
def test_without_name_or_description_there_is_no_skill(head: str, line: int, rule: str) -> None:
    assert refusal_of(skill(head=head)) == (line, rule)


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ("license: [MIT]\n", "`license` is a text"),
        ("compatibility: {a: b}\n", "`compatibility` is a text"),
        (f"compatibility: {'a' * 501}\n", "`compatibility` has at most 500 characters, not 501"),
        ("allowed-tools: {a: b}\n", "`allowed-tools` is a text"),
        ("allowed-tools: [[a]]\n", "`allowed-tools` is a text"),
        ("metadata: text\n", "`metadata` is a mapping of texts"),
        ("metadata: [a]\n", "`metadata` is a mapping of texts"),
        ("metadata: {a: [b]}\n", "each value in `metadata` is a text"),
        ("version: 1.0\n", "the specification knows no field 'version'"),
    ],
)
def test_what_is_odd_beside_name_and_description_does_not_stop_a_lenient_reader(
    fields: str, rule: str
) -> None:
    assert odd_in(skill(fields)) == (4, rule)


def test_what_has_the_wrong_type_is_left_out() -> None:
    fields = "license: [MIT]\ncompatibility: {a: b}\nallowed-tools: [[a]]\nmetadata: {a: [b], c: d}\n"

    manifest, _ = read(skill(fields))

    assert (manifest.license, manifest.compatibility, manifest.allowed_tools) == (None, None, None)
    assert manifest.metadata == {"c": "d"}


def test_unknown_fields_are_kept_as_they_were_written() -> None:
    manifest, _ = read(skill("version: 1.0\nhidden: no\nsince: 2024-99-99\nof:\n  - a: {b: 0x10}\n"))

    assert manifest.extra == {
        "version": "1.0",
        "hidden": "no",
        "since": "2024-99-99",
        "of": [{"a": {"b": "0x10"}}],
    }


def test_allowed_tools_may_be_a_list() -> None:
    manifest, problems = read_manifest(skill("allowed-tools: [Read, 'Bash(git add:*)']\n"), strict=True)

    assert problems == ()
    assert manifest
    assert manifest.allowed_tools == "Read Bash(git add:*)"


def test_line_ends_of_any_system_are_line_ends() -> None:
    for data in (skill().replace(b"\n", b"\r\n"), skill().replace(b"\n", b"\r")):
        assert read_manifest(data, folder="pdf", strict=True) == read_manifest(skill(), folder="pdf")


def test_a_byte_order_mark_is_odd() -> None:
    data = b"\xef\xbb\xbf" + skill()

    assert odd_in(data) == (1, "the first thing in a SKILL.md is `---`")
    assert read(data)[0] == read(skill())[0]


def test_control_characters_are_odd_and_replaced() -> None:
    data = skill(body="a\x00b\x1b[2Jc\n")

    assert odd_in(data) == (5, "a SKILL.md is text without control characters")
    assert read(data)[0].body == "a\ufffdb\ufffd[2Jc"


def test_lines_of_hyphens_in_the_body_are_body() -> None:
    manifest, _ = read(skill(body="one\n---\nname: other\n---\ntwo\n"))

    assert manifest.name == "pdf"
    assert manifest.body == "one\n---\nname: other\n---\ntwo"


def test_a_long_body_is_read_whole() -> None:
    body = "Wörd " * 15_000

    manifest, problems = read(skill(body=body))

    assert problems == ()
    assert manifest.body == body


def test_a_skill_without_instructions_is_a_warning() -> None:
    manifest, problems = read_manifest(skill(body=" \n\n"), strict=True)

    assert manifest
    assert [(problem.rule, problem.severity) for problem in problems] == [
        ("a SKILL.md has instructions", "warning")
    ]


@pytest.mark.parametrize(
    ("data", "line", "rule"),
    [
        (b"", 1, "a SKILL.md begins with YAML frontmatter"),
        (b"# PDF\n", 1, "a SKILL.md begins with YAML frontmatter"),
        (b"\n" + skill(), 1, "a SKILL.md begins with YAML frontmatter"),
        (b"----\n" + skill(), 1, "a SKILL.md begins with YAML frontmatter"),
        (b"---", 1, "the frontmatter has no end"),
        (b"---\nname: pdf\ndescription: b\n --- \n# PDF\n", 1, "the frontmatter has no end"),
        (b"---\n---\n# PDF\n", 2, "the frontmatter is empty"),
        (b"---\n# name: pdf\n---\n", 3, "the frontmatter is empty"),
        (b"---\npdf\n---\n", 2, "the frontmatter is a mapping"),
        (b"---\n- pdf\n---\n", 2, "the frontmatter is a mapping"),
        (b"---\nname: pdf\n\xff\n---\n", 3, "a SKILL.md is UTF-8"),
        ("---\nname: pdf\n".encode("utf-16"), 1, "a SKILL.md is UTF-8"),
    ],
)
def test_without_frontmatter_there_is_no_skill(data: bytes, line: int, rule: str) -> None:
    assert refusal_of(data) == (line, rule)


BOMB = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        (BOMB, "the frontmatter has no anchors and aliases"),
        ("more: *unknown\n", "the frontmatter has no anchors and aliases"),
        ("more: &loop [*loop]\n", "the frontmatter has no anchors and aliases"),
        ("more: !!python/object/apply:os.system [id]\n", "the frontmatter has no tags"),
        ("more: !!int x\n", "the frontmatter has no tags"),
        ("name: other\n", "'name' is there twice"),
        ("more: {a: b, a: c}\n", "'a' is there twice"),
        ("? [a]\n: b\n", "a key is a text"),
        ('more: "\\0"\n', "a value has no control characters"),
        ('more: "\\uD800"\n', "a value has no control characters"),
        ("--- other\n", "the frontmatter is one YAML document"),
        ("\ufffe\n", "the frontmatter has a character that YAML forbids"),
        (
            "more:\t- a\n",
            "the frontmatter is not valid YAML (found character '\\t' that cannot start any token)",
        ),
        ("more: when: asked\n", "the frontmatter is not valid YAML (mapping values are not allowed here)"),
        (f"more: {'[' * 17}{']' * 17}\n", "the frontmatter has at most 16 levels"),
        (f"more: {'[' * 15_000}\n", "the frontmatter has at most 16 levels"),
    ],
)
def test_hostile_yaml_is_refused_at_its_line(fields: str, rule: str) -> None:
    assert refusal_of(skill(fields)) == (4, rule)


@pytest.mark.parametrize("fields", ['more: "\\UFFFFFFFF"\n', f"...\n%YAML {'9' * 5_000}.1\n--- more\n"])
def test_what_the_yaml_library_itself_does_not_bear_is_refused(fields: str) -> None:
    assert refusal_of(skill(fields)) == (2, "the frontmatter has an escape without sense")


def test_sixteen_levels_are_read() -> None:
    manifest, _ = read(skill(f"more: {'[' * 15}{']' * 15}\n"))

    assert str(manifest.extra["more"]) == "[" * 15 + "]" * 15


def test_what_is_too_long_is_refused_unread() -> None:
    full = skill(body="x" * (MAX_MANIFEST_BYTES - len(skill(body=""))))

    assert read(full)[1] == ()
    assert refusal_of(full + b"x") == (1, "a SKILL.md has at most 1,048,576 bytes, not 1,048,577")
    assert refusal_of(skill("#" * frontmatter.MAX_CHARS + "\n"))[1].startswith(
        "the frontmatter has at most 16,384"
    )


@pytest.mark.parametrize(
    "unit", ["[", "{", "[a],", "a,", "? ", "- ", "'", '"', "a: ", "#\n", "\n", "&a ", "*a "]
)
def test_no_frontmatter_takes_long(unit: str) -> None:
    data = skill(f"more: [{unit * (15_000 // len(unit))}\n")
    began = time.process_time()

    read_manifest(data)

    assert time.process_time() - began < 3


def test_a_message_escapes_what_is_not_printable() -> None:
    _, problems = read_manifest(skill(head='name: "\\e[2J"\ndescription: b\n'))
    assert problems[0].rule == "a value has no control characters"

    _, problems = read_manifest(skill(head="name: a\u202eb\ndescription: b\n"))
    assert "\u202e" not in str(problems[0])
    assert str(problems[0]).startswith("SKILL.md, line 2: a name is 1 to 64 of ")


anything = st.binary() | st.text().map(str.encode)
pieces = [
    *"ab0:-?[]{}&*!|>%@'\"#\\,~<=. \n\t\r",
    "---\n",
    "...\n",
    "\n  ",
    "- ",
    ": ",
    "%YAML ",
    "\\U",
    "é",
    "\ufeff",
    "\u2028",
]
yamlish = st.lists(st.sampled_from(pieces), max_size=40).map("".join)


def check(data: bytes) -> None:
    for strict in (False, True):
        manifest, problems = read_manifest(data, folder="pdf", strict=strict)
        assert (manifest is None) == any(problem.severity == "error" for problem in problems)


@given(anything)
def test_any_bytes_give_a_manifest_or_problems(data: bytes) -> None:
    check(data)


@given(yamlish)
def test_any_frontmatter_gives_a_manifest_or_problems(text: str) -> None:
    check(f"---\n{text}\n---\nbody".encode())


@given(yamlish)
def test_any_value_gives_a_manifest_or_problems(text: str) -> None:
    check(skill(f"more: {text}\n"))


@given(st.text(min_size=1, max_size=100))
def test_any_name_that_is_taken_fits_a_folder(name: str) -> None:
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    manifest, _ = read_manifest(skill(head=f'name: "{quoted}"\ndescription: b\n').replace(b"\r", b" "))

    if manifest:
        assert 1 <= len(manifest.name) <= 64
        assert set(manifest.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
        assert "--" not in f"-{manifest.name}-"[1:-1]
        assert not manifest.name.startswith("-")
        assert not manifest.name.endswith("-")
