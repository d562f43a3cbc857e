"""Mutants that no test can notice, because the cell is never used or makes no difference."""

from __future__ import annotations

from sluice.gateway.race.tables import EndStatus

__all__ = ["UNREACHABLE", "reason_of"]

_OTHER_END = "a stream without a block hears every end_of_block as that of another block"
_ONE_STEP = "ON_HEADER accepts no live block, and only one that is being sent can be ended"
_NO_ATTEMPT = "an open block has no attempt that anybody could report of"
_FORGOTTEN = "the block is forgotten in the same step"
_NOTHING_HELD = "nothing is held then, so there is nothing to do"
_ALL_SAFE = "all is safe and the source has ended: every way leads to DONE"
_STOPS_ANYWAY = "a publisher that stops ends in the same way with or without a source"
_NOTHING_TO_SAY = "nothing is left to say, and nobody asks the time any more"
_LAST_WORD = "its winner has heard the last word already"

UNREACHABLE: dict[str, str] = {
    "STREAM_TABLE[FRESH][BLOCK_END]": _OTHER_END,
    "BLOCK_TABLE[OPEN][ENDED]": _ONE_STEP,
    "BLOCK_TABLE[OPEN][VERIFIED]": _NO_ATTEMPT,
    "BLOCK_TABLE[OPEN][LINKED]": _NO_ATTEMPT,
    "BLOCK_TABLE[OPEN][COMMITTED]": _NO_ATTEMPT,
    "BLOCK_TABLE[OPEN][FAILED]": _NO_ATTEMPT,
    "BLOCK_TABLE[STREAMING][HEADER_ACCEPTED]": _ONE_STEP,
    "BLOCK_TABLE[COMPLETE][HEADER_ACCEPTED]": _ONE_STEP,
    "BLOCK_TABLE[COMPLETE][ENDED]": _ONE_STEP,
    "BLOCK_TABLE[VERIFIED][HEADER_ACCEPTED]": _ONE_STEP,
    "BLOCK_TABLE[VERIFIED][ENDED]": _ONE_STEP,
    "BLOCK_TABLE[COMMITTING][HEADER_ACCEPTED]": _ONE_STEP,
    "BLOCK_TABLE[COMMITTING][ENDED]": _ONE_STEP,
    "BLOCK_TABLE[COMMITTING][COMMITTED] =": _FORGOTTEN,
    "BLOCK_TABLE[COMMITTED]": _FORGOTTEN,
    "TABLE[IDLE][CLOCK] = WATCH": _NOTHING_HELD,
    "TABLE[STOPPING][SOURCE_ENDED] = END_SOURCE": _STOPS_ANYWAY,
    "TABLE[FINISHING][DISCONNECTED] = RETRY": _ALL_SAFE,
    "TABLE[FINISHING][DISCONNECTED] = DEPART": _ALL_SAFE,
    "TABLE[FINISHING][NODE_BEHIND] = BEHIND": _NOTHING_HELD,
    **{f"TABLE[{state}][FIRST_TOLD] = LEARN_FIRST": _NOTHING_HELD for state in ("FINISHING", "DONE")},
    "TABLE[DONE][WRITABLE] = SEND": _NOTHING_HELD,
    "TABLE[DONE][SOURCE_ENDED] = END_SOURCE": _NOTHING_HELD,
    "TABLE[DONE][SKIPPED] = SKIP": _NOTHING_HELD,
    "TABLE[DONE][NODE_BEHIND] = BEHIND": _NOTHING_HELD,
    **{f"TABLE[{state}][SOURCE_ENDED] = END_SOURCE": _STOPS_ANYWAY for state in ("FAILED", "STOPPED")},
    **{f"TABLE[{state}][WRITABLE] = SEND_PARTING": _NOTHING_TO_SAY for state in ("FAILED", "STOPPED")},
    **{f"TABLE[{state}][CLOCK]": _NOTHING_TO_SAY for state in ("DONE", "FAILED", "STOPPED")},
    **{f"CONSEQUENCES[STREAM_ENDED] = {status.name}": _LAST_WORD for status in EndStatus},
}
"""Beginning of a mutant's name -> why nobody can notice."""


def reason_of(name: str) -> str | None:
    """Return why a mutant cannot be noticed; None if it can."""
    return next((reason for prefix, reason in UNREACHABLE.items() if name.startswith(prefix)), None)
