"""`sluice check`: checks a stream file, its bookmarks and its blocks, and makes repairs that lose nothing."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from sluice.datastream import DataStreamer
from sluice.datastream.check.check import CheckResult, Severity, check_stream, repair_stream
from sluice.datastream.check.compare import compare_streams
from sluice.datastream.errors import DatastreamError, StreamInUse
from sluice.datastream.layout import Entry
from sluice.gateway.archive.archive_check import ArchiveResult, check_archive
from sluice.gateway.archive.objects import StoreOptions
from sluice.gateway.archive.restore import open_streams
from sluice.gateway.blocks.stream_layout import NATIVE_LAYOUT
from sluice.gateway.commands.archive_options import PathOrUrl, store_options
from sluice.gateway.commands.parameter_types import NamedPath
from sluice.gateway.errors import Fatal
from sluice.gateway.ignored_signals import unless_ignored
from sluice.gateway.store.chain_file import snapshot_if_whole
from sluice.gateway.store.cutting import stream_type_of
from sluice.gateway.store.evidence import BLOCK_FILE_NAME, STREAM_FILE_NAME, is_native
from sluice.gateway.store.pair_repair import find_pair
from sluice.gateway.store.repair import Found, find
from sluice.gateway.store.stream_check import BlockCheck
from sluice.gateway.store.stream_pair import network_reader

__all__ = [
    "check_file",
    "command",
    "native_folder_of",
    "page_bar",
    "print_check",
    "stream_file_of",
    "unwound_by_signals",
]

_SHOWN_PAGES = 10
_MARKS = {
    Severity.DAMAGE: "damage    ",
    Severity.FIXABLE: "fixable   ",
    Severity.UNFINISHED: "unfinished",
    Severity.NOTE: "note      ",
}


@click.command("check", short_help="Check a stream file or an archive: entries, pages, bookmarks, blocks.")
@click.argument("path", type=PathOrUrl(exists=True, path_type=Path), metavar="FILE|DIR|URL")
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
@click.option(
    "--indexes", is_flag=True, help="Of an archive, read only names and indexes: minutes instead of hours."
)
@store_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(
    path: Path | str, repair: bool, against: Path | None, indexes: bool, store: StoreOptions, as_json: bool
) -> None:
    """Check every entry and page of a stream file, its bookmarks in both directions, and its blocks if it has
    any.

    FILE is a stream file, DIR a data folder of `sluice serve`. No server may have the stream open. Without
    --repair the command writes nothing. The exit status is 1 if anything is wrong and not repaired. Work that
    a kill left unfinished is reported but is not wrong: the next opening completes it.

    URL is an archive, such as s3://BUCKET/PREFIX: the command checks the name, index and pages of each object
    and its blocks, and that all go on from one to the next. Nodes may use it meanwhile.
    """
    if isinstance(path, str):
        if repair or against is not None:
            raise click.UsageError("an archive is only checked: leave --repair and --against out")
        _check_archive(path, store, indexes_only=indexes, as_json=as_json)
        return
    if indexes:
        raise click.UsageError(f"--indexes: got {path}, expected the URL of an archive")
    files = _files_of(path)
    if against is not None:
        if repair:
            raise click.UsageError("--against compares and repairs nothing: leave --repair out")
        for file, other in zip(files, _files_of(against), strict=False):
            _compare(file, other, as_json=as_json)
        return
    are_sound = [_is_sound(file, repair=repair, as_json=as_json, weighs=file is files[-1]) for file in files]
    if not all(are_sound):
        sys.exit(1)


def _check_archive(url: str, store: StoreOptions, *, indexes_only: bool, as_json: bool) -> None:
    """Check an archive, print what was found, and end with status 1 if something is wrong."""
    with unwound_by_signals(), page_bar(quiet=as_json) as show:
        results = list(check_archive(open_streams(url, store), show, indexes_only=indexes_only))
    for result in results:
        found = result.found
        if as_json:
            click.echo(json.dumps(_archive_as_json(result, indexes_only=indexes_only)))
            continue
        _print_findings(found)
        words = f"{result.segment_count} segments, {_counted(found, result.block_count)}"
        state = "sound" if found.is_sound else "not sound"
        read = "; only the indexes were read" if indexes_only else ""
        click.echo(f"{result.url}: {words}, {result.object_bytes} bytes: {state}{read}")
    if not all(result.found.is_sound for result in results):
        sys.exit(1)


def _archive_as_json(result: ArchiveResult, *, indexes_only: bool) -> dict[str, object]:
    return {
        "archive": result.url,
        "indexes_only": indexes_only,
        **_found_as_json(result.found),
        "segments": result.segment_count,
        "segments_without_index": result.lost_segments,
        "compressed_bytes": result.object_bytes,
        "blocks": result.block_count,
        "last_block": result.last_block,
    }


def _files_of(path: Path) -> list[Path]:
    """Return the stream files in a data folder, two in the native layout; or the file itself."""
    native = native_folder_of(path) if path.is_dir() else None
    if native is not None:
        return [native / STREAM_FILE_NAME, native / BLOCK_FILE_NAME]
    return [stream_file_of(path)]


def _is_sound(file: Path, *, repair: bool, as_json: bool, weighs: bool) -> bool:
    """Check a file, repair it if wanted, and print what was found; return whether it is sound now.

    `weighs`: look for evidence that a header went back, too.
    """
    with unwound_by_signals():
        result, blocks = check_file(file, quiet=as_json, weighs=weighs)
        repaired = repair_stream(file, result) if repair else []
        if repaired:
            again, blocks = check_file(file, quiet=as_json, weighs=weighs)
            is_sound = again.is_sound
        else:
            is_sound = result.is_sound
    if as_json:
        click.echo(json.dumps(_as_json(result, blocks, repaired, is_sound=is_sound)))
    else:
        print_check(result, blocks, repaired, is_sound=is_sound, repair=repair)
    return is_sound


@contextmanager
def unwound_by_signals() -> Iterator[None]:
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


def native_folder_of(path: Path) -> Path | None:
    """Return the folder of a native chain, if a path is this folder or one of the two files in it.

    Raises:
        Fatal: one of the files is missing.
    """
    folder = path if path.is_dir() else path.parent
    if path != folder and path.name not in (STREAM_FILE_NAME, BLOCK_FILE_NAME):
        return None
    if path.name == BLOCK_FILE_NAME and not (folder / STREAM_FILE_NAME).exists():
        snapshot = snapshot_if_whole(folder)
        if snapshot is None or snapshot.layout != NATIVE_LAYOUT:
            return None  # any stream may have this name
    elif not is_native(folder):
        return None
    for file in (folder / STREAM_FILE_NAME, folder / BLOCK_FILE_NAME):
        if not file.is_file():
            expected = "the other file of the native chain; a peer or a backup has both"
            raise Fatal(str(file), got="no such file", expected=expected)
    return folder


def stream_file_of(path: Path) -> Path:
    """Return the stream file in a data folder, or the file itself."""
    file = path / STREAM_FILE_NAME if path.is_dir() else path
    if not file.is_file():
        is_folder = path.is_dir()
        got = f"a folder without {STREAM_FILE_NAME}" if is_folder else "neither a file nor a folder"
        raise Fatal(str(path), got=got, expected="a stream file in it" if is_folder else "a stream file")
    return file


def _compare(file: Path, other: Path, *, as_json: bool) -> None:
    with page_bar(quiet=as_json) as show:
        comparison = compare_streams(file, other, progress=partial(show, "comparing"))
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
def page_bar(*, quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar on a terminal. The function takes (what is done, pages done, pages in all)."""
    console = Console(stderr=True)
    text, unit = TextColumn("{task.description}"), TextColumn("pages")
    columns = (text, BarColumn(), MofNCompleteColumn(), unit, TimeRemainingColumn())
    shown = console.is_terminal and not quiet
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                for task in tasks.values():
                    bar.remove_task(task)
                tasks.clear()
                tasks[what] = bar.add_task(what)
            bar.update(tasks[what], completed=done, total=total)

        yield show


