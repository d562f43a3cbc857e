"""The names of block files and archives in every layout of the field.

Pure. N is a block number, `/` a folder; 12 stands for itself and for 19 or 36 digits with leading zeros.

    layout      block 1234567                                       who writes it
    plain       1234567.blk.gz                                      sluice
    consensus   000000000000000000000000000001234567.blk.gz         consensus node, in `block-0.0.3/`
                000000000000000000000000000001234567.mf             beside it once the block is whole
    recent      000/000/000/000/123/4/0000000000001234567.blk.zstd  block node, recent blocks
    historic    000/000/000/000/12/30000.zip                        block node: 10,000 blocks in a zip,
                    0000000000001234567.blk.zstd                    each under this name
    bucket      0000/0000/0000/1234/567.blk.zstd                    block node, one object a block
    tar         0000/0000/0000/12.tar                               block node, 100,000 blocks in a tar, named
                    0000000000001234567.blk.zstd                    as in a zip

Source: hiero-block-node (BlockFile, BlockPath, ExpandedCloudStoragePlugin, ArchiveKey, TarEntries) and
hiero-consensus-node (FileBlockItemWriter); docs/spark.md, "Block files".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal, get_args

from sluice.gateway.blocks.block_numbers import BLOCK_NUMBER_MAX
from sluice.publishers.errors import OptionError

__all__ = [
    "STAGING",
    "ZIP_DIGITS",
    "BlockFormat",
    "BlockLayout",
    "bucket_digits",
    "check_format",
    "default_format",
    "has_glob",
    "is_archive_name",
    "is_block_name",
    "is_passed_over",
    "marker_name",
    "matches",
    "member_name",
    "number_of_name",
    "number_of_parts",
    "path_in",
    "split_glob",
    "unfinished",
    "zip_of",
]

BlockFormat = Literal["blk", "blk.gz", "blk.zst", "blk.zstd"]

BlockLayout = Literal["plain", "consensus", "recent", "historic", "bucket"]

ZIP_DIGITS: Final = 4
"""Digits of a block number within one historic zip, as in block nodes."""

STAGING: Final = "staging"
"""For blocks whose zip is not complete, as in block nodes."""

_BLOCK: Final = re.compile(r"(?P<digits>[0-9]{1,36})\.blk(\.gz|\.zst|\.zstd)?", re.ASCII)
_MARKED: Final = re.compile(r"(?P<digits>[0-9]{36})\.mf", re.ASCII)
_ARCHIVE: Final = re.compile(r"[^/]+\.(zip|tar|tgz|tar\.gz|tar\.zst|tar\.zstd)", re.ASCII | re.DOTALL)
_BUCKET_FOLDER: Final = re.compile(r"[0-9]{4}", re.ASCII)
_GLOB: Final = re.compile(r"[*?\[]")
_WIDTH: Final = 19
_CONSENSUS_WIDTH: Final = 36
_WORK_FOLDERS: Final = frozenset(("links", "zipwork", "corrupted", "lost+found"))
_FORMATS: Final[dict[BlockLayout, tuple[BlockFormat, ...]]] = {
    "plain": ("blk.gz", "blk", "blk.zst", "blk.zstd"),
    "consensus": ("blk.gz", "blk"),
    "recent": ("blk.zstd", "blk"),
    "historic": ("blk.zstd", "blk"),
    "bucket": ("blk.zstd", "blk"),
}
"""The endings that each layout's own software looks for; the first is the default."""


# --- names to numbers ---------------------------------------------------------------------------------------


def is_block_name(name: str) -> bool:
    """Return whether a name is that of a block file."""
    return _BLOCK.fullmatch(name) is not None


def is_archive_name(name: str) -> bool:
    """Return whether a name is that of an archive that may hold blocks."""
    return _ARCHIVE.fullmatch(name.lower()) is not None


def is_passed_over(folder_name: str) -> bool:
    """Return whether a search leaves out a folder below another.

    These are hidden folders (snapshots of file servers), a disk's `lost+found`, and a block node's own: links
    to zips, a zip in the making, and damaged zips.
    """
    return folder_name.startswith(".") or folder_name in _WORK_FOLDERS


def number_of_parts(parts: Sequence[str]) -> int | None:
    """Return the block number in a file's folders and name."""
    return number_of_name(parts[-1], bucket_digits(parts[:-1])) if parts else None


def bucket_digits(folders: Sequence[str]) -> str:
    """Return the digits of block numbers that the folders of a bucket have; "": none."""
    last = folders[-4:]
    return "".join(last) if len(last) == 4 and all(map(_BUCKET_FOLDER.fullmatch, last)) else ""


def number_of_name(name: str, folder_digits: str) -> int | None:
    """Return the block number in a file's name; `folder_digits` is that of its folder (`bucket_digits`)."""
    match = _BLOCK.fullmatch(name)
    if match is None:
        return None
    digits = match[1]
    number = int(folder_digits + digits if len(digits) == 3 else digits)
    return number if number <= BLOCK_NUMBER_MAX else None


