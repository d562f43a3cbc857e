"""Names of every layout: read, written, and those that are none."""

from __future__ import annotations

from typing import get_args

import pytest

from sluice.publishers.blocks.block_layouts import (
    BlockFormat,
    BlockLayout,
    check_format,
    default_format,
    has_glob,
    is_archive_name,
    is_block_name,
    is_passed_over,
    marker_name,
    matches,
    number_of_parts,
    path_in,
    split_glob,
    unfinished,
    zip_of,
)
from sluice.publishers.errors import OptionError

CONSENSUS = "000000000000000000000000000000000123"


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("7.blk", 7),
        ("0007.blk.zst", 7),
        (f"block-0.0.3/{CONSENSUS}.blk.gz", 123),
        ("live/000/000/000/000/000/0/0000000000000000123.blk.zstd", 123),
        ("0000000000000000123.blk", 123),
        ("bucket/0000/0000/0010/8273/182.blk.zstd", 108273182),
        ("0000/0000/0010/8273/182.blk.zstd", 108273182),
        ("000/0000/0010/8273/182.blk.zstd", 182),  # no bucket: a folder has 3 digits
        ("0000/0000/0010/8273/1182.blk.zstd", 1182),
        ("9223/3720/3685/4775/807.blk", 2**63 - 1),
        ("9999/9999/9999/9999/999.blk", None),
        ("9223372036854775807.blk", 2**63 - 1),
        ("9223372036854775808.blk", None),
        (f"{CONSENSUS}.mf", None),
        (f"{CONSENSUS}.pnd.gz", None),
        (f"{CONSENSUS}.pnd.json", None),
        (f"{CONSENSUS}.open.gz", None),
        ("\N{ARABIC-INDIC DIGIT ONE}.blk", None),
        ("7.blk\n", None),
        ("7.blk.bz2", None),
        (".7.blk.1.part", None),
        ("-7.blk", None),
        ("0" * 37 + ".blk", None),
    ],
)
def test_a_path_says_the_number(path: str, number: int | None) -> None:
    assert number_of_parts(path.split("/")) == number


def test_no_path_has_no_number() -> None:
    assert number_of_parts(()) is None


@pytest.mark.parametrize(
    ("layout", "path"),
    [
        ("plain", "1234567.blk.gz"),
        ("consensus", "000000000000000000000000000001234567.blk.gz"),
        ("recent", "000/000/000/000/123/4/0000000000001234567.blk.zstd"),
        ("historic", "staging/000/000/000/000/123/4/0000000000001234567.blk.zstd"),
        ("bucket", "0000/0000/0000/1234/567.blk.zstd"),
    ],
)
def test_each_layout_names_a_block_as_its_software_does(layout: BlockLayout, path: str) -> None:
    assert path_in(layout, 1234567, default_format(layout)) == path
    assert number_of_parts(["root", *path.split("/")]) == 1234567


@pytest.mark.parametrize("layout", get_args(BlockLayout))
@pytest.mark.parametrize("number", [0, 999, 1_000, 108_273_182, 2**63 - 1])
def test_what_is_written_is_read(layout: BlockLayout, number: int) -> None:
    for block_format in get_args(BlockFormat):
        assert number_of_parts(path_in(layout, number, block_format).split("/")) == number


def test_a_zip_has_ten_thousand_blocks() -> None:
    assert zip_of(1_234_567) == ("000/000/000/000/12/30000.zip", range(1_230_000, 1_240_000))
    assert zip_of(9_999) == ("000/000/000/000/00/00000.zip", range(10_000))
    assert zip_of(10_000)[0] == "000/000/000/000/00/10000.zip"


@pytest.mark.parametrize("layout", ["recent", "historic", "bucket"])
def test_a_java_program_has_no_name_for_the_largest_numbers(layout: BlockLayout) -> None:
    with pytest.raises(OptionError) as caught:
        path_in(layout, 2**63, "blk.zstd")
    assert str(caught.value) == (
        f"option 'layout': got {layout} for block 9223372036854775808, expected block numbers up to "
        "9223372036854775807"
    )


def test_a_layout_has_its_own_compressions() -> None:
    check_format("plain", "blk.zst")
    check_format("bucket", "blk")
    with pytest.raises(OptionError) as caught:
        check_format("recent", "blk.gz")
    assert str(caught.value) == "option 'format': got blk.gz, expected blk.zstd or blk with layout recent"


def test_which_names_are_looked_at() -> None:
    archives = ["0000.zip", "12.tar", "x.TAR", "x.tar.gz", "x.tgz", "x.tar.zst", "x.tar.zstd", "7.blk.zip"]
    assert [name for name in archives if not is_archive_name(name)] == []
    assert not any(map(is_archive_name, ["0000000000000000000.tmp", "7.blk.zstd", "x.gz", ".zip", "zip"]))
    assert is_block_name("182.blk.zstd")
    assert not is_block_name("182.mf")
    assert all(map(is_passed_over, [".snapshot", "links", "zipwork", "corrupted", "lost+found"]))
    assert not any(map(is_passed_over, ["staging", "000", "block-0.0.3"]))


def test_a_block_after_the_last_marked_one_is_still_being_written() -> None:
    names = [path_in("consensus", number, "blk.gz") for number in (4, 5, 6, 7)]
    marks = [marker_name(name) for name in names]
    assert marks[0] == "000000000000000000000000000000000004.mf"
    assert unfinished(names) == frozenset()  # whoever copied them has left the marks behind
    assert unfinished([*names, marks[2]]) == {names[3]}
    assert unfinished([*names, *marks]) == frozenset()
    assert unfinished(["8.blk.gz", *names[:3], marks[2]]) == frozenset()


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("*.zip", ["a.zip", "a.zip/x"], ["b/a.zip", "azip"]),
        ("**/*.zip", ["a.zip", "b/a.zip", "b/c/a.zip", "b\nc/a.zip"], ["a.tar"]),
        ("0?/*.blk", ["00/1.blk"], ["0/1.blk", "00/x/1.blk", "0//1.blk"]),
        ("0*", ["00", "00/x/1.blk", "0.blk"], ["10/1.blk"]),
        ("live/**", ["live/1.blk", "live/0/1.blk"], ["old/1.blk"]),
        ("[0-3].blk", ["2.blk"], ["4.blk", "[0-3].blk"]),
        ("[!0-3].blk", ["4.blk"], ["2.blk", "/.blk"]),
        ("[]^].blk", ["].blk", "^.blk"], ["x.blk"]),
        ("[x.blk", ["[x.blk"], ["x.blk"]),
    ],
)
def test_globs(pattern: str, fitting: list[str], others: list[str]) -> None:
    expression = matches(pattern)
    assert [path for path in fitting if expression.fullmatch(path) is None] == []
    assert [path for path in others if expression.fullmatch(path) is not None] == []


def test_a_glob_is_cut_where_it_begins() -> None:
    assert split_glob("blocks/00/**/*.zip") == ("blocks/00", "**/*.zip")
    assert split_glob("*.zip") == (".", "*.zip")
    assert split_glob("/*.zip") == ("/", "*.zip")
    assert [has_glob(path) for path in ("a/b", "a*", "a?", "a[0]")] == [False, True, True, True]
    with pytest.raises(OptionError, match=r"got '\[z-a\]', expected a glob"):
        matches("[z-a]")
