"""`sluice check`: checks a stream file, its bookmarks and its blocks, and makes repairs that lose nothing."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sluice.datastream import DataStreamer
from sluice.datastream.check.check import CheckResult, Severity, check_stream, repair_stream
from sluice.datastream.check.compare import compare_streams
from sluice.gateway.commands.parameter_types import NamedPath
from sluice.gateway.errors import Fatal
from sluice.gateway.ignored_signals import unless_ignored
from sluice.gateway.store.evidence import BLOCK_FILE_NAME
from sluice.gateway.store.repair import find
from sluice.gateway.store.stream_check import BlockCheck
from sluice.gateway.store.stream_pair import CUT_BLOCKS_DEFAULT, network_reader

__all__ = ["command", "refuse_native", "stream_file_of"]

_STREAM_FILE_NAME = "datastream.bin"
_SHOWN_PAGES = 10
_MARKS = {
    Severity.DAMAGE: "damage    ",
    Severity.FIXABLE: "fixable   ",
    Severity.UNFINISHED: "unfinished",
    Severity.NOTE: "note      ",
}


@click.command("check", short_help="Check a stream file: entries, pages, bookmarks, blocks.")
@click.argument("path", type=NamedPath(exists=True, path_type=Path), metavar="FILE|DIR")
@click.option(
    "--repair",
    is_flag=True,
    help="Make the repairs that lose nothing committed: rebuild the index of bookmarks and missing "
    "checksums, zero the tail.",
)
@click.option(
    "--against",
    type=NamedPath(exists=True, path_type=Path),
    metavar="FILE|DIR",
    help="Only compare with another stream: the data pages must have the same bytes up to the end of the "
    "shorter one. Servers may have both open.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(path: Path, repair: bool, against: Path | None, as_json: bool) -> None:
    """Check every entry and page of a stream file, its bookmarks in both directions, and its blocks if it has
    any.

    FILE is a stream file, DIR a data folder of `sluice serve`. No server may have the stream open. Without
    --repair the command writes nothing. The exit status is 1 if anything is wrong and not repaired. Work that
    a kill left unfinished is reported but is not wrong: the next opening completes it.
    """
    files = _files_of(path)
    if against is not None:
        if repair:
            raise click.UsageError("--against compares and repairs nothing: leave --repair out")
        for file, other in zip(files, _files_of(against), strict=False):
            _compare(file, other, as_json=as_json)
        return
    are_sound = [_is_sound(file, repair=repair, as_json=as_json) for file in files]
    if not all(are_sound):
        sys.exit(1)


def _files_of(path: Path) -> list[Path]:
    """Return the stream files in a data folder, two in the native layout; or the file itself."""
    file = stream_file_of(path)
    blocks = file.with_name(BLOCK_FILE_NAME)
    return [file, blocks] if path.is_dir() and blocks.exists() else [file]


def _is_sound(file: Path, *, repair: bool, as_json: bool) -> bool:
    """Check a file, repair it if wanted, and print what was found; return whether it is sound now."""
    with _unwound_by_signals():
        result, blocks = _check(file, quiet=as_json)
        repaired = repair_stream(file, result) if repair else []
        if repaired:
            again, blocks = _check(file, quiet=as_json)
            is_sound = again.is_sound
        else:
            is_sound = result.is_sound
    if as_json:
        click.echo(json.dumps(_as_json(result, blocks, repaired, is_sound=is_sound)))
    else:
        _print(result, blocks, repaired, is_sound=is_sound, repair=repair)
    return is_sound


@contextmanager
def _unwound_by_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP act like Ctrl-C, so that the temporary copy of the index is removed."""
    before = {
        number: signal.signal(number, signal.default_int_handler)
        for number in unless_ignored(signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_native(file: Path) -> bool:
    """Return whether a file is one of the two of a native chain."""
    return file.name in (_STREAM_FILE_NAME, BLOCK_FILE_NAME) and file.with_name(BLOCK_FILE_NAME).exists()


def refuse_native(file: Path) -> None:
    """Raise Fatal for a file of a native chain, which this command would take apart."""
    if _is_native(file):
        expected = f"a stream file without {BLOCK_FILE_NAME} beside it"
        raise Fatal(str(file), got="one of the two files of a native chain", expected=expected)


def stream_file_of(path: Path) -> Path:
    """Return the stream file in a data folder, or the file itself."""
    file = path / _STREAM_FILE_NAME if path.is_dir() else path
    if not file.is_file():
        is_folder = path.is_dir()
        got = f"a folder without {_STREAM_FILE_NAME}" if is_folder else "neither a file nor a folder"
        raise Fatal(str(path), got=got, expected="a stream file in it" if is_folder else "a stream file")
    return file


def _compare(file: Path, other: Path, *, as_json: bool) -> None:
    with _bar("comparing", quiet=as_json) as progress:
        comparison = compare_streams(file, other, progress=progress)
    difference = comparison.difference
    lengths = [header.total_entries for header in comparison.headers]
    if as_json:
        found = {
            "file": str(file),
            "other": str(other),
            "equal": comparison.is_equal,
            "compared_length": comparison.compared_length,
            "total_entries": lengths,
            "difference": None
            if difference is None
            else {
                "offset": difference.offset,
                "entry": difference.entry_number,
                "what": difference.what,
            },
        }
        click.echo(json.dumps(found))
    elif difference is None:
        ahead = abs(lengths[0] - lengths[1])
        longer = file if lengths[0] > lengths[1] else other
        rest = f"; {longer} has {ahead} entries more" if ahead else ""
        click.echo(f"{file} and {other}: the same {min(lengths)} entries, byte for byte{rest}")
    else:
        click.echo(f"{file} and {other} differ: {difference}")
    if difference is not None:
        sys.exit(1)


@contextmanager
def _bar(what: str, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """The function takes (done, total)."""
    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn("pages"))
    shown = console.is_terminal and not quiet
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=not shown) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _check(file: Path, *, quiet: bool) -> tuple[CheckResult, BlockCheck]:
    wrong_blocks: list[tuple[str, int, int]] = []
    network_path = file.with_name(_STREAM_FILE_NAME)
    with contextlib.ExitStack() as stack:
        network = None
        if file.name == BLOCK_FILE_NAME and network_path.exists():
            network = stack.enter_context(DataStreamer.open(network_path, read_only=True))
        blocks = BlockCheck(
            lambda what, offset, number: wrong_blocks.append((what, offset, number)),
            None if network is None else network_reader(network),
            0 if network is None else network.committed.total_entries,
        )
        progress = stack.enter_context(_bar("checking", quiet=quiet))
        result = check_stream(file, visitor=blocks, progress=progress)
    blocks.end()
    for what, offset, number in wrong_blocks:
        result.add(Severity.DAMAGE, what, offset=offset, number=number)
    if blocks.uncommitted_count:
        is_of_crash = blocks.uncommitted_count <= CUT_BLOCKS_DEFAULT
        what = f"{blocks.uncommitted_count} blocks at the end are in this file only"
        result.add(Severity.UNFINISHED if is_of_crash else Severity.DAMAGE, what)
    if result.header is not None and not result.counts[Severity.DAMAGE] and not _is_native(file):
        refusal = find(file, result.header.stream_type).refusal
        if refusal is not None:
            result.add(Severity.DAMAGE, f"a start refuses the stream (sluice repair): {refusal}")
    return result, blocks


def _as_json(
    result: CheckResult, blocks: BlockCheck, repaired: list[str], *, is_sound: bool
) -> dict[str, object]:
    header = result.header
    return {
        "file": str(result.path),
        "sound": is_sound,
        "entries": result.entry_count,
        "bookmarks": result.bookmark_count,
        "pages": result.page_count,
        "bad_pages": result.bad_pages,
        "pages_without_checksum": len(result.unsummed_pages),
        "total_length": header.total_length if header else None,
        "total_entries": header.total_entries if header else None,
        "blocks": blocks.block_count if _holds_blocks(blocks) else None,
        "last_block": blocks.last_number,
        "counts": {severity.value: count for severity, count in result.counts.items()},
        "findings": [
            {
                "severity": finding.severity.value,
                "what": finding.what,
                "offset": finding.offset,
                "entry": finding.number,
            }
            for finding in result.findings
        ],
        "repaired": repaired,
    }


def _holds_blocks(blocks: BlockCheck) -> bool:
    return blocks.is_block_stream and blocks.block_count > 0


def _print(
    result: CheckResult, blocks: BlockCheck, repaired: list[str], *, is_sound: bool, repair: bool
) -> None:
    for finding in result.findings:
        click.echo(f"{_MARKS[finding.severity]}  {finding}")
    hidden = sum(result.counts.values()) - len(result.findings)
    if hidden:
        click.echo(f"and {hidden} more")
    for line in repaired:
        click.echo(f"repaired: {line}")
    counted = f"{result.entry_count} entries, {result.bookmark_count} bookmarks, {result.page_count} pages"
    if _holds_blocks(blocks):
        counted += f", {blocks.block_count} blocks"
    click.echo(f"{result.path}: {counted}: {'sound' if is_sound else 'not sound'}")
    if not is_sound and not repair and not result.counts[Severity.DAMAGE]:
        click.echo("sluice check --repair repairs all of this.")
    elif is_sound and not repair and result.counts[Severity.UNFINISHED]:
        click.echo("The next start of the node completes the unfinished work. Nothing is lost.")
    elif repair and result.counts[Severity.DAMAGE]:
        click.echo(
            "Nothing was repaired: committed bytes are damaged. sluice repair shows the choices; or copy "
            "the file from another node."
        )
    if result.bad_pages:
        pages = ", ".join(map(str, result.bad_pages[:_SHOWN_PAGES]))
        more = (
            f" and {len(result.bad_pages) - _SHOWN_PAGES} more"
            if len(result.bad_pages) > _SHOWN_PAGES
            else ""
        )
        click.echo(
            f"Damaged pages: {pages}{more}. A node heals them from a peer that has their blocks: --peer."
        )
