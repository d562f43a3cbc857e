"""Committed blocks of a chain over gRPC, from whichever of several gateways answers.

`serverStatus` tells how far a gateway is, `subscribeBlockStream` brings the blocks.
Source: docs/spec/wire.md section 2.3.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc

from sluice.gateway.api import node_pb2, node_pb2_grpc
from sluice.gateway.blocks.block import Block
from sluice.gateway.errors import SubscriptionError
from sluice.gateway.services.node_service import held_of
from sluice.gateway.services.subscription_client import BlockAssembler, status_name, subscribe_to
from sluice.gateway.transport.channels import ClientTls, call_once, open_blocking_channel, refused_headers
from sluice.gateway.transport.failures import why_failed, why_failed_at
from sluice.gateway.transport.message_size import why_too_long
from sluice.publishers import limits
from sluice.publishers.errors import SourceRefused, SourceUnreachable
from sluice.publishers.sources.failover import RETRY_SECONDS, first_answer, read_on, warn

__all__ = ["BlockGateways", "HeldRange", "ask_held", "channel_options"]

_Options = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class HeldRange:
    """The blocks that a gateway holds; None: none."""

    first: int | None
    last: int | None


class _Trouble(Exception):
    """A gateway did not do what we asked."""


_FAULTS: Final = (_Trouble, SubscriptionError)


def channel_options(message_bytes_max: int) -> _Options:
    """Return options of a channel for blocks: a connection of its own, and a message limit."""
    return (
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", message_bytes_max),
    )


def ask_held(address: str, tls: ClientTls | None, seconds: float, options: _Options = ()) -> HeldRange:
    """Ask one gateway which blocks it holds; raise TlsError or grpc.RpcError."""

    def ask(channel: grpc.Channel) -> node_pb2.ServerStatusResponse:
        stub = node_pb2_grpc.BlockNodeServiceStub(channel)
        return stub.serverStatus(node_pb2.ServerStatusRequest(), timeout=seconds)

    return HeldRange(*held_of(call_once(address, tls, ask, options)))


class BlockGateways:
    """The gateways of one chain, in order of preference. It travels to Spark workers, and connects there.

    Args:
        answer_seconds: the longest silence of a gateway; at most `deadline_seconds`.
        deadline_seconds: the longest time without a block that is there.
    """

    def __init__(
        self,
        gateways: Sequence[str],
        tls: ClientTls | None = None,
        *,
        answer_seconds: float = 10.0,
        deadline_seconds: float = 60.0,
        message_bytes_max: int = limits.MESSAGE_BYTES_MAX,
    ) -> None:
        self._gateways = tuple(gateways)
        self._tls = tls
        self._answer_seconds = min(answer_seconds, deadline_seconds)
        self._deadline_seconds = deadline_seconds
        self._channel_options = channel_options(message_bytes_max)

    def held(self) -> HeldRange | None:
        """Return what the first gateway that answers holds; None if none answers."""
        try:
            return self.held_surely()
        except SourceUnreachable:
            return None

    def held_surely(
        self, wanted: str = "what the gateways hold", on_trouble: Callable[[str], None] = warn
    ) -> HeldRange:
        """Ask each gateway once; return what the first that answers holds, or raise SourceUnreachable."""
        return first_answer(self._gateways, self._ask, _FAULTS, wanted, on_trouble)

    def held_in_time(self, wanted: str, wait: Callable[[float], None] = time.sleep) -> HeldRange:
        """Ask the gateways until one answers; raise SourceUnreachable at the deadline."""
        give_up_at = time.monotonic() + self._deadline_seconds
        while True:
            try:
                return self.held_surely(wanted)
            except SourceUnreachable as error:
                if time.monotonic() >= give_up_at:
                    raise SourceUnreachable(wanted, self._deadline_seconds, error.trouble) from error
            wait(RETRY_SECONDS)

    def held_by(self, address: str) -> HeldRange:
        """Return what one gateway holds; raise SourceUnreachable."""
        return first_answer((address,), self._ask, _FAULTS, "what it holds")

    def _ask(self, address: str) -> HeldRange:
        try:
            return ask_held(address, self._tls, self._answer_seconds, self._channel_options)
        except grpc.RpcError as error:
            raise _Trouble(why_failed_at(address, error, self._tls)) from error

    def blocks(self, first: int, last: int, wait: Callable[[float], None] = time.sleep) -> Iterator[Block]:
        """Yield the blocks `first` to `last` in order, as they are committed.

        Raises:
            SourceUnreachable: no gateway gave the next block within the deadline.
            SourceRefused: the next block has an item that is longer than `message_bytes_max`.
        """

        def subscribe(address: str, next_number: int) -> Iterator[Block]:
            return self._subscribe(address, next_number, last)

        deadline = self._deadline_seconds
        return read_on(self._gateways, subscribe, _FAULTS, "block", first, last, deadline, wait)

    def _subscribe(self, address: str, first: int, last: int) -> Iterator[Block]:
        assembler = BlockAssembler(first, last)
        with open_blocking_channel(address, self._tls, self._channel_options) as channel:
            call = subscribe_to(channel, first, last)
            with _Watch(call, self._answer_seconds) as watch:
                try:
                    for response in call:
                        watch.heard()
                        block = assembler.feed(response)
                        if block is not None:
                            yield block
                            watch.heard()  # the caller may have taken its time
                        if assembler.complete:
                            return
                except grpc.RpcError as error:
                    refused_headers(address, error)  # the next call is relayed
                    reason = why_failed(error)
                    if why := why_too_long(reason, f"{limits.SIZE_OPTION} here"):
                        # Another gateway would send the same item.
                        number = assembler.next_number
                        raise SourceRefused(f"block {number}", f"{address}: {why}") from error
                    if watch.is_over:
                        reason = f"silent for {self._answer_seconds:g} s"
                    raise _Trouble(reason) from error
        status = "no status" if assembler.status is None else status_name(assembler.status)
        raise _Trouble(f"the subscription ended before block {last} with {status}")


class _Watch:
    """Cancels a silent call; gRPC has deadlines for whole calls only."""

    def __init__(self, call: Any, silence_seconds: float) -> None:
        self.is_over = False
        self._call = call
        self._silence_seconds = silence_seconds
        self._heard_at = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="subscription-watch", daemon=True)

    def heard(self) -> None:
        self._heard_at = time.monotonic()

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._call.cancel()
        self._thread.join()

    def _run(self) -> None:
        while True:
            left = self._heard_at + self._silence_seconds - time.monotonic()
            if left <= 0:
                self.is_over = True
                self._call.cancel()
                return
            if self._done.wait(left):
                return
