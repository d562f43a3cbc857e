"""Entries over TCP from several servers: real servers and sockets."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.datastream.file.streamer import DataStreamer
from sluice.gateway.addresses import Address
from sluice.publishers.errors import SourceUnreachable
from sluice.publishers.sources.entry_server import EntryServers
from tests.datastream.serving import ServerThread
from tests.datastream.streams import commit, entries

ITEMS = tuple((1, f"entry {number}".encode()) for number in range(50))
NOBODY = Address("127.0.0.1", 1)


@pytest.fixture
def streamer(tmp_path: Path) -> Iterator[DataStreamer]:
    with DataStreamer.open(tmp_path / "stream.bin") as found:
        commit(found, *ITEMS)
        yield found


def address_of(server: ServerThread) -> Address:
    return Address(server.host, server.port)


def test_the_first_server_that_answers_is_asked(streamer: DataStreamer) -> None:
    with ServerThread(streamer) as server:
        servers = pickle.loads(pickle.dumps(EntryServers([NOBODY, address_of(server)])))
        assert servers.header().total_entries == 50
        assert list(itertools.islice(servers.entries(40), 10)) == entries(*ITEMS)[40:]


def test_another_server_takes_over_where_the_first_was(streamer: DataStreamer) -> None:
    with ServerThread(streamer) as second:
        with ServerThread(streamer) as first:
            found = EntryServers([address_of(first), address_of(second)]).entries(0)
            taken = [next(found)]
        commit(streamer, (2, b"only the second has it"))
        taken += itertools.islice(found, 50)
        assert taken == entries(*ITEMS, (2, b"only the second has it"))
        found.close()  # type: ignore[attr-defined]


def test_nobody_answers() -> None:
    servers = EntryServers([NOBODY], deadline_seconds=0.01)
    assert servers.header() is None
    waits: list[float] = []
    with pytest.raises(SourceUnreachable, match=r"entry 3 did not come within 0\.01 s \(127\.0\.0\.1:1: "):
        list(servers.entries(3, waits.append))


def test_live_entries_are_waited_for(streamer: DataStreamer) -> None:
    with ServerThread(streamer) as server:
        found = EntryServers([address_of(server)]).entries(49)
        assert next(found).number == 49
        commit(streamer, (2, b"new"))
        assert next(found).data == b"new"
        found.close()  # type: ignore[attr-defined]
