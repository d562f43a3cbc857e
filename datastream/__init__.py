"""The data streamer: an append-only stream file, committed atomically and served over TCP.

Complete and usable on its own; knows nothing of blocks, gRPC or Spark. `README.md` beside this file shows the
formats, the commit steps and the TCP protocol.
"""

from sluice.datastream.client.blocking_client import BlockingStreamClient, iter_entries
from sluice.datastream.client.blocking_follower import BlockingStreamFollower
from sluice.datastream.client.client import StreamClient
from sluice.datastream.client.follower import StreamFollower
from sluice.datastream.errors import DatastreamError, PageDamaged
from sluice.datastream.events.events import Generation, decode_event, encode_event, entry_type_of
from sluice.datastream.file.streamer import DataStreamer
from sluice.datastream.layout import BOOKMARK_TYPE, DATA_SIZE_MAX, Committed, Entry, StreamHeader
from sluice.datastream.limits import FollowLimits, ServerLimits
from sluice.datastream.server.relay import Relay
from sluice.datastream.server.server import StreamServer

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