def check_file(file: Path, *, quiet: bool, weighs: bool = True) -> tuple[CheckResult, BlockCheck]:
    """Check a stream file and its blocks, with a bar unless `quiet`.

    `weighs`: look for evidence that a header went back, too.
    """
    wrong_blocks: list[tuple[str, int, int]] = []
    network_path = file.with_name(STREAM_FILE_NAME)
    names = (STREAM_FILE_NAME, BLOCK_FILE_NAME)
    is_pair = file.name in names and all(file.with_name(name).exists() for name in names)
    found = _find_pair(file.parent) if is_pair and weighs else None
    whole = None if found is None or found.network is None else found.network.whole_entries
    can_read_blocks = True
    with contextlib.ExitStack() as stack:
        network = None
        if is_pair and file.name == BLOCK_FILE_NAME:
            try:
                stream_type = stream_type_of(network_path)
                network = DataStreamer.open(network_path, stream_type=stream_type, read_only=True)
                stack.enter_context(network)
            except StreamInUse:
                raise
            except DatastreamError:  # reported of that file, and below
                can_read_blocks = False
        blocks = BlockCheck(
            lambda what, offset, number: wrong_blocks.append((what, offset, number)),
            None if network is None else network_reader(network),
        )
        show = stack.enter_context(page_bar(quiet=quiet))
        visitor = None
        if can_read_blocks:
            visitor = blocks if whole is None or file.name != BLOCK_FILE_NAME else _Whole(blocks, whole)
        result = check_stream(file, visitor=visitor, progress=partial(show, f"checking {file.name}"))
    blocks.end()
    if whole is not None and file.name == BLOCK_FILE_NAME and whole < result.entry_count:
        what = f"blocks that were not committed in {STREAM_FILE_NAME}, too; opening cuts them off"
        result.add(Severity.UNFINISHED, what, number=whole)
    for what, offset, number in wrong_blocks:
        result.add(Severity.DAMAGE, what, offset=offset, number=number)
    if result.header is not None and weighs and not is_pair and not result.counts[Severity.DAMAGE]:
        found = find(file, result.header.stream_type)
    if found is not None and found.damage is None:
        refusal = found.refusal
        if refusal is not None:
            result.add(Severity.DAMAGE, f"a start refuses the stream (sluice repair): {refusal}")
    return result, blocks


