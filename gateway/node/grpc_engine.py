"""Which of gRPC's two ways to read the sockets of its clients a node uses.

Pure, and imported before `grpc`: gRPC looks at its experiments once, when it is loaded.

    event engine    as grpcio 1.85 does unless it is told otherwise: a thread of a pool waits for the sockets,
                    another reads, and wakes the thread that wakes the event loop
    poller          as it did before: the thread that wakes the event loop waits and reads by itself

With the poller, a small block costs a node 15 instead of 23 changes of threads and a tenth less processor
time, and is acknowledged that much earlier (`python -m benchmarks publish_latency`). Behind the front door it
matters more: a small block takes 0.9 ms longer there with the event engine, and no longer with the poller
(`python -m benchmarks front_door`).
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Final

__all__ = ["EXPERIMENTS_VARIABLE", "use_poller"]

EXPERIMENTS_VARIABLE: Final = "GRPC_EXPERIMENTS"
_NO_EVENT_ENGINE: Final = "-event_engine_listener"
_KNOWN_VERSION: Final = "1.85."
"""Of grpcio. Another one may not know the experiment any more, and would complain on standard error."""


def use_poller(environment: MutableMapping[str, str], grpc_version: str) -> None:
    """Have gRPC servers of this process use the poller; whoever has set the variable has chosen already.

    Args:
        environment: of the process; the variable is set in it.
        grpc_version: of the grpcio that is installed, such as "1.85.1".
    """
    if grpc_version.startswith(_KNOWN_VERSION):
        environment.setdefault(EXPERIMENTS_VARIABLE, _NO_EVENT_ENGINE)
