"""Tests of `gateway.workers.malloc`: kept memory shows in resident memory and page faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from sluice.gateway.workers.malloc import FREE_MEMORY_KEPT_BYTES, OWN_MAPPING_BYTES_MIN, is_glibc

pytestmark = pytest.mark.skipif(not is_glibc(), reason="needs glibc, which most Linux distributions have")
MIB = 1 << 20
PIECE_BYTES = 64 * 1024
PROGRAM = """
import json, os, resource, sys
from sluice.gateway.workers.malloc import keep_freed_memory

told = keep_freed_memory(os.environ) if sys.argv[1] == "keep" else None
piece_bytes, piece_count = map(int, sys.argv[2:])

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def block():
    pieces = [b"x" * piece_bytes for _ in range(piece_count)]

block()
found = faults()
for _ in range(10):
    block()
faulted = faults() - found
pieces = [b"x" * piece_bytes for _ in range(piece_count)]
used = resident()
del pieces
print(json.dumps({"told": told, "faults": faulted / 10, "given_back": used - resident()}))
"""


def freed(mode: str, piece_bytes: int, piece_count: int, **environment: str) -> dict[str, float]:
    """Take and free pieces again and again; return the cost of one pass, and the returned memory."""
    words = [sys.executable, "-c", PROGRAM, mode, str(piece_bytes), str(piece_count)]
    kept = {name: value for name, value in os.environ.items() if "MALLOC" not in name and "GLIBC" not in name}
    done = subprocess.run(words, env=kept | environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def test_what_a_block_took_is_there_for_the_next() -> None:
    count = 3 * MIB // 2 // PIECE_BYTES
    usual, keeping = freed("", PIECE_BYTES, count), freed("keep", PIECE_BYTES, count)
    assert keeping["told"] is True
    pages = count * PIECE_BYTES / os.sysconf("SC_PAGE_SIZE")
    assert usual["faults"] > pages / 2  # else this test would show nothing
    assert keeping["faults"] < pages / 20
    assert keeping["given_back"] < MIB < usual["given_back"]


def test_what_is_freed_beyond_the_limit_is_given_back() -> None:
    below = freed("keep", PIECE_BYTES, (FREE_MEMORY_KEPT_BYTES - 4 * MIB) // PIECE_BYTES)
    above = freed("keep", PIECE_BYTES, (FREE_MEMORY_KEPT_BYTES + 4 * MIB) // PIECE_BYTES)
    assert below["given_back"] < 4 * MIB
    assert below["faults"] < 100
    pages = (FREE_MEMORY_KEPT_BYTES - MIB) / os.sysconf("SC_PAGE_SIZE")
    # Each pass returns the heap down to its last used piece, which differs from build to build.
    assert above["faults"] > pages / 2


def test_a_very_long_piece_is_given_back_by_itself() -> None:
    head_bytes = 4096  # Python's and the C library's
    shorter = freed("keep", OWN_MAPPING_BYTES_MIN - head_bytes, 1)
    longer = freed("keep", OWN_MAPPING_BYTES_MIN + 1, 1)
    assert shorter["given_back"] < MIB
    assert longer["given_back"] >= OWN_MAPPING_BYTES_MIN


@pytest.mark.parametrize(
    "environment",
    [{"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"}, {"MALLOC_TRIM_THRESHOLD_": "131072"}],
)
def test_who_has_told_the_c_library_has_chosen(environment: dict[str, str]) -> None:
    found = freed("keep", PIECE_BYTES, 64, **environment)
    assert found["told"] is False
    assert found["given_back"] > 3 * MIB


def test_tunables_of_something_else_are_no_choice() -> None:
    assert freed("keep", PIECE_BYTES, 64, GLIBC_TUNABLES="glibc.elision.enable=0")["told"] is True
