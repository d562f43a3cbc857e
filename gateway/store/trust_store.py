"""The trust store: ledger keys in files, given by an operator or kept by the node.

An address book is JSON (`gateway.blocks.proofs.address_book`). A publication of a ledger id
(`gateway.blocks.proofs.ledger_data`) is read from

    tss:FILE                     the bare publication, or block 0 in a block file: .blk, .blk.gz, .blk.zst
    data_dir/ledger-id.bin       kept: the bare publication, written once block 0 is committed; another node
                                 accepts it as tss:FILE
    block 0 of the stream        if the node has it and keeps none

A node never changes its keys by itself: if these differ from each other or from the operator's id, it does
not start. Source: docs/spec/tss.md section 1.1.
"""

from __future__ import annotations

import logging
import os
import re
import zlib
from functools import partial
from gzip import GzipFile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import zstandard

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.errors import BlockRefused, LedgerKeyError, ProofDataError
from sluice.gateway.blocks.proofs import ProofVerifier, RsaBook
from sluice.gateway.blocks.proofs.address_book import read_address_book
from sluice.gateway.blocks.proofs.ledger_data import (
    LedgerData,
    publications_in,
    published_ledger,
    read_publication,
    refusal_of,
)
from sluice.gateway.blocks.root_hash import RootLayout
from sluice.gateway.blocks.trusted_keys import TrustedKeys, VerificationMode
from sluice.gateway.blocks.verification import BlockVerifier, Verdict
from sluice.gateway.errors import Fatal
from sluice.gateway.logs import fields
from sluice.gateway.regular_files import open_regular, replace_file

if TYPE_CHECKING:  # `sluice verify-proof` has no store
    from sluice.gateway.blocks.stream_layout import StoredBlock
    from sluice.gateway.store.block_store import BlockStore

__all__ = [
    "KEPT_NAME",
    "given_address_book",
    "given_ledger",
    "keep_ledger",
    "kept_ledger",
    "ledger_of_file",
    "ledger_of_folder",
    "ledger_to_start_with",
]

log = logging.getLogger(__name__)

KEPT_NAME: Final = "ledger-id.bin"

# As in `publishers.blocks.block_files`; other programs write leading zeros.
_BLOCK_0_NAME: Final = re.compile(r"0{1,20}\.blk(\.gz|\.zst)?", re.ASCII)
_GZIP_MAGIC, _ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"

