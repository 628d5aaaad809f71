"""The settings of containers: what is refused, and with which words."""

import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import treadle
from treadle.errors import InvalidArgument, InvalidType
from treadle.sandbox import Isolated, isolated
from treadle.sandbox.box import Limits, Mount


def test_the_defaults_are_those_of_the_limits() -> None:
    assert isolated() == Isolated(Limits(), None, (), None)


def test_what_is_given_is_kept(tmp_path: Path) -> None:
    made = isolated(
        memory_mib=1024,
        cpu_s=5,
        processes=8,
        disk_mib=16,
        files=100,
        output_kib=1,
        packages="data",
        mounts=[(tmp_path, "project", "ro"), (str(tmp_path), "/mnt/a/b/", "rw")],
        minimum_rung=2,
    )

    source = os.path.realpath(tmp_path)
    assert made.limits == Limits(
        memory_mib=1024, cpu_s=5.0, processes=8, disk_mib=16, files=100, output_kib=1
    )
    assert isinstance(made.limits.cpu_s, float)
    assert made.mounts == (
        Mount(source, "/workspace/project", writable=False),
        Mount(source, "/mnt/a/b", writable=True),
    )
    assert (made.packages, made.minimum_rung) == ("data", 2)
    with pytest.raises(AttributeError):
        made.packages = "other"  # type: ignore[misc]


NUMBERS = ("memory_mib", "processes", "disk_mib", "files", "output_kib")


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [True, 1.0, "1", None, math.nan, [1]])
def test_a_number_of_the_wrong_type_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidType, match=f"^{name} must be a whole number from .* leave it out"):
        isolated(**cast("Any", {name: value}))


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [0, -1, 10**9])
def test_a_number_out_of_range_is_refused(name: str, value: int) -> None:
    with pytest.raises(InvalidArgument, match=rf"^{name} must be a whole number from \d+ to \d+, got "):
        isolated(**cast("Any", {name: value}))


@pytest.mark.parametrize("value", [True, "60", None, 1j])
def test_seconds_of_the_wrong_type_are_refused(value: object) -> None:
    with pytest.raises(InvalidType, match=r"^cpu_s must be a number of seconds, not \w+: such as 60"):
        isolated(cpu_s=cast("Any", value))


@pytest.mark.parametrize("value", [0, -1, 0.0, math.nan, math.inf, -math.inf, 86_401])
def test_seconds_out_of_range_are_refused(value: float) -> None:
    with pytest.raises(InvalidArgument, match=r"^cpu_s must be more than 0 and at most 86400 seconds, got "):
        isolated(cpu_s=value)


@pytest.mark.parametrize("value", ["", "Data", "a b", "../data", "a" * 65, "data\n", "dätä", "٣"])
def test_a_package_set_of_another_name_is_refused(value: str) -> None:
    with pytest.raises(InvalidArgument, match=r"1 to 64 of a-z, 0-9, _ and -"):
        isolated(packages=value)


@pytest.mark.parametrize("value", [1, b"data", ["data"], True])
def test_a_package_set_of_the_wrong_type_is_refused(value: object) -> None:
    with pytest.raises(InvalidType, match=r"^packages must be the name of a package set, or None"):
        isolated(packages=cast("Any", value))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        *((value, InvalidType) for value in (True, "2", 2.0)),
        *((value, InvalidArgument) for value in (0, 4, -1)),
    ],
)
def test_a_rung_that_is_none_is_refused(value: object, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"^minimum_rung must be 1, 2"):
        isolated(minimum_rung=cast("Any", value))


@pytest.mark.parametrize("name", [*NUMBERS, "cpu_s", "minimum_rung"])
def test_a_number_that_python_does_not_write_is_refused_as_any_other(name: str) -> None:
    with pytest.raises(InvalidArgument, match="got a number of more than 30 digits"):
        isolated(**cast("Any", {name: 10**5000}))


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("project", "/workspace/project"),
        ("./a//b/.", "/workspace/a/b"),
        ("/workspace/a", "/workspace/a"),
        ("//mnt//data/", "/mnt/data"),
        ("in/data", "/workspace/in/data"),
        ("workspace", "/workspace/workspace"),
        ("mnt", "/workspace/mnt"),
        ("...", "/workspace/..."),
        ("zürich 東京", "/workspace/zürich 東京"),
    ],
)
def test_a_path_is_beneath_the_workspace_or_mnt(tmp_path: Path, path: str, target: str) -> None:
    [mount] = isolated(mounts=[(tmp_path, path, "ro")]).mounts

    assert mount.target == target


