"""Tests of `gateway.transport.door`: how many connections there may be, and for whom places are kept."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from gateway.transport.channels import open_blocking_channel
from gateway.transport.known_nodes import KnownNodes
from gateway.transport.tls import ServerTls
from tests.attacks import HELLO, ended_within
from tests.certificates import Authority
from tests.gateway.transport.test_door import (
    ANSWER_SECONDS,
    FRIEND,
    STRANGER,
    Served,
    is_taken,
    plan,
    serving,
    stranger,
    wait_until,
    who,
)


def test_one_address_does_not_take_all_places() -> None:
    with serving(plan(connections_per_address_max=2)) as served, ExitStack() as stack:
        for _ in range(2):
            assert is_taken(stack.enter_context(stranger(served, HELLO)))
        assert not is_taken(stack.enter_context(stranger(served)))
        served.await_refusals((STRANGER, "connections of an address"))
        assert is_taken(stack.enter_context(stranger(served, HELLO, FRIEND)))


def test_a_crowd_does_not_keep_out_another_address() -> None:
    with serving(plan(connections_max=16)) as served, ExitStack() as stack:
        crowd = [stack.enter_context(stranger(served, HELLO)) for _ in range(16)]
        assert all(map(is_taken, crowd))
        assert not is_taken(stack.enter_context(stranger(served)))
        assert is_taken(stack.enter_context(stranger(served, HELLO, FRIEND)))
        assert ended_within(crowd[-1], ANSWER_SECONDS)
        served.await_refusals((STRANGER, "connections"), (STRANGER, "connections"))


def nodes_at(*hosts: str, subjects: tuple[str, ...] = ()) -> KnownNodes:
    """Other nodes."""
    return KnownNodes(hosts, subjects)


def test_places_are_kept_for_other_nodes() -> None:
    """One in sixteen."""
    with serving(plan(connections_max=16, nodes=nodes_at(FRIEND))) as served, ExitStack() as stack:
        for _ in range(15):
            assert is_taken(stack.enter_context(stranger(served, HELLO)))
        assert not is_taken(stack.enter_context(stranger(served)))
        assert is_taken(stack.enter_context(stranger(served, HELLO, FRIEND)))
        assert not is_taken(stack.enter_context(stranger(served, b"", FRIEND)))
        served.await_refusals((STRANGER, "connections"), (FRIEND, "connections"))
        assert served.server.door.connection_count == 16


def test_no_place_is_kept_where_no_node_is_known() -> None:
    with serving(plan(connections_max=16, nodes=nodes_at())) as served, ExitStack() as stack:
        for _ in range(16):
            assert is_taken(stack.enter_context(stranger(served, HELLO)))


class Secured:
    """Clients with certificates."""

    def __init__(self, tmp_path: Path) -> None:
        self.authority = Authority(tmp_path)
        files = self.authority.server_files(self.authority.issue("localhost"), mutual=True)
        self.tls = ServerTls(files, "grpc.tls")

    def connect(self, served: Served, stack: ExitStack, name: str, source: str = STRANGER) -> socket.socket:
        """Connect, and say hello; the handshake may fail."""
        pair = self.authority.issue(name)
        context = ssl.create_default_context(cafile=str(self.authority.path))
        context.load_cert_chain(pair.certificate, pair.key)
        sock = stack.enter_context(stranger(served, source=source))
        with suppress(OSError):
            sock = stack.enter_context(context.wrap_socket(sock, server_hostname="localhost"))
            sock.sendall(HELLO)
        return sock


@pytest.mark.parametrize("is_node", [True, False])
def test_places_are_kept_for_whose_certificate_is_listed(tmp_path: Path, is_node: bool) -> None:
    secured = Secured(tmp_path)
    listed: dict[str, Any] = {"listed_subjects": frozenset({"CN=alice"})}
    if is_node:
        listed = {"nodes": nodes_at(subjects=("CN=alice",))}
    with serving(plan(connections_max=16, tls=secured.tls, **listed)) as served, ExitStack() as stack:
        for _ in range(14):  # one is for alice, and one to find out who it is
            assert is_taken(secured.connect(served, stack, "bob"))
        assert not is_taken(secured.connect(served, stack, "bob"))
        assert is_taken(secured.connect(served, stack, "alice"))
        served.await_refusals((STRANGER, "connections"))


def test_handshakes_that_do_not_end_keep_out_nobody_whose_certificate_is_listed(tmp_path: Path) -> None:
    """They held all places that are kept, for 20 s each."""
    secured = Secured(tmp_path)
    nodes = nodes_at(subjects=("CN=alice",))
    with serving(plan(connections_max=16, tls=secured.tls, nodes=nodes)) as served, ExitStack() as stack:
        silent = [stack.enter_context(stranger(served)) for _ in range(15)]
        wait_until(lambda: served.server.door.connection_count == 15, "all who are silent")
        assert is_taken(secured.connect(served, stack, "alice", FRIEND))
        assert ended_within(silent[-1], ANSWER_SECONDS)
        served.await_refusals((STRANGER, "connections"))
        assert served.server.door.connection_count == 15


def test_a_caller_is_told_to_be_a_node_by_what_is_known_now(tmp_path: Path) -> None:
    nodes = KnownNodes(resolve=lambda _: asyncio.sleep(0, frozenset({"127.0.0.1"})))
    with serving(plan(nodes=nodes)) as served, open_blocking_channel(served.address) as channel:
        assert who(channel)[0].startswith("ipv4:127.0.0.1:")
        assert not served.is_node
        nodes.peers = ("a.net:40840",)
        asyncio.run_coroutine_threadsafe(nodes.look(), served.loop).result(ANSWER_SECONDS)
        who(channel)
        assert served.is_node
