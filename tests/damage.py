"""Damage at random places of a node's data folder, and a start on each.

    python -m tests.damage --places 2000 --seed 1

The test makes a folder of a hundred blocks over several data pages. For each place it damages a copy: it
flips a bit, zeroes bytes, cuts a file, restores an earlier version, or deletes it; in the header page, the
data pages, the files of the index, chain.json and role.json. Then it starts on the copy. Either

    the start is refused    the error names the file or the block, and the stream file is unchanged
    or the node starts      with the last acknowledged block, and each block read is the committed one, or an
                            error

Now and then a real node starts instead, and is read over TCP and gRPC. Two kinds of damage show only with
page checksums, and are counted apart ("needs page sums"): bytes between the heads of a full page's entries,
without the module `page_sums`; and the proofs of blocks on the last page but one.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click
from grpc import aio

from sluice.datastream import StreamClient
from sluice.datastream.errors import DatastreamError
from sluice.datastream.layout import (
    HEADER_OFFSET,
    HEADER_PAGE_SIZE,
    HEADER_SIZE,
    PAGE_SIZE,
    Entry,
    file_size_of,
    page_number_of,
    pages_used,
)
from sluice.gateway.addresses import Address
from sluice.gateway.api import node_pb2, node_pb2_grpc
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.items import ItemKind, kind_of
from sluice.gateway.blocks.proofs import ProofVerifier
from sluice.gateway.blocks.root_hash import BlockHasher
from sluice.gateway.blocks.stream_layout import encode
from sluice.gateway.blocks.trusted_keys import TrustedKeys
from sluice.gateway.blocks.verification import BlockVerifier
from sluice.gateway.cluster.role_keeper import read_role, write_role
from sluice.gateway.cluster.roles import RoleRecord
from sluice.gateway.errors import GatewayError
from sluice.gateway.store.block_store import BlockStore, VerifiedBlock
from sluice.gateway.store.last_block import look_at_last_block
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions
from tests.nodes import ANSWER_SECONDS, KEY, ledger_key, running_node

__all__ = ["Folder", "Result", "attack", "run"]

STREAM: Final = "datastream.bin"
HAS_SUMS: Final = importlib.util.find_spec("sluice.datastream.file.page_sums") is not None
OPTIONS: Final = MakerOptions(
    rounds_per_block=1, events_per_round=2, transactions_per_block=8, item_bytes=9_000
)
SNAPSHOTS: Final = 6
"""How many earlier versions to keep for restoring."""
READ_ALWAYS: Final = 12
"""How many blocks to read if the stream file is untouched."""

Files = dict[str, bytes]


class Folder:
    """A data folder at several moments; the last one is that of a killed node."""

    def __init__(self, place: Path, block_count: int) -> None:
        self.blocks = list(BlockMaker(7, KEY, OPTIONS).blocks(block_count))
        self.versions: list[Files] = []
        place.mkdir()
        store = BlockStore.open(place)
        write_role(place, RoleRecord("standby", "127.0.0.1:40840"))
        for number in range(0, block_count, 5):
            group = [_verified(block) for block in self.blocks[number : number + 5]]
            store.append(group)
            for block in group:
                store.advance(block)
            if number // 5 % (block_count // 5 // SNAPSHOTS or 1) == 1:
                store.write_snapshot()
                self.versions.append(_files_of(place))
        self.length = store.streamer.committed.total_length
        self.offsets = [
            store.streamer.offset_of(number) for number in range(store.streamer.committed.total_entries)
        ]
        self.files = _files_of(place)
        store.streamer._bookmarks.close()  # a kill: nothing more is written
        store.streamer._file.disk.close()
        self.entries = [
            Entry(kind, 0, data)
            for block in map(_verified, self.blocks)
            for kind, data in encode(block.number, block.items, block.root_hash)
        ]

    def restore(self, place: Path) -> None:
        """Restore the folder."""
        wanted = self.files
        for path in [path for path in place.rglob("*") if path.is_file()]:
            if str(path.relative_to(place)) not in wanted:
                path.unlink()
        for name, content in wanted.items():
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.is_file() or path.read_bytes() != content:
                path.write_bytes(content)


def _verified(block: Block) -> VerifiedBlock:
    hasher = BlockHasher()
    hasher.add(block.items)
    return VerifiedBlock(block.number, block.items, hasher.finish().root_hash)


def _files_of(place: Path) -> Files:
    """Read all files; of the stream file one page more than used, in case it grew by one."""
    files = {}
    for path in sorted(place.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                content = file.read(HEADER_PAGE_SIZE)
                if path.name == STREAM:
                    length = int.from_bytes(content[HEADER_OFFSET + 22 : HEADER_OFFSET + 30], "big")
                    content += file.read(file_size_of(pages_used(length) + 1) - HEADER_PAGE_SIZE)
                else:
                    content += file.read()
            files[str(path.relative_to(place))] = content
    return files


@dataclass(slots=True)
class Result:
    """The results of all places."""

    counts: Counter[str] = field(default_factory=Counter)
    """Counts by damage and result."""
    failures: list[str] = field(default_factory=list)
    """The violations."""


@dataclass(frozen=True, slots=True)
class Place:
    """The damage."""

    name: str
    """The file."""
    kind: str
    words: str
    offset: int | None = None
    """The first changed byte."""


# --- damage -------------------------------------------------------------------------------------------------


def attack(folder: Folder, place: Path, rng: random.Random) -> Place:
    """Damage one place of a restored folder."""
    name = rng.choice(
        [STREAM] * 6 + ["header"] * 4 + ["chain.json", "role.json"] + [n for n in folder.files if ".db/" in n]
    )
    is_header = name == "header"
    path = place / (STREAM if is_header else name)
    kind = rng.choice(["flip", "flip", "zero", "cut", "roll back", "gone"])
    content = bytearray(path.read_bytes())
    last = HEADER_OFFSET + HEADER_SIZE if is_header else folder.length if name == STREAM else len(content)
    at = rng.randrange(max(last, 1))
    if kind == "flip" and content:
        content[at] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        return Place(path.name, kind, f"{path.name}: bit flipped at {at}", at)
    if kind == "zero" and content:
        size = rng.choice([1, 17, 512, 4096, PAGE_SIZE])
        start = at - at % size if size >= 512 else at
        if size == PAGE_SIZE and start < HEADER_PAGE_SIZE:
            start = HEADER_PAGE_SIZE
        content[start : start + size] = bytes(len(content[start : start + size]))
        path.write_bytes(content)
        return Place(path.name, kind, f"{path.name}: {size} bytes zeroed at {start}", start)
    if kind == "cut":
        size = rng.randrange(len(content) + 1)
        size -= rng.choice([0, (size - HEADER_PAGE_SIZE) % PAGE_SIZE]) if name == STREAM else 0
        path.write_bytes(content[: max(size, 0)])
        return Place(path.name, kind, f"{path.name}: cut to {size}", size)
    if kind == "roll back":
        return _roll_back(folder, place, name, rng)
    path.unlink()
    return Place(path.name, "gone", f"{path.name}: gone", 0)


def _roll_back(folder: Folder, place: Path, name: str, rng: random.Random) -> Place:
    version = rng.randrange(len(folder.versions))
    files = folder.versions[version]
    if name == "header":
        content = bytearray(folder.files[STREAM])
        content[:HEADER_PAGE_SIZE] = files[STREAM][:HEADER_PAGE_SIZE]
        (place / STREAM).write_bytes(content)
        return Place(STREAM, "roll back", f"header page of version {version}", 0)
    if ".db/" in name:  # the whole index: LevelDB's files belong together
        shutil.rmtree(place / "datastream.db")
        for other, content_before in files.items():
            if ".db/" in other:
                (place / other).parent.mkdir(exist_ok=True)
                (place / other).write_bytes(content_before)
        return Place("datastream.db", "roll back", f"index of version {version}")
    (place / name).write_bytes(files[name])
    return Place(name, "roll back", f"{name} of version {version}", 0)


# --- what came of it ----------------------------------------------------------------------------------------


def look(folder: Folder, place: Path, what: Place, result: Result, rng: random.Random) -> None:
    """Start on the damaged folder like a node, and judge."""
    path = place / STREAM
    before = path.read_bytes() if path.exists() else None
    store = None
    try:
        read_role(place)
        store = BlockStore.open(place)
        verifier = BlockVerifier(ProofVerifier(TrustedKeys.parse((ledger_key(),)), "full"))
        last = look_at_last_block(store, verifier)
        if last is not None:
            store.learn(last.layout)
    except (DatastreamError, GatewayError) as error:
        _judge_refusal(place, what, before, error, result)
    else:
        _judge_start(folder, store, what, result, rng)
    finally:
        if store is not None:
            store.streamer.close()


def _judge_refusal(place: Path, what: Place, before: bytes | None, error: Exception, result: Result) -> None:
    result.counts[f"{what.kind}: refused"] += 1
    path = place / STREAM
    after = path.read_bytes() if path.exists() else None
    if after != before and not (before is None or _without_header_write(before, after)):
        result.failures.append(f"{what.words}: refused, and the stream file was changed: {error}")
    if str(place) not in str(error) and "block" not in str(error):
        result.failures.append(f"{what.words}: the error names no place: {error}")


def _without_header_write(before: bytes, after: bytes | None) -> bool:
    """Return whether the opening only zeroed bytes behind the header's end before the refusal."""
    if after is None or len(before) != len(after):
        return False
    end = int.from_bytes(before[HEADER_OFFSET + 22 : HEADER_OFFSET + 30], "big")
    return before[:end] == after[:end]


