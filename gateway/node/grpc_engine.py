"""The choice between gRPC's two ways to read the sockets of clients.

Pure, and imported before `grpc`: gRPC reads its experiments once, when it is loaded.

    event engine    the default of grpcio 1.85: one thread of a pool waits for sockets, another one reads, and
                    wakes the thread that wakes the event loop
    poller          the way before: the thread that wakes the event loop waits and reads by itself

With the poller, a small block costs a node 15 instead of 23 thread switches and a tenth less processor time
(`python -m benchmarks publish_latency`). Behind the front door a small block takes 0.9 ms longer with the
event engine, and no longer with the poller (`python -m benchmarks front_door`).
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Final

__all__ = ["EXPERIMENTS_VARIABLE", "use_poller"]

EXPERIMENTS_VARIABLE: Final = "GRPC_EXPERIMENTS"
_NO_EVENT_ENGINE: Final = "-event_engine_listener"
_KNOWN_VERSION: Final = "1.85."
"""Of grpcio. Another version may not know the experiment, and would complain on standard error."""


def use_poller(environment: MutableMapping[str, str], grpc_version: str) -> None:
    """Let gRPC servers of this process use the poller, unless the variable is set already.

    Args:
        environment: that of the process; gets the variable.
        grpc_version: the version of the installed grpcio, such as "1.85.1".
    """
    if grpc_version.startswith(_KNOWN_VERSION):
        environment.setdefault(EXPERIMENTS_VARIABLE, _NO_EVENT_ENGINE)