@pytest.mark.parametrize(
    "path",
    [
        *("", ".", "/", "..", "../x", "a/../../b", "a/..", "/workspace", "/workspace/", "/mnt", "/mnt/."),
        *("in", "out", "./in/", "/workspace/in", "/workspace/out", "/etc", "/workspaces/a", "/mnt2/a"),
        *("/proc/1", "/opt/python", "a\x00b", "a\nb", "a\u202eb", "\ud800", "x" * 256, "x/" * 600 + "x"),
        *("\\..\\x\x1b", "é" * 200),
    ],
)
def test_a_path_that_would_stand_elsewhere_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^mounts: the path"):
        isolated(mounts=[(tmp_path, path, "ro")])


@pytest.mark.parametrize(
    ("one", "other"),
    [("a", "a"), ("a", "./a/"), ("a", "a/b"), ("a/b", "/workspace/a"), ("/mnt/x", "/mnt/x/y/z")],
)
def test_mounts_in_each_other_are_refused(tmp_path: Path, one: str, other: str) -> None:
    with pytest.raises(InvalidArgument, match=r"are at or inside each other: give each a path of its own"):
        isolated(mounts=[(tmp_path, one, "ro"), (tmp_path, "free", "ro"), (tmp_path, other, "rw")])


def test_mounts_whose_names_begin_alike_are_not_in_each_other(tmp_path: Path) -> None:
    made = isolated(mounts=[(tmp_path, "a", "ro"), (tmp_path, "ab", "ro")])

    assert [mount.target for mount in made.mounts] == ["/workspace/a", "/workspace/ab"]


def test_a_folder_is_followed_to_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")

    [mount] = isolated(mounts=[(tmp_path / "link", "a", "ro")]).mounts

    assert mount.source == os.path.realpath(tmp_path / "real")


@pytest.mark.parametrize("folder", ["/", "/proc", "/proc/self", "/sys", "/sys/fs", "/dev", "//dev//", "/run"])
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="folders of Linux")
def test_a_folder_that_opens_the_host_is_refused(tmp_path: Path, folder: str) -> None:
    (tmp_path / "link").symlink_to(folder)

    for name in (folder, tmp_path / "link"):
        with pytest.raises(InvalidArgument, match=r"of the host would open it to the code: mount another"):
            isolated(mounts=[(name, "a", "ro")])


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")

    for folder in (tmp_path / "file", tmp_path / "missing", tmp_path / "loop", "", "a\x00b", "\ud800"):
        with pytest.raises(InvalidArgument, match=r"^mounts: "):
            isolated(mounts=[(folder, "a", "ro")])


def test_a_folder_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff"
    try:
        os.mkdir(name)  # noqa: PTH102
    except OSError as error:
        pytest.skip(f"this file system has no such names: {error}")

    with pytest.raises(InvalidArgument, match=r"cannot be used"):
        isolated(mounts=[(os.fsdecode(name), "a", "ro")])


@pytest.mark.parametrize(
    ("mounts", "kind"),
    [
        ("abc", InvalidType),
        (b"abc", InvalidType),
        (None, InvalidType),
        ({"a": "b"}, InvalidType),
        (["abc"], InvalidType),
        ([None], InvalidType),
        ([("a", "b")], InvalidArgument),
        ([("a", "b", "ro", 1)], InvalidArgument),
        ([(1, "b", "ro")], InvalidType),
        ([(b"/tmp", "b", "ro")], InvalidType),
        ([(".", 1, "ro")], InvalidType),
        ([(".", Path("a"), "ro")], InvalidType),
        ([(".", "a", True)], InvalidType),
        ([(".", "a", "RW")], InvalidArgument),
        ([(".", "a", "ro")] * 33, InvalidArgument),
    ],
)
def test_mounts_of_another_form_are_refused(mounts: object, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"mounts|a path must be a str"):
        isolated(mounts=cast("Any", mounts))


def test_mounts_that_do_not_fit_into_a_packet_are_refused(tmp_path: Path) -> None:
    long = "/".join(["ü" * 100] * 5)

    with pytest.raises(InvalidArgument, match=r"too long together"):
        isolated(mounts=[(tmp_path, f"{number}/{long}", "ro") for number in range(20)])


@given(
    st.text(max_size=40)
    | st.lists(st.sampled_from(["..", ".", "", "in", "a", "mnt", "workspace"])).map("/".join)
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_path_leaves_where_mounts_may_be(tmp_path: Path, path: str) -> None:
    try:
        [mount] = isolated(mounts=[(tmp_path, path, "ro")]).mounts
    except InvalidArgument:
        return
    assert mount.target == os.path.normpath(mount.target)
    assert mount.target.startswith(("/workspace/", "/mnt/"))
    assert mount.target not in ("/workspace/in", "/workspace/out")


def test_the_settings_need_nothing_of_linux() -> None:
    code = "import sys, treadle; treadle.sandbox.isolated(); print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(Path(treadle.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    loaded: Sequence[str] = ran.stdout.split()
    assert not [name for name in loaded if name.startswith("treadle.sandbox.kernel")]
    assert "asyncio" not in loaded
