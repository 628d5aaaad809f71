"""Texts as one archive."""

import zipfile
from collections.abc import Mapping
from pathlib import Path


def pack(path: str, texts: Mapping[str, str]) -> None:
    target = Path(path)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in texts.items():
            archive.writestr(name, text)
    listed = target.parent / "contents" / f"{target.stem}.txt"
    listed.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{name} {len(text.encode())}\n" for name, text in sorted(texts.items())]
    listed.write_text("".join(lines), "utf-8")
