"""A publisher that misbehaves at a real node, and `sluice misbehave`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from sluice.gateway.blocks.block import Block
from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.commands.misbehave import command
from sluice.publishers.demo.misbehaving import AHEAD_BLOCKS
from sluice.publishers.errors import MisbehaviourFailed, SourceUnreachable
from sluice.publishers.job.local_job import publish_locally
from sluice.publishers.spark.source_names import parse_source
from tests.certificates import Authority
from tests.nodes import make_blocks
from tests.publishers.fake_node import FakeNode, FakeStream, running
from tests.publishers.node_thread import node_thread, store

BLOCKS = make_blocks(12)


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    folder = tmp_path / "chain"
    folder.mkdir()
    for block in BLOCKS:
        write_block_file(folder / f"{block.number}.blk.gz", block)
    return folder


def run(*words: object) -> tuple[int, dict[str, object]]:
    """Run the command; return its exit status and what it printed."""
    result = CliRunner().invoke(command, [*map(str, words), "--json"], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.return_value, json.loads(result.stdout)


@pytest.mark.parametrize(
    ("kind", "block", "answers"),
    [
        ("hang", 6, ["EndOfStream(TIMEOUT, 5)"]),
        ("disconnect", 6, []),
        ("bad-proof", 6, ["EndOfStream(BAD_BLOCK_PROOF, 5)"]),
        ("repeat", 0, ["SkipBlock(5)", "EndOfStream(DUPLICATE_BLOCK, 5)"]),
        ("ahead", 6 + AHEAD_BLOCKS, ["BehindPublisher(5)"]),
    ],
)
def test_each_kind_hears_what_the_protocol_has(
    tmp_path: Path, chain: Path, kind: str, block: int, answers: list[str]
) -> None:
    """And the next publisher finishes the chain as if nothing had been."""
    store(tmp_path / "data", BLOCKS[:6])
    settings = {"publish_idle_timeout_seconds": 1.0, "publish_duplicate_skip_window": 2}
    with node_thread(tmp_path / "data", **settings) as node:
        gateway = str(node.grpc_address)
        status, said = run(kind, "--source", chain, "--gateway", gateway, "--patience", "30")
        assert (status, said) == (0, {"kind": kind, "block": block, "answers": answers, "expected": True})
        assert publish_locally(parse_source(str(chain)), [gateway]).is_complete
        for number, published in enumerate(BLOCKS):
            found = node.store.read_block(number)
            assert found is not None
            assert found.items == published.items


def test_it_takes_the_next_block_that_nobody_sends(tmp_path: Path, chain: Path) -> None:
    async def busy(stream: FakeStream) -> None:
        for number in range(3):
            assert (await stream.header())[0] == number
            await stream.skip(number)
        await stream.end("TIMEOUT", 2**64 - 1)
        await stream.drain()

    with running(FakeNode(default=busy)) as node:
        status, said = run("hang", "--source", chain, "--gateway", node.address)
    assert (status, said["block"]) == (0, 3)


def test_one_that_hangs_alone_is_told_why_it_hears_nothing(tmp_path: Path, chain: Path) -> None:
    with node_thread(tmp_path / "node") as node:
        words = ["hang", "--source", str(chain), "--gateway", str(node.grpc_address), "--patience", "0.5"]
        result = CliRunner().invoke(command, words, standalone_mode=False)
    assert result.return_value == 1
    assert "expected EndOfStream(TIMEOUT); with no other publisher there, after publish.idle" in result.output


def test_a_gateway_that_answers_otherwise_is_exit_1(chain: Path) -> None:
    async def careless(stream: FakeStream) -> None:
        block = await stream.block()
        await stream.acknowledge(block.number)
        await stream.drain()

    with running(FakeNode(default=careless)) as node:
        words = ["bad-proof", "--source", str(chain), "--gateway", node.address, "--patience", "0.5"]
        result = CliRunner().invoke(command, words, standalone_mode=False)
    assert result.return_value == 1
    expected = "sluice: bad-proof: got nothing for 0.5 s, expected EndOfStream(BAD_BLOCK_PROOF)\n"
    assert result.stderr == expected


def test_what_is_missing_is_said(tmp_path: Path, chain: Path) -> None:
    with pytest.raises(SourceUnreachable, match=r"127\.0\.0\.1:1: "):
        run("hang", "--source", chain, "--gateway", "127.0.0.1:1")
    with node_thread(tmp_path / "empty") as node:
        with pytest.raises(MisbehaviourFailed, match="no block yet that could be repeated"):
            run("repeat", "--source", chain, "--gateway", node.grpc_address)
        (chain / "0.blk.gz").unlink()
        with pytest.raises(MisbehaviourFailed, match="wants block 0, which the source does not have"):
            run("hang", "--source", chain, "--gateway", node.grpc_address)


def test_a_refused_stream_says_why(tmp_path: Path, chain: Path) -> None:
    authority = Authority(tmp_path)
    alice, bob = authority.issue("alice"), authority.issue("bob")
    settings = {
        "grpc_tls_certificate": authority.issue("localhost").certificate,
        "grpc_tls_key": authority.issue("localhost").key,
        "grpc_tls_client_ca": authority.path,
        "publish_allowed_subjects": ("CN=alice",),
    }
    with node_thread(tmp_path / "node", **settings) as node:
        words = (
            "--source",
            chain,
            "--gateway",
            f"localhost:{node.grpc_address.port}",
            "--tls-ca",
            authority.path,
        )
        with pytest.raises(SourceUnreachable, match="PERMISSION_DENIED"):
            run("hang", *words, "--tls-cert", bob.certificate, "--tls-key", bob.key)
        status, said = run("bad-proof", *words, "--tls-cert", alice.certificate, "--tls-key", alice.key)
        assert (status, said["block"]) == (0, 0)


def test_a_gateway_that_tells_its_last_block_only_when_asked_to_take_it(tmp_path: Path, chain: Path) -> None:
    """Without `serverStatus` the first answer tells where to go on."""

    async def behind(stream: FakeStream) -> None:
        number, _ = await stream.header()
        if number <= 5:
            await stream.end("DUPLICATE_BLOCK", 5)
        else:
            await stream.end("TIMEOUT", 5)
        await stream.drain()

    with running(FakeNode(default=behind)) as node:
        status, said = run("hang", "--source", chain, "--gateway", node.address)
        assert (status, said["block"], node.stream_count) == (0, 6, 2)


def test_a_late_skip_is_heard(chain: Path) -> None:
    async def slow(stream: FakeStream) -> None:
        number, _ = await stream.header()
        await asyncio.sleep(0.5)
        await stream.skip(number)
        await stream.header()
        await stream.end("TIMEOUT", 2**64 - 1)
        await stream.drain()

    with running(FakeNode(default=slow)) as node:
        status, said = run("hang", "--source", chain, "--gateway", node.address)
    assert (status, said["block"]) == (0, 1)


def test_a_block_without_a_proof_has_none_that_could_be_wrong(tmp_path: Path) -> None:
    write_block_file(tmp_path / "0.blk", Block(0, BLOCKS[0].items[:-1]))
    with running(FakeNode()) as node, pytest.raises(MisbehaviourFailed, match="block 0 has no proof"):
        run("bad-proof", "--source", tmp_path, "--gateway", node.address)
