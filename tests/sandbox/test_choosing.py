"""Which package set meets what is required, and what is told where none does."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.sandbox.wheels import LINUX_ALONE, shop, wheel
from treadle.sandbox.builds import build
from treadle.sandbox.choosing import SetChoice, best_set, choose
from treadle.sandbox.packages import Wanted
from treadle.sandbox.requirements import MAX_LINES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason=LINUX_ALONE)


@pytest.fixture(scope="module", autouse=True)
def built(tmp_path_factory: pytest.TempPathFactory) -> object:
    """Two sets: `small` has `tiny` 1.0 alone, and `large` has `tiny` 2.1, and `more` with an extra."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("shop")
        links = shop(folder, patch)
        wheel(links, "tiny", "1.0")
        wheel(links, "tiny", "2.1")
        wheel(links, "nut", "3.0")
        needs = ("nut; extra == 'all'", "bolt; extra == 'broken'")
        wheel(links, "more", "0.5", requires=needs, extras=("all", "broken"))
        build(Wanted("small", ("tiny==1.0",)))
        build(Wanted("large", ("tiny>=2", "more[all]")))
        yield


def found(**texts: str) -> SetChoice:
    return choose({name: text.replace("|", "\n") for name, text in texts.items()})


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("tiny", "small"),  # both have it, and this one is smaller
        ("Tiny >= 2, <3  # comment", "large"),
        ("tiny~=1.0", "small"),
        ("more[all]|nut==3.*", "large"),
        ("tiny!=1.0; python_version >= '3.0'", "large"),
        ("tiny; sys_platform == 'win32'|more", "large"),
        ("tiny==1.0|none; extra == 'test'", "small"),
    ],
)
def test_the_smallest_set_that_meets_all_is_found(text: str, name: str) -> None:
    assert found(pdf=text) == SetChoice(name)


def test_several_texts_are_met_together() -> None:
    assert found(pdf="tiny", xlsx="more") == SetChoice("large")


@pytest.mark.parametrize("text", ["", "# nothing|  |", "tiny; sys_platform == 'win32'"])
def test_what_requires_nothing_needs_no_set(text: str) -> None:
    choice = found(pdf=text)
    assert choice == SetChoice(None)
    assert choice.message == ""


BUILD = "put all that is required into one file and run `treadle packages build NAME --requirements FILE`"


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"pdf": "pear>=10"}, f"pear>=10 (pdf) is in no package set of this machine: {BUILD}"),
        (
            {"pdf": "tiny>3|more"},
            f"tiny>3 (pdf) is in no package set of this machine ('large' has 2.1, 'small' has 1.0): {BUILD}",
        ),
        (
            {"pdf": "tiny==1.0", "xlsx": "more|nut"},
            "tiny==1.0 (pdf) is in no package set of this machine together with the rest "
            f"('large' has 2.1, 'small' has 1.0): {BUILD}",
        ),
        (
            {"pdf": "more[broken]"},
            f"more[broken] (pdf) is in no package set of this machine ('large' has 0.5): {BUILD}",
        ),
        (
            {"pdf": "pandas>=2|pillow"},
            "pandas>=2 (pdf) is in no package set of this machine; pillow (pdf) is in no package set of this "
            "machine: run `treadle packages build data`",
        ),
    ],
)
def test_what_no_set_meets_is_told_with_what_to_do(texts: Mapping[str, str], message: str) -> None:
    choice = found(**texts)
    assert choice.name is None
    assert choice.message == message


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("-r other.txt", "other files are not read"),
        ("tiny @ https://example.org/tiny.whl", "addresses are not taken"),
        ("tiny==one", "is no version"),
        ("tiny; python_version", "a marker compares values"),
        ("tiny; planet == 'mars'", "no variable 'planet'"),
        ("tiny tiny", "that is no requirement"),
    ],
)
def test_a_line_that_no_set_can_meet_is_told_with_its_number(line: str, fault: str) -> None:
    choice = found(pdf=f"tiny|{line}")
    assert choice.name is None
    assert [each.source for each in choice.missing] == ["pdf, line 2"]
    assert fault in choice.message
    assert "require packages by name and version alone" in choice.message


def test_a_text_that_is_too_long_is_told() -> None:
    assert "more than 500 lines" in found(pdf="tiny\n" * (MAX_LINES + 1)).message


async def test_it_can_be_awaited() -> None:
    assert await best_set({"pdf": "tiny<2"}) == SetChoice("small")


def test_without_sets_all_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "TREADLE_PACKAGES", str(tmp_path / "none"))
    assert [str(each) for each in found(pdf="tiny").missing] == [
        "tiny (pdf) is in no package set of this machine"
    ]
