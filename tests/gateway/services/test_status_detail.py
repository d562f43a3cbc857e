"""Tests of `gateway.services.status_detail`: what a starting block node takes from the answer."""

from __future__ import annotations

from hashlib import sha256

from sluice import gateway
from sluice.gateway.api import address_book_pb2
from sluice.gateway.blocks.proofs import RsaBook
from sluice.gateway.blocks.proofs.address_book import read_address_book
from sluice.gateway.blocks.proofs.baby_jubjub import point_bytes
from sluice.gateway.blocks.proofs.ledger_data import (
    SENTINEL_KEY,
    LedgerData,
    address_book_hash,
    read_publication,
)
from sluice.gateway.blocks.proofs.schnorr import read_attested_key
from sluice.gateway.services.status_detail import (
    Abilities,
    StatusDetail,
    address_book_message,
    as_json,
    lines,
    tss_data_of,
)
from tests.gateway.blocks.proofs import real
from tests.gateway.blocks.proofs.record_files import book_bytes, public_key_hex
from tests.gateway.blocks.proofs.tss_network import TssNetwork

NETWORK = TssNetwork((3, 1, 2))
U64_MAX = (1 << 64) - 1


def detail(
    ledger: LedgerData | None = None, book: RsaBook | None = None, abilities: Abilities | None = None
) -> StatusDetail:
    return StatusDetail(abilities or Abilities(), book, lambda: ledger)


def features(made: StatusDetail) -> dict[str, list[str]]:
    versions = made.answer(None, None).version_information
    return {one.plugin_id: list(one.plugin_feature_names) for one in versions.installed_plugin_versions}


def test_the_roster_is_the_publications_in_its_order() -> None:
    data = tss_data_of(NETWORK.ledger)
    assert data.ledger_id == NETWORK.ledger.ledger_id
    assert data.wraps_verification_key == NETWORK.ledger.wraps_vk
    assert data.valid_from_block == 0
    entries = data.current_roster.roster_entries
    assert [(one.node_id, one.weight) for one in entries] == [
        (node.node_id, node.weight) for node in NETWORK.ledger.nodes
    ]
    for one, node in zip(entries, NETWORK.ledger.nodes, strict=True):
        assert one.schnorr_public_key in NETWORK.publication  # as published
        assert read_attested_key(one.schnorr_public_key, "key") == node.key


@real.needs_real_blocks
def test_real_keys_are_handed_on_as_they_were_published() -> None:
    publication = real.publication("wraps-chain")
    ledger = read_publication(publication)
    data = tss_data_of(ledger)
    assert len(data.wraps_verification_key) == 1768
    assert address_book_hash(ledger.nodes) == data.ledger_id
    for one in data.current_roster.roster_entries:
        assert len(one.schnorr_public_key) == 192
        assert one.schnorr_public_key in publication


def test_nothing_is_said_of_a_network_that_is_not_known() -> None:
    answer = detail().answer(None, None)
    for name in ("tss_data", "node_address_book", "ranged_address_book_history"):
        assert not answer.HasField(name)
    assert (list(answer.available_ranges), list(answer.stored_ranges)) == ([], [])


def test_what_is_stored_is_available() -> None:
    answer = detail().answer(3, 9)
    for ranges in (answer.available_ranges, answer.stored_ranges):
        assert [(one.range_start, one.range_end) for one in ranges] == [(3, 9)]


def test_ledger_data_that_come_later_are_said_later() -> None:
    known: list[LedgerData | None] = [None]
    made = StatusDetail(Abilities(), None, lambda: known[0])
    assert not made.answer(None, None).HasField("tss_data")
    known[0] = NETWORK.ledger
    assert made.answer(0, 0).tss_data == tss_data_of(NETWORK.ledger)
    assert made.answer(0, 1).stored_ranges[0].range_end == 1


def test_the_address_book_holds_for_all_blocks() -> None:
    book = RsaBook(book_bytes(4))
    answer = detail(book=book).answer(None, None)
    (era,) = answer.ranged_address_book_history.address_books
    assert (era.start_block, era.end_block) == (0, U64_MAX)
    assert era.address_book == answer.node_address_book
    nodes = answer.node_address_book.nodeAddress
    assert [(one.nodeId, one.RSA_PubKey) for one in nodes] == [(k, public_key_hex(k)) for k in range(4)]


def test_a_node_without_a_usable_key_is_left_out_of_the_history() -> None:
    """A block node refuses a history with a blank key."""
    strange: list[object] = [{"nodeId": "7"}, {"nodeId": 8, "RSAPubKey": "00"}, "no object", {"nodeId": "x"}]
    serialized = book_bytes(2, *strange)
    book, with_keys = address_book_message(serialized)
    assert [one.nodeId for one in book.nodeAddress] == [0, 1, 7, 8]
    assert [one.nodeId for one in with_keys.nodeAddress] == [0, 1]
    assert read_address_book(serialized).node_count == 6


