"""Tests of `gateway.store.trust_store`."""

from __future__ import annotations

import errno
import gzip
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import zstandard

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.errors import LedgerKeyError
from sluice.gateway.blocks.proofs.ledger_data import LedgerData, SearchLimits, publications_in
from sluice.gateway.blocks.trusted_keys import TrustedKeys
from sluice.gateway.errors import Fatal
from sluice.gateway.store.block_store import BlockStore, VerifiedBlock
from sluice.gateway.store.trust_store import (
    KEPT_NAME,
    given_address_book,
    given_ledger,
    keep_ledger,
    kept_ledger,
    ledger_of_file,
    ledger_of_folder,
    ledger_to_start_with,
)
from tests.gateway.block_makers import summary_of
from tests.gateway.blocks.proofs.record_files import book_bytes
from tests.gateway.blocks.proofs.tss_chain import TssChain
from tests.gateway.blocks.proofs.tss_network import TssNetwork
from tests.gateway.blocks.test_verification import WRAPS, Forger
from tests.nodes import ledger_key, make_blocks

NETWORK, OTHER = TssNetwork((1, 1, 1)), TssNetwork((1, 1, 1), seed=2)
CHAIN = TssChain(NETWORK)
ID = NETWORK.ledger.ledger_id
NO_KEYS = TrustedKeys()


def stored(data_dir: Path, blocks: Sequence[Block]) -> BlockStore:
    store = BlockStore.open(data_dir)
    verified = [
        VerifiedBlock(block.number, block.items, summary_of(list(block.items)).root_hash) for block in blocks
    ]
    if verified:
        store.append(verified)
        for each in verified:
            store.advance(each)
    return store


def start(
    data_dir: Path, keys: TrustedKeys = NO_KEYS, *blocks: Block, first: int | None = 0
) -> LedgerData | None:
    """Return what a node with these blocks would start with."""
    store = stored(data_dir, blocks)
    try:
        return ledger_to_start_with(keys, "full", store, given=given_ledger(keys, "full"), first_number=first)
    finally:
        store.close()


# --- files of the operator ----------------------------------------------------------------------------------


def test_a_publication_may_be_bare_or_in_a_file_of_block_0(tmp_path: Path) -> None:
    block_0 = CHAIN.block(0).to_bytes()
    contents = {
        "bare": NETWORK.publication,
        "bare.gz": gzip.compress(NETWORK.publication),
        "0.blk": block_0,
        "0.blk.gz": gzip.compress(block_0),
        "0.blk.zst": zstandard.compress(block_0),
    }
    for name, content in contents.items():
        path = tmp_path / name
        path.write_bytes(content)
        assert ledger_of_file(path) == ledger_of_file(path, ID) == NETWORK.ledger


@pytest.mark.parametrize("name", ["0.blk", "0000000000000000000.blk", "000.blk.gz", "00.blk.zst"])
def test_block_0_in_a_folder_is_found_by_its_number(tmp_path: Path, name: str) -> None:
    content = CHAIN.block(0).to_bytes()
    if name.endswith(".gz"):
        content = gzip.compress(content)
    elif name.endswith(".zst"):
        content = zstandard.compress(content)
    (tmp_path / name).write_bytes(content)
    for other in ("10.blk", "x0.blk", "0.blk.part", "0.blk.gz.part"):
        (tmp_path / other).write_bytes(b"none of it")
    assert ledger_of_folder(tmp_path) == NETWORK.ledger


def test_what_is_no_publication_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    plain = Block.from_items([CHAIN.block(0).items[0], *CHAIN.block(0).items[2:]])
    spoiled = bytearray(NETWORK.publication)
    spoiled[10] ^= 1
    cases = {
        b"": (
            "got ledger id publication: ledger id: got 0 bytes, expected 32, expected a ledger id "
            "publication, or a file of block 0"
        ),
        CHAIN.block(1).to_bytes(): "got block 1, expected block 0, which has the publication",
        plain.to_bytes(): "got a block 0 that publishes no ledger id, expected block 0 of a TSS network",
        gzip.compress(b"x" * 100)[:-9]: (
            "got Compressed file ended before the end-of-stream marker was reached, "
            "expected a whole compressed file"
        ),
    }
    for content, message in cases.items():
        path.write_bytes(content)
        with pytest.raises(LedgerKeyError) as caught:
            ledger_of_file(path)
        assert str(caught.value) == f"ledger key tss:{path}: {message}"
    path.write_bytes(spoiled)
    with pytest.raises(LedgerKeyError, match=r"ledger id \(tss.md 7.2\): got .*, the address book's hash$"):
        ledger_of_file(path)
    with pytest.raises(LedgerKeyError, match=r": got No such file or directory, expected a file that can be"):
        ledger_of_file(tmp_path / "none")


