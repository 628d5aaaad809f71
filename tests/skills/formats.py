"""What is in files that skills make, read from their bytes."""

import io
import re
import struct
import zipfile
from collections.abc import Mapping
from xml.etree import ElementTree


def gif_delays(data: bytes) -> list[int]:
    """How long each picture of a GIF is shown, in hundredths of a second."""
    assert data[:6] == b"GIF89a"
    delays: list[int] = []
    at, delay = 13 + _table(data[10]), 0
    while data[at] != 0x3B:
        if data[at] == 0x21:
            if data[at + 1] == 0xF9:
                delay = int.from_bytes(data[at + 4 : at + 6], "little")
            at = _past(data, at + 2)
        else:
            assert data[at] == 0x2C, f"no block of a GIF begins with {data[at]:#x}"
            delays.append(delay)
            at = _past(data, at + 11 + _table(data[at + 9]))
    return delays


def _table(flags: int) -> int:
    """Bytes of a table of colors."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _past(data: bytes, at: int) -> int:
    """Where the blocks that begin at `at` have ended."""
    while data[at]:
        at += data[at] + 1
    return at + 1


def png_size(data: bytes) -> tuple[int, int]:
    """Width and height of a PNG, in pixels."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def zipped(data: bytes) -> dict[str, bytes]:
    """The files in an archive, which is whole."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def texts(xml: bytes) -> list[str]:
    """What is written in a part of a document of Word or PowerPoint."""
    return [each.text or "" for each in ElementTree.fromstring(xml).iterfind(".//{*}t")]


def cells(members: Mapping[str, bytes]) -> list[str]:
    """What is in the cells of the first sheet of a workbook, formulas with a `=`."""
    shared = texts(members.get("xl/sharedStrings.xml", b"<sst/>"))
    found: list[str] = []
    for cell in ElementTree.fromstring(members["xl/worksheets/sheet1.xml"]).iterfind(".//{*}c"):
        formula, value = cell.findtext("{*}f"), cell.findtext("{*}v") or ""
        if formula:
            found.append(f"={formula}")
        elif cell.get("t") == "inlineStr":
            found.append(cell.findtext(".//{*}t") or "")
        else:
            found.append(shared[int(value)] if cell.get("t") == "s" else value)
    return found


def content(path: str, data: bytes) -> object:
    """What a file says, as far as one of its kind is looked into."""
    match path.rpartition(".")[2]:
        case "gif":
            return gif_delays(data)
        case "png":
            return png_size(data)
        case "docx":
            return texts(zipped(data)["word/document.xml"])
        case "xlsx":
            return cells(zipped(data))
        case "pptx":
            members = zipped(data)
            slides = sorted(name for name in members if re.fullmatch(r"ppt/slides/slide\d+\.xml", name))
            return [texts(members[name]) for name in slides]
        case "zip":
            return zipped(data)
        case _:
            return data.decode("utf-8")
