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
from typing import Any, Final, Protocol

from google.protobuf.message import Message
from grpc import aio

from sluice.gateway.api import etcd_pb2
from sluice.gateway.cluster.election import ClusterRecord, Holder, Seen
from sluice.gateway.errors import CoordinatorAway, GatewayError
from sluice.gateway.logs import fields
from sluice.gateway.transport.channels import ClientTls, open_channel
from sluice.gateway.transport.failures import why_failed

__all__ = ["EtcdCoordinator", "Grant", "LeaseCoordinator"]

log = logging.getLogger(__name__)

_OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", 1 << 20),
    ("grpc.use_local_subchannel_pool", 1),
)
REQUEST_SHARE: Final = 0.2
"""Longest time of a request, of the lease's length: a renewal is to be tried at other endpoints, too."""


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


class EtcdCoordinator:
    """The coordinator in an etcd cluster.

    Args:
        endpoints: its members, `host:port` each; the next one is asked when one fails.
        prefix: of the keys: the name of this cluster of nodes.
        lease_seconds: whole seconds count.
    """

    def __init__(
        self, endpoints: Sequence[str], prefix: str, lease_seconds: float, tls: ClientTls | None = None
    ) -> None:
        self._endpoints = list(endpoints)
        self._cluster_key, self._active_key = f"{prefix}/cluster".encode(), f"{prefix}/active".encode()
        self._lease_seconds = math.ceil(lease_seconds)
        self._request_seconds = lease_seconds * REQUEST_SHARE
        self._tls = tls
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
        """See `LeaseCoordinator`."""
        alive = await self._keep_alive(grant.lease)
        if alive is None or alive.TTL <= 0:
            return False
        request = etcd_pb2.TxnRequest(
            success=[etcd_pb2.RequestOp(request_range=etcd_pb2.RangeRequest(key=self._active_key))]
        )
        found = (await self._transact(request)).responses[0].response_range.kvs
        return bool(found) and found[0].mod_revision == grant.revision

    async def mark(self, grant: Grant, holder: Holder) -> Grant | None:
        """See `LeaseCoordinator`."""
        request = etcd_pb2.TxnRequest(
            compare=[_is_at(self._active_key, grant.revision)],
            success=[_put(self._active_key, holder.encode(), grant.lease)],
        )
        answer = await self._transact(request)
        return Grant(grant.lease, answer.header.revision) if answer.succeeded else None

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

    async def _transact(self, request: etcd_pb2.TxnRequest) -> etcd_pb2.TxnResponse:
        answer: etcd_pb2.TxnResponse = await self._call("KV/Txn", request, etcd_pb2.TxnResponse.FromString)
        return answer

    async def _call(self, method: str, request: Message, read: Callable[[bytes], Any]) -> Any:
        async def ask(channel: aio.Channel) -> Any:
            call: Any = channel.unary_unary(
                f"/etcdserverpb.{method}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=read,
            )
            return await call(request, timeout=self._request_seconds)

        return await self._at_some_endpoint(ask)

    async def _keep_alive(self, lease: int) -> etcd_pb2.LeaseKeepAliveResponse | None:
        async def ask(channel: aio.Channel) -> etcd_pb2.LeaseKeepAliveResponse | None:
            make: Any = channel.stream_stream(
                "/etcdserverpb.Lease/LeaseKeepAlive",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=etcd_pb2.LeaseKeepAliveResponse.FromString,
            )
            call = make(timeout=self._request_seconds)
            try:
                await call.write(etcd_pb2.LeaseKeepAliveRequest(ID=lease))
                answer = await call.read()
            finally:
                call.cancel()
            return None if answer is aio.EOF else answer

        found: etcd_pb2.LeaseKeepAliveResponse | None = await self._at_some_endpoint(ask)
        return found

    async def _at_some_endpoint(self, ask: Callable[[aio.Channel], Any]) -> Any:
        """Ask the endpoints in turn, and keep the one that answers at their head."""
        reasons = []
        for address in list(self._endpoints):
            try:
                if address not in self._channels:
                    self._channels[address] = open_channel(address, self._tls, _OPTIONS)
                return await ask(self._channels[address])
            except aio.AioRpcError as error:
                reasons.append(f"{address}: {why_failed(error)}")
            except GatewayError as error:  # a certificate that cannot be read
                reasons.append(f"{address}: {error}")
            self._endpoints.remove(address)
            self._endpoints.append(address)
            log.debug("an endpoint of etcd does not answer", extra=fields(reason=reasons[-1]))
        raise CoordinatorAway("; ".join(reasons))


def _put(key: bytes, value: bytes, lease: int = 0) -> etcd_pb2.RequestOp:
    return etcd_pb2.RequestOp(request_put=etcd_pb2.PutRequest(key=key, value=value, lease=lease))


def _is_at(key: bytes, revision: int) -> etcd_pb2.Compare:
    return etcd_pb2.Compare(
        result=etcd_pb2.Compare.EQUAL, target=etcd_pb2.Compare.MOD, key=key, mod_revision=revision
    )
