"""The data streamer: an append-only stream file, committed atomically and served over TCP.

Complete and usable on its own; knows nothing of blocks, gRPC or Spark. `README.md` beside this file shows the
formats, the commit steps and the TCP protocol.
"""

from datastream.blocking_client import BlockingStreamClient, iter_entries
from datastream.blocking_follower import BlockingStreamFollower
from datastream.client import StreamClient
from datastream.errors import DatastreamError, PageDamaged
from datastream.events import Generation, decode_event, encode_event, entry_type_of
from datastream.follower import StreamFollower
from datastream.layout import BOOKMARK_TYPE, DATA_SIZE_MAX, Committed, Entry, StreamHeader
from datastream.limits import FollowLimits, ServerLimits
from datastream.relay import Relay
from datastream.server import StreamServer
from datastream.streamer import DataStreamer

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
