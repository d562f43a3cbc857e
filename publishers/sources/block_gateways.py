"""Committed blocks of a chain, read over gRPC from whichever of several gateways answers.

How far they are comes from `serverStatus`, the blocks from `subscribeBlockStream`. A reader that loses a
gateway goes on with the next one at the block where it was; after a round of trouble it waits.
Source: docs/spec/wire.md section 2.3.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc

from gateway.api import node_pb2, node_pb2_grpc, subscribe_pb2, subscribe_pb2_grpc
from gateway.blocks.block import Block
from gateway.errors import SubscriptionError
from gateway.services.node_service import held_of
from gateway.services.subscription_client import BlockAssembler, status_name
from gateway.transport.channels import ClientTls, call_once, open_blocking_channel, refused_headers
from gateway.transport.message_size import why_too_long
from publishers import limits
from publishers.errors import SourceRefused, SourceUnreachable

__all__ = ["SIZE_OPTION", "BlockGateways", "HeldRange"]

log = logging.getLogger(__name__)

SIZE_OPTION: Final = "max_message_bytes"
"""What the option is called that says how long a message may be, in Spark and, with dashes, in commands."""

_CHANNEL_OPTIONS: Final = (("grpc.use_local_subchannel_pool", 1),)


@dataclass(frozen=True, slots=True)
class HeldRange:
    """What a gateway holds."""

    first: int | None
    """None: nothing."""
    last: int | None
    """None: nothing."""


class _Trouble(Exception):
    """A gateway did not do what was asked of it."""


class BlockGateways:
    """The gateways of one chain; it travels to the workers, and connects where it is used.

    Args:
        gateways: `host:port` each, in the order in which they are tried; at least one.
        tls: None: connect without.
        answer_seconds: silence that is borne; no longer than `deadline_seconds`.
        deadline_seconds: give up after so long without a block that is there.
        message_bytes_max: the longest message that is taken; an item may be as long.
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
        self._channel_options = (
            *_CHANNEL_OPTIONS,
            ("grpc.max_receive_message_length", message_bytes_max),
        )

    def held(self) -> HeldRange | None:
        """Say what the first gateway that answers holds; None when none answers."""
        try:
            return self.held_surely()
        except SourceUnreachable:
            return None

    def held_surely(self, wanted: str = "what the gateways hold") -> HeldRange:
        """Say what the first gateway that answers holds; each is asked once.

        Args:
            wanted: what is asked for, for the error.

        Raises:
            SourceUnreachable: none answers.
        """
        trouble = ""
        for address in self._gateways:
            try:
                return self._asked(address)
            except _Trouble as error:
                trouble = f"{address}: {error}"
                log.warning("%s", trouble)
        raise SourceUnreachable(wanted, None, trouble)

    def held_in_time(self, wanted: str, wait: Callable[[float], None] = time.sleep) -> HeldRange:
        """Say what the first gateway that answers holds; they are asked until one does.

        Args:
            wanted: what is asked for, for the error.
            wait: called with seconds between two rounds.

        Raises:
            SourceUnreachable: none answered within the deadline.
        """
        give_up_at = time.monotonic() + self._deadline_seconds
        while True:
            try:
                return self.held_surely(wanted)
            except SourceUnreachable as error:
                if time.monotonic() >= give_up_at:
                    raise SourceUnreachable(wanted, self._deadline_seconds, error.trouble) from error
            wait(limits.SOURCE_RETRY_SECONDS)

    def held_by(self, address: str) -> HeldRange:
        """Say what one gateway holds.

        Raises:
            SourceUnreachable: it does not answer.
        """
        try:
            return self._asked(address)
        except _Trouble as error:
            log.warning("%s: %s", address, error)
            raise SourceUnreachable("what it holds", None, f"{address}: {error}") from error

    def _asked(self, address: str) -> HeldRange:
        def ask(channel: grpc.Channel) -> node_pb2.ServerStatusResponse:
            stub = node_pb2_grpc.BlockNodeServiceStub(channel)
            return stub.serverStatus(node_pb2.ServerStatusRequest(), timeout=self._answer_seconds)

        try:
            status = call_once(address, self._tls, ask, self._channel_options)
        except grpc.RpcError as error:
            raise _Trouble(_reason(error)) from error
        return HeldRange(*held_of(status))

    def blocks(self, first: int, last: int, wait: Callable[[float], None] = time.sleep) -> Iterator[Block]:
        """Give the blocks of a range, in order; what is not committed yet is waited for.

        Args:
            first: number of the first block.
            last: number of the last block, at least `first`.
            wait: called with seconds between two rounds of trouble.

        Raises:
            SourceUnreachable: no gateway gave the next block within the deadline.
            SourceRefused: the next block has an item that is longer than `message_bytes_max`.
            TlsError: a file of `tls` cannot be read.
        """
        following = first
        give_up_at = time.monotonic() + self._deadline_seconds
        while True:
            trouble = ""
            for address in self._gateways:
                try:
                    for block in self._subscribe(address, following, last):
                        following = block.number + 1
                        yield block
                        give_up_at = time.monotonic() + self._deadline_seconds
                except (_Trouble, SubscriptionError) as error:
                    trouble = f"{address}: {error}"
                    log.warning("block %s: %s", following, trouble)
                if following > last:
                    return
            if time.monotonic() >= give_up_at:
                raise SourceUnreachable(f"block {following}", self._deadline_seconds, trouble)
            wait(limits.SOURCE_RETRY_SECONDS)

    def _subscribe(self, address: str, first: int, last: int) -> Iterator[Block]:
        """Give the blocks of one subscription; it ends with the last block, or in trouble."""
        assembler = BlockAssembler(first, last)
        request = subscribe_pb2.SubscribeStreamRequest(start_block_number=first, end_block_number=last)
        with open_blocking_channel(address, self._tls, self._channel_options) as channel:
            call = subscribe_pb2_grpc.BlockStreamSubscribeServiceStub(channel).subscribeBlockStream(request)
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
                    refused_headers(address, error)  # the next round is relayed
                    reason = _reason(error)
                    if why := why_too_long(reason, f"{SIZE_OPTION} here"):
                        # Another gateway would send the same item.
                        number = assembler.next_number
                        raise SourceRefused(f"block {number}", f"{address}: {why}") from error
                    if watch.is_over:
                        reason = f"silent for {self._answer_seconds:g} s"
                    raise _Trouble(reason) from error
        status = "no status" if assembler.status is None else status_name(assembler.status)
        raise _Trouble(f"the subscription ended before block {last} with {status}")


class _Watch:
    """Cancels a call that was silent for too long; gRPC has deadlines for whole calls only."""

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


def _reason(error: grpc.RpcError) -> str:
    if isinstance(error, grpc.Call):
        return f"{error.code().name}: {error.details() or 'no details'}"
    return str(error) or type(error).__name__
