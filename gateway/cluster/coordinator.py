"""The coordinator of an election: two records in etcd, one of them under a lease.

    PREFIX/cluster    `election.ClusterRecord`: the last epoch, and who belongs to the cluster. It stays
    PREFIX/active     `election.Holder`: the node that has the term. It goes when its lease ends

Every write is a transaction that fails if one of the two has changed since they were read. A shell:
`LeaseCoordinator` is what the election needs, so that another store can take etcd's place.

Source: docs/operations.md, "Let the cluster fail over by itself"; the API reference of etcd, version 3.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import grpc
from google.protobuf.message import Message
from grpc import aio

from sluice.gateway.api import etcd_pb2
from sluice.gateway.cluster.election import ClusterRecord, Holder, Seen
from sluice.gateway.errors import CoordinatorAway, Fatal, GatewayError
from sluice.gateway.logs import fields
from sluice.gateway.regular_files import read_small_text
from sluice.gateway.transport.channels import ClientTls, open_channel
from sluice.gateway.transport.failures import why_failed

__all__ = ["EtcdCoordinator", "EtcdUser", "Grant", "LeaseCoordinator"]

log = logging.getLogger(__name__)

_OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", 1 << 20),
    ("grpc.use_local_subchannel_pool", 1),
)
REQUEST_SHARE: Final = 0.2
"""Longest time of a request, of the lease's length: a renewal is to be tried at other endpoints, too..."""
REQUEST_SECONDS_MAX: Final = 2.0
"""...but no longer than this."""


_TOKEN_REFUSED: Final = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INVALID_ARGUMENT)
"""The token has ended, or users and their rights have changed since."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The lease of a term."""

    lease: int
    revision: int
    """Of the record of the holder: a different one is another node's."""


class LeaseCoordinator(Protocol):
    """The coordinator, as the election needs it. Without an answer, a method raises `CoordinatorAway`."""

    async def look(self) -> Seen:
        """Return the records."""

    async def join(self, seen: Seen, cluster: ClusterRecord) -> bool:
        """Write the record of the cluster; False: the records have changed since they were seen."""

    async def claim(self, seen: Seen, cluster: ClusterRecord, holder: Holder) -> Grant | None:
        """Write both records, the holder's under a new lease; None: they are not as they were seen."""

    async def renew(self, grant: Grant) -> bool:
        """Renew a lease; False: it has ended, or another node has the term."""

    async def mark(self, grant: Grant, holder: Holder) -> Grant | None:
        """Change the record of the holder under its lease; None: another node has the term."""

    async def release(self, grant: Grant) -> None:
        """End a lease, and the term with it."""

    async def close(self) -> None:
        """Close all connections."""


@dataclass(frozen=True, slots=True)
class EtcdUser:
    """A user of etcd, who is asked for where no certificate says who it is."""

    name: str
    password_file: Path

    def password(self) -> str:
        """Read the file.

        Raises:
            Fatal: there is no such file, or it is no text.
        """
        expected = f"the password of etcd's user {self.name}"
        text = read_small_text(self.password_file, expected)
        if text is None:
            raise Fatal(str(self.password_file), got="no such file", expected=expected)
        return text.rstrip("\r\n")


