"""The data streamer: an append-only stream file, committed atomically and served over TCP.

Complete and usable on its own; knows nothing of blocks, gRPC or Spark. `README.md` beside this file shows the
formats, the commit steps and the TCP protocol.

A name is imported on first use: a worker process needs neither server nor client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
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

_HOMES: Final = {
    "BOOKMARK_TYPE": "sluice.datastream.layout",
    "BlockingStreamClient": "sluice.datastream.client.blocking_client",
    "BlockingStreamFollower": "sluice.datastream.client.blocking_follower",
    "Committed": "sluice.datastream.layout",
    "DATA_SIZE_MAX": "sluice.datastream.layout",
    "DataStreamer": "sluice.datastream.file.streamer",
    "DatastreamError": "sluice.datastream.errors",
    "Entry": "sluice.datastream.layout",
    "FollowLimits": "sluice.datastream.limits",
    "Generation": "sluice.datastream.events.events",
    "PageDamaged": "sluice.datastream.errors",
    "Relay": "sluice.datastream.server.relay",
    "ServerLimits": "sluice.datastream.limits",
    "StreamClient": "sluice.datastream.client.client",
    "StreamFollower": "sluice.datastream.client.follower",
    "StreamHeader": "sluice.datastream.layout",
    "StreamServer": "sluice.datastream.server.server",
    "decode_event": "sluice.datastream.events.events",
    "encode_event": "sluice.datastream.events.events",
    "entry_type_of": "sluice.datastream.events.events",
    "iter_entries": "sluice.datastream.client.blocking_client",
}


def __getattr__(name: str) -> Any:
    """Import a name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
