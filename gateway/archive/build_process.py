"""A process that builds the objects of segments, so that the node's threads do not wait for it.

    python -m sluice.gateway.archive.build_process SOCKET_FD NICENESS

It takes segments from its socket: JSON with `first_page`, `first_number` and `block_begin`, and two
descriptors, to read the pages from and to write the object to. It answers with JSON: the digest of all pages
and that of each, or what is wrong. It ends with its socket.

A page is walked, and its part of the index made, with Python's lock held.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import IO, Any, Final

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
from sluice.gateway.logs import log_as_the_node, log_form_for_child

__all__ = ["Abandoned", "BuildProcess", "main"]

LOOK_SECONDS: Final = 0.1
"""Time between two looks whether the building was abandoned."""
_MESSAGE_SIZE_MAX: Final = 1 << 16


class Abandoned(Exception):
    """Nobody wants the segment any more."""


class BuildProcess:
    """The process, from the first segment on. To start one takes as long as to build half a segment."""

    def __init__(self) -> None:
        self._niceness: int | None = None
        self._socket: socket.socket | None = None
        self._end: Callable[[], object] = lambda: None

    def build(
        self,
        stream_fd: int,
        first_page: int,
        first_number: int,
        block_begin: int | None,
        file: IO[bytes],
        is_abandoned: Callable[[], bool] = lambda: False,
        niceness: int = 0,
    ) -> SegmentObject:
        """Build a segment's object, into a file.

        Args:
            stream_fd: of the stream file.
            first_number: the number of the first entry.
            block_begin: as in `SegmentBuilder`.
            file: empty, to be written.
            is_abandoned: looked at again and again.
            niceness: of the process, more than that of the thread that starts it.

        Raises:
            Abandoned: it was.
            OSError: the process failed; the text says why.
        """
        if self._socket is None or niceness != self._niceness:  # nobody but root lowers a niceness
            self._start(niceness)
        assert self._socket is not None
        wanted = {"first_page": first_page, "first_number": first_number, "block_begin": block_begin}
        # For reading: while the descriptor itself lives on in a process, nobody else may open the stream.
        reading_fd = os.open(f"/proc/self/fd/{stream_fd}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            socket.send_fds(self._socket, [json.dumps(wanted).encode()], [reading_fd, file.fileno()])
            said = self._answer(self._socket, is_abandoned)
        except Abandoned:
            self.close()
            raise
        except OSError as error:
            said = {"fault": f"the process of it: {error}"}
        finally:
            os.close(reading_fd)
        if "fault" in said:
            self.close()
            raise OSError(f"segment of page {first_page} cannot be built: {said['fault']}")
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        name = SegmentName(first_page, bytes.fromhex(said["digest"]))
        where = "the segment as it was built"
        index_bytes = index_size(os.pread(file.fileno(), TRAILER_SIZE, size - TRAILER_SIZE), where)
        tail = os.pread(file.fileno(), index_bytes, size - index_bytes)
        segment = read_index(name, tail, size, where)
        segment.digests = [bytes.fromhex(digest) for digest in said["pages"]]
        return segment

    def close(self) -> None:
        """End the process, also in the middle of a segment."""
        self._socket = None
        self._end()

    def _start(self, niceness: int) -> None:
        self.close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno()), str(niceness)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=os.environ
                | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
                | log_form_for_child(),
                start_new_session=True,  # Ctrl-C is for the node, which ends this one
            )
        self._end = weakref.finalize(self, _end, process, ours)
        ours.settimeout(LOOK_SECONDS)
        self._socket, self._niceness = ours, niceness

    @staticmethod
    def _answer(ours: socket.socket, is_abandoned: Callable[[], bool]) -> dict[str, Any]:
        while True:
            try:
                answer = ours.recv(_MESSAGE_SIZE_MAX)
            except TimeoutError:
                if is_abandoned():
                    raise Abandoned from None
            else:
                said: dict[str, Any] = json.loads(answer) if answer else {"fault": "the process of it ended"}
                return said


def _end(process: subprocess.Popen[bytes], ours: socket.socket) -> None:
    ours.close()
    process.kill()
    process.wait()


def _built(wanted: dict[str, Any], stream_fd: int, object_fd: int) -> dict[str, Any]:
    builder = SegmentBuilder(wanted["first_page"], wanted["block_begin"])
    number = wanted["first_number"]
    for page_number in range(builder.first_page, builder.first_page + SEGMENT_PAGES):
        page = os.pread(stream_fd, PAGE_SIZE, page_start(page_number))
        try:
            number = builder.add(page, number)
        except PageFault as fault:
            return {"fault": f"data page {page_number}: {fault}"}
    segment, data = builder.finish()
    with os.fdopen(object_fd, "wb", closefd=False) as file:
        file.write(data)
    return {"digest": segment.name.digest.hex(), "pages": [digest.hex() for digest in segment.digests]}


def main(socket_fd: str, niceness: str) -> None:
    """Build the objects in this process."""
    log_as_the_node(os.environ)
    os.nice(int(niceness))
    with socket.socket(fileno=int(socket_fd)) as theirs:
        while True:
            message, descriptors, _, _ = socket.recv_fds(theirs, _MESSAGE_SIZE_MAX, 2)
            if not message:
                return
            try:
                said = _built(json.loads(message), *descriptors)
            except Exception as error:  # the node says it, and tries again with another process
                said = {"fault": f"{type(error).__name__}: {error}"}
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            with contextlib.suppress(BrokenPipeError):  # the node was killed
                theirs.send(json.dumps(said).encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
