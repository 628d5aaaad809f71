"""Unified diffs of two texts, with a bound on the work that they may take."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import Match, SequenceMatcher
from itertools import accumulate, takewhile

CONTEXT_LINES = 3

# difflib seeds no match with a line that makes up more than a hundredth of a text of this many lines.
_AUTOJUNK_LINES = 200


@dataclass(slots=True)
class Effort:
    """How many pairs of lines may still be compared. Texts made to be slow to compare end it early."""

    left: int

    def spend(self, pairs: int) -> bool:
        """Whether `pairs` could be afforded; they are paid for if so."""
        if pairs > self.left:
            return False
        self.left -= pairs
        return True


def unified(old: str, new: str, *, old_name: str, new_name: str, effort: Effort) -> str:
    """The unified diff that turns `old` into `new`; empty if they are equal.

    Correct for all texts. Once `effort` is used up it is no longer short: what lies between the lines that
    are known to be equal is replaced as a whole.
    """
    hunks = "".join(_hunks(_lines(old), _lines(new), effort))
    return f"--- {old_name}\n+++ {new_name}\n{hunks}" if hunks else ""


def _lines(text: str) -> list[str]:
    """Lines, each with its line feed. Nothing else ends a line: `patch` and `git apply` see it so."""
    *whole, rest = text.split("\n")
    lines = [line + "\n" for line in whole]
    return [*lines, rest] if rest else lines


def _hunks(old: Sequence[str], new: Sequence[str], effort: Effort) -> Iterator[str]:
    for group in _Matcher(old, new, effort).get_grouped_opcodes(CONTEXT_LINES):
        (_, old_start, _, new_start, _), (_, _, old_end, _, new_end) = group[0], group[-1]
        yield f"@@ -{_span(old_start, old_end)} +{_span(new_start, new_end)} @@\n"
        for tag, i, i_end, j, j_end in group:
            if tag == "equal":
                yield from map(_line, " " * (i_end - i), old[i:i_end])
            else:
                yield from map(_line, "-" * (i_end - i), old[i:i_end])
                yield from map(_line, "+" * (j_end - j), new[j:j_end])


def _line(mark: str, line: str) -> str:
    return mark + line if line.endswith("\n") else f"{mark}{line}\n\\ No newline at end of file\n"


def _span(start: int, end: int) -> str:
    """Lines `start` to `end` as a hunk header counts them: an empty span is named by the line before it."""
    length = end - start
    if length == 1:
        return str(start + 1)
    return f"{start + 1 if length else start},{length}"


class _Matcher(SequenceMatcher[str]):
    """difflib's matcher, which looks at the widest gap first and stops when its effort is spent.

    Left to itself, difflib takes hours for some texts of 256 KiB.
    """

    def __init__(self, old: Sequence[str], new: Sequence[str], effort: Effort) -> None:
        super().__init__(None, old, new)
        self._old = old
        self._new = new
        self._effort = effort

    def get_matching_blocks(self) -> list[Match]:
        old, new = self._old, self._new
        head = _common(zip(old, new, strict=False))
        most = min(len(old), len(new)) - head
        tail = min(most, _common(zip(reversed(old), reversed(new), strict=False)))
        old_end, new_end = len(old) - tail, len(new) - tail
        middle = self._matches(head, old_end, head, new_end)
        return _joined([Match(0, 0, head), *sorted(middle), Match(old_end, new_end, tail)])

    def _matches(self, *whole: int) -> Iterator[Match]:
        costs = self._costs()
        gaps = deque([whole])
        while gaps:
            i, i_end, j, j_end = gaps.popleft()
            if i == i_end or j == j_end or not self._effort.spend(costs[i_end] - costs[i]):
                continue
            match = self.find_longest_match(i, i_end, j, j_end)
            if match.size:
                yield match
                gaps.append((i, match.a, j, match.b))
                gaps.append((match.a + match.size, i_end, match.b + match.size, j_end))

    def _costs(self) -> list[int]:
        """Pairs that a search in the first `n` old lines compares, for each `n`."""
        counts = Counter(self._new)
        popular = len(self._new) // 100 + 1 if len(self._new) >= _AUTOJUNK_LINES else len(self._new)
        per_line = (1 + (counts[line] if counts[line] <= popular else 0) for line in self._old)
        return list(accumulate(per_line, initial=0))


def _common(pairs: Iterator[tuple[str, str]]) -> int:
    """How many of the first pairs are pairs of equals."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _joined(blocks: Sequence[Match]) -> list[Match]:
    """`blocks` with neighbours made one, ended by the empty block that difflib expects."""
    joined: list[Match] = []
    for block in blocks:
        last = joined[-1] if joined else Match(0, 0, 0)
        if (last.a + last.size, last.b + last.size) == (block.a, block.b):
            joined[-1:] = [Match(last.a, last.b, last.size + block.size)]
        else:
            joined.append(block)
    end = blocks[-1]
    return [*(block for block in joined if block.size), Match(end.a + end.size, end.b + end.size, 0)]
