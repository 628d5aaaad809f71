"""Sums of usage."""

from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from treadle.conversation.usage import NO_USAGE, Usage

usages = st.builds(Usage, *(st.integers(0, 10**9) for _ in fields(Usage)))


@given(usages, usages, usages)
def test_usage_adds_up_in_any_order(one: Usage, two: Usage, three: Usage) -> None:
    assert (one + two) + three == one + (two + three)
    assert one + two == two + one
    assert one + NO_USAGE == one
    assert (one + two).total_tokens == one.total_tokens + two.total_tokens


def test_the_total_is_input_and_output() -> None:
    assert Usage(3, 4, 1, cached_tokens=2, reasoning_tokens=1).total_tokens == 7
