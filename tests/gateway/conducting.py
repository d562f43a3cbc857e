"""A conductor with a real block store on a disk that fails when told to, and publishers moved by hand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sluice.datastream.file.disk import RealDisk
from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.item_set import inspect
from sluice.gateway.blocks.proofs import ProofVerifier
from sluice.gateway.blocks.trusted_keys import TrustedKeys
from sluice.gateway.blocks.verification import BlockVerifier
from sluice.gateway.metrics import Metrics
from sluice.gateway.pipeline.conductor import Conductor
from sluice.gateway.pipeline.limits import PipelineLimits
from sluice.gateway.race.actions import Response
from sluice.gateway.race.arbiter import Arbiter
from sluice.gateway.race.records import RaceRules
from sluice.gateway.store.block_store import CHAIN_SNAPSHOT_BLOCKS, BlockStore
from sluice.gateway.workers.proof_checks import ProofChecks
from tests.datastream.fake_disk import FailingDisk
from tests.gateway.racing import text_of
from tests.nodes import ANSWER_SECONDS, ledger_key, stream_bytes


class Hand:
    def __init__(self, stage: Stage, name: str, address: str = "") -> None:
        self.conductor = stage.conductor
        self.outbox = stage.conductor.connect(name, address=address)
        self._heard: list[Response] = []

    def items(self, *items: bytes) -> None:
        self.conductor.offer(self.outbox, inspect(items))

    def end(self, number: int) -> None:
        arbiter = self.conductor.arbiter
        self.conductor.perform(arbiter.block_end(self.outbox.publisher_id, number, self.conductor.now_ns()))

    def block(self, *blocks: Block) -> None:
        for block in blocks:
            self.items(*block.items)
            self.end(block.number)

    async def expect(self, *texts: str) -> None:
        while len(self._heard) < len(texts):
            async with asyncio.timeout(ANSWER_SECONDS):
                taken = await self.outbox.get()
            assert taken, f"the stream is over after {[text_of(one) for one in self._heard]}"
            self._heard += taken
        got = [text_of(self._heard.pop(0)) for _ in texts]
        assert got == list(texts)

    async def expect_end(self, text: str) -> None:
        """Assert the last response, and the end of the stream."""
        await self.expect(text)
        assert self._heard == []
        assert await self.outbox.get() == []


class Stage:
    """A conductor with a real block store on a disk that fails when the test says so."""

    def __init__(
        self,
        data_dir: Path,
        rules: RaceRules | None,
        *,
        limits: PipelineLimits | None = None,
        snapshot_blocks: int = CHAIN_SNAPSHOT_BLOCKS,
        **options: Any,
    ) -> None:
        path = data_dir / "datastream.bin"
        path.touch()
        self.disk = FailingDisk(RealDisk(path))
        self.store = BlockStore.open(data_dir, disk=self.disk, snapshot_blocks=snapshot_blocks)
        self.events = self.disk.calls
        """Calls of the disk, and notes of the test."""
        self.events.clear()
        proofs = ProofVerifier(TrustedKeys.parse((ledger_key(),)), "full")
        self.metrics = Metrics(verification_mode="full")
        self.conductor = Conductor(
            Arbiter(self.store.last_number, 0, rules),
            self.store,
            ProofChecks(BlockVerifier(proofs)),
            self.metrics,
            limits=limits or PipelineLimits(disk_probe_seconds=0.01),
            **options,
        )

    def publisher(self, name: str, *, address: str = "") -> Hand:
        return Hand(self, name, address)


def on_stage(
    tmp_path: Path,
    play: Callable[[Any], Awaitable[None]],
    *,
    stage_type: type[Stage] = Stage,
    rules: RaceRules | None = None,
    stop_seconds: float = ANSWER_SECONDS,
    **options: Any,
) -> bytes:
    """Play a scene; return the stream file's bytes.

    Args:
        stop_seconds: how long the end waits for blocks; a scene that leaves some that never end gives less.
    """

    async def main() -> None:
        stage = stage_type(tmp_path, rules, **options)
        try:
            await play(stage)
            assert not stage.conductor.broken.done()
        finally:
            await stage.conductor.stop(stop_seconds)
            stage.store.close()

    tmp_path.mkdir(exist_ok=True)
    asyncio.run(main())
    return stream_bytes(tmp_path)


def logged(caplog: pytest.LogCaptureFixture, message: str) -> list[dict[str, Any]]:
    return [record.sluice_fields for record in caplog.records if record.message == message]  # type: ignore[attr-defined]


@contextmanager
def gate(monkeypatch: pytest.MonkeyPatch, owner: object, method: str) -> Iterator[Gate]:
    """Hold calls of a method that come from other threads until the gate opens."""
    made = Gate(getattr(owner, method))
    monkeypatch.setattr(owner, method, lambda *args, **kwargs: made(*args, **kwargs))
    try:
        yield made
    finally:
        made.open()


class Gate:
    """A method that waits while the gate is shut."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        self._opened = threading.Event()
        self._arrived = threading.Event()
        self.threads: list[str] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Wait unless this is the main thread, then call the method."""
        if threading.current_thread() is not threading.main_thread():
            self.threads.append(threading.current_thread().name.split("_")[0])
            self._arrived.set()
            assert self._opened.wait(ANSWER_SECONDS)
        return self._method(*args, **kwargs)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._arrived.wait, ANSWER_SECONDS)

    def open(self) -> None:
        """Let everybody through from now on."""
        self._opened.set()