def test_what_else_the_book_says_of_a_node_is_kept_where_it_can_be_read() -> None:
    whole = {
        "RSAPubKey": public_key_hex(5),
        "nodeId": "5",
        "nodeAccountId": {"accountNum": "8"},
        "nodeCertHash": "aGFzaA==",
        "serviceEndpoint": [{"ipAddressV4": "fwAAAQ==", "port": 50211, "domainName": "node.example"}],
        "description": "five",
        "somethingNew": [1],
    }
    book, with_keys = address_book_message(book_bytes(1, whole, whole | {"nodeId": "6", "nodeCertHash": 7}))
    assert book == with_keys
    assert book.nodeAddress[1] == address_book_pb2.NodeAddress(
        RSA_PubKey=public_key_hex(5),
        nodeId=5,
        nodeAccountId=address_book_pb2.AccountID(accountNum=8),
        nodeCertHash=b"hash",
        serviceEndpoint=[
            address_book_pb2.ServiceEndpoint(
                ipAddressV4=b"\x7f\0\0\1", port=50211, domain_name="node.example"
            )
        ],
        description="five",
    )
    assert book.nodeAddress[2] == address_book_pb2.NodeAddress(RSA_PubKey=public_key_hex(5), nodeId=6)


def test_the_features_are_what_the_node_can_do() -> None:
    assert features(detail()) == {
        "sluice.publish": ["publishBlockStream"],
        "sluice.subscribe": ["subscribeBlockStream"],
        "sluice.block-access": ["getBlock"],
        "sluice.server-status": ["serverStatus", "serverStatusDetail"],
        "sluice.verification": ["mode full", "root layout 8", "root layout 16", "links"],
        "sluice.data-streamer": ["TCP stream"],
    }
    by_hash = features(detail(NETWORK.ledger, abilities=Abilities("hash", 16, has_ed25519_key=True)))
    assert by_hash["sluice.verification"] == ["mode hash", "root layout 16", "links"]
    abilities = Abilities(has_ed25519_key=True, has_peers=True, min_standbys=2)
    able = features(detail(NETWORK.ledger, RsaBook(book_bytes(1)), abilities))
    assert able["sluice.verification"][4:] == [
        "Ed25519 block proof",
        "TSS block proof",
        "state proof",
        *(["WRAPS address-book proof"] if NETWORK.ledger.wraps_vk else []),
        "RSA record-file proof",
    ]
    assert able["sluice.catch-up"] == ["blocks from peers"]
    assert able["sluice.standbys"] == ["acknowledges what 2 other nodes have"]
    versions = detail().answer(None, None).version_information
    for one in (versions.block_node_version, versions.installed_plugin_versions[0].plugin_software_version):
        assert f"{one.major}.{one.minor}.{one.patch}" == gateway.__version__


def test_people_are_shown_keys_by_their_hashes() -> None:
    """`sluice ledger show` prints the same hashes, for comparison."""
    shown = as_json(detail(NETWORK.ledger, RsaBook(book_bytes(2))).answer(0, 4))
    key = sha256(point_bytes(NETWORK.ledger.nodes[0].key.Y)).hexdigest()[:16]
    assert shown["tss"]["nodes"][0] == {"node_id": NETWORK.ledger.nodes[0].node_id, "weight": 3, "key": key}
    assert shown["tss"]["ledger_id"] == NETWORK.ledger.ledger_id.hex()
    (era,) = shown["address_books"]
    assert (era["start_block"], era["end_block"]) == (0, None)
    assert era["nodes"][0] == {"node_id": 0, "key": sha256(public_key_hex(0).encode()).hexdigest()[:16]}
    written = lines(shown)
    assert f"ledger id     {NETWORK.ledger.ledger_id.hex()}" in written
    assert "roster        3 nodes of weight 6" in written
    assert "address book  2 nodes, from block 0 on" in written


def test_a_sentinel_key_is_shown_as_none() -> None:
    answer = detail(NETWORK.ledger).answer(None, None)
    answer.tss_data.current_roster.roster_entries[0].schnorr_public_key = point_bytes(SENTINEL_KEY) + bytes(
        128
    )
    answer.tss_data.wraps_verification_key = b""
    answer.version_information.block_node_version.pre = "rc.1"
    answer.version_information.block_node_version.build = "7"
    shown = as_json(answer)
    assert shown["tss"]["nodes"][0]["key"] is None
    assert shown["tss"]["wraps_key_sha256"] is None
    assert shown["version"] == f"{gateway.__version__}-rc.1+7"
    assert "WRAPS key     none" in lines(shown)
    assert "blocks        none" in lines(shown)
