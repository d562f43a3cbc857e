"""The goals of `make bench`, by a part of a line's label."""

from __future__ import annotations

from typing import Final

__all__ = ["GOALS", "goal_of"]

GOALS: Final[dict[str, str]] = {
    "append, not flushed, bare": "",
    "append, not flushed": "150,000 operations/s",
    "queries, data": "",
    "queries, Entry": "cold < 0.5 ms, warm < 0.1 ms",
    "queries, Bookmark": "cold < 0.5 ms, warm < 0.1 ms",
    "opening 2 GiB, clean": "< 0.2 s",
    "publish, items of 110 B": "0.6, to the echo 0.5",
    "publish, items of": "0.6, to the echo 0.6",
    "publish, small blocks": "0.5, to the echo 0.65",
    "publish, parts": "",
    "publish, 16 racing": "0.9",
    "publish, latency": "p99 at most 5 ×, since due",
    "front door, items of": "0.95",
    "front door, small blocks": "0.95",
    "front door, 16 racing": "0.95",
    "front door, latency": "p50 + 0.1 ms",
    "failover, planned": "median < 2 s",
    "failover, SIGKILL": "median < 5 s",
    "TSS blocks of 400 kB": "0.7; pauses < 10 ms",
    "TSS blocks of 400 kB, 13 nodes": "0.8; pauses < 10 ms",
    "blocks a second": "pauses < 10 ms",
    "each block in one item set": "pauses < 10 ms",
    "small TSS blocks": "",
    "TSS with Schnorr proof": "steady at most 15 ms",
    "TCP history, warm": "0.6",
    "TCP history, cold": "0.1",
    "TCP history, 8 clients": "0.6",
    "TCP with TLS, one client": "0.7",
    "TCP with TLS, 8 clients": "0.5",
    "TCP live, memory": "< 20 kB",
    "TCP live, 10,000 live clients": "p99 < 100 ms",
    "TCP live, 10,000 live clients, bare": "",
    "TCP live, 100 of 10,000": "as without them",
    "archive, publishing beside": "at least 0.95",
    "of acknowledgements beside": "at most 1.05",
    "catch-up": "0.9",
    "catch-up over slow links": "2.0",
    "Spark, decode, hash, check": "1.6 with 2 free cores",
    "datastream source": "0.9 of Spark alone, or 0.5 of the reader alone",
    "decode=blocks": "1.0",
    "decode=items": "0.7",
    "plan of": "then < 1 s",
    "availableNow over": "below 5 %",
    "Spark sink": "0.7",
}
"""Part of a label -> goal; the longest match counts. Empty: a line to compare with."""


def goal_of(label: str) -> str:
    """Return the goal of a line, else empty."""
    fitting = [part for part in GOALS if part in label]
    return GOALS[max(fitting, key=len)] if fitting else ""
