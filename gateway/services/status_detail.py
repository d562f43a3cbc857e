"""The answer to `serverStatusDetail`: versions, abilities, blocks, and the node's knowledge of the network.

Pure. The answer has the form in which starting block nodes accept it from a peer:

    tss_data                       the ledger data that TSS proofs are checked with, valid from block 0; a key
                                   is the attested key, as published
    node_address_book              the address book that record files are checked with
    ranged_address_book_history    the same book, for all blocks, without nodes that have no usable key: they
                                   would make a block node refuse the book

Source: docs/spec/wire.md section 2.3; HIP-1081.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from google.protobuf import json_format

from sluice.gateway import __version__
from sluice.gateway.api import address_book_pb2, block_pb2, node_pb2
from sluice.gateway.blocks.block_numbers import U64_MAX
from sluice.gateway.blocks.proofs import ProofKind, RsaBook
from sluice.gateway.blocks.proofs.address_book import key_of_entry
from sluice.gateway.blocks.proofs.baby_jubjub import POINT_SIZE, point_bytes
from sluice.gateway.blocks.proofs.ledger_data import SENTINEL_KEY, LedgerData
from sluice.gateway.blocks.proofs.schnorr import attested_key_bytes
from sluice.gateway.blocks.root_hash import RootLayout
from sluice.gateway.blocks.trusted_keys import VerificationMode

__all__ = [
    "KEY_HASH_BYTES",
    "Abilities",
    "StatusDetail",
    "address_book_message",
    "as_json",
    "lines",
    "tss_data_of",
]

KEY_HASH_BYTES: Final = 8
"""Bytes of a key's hash shown to people: enough to distinguish honest nodes' keys."""
_STREAM_PROTO_VERSION: Final = block_pb2.SemanticVersion(minor=78)
"""The HAPI version of layouts 8 and 16 (docs/verification.md)."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """The abilities of a node, by its settings."""

    verification_mode: VerificationMode = "full"
    root_layout: RootLayout = "auto"
    has_ed25519_key: bool = False
    has_peers: bool = False
    min_standbys: int = 0


class StatusDetail:
    """The answers of one node."""

    def __init__(
        self, abilities: Abilities, rsa_book: RsaBook | None, ledger: Callable[[], LedgerData | None]
    ) -> None:
        self._abilities = abilities
        self._rsa_book = rsa_book
        self._ledger = ledger
        self._made: tuple[LedgerData | None, node_pb2.ServerStatusDetailResponse] | None = None

    def answer(self, first: int | None, last: int | None) -> node_pb2.ServerStatusDetailResponse:
        """Return the answer of a node that holds the blocks `first` to `last`; None: it is empty."""
        ledger = self._ledger()
        if self._made is None or self._made[0] is not ledger:
            self._made = ledger, self._make(ledger)  # once: an address book takes some milliseconds
        detail = node_pb2.ServerStatusDetailResponse()
        detail.CopyFrom(self._made[1])
        if first is not None and last is not None:
            detail.available_ranges.add(range_start=first, range_end=last)
            detail.stored_ranges.add(range_start=first, range_end=last)
        return detail

    def _make(self, ledger: LedgerData | None) -> node_pb2.ServerStatusDetailResponse:
        version = _version()
        detail = node_pb2.ServerStatusDetailResponse(
            version_information=node_pb2.BlockNodeVersions(
                stream_proto_version=_STREAM_PROTO_VERSION, block_node_version=version
            )
        )
        for name, features in _plugins(self._abilities, ledger, self._rsa_book):
            detail.version_information.installed_plugin_versions.add(
                plugin_id=f"sluice.{name}", plugin_software_version=version, plugin_feature_names=features
            )
        if ledger is not None:
            detail.tss_data.CopyFrom(tss_data_of(ledger))
        if self._rsa_book is not None:
            book, with_keys = address_book_message(self._rsa_book.serialized)
            detail.node_address_book.CopyFrom(book)
            detail.ranged_address_book_history.address_books.add(address_book=with_keys, end_block=U64_MAX)
        return detail


def tss_data_of(ledger: LedgerData) -> node_pb2.TssData:
    """Make the message of the ledger data."""
    return node_pb2.TssData(
        ledger_id=ledger.ledger_id,
        wraps_verification_key=ledger.wraps_vk,
        current_roster=node_pb2.TssRoster(
            roster_entries=[
                node_pb2.RosterEntry(
                    node_id=node.node_id,
                    weight=node.weight,
                    schnorr_public_key=attested_key_bytes(node.key),
                )
                for node in ledger.nodes
            ]
        ),
    )


def address_book_message(
    serialized: bytes,
) -> tuple[address_book_pb2.NodeAddressBook, address_book_pb2.NodeAddressBook]:
    """Make two messages of an address book, in JSON: of all nodes, and of those with a usable key."""
    book, with_keys = address_book_pb2.NodeAddressBook(), address_book_pb2.NodeAddressBook()
    for entry in json.loads(serialized)["nodeAddress"]:
        found = key_of_entry(entry)
        address = _address(entry, found)
        if address is not None:
            book.nodeAddress.append(address)
            if found is not None:
                with_keys.nodeAddress.append(address)
    return book, with_keys


def _address(entry: object, found: tuple[int, bytes] | None) -> address_book_pb2.NodeAddress | None:
    """An unreadable entry gives only number and key."""
    if not isinstance(entry, dict):
        return None
    try:
        return json_format.ParseDict(entry, address_book_pb2.NodeAddress(), ignore_unknown_fields=True)
    except json_format.ParseError:
        if found is None:
            return None
        return address_book_pb2.NodeAddress(nodeId=found[0], RSA_PubKey=found[1].hex())


def _plugins(
    abilities: Abilities, ledger: LedgerData | None, rsa_book: RsaBook | None
) -> list[tuple[str, list[str]]]:
    """A "plugin" of the reference is a part of this node."""
    layouts = (8, 16) if abilities.root_layout == "auto" else (abilities.root_layout,)
    checks = [
        f"mode {abilities.verification_mode}",
        *(f"root layout {layout}" for layout in layouts),
        "links",
    ]
    if abilities.verification_mode == "full":
        checks += _proof_kinds(abilities, ledger, rsa_book)
    plugins = [
        ("publish", ["publishBlockStream"]),
        ("subscribe", ["subscribeBlockStream"]),
        ("block-access", ["getBlock"]),
        ("server-status", ["serverStatus", "serverStatusDetail"]),
        ("verification", checks),
        ("data-streamer", ["TCP stream"]),
    ]
    if abilities.has_peers:
        plugins.append(("catch-up", ["blocks from peers"]))
    if abilities.min_standbys:
        plugins.append(("standbys", [f"acknowledges what {abilities.min_standbys} other nodes have"]))
    return plugins


def _proof_kinds(abilities: Abilities, ledger: LedgerData | None, rsa_book: RsaBook | None) -> list[str]:
    kinds = [ProofKind.ED25519.value] if abilities.has_ed25519_key else []
    if ledger is not None:
        kinds += [ProofKind.TSS.value, ProofKind.STATE.value]
        if ledger.wraps_vk:
            kinds.append("WRAPS address-book proof")
    if rsa_book is not None:
        kinds.append(ProofKind.RECORD_FILE.value)
    return kinds


# --- for people ---------------------------------------------------------------------------------------------


def as_json(detail: node_pb2.ServerStatusDetailResponse) -> dict[str, Any]:
    """Return an answer as plain values, with hashes of keys."""
    versions, tss = detail.version_information, detail.tss_data
    return {
        "version": _version_text(versions.block_node_version),
        "stream_version": _version_text(versions.stream_proto_version),
        "available_ranges": [[one.range_start, one.range_end] for one in detail.available_ranges],
        "stored_ranges": [[one.range_start, one.range_end] for one in detail.stored_ranges],
        "plugins": {
            one.plugin_id: list(one.plugin_feature_names) for one in versions.installed_plugin_versions
        },
        "tss": None
        if not detail.HasField("tss_data")
        else {
            "ledger_id": tss.ledger_id.hex(),
            "wraps_key_sha256": sha256(tss.wraps_verification_key).hexdigest()
            if tss.wraps_verification_key
            else None,
            "valid_from_block": tss.valid_from_block,
            "nodes": [
                {"node_id": one.node_id, "weight": one.weight, "key": _schnorr_key(one.schnorr_public_key)}
                for one in tss.current_roster.roster_entries
            ],
        },
        "address_books": [
            {
                "start_block": era.start_block,
                "end_block": None if era.end_block == U64_MAX else era.end_block,
                "nodes": [
                    {"node_id": one.nodeId, "key": _shown(one.RSA_PubKey.encode())}
                    for one in era.address_book.nodeAddress
                ],
            }
            for era in detail.ranged_address_book_history.address_books
        ],
    }


def lines(detail: dict[str, Any]) -> list[str]:
    """Return the result of `as_json` as lines of text."""
    written = [f"version       {detail['version']}, blocks of HAPI {detail['stream_version']}"]
    stored = ", ".join(f"{first} to {last}" for first, last in detail["stored_ranges"])
    written.append(f"blocks        {stored or 'none'}")
    tss = detail["tss"]
    if tss is not None:
        weight = sum(node["weight"] for node in tss["nodes"])
        written.append(f"ledger id     {tss['ledger_id']}")
        written.append(f"WRAPS key     {tss['wraps_key_sha256'] or 'none'}")
        written.append(f"roster        {len(tss['nodes'])} nodes of weight {weight}")
    for era in detail["address_books"]:
        end = "on" if era["end_block"] is None else f"to {era['end_block']}"
        written.append(f"address book  {len(era['nodes'])} nodes, from block {era['start_block']} {end}")
    written += [f"{name}: {', '.join(features)}" for name, features in detail["plugins"].items()]
    return written


def _schnorr_key(attested: bytes) -> str | None:
    """Return the key as `sluice ledger show` prints it."""
    key = attested[:POINT_SIZE]
    return None if key == point_bytes(SENTINEL_KEY) else _shown(key)


def _shown(key: bytes) -> str:
    return sha256(key).hexdigest()[: 2 * KEY_HASH_BYTES]


def _version_text(version: block_pb2.SemanticVersion) -> str:
    text = f"{version.major}.{version.minor}.{version.patch}"
    text += f"-{version.pre}" if version.pre else ""
    return text + (f"+{version.build}" if version.build else "")


def _version() -> block_pb2.SemanticVersion:
    major, minor, patch = (int(part) for part in __version__.split("."))
    return block_pb2.SemanticVersion(major=major, minor=minor, patch=patch)
