"""The relay in front of a gRPC client: the outside is a server that wants indexed pseudo-headers.

Pure, as `gateway.transport.relay` is. Blocks of both directions are written anew.
"""

from __future__ import annotations

from gateway.transport.header_blocks import HeaderBlock, HeaderReader, HeaderWriter, header_frames
from gateway.transport.relay import FrameRelay

__all__ = ["ClientRelay"]


class ClientRelay(FrameRelay):
    """The relay in front of a client: the outside is a server that wants indexed pseudo-headers.

    Blocks of both directions are written anew without the dynamic table, so the trailers of an answer can
    wait behind its data.
    """

    def __init__(self) -> None:
        super().__init__(outside_is_client=False)
        self._requests, self._answers = HeaderReader(), HeaderReader()
        self._writer = HeaderWriter()

    def _outside_table_size(self, size: int) -> None:
        self._requests.allow_table(size)

    def _grpc_table_size(self, size: int) -> None:
        self._answers.allow_table(size)

    def _on_grpc_block(self, block: HeaderBlock) -> bytes:
        written = self._rewritten(block, self._requests)
        stream = self._streams.get(block.stream_id)
        if stream is None:
            stream = self._begin(block.stream_id)
            written += self._mend(stream)
            stream.counts_twice = False  # servers count right
        if block.ends_stream:
            self._grpc_ends(stream)
        return written

    def _on_outside_block(self, block: HeaderBlock) -> bytes:
        written = self._rewritten(block, self._answers)
        stream = self._streams.get(block.stream_id)
        if stream is None:
            return written
        if stream.queue:
            stream.trailers, stream.queued_end = written, True
            return b""
        if block.ends_stream:
            self._outside_ends(stream)
        return written

    def _rewritten(self, block: HeaderBlock, reader: HeaderReader) -> bytes:
        fragment = self._writer.write(reader.read(block.fragment))
        return header_frames(block.stream_id, fragment, ends_stream=block.ends_stream)