def read_files(keys: TrustedKeys) -> None:
    given_ledger(keys, "full")
    given_address_book(keys, "full", 0)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    for keys in (TrustedKeys(tss_file=str(path)), TrustedKeys(rsa_file=str(path))):
        with pytest.raises(LedgerKeyError) as caught:
            read_files(keys)
        kind = "tss" if keys.tss_file else "rsa"
        assert str(caught.value) == (
            f"ledger key {kind}:{path}: got Not a regular file, expected a file that can be read"
        )


def test_a_home_folder_of_nobody() -> None:
    for keys in (TrustedKeys(tss_file="~nobody-here/a"), TrustedKeys(rsa_file="~nobody-here/a")):
        with pytest.raises(LedgerKeyError) as caught:
            read_files(keys)
        kind = "tss" if keys.tss_file else "rsa"
        assert str(caught.value) == (
            f"ledger key {kind}:~nobody-here/a: got the home folder of nobody, expected a file that can be "
            "read"
        )


def test_the_home_folder_may_be_written_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "publication").write_bytes(NETWORK.publication)
    (tmp_path / "book.json").write_bytes(book_bytes(4))
    assert given_ledger(TrustedKeys(tss_file="~/publication"), "full") == NETWORK.ledger
    assert given_address_book(TrustedKeys(rsa_file="~/book.json"), "full", 0) is not None


