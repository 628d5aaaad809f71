"""SKILL.md: what a skill is called, what it is for, and its instructions."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from treadle.skills.frontmatter import Fault, Frontmatter, Value, parse, split
from treadle.skills.problems import Problem, Problems, printable

SKILL_MD = "SKILL.md"
"""Where the manifest is in its package."""
MAX_MANIFEST_BYTES = 1 << 20
MAX_NAME_CHARS = 64
MAX_DESCRIPTION_CHARS = 1_024
MAX_BORNE_DESCRIPTION_CHARS = 4_096
"""What a lenient reader takes: every prompt has the whole description."""
MAX_COMPATIBILITY_CHARS = 500

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*", re.ASCII)
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters, but for tab and line feed."""
_RESERVED = ("anthropic", "claude")
_KNOWN = ("name", "description", "license", "compatibility", "allowed-tools", "metadata")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a SKILL.md says."""

    name: str
    """1 to 64 of a-z, 0-9 and single hyphens between them: fit for a folder, whatever was written."""
    description: str
    """What it does and when to use it: 1 to 4,096 characters, 1,024 by the specification."""
    body: str
    """The Markdown below the frontmatter, its lines ended by line feeds, without empty lines around it."""
    license: str | None = None
    compatibility: str | None = None
    """What it needs of its surroundings."""
    allowed_tools: str | None = None
    """Names of tools, separated by spaces, as they were written. Experimental in the specification."""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    extra: Mapping[str, Value] = field(default_factory=dict[str, Value])
    """Fields that the specification does not know; their scalars are text, as written."""


def read_manifest(
    data: bytes, *, folder: str | None = None, strict: bool = False
) -> tuple[Manifest | None, Sequence[Problem]]:
    """The manifest in `data`, and what is wrong with it.

    Args:
        data: a SKILL.md. What is longer than 1 MiB is not looked at.
        folder: name of the folder that it is in, which should be that of the skill; None: there is none.
        strict: what breaks the specification is an error. Otherwise an error is only what leaves nothing to
            use: the rest is a warning, and is mended or left out.

    Returns:
        The manifest, or None if a problem is an error.

    Source:
        https://agentskills.io/specification
    """
    problems = Problems(strict)
    manifest = None
    try:
        source, body, first_line = _parts(data, problems)
        manifest = _Fields(parse(source, first_line), problems).manifest(body, folder)
    except Fault as fault:
        problems.error(SKILL_MD, fault.line, fault.rule, fault.remedy)
    refused = any(problem.severity == "error" for problem in problems.found)
    return (None if refused else manifest), tuple(problems.found)


def _parts(data: bytes, problems: Problems) -> tuple[str, str, int]:
    """YAML, body, and the line on which the YAML begins."""
    if len(data) > MAX_MANIFEST_BYTES:
        rule = f"a SKILL.md has at most {MAX_MANIFEST_BYTES:,} bytes, not {len(data):,}"
        raise Fault(1, rule, "move what is long into files beside it, and name them in it")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Fault(line, "a SKILL.md is UTF-8", "save it as UTF-8") from error
    if text.startswith("\ufeff"):
        problems.odd(
            SKILL_MD, 1, "the first thing in a SKILL.md is `---`", "save it without a byte order mark"
        )
        text = text[1:]
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if unfit := _UNFIT.search(text):
        line = text.count("\n", 0, unfit.start()) + 1
        problems.odd(SKILL_MD, line, "a SKILL.md is text without control characters", "remove them")
        text = _UNFIT.sub("\ufffd", text)
    source, body = split(text)
    return source, body.strip("\n"), 2


class _Fields:
    """Makes a manifest of what was written."""

    def __init__(self, written: Frontmatter, problems: Problems) -> None:
        self._fields = written.fields
        self._lines = written.lines
        self._problems = problems

    def manifest(self, body: str, folder: str | None) -> Manifest:
        if not body.strip():
            self._problems.warn(
                SKILL_MD, None, "a SKILL.md has instructions", "write them below the frontmatter"
            )
        return Manifest(
            name=self._name(folder),
            description=self._description(),
            body=body,
            license=self._text("license"),
            compatibility=self._compatibility(),
            allowed_tools=self._allowed_tools(),
            metadata=self._metadata(),
            extra=self._extra(),
        )

    def _name(self, folder: str | None) -> str:
        written = self._required("name")
        name = written
        if len(written) > MAX_NAME_CHARS or not _NAME.fullmatch(written):
            name = _slug(written)
            shown = printable(written, 80)
            rule = (
                f"a name is 1 to {MAX_NAME_CHARS} of a-z, 0-9 and single hyphens between them, not {shown!r}"
            )
            if not name:
                raise Fault(self._lines["name"], rule, "write another one")
            self._odd("name", rule, f"write {name!r}")
        if folder is not None and folder != written:
            rule = f"the name is that of the folder, not {printable(written, 80)!r}"
            self._odd("name", rule, f"rename one of them: the folder is {printable(folder, 80)!r}")
        for word in _RESERVED:
            if word in name:
                self._warn(
                    "name", f"Anthropic's API takes no name with {word!r}", "choose another one for use there"
                )
        return name

    def _description(self) -> str:
        text = self._required("description")
        if len(text) > MAX_DESCRIPTION_CHARS:
            rule = f"a description has at most {MAX_DESCRIPTION_CHARS:,} characters, not {len(text):,}"
            if len(text) > MAX_BORNE_DESCRIPTION_CHARS:
                raise Fault(self._lines["description"], rule, "say what it does and when to use it, no more")
            self._warn("description", rule, "say what it does and when to use it, no more")
        if _TAG.search(text):
            self._warn("description", "Anthropic's API takes no XML tags here", "remove them for use there")
        return text

    def _required(self, name: str) -> str:
        value = self._fields.get(name, "")
        line = self._lines.get(name, 1)
        if not isinstance(value, str):
            raise Fault(line, f"`{name}` is a text", f"write `{name}: ` and the text, in quotes")
        if not value.strip():
            raise Fault(line, f"a skill has a {name}", f"write `{name}: ` and the text")
        return value.strip()

    def _text(self, name: str) -> str | None:
        value = self._fields.get(name, "")
        if isinstance(value, str):
            return value.strip() or None
        self._odd(name, f"`{name}` is a text", f"write `{name}: ` and the text, in quotes")
        return None

    def _compatibility(self) -> str | None:
        text = self._text("compatibility")
        if text and len(text) > MAX_COMPATIBILITY_CHARS:
            rule = f"`compatibility` has at most {MAX_COMPATIBILITY_CHARS} characters, not {len(text):,}"
            self._odd("compatibility", rule, "say it in the text below")
        return text

    def _allowed_tools(self) -> str | None:
        value = self._fields.get("allowed-tools", "")
        if isinstance(value, Sequence) and not isinstance(value, str):
            names = [item for item in value if isinstance(item, str)]
            if len(names) == len(value):  # the reference implementation takes a list too
                return " ".join(names) or None
        return self._text("allowed-tools")

    def _metadata(self) -> Mapping[str, str]:
        value = self._fields.get("metadata", "")
        if value == "":
            return {}
        if not isinstance(value, Mapping):
            self._odd(
                "metadata", "`metadata` is a mapping of texts", "write a line `key: value` for each, indented"
            )
            return {}
        texts = {key: item for key, item in value.items() if isinstance(item, str)}
        if len(texts) < len(value):
            self._odd("metadata", "each value in `metadata` is a text", "write lists and mappings as texts")
        return texts

    def _extra(self) -> Mapping[str, Value]:
        extra = {name: value for name, value in self._fields.items() if name not in _KNOWN}
        for name in extra:
            rule = f"the specification knows no field {printable(name, 80)!r}"
            self._odd(name, rule, f"use one of {', '.join(_KNOWN)}, or put it under `metadata`")
        return extra

    def _odd(self, name: str, rule: str, remedy: str) -> None:
        self._problems.odd(SKILL_MD, self._lines[name], rule, remedy)

    def _warn(self, name: str, rule: str, remedy: str) -> None:
        self._problems.warn(SKILL_MD, self._lines[name], rule, remedy)


def _slug(text: str) -> str:
    """What is left of `text` in a name; may be empty."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii").lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:MAX_NAME_CHARS].rstrip("-")
