"""A node that ends with whoever started it, however that ends: `sluice serve` beside a thread that reads.

A shell; run as `python -m publishers.demo.bound_node serve …`.

    starter                 node
    end of a pipe   ──►     standard input, on which nothing ever comes; its end is SIGTERM
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Final

from gateway.commands.start import main

__all__: list[str] = []

_PIPE: Final = 0


def _end_with_the_pipe() -> None:
    """Wait for the end of the pipe, and stop the node in order."""
    while os.read(_PIPE, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_pipe, name="pipe", daemon=True).start()
    sys.exit(main())
