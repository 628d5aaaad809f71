"""Tiny wheels and source distributions, for tests that build package sets without an index."""

import io
import os
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

LINUX_ALONE = "package sets are for containers, which need Linux"


def wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    *,
    requires: Sequence[str] = (),
    extras: Sequence[str] = (),
    code: str = "",
) -> Path:
    """Write a wheel with a module, which begins with `code`, and a script of its name."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    about = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    needs += "".join(f"Provides-Extra: {each}\n" for each in extras)
    content = {
        f"{name}.py": f"{code}VERSION = {version!r}\n\n\ndef fail():\n    raise ValueError(VERSION)\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/entry_points.txt": f"[console_scripts]\n{name} = {name}:fail\n",
        f"{about}/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in content.items():
            archive.writestr(inside, text)
    return path


def source(folder: Path, name: str, trace: Path) -> Path:
    """Write a source distribution that makes the file `trace` when anybody builds it."""
    backend = f"open({str(trace)!r}, 'w')\nraise SystemExit('built')\n"
    project = "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    content = {
        "pyproject.toml": project,
        "backend.py": backend,
        "setup.py": backend,
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
    }
    path = folder / f"{name}-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for inside, text in content.items():
            entry = tarfile.TarInfo(f"{name}-1.0/{inside}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return path


def shop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, the only place that pip takes any from; sets go into `store` beside it."""
    links = folder / "links"
    links.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("TREADLE_PACKAGES", str(folder / "store"))
    return links
