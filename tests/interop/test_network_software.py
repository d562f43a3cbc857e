"""The network's own transport against a node, and our commands against a server on that transport.

A consensus node's client (PBJ over Helidon) sends no `te`, and counts each update of a stream's window twice.
A Java block node's server accepts pseudo-headers by index only. SLUICE_LONG=1 runs all without TLS, too.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_pem_x509_certificate

from sluice.gateway.blocks.block import Block
from sluice.gateway.transport.channels import ClientTls
from sluice.publishers.blocks.block_places import read_chain
from sluice.publishers.blocks.maker import BlockMaker, MakerOptions
from sluice.publishers.client.client import ClientOptions
from sluice.publishers.demo.node_process import NodeProcess
from tests.certificates import Authority
from tests.disks import small_file_system
from tests.interop.network_software import NetworkProcess, NetworkSoftware, NetworkSoftwareMissing
from tests.interop.sinking import wait_until, write_chain
from tests.nodes import KEY, each, ledger_key, make_blocks
from tests.serving import Listener, free_port, sluice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG_CHAIN = 100
"""25 MB, more than any window."""
READ = 80
"""Blocks of the long chain to read again."""
QUARTER_MEGABYTE = MakerOptions(rounds_per_block=1, transactions_per_block=90, item_bytes=5_500)
LONG_ITEM = 36_000_000
LONG_ITEMS = MakerOptions(rounds_per_block=1, transactions_per_block=1, item_bytes=LONG_ITEM)
LONG_ITEMS_SEED = 2
"""In a chain of which only the second block has such an item."""
SMALL_CHAIN = 20
LONG = os.environ.get("SLUICE_LONG") == "1"
TRANSPORTS = ["plain", "tls"] if LONG else ["tls"]
"""Of tests that have little to do with it."""
TLS_ONLY = pytest.mark.parametrize("entrance", TRANSPORTS, indirect=True)
COMMAND_SECONDS = 120.0
CORRELATION_ID = "N3-STR1"


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> NetworkSoftware:
    """The network's client and server, compiled by the first worker that needs them."""
    folder = tmp_path_factory.getbasetemp() / "network"
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent.parent / "network"  # of all workers of this run
    folder.mkdir(exist_ok=True)
    try:
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return NetworkSoftware.find(folder)
    except NetworkSoftwareMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def long_chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 blocks of about 250 kB."""
    blocks = list(BlockMaker(7, KEY, QUARTER_MEGABYTE).blocks(LONG_CHAIN))
    mean = sum(block.size_bytes for block in blocks) / len(blocks)
    assert 230_000 < mean < 290_000
    return write_chain(tmp_path_factory.mktemp("long") / "chain", blocks)


@pytest.fixture(scope="module")
def small_chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 small blocks."""
    return write_chain(tmp_path_factory.mktemp("small") / "chain", make_blocks(SMALL_CHAIN))


class Entrance:
    """A node's address for the network's client, and what the client trusts.

    Args:
        folder: for the node's files and the certificate.
        with_tls: the node has a certificate, which clients know by its hash.
        hash_name: the hash.
    """

    def __init__(self, folder: Path, *, with_tls: bool, hash_name: str = "sha384") -> None:
        self.folder = folder
        self.port = free_port()
        self.node_words: tuple[str, ...] = ("--grpc", f"127.0.0.1:{self.port}", "--ledger-key", ledger_key())
        self.client_words: tuple[str, ...] = ()
        self.url = f"http://127.0.0.1:{self.port}"
        if with_tls:
            pair = Authority(folder).issue("localhost")
            self.node_words += ("--grpc-tls-certificate", str(pair.certificate))
            self.node_words += ("--grpc-tls-key", str(pair.key))
            certificate = load_pem_x509_certificate(pair.certificate.read_bytes())
            der = certificate.public_bytes(Encoding.DER)
            self.client_words = ("--pin", hashlib.new(hash_name, der).hexdigest())
            self.url = f"https://127.0.0.1:{self.port}"

    def node(self, *words: str) -> NodeProcess:
        """Start a node; again in the same folder, on the same port."""
        return NodeProcess(self.folder / "data", self.folder / "log", [*self.node_words, *words])

    def logged(self, text: str) -> list[str]:
        """Return the node's log lines with a text."""
        return [line for line in (self.folder / "log").read_text("utf-8").splitlines() if text in line]


