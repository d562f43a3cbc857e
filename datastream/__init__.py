"""The data streamer: an append-only stream file, committed atomically and served over TCP.

Complete and usable on its own; knows nothing of blocks, gRPC or Spark. `README.md` beside this file shows the
formats, the commit steps and the TCP protocol.
"""

from datastream.client.blocking_client import BlockingStreamClient, iter_entries
from datastream.client.blocking_follower import BlockingStreamFollower
from datastream.client.client import StreamClient
from datastream.client.follower import StreamFollower
from datastream.errors import DatastreamError, PageDamaged
from datastream.events.events import Generation, decode_event, encode_event, entry_type_of
from datastream.file.streamer import DataStreamer
from datastream.layout import BOOKMARK_TYPE, DATA_SIZE_MAX, Committed, Entry, StreamHeader
from datastream.limits import FollowLimits, ServerLimits
from datastream.server.relay import Relay
from datastream.server.server import StreamServer

__all__ = [
    "BOOKMARK_TYPE",
    "DATA_SIZE_MAX",
    "BlockingStreamClient",
    "BlockingStreamFollower",
    "Committed",
    "DataStreamer",
    "DatastreamError",
    "Entry",
    "FollowLimits",
    "Generation",
    "PageDamaged",
    "Relay",
    "ServerLimits",
    "StreamClient",
    "StreamFollower",
    "StreamHeader",
    "StreamServer",
    "decode_event",
    "encode_event",
    "entry_type_of",
    "iter_entries",
]
