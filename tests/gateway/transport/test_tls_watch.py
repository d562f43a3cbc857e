"""Certificates are looked at without a handshake: a renewal that fails and an end that is near are seen."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway.metrics import Metrics
from gateway.transport.tls import ServerTls
from gateway.transport.tls_watch import certificate_notes, watch_certificates
from tests.certificates import Authority
from tests.nodes import ANSWER_SECONDS


def test_what_is_wrong_is_said_and_shown_and_over_when_it_is_mended(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = ServerTls(authority.server_files(authority.issue("node"), mutual=False), "grpc.tls")
    metrics = Metrics(verification_mode="full")

    def value(name: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"setting": "grpc.tls"})

    async def look(failed: int) -> None:
        """Watch until the metric that is set last is so."""
        watching = asyncio.ensure_future(watch_certificates([tls], metrics))
        async with asyncio.timeout(ANSWER_SECONDS):
            while value("sluice_tls_renewal_failed") != failed:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        watching.cancel()

    asyncio.run(look(failed=0))
    assert certificate_notes([tls]) == ()
    assert value("sluice_tls_certificate_end_seconds") == tls.not_after.timestamp()
    (tmp_path / "node.key").write_text("half a ke")
    asyncio.run(look(failed=1))
    end = f"{tls.not_after:%Y-%m-%d %H:%M} UTC"
    why = (
        f"grpc.tls_key: got {tmp_path}/node.key, which cannot be used, "
        "expected a PEM private key without a passphrase"
    )
    expected = f"grpc.tls: the new files cannot be used ({why}); the old ones end {end}"
    assert certificate_notes([tls]) == (expected,)
    authority.issue("node", days=2)
    asyncio.run(look(failed=0))
    assert certificate_notes([tls]) == (f"grpc.tls: the certificate ends {tls.not_after:%Y-%m-%d %H:%M} UTC",)
    assert value("sluice_tls_certificate_end_seconds") == tls.not_after.timestamp()
