"""Package sets: built from wheels alone, whole or not at all, and found by name."""

import fcntl
import marshal
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox.wheels import LINUX_ALONE, shop, source, wheel
from treadle.errors import InvalidArgument, SandboxError
from treadle.sandbox.builds import KEPT_S, build
from treadle.sandbox.engine import Engine, Packages
from treadle.sandbox.ladder import probe
from treadle.sandbox.packages import BUILT_IN, Manifest, PackageSet, Wanted, find, platform, sets

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason=LINUX_ALONE)

TINY = Wanted("tiny", ("tiny",), preloaded=("tiny",))


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the wheel `tiny`; sets go into `store` beside it."""
    folder = shop(tmp_path, monkeypatch)
    wheel(folder, "tiny")
    return folder


def manifest(made: PackageSet) -> Manifest:
    assert made.manifest
    return made.manifest


def hidden(links: Path) -> list[str]:
    """What is in the store beside sets, without numbers."""
    return sorted(path.name.split("-")[0] for path in (links.parent / "store").glob(".*"))


def test_a_set_is_built_once_and_found_by_name(links: Path) -> None:
    told: list[str] = []
    made = build(TINY, say=told.append)
    again = build(TINY, say=told.append)

    found = manifest(made)
    assert made == again == sets()[0]
    assert any("Successfully installed tiny-1.0" in line for line in told)
    assert told[-1].startswith("tiny is built already: ")
    assert made.folder == links.parent / "store" / f"tiny-{TINY.key}"
    assert find("tiny") == Packages(str(made.folder / "packages"), ("tiny",), found.content)
    assert (found.distributions, found.preloaded) == ({"tiny": "1.0"}, ("tiny",))
    assert found.platform == platform()
    assert found.size_bytes == sum(
        path.stat().st_size for path in (made.folder / "packages").rglob("*") if path.is_file()
    )
    assert hidden(links) == [".lock"]


def test_nothing_in_a_set_can_be_written_and_no_scripts_are_in_it(links: Path) -> None:
    made = build(TINY)

    everything = [made.folder, *made.folder.rglob("*")]
    assert {oct(path.stat().st_mode) for path in everything} == {"0o40555", "0o100444"}
    assert not (made.folder / "packages" / "bin").exists()


def test_what_is_compiled_names_its_place_inside_and_is_never_compiled_again(links: Path) -> None:
    made = build(TINY)

    [compiled] = (made.folder / "packages" / "__pycache__").iterdir()
    data = compiled.read_bytes()
    flags = int.from_bytes(data[4:8], "little")
    assert marshal.loads(data[16:]).co_filename == "/opt/packages/tiny.py"
    assert flags == 0b01, "by the hash of the source, which nobody compares (PEP 552)"


async def test_a_container_imports_it_and_sees_no_path_of_the_host(links: Path, tmp_path: Path) -> None:
    if probe().name in ("3", "3b"):
        pytest.skip("without namespaces, paths are those of the host")
    build(TINY)
    try:
        async with Engine(packages=find("tiny")) as engine, await engine.make() as container:
            failed = await container.execute("import tiny\ntiny.fail()")
            written = await container.execute("open('/opt/packages/new.py', 'w')")
    except SandboxError as error:
        pytest.skip(f"no containers here: {error}")

    assert 'File "/opt/packages/tiny.py", line 5, in fail' in failed.stderr
    assert str(tmp_path) not in failed.stderr
    assert written.failure
    assert written.failure.kind in ("OSError", "PermissionError")


REMEMBERS = """
import os
with open(os.path.join(os.environ["MPLCONFIGDIR"], "found"), "a+") as file:
    file.seek(0)
    KNOWN = file.read()
    file.write("out")
