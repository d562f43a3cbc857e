"""The coordinator against a real etcd: what two nodes see of each other, and of an etcd that is away."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sluice.gateway.cluster.coordinator import EtcdCoordinator, EtcdUser
from sluice.gateway.cluster.election import ClusterRecord, Holder, Seen
from sluice.gateway.errors import CoordinatorAway, InvalidInput
from tests.certificates import Authority, Pair
from tests.etcd import EtcdProcess, etcd_program, running_etcd
from tests.nodes import until
from tests.serving import free_port

LEASE_SECONDS = 2
CLUSTER = ClusterRecord(0, 3, 1, {"a:1": "A", "b:1": "B", "c:1": "C"})


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    with running_etcd(tmp_path_factory.mktemp("etcd") / "data") as running:
        yield running


@asynccontextmanager
async def nodes_at(
    *endpoints: str, prefix: str, count: int = 2, seconds: float = LEASE_SECONDS
) -> AsyncIterator[list[EtcdCoordinator]]:
    """Yield the coordinator as several nodes reach it."""
    nodes = [EtcdCoordinator(endpoints, prefix, seconds) for _ in range(count)]
    try:
        yield nodes
    finally:
        for node in nodes:
            await node.close()


def record_of(epoch: int) -> ClusterRecord:
    return ClusterRecord(epoch, 3, 1, CLUSTER.nodes)


async def test_two_nodes_join_and_one_of_them_gets_the_term(etcd: EtcdProcess) -> None:
    async with nodes_at(etcd.address, prefix="one") as (a, b):
        seen = await a.look()
        assert seen == Seen(None, None, (0, 0))
        assert await a.join(seen, CLUSTER)
        assert not await b.join(seen, CLUSTER)
        seen = await b.look()
        assert (seen.cluster, seen.holder) == (CLUSTER, None)
        first = await a.claim(seen, record_of(1), Holder(1, "a:1", "A"))
        assert first is not None
        assert await b.claim(seen, record_of(1), Holder(1, "b:1", "B")) is None
        seen = await b.look()
        assert (seen.cluster, seen.holder) == (record_of(1), Holder(1, "a:1", "A"))
        assert await a.renew(first)
        await a.release(first)
        assert not await a.renew(first)
        seen = await b.look()
        assert (seen.cluster, seen.holder) == (record_of(1), None)
        assert await b.claim(seen, record_of(2), Holder(2, "b:1", "B")) is not None


async def test_a_lease_ends_when_nobody_renews_it_and_not_before(etcd: EtcdProcess) -> None:
    async with nodes_at(etcd.address, prefix="two") as (a, b):
        begun = time.monotonic()
        grant = await a.claim(await a.look(), record_of(1), Holder(1, "a:1", "A"))
        assert grant is not None
        while time.monotonic() < begun + 1.25 * LEASE_SECONDS:
            assert await a.renew(grant)
            assert (await b.look()).holder is not None
            await asyncio.sleep(LEASE_SECONDS / 4)
        renewed_at = time.monotonic()
        assert await a.renew(grant)

        async def is_free() -> bool:
            return (await b.look()).holder is None

        await until(is_free)
        assert time.monotonic() - renewed_at >= LEASE_SECONDS
        assert not await a.renew(grant)


async def test_a_term_is_handed_over_and_the_old_lease_is_nothing(etcd: EtcdProcess) -> None:
    async with nodes_at(etcd.address, prefix="three") as (a, b):
        grant = await a.claim(await a.look(), record_of(1), Holder(1, "a:1", "A"))
        assert grant is not None
        marked = await a.mark(grant, Holder(1, "a:1", "A", "B"))
        assert marked is not None
        assert await a.renew(marked)
        assert await a.mark(grant, Holder(1, "a:1", "A", "B")) == marked  # repeated after a lost answer
        assert not await a.renew(grant)
        seen = await b.look()
        assert seen.holder == Holder(1, "a:1", "A", "B")
        taken = await b.claim(seen, record_of(2), Holder(2, "b:1", "B"))
        assert taken is not None
        assert not await a.renew(marked)
        assert await a.mark(marked, Holder(1, "a:1", "A")) is None
        await a.release(marked)
        assert await b.renew(taken)
        assert (await b.look()).holder == Holder(2, "b:1", "B")


async def test_clusters_with_other_names_know_nothing_of_each_other(etcd: EtcdProcess) -> None:
    async with nodes_at(etcd.address, prefix="east", count=1) as (east,):
        assert await east.claim(await east.look(), record_of(1), Holder(1, "a:1", "A")) is not None
        async with nodes_at(etcd.address, prefix="west", count=1) as (west,):
            assert await west.look() == Seen(None, None, (0, 0))


@pytest.mark.parametrize(
    "value", ["", "{", "[]", '{"epoch": -1}', '{"epoch": 1.5, "nodes": []}', "7", "[" * 9999]
)
@pytest.mark.parametrize("key", ["cluster", "active"])
async def test_records_that_nobody_here_wrote_are_refused(etcd: EtcdProcess, key: str, value: str) -> None:
    prefix = f"odd-{key}-{len(value)}"
    control = Path(etcd_program()).with_name("etcdctl")
    words = [str(control), "--endpoints", etcd.address, "put", f"{prefix}/{key}"]
    await asyncio.to_thread(
        subprocess.run, words, input=value.encode() or b" ", check=True, stdout=subprocess.DEVNULL
    )
    async with nodes_at(etcd.address, prefix=prefix, count=1) as (node,):
        with pytest.raises(
            InvalidInput, match=r"record of the coordinator: got .*, expected JSON that Sluice"
        ):
            await node.look()


@pytest.mark.slow
async def test_an_etcd_that_stands_still_is_away_in_time_and_another_endpoint_is_asked(
    tmp_path: Path,
) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    with running_etcd(tmp_path / "etcd") as etcd:
        async with nodes_at(nobody, etcd.address, prefix="here", count=1) as (node,):
            grant = await node.claim(await node.look(), record_of(1), Holder(1, "a:1", "A"))
            assert grant is not None
            etcd.freeze()
            for work in (node.look(), node.renew(grant), node.mark(grant, Holder(1, "a:1", "A"))):
                with pytest.raises(CoordinatorAway, match=f"{etcd.address}: .*{nobody}: "):
                    await work
            await node.release(grant)
            etcd.send(signal.SIGCONT)

            async def answers() -> bool:
                try:
                    return (await node.look()).cluster is not None
                except CoordinatorAway:
                    return False

            await until(answers)


@pytest.mark.slow
async def test_what_was_written_outlives_etcd_and_its_leases_begin_anew(tmp_path: Path) -> None:
    with running_etcd(tmp_path / "etcd") as etcd:
        async with nodes_at(etcd.address, prefix="here", count=1) as (node,):
            grant = await node.claim(await node.look(), record_of(4), Holder(4, "a:1", "A"))
            assert grant is not None
            etcd.stop()
            with pytest.raises(CoordinatorAway):
                await node.renew(grant)
            etcd.start()

            async def is_renewed() -> bool:
                try:
                    return await node.renew(grant)
                except CoordinatorAway:
                    return False

            await until(is_renewed)
            assert (await node.look()).cluster == record_of(4)


def words_of(authority: Authority, server: Pair) -> list[str]:
    """Return etcd's options: it has a certificate, and wants one."""
    words = ["--cert-file", str(server.certificate), "--key-file", str(server.key)]
    return [*words, "--client-cert-auth", "--trusted-ca-file", str(authority.path)]


