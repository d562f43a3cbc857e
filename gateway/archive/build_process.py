"""A process that builds the object of a segment, so that the node's threads do not wait for it.

    python -m sluice.gateway.archive.build_process STREAM_FD OBJECT_FD FIRST_PAGE FIRST_ENTRY
        BLOCK_BEGIN NICENESS

It reads the pages from one descriptor, writes the object to the other, and prints JSON: the digest of all
pages and that of each; or what is wrong with a page. Python walks a page of small entries in 5 ms, with its
lock held.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import IO, Final

from sluice.datastream.file.pages import PageFault
from sluice.datastream.file.remote_pages import SEGMENT_PAGES
from sluice.datastream.layout import PAGE_SIZE, page_start
from sluice.gateway.archive.segment import (
    TRAILER_SIZE,
    SegmentBuilder,
    SegmentName,
    SegmentObject,
    index_size,
    read_index,
)

__all__ = ["Abandoned", "build", "main"]

LOOK_SECONDS: Final = 0.1
"""Time between two looks whether the building was abandoned."""


class Abandoned(Exception):
    """Nobody wants the segment any more."""


def build(
    stream_fd: int,
    first_page: int,
    first_number: int,
    block_begin: int | None,
    file: IO[bytes],
    is_abandoned: Callable[[], bool] = lambda: False,
    niceness: int = 0,
) -> SegmentObject:
    """Build a segment's object in a process of its own, into a file.

    Args:
        stream_fd: of the stream file.
        first_number: the number of the first entry.
        block_begin: as in `SegmentBuilder`.
        file: empty, to be written.
        is_abandoned: looked at again and again.
        niceness: of the process, more than that of the calling thread.

    Raises:
        Abandoned: it was.
        OSError: the process failed; the text says why.
    """
    # For reading: while the descriptor itself lives on in a process, nobody else may open the stream.
    reading_fd = os.open(f"/proc/self/fd/{stream_fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        words = map(str, (reading_fd, file.fileno(), first_page, first_number, block_begin, niceness))
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(reading_fd, file.fileno()),
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    finally:
        os.close(reading_fd)
    with process:
        while True:
            try:
                printed, complaint = process.communicate(timeout=LOOK_SECONDS)
                break
            except subprocess.TimeoutExpired:
                if is_abandoned():
                    process.kill()
                    raise Abandoned from None
    if process.returncode != 0:
        lines = complaint.decode(errors="replace").strip().splitlines()
        what = lines[-1] if lines else f"exit status {process.returncode}"
        raise OSError(f"segment of page {first_page} cannot be built: {what}")
    said = json.loads(printed)
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    name = SegmentName(first_page, bytes.fromhex(said["digest"]))
    where = "the segment as it was built"
    index_bytes = index_size(os.pread(file.fileno(), TRAILER_SIZE, size - TRAILER_SIZE), where)
    tail = os.pread(file.fileno(), index_bytes, size - index_bytes)
    segment = read_index(name, tail, size, where)
    segment.digests = [bytes.fromhex(digest) for digest in said["pages"]]
    return segment


def main(
    stream: str, target: str, first_page: str, first_number: str, block_begin: str, niceness: str
) -> None:
    """Build the object in this process."""
    os.nice(int(niceness))
    builder = SegmentBuilder(int(first_page), None if block_begin == "None" else int(block_begin))
    number = int(first_number)
    for page_number in range(builder.first_page, builder.first_page + SEGMENT_PAGES):
        page = os.pread(int(stream), PAGE_SIZE, page_start(page_number))
        try:
            number = builder.add(page, number)
        except PageFault as fault:
            sys.exit(f"data page {page_number}: {fault}")
    segment, data = builder.finish()
    with os.fdopen(int(target), "wb", closefd=False) as file:
        file.write(data)
    said = {"digest": segment.name.digest.hex(), "pages": [digest.hex() for digest in segment.digests]}
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