@dataclass(frozen=True, slots=True)
class _Whole:
    """Shows a check the first entries only."""

    check: BlockCheck
    count: int

    def entry(self, entry: Entry, offset: int) -> None:
        if entry.number < self.count:
            self.check.entry(entry, offset)

    def gap(self) -> None:
        self.check.gap()


def _find_pair(folder: Path) -> Found | None:
    """Examine a native chain; None: a header page is damaged, which is reported of that file."""
    try:
        return find_pair(folder, stream_type_of(folder / BLOCK_FILE_NAME))
    except StreamInUse:
        raise
    except DatastreamError:
        return None


def _as_json(
    result: CheckResult, blocks: BlockCheck, repaired: list[str], *, is_sound: bool
) -> dict[str, object]:
    return {
        "file": str(result.path),
        **_found_as_json(result),
        "sound": is_sound,
        "pages_without_checksum": len(result.unsummed_pages),
        "blocks": blocks.block_count if _holds_blocks(blocks) else None,
        "last_block": blocks.last_number,
        "repaired": repaired,
    }


def _found_as_json(result: CheckResult) -> dict[str, object]:
    header = result.header
    return {
        "sound": result.is_sound,
        "entries": result.entry_count,
        "bookmarks": result.bookmark_count,
        "pages": result.page_count,
        "bad_pages": result.bad_pages,
        "total_length": header.total_length if header else None,
        "total_entries": header.total_entries if header else None,
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
    }


def _holds_blocks(blocks: BlockCheck) -> bool:
    return blocks.is_block_stream and blocks.block_count > 0


def _print_findings(result: CheckResult) -> None:
    for finding in result.findings:
        click.echo(f"{_MARKS[finding.severity]}  {finding}")
    hidden = sum(result.counts.values()) - len(result.findings)
    if hidden:
        click.echo(f"and {hidden} more")


def _counted(result: CheckResult, block_count: int) -> str:
    words = f"{result.entry_count} entries, {result.bookmark_count} bookmarks, {result.page_count} pages"
    return f"{words}, {block_count} blocks" if block_count else words


def print_check(
    result: CheckResult, blocks: BlockCheck, repaired: list[str], *, is_sound: bool, repair: bool
) -> None:
    """Print what a check found, and what to do about it."""
    _print_findings(result)
    for line in repaired:
        click.echo(f"repaired: {line}")
    counted = _counted(result, blocks.block_count if _holds_blocks(blocks) else 0)
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