async def test_connections_with_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, client = authority.issue("etcd"), authority.issue("node")
    with running_etcd(tmp_path / "etcd", words_of(authority, server), "https") as etcd:
        for tls, is_let_in in ((authority.client(client), True), (authority.client(), False), (None, False)):
            node = EtcdCoordinator([etcd.address], "here", LEASE_SECONDS, tls)
            try:
                if is_let_in:
                    assert await node.look() == Seen(None, None, (0, 0))
                else:
                    with pytest.raises(CoordinatorAway, match=etcd.address):
                        await node.look()
            finally:
                await node.close()


async def test_renewed_certificates_are_read_when_a_connection_is_lost(tmp_path: Path) -> None:
    """As those of another authority: a connection that was made with the old ones is never let in again."""
    authority = Authority(tmp_path)
    client, words = authority.issue("node"), words_of(authority, authority.issue("etcd"))
    with running_etcd(tmp_path / "etcd", words, "https") as etcd:
        node = EtcdCoordinator([etcd.address], "here", LEASE_SECONDS, authority.client(client))
        try:
            await node.look()
            etcd.stop()
            authority = Authority(tmp_path)  # into the same files
            authority.issue("node")
            authority.issue("etcd")
            etcd.start()

            async def answers() -> bool:
                try:
                    return (await node.look()).cluster is None
                except CoordinatorAway:
                    return False

            await until(answers)
        finally:
            await node.close()


