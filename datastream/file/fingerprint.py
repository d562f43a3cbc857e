"""The fingerprint that ties a bookmark folder, or the record of an update, to one stream. Pure.

Its totals are those of the covered entries, so later entries do not change it. It misses differences between
its two samples.

Source: docs/spec/stream-file.md section 3.2.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import replace

from sluice.datastream.layout import HEADER_PAGE_SIZE, StreamHeader, encode_header, page_number_of, page_start

__all__ = ["FINGERPRINT_SIZE", "ReadBytes", "fingerprint_of", "is_of_stream", "totals_of"]

SAMPLE_SIZE = 1024
"""Bytes of a sample: several entries, still digested in microseconds."""
_DIGEST_SIZE = 16
_FINGERPRINT = struct.Struct(f">QQ{_DIGEST_SIZE}s")
FINGERPRINT_SIZE = _FINGERPRINT.size

ReadBytes = Callable[[int, int], bytes]
"""Reads bytes of the file: size, offset."""


def fingerprint_of(header: StreamHeader, read: ReadBytes, hole: tuple[int, int] = (0, 0)) -> bytes:
    """Return the fingerprint of a stream's entries.

    Args:
        header: with the totals of these entries.
        hole: offsets (start, end) of bytes to leave out.
    """
    digest = hashlib.blake2b(encode_header(header), digest_size=_DIGEST_SIZE)
    end = header.total_length
    if end > HEADER_PAGE_SIZE:
        page = page_start(page_number_of(end - 1))
        for start, stop in (
            (HEADER_PAGE_SIZE, min(HEADER_PAGE_SIZE + SAMPLE_SIZE, end)),
            (max(end - SAMPLE_SIZE, page), end),
        ):
            sample = read(stop - start, start)
            digest.update(sample[: max(hole[0] - start, 0)])
            digest.update(sample[max(hole[1] - start, 0) :])
    return _FINGERPRINT.pack(end, header.total_entries, digest.digest())


def totals_of(fingerprint: bytes) -> tuple[int, int] | None:
    """Return (total_length, total_entries) of the fingerprinted entries; None if it is no fingerprint."""
    if len(fingerprint) != FINGERPRINT_SIZE:
        return None
    total_length, total_entries, _ = _FINGERPRINT.unpack(fingerprint)
    return total_length, total_entries


def is_of_stream(fingerprint: bytes, header: StreamHeader, read: ReadBytes) -> bool:
    """Return whether a fingerprint, of any length, is that of a stream's first entries."""
    totals = totals_of(fingerprint)
    if totals is None:
        return False
    end, count = totals
    if not HEADER_PAGE_SIZE <= end <= header.total_length or count > header.total_entries:
        return False
    return fingerprint == fingerprint_of(replace(header, total_length=end, total_entries=count), read)
