"""What a requirements file may say."""

import pytest

from treadle.errors import InvalidArgument
from treadle.sandbox.requirements import MAX_BYTES, MAX_LINES, parse


def test_names_extras_versions_and_markers_are_taken_in_any_way_to_write_them() -> None:
    text = """
# for the reports
Python_Docx >= 1.1 , < 2    # with a comment
imageio[ FFMPEG, pyav ]==2.*
pandas
python-docx<2,>=1.1
tomli; python_version  <  "3.11"
x===1.0+local.1
    """

    assert parse(text, "r.txt") == (
        "imageio[ffmpeg,pyav]==2.*",
        "pandas",
        "python-docx<2,>=1.1",
        'tomli; python_version < "3.11"',
        "x===1.0+local.1",
    )


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("https://example.org/a-1.0-py3-none-any.whl", "PIP_INDEX_URL"),
        ("git+https://example.org/a", "addresses are not taken"),
        ("a @ https://example.org/a.whl", "addresses are not taken"),
        ("a@file:///a.whl", "addresses are not taken"),
        ("-e .", "make a wheel of it"),
        ("--editable=.", "make a wheel of it"),
        ("-r other.txt", "put their lines here"),
        ("-cother.txt", "PIP_CONSTRAINT"),
        ("--index-url https://example.org", "PIP_INDEX_URL"),
        ("--extra-index-url=https://example.org", "PIP_INDEX_URL"),
        ("-f links", "PIP_FIND_LINKS"),
        ("--no-binary :all:", "options are not taken"),
        ("--pre", "options are not taken"),
        ("a==1 --hash=sha256:00", "options are not taken"),
        ("a --config-settings=x=y", "options are not taken"),
        ("./a", "files are not taken"),
        ("../a-1.0.whl", "files are not taken"),
        ("~/a", "files are not taken"),
        (".", "files are not taken"),
        ("folder/a", "files are not taken"),
        ("C:\\a", "files are not taken"),
        ("a-1.0-py3-none-any.whl", "files are not taken"),
        ("a-1.0.tar.gz", "files are not taken"),
        ("a.ZIP", "files are not taken"),
        ("a \\", "files are not taken"),
        ("a b", "that is no requirement"),
        ("a==", "that is no requirement"),
        ("a (>=1)", "that is no requirement"),
        ("${NAME}", "that is no requirement"),
        ("ä", "that is no requirement"),
        ("a; $(touch x)", "that is no requirement"),
        ("a\x1b[31m", "that is no requirement"),
    ],
)
def test_what_leads_elsewhere_is_refused_with_its_line_and_what_to_do(line: str, told: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse(f"# first\npandas\n{line}\n", "r.txt")

    assert str(refused.value).startswith("r.txt, line 3: ")
    assert told in str(refused.value)
    assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize("text", ["a\n" * (MAX_LINES + 1), f"# {'x' * MAX_BYTES}\na", "# ä" * MAX_BYTES])
def test_a_file_that_is_too_long_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="500 lines or 64 KiB"):
        parse(text, "r.txt")


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n"])
def test_a_file_that_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="names no package"):
        parse(text, "r.txt")