def _judge_start(folder: Folder, store: BlockStore, what: Place, result: Result, rng: random.Random) -> None:
    last = folder.blocks[-1].number
    if store.last_number != last or store.first_number != 0:
        result.counts[f"{what.kind}: LOST"] += 1
        result.failures.append(f"{what.words}: the node starts with block {store.last_number} of {last}")
        return
    header = store.streamer.header
    if (header.version, header.system_id) != (1, 137):
        result.failures.append(f"{what.words}: clients are told version {header.version}, {header.system_id}")
    numbers = range(last + 1) if what.name == STREAM else sorted(rng.sample(range(last + 1), READ_ALWAYS))
    outcome = "all as it was"
    for number in numbers:
        try:
            stored = store.read_block(number)
        except (DatastreamError, GatewayError):
            outcome = "a damaged page told" if outcome == "all as it was" else outcome
            continue
        wanted = folder.blocks[number].items
        if stored is not None and tuple(stored.items) == tuple(wanted):
            continue
        found = None if stored is None else list(stored.items)
        outcome = _wrong(folder, what, found, list(wanted), number, result)
    result.counts[f"{what.kind}: started, {outcome}"] += 1


def _wrong(
    folder: Folder, what: Place, found: list[bytes] | None, wanted: list[bytes], number: int, result: Result
) -> str:
    """Judge a block that differs from the committed one."""
    is_full = what.offset is not None and page_number_of(what.offset) < page_number_of(folder.length - 1)
    differing = [] if found is None else [a for a, b in zip(wanted, found, strict=False) if a != b]
    is_proof = (
        found is not None
        and len(found) == len(wanted)
        and all(kind_of(item) == ItemKind.BLOCK_PROOF for item in differing)
    )
    if (is_full and not HAS_SUMS) or (is_proof and not is_full):
        return "needs page sums"
    result.failures.append(f"{what.words}: block {number} is read otherwise than it was committed")
    return "WRONG"


