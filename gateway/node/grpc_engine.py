"""The choice between gRPC's two ways to read clients' sockets.

Pure, and imported before `grpc`, which reads its experiments when it is loaded.

By default grpcio 1.85 (the event engine) has one thread wait for sockets and another one read. With the older
poller, the thread that wakes the event loop does both: a small block takes a tenth less processor time
(`python -m benchmarks publish_latency`) and 0.9 ms less behind the front door (`python -m benchmarks
front_door`).
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Final

__all__ = ["EXPERIMENTS_VARIABLE", "use_poller"]

EXPERIMENTS_VARIABLE: Final = "GRPC_EXPERIMENTS"
_NO_EVENT_ENGINE: Final = "-event_engine_listener"
_KNOWN_VERSION: Final = "1.85."
"""Another version of grpcio may not know the experiment, and complain on standard error."""


def use_poller(environment: MutableMapping[str, str], grpc_version: str) -> None:
    """Let gRPC servers of this process use the poller, unless the variable in `environment` is set."""
    if grpc_version.startswith(_KNOWN_VERSION):
        environment.setdefault(EXPERIMENTS_VARIABLE, _NO_EVENT_ENGINE)
