"""`sluice restore`: fetches the stream files of a data folder from an archive, checked and durable."""

from __future__ import annotations

import json
from pathlib import Path

import click

from sluice.datastream.check.check import CheckResult, repair_stream
from sluice.gateway.archive.objects import StoreOptions
from sluice.gateway.archive.restore import RestoredStream, Restoring, open_streams
from sluice.gateway.commands.archive_options import store_options
from sluice.gateway.commands.check import check_file, page_bar, print_check, unwound_by_signals
from sluice.gateway.commands.parameter_types import NamedPath
from sluice.gateway.errors import Fatal

__all__ = ["command"]


@click.command("restore", short_help="Fetch a node's stream from an archive.")
@click.argument("url", metavar="URL")
@click.argument("folder", type=NamedPath(file_okay=False, path_type=Path), metavar="DIR")
@click.option(
    "--to-block",
    type=click.IntRange(0, (1 << 64) - 1),
    metavar="N",
    help="End with block N. Default: the last.",
)
@store_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(url: str, folder: Path, to_block: int | None, store: StoreOptions, as_json: bool) -> None:
    """Fetch all of a stream from an archive into DIR: the data folder of a node, or a stream file.

    URL is an archive: s3://BUCKET/PREFIX, gs://…, az://… or file:///FOLDER. DIR must not have a stream. Each
    page is compared with its checksum, each segment with the hash in its name, each block with its root hash
    and its links. DIR gets the stream when all of it is right; until then the work is in DIR/restoring. If
    the command is killed at any moment, run it again: it goes on.
    """
    with unwound_by_signals(), Restoring(folder) as restoring:
        if restoring.is_done:
            restoring.remove_work()
            done = {"folder": str(folder), "restored": True, "streams": []}
            click.echo(json.dumps(done) if as_json else f"{folder}: an earlier run has restored the stream")
            return
        streams = open_streams(url, store)
        with page_bar(quiet=as_json) as progress:
            restored = restoring.fetch(streams, progress, to_block)
        for stream in restored:
            _check(stream, url, quiet=as_json)
        restoring.finish(restored)
    if as_json:
        found = {"folder": str(folder), "restored": True, "streams": [_as_json(one) for one in restored]}
        click.echo(json.dumps(found))
        return
    for stream in restored:
        click.echo(f"{folder / stream.path.name}: {_words(stream)}")


def _check(stream: RestoredStream, url: str, *, quiet: bool) -> None:
    """Check a restored file as `sluice check` does, and give its pages their checksums."""
    result, blocks = check_file(stream.path, quiet=quiet)
    if not result.is_sound:
        if not quiet:
            print_check(result, blocks, [], is_sound=False, repair=False)
        raise Fatal(str(stream.path), got=_first(result), expected=f"a sound stream in {url}")
    repair_stream(stream.path, result)


def _first(result: CheckResult) -> str:
    count = sum(result.counts.values())
    return f"{count} findings, first: {result.findings[0]}"


def _words(stream: RestoredStream) -> str:
    words = f"{stream.total_entries} entries of {stream.segment_count} segments"
    if stream.kept_count:
        words += f", {stream.kept_count} of which were there"
    if stream.last_block is not None:
        words += f"; blocks {stream.first_block} to {stream.last_block}"
    return words


def _as_json(stream: RestoredStream) -> dict[str, object]:
    return {
        "file": stream.path.name,
        "entries": stream.total_entries,
        "segments": stream.segment_count,
        "segments_that_were_there": stream.kept_count,
        "first_block": stream.first_block,
        "last_block": stream.last_block,
    }
