"""Stream files in runs of pages."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from sluice.datastream.errors import EntriesDisagree, StreamFileRefused, WrongMagic
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import HEADER_PAGE_SIZE, PAGE_SIZE, Entry
from sluice.publishers.sources.stream_runs import PageRun, PagesReader, stream_file_in
from tests.datastream.streams import commit, entries, sample_file
from tests.reference_data import needs_stream

ITEMS = tuple((1 + number % 3, bytes([number % 256]) * 90_000) for number in range(40))


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    """A stream of 40 entries on four data pages, of a type and version of its own."""
    path = tmp_path / "datastream.bin"
    with DataStreamer.open(path, stream_type=7, version=2) as streamer:
        commit(streamer, *ITEMS)
    return path


def entries_in(pages: PagesReader, run: PageRun) -> list[Entry]:
    taken = itertools.islice(pages.pages_from(run), run.end_page - run.first_page)
    return list(itertools.chain.from_iterable(taken))


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 9])
def test_runs_together_are_the_stream(stream: Path, parts: int) -> None:
    with PagesReader(stream) as pages:
        runs = pages.plan(parts)
        assert len(runs) == min(parts, 4)
        assert [entry for run in runs for entry in entries_in(pages, run)] == entries(*ITEMS)
        assert pages.header.stream_type == 7


def test_a_run_may_be_read_beyond_its_end(stream: Path) -> None:
    with PagesReader(stream) as pages:
        run = pages.plan(4)[2]
        assert [e for page in pages.pages_from(run) for e in page] == entries(*ITEMS)[run.first_number :]


def test_what_comes_after_opening_is_not_in_it(stream: Path) -> None:
    with DataStreamer.open(stream, stream_type=7) as streamer, PagesReader(stream) as pages:
        commit(streamer, (9, b"new"))
        (run,) = pages.plan(1)
        assert len(entries_in(pages, run)) == 40
        with PagesReader(stream) as later:
            assert len(entries_in(later, later.plan(1)[0])) == 41


def test_an_empty_stream_has_no_runs(tmp_path: Path) -> None:
    DataStreamer.open(tmp_path / "empty.bin").close()
    with PagesReader(tmp_path / "empty.bin") as pages:
        assert pages.plan(3) == []


@needs_stream
def test_the_sample_of_a_network(tmp_path: Path) -> None:
    with PagesReader(sample_file(tmp_path)) as pages:
        found = [entry for run in pages.plan(2) for entry in entries_in(pages, run)]
    assert [entry.number for entry in found] == list(range(13_952))


def test_what_is_no_stream_file_is_refused(tmp_path: Path, stream: Path) -> None:
    short, wrong = tmp_path / "short", tmp_path / "wrong"
    short.write_bytes(b"polygonDATSTREAM")
    wrong.write_bytes(b"x" * HEADER_PAGE_SIZE)
    for path, error in ((short, StreamFileRefused), (wrong, WrongMagic)):
        with pytest.raises(error):
            PagesReader(path)
    with pytest.raises(FileNotFoundError):
        PagesReader(tmp_path / "none")


def test_damage_is_named(stream: Path) -> None:
    with stream.open("r+b") as file:
        file.seek(HEADER_PAGE_SIZE + PAGE_SIZE)
        file.write(b"\x07")
    with PagesReader(stream) as pages:
        with pytest.raises(EntriesDisagree) as caught:
            pages.plan(4)
        assert caught.value.found.startswith("packet type 7 at entry 0, offset 1052672")
        assert caught.value.expected == "packet type 2"
        (run,) = pages.plan(1)
        with pytest.raises(EntriesDisagree) as caught:
            entries_in(pages, run)
        assert caught.value.offset == HEADER_PAGE_SIZE + PAGE_SIZE


def test_an_entry_too_few_is_named(stream: Path) -> None:
    with PagesReader(stream) as pages:
        first, second = pages.plan(2)
        wrong = PageRun(first.first_page, first.end_page, 0, first.end_number + 1)
        with pytest.raises(EntriesDisagree) as caught:
            list(pages.pages_from(wrong))
        assert caught.value.found.startswith(f"entry {second.first_number} at ")
        assert caught.value.expected == f"entry {first.end_number + 1}"


def test_the_file_of_a_node(tmp_path: Path, stream: Path) -> None:
    assert stream_file_in(tmp_path) == stream
    assert stream_file_in(stream) == stream
