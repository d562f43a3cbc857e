"""Corrupted bytes from peers: parsers raise only the errors that they declare.

`make atheris` runs longer and follows the branches of the code.
"""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.datastream.protocol.commands import Command, encode_command
from sluice.gateway.api import block_items_pb2, publish_pb2
from sluice.gateway.blocks.proofs.record_file import RECORD_FILE_FIELDS_MAX, RECORD_FILE_SIGNATURES_MAX
from sluice.gateway.blocks.proofs.state_proof import STATE_PROOF_SIBLINGS_MAX
from tests.datastream.fuzz_commands import STREAM_TYPE
from tests.fuzzing.parsers import PARSERS, Parser
from tests.gateway.block_makers import block_items
from tests.gateway.blocks.proofs import real, record_files, state_proofs

CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["flip", "set", "cut", "insert", "repeat"]),
        st.integers(0, 1 << 30),
        st.binary(min_size=1, max_size=6),
    ),
    min_size=1,
    max_size=6,
)


def spoil(data: bytes, changes: list[tuple[str, int, bytes]]) -> bytes:
    """Apply changes at places modulo the size."""
    image = bytearray(data)
    for how, place, value in changes:
        at = place % (len(image) + 1)
        if how == "flip" and at < len(image):
            image[at] ^= 1 << (value[0] % 8)
        elif how == "set":
            image[at : at + len(value)] = value
        elif how == "cut":
            del image[at : at + value[0]]
        elif how == "insert":
            image[at:at] = value
        elif how == "repeat":
            image[at:at] = image[at : at + value[0]]
    return bytes(image)


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=40)
@given(changes=CHANGES, seed_number=st.integers(0, 9))
def test_spoiled_inputs(name: str, changes: list[tuple[str, int, bytes]], seed_number: int) -> None:
    seeds = PARSERS[name].seeds()
    PARSERS[name].check(spoil(seeds[seed_number % len(seeds)], changes))


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=20)
@given(data=st.binary(max_size=200))
def test_any_bytes(name: str, data: bytes) -> None:
    PARSERS[name].check(data)


@pytest.mark.parametrize("name", PARSERS)
def test_seeds_are_read(name: str) -> None:
    for seed in PARSERS[name].seeds():
        PARSERS[name].check(seed)


def costly_inputs() -> list[tuple[Parser, bytes]]:
    """For each limit, the costliest input just within it."""
    sibling = state_proofs.path((3, bytes(48)), [(bytes(48),)] * STATE_PROOF_SIBLINGS_MAX, 2)
    time = state_proofs.path((6, b"\x08\x01"), [], 2)
    end = state_proofs.path(None, [], state_proofs.END)
    records = state_proofs.len_field(3, b"") * (RECORD_FILE_FIELDS_MAX - 3)
    file = record_files.record_file_item(record_files.contents(records=records))
    signatures = record_files.record_file_proof([(7, b"\x01" * 256)] * RECORD_FILE_SIGNATURES_MAX)
    items = publish_pb2.PublishStreamRequest(
        block_items=block_items_pb2.BlockItemSet(block_items=[*block_items()[:1], *[b"\x22\x00"] * 50_000])
    ).SerializeToString()
    return [
        (PARSERS["publish-message"], items),
        (PARSERS["subscription"], b"\x00\x00" * 4_096),
        (PARSERS["tcp-commands"], encode_command(Command.HEADER, STREAM_TYPE) * 256),
        (PARSERS["state-proof"], state_proofs.proof([time, sibling, end])),
        (PARSERS["record-file"], file),
        (PARSERS["record-file-proof"], signatures),
    ]


@pytest.mark.parametrize(("parser", "data"), costly_inputs(), ids=lambda value: getattr(value, "name", ""))
def test_the_most_that_a_limit_lets_through_is_read(parser: Parser, data: bytes) -> None:
    parser.check(data)


CALLS_MAX = 2_500_000
"""Function calls, in Python and C, that one input may take: 0.4 s without mathematics, of which each proof
has a fixed amount."""


def calls_of(parser: Parser, data: bytes) -> int:
    """Count the calls for an input, which are the same on every machine."""
    count = 0

    def note(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        parser.check(data)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(("parser", "data"), costly_inputs(), ids=lambda value: getattr(value, "name", ""))
def test_the_work_of_what_a_limit_lets_through_is_bounded(parser: Parser, data: bytes) -> None:
    least = len(data) // 2_000  # one call reads the kinds of many items, and hashes many pairs
    assert least < calls_of(parser, data) < CALLS_MAX


@pytest.mark.parametrize("name", PARSERS)
def test_the_work_of_an_input_is_bounded_by_its_size(name: str) -> None:
    """Valid inputs cost most: an error ends the parsing."""
    parser = PARSERS[name]
    parser.check(parser.seeds()[0])  # cached values
    for seed in parser.seeds():
        assert calls_of(parser, seed) < CALLS_MAX


def test_seeds_come_from_real_blocks_where_they_are() -> None:
    assert (len(PARSERS["publication"].seeds()) == 2) == real.FOLDER.is_dir()
