"""Versions and markers, compared with what the package `packaging` makes of them."""

import itertools

import pytest
from packaging.markers import Marker, default_environment
from packaging.specifiers import SpecifierSet
from packaging.version import Version as Theirs

from treadle.sandbox.versions import MAX_MARKER_DEPTH, holds, meets, version

VERSIONS = [
    *("0", "0.9", "1", "1.0", "1.0.0", "1.0.1", "1.1", "1.10", "2", "10.0", "1!0.5", "2024.8.1"),
    *("1.0a1", "1.0.b2", "1.0rc1", "1.0-c1", "1.0.dev3", "1.0a1.dev2", "1.1.dev0", "2.0rc2.dev1"),
    *("1.0.post1", "1.0-2", "1.0.post1.dev1", "1.0.rev", "v1.0", "1.0+cpu", "1.0+cu.11-8", "1.1.0.post0"),
]
SPECIFIERS = [
    *(f"{operator}{wanted}" for operator in ("==", "!=", "<", ">", "<=", ">=") for wanted in VERSIONS),
    *("==1.*", "!=1.*", "==1.0.*", "==1!0.*", "~=1.0", "~=1.0.0", "~=0.9", "~=1.0a1", "===1.0", "===1.0.0"),
]
MARKERS = [
    "python_version >= '3.9'",
    'python_version < "3.9" or sys_platform == "linux"',
    "(python_version < '3.9' or python_version >= '3.10') and os_name == 'posix'",
    "sys_platform == 'win32' and python_version >= '3' or implementation_name == 'cpython'",
    "sys_platform == 'win32' and (python_version >= '3' or implementation_name == 'cpython')",
    "'linux' in sys_platform",
    "sys_platform not  in 'win32 darwin'",
    "python_full_version ~= '3.8'",
    "'3.9' <= python_version",
    "platform_machine != 'sparc'",
    "extra == 'test'",
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_versions_are_in_the_order_of_packaging() -> None:
    for one, other in itertools.product(VERSIONS, repeat=2):
        public = Theirs(Theirs(one).public), Theirs(Theirs(other).public)
        assert (version(one).key < version(other).key) == (public[0] < public[1]), (one, other)


def test_a_version_meets_what_packaging_says_it_meets() -> None:
    for have, wanted in itertools.product(VERSIONS, SPECIFIERS):
        try:
            theirs: bool | None = SpecifierSet(wanted).contains(have, prereleases=True)
        except ValueError:
            theirs = None
        if theirs is None:
            with pytest.raises(ValueError, match="version"):
                meets(have, [wanted])
        else:
            assert meets(have, [wanted]) == theirs, (have, wanted)


@pytest.mark.parametrize("marker", MARKERS)
def test_a_marker_holds_where_packaging_says_it_does(marker: str) -> None:
    environment = {**default_environment(), "extra": ""}
    assert holds(marker, {key: str(value) for key, value in environment.items()}) == Marker(marker).evaluate()


@pytest.mark.parametrize(
    "marker",
    [
        *("", "python_version", "python_version >=", "nothing == '1'", "(os_name == 'a'", "os_name == 'a' b"),
        "os_name == 'a') ",
        "os_name ~= 'posix'",
        "os_name == 'a' and",
        f"{'(' * (MAX_MARKER_DEPTH + 1)}os_name == 'a'{')' * (MAX_MARKER_DEPTH + 1)}",
        f"os_name == '{'a' * 2000}'",
    ],
)
def test_what_is_no_marker_is_refused(marker: str) -> None:
    with pytest.raises(ValueError, match=r"marker|compares"):
        holds(marker, {"os_name": "posix", "python_version": "3.11"})


@pytest.mark.parametrize("text", ["", "one", "1..0", "1.0+", "1.0 0", "1" * 200, "1.0-beta-x", "١.0"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no version"):
        version(text)
