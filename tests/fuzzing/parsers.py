"""Every parser of foreign bytes, as a function that raises only undeclared errors.

A function takes any bytes, and catches the errors that its parser declares; whatever it raises is a finding.
Seeds are valid inputs, from real blocks if possible.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.errors import BlockRefused, ItemError, ProofDataError
from sluice.gateway.blocks.items import ItemKind, kind_of, proof_of, stream_entry_item, stream_entry_of
from sluice.gateway.blocks.proofs import hints, wraps
from sluice.gateway.blocks.proofs.address_book import read_address_book
from sluice.gateway.blocks.proofs.ledger_data import publications_in, read_publication
from sluice.gateway.blocks.proofs.record_file import RecordFileCheck, read_record_file, read_record_file_proof
from sluice.gateway.blocks.proofs.state_proof import StateProofCheck
from sluice.gateway.blocks.proofs.tss import TssCheck
from sluice.gateway.blocks.refusal import Refusal
from sluice.gateway.blocks.root_hash import BlockHasher, BlockSummary
from tests.fuzzing.file_parsers import FILE_TARGETS
from tests.fuzzing.stream_parsers import STREAM_TARGETS
from tests.gateway.block_makers import block_items, summary_of
from tests.gateway.blocks.proofs import real, record_files, state_proofs
from tests.gateway.blocks.proofs.bn254_setup import WrapsSetup

CPU_SECONDS_MAX: Final = 1.0
"""The highest cost of an input."""

_HAS_REAL: Final = real.FOLDER.is_dir()
_SUMMARY: Final = summary_of(block_items())
_ROOT: Final = bytes(48)


@dataclass(frozen=True, slots=True)
class Parser:
    """One parser."""

    name: str
    """Its name on the command line."""
    check: Callable[[bytes], None]
    """Reads bytes; raises only if the code is wrong."""
    seeds: Callable[[], list[bytes]]
    """Valid inputs."""
    size_max: int = 16_384
    """The longest input; longer ones show nothing new."""


def cpu_seconds_of(parser: Parser, data: bytes) -> float:
    """Run a parser; return its processor time."""
    begin = time.process_time()
    parser.check(data)
    return time.process_time() - begin


# --- blocks and their items ---------------------------------------------------------------------------------


def _run_block(data: bytes) -> None:
    try:
        block = Block.from_bytes(data)
        hasher = BlockHasher()
        hasher.add(block.items)
        hasher.finish()
    except BlockRefused:
        return
    publications_in(block.items)


def _blocks() -> list[bytes]:
    seeds = [Block.from_items(block_items()).to_bytes()]
    for chain, number in (("signed-chain", 3), ("layout-8-chain", 2)):
        if _HAS_REAL:
            seeds.append(real.block(chain, number).to_bytes())
    return [seed for seed in seeds if len(seed) <= 65_536]


def _run_item(data: bytes) -> None:
    hasher = BlockHasher()
    try:
        if kind_of(data) == ItemKind.STREAM_ENTRY:
            assert stream_entry_item(*stream_entry_of(data)) == data
        hasher.add([data])
        hasher.add(block_items()[1:])
    except (BlockRefused, ItemError):
        return


def _items() -> list[bytes]:
    return [*block_items(), stream_entry_item(0xB0, b"\x08\x02\x10\x07")]


def _run_proof_item(data: bytes) -> None:
    hasher = BlockHasher()
    items = block_items()
    hasher.add([item for item in items if kind_of(item) != ItemKind.BLOCK_PROOF])
    try:
        hasher.add([data])
        hasher.finish()
        proof_of(data)
    except (BlockRefused, ItemError):
        return


def _proof_items() -> list[bytes]:
    seeds = [block_items()[-1]]
    if _HAS_REAL:
        seeds += [real.summary("signed-chain", 0).proofs[0], real.summary("record-file-chain", 0).proofs[0]]
    return seeds


# --- proofs -------------------------------------------------------------------------------------------------


def _accept(signature: bytes, root_hash: bytes) -> Refusal | None:
    """Replaces a signature check, which is not fuzzed."""
    assert signature
    assert len(root_hash) == 48
    return None


_STATE_BLOCKS: Final = state_proofs.chain([8, 16, 16, 8])
_STATE_CHECK: Final = StateProofCheck(_accept)


def _run_state_proof(data: bytes) -> None:
    for block in _STATE_BLOCKS[:2]:
        _STATE_CHECK.check(data, block.summary)


def _state_proofs() -> list[bytes]:
    seeds = [
        state_proofs.proof(state_proofs.direct_paths(_STATE_BLOCKS, 1)),
        state_proofs.proof(state_proofs.form_a_paths(_STATE_BLOCKS, 0)),
        state_proofs.proof(
            [
                state_proofs.path((6, _STATE_BLOCKS[3].time), [], 4),
                state_proofs.path((3, _STATE_BLOCKS[1].root), [b"\x01" * 48, None], 3),
                state_proofs.path((4, b"item"), [(b"\x02" * 48,)], 3),
                state_proofs.path(None, [], 4),
                state_proofs.path(None, [], state_proofs.END),
            ]
        ),
    ]
    if _HAS_REAL:
        for chain, number in (("signed-chain", 4), ("layout-8-chain", 3)):
            seeds.append(proof_of(real.summary(chain, number).proofs[0]).block_state_proof)
    return seeds


@cache
def _record_files() -> tuple[RecordFileCheck, BlockSummary, bytes]:
    proof, summary = record_files.signed([0, 1])
    return RecordFileCheck(read_address_book(record_files.book_bytes(3))), summary, proof


def _run_record_file_proof(data: bytes) -> None:
    checker, summary, _ = _record_files()
    checker.check(data, summary)


def _record_file_proofs() -> list[bytes]:
    seeds = [_record_files()[2]]
    if _HAS_REAL:
        proof = proof_of(real.summary("record-file-chain", 1).proofs[0])
        seeds.append(proof.signed_record_file_proof)
        read_record_file_proof(seeds[-1])
    return seeds


def _run_record_file(data: bytes) -> None:
    try:
        read_record_file(data)
    except ProofDataError:
        return


def _record_file_items() -> list[bytes]:
    return [
        record_files.record_file_item(record_files.contents()),
        record_files.record_file_item(record_files.contents(9), more=state_proofs.len_field(4, b"amendment")),
    ]


def _run_address_book(data: bytes) -> None:
    try:
        read_address_book(data)
    except ProofDataError:
        return


def _address_books() -> list[bytes]:
    return [record_files.book_bytes(2), record_files.book_bytes(1, {"nodeId": "5"}, None, [1, "x"])]


# --- TSS ----------------------------------------------------------------------------------------------------


def _run_publication(data: bytes) -> None:
    try:
        read_publication(data)
    except ProofDataError:
        return


def _publications() -> list[bytes]:
    return [real.publication(chain) for chain in ("signed-chain", "wraps-chain")] if _HAS_REAL else [b""]


def _run_hints_key(data: bytes) -> None:
    try:
        hints.read_key(data)
    except ProofDataError:
        return


def _signatures() -> list[bytes]:
    if not _HAS_REAL:
        return [bytes(2920)]
    return [real.signature("signed-chain", 5), real.signature("wraps-chain", 391)]


def _run_hints_signature(data: bytes) -> None:
    try:
        hints.read_signature(data)
    except ProofDataError:
        return


@cache
def _tss_check() -> TssCheck:
    return TssCheck(real.ledger("wraps-chain"))


def _run_tss_signature(data: bytes) -> None:
    if _HAS_REAL:
        _tss_check().check(data, _ROOT)


@cache
def _wraps_key() -> wraps.PreparedWrapsKey:
    return wraps.prepare(_wraps_keys()[0])


_LEDGER_ID: Final = b"\x05" + bytes(31)


def _run_wraps_proof(data: bytes) -> None:
    wraps.check(_wraps_key(), data, _LEDGER_ID, 7)


@cache
def _wraps_proofs() -> list[bytes]:
    seeds = [b"".join(WrapsSetup().proof_parts(5, 7).values())]
    return seeds + [signature[2728:] for signature in _signatures() if len(signature) == 3432]


@cache
def _wraps_keys() -> list[bytes]:
    return [WrapsSetup().key_bytes()]


def _run_wraps_key(data: bytes) -> None:
    try:
        wraps.prepare(data)
    except ProofDataError:
        return


PARSERS: Final = {
    parser.name: parser
    for parser in (
        Parser("block", _run_block, _blocks, 65_536),
        Parser("item", _run_item, _items, 4_200),
        Parser("proof-item", _run_proof_item, _proof_items, 8_192),
        Parser("state-proof", _run_state_proof, _state_proofs),
        Parser("record-file-proof", _run_record_file_proof, _record_file_proofs),
        Parser("record-file", _run_record_file, _record_file_items),
        Parser("address-book", _run_address_book, _address_books),
        Parser("publication", _run_publication, _publications),
        Parser("hints-key", _run_hints_key, lambda: [each[:1096] for each in _signatures()], 1_200),
        Parser("hints-signature", _run_hints_signature, lambda: [s[1096:2728] for s in _signatures()], 1_700),
        Parser("tss-signature", _run_tss_signature, _signatures, 3_500),
        Parser("wraps-proof", _run_wraps_proof, _wraps_proofs, 720),
        Parser("wraps-key", _run_wraps_key, _wraps_keys, 1_800),
        *(Parser(*target) for target in (*STREAM_TARGETS, *FILE_TARGETS)),
    )
}
"""All parsers by name."""
