"""The gRPC service `ProofService`: proofs of single items, made of stored blocks.

With the metadata `sluice-under: N` a proof goes through the tree of all block hashes of a later block N.
Where there is no proof, trailing metadata `sluice-reason` say why.

Source: docs/spec/wire.md section 2.4; docs/spec/proofs.md section 6.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from sluice.gateway.api import proof_pb2
from sluice.gateway.blocks.block_numbers import BLOCK_NUMBER_MAX
from sluice.gateway.blocks.errors import NotProvable
from sluice.gateway.blocks.proofs.contents import ContentsProof, ProvableBlock
from sluice.gateway.services.block_answers import BlockAnswers, Trouble
from sluice.gateway.store.block_hash_tree import BlockHashTree
from sluice.gateway.store.block_store import BlockStore

__all__ = ["PROOF_SERVICE_NAME", "REASON_KEY", "UNDER_KEY", "ProofService"]

PROOF_SERVICE_NAME = proof_pb2.DESCRIPTOR.services_by_name["ProofService"].full_name
UNDER_KEY = "sluice-under"
REASON_KEY = "sluice-reason"

KEPT_BYTES_MAX: Final = 16 << 20
"""Bytes of a block that is kept for the next request."""

_Code = proof_pb2.BlockContentsProofResponse.Code
_CODE_OF_TROUBLE: Final = {
    Trouble.NOT_LOCAL: _Code.NOT_AVAILABLE,
    Trouble.UNREADABLE: _Code.ERROR,
    Trouble.BUG: _Code.ERROR,
}


class _NoProof(NamedTuple):
    code: proof_pb2.BlockContentsProofResponse.Code.ValueType
    reason: str


class ProofService:
    """The service of `getBlockContentsProof`.

    Args:
        ensure: raises if a block is not what was committed; called in a thread, before each read.
        answers: reads the blocks; `getBlock` has the same limits.
    """

    def __init__(
        self,
        store: BlockStore,
        tree: BlockHashTree,
        answers: BlockAnswers,
        ensure: Callable[[int], None] = lambda number: None,
    ) -> None:
        self._store = store
        self._tree = tree
        self._answers = answers
        self._ensure = ensure
        self._kept: tuple[ProvableBlock, ...] = ()
        """The two of the last answer: clients ask for their headers next."""

    def add_to(self, server: aio.Server) -> None:
        """Register the service, by hand: unreadable requests have answers, and threads serialize."""
        handler: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(
            self.get_contents_proof, request_deserializer=_parse, response_serializer=None
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(PROOF_SERVICE_NAME, {"getBlockContentsProof": handler}),)
        )

    async def get_contents_proof(
        self, request: proof_pb2.BlockContentsProofRequest | None, context: aio.ServicerContext[Any, Any]
    ) -> bytes:
        """`request` is None if it does not parse."""
        first, last = self._store.first_available, self._store.last_number
        if request is None or request.WhichOneof("block_item") is None:
            got = "a message that does not parse" if request is None else "no block_item"
            return _without(_NoProof(_Code.INVALID_REQUEST, f"request: got {got}, expected an item"), context)
        under: int | None = None
        for key, value in context.invocation_metadata() or ():
            if key == UNDER_KEY:
                text = str(value)
                under = int(text) if text.isascii() and text.isdecimal() and len(text) <= 20 else -1
        number = request.block_number
        if under is not None and not number < under <= BLOCK_NUMBER_MAX:
            reason = f"{UNDER_KEY}: got another value, expected a block number above {number}"
            return _without(_NoProof(_Code.INVALID_REQUEST, reason), context)
        for wanted in (number, number if under is None else under):
            if first is None or last is None or not first <= wanted <= last:
                held = "no blocks" if first is None or last is None else f"blocks {first} to {last}"
                reason = f"block {wanted}: got none, expected one of those here: {held}"
                return _without(_NoProof(_Code.NOT_AVAILABLE, reason), context)
        refused: list[_NoProof] = []

        def make() -> bytes:
            refused.clear()
            answer = self._prove(request, under)
            if isinstance(answer, _NoProof):
                refused.append(answer)
                return proof_pb2.BlockContentsProofResponse(status=answer.code).SerializeToString()
            return proof_pb2.BlockContentsProofResponse(
                status=_Code.SUCCESS, block_content_proof=answer.message()
            ).SerializeToString()

        answer = await self._answers.read(number, make, context)
        if isinstance(answer, Trouble):
            return _without(_NoProof(_CODE_OF_TROUBLE[answer], answer.value), context)
        return _without(refused[0], context) if refused else answer

    def _prove(
        self, request: proof_pb2.BlockContentsProofRequest, under: int | None
    ) -> ContentsProof | _NoProof:
        block = self._block(request.block_number)
        found = _find(block, request)
        if isinstance(found, _NoProof):
            return found
        try:
            if under is None:
                return block.prove(found)
            later = self._block(under)
            tree = self._tree.path(request.block_number, under, later.summary.all_blocks_root_hash)
            return block.prove_under(found, later, tree)
        except NotProvable as error:
            return _NoProof(_Code.NOT_AVAILABLE, str(error))

    def _block(self, number: int) -> ProvableBlock:
        self._ensure(number)
        for kept in self._kept:
            if kept.summary.number == number and kept.summary.root_hash == self._store.root_hash_at(number):
                return kept
        stored = self._store.read_block(number)
        assert stored is not None
        block = ProvableBlock(stored.items, stored.root_hash)
        if block.summary.size_bytes <= KEPT_BYTES_MAX:
            self._kept = (block, *self._kept[:1])
        return block


def _find(block: ProvableBlock, request: proof_pb2.BlockContentsProofRequest) -> int | _NoProof:
    """Return the place of the item that a request names, or why there is none."""
    what = f"block {request.block_number}"
    if request.HasField("block_item_index"):
        if request.block_item_index < len(block.items):
            return request.block_item_index
        got, expected = f"item {request.block_item_index}", f"one of 0 to {len(block.items) - 1}"
        return _NoProof(_Code.ITEM_NOT_FOUND, f"{what}: got {got}, expected {expected}")
    if request.HasField("block_item_hash"):
        places = block.places_of_hash(request.block_item_hash)
    else:
        wanted = request.complete_block_item
        places = [place for place, item in enumerate(block.items) if item == wanted]
    if len(places) == 1:
        return places[0]
    if places:
        some = ", ".join(map(str, places[:8])) + (", …" if len(places) > 8 else "")
        reason = f"{what}: got {len(places)} such items ({some}), expected one: ask by its index"
        return _NoProof(_Code.DUPLICATE_HASH_ITEM_FOUND, reason)
    return _NoProof(_Code.ITEM_NOT_FOUND, f"{what}: got no such item, expected one")


def _without(no_proof: _NoProof, context: aio.ServicerContext[Any, Any]) -> bytes:
    reason = no_proof.reason.encode("ascii", "backslashreplace").decode()
    context.set_trailing_metadata(((REASON_KEY, reason),))
    return proof_pb2.BlockContentsProofResponse(status=no_proof.code).SerializeToString()


def _parse(message: bytes) -> proof_pb2.BlockContentsProofRequest | None:
    try:
        return proof_pb2.BlockContentsProofRequest.FromString(message)
    except DecodeError:
        return None