@pytest.fixture(params=["plain", "tls"])
def entrance(request: pytest.FixtureRequest, tmp_path: Path) -> Entrance:
    """An entrance of either kind."""
    return Entrance(tmp_path, with_tls=request.param == "tls")


def acknowledgements(lines: Sequence[str]) -> list[int]:
    """The numbers of the lines `ACK N`."""
    return [int(line.removeprefix("ACK ")) for line in lines if line.startswith("ACK ")]


def item_hashes(folder: Path) -> list[str]:
    """Return what `NetworkClient subscribe` prints for the blocks of a folder."""
    return [
        f"BLOCK {block.number} {len(block.items)} {hashlib.sha256(b''.join(block.items)).hexdigest()}"
        for block in read_chain(folder)
    ]


# --- the network's client, a node of ours -------------------------------------------------------------------


def test_the_status_of_an_empty_node_is_none(network: NetworkSoftware, entrance: Entrance) -> None:
    with entrance.node():
        assert network.run("NetworkClient", "status", entrance.url, *entrance.client_words) == (
            0,
            ["STATUS none none"],
        )


@pytest.mark.slow
@TLS_ONLY
def test_100_blocks_of_250_kb_are_published_and_read_again(
    network: NetworkSoftware, entrance: Entrance, long_chain: Path
) -> None:
    words = (*entrance.client_words, "--soft", "100000")
    with entrance.node():
        status, lines = network.run("NetworkClient", "publish", entrance.url, long_chain, *words)
        assert (status, lines[-1]) == (0, f"DONE {LONG_CHAIN - 1}"), lines[-5:]
        # On one stream, each block is acknowledged once and in order.
        assert lines[0] == "CONNECT 0"
        assert sum(line.startswith("CONNECT") for line in lines) == 1
        assert acknowledgements(lines) == list(range(LONG_CHAIN))
        status, lines = network.run(
            "NetworkClient", "subscribe", entrance.url, 0, READ - 1, *entrance.client_words
        )
        assert (status, lines[-2:]) == (0, ["STATUS SUCCESS", "COMPLETE"])
        assert lines[:-2] == item_hashes(long_chain)[:READ]


def test_a_publisher_is_logged_by_the_node_of_its_correlation_id(
    network: NetworkSoftware, tmp_path: Path, small_chain: Path
) -> None:
    """Without the stream's number, which varies."""
    entrance = Entrance(tmp_path, with_tls=False)
    with entrance.node(), talking(network, entrance, small_chain, CORRELATION_ID) as alice:
        alice.say("block 0")
        alice.expect("ACK 0")
    assert entrance.logged('"publisher": "claimed:N3"')


@pytest.mark.slow
@TLS_ONLY
def test_items_of_36_mb_are_published_and_read_again(
    network: NetworkSoftware, entrance: Entrance, tmp_path: Path
) -> None:
    blocks = list(BlockMaker(LONG_ITEMS_SEED, KEY, LONG_ITEMS).blocks(3))
    assert [max(map(len, block.items)) >= LONG_ITEM for block in blocks] == [False, True, False]
    chain = write_chain(tmp_path / "chain", blocks)
    with entrance.node():
        status, lines = network.run("NetworkClient", "publish", entrance.url, chain, *entrance.client_words)
        assert (status, lines) == (0, ["CONNECT 0", "ACK 0", "ACK 1", "ACK 2", "DONE 2"])
        status, lines = network.run("NetworkClient", "subscribe", entrance.url, 0, 2, *entrance.client_words)
        assert (status, lines) == (0, [*item_hashes(chain), "STATUS SUCCESS", "COMPLETE"])


