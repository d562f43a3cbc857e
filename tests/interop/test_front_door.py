"""A node's front door under load: a client like the network's beside gRPC's, and hostile strangers."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_pem_x509_certificate

from benchmarks.chains import Chain, make_chain
from benchmarks.publish_processes import METHOD
from sluice.gateway.api import publish_pb2
from sluice.publishers.demo.node_process import NodeProcess
from tests.attacks import ATTACKS, attacking
from tests.certificates import Authority
from tests.network_double import NetworkDouble
from tests.nodes import text_of

ANSWER_SECONDS = 30.0
ATTACK_SECONDS = 1.0
STRANGERS_MAX = 100
"""Connections from one address to the attacked node."""
BLOCKS_BESIDE = 30
"""The most that a publisher sends during one attack."""
GROWTH_BYTES_MAX = 100 << 20
IN_FLIGHT = 4
"""Blocks of 250 kB that a publisher sends before the first acknowledgement."""

# The door's reasons for refused or ended connections, by attack.
_CONTROL, _HEADERS = "ended control frames", "ended header block"
NAMED: dict[str, frozenset[str]] = {
    "headers without end": frozenset({_HEADERS}),
    "rapid reset": frozenset({_CONTROL}),
    "pings": frozenset({_CONTROL}),
    "settings": frozenset({_CONTROL}),
    "empty data": frozenset({_CONTROL}),
    "tiny windows": frozenset({_CONTROL}),
    "priorities": frozenset({_CONTROL}),
    "unknown frames": frozenset({_CONTROL}),
    "another protocol": frozenset({"ended preface"}),
    "connections that only greet": frozenset({"refused connections of an address"}),
    "connections that say nothing": frozenset({"refused connections of an address"}),
    "answers that nobody reads": frozenset(),
    # Nobody is at fault within this time; `tests/gateway/transport/test_door.py` waits for its end.
    "headers byte by byte": frozenset(),
    "large messages that do not come": frozenset(),
    "coming and going": frozenset(),
}
MAY_BE_NAMED: dict[str, frozenset[str]] = {
    # Closed connections count until the node notices.
    "coming and going": frozenset({"refused connections of an address"}),
    # If others wait for longer than the grace.
    "large messages that do not come": frozenset({"ended large message"}),
    # The node does not read a client that does not read, so it may not get to send too much.
    "answers that nobody reads": frozenset({_CONTROL}),
}


@pytest.fixture(scope="module")
def chain() -> Chain:
    """120 blocks of 250 kB, in messages of 100 kB."""
    chain = make_chain(120, 45, 5_500, set_bytes=100_000)
    assert 27_000_000 < chain.size_bytes < 33_000_000
    return chain


@pytest.fixture(params=[pytest.param("plain", marks=pytest.mark.slow), "tls"])
def entrance(
    request: pytest.FixtureRequest, tmp_path: Path, chain: Chain
) -> Iterator[tuple[str, str | None]]:
    """The address of a node, and the SHA-256 of its certificate if it has one."""
    words, pin = ["--ledger-key", chain.ledger_key], None
    if request.param == "tls":
        pair = Authority(tmp_path).issue("localhost")
        words += ["--grpc-tls-certificate", str(pair.certificate), "--grpc-tls-key", str(pair.key)]
        der = load_pem_x509_certificate(pair.certificate.read_bytes()).public_bytes(Encoding.DER)
        pin = hashlib.sha256(der).hexdigest()
    with NodeProcess(tmp_path / "data", tmp_path / "log", words) as node:
        yield node.grpc, pin


def test_30_mb_of_one_stream_are_acknowledged_block_by_block(
    entrance: tuple[str, str | None], chain: Chain
) -> None:
    with NetworkDouble(*entrance) as client:
        assert client.last_block() is None
    heard = []
    with NetworkDouble(*entrance) as client:
        client.publish()
        for number, messages in enumerate(chain.messages):
            for message in messages:
                client.send(message)
            if number >= IN_FLIGHT:
                heard.append(client.answer())
        heard += [client.answer() for _ in range(IN_FLIGHT)]
        assert client.status is None
        # Repeated grants would overflow this client's window.
        assert client.window_updates < 10
    assert heard == [f"ack {number}" for number in range(len(chain.messages))]
    with NetworkDouble(*entrance) as client:
        assert client.last_block() == len(chain.messages) - 1


class Racer:
    """A publisher that reconnects when the other was faster by a whole block."""

    def __init__(self, entrance: tuple[str, str | None], chain: Chain, last: int, seed: int) -> None:
        self._entrance, self._chain, self._last, self._seed = entrance, chain, last, seed
        self.heard: list[str] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        """Publish up to the last block, and record the answers."""
        try:
            number = 0
            while number <= self._last:
                with NetworkDouble(*self._entrance, seed=self._seed) as client:
                    last = client.last_block()
                with NetworkDouble(*self._entrance, seed=self._seed) as client:
                    client.publish()
                    number = self._publish(client, 0 if last is None else last + 1)
        except BaseException as error:  # its thread ends; the test looks
            self.error = error

    def _publish(self, client: NetworkDouble, number: int) -> int:
        """Publish from a block on; return the next block when the node ends the stream."""
        is_sent = False
        while number <= self._last:
            if not is_sent:
                for message in self._chain.messages[number]:
                    client.send(message)
                is_sent = True
            answer = client.answer()
            self.heard.append(answer)
            if answer.startswith("ack "):  # all blocks up to this one are stored
                acknowledged = int(answer.removeprefix("ack "))
                if acknowledged >= number:
                    number, is_sent = acknowledged + 1, False
            elif answer.startswith("end DUPLICATE_BLOCK"):
                return number
            elif answer == f"resend {number}":
                is_sent = False
            else:  # also of one acknowledged while it was on its way
                assert int(answer.removeprefix("skip ")) <= number
        return number


@pytest.mark.slow
def test_two_that_race_hear_of_each_block_once(entrance: tuple[str, str | None], chain: Chain) -> None:
    last = 59
    racers = [Racer(entrance, chain, last, seed) for seed in (1, 2)]
    threads = [threading.Thread(target=racer.run) for racer in racers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for racer in racers:
        if racer.error is not None:
            raise racer.error
        heard = [int(answer.removeprefix("ack ")) for answer in racer.heard if answer.startswith("ack ")]
        assert heard == sorted(set(heard))
    assert any("skip" in answer or "end" in answer for racer in racers for answer in racer.heard)
    with NetworkDouble(*entrance) as client:
        assert client.last_block() == last


def test_another_certificate_than_the_one_that_is_known_is_not_taken(tmp_path: Path) -> None:
    """The double checks the hash, like the client that it stands for."""
    pair = Authority(tmp_path).issue("localhost")
    words = ["--grpc-tls-certificate", str(pair.certificate), "--grpc-tls-key", str(pair.key)]
    with (
        NodeProcess(tmp_path / "data", tmp_path / "log", words) as node,
        pytest.raises(AssertionError, match="certificate"),
    ):
        NetworkDouble(node.grpc, "0" * 64)


# --- strangers ----------------------------------------------------------------------------------------------


class Attacked:
    """A node for all attacks in turn, and a publisher's chain."""

    def __init__(self, node: NodeProcess, chain: Chain) -> None:
        self.node = node
        self._chain = chain
        self._next = 0
        self._answered = threading.Event()

    def publish(self, goes_on: Callable[[], bool]) -> None:
        """Send blocks one by one during the attack, at least one, each after the last acknowledgement."""
        heard, first = [], self._next
        with grpc.insecure_channel(self.node.grpc) as channel:
            publish: grpc.StreamStreamMultiCallable[bytes, publish_pb2.PublishStreamResponse]
            publish = channel.stream_stream(METHOD, bytes, publish_pb2.PublishStreamResponse.FromString)
            answers = publish(self._blocks(goes_on), timeout=BLOCKS_BESIDE * ANSWER_SECONDS)
            started = time.monotonic()
            for answer in answers:
                heard.append(text_of(answer))
                assert time.monotonic() - started < ANSWER_SECONDS, f"a block of {heard[-3:]} waited so long"
                started = time.monotonic()
                self._answered.set()
        assert heard == [f"ack {number}" for number in range(first, self._next)]

    def _blocks(self, goes_on: Callable[[], bool]) -> Iterator[bytes]:
        first = self._next
        while self._next == first or (goes_on() and self._next < first + BLOCKS_BESIDE):
            self._answered.clear()
            yield from self._chain.messages[self._next]
            self._next += 1
            self._answered.wait(ANSWER_SECONDS)
            time.sleep(0.05)

    def seen(self) -> dict[str, float]:
        """Return how often the door refused or ended a connection, by reason."""
        found = {}
        for name, value in self.node.metrics().items():
            for what in ("ended", "refused"):
                if name.startswith(f"sluice_connections_{what}_total"):
                    reason = name.split('"')[1]
                    found[f"{what} {reason}"] = value
        return found

    def resident_bytes(self) -> float:
        """Return the node's resident memory."""
        return self.node.metrics()["process_resident_memory_bytes"]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """A node, and small blocks."""
    folder = tmp_path_factory.mktemp("attacked")
    chain = make_chain(len(ATTACKS) * BLOCKS_BESIDE + BLOCKS_BESIDE, 5, 200)
    words = ["--ledger-key", chain.ledger_key, "--grpc-max-connections-per-address", str(STRANGERS_MAX)]
    with NodeProcess(folder / "data", folder / "log", words) as node:
        attacked = Attacked(node, chain)
        attacked.publish(lambda: False)
        yield attacked


