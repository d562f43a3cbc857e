"""A node and a restore that are killed while they archive, give pages up, and fetch: nothing is lost.

    python -m tests.gateway.archive.test_archive_kills DIR KILLS SEED

    publisher ──▶ sluice serve --archive ──▶ archive ──▶ sluice restore
                        ✗ ✗ ✗                               ✗ ✗

After each kill every entry that was acknowledged is here or there, and no segment has two names. The blocks
are published on. At the end of each round the archive is restored, killed at random moments, too.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from tenacity import wait_fixed

from sluice.datastream import DataStreamer
from sluice.datastream.file.remote_pages import SEGMENT_PAGES
from sluice.gateway.archive.objects import open_store
from sluice.gateway.archive.reader import ArchiveReader
from sluice.gateway.archive.restore import WORK_FOLDER
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.stream_layout import bookmark_of
from sluice.gateway.commands import check
from sluice.gateway.store.block_store import BlockStore
from sluice.publishers.client.client import ClientOptions
from sluice.publishers.protocol.machine import SECOND_NS, MachineLimits
from tests.gateway.archive.chains import varied_blocks
from tests.gateway.store.test_block_store import verified
from tests.nodes import stream_bytes
from tests.serving import SLUICE, Listener, ServeProcess, free_port

MIB = 1 << 20
ROUND_BYTES = 320 * MIB
NODE_KILLS, RESTORE_KILLS = 14, 6
"""In a round."""
AFTER_SECONDS = 2.0
"""The longest time from the last block before a kill to the kill: a segment takes about as long."""
RESTORE_SECONDS = 5.0
"""The longest time to the kill of a restore; where one takes less, that."""
DEADLINE_SECONDS = 120.0
OPTIONS = ClientOptions(
    machine=MachineLimits(deadline_ns=int(DEADLINE_SECONDS) * SECOND_NS),
    wait=wait_fixed(0.05),
    connect_timeout_seconds=1.0,
)


class Good:
    """The folder of a node that never failed."""

    def __init__(self, folder: Path, blocks: list[Block]) -> None:
        self.folder = folder
        self.digests: list[str] = []
        """Of all entries up to the end of each block."""
        digest, store = hashlib.sha256(), BlockStore.open(folder)
        for block in map(verified, blocks):
            begin = store.streamer.committed.total_entries
            store.append([block])
            store.advance(block)
            for entry in store.streamer.read_entries(begin):
                digest.update(entry.data)
            self.digests.append(digest.hexdigest())
        begin = store.streamer.indexed_number(bookmark_of(blocks[-1].number))
        self.segment_count = store.streamer.page_of_entry(begin) // SEGMENT_PAGES
        """Segments that are archived: those before the last block."""
        store.close()


class Round:
    """One chain, its node and its archive."""

    def __init__(self, folder: Path, chance: random.Random, size_bytes: int) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.folder = folder
        self.chance = chance
        self.blocks = list(varied_blocks(size_bytes, chance.randrange(1 << 32)))
        self.good = Good(folder / "good", self.blocks)
        self.place = folder / "archive"
        self.found: Counter[str] = Counter()
        """What a kill had interrupted."""
        self._last = -1
        """The last block that the publisher may send."""

    async def _source(self) -> AsyncIterator[Block]:
        for block in self.blocks:
            while block.number > self._last:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            yield block

    async def kill_node(self, kills: int) -> None:
        """Publish the chain to a node that is killed again and again; look after each kill."""
        ports = ("--grpc", f"127.0.0.1:{free_port()}", "--tcp", f"127.0.0.1:{free_port()}")
        archive = ("--archive", f"file://{self.place}", "--archive-local-bytes", "64MiB")
        with ServeProcess(self.folder / "node", *ports, *archive) as node:
            publisher = Listener([ports[1]], "alice", OPTIONS)
            publishing = asyncio.ensure_future(publisher.publish(self._source()))
            for turn in range(kills):
                await node.start()
                target = len(self.blocks) * (turn + 1) // (kills + 1)
                self._last = min(target + 20, len(self.blocks) - 1)  # blocks are on their way when it dies
                await _until(lambda target=target: publisher.acknowledged[-1:] >= [target])
                await asyncio.sleep(self.chance.uniform(0, AFTER_SECONDS))
                await node.kill()
                self._look(max(publisher.acknowledged))
            await node.start()
            self._last = len(self.blocks)
            report = await asyncio.wait_for(publishing, DEADLINE_SECONDS)
            assert report.unacknowledged == 0
            await _until(lambda: len(self._names()) >= self.good.segment_count)
            await node.kill()
        assert self._look(self.blocks[-1].number) == len(self.blocks)

    def _names(self) -> list[str]:
        return sorted(path.name for path in (self.place / "segments").glob("*.seg"))

    def _look(self, acknowledged: int) -> int:
        """Compare folder and archive with the good ones; return how many blocks there are."""
        names = self._names()
        assert [int(name[:12]) for name in names] == [SEGMENT_PAGES * place for place in range(len(names))]
        folder = self.folder / "node"
        checked = CliRunner().invoke(check.command, [str(folder)])
        assert checked.exit_code == 0, checked.output
        store = BlockStore.open(folder)
        try:
            streamer = store.streamer
            remote = streamer.remote
            reader = ArchiveReader(open_store(f"file://{self.place}"), streamer)
            assert store.last_number is not None
            assert store.last_number >= acknowledged
            assert remote.end <= remote.archived_pages <= SEGMENT_PAGES * len(names)
            digest = hashlib.sha256()
            for entry in streamer.read_entries(0):
                digest.update(entry.data)
            reader.close()
            assert digest.hexdigest() == self.good.digests[store.last_number]
            if remote.archived_pages < SEGMENT_PAGES * len(names):
                self.found["uploaded, not noted"] += 1
            elif streamer.flushed_pages >= remote.archived_pages + SEGMENT_PAGES:
                self.found["a segment under way"] += 1
            elif remote.end < min(remote.archived_pages, streamer.sums.full_count - SEGMENT_PAGES):
                self.found["noted, not given up"] += 1
            else:
                self.found["nothing under way"] += 1
            return store.last_number + 1
        finally:
            store.close()

    def kill_restore(self, kills: int) -> None:
        """Restore the archive in a folder, killed again and again."""
        folder, seconds = self.folder / "restored", RESTORE_SECONDS
        while self.found["restore"] < kills:
            begun = time.monotonic()
            with self._restore(folder) as process:
                try:
                    process.wait(seconds * self.chance.uniform(0.05, 1.0))
                    seconds = min(seconds, time.monotonic() - begun)
                except subprocess.TimeoutExpired:
                    process.kill()
                    self.found["restore"] += 1
            is_over = (folder / "datastream.bin").exists() and not (folder / WORK_FOLDER).exists()
            assert is_over or process.returncode == -signal.SIGKILL
            if is_over:
                self._compare(folder)
                shutil.rmtree(folder)
        if (folder / "datastream.bin").exists():
            self._compare(folder)  # it comes last, whole
        with self._restore(folder) as process:
            assert process.wait(DEADLINE_SECONDS) == 0
        self._compare(folder)

    def _restore(self, folder: Path) -> subprocess.Popen[bytes]:
        words = [*SLUICE, "restore", "--json", f"file://{self.place}", str(folder)]
        return subprocess.Popen(words, stdout=subprocess.DEVNULL)

    def _compare(self, folder: Path) -> None:
        """Compare a restored stream, which ends with the last whole block of the archive."""
        with DataStreamer.open(folder / "datastream.bin") as streamer:
            total = streamer.committed
        restored, good = (
            stream_bytes(path)[4096 : total.total_length] for path in (folder, self.good.folder)
        )
        assert total.total_length > SEGMENT_PAGES * len(self._names()) * MIB - 2 * MIB
        assert restored == good


async def _until(holds: object) -> None:
    assert callable(holds)
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def kill_at_random(folder: Path, kills: int, seed: int, round_bytes: int = ROUND_BYTES) -> Counter[str]:
    """Kill so often, in rounds; return what the kills had interrupted."""
    chance, found = random.Random(seed), Counter[str]()
    while found.total() < kills:
        one = Round(folder / "round", chance, round_bytes)
        left = kills - found.total()
        restores = min(RESTORE_KILLS, max(1, left // 3))
        asyncio.run(one.kill_node(min(NODE_KILLS, max(1, left - restores))))
        one.kill_restore(restores)
        found += one.found
        shutil.rmtree(one.folder)
    return found


@pytest.mark.slow
def test_a_kill_at_any_moment_loses_nothing(tmp_path: Path) -> None:
    assert kill_at_random(tmp_path, 4, 7, 200 * MIB).total() >= 4


if __name__ == "__main__":
    counts = kill_at_random(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    for what, count in counts.most_common():
        sys.stdout.write(f"{count:4} kills: {what}\n")