@pytest.mark.slow
@TLS_ONLY
def test_two_that_race_store_each_block_once(
    network: NetworkSoftware, entrance: Entrance, long_chain: Path
) -> None:
    last = LONG_CHAIN - 1
    publish = ("publish", entrance.url, long_chain, *entrance.client_words)
    with (
        entrance.node(),
        network.start("NetworkClient", *publish, "--id", "N3-STR1") as alice,
        network.start("NetworkClient", *publish, "--id", "N4-STR1") as bob,
    ):
        assert [alice.ended(), bob.ended()] == [0, 0]
        for racer in (alice, bob):
            assert racer.lines[-1] == f"DONE {last}"
            heard = acknowledgements(racer.lines)
            assert heard == sorted(set(heard))
            # A publisher far behind the other hears that its block exists, and begins anew.
            ends = [line for line in racer.lines if line.startswith(("END", "ERROR"))]
            assert not [line for line in ends if not line.startswith("END DUPLICATE_BLOCK")]
        status, lines = network.run(
            "NetworkClient", "subscribe", entrance.url, 0, READ - 1, *entrance.client_words
        )
        assert (status, lines[:-2]) == (0, item_hashes(long_chain)[:READ])


@pytest.mark.slow
@TLS_ONLY
def test_publishing_goes_on_after_a_node_was_killed(
    network: NetworkSoftware, entrance: Entrance, long_chain: Path
) -> None:
    publish = ("publish", entrance.url, long_chain, *entrance.client_words, "--pace", "20")
    node = entrance.node()
    try:
        with network.start("NetworkClient", *publish) as publisher:
            for block in (20, 50):
                publisher.wait_for(f"ACK {block}")
                node.send(signal.SIGKILL)
                node.wait(COMMAND_SECONDS)
                promised = max(acknowledgements(publisher.lines))
                node = entrance.node()
                # It asks the node where to continue; all acknowledged blocks are there.
                assert int(publisher.wait_for(r"CONNECT (\d+)")[1]) > promised
            assert publisher.ended() == 0
            assert publisher.lines[-1] == f"DONE {LONG_CHAIN - 1}"
    finally:
        node.kill()


def test_a_certificate_with_another_hash_is_refused_by_the_client(
    network: NetworkSoftware, tmp_path: Path
) -> None:
    entrance = Entrance(tmp_path, with_tls=True, hash_name="sha256")
    other = ("--pin", "0" * 64)
    with entrance.node():
        assert network.run("NetworkClient", "status", entrance.url, *entrance.client_words)[0] == 0
        status, lines = network.run("NetworkClient", "status", entrance.url, *other)
    assert status == 1
    assert "the server's certificate has the hash" in lines[0]


# --- every answer -------------------------------------------------------------------------------------------


@contextmanager
def talking(network: NetworkSoftware, entrance: Entrance, chain: Path, name: str) -> Iterator[NetworkProcess]:
    """A publisher that sends a test's messages."""
    words = ("--id", name, *entrance.client_words)
    with network.start("NetworkClient", "talk", entrance.url, chain, *words) as client:
        client.expect("CONNECTED")
        yield client


def test_acknowledged_skipped_sent_back_behind_and_duplicate(
    network: NetworkSoftware, entrance: Entrance, small_chain: Path
) -> None:
    with entrance.node(), talking(network, entrance, small_chain, "N1-STR1") as alice:
        alice.say("block 0")
        alice.expect("ACK 0")
        with talking(network, entrance, small_chain, "N2-STR1") as bob:
            bob.say("items 1 0 5", "items 1 5 6")
            time.sleep(1.0)  # bob is first at the node
            alice.say("items 1 0 2")
            alice.expect("SKIP 1")
        # Bob was killed in the middle of it.
        alice.expect("RESEND 1")
        alice.say("block 1")
        alice.expect("ACK 1")
        alice.say("block 5")
        alice.expect("BEHIND 1")
        for number in range(2, 10):
            alice.say(f"block {number}")
            alice.expect(f"ACK {number}")
        alice.say("block 0")
        alice.expect("END DUPLICATE_BLOCK 9")


@TLS_ONLY
@pytest.mark.parametrize(
    ("commands", "answer"),
    [
        (["forged 1"], "END BAD_BLOCK_PROOF 0"),
        (["items 1 0 4", "end 7"], "END INVALID_REQUEST 0"),
    ],
)
def test_a_wrong_block_ends_the_stream(
    network: NetworkSoftware, entrance: Entrance, small_chain: Path, commands: list[str], answer: str
) -> None:
    with entrance.node(), talking(network, entrance, small_chain, "N1-STR1") as alice:
        alice.say("block 0")
        alice.expect("ACK 0")
        alice.say(*commands)
        alice.expect(answer)
        # A new stream of the same publisher brings the right block.
        alice.say("connect")
        alice.wait_for("CONNECTED")
        alice.say("block 1")
        alice.wait_for("ACK 1")