@pytest.mark.parametrize("content", [NETWORK.publication, CHAIN.block(0).to_bytes()])
def test_a_file_has_to_match_the_id(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    keys = TrustedKeys(tss_file=str(path), tss_id=OTHER.ledger.ledger_id)
    with pytest.raises(LedgerKeyError) as caught:
        given_ledger(keys, "full")
    assert str(caught.value).startswith(f"ledger key tss:{path}: got ")
    assert OTHER.ledger.ledger_id.hex() in str(caught.value)
    assert given_ledger(keys, "hash") is None
    assert given_ledger(NO_KEYS, "full") is None


def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    for name, compress in (("gz", gzip.compress), ("zst", zstandard.compress), ("plain", bytes)):
        path = tmp_path / name
        path.write_bytes(compress(bytes(100_000)))
        with pytest.raises(LedgerKeyError, match=r": got a longer file, expected at most 1000 bytes$"):
            ledger_of_file(path, bytes_max=1000)


def test_an_address_book(tmp_path: Path) -> None:
    path = tmp_path / "book.json"
    path.write_bytes(book_bytes(4))
    node_count = 4
    keys = TrustedKeys(rsa_file=str(path))
    for needed in (0, 1, node_count):
        book = given_address_book(keys, "full", needed)
        assert book is not None
        assert book.check().needed_count == (needed or node_count // 3 + 1)
    assert given_address_book(keys, "hash", 0) is None
    assert given_address_book(NO_KEYS, "full", 0) is None
    with pytest.raises(LedgerKeyError) as caught:
        given_address_book(keys, "full", node_count + 1)
    assert str(caught.value) == (
        f"ledger key rsa:{path}: got {node_count} nodes, expected at least {node_count + 1}, "
        "the setting verification.rsa_threshold"
    )
    path.write_bytes(book_bytes(2, *({"nodeId": number} for number in range(2, 6))))
    for needed, fewest in ((0, 3), (3, 3), (6, 6)):
        with pytest.raises(LedgerKeyError) as caught:
            given_address_book(keys, "full", needed)
        assert str(caught.value) == (
            f"ledger key rsa:{path}: got 6 nodes, 2 of them with a usable key, expected at least {fewest}, "
            "as many as must have signed a record file"
        )
    assert given_address_book(keys, "full", 2) is not None
    path.write_bytes(b"[]")
    with pytest.raises(LedgerKeyError) as caught:
        given_address_book(keys, "full", 0)
    assert str(caught.value) == (
        f"ledger key rsa:{path}: address book: got no array `nodeAddress`, expected the JSON form of a "
        "network's address book"
    )


# --- what is kept -------------------------------------------------------------------------------------------


def test_what_is_kept_is_never_replaced(tmp_path: Path) -> None:
    assert kept_ledger(tmp_path) is None
    keep_ledger(tmp_path, NETWORK.ledger)
    assert (tmp_path / KEPT_NAME).read_bytes() == NETWORK.publication
    keep_ledger(tmp_path, OTHER.ledger)
    assert kept_ledger(tmp_path) == NETWORK.ledger
    assert [path.name for path in tmp_path.iterdir()] == [KEPT_NAME]


def test_what_is_kept_and_spoiled_stops_the_node(tmp_path: Path) -> None:
    keep_ledger(tmp_path, NETWORK.ledger)
    path = tmp_path / KEPT_NAME
    path.write_bytes(NETWORK.publication[:-1])
    with pytest.raises(Fatal, match=r"it may be deleted if block 0 is in the stream$"):
        kept_ledger(tmp_path)
    assert path.read_bytes() == NETWORK.publication[:-1]


def test_a_folder_that_cannot_be_written_is_no_reason_to_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep_ledger(tmp_path / "none", NETWORK.ledger)
    assert [record.message for record in caplog.records] == ["ledger data could not be kept"]


def test_a_full_disk_is_no_reason_to_stop_and_leaves_nothing_half_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = (tmp_path / KEPT_NAME).with_suffix(".new")

    def refuse(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        keep_ledger(tmp_path, NETWORK.ledger)
    assert [record.message for record in caplog.records] == ["ledger data could not be kept"]
    assert kept_ledger(tmp_path) is None
    assert not new.exists()
    new.write_bytes(NETWORK.publication[:100])  # as in a crash
    assert kept_ledger(tmp_path) is None
    assert start(tmp_path, NO_KEYS, CHAIN.block(0)) == NETWORK.ledger
    assert kept_ledger(tmp_path) == NETWORK.ledger
    assert not new.exists()


@pytest.mark.parametrize("size", [0, 1, 33, 1000])
def test_what_is_kept_and_cut_off_stops_the_node(tmp_path: Path, size: int) -> None:
    keep_ledger(tmp_path, NETWORK.ledger)
    (tmp_path / KEPT_NAME).write_bytes(NETWORK.publication[: size and -size])
    with pytest.raises(Fatal, match=rf"^{tmp_path / KEPT_NAME}: got "):
        start(tmp_path, NO_KEYS, CHAIN.block(0))


def test_what_is_kept_and_changed_by_hand_stops_the_node(tmp_path: Path) -> None:
    """Each byte of the id and of the address book; the stored block 0 covers the rest."""
    network = TssNetwork((1, 1, 1), wraps_vk=bytes(1768))
    chain = TssChain(network)
    assert start(tmp_path, NO_KEYS, chain.block(0)) == network.ledger
    path = tmp_path / KEPT_NAME
    good = path.read_bytes()
    wraps_at = good.index(bytes(1768))
    for at in (2, 33, wraps_at, wraps_at + 1767, len(good) - 1, len(good) - 190, len(good) - 250):
        altered = bytearray(good)
        altered[at] ^= 1
        path.write_bytes(altered)
        with pytest.raises((Fatal, LedgerKeyError), match=rf"^{path}: got "):
            start(tmp_path)
        assert path.read_bytes() == altered
    path.write_bytes(good)
    assert start(tmp_path) == network.ledger


def test_what_is_kept_in_place_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / KEPT_NAME
    path.mkdir()
    with pytest.raises(Fatal, match=rf"^{path}: got .*Is a directory"):
        kept_ledger(tmp_path)
    path.rmdir()
    path.write_bytes(CHAIN.block(0).to_bytes())  # by hand: as good as the bare publication
    assert kept_ledger(tmp_path) == NETWORK.ledger


def test_what_is_kept_elsewhere_and_gone_stops_the_node(tmp_path: Path) -> None:
    """A link to an unmounted volume: no other block 0 is trusted, and the link stays."""
    path = tmp_path / KEPT_NAME
    path.symlink_to(tmp_path / "unmounted" / KEPT_NAME)
    for _ in range(2):
        with pytest.raises(Fatal, match=rf"^{path}: got No such file or directory, expected "):
            start(tmp_path)
        keep_ledger(tmp_path, NETWORK.ledger)
        assert path.is_symlink()


# --- starting -----------------------------------------------------------------------------------------------


def test_a_fresh_node_awaits_block_0(tmp_path: Path) -> None:
    for index, keys in enumerate((NO_KEYS, TrustedKeys(tss_block0=True), TrustedKeys(tss_id=ID))):
        for first in (0, None):
            assert start(tmp_path / f"{index}{first}", keys, first=first) is None


def test_keys_of_other_kinds_need_no_ledger_data(tmp_path: Path) -> None:
    keys = TrustedKeys((bytes(32),))
    assert start(tmp_path / "empty", keys, first=7) is None
    assert start(tmp_path / "blocks", keys, CHAIN.block(0), CHAIN.block(1)) is None
    assert not (tmp_path / "blocks" / KEPT_NAME).exists()


def test_mode_hash_needs_none(tmp_path: Path) -> None:
    store = stored(tmp_path, [CHAIN.block(0)])
    assert ledger_to_start_with(NO_KEYS, "hash", store, first_number=0) is None
    store.close()


def test_block_0_in_the_stream_gives_them(tmp_path: Path) -> None:
    assert start(tmp_path, NO_KEYS, CHAIN.block(0), CHAIN.block(1)) == NETWORK.ledger
    assert kept_ledger(tmp_path) == NETWORK.ledger
    assert start(tmp_path) == NETWORK.ledger
    assert start(tmp_path, TrustedKeys(tss_id=ID)) == NETWORK.ledger


@pytest.mark.parametrize("key", [f"tss:id={ID.hex()}", "tss:block0"])
def test_a_chain_whose_block_0_publishes_nothing_goes_on_after_a_restart(
    tmp_path: Path, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its first blocks have other proofs: record files of an older network, or those of one's own key."""
    keys = TrustedKeys.parse([key, ledger_key()])
    assert start(tmp_path, keys) is None
    for more in (make_blocks(2), []):
        assert start(tmp_path, keys, *more) is None
    assert [record.getMessage() for record in caplog.records][-1] == (
        "block 0 publishes no ledger data: TSS proofs are refused"
    )
    assert kept_ledger(tmp_path) is None


def test_a_block_0_whose_proof_does_not_hold_gives_none(tmp_path: Path) -> None:
    """Mode hash accepted it."""
    forged = CHAIN.block(0, signed_by=OTHER)
    with pytest.raises(
        LedgerKeyError, match=r"^ledger keys: got none, expected tss:FILE, or a key of another"
    ):
        start(tmp_path, NO_KEYS, forged)
    assert kept_ledger(tmp_path) is None


def test_a_block_0_that_is_too_long_to_search_contradicts_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mode hash accepted it, and nobody can tell what it publishes."""
    assert start(tmp_path, NO_KEYS, CHAIN.block(0)) == NETWORK.ledger
    bounded = partial(publications_in, limits=SearchLimits(fields_max=0))
    monkeypatch.setattr("sluice.gateway.store.trust_store.publications_in", bounded)
    with pytest.raises(LedgerKeyError, match=r"or that block 0 has$"):
        start(tmp_path)
    assert kept_ledger(tmp_path) == NETWORK.ledger


def test_a_chain_that_begins_later_needs_a_file(tmp_path: Path) -> None:
    expected = (
        "expected tss:FILE, or a key of another kind alone: {}, and only block 0 publishes ledger data "
        "(`sluice keygen` makes a key of one's own; --verify hash checks no signatures)"
    )
    for keys, got in ((NO_KEYS, "none"), (TrustedKeys(tss_id=ID), "no tss:FILE")):
        with pytest.raises(LedgerKeyError) as caught:
            start(tmp_path / got, keys, first=391)
        where = "the chain is to begin with block 391"
        assert str(caught.value) == f"ledger keys: got {got}, {expected.format(where)}"
        with pytest.raises(LedgerKeyError) as caught:
            start(tmp_path / got, keys, CHAIN.block(1), CHAIN.block(2), first=1)
        where = "blocks 1 to 2 are here without ledger data"
        assert str(caught.value) == f"ledger keys: got {got}, {expected.format(where)}"
    path = tmp_path / "publication"
    path.write_bytes(NETWORK.publication)
    assert start(tmp_path / "file", TrustedKeys(tss_file=str(path)), first=391) == NETWORK.ledger


def test_what_the_operator_names_has_to_be_what_is_here(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(OTHER.publication)
    data_dir = tmp_path / "data"
    assert start(data_dir, NO_KEYS, CHAIN.block(0)) == NETWORK.ledger
    with pytest.raises(LedgerKeyError) as caught:
        start(data_dir, TrustedKeys(tss_file=str(other)))
    assert str(caught.value) == (
        f"ledger key tss:{other}: got the data of ledger {OTHER.ledger.ledger_id.hex()}, "
        f"expected those that the blocks in {data_dir} were checked with, or that block 0 has"
    )
    with pytest.raises(LedgerKeyError) as caught:
        start(data_dir, TrustedKeys(tss_id=OTHER.ledger.ledger_id))
    assert str(caught.value) == (
        f"ledger key tss:id={OTHER.ledger.ledger_id.hex()}: got another id than that of the ledger data "
        f"here, expected {ID.hex()}, of {data_dir / KEPT_NAME}"
    )
    (data_dir / KEPT_NAME).unlink()
    with pytest.raises(LedgerKeyError, match=r"or that block 0 has$"):
        start(data_dir, TrustedKeys(tss_file=str(other)))
    (data_dir / KEPT_NAME).write_bytes(OTHER.publication)
    with pytest.raises(LedgerKeyError, match=rf"^{data_dir / KEPT_NAME}: got the data of ledger "):
        start(data_dir)


def test_another_wraps_key_is_other_data(tmp_path: Path) -> None:
    """The ledger id does not cover it."""
    twin = TssNetwork((1, 1, 1), wraps_vk=bytes(1768))
    assert twin.ledger.ledger_id == ID
    path = tmp_path / "twin"
    path.write_bytes(twin.publication)
    assert start(tmp_path / "data", NO_KEYS, CHAIN.block(0)) == NETWORK.ledger
    with pytest.raises(LedgerKeyError, match=": got the data of ledger "):
        start(tmp_path / "data", TrustedKeys(tss_file=str(path), tss_id=ID))


def test_an_id_that_is_pinned_later_asks_who_vouches_for_the_wraps_key(tmp_path: Path) -> None:
    """Without a key, a node trusts whoever delivers block 0, perhaps with a WRAPS key of his own."""
    network = TssNetwork((1, 1, 1), wraps_vk=WRAPS.key_bytes())
    chain, pinned = TssChain(network), TrustedKeys(tss_id=ID)
    forged, honest = tmp_path / "forged", tmp_path / "honest"
    assert start(forged, NO_KEYS, chain.block(0, signed_by=Forger((1, 1, 1), seed=2))) == network.ledger
    with pytest.raises(LedgerKeyError) as caught:
        start(forged, pinned)
    assert str(caught.value) == (
        f"{forged / KEPT_NAME}: got a WRAPS key that block 0 does not vouch for, "
        "expected a block 0 with a Schnorr address-book proof, or tss:FILE, a file that you trust"
    )
    assert start(forged) == network.ledger  # as before: no key is needed
    assert start(honest, NO_KEYS, chain.block(0)) == network.ledger
    assert start(honest, pinned) == network.ledger


def test_the_same_data_written_otherwise_are_the_same_data(tmp_path: Path) -> None:
    """Another tool writes the node number 0, or adds a field of a later version."""
    path = tmp_path / "publication"
    path.write_bytes(NETWORK.publication + b"\x20\x01")
    assert ledger_of_file(path).publication != NETWORK.publication
    key = TrustedKeys(tss_file=str(path))
    assert start(tmp_path / "data", key, CHAIN.block(0)) == NETWORK.ledger
    assert start(tmp_path / "data") == NETWORK.ledger
    assert start(tmp_path / "data", key) == NETWORK.ledger