def test_every_attack_has_its_word() -> None:
    assert set(NAMED) == set(ATTACKS)


ALWAYS = (
    "headers without end",
    "rapid reset",
    "connections that only greet",
    "answers that nobody reads",
)
"""Attacks that are played by default."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in ALWAYS else pytest.mark.slow) for name in ATTACKS],
)
def test_an_attack_is_named_and_hurts_no_publisher(name: str, attacked: Attacked) -> None:
    before, seen_before = attacked.resident_bytes(), attacked.seen()
    with attacking(name, attacked.node.grpc, ATTACK_SECONDS) as stranger:
        attacked.publish(lambda: stranger.poll() is None)
        assert stranger.wait(ANSWER_SECONDS) == 0
    seen = {what for what, count in attacked.seen().items() if count > seen_before.get(what, 0)}
    assert seen - MAY_BE_NAMED.get(name, frozenset()) == NAMED[name]
    assert attacked.resident_bytes() - before < GROWTH_BYTES_MAX
    _await_places(attacked.node)


def _await_places(node: NodeProcess) -> None:
    """Wait until nobody is connected, so that no attack inherits another's strangers."""
    until = time.monotonic() + ANSWER_SECONDS
    while node.metrics()['sluice_connections{setting="grpc.address"}']:
        assert time.monotonic() < until, "connections of strangers who are gone stay open"
        time.sleep(0.05)


def test_who_keeps_breaking_the_rules_is_logged_once_a_minute(attacked: Attacked) -> None:
    before = _refusals(attacked.node.log_path)
    with attacking("another protocol", attacked.node.grpc, ATTACK_SECONDS) as stranger:
        assert stranger.wait(ANSWER_SECONDS) == 0
    assert attacked.seen()["ended preface"] > 10
    lines = _refusals(attacked.node.log_path)
    assert lines
    assert len(lines) - len(before) <= 1
    assert {line["address"] for line in lines} == {"127.0.0.2"}


def _refusals(log: Path) -> list[dict[str, str]]:
    lines = [json.loads(line) for line in log.read_text("utf-8").splitlines() if line.startswith("{")]
    return [line for line in lines if line["message"] in ("connection ended", "connection refused")]