@TLS_ONLY
def test_one_that_sleeps_in_mid_block_is_timed_out_when_another_may_bring_it(
    network: NetworkSoftware, entrance: Entrance, small_chain: Path
) -> None:
    soon = ("--block-time", "0.5", "--publish-block-timeout", "1")
    with (
        entrance.node(*soon),
        talking(network, entrance, small_chain, "N1-STR1") as alice,
        talking(network, entrance, small_chain, "N2-STR1") as bob,
    ):
        alice.say("items 0 0 5")
        time.sleep(0.3)  # alice is first at the node
        bob.say("items 0 0 5")
        bob.expect("SKIP 0", "RESEND 0")
        alice.expect("END TIMEOUT none")
        bob.say("block 0")
        bob.expect("ACK 0")


@TLS_ONLY
def test_a_node_that_stops_says_success(
    network: NetworkSoftware, entrance: Entrance, small_chain: Path
) -> None:
    with entrance.node() as node, talking(network, entrance, small_chain, "N1-STR1") as alice:
        alice.say("block 0")
        alice.expect("ACK 0")
        node.send(signal.SIGTERM)
        alice.expect("END SUCCESS 0")


def test_a_node_without_the_networks_key_says_error(
    network: NetworkSoftware, tmp_path: Path, small_chain: Path
) -> None:
    """The node lacks the key: no publisher is to blame for an unchecked proof."""
    entrance = Entrance(tmp_path, with_tls=False)
    # It waits for ledger data in block 0, which this chain lacks.
    entrance.node_words = (*entrance.node_words[:2], "--ledger-key", "tss:block0")
    with entrance.node(), talking(network, entrance, small_chain, "N1-STR1") as alice:
        alice.say("block 0")
        alice.expect("END ERROR none")


def test_a_node_whose_disk_is_full_says_persistence_failed(
    network: NetworkSoftware, tmp_path: Path, long_chain: Path
) -> None:
    entrance = Entrance(tmp_path, with_tls=False)
    with (
        small_file_system(tmp_path / "data", 8 << 20),
        entrance.node(),
        network.start("NetworkClient", "publish", entrance.url, long_chain) as publisher,
    ):
        end = publisher.wait_for(r"END PERSISTENCE_FAILED (\d+)")
        assert int(end[1]) == max(acknowledgements(publisher.lines))


def test_end_stream_as_consensus_nodes_send_it_is_taken(
    network: NetworkSoftware, tmp_path: Path, small_chain: Path
) -> None:
    """`none` is 2^64 - 1 and `min` is 2^63: Java's -1 and Long.MIN_VALUE, neither of them a block."""
    entrance = Entrance(tmp_path, with_tls=False)
    ends = ("RESET 0 0", "RESET none none", "RESET 1 0", "TIMEOUT 0 min", "TOO_FAR_BEHIND 5 4")
    with entrance.node():
        for number, values in enumerate(ends):  # each after the one before, which has left
            with talking(network, entrance, small_chain, f"N{number + 3}-STR1") as alice:
                alice.say(f"block {number}")
                alice.expect(f"ACK {number}")
                alice.say(f"endstream {values}", "close")
                alice.expect("COMPLETE")
        with talking(network, entrance, small_chain, CORRELATION_ID) as bob:
            bob.say(f"block {len(ends)}")
            bob.expect(f"ACK {len(ends)}")
        status = sluice("status", f"127.0.0.1:{entrance.port}", "--json")
        assert status.returncode == 0, status.stderr
        (node,) = json.loads(status.stdout)["nodes"]
        assert (node["last_block"], node["ready"]) == (len(ends), True)


# --- our commands, the network's server ---------------------------------------------------------------------


class JavaNode:
    """A `NetworkServer`, and our commands' options to reach it."""

    def __init__(self, process: NetworkProcess, folder: Path, authority: Path | None) -> None:
        self.process = process
        self._folder = folder
        self.address = "127.0.0.1:" + process.wait_for(r"LISTENING (\d+)")[1]
        self.words = ("--tls-ca", str(authority)) if authority else ()
        self.peer_words = ("--catchup-tls-ca", str(authority)) if authority else ()

    def blocks(self) -> list[Block]:
        """The blocks that it has."""
        return list(read_chain(self._folder))