class EtcdCoordinator:
    """The coordinator in an etcd cluster.

    Args:
        endpoints: its members, `host:port` each; the next one is asked when one fails.
        prefix: of the keys: the name of this cluster of nodes.
        lease_seconds: whole seconds count.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        prefix: str,
        lease_seconds: float,
        tls: ClientTls | None = None,
        user: EtcdUser | None = None,
    ) -> None:
        self._endpoints = list(endpoints)
        self._cluster_key, self._active_key = f"{prefix}/cluster".encode(), f"{prefix}/active".encode()
        self._lease_seconds = math.ceil(lease_seconds)
        self._request_seconds = min(REQUEST_SECONDS_MAX, lease_seconds * REQUEST_SHARE)
        self._tls, self._user = tls, user
        self._token: str | None = None
        """What etcd gave for the password."""
        self._channels: dict[str, aio.Channel] = {}

    async def look(self) -> Seen:
        """See `LeaseCoordinator`."""
        ranges = [
            etcd_pb2.RequestOp(request_range=etcd_pb2.RangeRequest(key=key))
            for key in (self._cluster_key, self._active_key)
        ]
        answer = await self._transact(etcd_pb2.TxnRequest(success=ranges))
        cluster, active = (one.response_range.kvs for one in answer.responses)
        return Seen(
            ClusterRecord.decode(cluster[0].value) if cluster else None,
            Holder.decode(active[0].value) if active else None,
            (cluster[0].mod_revision if cluster else 0, active[0].mod_revision if active else 0),
        )

    async def join(self, seen: Seen, cluster: ClusterRecord) -> bool:
        """See `LeaseCoordinator`."""
        put = _put(self._cluster_key, cluster.encode())
        return (await self._transact(self._if_unchanged(seen, put))).succeeded

    async def claim(self, seen: Seen, cluster: ClusterRecord, holder: Holder) -> Grant | None:
        """See `LeaseCoordinator`."""
        lease = await self._call(
            "Lease/LeaseGrant",
            etcd_pb2.LeaseGrantRequest(TTL=self._lease_seconds),
            etcd_pb2.LeaseGrantResponse.FromString,
        )
        if lease.error or self._lease_seconds > lease.TTL:
            raise CoordinatorAway(
                f"etcd grants no lease of {self._lease_seconds} s: {lease.error or lease.TTL}"
            )
        puts = (
            _put(self._cluster_key, cluster.encode()),
            _put(self._active_key, holder.encode(), lease.ID),
        )
        try:
            answer = await self._transact(self._if_unchanged(seen, *puts))
        except BaseException:
            # The term may have been granted: nobody here would renew it.
            await self.release(Grant(lease.ID, 0))
            raise
        if answer.succeeded:
            return Grant(lease.ID, answer.header.revision)
        await self.release(Grant(lease.ID, 0))
        return None

    async def renew(self, grant: Grant) -> bool:
        """See `LeaseCoordinator`. One member gives both answers: another may know nothing of the lease."""

        async def ask(channel: aio.Channel) -> bool:
            if not await self._keep_alive(channel, grant.lease):
                return False
            found = (await self._at(channel, self._read_active())).responses[0].response_range.kvs
            return bool(found) and found[0].mod_revision == grant.revision

        return bool(await self._at_some_endpoint(ask))

    async def mark(self, grant: Grant, holder: Holder) -> Grant | None:
        """See `LeaseCoordinator`. The record may have been written before, by a request without an answer."""
        request = etcd_pb2.TxnRequest(
            compare=[_is_at(self._active_key, grant.revision)],
            success=[_put(self._active_key, holder.encode(), grant.lease)],
            failure=self._read_active().success,
        )
        answer = await self._transact(request)
        if answer.succeeded:
            return Grant(grant.lease, answer.header.revision)
        found = answer.responses[0].response_range.kvs
        is_ours = bool(found) and (found[0].lease, found[0].value) == (grant.lease, holder.encode())
        return Grant(grant.lease, found[0].mod_revision) if is_ours else None

    async def release(self, grant: Grant) -> None:
        """See `LeaseCoordinator`; a lease that cannot be ended ends by itself."""
        with suppress(CoordinatorAway):
            await self._call(
                "Lease/LeaseRevoke",
                etcd_pb2.LeaseRevokeRequest(ID=grant.lease),
                etcd_pb2.LeaseRevokeResponse.FromString,
            )

    async def close(self) -> None:
        """See `LeaseCoordinator`."""
        while self._channels:
            await self._channels.popitem()[1].close()

    # --- requests ------------------------------------------------------------------------------------------

    def _if_unchanged(self, seen: Seen, *puts: etcd_pb2.RequestOp) -> etcd_pb2.TxnRequest:
        cluster_at, active_at = seen.version
        compare = [_is_at(self._cluster_key, cluster_at), _is_at(self._active_key, active_at)]
        return etcd_pb2.TxnRequest(compare=compare, success=puts)

    def _read_active(self) -> etcd_pb2.TxnRequest:
        ranges = [etcd_pb2.RequestOp(request_range=etcd_pb2.RangeRequest(key=self._active_key))]
        return etcd_pb2.TxnRequest(success=ranges)

    async def _transact(self, request: etcd_pb2.TxnRequest) -> etcd_pb2.TxnResponse:
        answer: etcd_pb2.TxnResponse = await self._at_some_endpoint(partial(self._at, request=request))
        return answer

    async def _at(self, channel: aio.Channel, request: etcd_pb2.TxnRequest) -> etcd_pb2.TxnResponse:
        answer: etcd_pb2.TxnResponse = await self._ask(
            channel, "KV/Txn", request, etcd_pb2.TxnResponse.FromString
        )
        return answer

    async def _call(self, method: str, request: Message, read: Callable[[bytes], Any]) -> Any:
        return await self._at_some_endpoint(lambda channel: self._ask(channel, method, request, read))

    async def _ask(
        self, channel: aio.Channel, method: str, request: Message, read: Callable[[bytes], Any]
    ) -> Any:
        call: Any = channel.unary_unary(
            f"/etcdserverpb.{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=read,
        )
        return await call(request, timeout=self._request_seconds, metadata=self._metadata())

    def _metadata(self) -> list[tuple[str, str]]:
        return [] if self._token is None else [("token", self._token)]

    async def _log_in(self, channel: aio.Channel, user: EtcdUser) -> None:
        self._token = None
        request = etcd_pb2.AuthenticateRequest(name=user.name, password=user.password())
        answer: etcd_pb2.AuthenticateResponse = await self._ask(
            channel, "Auth/Authenticate", request, etcd_pb2.AuthenticateResponse.FromString
        )
        self._token = answer.token

    async def _keep_alive(self, channel: aio.Channel, lease: int) -> bool:
        """Return whether the lease lives on."""
        make: Any = channel.stream_stream(
            "/etcdserverpb.Lease/LeaseKeepAlive",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=etcd_pb2.LeaseKeepAliveResponse.FromString,
        )
        call = make(timeout=self._request_seconds, metadata=self._metadata())
        try:
            await call.write(etcd_pb2.LeaseKeepAliveRequest(ID=lease))
            answer = await call.read()
        finally:
            call.cancel()
        return isinstance(answer, etcd_pb2.LeaseKeepAliveResponse) and answer.TTL > 0

    async def _at_some_endpoint(self, ask: Callable[[aio.Channel], Any]) -> Any:
        """Ask the endpoints in turn, and keep the one that answers at their head."""
        reasons = []
        for address in list(self._endpoints):
            try:
                return await self._at_endpoint(address, ask)
            except aio.AioRpcError as error:
                reasons.append(f"{address}: {why_failed(error)}")
            except GatewayError as error:  # a certificate or a password that cannot be read
                reasons.append(f"{address}: {error}")
            # The next connection reads the certificates again, and may lead to another machine of that
            # name. Requests that are under way on the old one keep it; the last of them closes it.
            self._channels.pop(address, None)
            self._endpoints.remove(address)
            self._endpoints.append(address)
            log.debug("an endpoint of etcd does not answer", extra=fields(reason=reasons[-1]))
        raise CoordinatorAway(f"etcd does not answer: {'; '.join(reasons)}")

    async def _at_endpoint(self, address: str, ask: Callable[[aio.Channel], Any]) -> Any:
        if address not in self._channels:
            self._channels[address] = open_channel(address, self._tls, _OPTIONS)
        channel = self._channels[address]
        if self._user is None:
            return await ask(channel)
        if self._token is None:
            await self._log_in(channel, self._user)
        try:
            return await ask(channel)
        except aio.AioRpcError as error:
            if error.code() not in _TOKEN_REFUSED:
                raise
        await self._log_in(channel, self._user)
        return await ask(channel)


def _put(key: bytes, value: bytes, lease: int = 0) -> etcd_pb2.RequestOp:
    return etcd_pb2.RequestOp(request_put=etcd_pb2.PutRequest(key=key, value=value, lease=lease))


def _is_at(key: bytes, revision: int) -> etcd_pb2.Compare:
    return etcd_pb2.Compare(
        result=etcd_pb2.Compare.EQUAL, target=etcd_pb2.Compare.MOD, key=key, mod_revision=revision
    )