async def serve(folder: Folder, place: Path, what: Place, result: Result) -> None:
    """Start a real node on the damaged folder, and read all of it over TCP and gRPC."""
    try:
        async with running_node(place) as node:
            received = await _received(folder, node.tcp_address)
            wrong = [
                number
                for number, (entry, wanted) in enumerate(zip(received, folder.entries, strict=False))
                if (entry.type, entry.data) != (wanted.type, wanted.data)
            ]
            unseen = bool(wrong) and all(_needs_sum(folder, number) for number in wrong)
            if wrong and not unseen:
                result.failures.append(f"{what.words}: entry {wrong[0]} is served otherwise over TCP")
            # A wrong byte of a block was counted above, or shows here.
            if not await _all_blocks_as_they_were(folder, str(node.grpc_address)) and not unseen:
                result.failures.append(f"{what.words}: a block is served otherwise over gRPC")
            result.counts[f"served: {'needs page sums' if unseen else 'as it was, or an error'}"] += 1
    except (DatastreamError, GatewayError):
        result.counts["served: refused"] += 1


async def _received(folder: Folder, address: Address) -> list[Entry]:
    """Return all entries that come over TCP."""
    received: list[Entry] = []
    with contextlib.suppress(OSError, DatastreamError, TimeoutError):
        async with (
            asyncio.timeout(ANSWER_SECONDS),
            StreamClient.connect(address.host, address.port) as client,
        ):
            await client.start(0)
            async for entry in client.entries():
                received.append(entry)
                if len(received) == len(folder.entries):
                    break
    return received


