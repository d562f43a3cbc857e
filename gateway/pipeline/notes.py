"""Log lines and metrics of the publish race: answers, refusals, lost blocks."""

from __future__ import annotations

import logging

from sluice.gateway.blocks.refusal import Fault, Refusal
from sluice.gateway.logs import caused_by, fields
from sluice.gateway.metrics import Metrics
from sluice.gateway.pipeline.dispute import Disputed
from sluice.gateway.race.actions import Acknowledgement, Drop, EndOfStream, Resend, Response, Skip, Stray
from sluice.gateway.race.reputation import BackedOff
from sluice.gateway.race.tables import EndStatus, Failure

__all__ = [
    "RESENT_BEGINNING",
    "note_answer",
    "note_backoff",
    "note_dispute",
    "note_drop",
    "note_refusal",
    "note_stray",
]

log = logging.getLogger(__name__)

RESENT_BEGINNING = "beginning"
"""The reason of a ResendBlock for a block that publishers passed for a first block that failed."""

_USUAL_ENDS = (EndStatus.SUCCESS, EndStatus.DUPLICATE_BLOCK)
_OURS = (Failure.TIMED_OUT, Failure.NODE)
_SAID_BEFORE = (Failure.REFUSED, Failure.UNCHECKED, Failure.DISPUTED)


def note_answer(metrics: Metrics, publisher: str, response: Response, cause: str = "") -> None:
    """Acknowledgements are not noted. By `cause` `gateway.logs` counts the lines of a publisher."""
    if isinstance(response, Acknowledgement):
        return
    if isinstance(response, EndOfStream):
        log.log(
            logging.INFO if response.status in _USUAL_ENDS else logging.WARNING,
            "stream ended",
            extra=caused_by(
                cause,
                publisher=publisher,
                status=response.status.name,
                block=response.proximate_number,
                last_block=response.last_number,
                reason=response.reason,
            ),
        )
        return
    if isinstance(response, Skip):
        metrics.blocks_skipped.inc()
    elif isinstance(response, Resend):
        reason = RESENT_BEGINNING if response.failure is None else response.failure.name.lower()
        metrics.blocks_resent.labels(reason=reason).inc()
    if log.isEnabledFor(logging.DEBUG):
        log.debug("answered", extra=fields(publisher=publisher, response=repr(response)))


def note_refusal(metrics: Metrics, number: int, publisher: str, refusal: Refusal, cause: str = "") -> None:
    """Note a block that cannot be accepted."""
    log.warning(
        "block refused" if refusal.kind.fault is Fault.SENDER else "block cannot be checked",
        extra=caused_by(
            cause,
            block=number,
            publisher=publisher,
            kind=refusal.kind.value,
            what=refusal.what,
            got=refusal.got,
            expected=refusal.expected,
        ),
    )
    metrics.blocks_refused.labels(reason=refusal.kind.value).inc()


def note_dispute(disputed: Disputed) -> None:
    """Note a dispute over the last stored block."""
    log.log(
        logging.ERROR if disputed.is_dead_end else logging.WARNING,
        disputed.text,
        extra=fields(
            block=disputed.number,
            own_root_hash=disputed.own_root.hex(),
            named_root_hash=disputed.named_root.hex(),
            sources=len(disputed.sources),
        ),
    )


def note_stray(metrics: Metrics, publisher: str, action: Stray, cause: str = "") -> None:
    """Log only the first dropped message in a row."""
    metrics.stray_messages.inc()
    if action.is_first:
        extra = caused_by(cause, publisher=publisher, reason=action.reason)
        log.warning("stray message dropped", extra=extra)


def note_backoff(metrics: Metrics, action: BackedOff) -> None:
    """Note that a backoff begins."""
    metrics.backoffs.inc()
    log.warning(
        "publisher backs off",
        extra=fields(
            publisher=action.words(), failures=action.failure_count, seconds=round(action.left_ns / 1e9, 3)
        ),
    )


def note_drop(publisher: str, action: Drop, cause: str = "") -> None:
    """Note an attempt that failed, unless `note_refusal` has."""
    if action.failure in _SAID_BEFORE:
        return
    log.log(
        logging.WARNING if action.failure in _OURS else logging.INFO,
        "block dropped",
        extra=caused_by(
            cause,
            block=action.block_number,
            publisher=publisher,
            failure=action.failure.name,
            reason=action.reason,
        ),
    )