@contextmanager
def java_node(
    network: NetworkSoftware, folder: Path, transport: str, chain: Path | None = None
) -> Iterator[JavaNode]:
    """A network server with the blocks of a chain, or empty."""
    data = folder / "java"
    if chain:
        shutil.copytree(chain, data)
    words: tuple[str, ...] = ()
    authority = Authority(folder) if transport == "tls" else None
    if authority:
        pair = authority.issue("localhost")
        words = ("--cert", str(pair.certificate), "--key", str(pair.key))
    with network.start("NetworkServer", data, *words) as process:
        yield JavaNode(process, data, authority.path if authority else None)


@pytest.mark.parametrize("transport", ["plain", "tls"])
def test_status_and_subscribe_reach_the_networks_server(
    network: NetworkSoftware, tmp_path: Path, small_chain: Path, transport: str
) -> None:
    last = SMALL_CHAIN - 1
    out = tmp_path / "out"
    with java_node(network, tmp_path, transport, small_chain) as java:
        status = sluice("status", java.address, *java.words, "--json")
        assert status.returncode == 0, status.stderr
        (shown,) = json.loads(status.stdout)["nodes"]
        assert (shown["first_block"], shown["last_block"]) == (0, last)
        whole = ("--from", "0", "--to", last, "--out", out)
        done = sluice("subscribe", "--gateway", java.address, *whole, *java.words)
        assert done.returncode == 0, done.stderr
    assert list(read_chain(out)) == make_blocks(SMALL_CHAIN)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_blocks_of_250_kb_are_read_from_the_networks_server(
    network: NetworkSoftware, tmp_path: Path, long_chain: Path, transport: str
) -> None:
    out = tmp_path / "out"
    with java_node(network, tmp_path, transport, long_chain) as java:
        whole = ("--from", "0", "--to", READ - 1, "--out", out)
        done = sluice("subscribe", "--gateway", java.address, *whole, *java.words)
        assert done.returncode == 0, done.stderr
    assert item_hashes(out) == item_hashes(long_chain)[:READ]


@pytest.mark.spark
def test_publish_reaches_the_networks_server(
    spark: SparkSession, network: NetworkSoftware, tmp_path: Path, small_chain: Path
) -> None:
    from sluice.publishers.job.job import publish

    with java_node(network, tmp_path, "plain") as java:
        report = publish(spark, small_chain, [java.address], deadline_seconds=COMMAND_SECONDS)
        assert report.is_complete, report.failures
        assert java.blocks() == make_blocks(SMALL_CHAIN)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_blocks_of_250_kb_are_published_to_the_networks_server(
    network: NetworkSoftware, tmp_path: Path, long_chain: Path, transport: str
) -> None:
    """The publisher of `sluice publish` without Spark."""
    blocks = list(islice(read_chain(long_chain), READ))
    with java_node(network, tmp_path, transport) as java:
        tls = ClientTls(java.words[1]) if java.words else None
        publisher = Listener([java.address], "ours", ClientOptions(tls=tls))
        async with asyncio.timeout(COMMAND_SECONDS):
            report = await publisher.publish(each(blocks))
        assert report.unacknowledged == 0
        assert publisher.acknowledged == [block.number for block in blocks]
        assert java.blocks() == blocks


@pytest.mark.parametrize("transport", ["plain", "tls"])
def test_a_node_takes_missing_blocks_from_the_networks_server(
    network: NetworkSoftware, tmp_path: Path, small_chain: Path, transport: str
) -> None:
    entrance = Entrance(tmp_path, with_tls=False)
    with (
        java_node(network, tmp_path, transport, small_chain) as java,
        entrance.node("--peer", java.address, *java.peer_words),
    ):
        wait_until(lambda: last_block(entrance) == SMALL_CHAIN - 1, "its last block")
        assert any(line.startswith("CALL subscribeBlockStream") for line in java.process.lines)


def last_block(entrance: Entrance) -> int | None:
    """The last block of a node."""
    (node,) = json.loads(sluice("status", f"127.0.0.1:{entrance.port}", "--json").stdout)["nodes"]
    held: int | None = node["last_block"]
    return held
