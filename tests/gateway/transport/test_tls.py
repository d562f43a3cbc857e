"""Tests of `transport.tls`: unusable files are named, renewed files are taken up or left alone."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
import subprocess
from datetime import UTC, datetime, timedelta, tzinfo
from ipaddress import ip_address
from pathlib import Path
from typing import BinaryIO, Self

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sluice.gateway.addresses import Address
from sluice.gateway.errors import TlsError
from sluice.gateway.limits import TLS_FILE_BYTES_MAX
from sluice.gateway.metrics import Metrics
from sluice.gateway.transport.certificates import subjects_of
from sluice.gateway.transport.grpc_server import ServerPlan, start_server
from sluice.gateway.transport.tls import (
    CERTIFICATE_WARNING_DAYS,
    ServerTls,
    TlsFiles,
    certificate_notes,
    watch_certificates,
)
from tests.certificates import Authority, Pair
from tests.nodes import ANSWER_SECONDS


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def server(authority: Authority) -> Pair:
    return authority.issue("node")


def refusal(files: TlsFiles) -> str:
    with pytest.raises(TlsError) as caught:
        ServerTls(files, "grpc.tls")
    assert caught.value.exit_status == 2
    return str(caught.value)


def assert_the_old_one_stays(tls: ServerTls, before: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    with caplog.at_level(logging.ERROR):
        assert not tls.reload_if_changed()
    assert tls.fingerprint == before
    assert [record.message for record in caplog.records] == [
        "certificate not renewed, the old one stays in use"
    ]


def test_good_files_are_loaded_and_logged_without_the_key_and_an_end_that_is_near_is_a_warning(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        soon = authority.issue("node", days=CERTIFICATE_WARNING_DAYS)
        tls = ServerTls(authority.server_files(soon, mutual=True), "grpc.tls")
    assert tls.requires_client_certificate
    assert len(tls.fingerprint) == 64
    assert [record.message for record in caplog.records] == ["certificate loaded, it ends soon"]
    assert "PRIVATE" not in caplog.text


def test_a_certificate_that_is_good_for_long_is_no_warning(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        ServerTls(
            authority.server_files(authority.issue("node", days=CERTIFICATE_WARNING_DAYS + 1), mutual=False),
            "grpc.tls",
        )
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "certificate loaded")
    ]


def test_each_file_that_cannot_be_used_is_named(authority: Authority, server: Pair, tmp_path: Path) -> None:
    missing, text, long = tmp_path / "missing", tmp_path / "text", tmp_path / "long"
    text.write_text("-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n")
    long.write_bytes(b"x" * (TLS_FILE_BYTES_MAX + 1))
    other, ended = authority.issue("other"), authority.issue("ended", days=-1)
    begins = datetime.now(UTC) + timedelta(hours=2)
    early = authority.issue("early", begins=begins)
    odd = authority.issue("odd", key=ec.generate_private_key(ec.SECP256K1()))
    certificate, key = server
    assert refusal(TlsFiles(missing, key)) == (
        f"grpc.tls_certificate: got {missing} (No such file or directory), expected a file that can be read"
    )
    assert refusal(TlsFiles(long, key)) == (
        f"grpc.tls_certificate: got {long}, more than 1048576 bytes, expected at most 1048576 bytes"
    )
    assert refusal(TlsFiles(text, key)) == (
        f"grpc.tls_certificate: got {text}, which cannot be used, expected a PEM file of certificates"
    )
    assert refusal(TlsFiles(certificate, text)) == (
        f"grpc.tls_key: got {text}, which cannot be used, expected a PEM private key without a passphrase"
    )
    assert refusal(TlsFiles(certificate, other.key)) == (
        f"grpc.tls_key: got {other.key}, another certificate's key, expected the key of {certificate}"
    )
    assert refusal(TlsFiles(certificate, key, text)) == (
        f"grpc.tls_client_ca: got {text}, which cannot be used, expected a PEM file of certificates"
    )
    assert refusal(TlsFiles(ended.certificate, ended.key)).startswith(
        f"grpc.tls_certificate: got {ended.certificate}, which ended on "
    )
    assert refusal(TlsFiles(early.certificate, early.key)) == (
        f"grpc.tls_certificate: got {early.certificate}, "
        f"which is valid from {begins:%Y-%m-%d %H:%M:%S} UTC on, "
        "expected one that is valid already by this machine's clock"
    )
    assert refusal(TlsFiles(odd.certificate, odd.key)) == (
        f"grpc.tls_key: got {odd.key}, a key of the kind secp256k1, "
        "expected RSA of 522 to 16384 bits, P-256 or P-384"
    )


@pytest.mark.timeout(30)  # opening a pipe waits for ever
def test_a_pipe_is_not_waited_for(
    authority: Authority, server: Pair, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    tls = ServerTls(authority.server_files(server, mutual=False), "grpc.tls")
    before = tls.fingerprint
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    said = f"grpc.tls_certificate: got {pipe} (Not a regular file), expected a file that can be read"
    assert refusal(TlsFiles(pipe, server.key)) == said
    pipe.replace(server.certificate)
    assert_the_old_one_stays(tls, before, caplog)


def test_a_renewed_certificate_is_taken_up_once(authority: Authority, server: Pair) -> None:
    tls = ServerTls(authority.server_files(server, mutual=False), "grpc.tls")
    before = tls.fingerprint
    assert not tls.reload_if_changed()
    authority.issue("node")
    os.utime(server.certificate, ns=(1, 1))  # a coarse file-system clock gives the same time
    assert tls.reload_if_changed()
    assert tls.fingerprint != before
    assert not tls.reload_if_changed()


@pytest.mark.parametrize("mutual", [True, False])
async def test_no_session_is_resumed_where_certificates_are_looked_at(
    authority: Authority, server: Pair, mutual: bool
) -> None:
    """A session once let a client in after its certificate's end."""
    tls = ServerTls(authority.server_files(server, mutual=mutual), "grpc.tls")
    context = ssl.create_default_context(cafile=authority.path)
    context.load_cert_chain(*authority.issue("alice"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # its session exists after the handshake
    context.set_alpn_protocols(["h2"])

    def was_resumed(address: Address) -> bool:
        session, reused = None, False
        for _ in range(2):
            with (
                socket.create_connection((address.host, address.port)) as connection,
                context.wrap_socket(connection, server_hostname="localhost", session=session) as wrapped,
            ):
                session, reused = wrapped.session, bool(wrapped.session_reused)
        return reused

    async def main() -> bool:
        plan = ServerPlan("grpc.address", Address("127.0.0.1", 0), 1 << 20, 0, 100, tls)
        listening = await start_server(plan, lambda server: None)
        try:
            return await asyncio.to_thread(was_resumed, listening.address)
        finally:
            await listening.stop(0)

    assert await main() != mutual


def test_a_touched_file_is_nothing_new(authority: Authority, server: Pair) -> None:
    tls = ServerTls(authority.server_files(server, mutual=False), "grpc.tls")
    os.utime(server.certificate, ns=(1, 1))
    assert not tls.reload_if_changed()


def test_half_a_renewal_leaves_the_old_certificate_and_is_logged_once(
    authority: Authority, server: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    tls = ServerTls(authority.server_files(server, mutual=False), "grpc.tls")
    before = tls.fingerprint
    new = authority.issue("node", file="new")
    new.certificate.replace(server.certificate)  # the key is still the old one
    caplog.clear()
    with caplog.at_level(logging.ERROR):
        assert not tls.reload_if_changed()
        assert not tls.reload_if_changed()
    assert tls.fingerprint == before
    assert len(caplog.records) == 1
    new.key.replace(server.key)
    assert tls.reload_if_changed()
    assert tls.fingerprint != before


def test_files_that_go_away_are_an_error_in_the_log_and_no_more(
    authority: Authority, server: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    tls = ServerTls(authority.server_files(server, mutual=False), "grpc.tls")
    before = tls.fingerprint
    server.key.unlink()
    assert_the_old_one_stays(tls, before, caplog)


def test_what_could_not_be_used_is_tried_again_and_logged_again_only_for_another_reason(
    authority: Authority,
    server: Pair,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A key that becomes readable keeps inode, time and size."""
    tls = ServerTls(authority.server_files(server, mutual=False), "grpc.tls")
    before = tls.fingerprint
    authority.issue("node")
    os.utime(server.certificate, ns=(1, 1))

    def refuse(path: Path) -> BinaryIO:  # a file mode would not stop root
        raise PermissionError(errno.EACCES, why)

    why = "Permission denied"
    with monkeypatch.context() as patched:
        patched.setattr("sluice.gateway.transport.tls.open_regular", refuse)
        assert_the_old_one_stays(tls, before, caplog)
        caplog.clear()
        assert not tls.reload_if_changed()
        assert not caplog.records
        why = "Input/output error"
        assert_the_old_one_stays(tls, before, caplog)
        assert tls.problem == (
            f"grpc.tls_certificate: got {server.certificate} (Input/output error), "
            "expected a file that can be read"
        )
    assert tls.reload_if_changed()
    assert tls.fingerprint != before
    assert tls.problem is None


def test_a_renewed_certificate_that_is_not_valid_yet_is_taken_up_when_it_is(
    authority: Authority,
    server: Pair,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tls = ServerTls(authority.server_files(server, mutual=False), "grpc.tls")
    before, hours = tls.fingerprint, timedelta(hours=2)
    begins = (datetime.now(UTC) + hours).replace(microsecond=0)
    authority.issue("node", begins=begins)
    assert_the_old_one_stays(tls, before, caplog)

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls.fromtimestamp(at.timestamp(), tz)

    monkeypatch.setattr("sluice.gateway.transport.tls.datetime", Clock)
    at = begins - timedelta(seconds=1)
    assert not tls.reload_if_changed()
    at = begins
    assert tls.reload_if_changed()
    assert tls.fingerprint != before
    assert not tls.reload_if_changed()


def test_a_renewal_of_a_kind_that_grpc_does_not_take_leaves_the_old_certificate(
    authority: Authority, server: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """gRPC would keep the old one, and the node would report the new one."""
    tls = ServerTls(authority.server_files(server, mutual=False), "grpc.tls")
    authority.issue("node", key=ec.generate_private_key(ec.BrainpoolP256R1()))
    assert_the_old_one_stays(tls, tls.fingerprint, caplog)


def proved_by(
    *subject: tuple[x509.ObjectIdentifier, str] | x509.RelativeDistinguishedName,
    alternative: x509.ExtensionType | None = None,
) -> tuple[str, ...]:
    """Return the names that such a certificate proves."""
    key = ec.generate_private_key(ec.SECP256R1())
    rdns = [
        one if isinstance(one, x509.RelativeDistinguishedName) else rdn_of(x509.NameAttribute(*one))
        for one in subject
    ]
    now = datetime.now(UTC)
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ca")])
    end = now + timedelta(days=1)
    builder = x509.CertificateBuilder(issuer, x509.Name(rdns), key.public_key(), 1, now, end)
    if alternative is not None:
        builder = builder.add_extension(alternative, critical=False)
    return subjects_of(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER))


def rdn_of(*attributes: x509.NameAttribute[str]) -> x509.RelativeDistinguishedName:
    """Attributes of one part of a name."""
    return x509.RelativeDistinguishedName(attributes)


CN, ORGANIZATION, EMAIL = (
    x509.NameOID.COMMON_NAME,
    x509.NameOID.ORGANIZATION_NAME,
    x509.NameOID.EMAIL_ADDRESS,
)


@pytest.mark.parametrize(
    ("subject", "proved"),
    [
        # OpenSSL prints the last part first.
        ([(ORGANIZATION, "Net"), (CN, "alice")], ("CN=alice,O=Net", "CN=alice")),
        ([(CN, "alice"), (EMAIL, "a@net")], ("emailAddress=a@net,CN=alice", "CN=alice")),
        # OpenSSL escapes each byte that is not ASCII; people do not.
        ([(CN, "Zoë")], ("CN=Zo\\C3\\AB", "CN=Zoë")),
        ([(CN, "a"), (CN, "b")], ("CN=b,CN=a", "CN=a", "CN=b")),
        ([(ORGANIZATION, "Net")], ("O=Net",)),
        (
            [rdn_of(x509.NameAttribute(CN, "a"), x509.NameAttribute(ORGANIZATION, "Net"))],
            ("CN=a+O=Net", "CN=a"),
        ),
        # A common name must not read like a whole subject, two names or another kind of name.
        ([(CN, "alice,O=Net")], ("CN=alice\\,O=Net",)),
        ([(CN, "a+CN=b")], ("CN=a\\+CN=b",)),
        ([(CN, ' #"\\<>; ')], ('CN=\\ #\\"\\\\\\<\\>\\;\\ ',)),
        ([], ()),
    ],
)
def test_the_subject_of_a_certificate_is_told_as_openssl_prints_it_and_as_people_write_it(
    subject: list[tuple[x509.ObjectIdentifier, str] | x509.RelativeDistinguishedName],
    proved: tuple[str, ...],
) -> None:
    assert proved_by(*subject) == proved


def test_alternative_names_are_told_with_their_kind_behind_the_subject() -> None:
    names = x509.SubjectAlternativeName(
        [
            x509.RFC822Name("alice@net"),
            x509.IPAddress(ip_address("2001:db8::1")),
            x509.IPAddress(ip_address("192.0.2.1")),
            x509.DNSName("alice.net"),
            x509.UniformResourceIdentifier("spiffe://net/alice"),
            x509.RegisteredID(x509.ObjectIdentifier("1.2.3")),  # nobody lists one
        ]
    )
    proved = ("URI:spiffe://net/alice", "DNS:alice.net", "IP:2001:db8::1", "IP:192.0.2.1", "email:alice@net")
    assert proved_by(alternative=names) == proved
    assert proved_by((CN, "alice"), alternative=names) == ("CN=alice", *proved)


def test_a_common_name_is_not_taken_for_an_alternative_name() -> None:
    assert proved_by((CN, "URI:spiffe://net/alice")) == ("CN=URI:spiffe://net/alice",)


def test_a_name_of_a_kind_that_cannot_be_read_is_left_out() -> None:
    x400 = x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, b"\x30\x02\xa3\x00")
    assert proved_by((CN, "alice"), alternative=x400) == ("CN=alice",)


def test_what_is_no_certificate_proves_nothing() -> None:
    assert subjects_of(b"no certificate") == ()


def test_subjects_are_those_that_openssl_prints(authority: Authority, server: Pair) -> None:
    command = ["openssl", "x509", "-noout", "-subject", "-nameopt", "RFC2253", "-in", str(server.certificate)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    der = ssl.PEM_cert_to_DER_cert(server.certificate.read_text())
    proved = ("O=Net\\, Inc,CN=node", "CN=node", "DNS:localhost", "IP:127.0.0.1")
    assert printed.strip() == f"subject={proved[0]}"
    assert subjects_of(der) == proved


def test_what_is_wrong_is_said_and_shown_without_a_handshake_and_over_when_it_is_mended(
    authority: Authority, tmp_path: Path
) -> None:
    tls = ServerTls(authority.server_files(authority.issue("node"), mutual=False), "grpc.tls")
    metrics = Metrics(verification_mode="full")

    def value(name: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"setting": "grpc.tls"})

    async def look(failed: int) -> None:
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