"""


async def test_what_a_preloaded_module_finds_out_is_kept_in_the_set(links: Path) -> None:
    wheel(links, "tiny", "1.5", code=REMEMBERS)
    made = build(TINY)
    assert (made.folder / "packages" / ".cache" / "matplotlib" / "found").read_text("utf-8") == "out"
    try:
        async with Engine(packages=find("tiny")) as engine, await engine.make() as container:
            outcome = await container.execute("import os, tiny; print(tiny.KNOWN, os.listdir('/tmp'))")
    except SandboxError as error:
        pytest.skip(f"no containers here: {error}")

    assert outcome.stdout == "out []\n"


def test_a_set_whose_preloaded_modules_cannot_be_imported_is_not_built(links: Path) -> None:
    wheel(links, "tiny", "1.5", code="import nothing_like_it\n")
    with pytest.raises(SandboxError, match=r"cannot be imported: ModuleNotFoundError.*nothing_like_it"):
        build(TINY)

    assert sets() == []
    build(Wanted("tiny", ("tiny",)))
    assert len(sets()) == 1


def test_building_again_takes_what_there_is_now_and_keeps_the_old_for_a_day(links: Path) -> None:
    old = build(TINY)
    inside = (old.folder / "packages").stat().st_ino
    wheel(links, "tiny", "2.0")
    new = build(TINY, rebuild=True)

    assert new.folder == old.folder
    assert manifest(new).distributions == {"tiny": "2.0"}
    assert manifest(new).content != manifest(old).content
    [aside] = (links.parent / "store").glob(".replaced-*")
    assert (aside / "packages").stat().st_ino == inside
    assert sets() == [new]

    long_ago = time.time_ns() - int((KEPT_S + 60) * 1e9)
    aside.rename(aside.with_name(f".replaced-{long_ago}-tiny"))
    build(TINY)
    assert hidden(links) == [".lock"]


def test_other_requirements_take_the_place_of_those_before(links: Path) -> None:
    wheel(links, "tiny", "2.0")
    first = build(TINY)
    second = build(Wanted("tiny", ("tiny<2",)))

    assert first.folder != second.folder
    assert sets() == [second]
    assert find("tiny").folder == str(second.folder / "packages")
    assert manifest(build(TINY)).distributions == {"tiny": "2.0"}


def test_the_key_is_that_of_the_requirements_in_any_order() -> None:
    assert Wanted("a", ("x", "y")).key == Wanted("b", ("y", "x")).key
    assert Wanted("a", ("x",)).key != Wanted("a", ("y",)).key
    assert len(TINY.key) == 16


def test_a_source_distribution_is_refused_and_the_package_named(links: Path, tmp_path: Path) -> None:
    source(links, "late", tmp_path / "trace")
    wheel(links, "front", requires=["late"])
    for name in ("late", "front"):
        with pytest.raises(SandboxError, match="there is no wheel of 'late") as refused:
            build(Wanted("own", (name,)))
        assert "only wheels are taken" in str(refused.value)

    assert not (tmp_path / "trace").exists()
    assert (sets(), hidden(links)) == ([], [".lock"])


@pytest.mark.parametrize("variable", ["PIP_NO_BINARY", "PIP_ONLY_BINARY", "PIP_TARGET", "PIP_REQUIREMENT"])
def test_no_variable_changes_what_is_installed(
    variable: str, links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source(links, "tiny", tmp_path / "trace")
    monkeypatch.setenv(variable, {"PIP_NO_BINARY": ":all:", "PIP_ONLY_BINARY": ":none:"}.get(variable, "/x"))

    assert manifest(build(TINY)).distributions == {"tiny": "1.0"}
    assert not (tmp_path / "trace").exists()


def test_a_wheel_that_requires_a_source_distribution_by_its_address_has_none_built(
    links: Path, tmp_path: Path
) -> None:
    evil = source(tmp_path, "evil", tmp_path / "trace")
    wheel(links, "front", requires=[f"evil @ {evil.as_uri()}"])
    with pytest.raises(SandboxError, match="requires another by an address"):
        build(Wanted("own", ("front",)))

    assert not (tmp_path / "trace").exists()


def test_a_wheel_that_requires_another_by_its_address_is_refused(links: Path, tmp_path: Path) -> None:
    other = wheel(tmp_path, "other")
    wheel(links, "front", requires=[f"other @ {other.as_uri()}"])
    with pytest.raises(SandboxError, match="'other' was required by another package with an address"):
        build(Wanted("own", ("front",)))

    assert hidden(links) == [".lock"]


def test_a_build_that_takes_too_long_is_ended(links: Path) -> None:
    with pytest.raises(SandboxError, match="--timeout"):
        build(TINY, timeout_s=0.05)

    assert (sets(), hidden(links)) == ([], [".lock"])


def test_a_build_that_is_interrupted_leaves_nothing(links: Path) -> None:
    def interrupt(line: str) -> None:
        if line == "compiling":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(TINY, say=interrupt)

    assert (sets(), hidden(links)) == ([], [".lock"])


KILLED = """
from treadle.sandbox.builds import build
from treadle.sandbox.packages import Wanted
build(Wanted("tiny", ("tiny",)), say=lambda line: print(line, flush=True))
"""


def test_a_build_that_is_killed_leaves_nothing_that_is_taken_for_a_set(links: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True) as building:
        assert building.stdout
        while building.stdout.readline() != "compiling\n":
            assert building.poll() is None
        building.kill()

    assert sets() == []
    with pytest.raises(SandboxError, match="treadle packages build tiny"):
        find("tiny")
    assert manifest(build(TINY)).distributions == {"tiny": "1.0"}


def test_what_killed_builds_left_is_removed(links: Path) -> None:
    left = links.parent / "store" / ".building-x" / "packages"
    left.mkdir(parents=True)
    (left / "a.py").touch(0o444)
    for folder in (left, left.parent):
        folder.chmod(0o555)
    build(TINY)

    assert hidden(links) == [".lock"]


def test_two_builds_at_once_make_one_set(links: Path) -> None:
    told: list[str] = []
    threads = [threading.Thread(target=build, args=(TINY,), kwargs={"say": told.append}) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert sum(line == "compiling" for line in told) == 1
    assert told[-1].startswith("tiny is built already")
    assert len(sets()) == 1


def test_a_build_waits_for_another_until_its_time_is_over(links: Path) -> None:
    store = links.parent / "store"
    store.mkdir(mode=0o755)
    told: list[str] = []
    with (store / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SandboxError, match="still locked"):
            build(TINY, timeout_s=0.3, say=told.append)

    assert told == ["another build is running: waiting for it"]


def test_a_set_that_is_not_built_is_told_with_the_command_that_builds_it(links: Path) -> None:
    for name, command in (("data", "`treadle packages build data`"), ("own", "build own --requirements")):
        with pytest.raises(SandboxError, match=command):
            find(name)
    for name in ("", "Data", "a/b", "..", "a" * 65, "a\n"):
        with pytest.raises(InvalidArgument, match="1 to 64 of"):
            find(name)
        with pytest.raises(InvalidArgument, match="1 to 64 of"):
            build(Wanted(name, ("tiny",)))


def rewrite(made: PackageSet, **changes: Any) -> None:
    path = made.folder / "manifest.json"
    path.chmod(0o644)
    path.write_text(manifest(made).model_copy(update=changes).model_dump_json(), "utf-8")


@pytest.mark.parametrize("changes", [{"python": "3.1"}, {"platform": "else"}, {"format": 0}])
def test_a_set_for_another_python_is_not_found(changes: dict[str, Any], links: Path) -> None:
    rewrite(build(TINY), **changes)

    with pytest.raises(SandboxError, match="is not built for Python"):
        find("tiny")
    assert [each.fits for each in sets()] == [False]
    assert build(TINY).fits


def test_a_set_of_another_name_or_without_its_manifest_is_not_found(links: Path) -> None:
    made = build(TINY)
    rewrite(made, name="other")
    with pytest.raises(SandboxError, match=r"its manifest.json is of other-"):
        find("tiny")

    (made.folder / "manifest.json").write_text("{", "utf-8")
    with pytest.raises(SandboxError, match="cannot be read"):
        find("tiny")

    assert build(TINY).fits


def test_a_built_in_set_of_other_requirements_is_not_found(links: Path) -> None:
    build(Wanted("data", ("tiny",)))

    with pytest.raises(SandboxError, match="is not built"):
        find("data")


@pytest.mark.parametrize("place", [".", "packages", "manifest.json"])
@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_set_that_others_could_have_written_to_is_refused(place: str, mode: int, links: Path) -> None:
    made = build(TINY)
    (made.folder / place).chmod(mode)

    with pytest.raises(SandboxError, match="can be written by others"):
        find("tiny")


def test_a_store_that_others_could_have_written_to_is_refused(links: Path) -> None:
    build(TINY)
    store = links.parent / "store"
    store.chmod(0o777)

    for use in (lambda: find("tiny"), lambda: build(TINY), sets):
        with pytest.raises(SandboxError, match="can be written by others"):
            use()


def test_a_set_of_another_user_or_behind_a_link_is_refused(links: Path) -> None:
    made = build(TINY)
    moved = made.folder.rename(made.folder.with_name(".moved"))
    made.folder.symlink_to(moved)
    with pytest.raises(SandboxError, match="is a link"):
        find("tiny")

    made.folder.unlink()
    moved.rename(made.folder)
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(made.folder, 12345, 12345)
    with pytest.raises(SandboxError, match="belongs to user 12345"):
        find("tiny")


CELLS = {
    "numpy": "import numpy as np; print(np.linalg.svd(np.random.rand(50, 50))[1].size)",
    "pandas": "import pandas as pd; print(pd.DataFrame({'k': list('aab'), 'v': 1}).groupby('k').v.sum().b)",
    "matplotlib": "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.savefig('out/a.png')",
    "pillow": "from PIL import Image; im = Image.open('out/a.png'); im.convert('RGB').save('out/a.jpg')",
    "openpyxl": "pd.DataFrame({'a': [1]}).to_excel('out/a.xlsx'); print(pd.read_excel('out/a.xlsx').shape)",
    "docx": "import docx; d = docx.Document(); d.add_heading('one'); d.save('out/a.docx')",
    "pptx": (
        "import pptx; p = pptx.Presentation(); p.slides.add_slide(p.slide_layouts[0]); p.save('out/a.pptx')"
    ),
    "reportlab": (
        "from reportlab.pdfgen.canvas import Canvas\n"
        "c = Canvas('out/a.pdf'); c.drawString(9, 9, 'hello'); c.save()"
    ),
    "pypdf": "import pypdf; print(pypdf.PdfReader('out/a.pdf').pages[0].extract_text())",
    "imageio": "import imageio.v3 as iio; iio.imwrite('out/a.gif', np.zeros((3, 8, 8, 3), 'uint8'))",
}


@pytest.mark.slow
async def test_the_data_set_works_in_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_PACKAGES", str(tmp_path / "store"))
    try:
        build(BUILT_IN["data"])
    except SandboxError as error:
        pytest.skip(f"the data set cannot be built here: {error}")
    async with Engine(packages=find("data")) as engine, await engine.make() as container:
        for name, code in CELLS.items():
            outcome = await container.execute(code)
            assert outcome.failure is None, f"{name}: {outcome.stderr}"
        files = {file.path for file in (await container.collect()).files}

    assert files == {f"a.{kind}" for kind in ("png", "jpg", "xlsx", "docx", "pptx", "pdf", "gif")}