async def test_users_with_a_password_or_a_certificate_s_name(tmp_path: Path) -> None:
    authority, password = Authority(tmp_path), tmp_path / "password"
    root, client = authority.issue("root"), authority.issue("node")
    control = [str(Path(etcd_program()).with_name("etcdctl")), "--cacert", str(authority.path)]
    control += ["--cert", str(root.certificate), "--key", str(root.key)]
    with running_etcd(tmp_path / "etcd", words_of(authority, authority.issue("etcd")), "https") as etcd:
        control += ["--endpoints", f"https://{etcd.address}"]

        def order(*words: str) -> None:
            subprocess.run([*control, *words], check=True, stdout=subprocess.DEVNULL)

        for account in ("root:r", "node:right", "sluice:right"):
            order("user", "add", account)
        order("role", "add", "east")
        order("role", "grant-permission", "east", "--prefix=true", "readwrite", "east/")
        order("user", "grant-role", "root", "root")
        for name in ("node", "sluice"):
            order("user", "grant-role", name, "east")
        password.write_text("wrong\n")
        user = EtcdUser("sluice", password)
        tls = authority.client(client)
        node = EtcdCoordinator([etcd.address], "east", LEASE_SECONDS, tls, user)
        by_certificate = EtcdCoordinator([etcd.address], "east", LEASE_SECONDS, tls)
        elsewhere = EtcdCoordinator([etcd.address], "west", LEASE_SECONDS, tls, user)
        try:
            with pytest.raises(CoordinatorAway, match="authentication is not enabled"):
                await node.look()
            order("auth", "enable")
            with pytest.raises(CoordinatorAway, match="invalid user ID or password"):
                await node.look()
            password.write_text("right\n")
            with pytest.raises(CoordinatorAway, match="permission denied"):
                await elsewhere.look()
            grant = await node.claim(await node.look(), record_of(1), Holder(1, "a:1", "A"))
            assert grant is not None
            order("role", "revoke-permission", "east", "--prefix=true", "east/")  # old tokens are refused now
            order("role", "grant-permission", "east", "--prefix=true", "readwrite", "east/")
            assert await node.renew(grant)
            etcd.stop()
            etcd.start()  # and has forgotten them all
            assert await until_answered(node)
            assert await node.renew(grant)
            await node.release(grant)
            assert (await by_certificate.look()).holder is None
        finally:
            for one in (node, by_certificate, elsewhere):
                await one.close()


async def until_answered(node: EtcdCoordinator) -> Seen:
    """Return what the coordinator says when it answers."""
    while True:
        try:
            return await node.look()
        except CoordinatorAway:
            await asyncio.sleep(0.05)
