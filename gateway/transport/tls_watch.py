"""Looks at the certificates of a node's servers now and then: their end, and renewals that cannot be used.

A shell. gRPC asks for a certificate at a handshake only; a node that nobody connects to is to know as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

from gateway.limits import CERTIFICATE_LOOK_SECONDS
from gateway.metrics import Metrics
from gateway.transport.tls import ServerTls

__all__ = ["certificate_notes", "watch_certificates"]


def certificate_notes(certificates: Sequence[ServerTls]) -> tuple[str, ...]:
    """Say what is wrong with certificates, or soon will be, in words."""
    notes = []
    now = datetime.now(UTC)
    for tls in certificates:
        end = f"{tls.not_after:%Y-%m-%d %H:%M} UTC"
        if tls.problem is not None:
            notes.append(
                f"{tls.setting}: the new files cannot be used ({tls.problem}); the old ones end {end}"
            )
        elif tls.ends_soon(now):
            notes.append(f"{tls.setting}: the certificate ends {end}")
    return tuple(notes)


async def watch_certificates(certificates: Sequence[ServerTls], metrics: Metrics) -> None:
    """Read files that have changed and show how things stand, until cancelled."""
    while True:
        for tls in tuple(certificates):
            await asyncio.to_thread(tls.reload_if_changed)
            metrics.tls_certificate_end_seconds.labels(setting=tls.setting).set(tls.not_after.timestamp())
            metrics.tls_renewal_failed.labels(setting=tls.setting).set(tls.problem is not None)
        await asyncio.sleep(CERTIFICATE_LOOK_SECONDS)