async def _all_blocks_as_they_were(folder: Folder, address: str) -> bool:
    """Ask getBlock for every block: each must be the committed one, or an error."""
    async with aio.insecure_channel(address) as channel:
        stub = node_pb2_grpc.BlockAccessServiceStub(channel)
        for block in folder.blocks:
            request = node_pb2.BlockRequest(block_number=block.number)
            try:
                answer = await stub.getBlock(request, timeout=ANSWER_SECONDS)
            except aio.AioRpcError:
                continue
            items = tuple(answer.block.items)
            if items and items != tuple(block.items):
                return False
    return True


def _needs_sum(folder: Folder, number: int) -> bool:
    """Return whether only a page's checksum can show that an entry is wrong."""
    is_full = page_number_of(folder.offsets[number]) < page_number_of(folder.length - 1)
    return not HAS_SUMS if is_full else _is_proof(folder.entries[number])


def _is_proof(entry: Entry) -> bool:
    return entry.type == ItemKind.BLOCK_PROOF


def run(
    places: int,
    seed: int,
    *,
    block_count: int = 400,
    served_every: int = 50,
    say: Callable[[str], None] = lambda line: None,
) -> Result:
    """Damage this many places, one after the other."""
    logging.getLogger().setLevel(logging.CRITICAL)
    rng, result = random.Random(seed), Result()
    with tempfile.TemporaryDirectory(prefix="sluice-damage-") as name:
        base, place = Path(name) / "base", Path(name) / "damaged"
        folder = Folder(base, block_count)
        place.mkdir()
        for count in range(places):
            folder.restore(place)
            what = attack(folder, place, rng)
            if count % served_every == served_every - 1:
                (place / "role.json").unlink(missing_ok=True)
                asyncio.run(serve(folder, place, what, result))
            else:
                look(folder, place, what, result, rng)
            if count % 100 == 99:
                say(f"{count + 1} places, {len(result.failures)} failures")
    return result


@click.command()
@click.option("--places", type=click.IntRange(1), default=2000, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--blocks", type=click.IntRange(60), default=400, show_default=True)
def main(places: int, seed: int, blocks: int) -> None:
    """Damage a data folder at random places, and start on it."""
    result = run(places, seed, block_count=blocks, say=lambda line: click.echo(line, err=True))
    for what, count in sorted(result.counts.items()):
        click.echo(f"{count:6}  {what}")
    for failure in result.failures:
        click.echo(f"FAILED  {failure}")
    if result.failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
