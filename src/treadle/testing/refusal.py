"""What a strict provider answers instead of a reply, in the words of either dialect.

The wordings are those that the real APIs are seen to use, because clients and libraries match on them.
"""

from dataclasses import dataclass
from typing import assert_never

from treadle.testing.strict_shapes import (
    Array,
    Boolean,
    Dictionary,
    Either,
    Fault,
    Misshapen,
    Missing,
    NoMatch,
    NoSuchTag,
    NotOneOf,
    Number,
    OutOfRange,
    Path,
    Shape,
    String,
    Tag,
    Unknown,
    Word,
    WrongLength,
    WrongType,
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is no reply: `body` is JSON in the provider's error dialect."""

    status: int
    body: dict[str, object]


class Refused(Exception):
    """Ends a validator at the first fault. Raised and caught within `treadle.testing`."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal)
        self.refusal = refusal


def chat_refused(message: str, param: str | None = None, code: str | None = None) -> Refused:
    """OpenAI's dialect of an invalid request."""
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return Refused(Refusal(400, {"error": error}))


def messages_refused(message: str) -> Refused:
    """Anthropic's dialect of an invalid request; the server adds `request_id`."""
    return _messages_refused(400, "invalid_request_error", message)


def messages_not_found(message: str) -> Refused:
    """Anthropic's dialect of a request that names what is not there."""
    return _messages_refused(404, "not_found_error", message)


def _messages_refused(status: int, kind: str, message: str) -> Refused:
    return Refused(Refusal(status, {"type": "error", "error": {"type": kind, "message": message}}))


def chat_misshapen(error: Misshapen) -> Refused:
    """A shape's fault as OpenAI says it."""
    fault = error.fault
    path = (*error.path, fault.key) if isinstance(fault, NoSuchTag) else error.path
    where = _chat_where(path)
    message, code = _chat_words(where, fault)
    return chat_refused(message, where, code)


def messages_misshapen(error: Misshapen) -> Refused:
    """A shape's fault as Anthropic says it: the field, a colon, the reason."""
    where = ".".join(str(step) for step in error.path)
    words = _messages_words(error.fault)
    return messages_refused(f"{where}: {words}" if where else words)


def _chat_where(path: Path) -> str:
    where = ""
    for step in path:
        if isinstance(step, int):
            where += f"[{step}]"
        elif not isinstance(step, Tag):
            where += f".{step}" if where else step
    return where


def _chat_words(where: str, fault: Fault) -> tuple[str, str]:
    match fault:
        case Missing() | NoSuchTag(got=None):
            words = f"Missing required parameter: '{where}'.", "missing_required_parameter"
        case Unknown():
            words = f"Unknown parameter: '{where}'.", "unknown_parameter"
        case WrongType(expected, got):
            expects = f"expected {_chat_expected(expected)}, but got {_chat_got(got)} instead"
            words = f"Invalid type for '{where}': {expects}.", "invalid_type"
        case NoSuchTag(known=allowed, got=got) | NotOneOf(allowed, got):
            words = f"Invalid value: '{got}'. Supported values are: {_chat_list(allowed)}.", "invalid_value"
        case OutOfRange():
            words = _chat_range(where, fault)
        case WrongLength():
            words = _chat_length(where, fault)
        case NoMatch(pattern):
            expects = f"Expected a string that matches the pattern '{pattern}'."
            words = f"Invalid '{where}': string does not match pattern. {expects}", "invalid_value"
        case _:
            assert_never(fault)
    return words


def _chat_list(allowed: tuple[str, ...]) -> str:
    quoted = [f"'{word}'" for word in allowed]
    match quoted:
        case [only]:
            return only
        case [first, second]:
            return f"{first} and {second}"
        case _:
            return f"{', '.join(quoted[:-1])}, and {quoted[-1]}"


def _chat_range(where: str, fault: OutOfRange) -> tuple[str, str]:
    kind = "integer" if fault.integer else "decimal"
    side, sign = ("above maximum", "<=") if fault.above else ("below minimum", ">=")
    message = (
        f"Invalid '{where}': {kind} {side} value. "
        f"Expected a value {sign} {fault.limit}, but got {fault.got} instead."
    )
    return message, f"{kind}_above_max_value" if fault.above else f"{kind}_below_min_value"


def _chat_length(where: str, fault: WrongLength) -> tuple[str, str]:
    a = _article(fault.of)
    bound = f"{'maximum' if fault.above else 'minimum'} length {fault.limit}"
    if not fault.above and fault.length == 0:
        fits, got, code = f"empty {fault.of}", f"an empty {fault.of}", f"empty_{fault.of}"
    else:
        fits = f"{fault.of} too {'long' if fault.above else 'short'}"
        got = f"{a} with length {fault.length}"
        code = f"{fault.of}_above_max_length" if fault.above else f"{fault.of}_below_min_length"
    return f"Invalid '{where}': {fits}. Expected {a} with {bound}, but got {got} instead.", code


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def _chat_expected(shape: Shape) -> str:
    if isinstance(shape, Either):
        return f"one of {_article(' or '.join(_chat_noun(option) for option in shape.shapes))}"
    return _article(_chat_noun(shape))


def _chat_noun(shape: Shape) -> str:
    match shape:
        case Array(items):
            return f"array of {_chat_noun(items)}s"
        case String() | Word():
            return "string"
        case Number():
            return "integer" if shape.integer else "decimal"
        case Boolean():
            return "boolean"
        case _:
            return "object"


def _chat_got(value: object) -> str:
    kinds: dict[type, str] = {
        bool: "a boolean",
        int: "an integer",
        float: "a decimal",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
    return kinds.get(type(value), "null")


def _messages_words(fault: Fault) -> str:
    match fault:
        case Missing():
            return "Field required"
        case Unknown():
            return "Extra inputs are not permitted"
        case WrongType(expected):
            return f"Input should be {_messages_expected(expected)}"
        case NoSuchTag(key=key, got=None):
            return f"Unable to extract tag using discriminator '{key}'"
        case NoSuchTag(key, known, got):
            tags = ", ".join(f"'{tag}'" for tag in known)
            return f"Input tag '{got}' found using '{key}' does not match any of the expected tags: {tags}"
        case _:
            return _messages_limits(fault)


def _messages_limits(fault: NotOneOf | OutOfRange | WrongLength | NoMatch) -> str:
    match fault:
        case NotOneOf(allowed):
            quoted = [f"'{word}'" for word in allowed]
            return f"Input should be {' or '.join(filter(None, (', '.join(quoted[:-1]), quoted[-1])))}"
        case OutOfRange(limit, above):
            return f"Input should be {'less' if above else 'greater'} than or equal to {limit}"
        case WrongLength(of, limit, above, length):
            bound = f"at {'most' if above else 'least'} {limit}"
            s = "" if limit == 1 else "s"
            if of == "string":
                return f"String should have {bound} character{s}"
            noun = "List" if of == "array" else "Dictionary"
            return f"{noun} should have {bound} item{s} after validation, not {length}"
        case NoMatch(pattern):
            return f"String should match pattern '{pattern}'"
        case _:
            assert_never(fault)


def _messages_expected(shape: Shape) -> str:
    match shape:
        case Either(shapes):
            return _messages_expected(shapes[-1])
        case Array():
            return "a valid list"
        case String() | Word():
            return "a valid string"
        case Number():
            return "a valid integer" if shape.integer else "a valid number"
        case Boolean():
            return "a valid boolean"
        case Dictionary():
            return "a valid dictionary"
        case _:
            return "an object"