PUBLICATION_FILE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of a file that `tss:FILE` names, decompressed: a block 0 with some margin."""


def ledger_of_file(
    path: Path, ledger_id: bytes | None = None, *, bytes_max: int = PUBLICATION_FILE_BYTES_MAX
) -> LedgerData:
    """Read and check the publication in a file: a bare one, or that of block 0 in a block file.

    Args:
        bytes_max: most bytes, decompressed.

    Raises:
        LedgerKeyError: the file cannot be read, or holds no valid publication.
    """
    what = f"ledger key tss:{path}"
    content = _content(path, what, bytes_max)
    try:
        try:
            ledger: LedgerData | None = read_publication(content)
        except ProofDataError as error:
            try:
                block = Block.from_bytes(content)
            except BlockRefused:
                raise LedgerKeyError(
                    what, got=str(error), expected="a ledger id publication, or a file of block 0"
                ) from error
            if block.number != 0:
                got = f"block {block.number}"
                raise LedgerKeyError(what, got=got, expected="block 0, which has the publication") from None
            ledger = published_ledger(block.items, ledger_id)
    except BlockRefused as error:
        raise LedgerKeyError(what, got=error.refusal.got, expected=error.refusal.expected) from error
    if ledger is None:
        got = "a block 0 that publishes no ledger id"
        raise LedgerKeyError(what, got=got, expected="block 0 of a TSS network")
    return _believed(ledger, what, ledger_id)


def ledger_of_folder(folder: Path) -> LedgerData:
    """Read and check what a node keeps in its data folder, or block 0 in a folder of block files.

    Raises:
        LedgerKeyError: there is neither, or block 0 has no valid publication.
        Fatal: the kept file has changed.
    """
    kept = kept_ledger(folder)
    if kept is not None:
        return kept
    try:
        names = sorted(path.name for path in folder.iterdir() if _BLOCK_0_NAME.fullmatch(path.name))
    except OSError as error:
        got = error.strerror or str(error)
        raise LedgerKeyError(str(folder), got=got, expected="a folder that can be read") from error
    if names:
        return ledger_of_file(folder / names[0])
    expected = f"{KEPT_NAME}, or block 0 in a file 0.blk, 0.blk.gz or 0.blk.zst"
    raise LedgerKeyError(str(folder), got="a folder without ledger data", expected=expected)


def kept_ledger(data_dir: Path) -> LedgerData | None:
    """Return the ledger data that a data folder keeps, checked; None without any.

    Raises:
        Fatal: the file cannot be read, or has changed.
    """
    path = data_dir / KEPT_NAME
    if not os.path.lexists(path):  # a broken link does not permit another block 0
        return None
    try:
        return ledger_of_file(path)
    except LedgerKeyError as error:
        expected = f"{error.expected}; it may be deleted if block 0 is in the stream"
        raise Fatal(str(path), got=error.got, expected=expected) from error


def keep_ledger(data_dir: Path, ledger: LedgerData) -> None:
    """Write the publication to the data folder, unless it keeps one.

    A failure is only logged: at the next start block 0 still has the publication.
    """
    path = data_dir / KEPT_NAME
    try:
        if os.path.lexists(path):
            return
        replace_file(path, ledger.publication)
    except OSError as error:
        log.error("ledger data could not be kept", extra=fields(file=str(path), got=str(error)))
        return
    log.warning(
        "ledger data of block 0 are trusted and kept",
        extra=fields(ledger_id=ledger.ledger_id.hex(), nodes=len(ledger.nodes), file=str(path)),
    )


def given_address_book(keys: TrustedKeys, mode: VerificationMode, needed_count: int) -> RsaBook | None:
    """Return the operator's address book; None: none is named or needed. Mode `hash` needs none.

    `needed_count` is the number of nodes that must sign a record file; 0: more than a third.

    Raises:
        LedgerKeyError: also if the book has fewer nodes, or fewer usable keys.
    """
    if mode == "hash" or keys.rsa_file is None:
        return None
    what = f"ledger key rsa:{keys.rsa_file}"
    book = RsaBook(_content(_path(keys.rsa_file, what), what), needed_count)
    try:
        known = read_address_book(book.serialized)
    except ProofDataError as error:
        raise LedgerKeyError(f"{what}: {error.what}", got=error.got, expected=error.expected) from error
    if needed_count > known.node_count:
        expected = f"at least {needed_count}, the setting verification.rsa_threshold"
        raise LedgerKeyError(what, got=f"{known.node_count} nodes", expected=expected)
    if len(known.keys) < (signers_count := book.check().needed_count):  # it could accept no record file
        got = f"{known.node_count} nodes, {len(known.keys)} of them with a usable key"
        expected = f"at least {signers_count}, as many as must have signed a record file"
        raise LedgerKeyError(what, got=got, expected=expected)
    return book


def given_ledger(keys: TrustedKeys, mode: VerificationMode) -> LedgerData | None:
    """Return the ledger data of the operator's file; None: none is named or needed. Raises LedgerKeyError."""
    if mode == "hash" or keys.tss_file is None:
        return None
    return ledger_of_file(_path(keys.tss_file, f"ledger key tss:{keys.tss_file}"), keys.tss_id)


def ledger_to_start_with(
    keys: TrustedKeys,
    mode: VerificationMode,
    store: BlockStore,
    *,
    given: LedgerData | None = None,
    rsa_book: RsaBook | None = None,
    first_number: int | None,
    root_layout: RootLayout = "auto",
) -> LedgerData | None:
    """Return the ledger data that a node starts with; None: it awaits block 0, or needs none.

    Args:
        given: `given_ledger` of the keys.
        rsa_book: `given_address_book` of the keys.
        first_number: the block that an empty node begins with; None: any.

    Raises:
        LedgerKeyError: a key is missing, or contradicts what is here.
        Fatal: the kept file cannot be read.
    """
    if mode == "hash" or not (given is not None or keys.takes_tss_from_block_0):
        return None
    kept = kept_ledger(store.data_dir)
    block_0 = store.read_block(0) if store.first_available == 0 else None
    verdict_of_keys = partial(_verdict_on, keys=keys, mode=mode, rsa_book=rsa_book, root_layout=root_layout)
    chosen = given or kept
    if chosen is None and block_0 is not None:
        verdict = verdict_of_keys(block_0)
        if verdict is not None and verdict.published is None:
            # `ProofChecks.block_0_committed` did the same: the other keys suffice.
            log.warning("block 0 publishes no ledger data: TSS proofs are refused")
            return None
        if verdict is not None and verdict.published is not None:
            chosen = verdict.published
            keep_ledger(store.data_dir, chosen)
    if chosen is None:
        _require_block_0(keys, store, first_number)
        return None
    if kept not in (None, chosen) or (block_0 is not None and not _may_have_published(block_0, chosen)):
        raise LedgerKeyError(
            f"ledger key tss:{keys.tss_file}" if given else str(store.data_dir / KEPT_NAME),
            got=f"the data of ledger {chosen.ledger_id.hex()}",
            expected=f"those that the blocks in {store.data_dir} were checked with, or that block 0 has",
        )
    if keys.tss_id not in (None, chosen.ledger_id):
        assert keys.tss_id is not None
        raise LedgerKeyError(
            f"ledger key tss:id={keys.tss_id.hex()}",
            got="another id than that of the ledger data here",
            expected=f"{chosen.ledger_id.hex()}, of {store.data_dir / KEPT_NAME}",
        )
    if chosen is kept and keys.tss_id is not None and chosen.wraps_vk and block_0 is not None:
        # A run without that key, which trusts the WRAPS key of any block 0, may have kept it.
        verdict = verdict_of_keys(block_0)
        if verdict is None or verdict.published != chosen:
            raise LedgerKeyError(
                str(store.data_dir / KEPT_NAME),
                got="a WRAPS key that block 0 does not vouch for",
                expected="a block 0 with a Schnorr address-book proof, or tss:FILE, a file that you trust",
            )
    return chosen