def unfinished(names: Sequence[str]) -> frozenset[str]:
    """Return the names in a folder whose blocks a consensus node is still writing.

    It writes an empty `.mf` file once a block is whole. In a folder with such marks, a block after the last
    marked one is not whole. Earlier marks may be gone.
    """
    if not any(name.endswith(".mf") for name in names):
        return frozenset()
    whole, blocks = -1, []
    for name in names:
        if match := _MARKED.fullmatch(name):
            whole = max(whole, int(match["digits"]))
        elif (match := _BLOCK.fullmatch(name)) and len(match["digits"]) == _CONSENSUS_WIDTH:
            blocks.append((int(match["digits"]), name))
    return frozenset(name for number, name in blocks if number > whole >= 0)


# --- numbers to names ---------------------------------------------------------------------------------------


def default_format(layout: BlockLayout) -> BlockFormat:
    """Return the ending that the layout's own software uses."""
    return _FORMATS[layout][0]


def check_format(layout: BlockLayout, block_format: BlockFormat) -> None:
    """Check that the layout's own software finds files with an ending. Raises OptionError if not."""
    if block_format not in _FORMATS[layout]:
        expected = f"{' or '.join(_FORMATS[layout])} with layout {layout}"
        raise OptionError("format", block_format, expected)


def path_in(layout: BlockLayout, number: int, block_format: BlockFormat) -> str:
    """Return the path of a block's file in a layout; for `historic`, of the staged file.

    Raises:
        OptionError: the layout has no name for so large a number.
    """
    assert block_format in get_args(BlockFormat)
    if layout == "plain":
        return f"{number}.{block_format}"
    if layout == "consensus":
        return f"{number:0{_CONSENSUS_WIDTH}}.{block_format}"
    digits = _digits(layout, number)
    if layout == "bucket":
        folders = [digits[start : start + 4] for start in range(0, 16, 4)]
        return "/".join([*folders, f"{digits[16:]}.{block_format}"])
    recent = "/".join([*_threes(digits[:-3]), f"{digits}.{block_format}"])
    return recent if layout == "recent" else f"{STAGING}/{recent}"


def marker_name(block_name: str) -> str:
    """Return the name of a consensus node's mark for a whole block file."""
    return block_name.split(".", 1)[0] + ".mf"


def zip_of(number: int, zip_digits: int = ZIP_DIGITS) -> tuple[str, range]:
    """Return the path of a block's historic zip, and its block numbers. Raises OptionError as `path_in`."""
    digits = _digits("historic", number)
    folders, first = digits[: -zip_digits - 1], digits[-zip_digits - 1]
    name = "/".join([*_threes(folders), f"{first}{'0' * zip_digits}.zip"])
    count = 10**zip_digits
    start = number - number % count
    return name, range(start, start + count)


def member_name(number: int, ending: str) -> str:
    """Return the name of a block in a zip or a tar."""
    return f"{number:0{_WIDTH}}{ending}"


def _digits(layout: BlockLayout, number: int) -> str:
    if number > BLOCK_NUMBER_MAX:
        raise OptionError("layout", f"{layout} for block {number}", f"block numbers up to {BLOCK_NUMBER_MAX}")
    return f"{number:0{_WIDTH}}"


def _threes(digits: str) -> list[str]:
    return [digits[start : start + 3] for start in range(0, len(digits), 3)]


# --- globs --------------------------------------------------------------------------------------------------


def has_glob(path: str) -> bool:
    """Return whether a path contains `*`, `?` or `[`."""
    return _GLOB.search(path) is not None


def split_glob(path: str) -> tuple[str, str]:
    """Split a path into the folder to search, and the pattern below it."""
    parts = path.split("/")
    at = next(index for index, part in enumerate(parts) if has_glob(part))
    root = "/".join(parts[:at])
    return root or ("/" if path.startswith("/") else "."), "/".join(parts[at:])


def matches(pattern: str) -> re.Pattern[str]:
    """Return a regular expression for a glob: `*` and `?` stay in a folder, `**` is any number of folders.

    A glob that fits a folder fits everything in it.

    Raises:
        OptionError: the glob is malformed.
    """
    parts = [part for part in pattern.split("/") if part]
    expression = ""
    for index, part in enumerate(parts):
        is_last = index == len(parts) - 1
        if part == "**":
            expression += "(?s:.*)" if is_last else "(?s:[^/]+/)*"
        else:
            expression += _part(part) + ("" if is_last else "/")
    try:
        return re.compile(rf"{expression}(?s:/.*)?")
    except re.error as error:
        raise OptionError("path", repr(pattern), f"a glob ({error})") from error


def _part(part: str) -> str:
    expression, at = "", 0
    while at < len(part):
        letter = part[at]
        close = part.find("]", at + 2) if letter == "[" else -1
        if letter == "*":
            expression += "[^/]*"
        elif letter == "?":
            expression += "[^/]"
        elif close > 0:
            chosen = re.sub(r"([\\\[\]^&~|])", r"\\\1", part[at + 1 : close])
            expression += "[" + ("^/" + chosen[1:] if chosen.startswith("!") else chosen) + "]"
            at = close
        else:
            expression += re.escape(letter)
        at += 1
    return expression
