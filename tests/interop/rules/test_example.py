"""The protocol's own example, over the wire, word for word."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from sluice.gateway.store.block_store import BlockStore
from tests.gateway.conducting import gate
from tests.interop.rules.scenes import begin, finish, offer, playing


async def test_the_example_that_must_come_out_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with playing(tmp_path, publish_duplicate_skip_window=0) as stage:
        alice, bob, carol = await stage.publishers("alice", "bob", "carol")
        await begin(stage, alice, 9)  # Alice wins 9 and is slow
        await offer(bob, 9)
        await bob.expect("skip 9")
        await begin(stage, bob, 10)  # Bob is skipped for 9, wins and completes 10
        await offer(carol, 9, 10)
        await carol.expect("skip 9", "skip 10")
        await begin(stage, carol, 11)  # Carol is skipped for 9 and 10, wins 11
        await finish(bob, 10)
        await stage.held(10)
        stage.clock.jump(6)  # 9 times out
        await alice.expect("end TIMEOUT last 8 about 9", "closed")
        assert await alice.call.code() is grpc.StatusCode.OK
        await bob.expect("resend 9")
        await carol.expect("resend 9")
        await begin(stage, bob, 9)  # Bob wins 9
        await offer(carol, 9, 10)  # Carol breaks off 11, is skipped for 9, and for 10, which is held
        await carol.expect("skip 9", "skip 10")
        await stage.opened(11)
        await begin(stage, carol, 11)  # and wins 11 again
        with gate(monkeypatch, BlockStore, "begin") as disk:
            await finish(bob, 9)  # when Bob completes 9 …
            await offer(bob, 10, 11)
            await bob.expect("skip 10", "skip 11")  # … he, sending on, is skipped for 10 and 11 …
            disk.open()
            for publisher in (bob, carol):
                await publisher.expect("ack 9", "ack 10")  # … and 9 and 10 go out in that order
        alice = await stage.publisher("alice")
        await offer(alice, 9)
        await alice.expect("end DUPLICATE_BLOCK last 10 about 0", "closed")
        alice = await stage.publisher("alice")
        await offer(alice, 11)
        await alice.expect("skip 11")
        await begin(stage, alice, 12)  # Alice is skipped for 11, wins 12
        await finish(carol, 11)
        for publisher in (alice, bob, carol):
            await publisher.expect("ack 11")
        await offer(bob, 12)
        await bob.expect("skip 12")
        await finish(alice, 12)
        for publisher in (alice, bob, carol):
            await publisher.expect("ack 12")