def _may_have_published(block_0: StoredBlock, ledger: LedgerData) -> bool:
    try:
        published = publications_in(block_0.items)
    except BlockRefused:  # accepted in mode `hash`
        return False
    return not published or ledger in map(_read, published)


def _read(publication: bytes) -> LedgerData | None:
    """Decode a publication, since data have several encodings; None: it is malformed."""
    try:
        return read_publication(publication)
    except ProofDataError:
        return None


def _verdict_on(
    block_0: StoredBlock,
    keys: TrustedKeys,
    mode: VerificationMode,
    rsa_book: RsaBook | None,
    root_layout: RootLayout,
) -> Verdict | None:
    """Return the verdict of the keys alone on the stored block 0; None: they refuse it.

    Mode `hash` may have committed it without a check.
    """
    verifier = BlockVerifier(ProofVerifier(keys, mode, None, rsa_book), root_layout)
    hasher = verifier.hasher()
    try:
        hasher.add(block_0.items)
        return verifier.check(hasher.finish(), block_0.items)
    except BlockRefused as error:
        log.warning("block 0 gives no ledger data", extra=fields(reason=str(error.refusal)))
        return None


def _require_block_0(keys: TrustedKeys, store: BlockStore, first_number: int | None) -> None:
    """Refuse a start that needs the ledger data of a block 0 that it can no longer get."""
    if store.last_number is not None:
        where = f"blocks {store.first_number} to {store.last_number} are here without ledger data"
    elif first_number not in (0, None):
        where = f"the chain is to begin with block {first_number}"
    else:
        return
    said = "none" if keys == TrustedKeys() else "no tss:FILE"
    raise LedgerKeyError(
        "ledger keys",
        got=said,
        expected=f"tss:FILE, or a key of another kind alone: {where}, and only block 0 publishes ledger data "
        "(`sluice keygen` makes a key of one's own; --verify hash checks no signatures)",
    )


def _believed(ledger: LedgerData, what: str, ledger_id: bytes | None) -> LedgerData:
    if ledger_id is not None and ledger.ledger_id != ledger_id:
        got, expected = f"ledger id {ledger.ledger_id.hex()}", f"{ledger_id.hex()}, the tss:id"
        raise LedgerKeyError(what, got=got, expected=expected)
    refusal = refusal_of(ledger)
    if refusal is not None:
        raise LedgerKeyError(f"{what}: {refusal.what}", got=refusal.got, expected=refusal.expected)
    return ledger


def _path(written: str, what: str) -> Path:
    try:
        return Path(written).expanduser()
    except RuntimeError as error:
        got = "the home folder of nobody"
        raise LedgerKeyError(what, got=got, expected="a file that can be read") from error


def _content(path: Path, what: str, bytes_max: int = PUBLICATION_FILE_BYTES_MAX) -> bytes:
    try:
        with open_regular(path) as file:
            head = file.read(4)
            file.seek(0)
            if head.startswith(_GZIP_MAGIC):
                content = GzipFile(fileobj=file).read(bytes_max + 1)
            elif head.startswith(_ZSTD_MAGIC):
                content = _read_zstd(file, bytes_max + 1)
            else:
                content = file.read(bytes_max + 1)
    except OSError as error:
        got = error.strerror or str(error)
        raise LedgerKeyError(what, got=got, expected="a file that can be read") from error
    except (EOFError, zlib.error, zstandard.ZstdError) as error:
        raise LedgerKeyError(what, got=str(error), expected="a whole compressed file") from error
    if len(content) > bytes_max:
        expected = f"at most {bytes_max} bytes"
        raise LedgerKeyError(what, got="a longer file", expected=expected)
    return content


def _read_zstd(file: IO[bytes], bytes_max: int) -> bytes:
    with zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as reader:
        return reader.read(bytes_max)
