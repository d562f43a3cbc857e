"""Mutated stream files: opening refuses with one of our errors, or yields a consistent stream.

    python -m tests.datastream.fuzz_opener --cases 100000 [--seed TEXT]

Each case changes, cuts or lengthens a sound file, and opens it with its index, without one, or read-only.
Nothing reads past `total_length` or hangs, no other error comes out, and a refused or read-only file is
unchanged.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sluice.datastream.check.check import check_stream
from sluice.datastream.errors import BookmarkNotFound, PageDamaged, StreamFileRefused
from sluice.datastream.file.fingerprint import SAMPLE_SIZE
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import HEADER_PAGE_SIZE, PAGE_SIZE, Entry, page_end, page_start
from tests.datastream.fake_disk import MemoryDisk
from tests.datastream.streams import bookmark, commit, operation

__all__ = ["Mutation", "check_case", "main"]

HOW = ("index", "no index", "read only")


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of a file."""

    kind: str
    """"set", "cut" or "extend"."""
    offset: int
    data: bytes = b""

    def apply(self, image: bytearray) -> None:
        if self.kind == "cut":
            del image[self.offset :]
        elif self.kind == "extend":
            image.extend(self.data)
        else:
            end = min(len(image), self.offset + len(self.data))
            image[self.offset : end] = self.data[: max(0, end - self.offset)]


class WatchedDisk(MemoryDisk):
    """Records how far it was read, and ends a case with far too many reads."""

    reads = 0

    def pread(self, size: int, offset: int) -> bytes:
        self.reads += 1
        assert self.reads < 10_000, "the opener reads for ever"
        return super().pread(size, offset)


def template(folder: Path) -> bytes:
    """Make a sound stream of two used pages in `folder`; return its file."""
    path = folder / "s.bin"
    with DataStreamer.open(path, initial_pages=3) as streamer:
        for number in range(4):
            commit(streamer, *operation(number))
        commit(streamer, (1, b"x" * 1_047_000), bookmark(9), (2, b"y" * 2000), *operation(5))
    return path.read_bytes()


def check_case(folder: Path, image: bytes, mutations: Sequence[Mutation], how: str) -> str:
    """Open one mutated file and use it; return "opened" or the name of the refusal.

    Args:
        folder: holds the template's index in `s.db`; a case works on a copy.
        image: the template's file.
        mutations: the changes.
        how: one of HOW.
    """
    case = folder / "case"
    shutil.rmtree(case, ignore_errors=True)
    case.mkdir()
    if how != "no index":
        shutil.copytree(folder / "s.db", case / "s.db")
    content = bytearray(image)
    for mutation in mutations:
        mutation.apply(content)
    disk = WatchedDisk(cache=bytearray(content), _durable=bytearray(content))
    try:
        streamer = DataStreamer.open(case / "s.bin", disk=disk, read_only=how == "read only")
    except StreamFileRefused as refusal:
        assert disk.cache == content, "a refused file was changed"
        return type(refusal).__name__
    with streamer:
        try:
            found = list(streamer.read_entries(0))
        except PageDamaged as damage:
            page = slice(page_start(damage.page_number), page_end(damage.page_number))
            assert content[page] != image[page], "a sound page was refused"
            return "PageDamaged"
        # If the bytes that identify the stream are gone, and no other full page tells, the index and its sums
        # are made anew.
        samples = slice(0, HEADER_PAGE_SIZE + SAMPLE_SIZE), slice(page_start(1), None)
        if how != "no index" and all(content[sample] == image[sample] for sample in samples):
            full = slice(HEADER_PAGE_SIZE, page_start(streamer.sums.full_count))
            assert content[full] == image[full], "a damaged page was read"
        _use(streamer, disk, how, found)
    if how == "read only":
        assert disk.cache == content, "a file opened for reading only was changed"
    return "opened"


def _use(streamer: DataStreamer, disk: WatchedDisk, how: str, found: Sequence[Entry]) -> None:
    """Look at everything that was read, ask for bookmarks, and append."""
    total_length, total_entries = streamer.committed
    assert HEADER_PAGE_SIZE <= total_length <= disk.size()
    assert [entry.number for entry in found] == list(range(total_entries))
    assert sum(17 + len(entry.data) for entry in found) <= total_length - HEADER_PAGE_SIZE
    for number in (0, 1, 5, 9):
        try:
            place = streamer.get_bookmark(bookmark(number)[1])
        except BookmarkNotFound:
            continue
        assert found[place].data == bookmark(number)[1]
    if how != "read only":
        number = commit(streamer, bookmark(77), (1, b"after"))[0]
        assert number == total_entries
        assert streamer.get_bookmark(bookmark(77)[1]) == number
        assert disk.size() % PAGE_SIZE == HEADER_PAGE_SIZE


def random_mutations(rng: random.Random, size: int) -> list[Mutation]:
    """Return one to four changes, most of them to header, heads and page ends."""
    places = (16, 38, 46, HEADER_PAGE_SIZE, HEADER_PAGE_SIZE + PAGE_SIZE, HEADER_PAGE_SIZE + PAGE_SIZE - 100)
    found = []
    for _ in range(rng.randrange(1, 5)):
        kind = rng.choices(("set", "cut", "extend"), (12, 1, 1))[0]
        offset = rng.choice(places) + rng.randrange(120) if rng.random() < 0.8 else rng.randrange(size)
        if kind == "cut" and rng.random() < 0.5:
            offset = HEADER_PAGE_SIZE + rng.randrange(4) * PAGE_SIZE
        data = rng.randbytes(rng.choice((1, 1, 2, 4, 8, 17)))
        if kind == "extend" and rng.random() < 0.5:
            data = bytes(PAGE_SIZE)
        found.append(Mutation(kind, offset, data))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run many cases; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.datastream.fuzz_opener")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", default="opener")
    options = parser.parse_args(arguments)
    counts: dict[str, int] = {}
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        image = template(folder)
        assert check_stream(folder / "s.bin").is_sound
        for case in range(options.cases):
            rng = random.Random(f"{options.seed} {case}")
            mutations = random_mutations(rng, len(image))
            how = rng.choice(HOW)
            try:
                outcome = check_case(folder, image, mutations, how)
            except Exception as error:
                sys.stderr.write(f"case {case} of seed {options.seed!r}, {how}: {mutations}: {error!r}\n")
                raise
            counts[outcome] = counts.get(outcome, 0) + 1
    seconds = time.monotonic() - begin
    sys.stdout.write(f"{options.cases} cases in {seconds:.0f} s: {dict(sorted(counts.items()))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
