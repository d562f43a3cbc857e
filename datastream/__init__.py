"""The data streamer: an append-only stream file, committed atomically and served over TCP.

Complete and usable on its own; knows nothing of blocks, gRPC or Spark. `README.md` beside this file shows the
formats, the commit steps and the TCP protocol.
"""

from datastream.client import BlockingStreamClient, StreamClient, iter_entries
from datastream.errors import DatastreamError
from datastream.layout import BOOKMARK_TYPE, DATA_SIZE_MAX, Committed, Entry, StreamHeader
from datastream.limits import ServerLimits
from datastream.server import StreamServer
from datastream.streamer import DataStreamer

__all__ = [
    "BOOKMARK_TYPE",
    "DATA_SIZE_MAX",
    "BlockingStreamClient",
    "Committed",
    "DataStreamer",
    "DatastreamError",
    "Entry",
    "ServerLimits",
    "StreamClient",
    "StreamHeader",
    "StreamServer",
    "iter_entries",
]
