"""Events and actions of the arbiter, as short texts for the trace."""

from __future__ import annotations

from typing import Any

from sluice.gateway.race.actions import (
    Acknowledgement,
    Action,
    Append,
    Begin,
    Behind,
    Drop,
    EndOfStream,
    EndResponses,
    Resend,
    SendResponse,
    Skip,
)


def text_of(action: Action) -> str:
    """Return `#3 Skip 9`, `Drop 9 attempt 4 LEFT`, …"""
    match action:
        case SendResponse(publisher_id, EndOfStream(status, last, about)):
            return f"#{publisher_id} End {status.name} {last} {about}"
        case SendResponse(publisher_id, Behind(last)):
            return f"#{publisher_id} Behind {last}"
        case SendResponse(publisher_id, Acknowledgement(number) | Skip(number) | Resend(number) as response):
            return f"#{publisher_id} {type(response).__name__} {number}"
        case Begin(attempt_id, number, publisher_id):
            return f"Begin {number} #{publisher_id} attempt {attempt_id}"
        case Drop(attempt_id, number, failure, _):
            return f"Drop {number} attempt {attempt_id} {failure.name}"
        case Append(attempt_id, items):
            return f"Append {attempt_id} {len(items)}"
        case EndResponses(publisher_id):
            return f"Close #{publisher_id}"
        case _:
            return f"{type(action).__name__} {getattr(action, 'attempt_id', '')}"


def brief(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    texts = [f"{len(arg)} items" if isinstance(arg, list | tuple) else str(arg) for arg in args[:3]]
    return " ".join(texts + [name for name, value in kwargs.items() if value is True])
