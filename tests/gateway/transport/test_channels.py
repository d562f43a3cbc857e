"""Tests of `transport.channels`: the client's side of TLS; tests/interop/test_security.py connects."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from sluice.gateway.errors import TlsError
from sluice.gateway.limits import TLS_FILE_BYTES_MAX
from sluice.gateway.transport.channels import ClientTls, open_blocking_channel, open_channel
from tests.certificates import Authority
from tests.nodes import ANSWER_SECONDS


@pytest.mark.parametrize(
    ("tls", "got"),
    [
        ({"certificate_file": "a.crt"}, "a certificate without a key"),
        ({"key_file": "a.key"}, "a key without a certificate"),
    ],
)
def test_half_a_pair_is_refused(tls: dict[str, str], got: str) -> None:
    with pytest.raises(TlsError) as caught:
        ClientTls(**tls)
    assert str(caught.value) == f"client TLS: got {got}, expected both, or neither"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.crt")
    words = f"CA file: got {missing} (No such file or directory), expected a file that can be read"
    for opener in (open_channel, open_blocking_channel):
        with pytest.raises(TlsError) as caught:
            opener("127.0.0.1:1", ClientTls(missing))
        assert str(caught.value) == words


@pytest.mark.timeout(30)  # opening a pipe waits for ever, reading /dev/zero never ends
def test_a_file_without_an_end_is_not_waited_for(tmp_path: Path) -> None:
    pipe, long = tmp_path / "pipe", tmp_path / "long"
    os.mkfifo(pipe)
    long.write_bytes(b"x" * (TLS_FILE_BYTES_MAX + 1))
    readable = "(Not a regular file), expected a file that can be read"
    for file, words in (
        (str(pipe), f"{pipe} {readable}"),
        ("/dev/zero", f"/dev/zero {readable}"),
        (str(long), f"{long}, more than 1048576 bytes, expected at most 1048576 bytes"),
    ):
        with pytest.raises(TlsError) as caught:
            open_channel("127.0.0.1:1", ClientTls(file))
        assert str(caught.value) == f"CA file: got {words}"


def test_it_travels_without_what_is_in_the_files(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = authority.client(authority.issue("alice"))
    assert pickle.loads(pickle.dumps(tls)) == tls
    assert b"PRIVATE" not in pickle.dumps(tls)
    assert "PRIVATE" not in repr(tls)


def test_the_servers_name_can_be_another() -> None:
    assert list(ClientTls(server_name="node.example").options()) == [
        ("grpc.ssl_target_name_override", "node.example")
    ]
    assert list(ClientTls().options()) == []


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    """gRPC would name no file."""
    authority = Authority(tmp_path)
    pair = authority.issue("alice")
    ca, certificate, key = str(authority.path), str(pair.certificate), str(pair.key)
    for tls, what, file, kind in (
        (ClientTls(key), "CA file", key, "certificate"),
        (ClientTls(ca, key, key), "certificate file", key, "certificate"),
        (ClientTls(ca, certificate, ca), "key file", ca, "private key"),
    ):
        with pytest.raises(TlsError) as caught:
            open_blocking_channel("127.0.0.1:1", tls)
        assert str(caught.value) == f"{what}: got {file}, which has none, expected a PEM file with a {kind}"
    open_blocking_channel("127.0.0.1:1", ClientTls(ca, certificate, key)).close()


def test_files_that_do_not_fit_or_cannot_be_used_are_named(tmp_path: Path) -> None:
    """gRPC would name no file."""
    authority = Authority(tmp_path)
    alice, bob = authority.issue("alice"), authority.issue("bob")
    half = tmp_path / "half.crt"
    half.write_bytes(alice.certificate.read_bytes()[:300])
    ca, certificate = str(authority.path), str(alice.certificate)
    odd = authority.client(authority.issue("odd", key=ec.generate_private_key(ec.SECP256K1())))
    curve = f"{odd.key_file}, a key of the kind secp256k1, expected RSA of 522 to 16384 bits, P-256 or P-384"
    unusable = f"{half}, which cannot be used, expected a PEM file of certificates"
    for tls, words in (
        (
            ClientTls(ca, certificate, str(bob.key)),
            f"key file: got {bob.key}, another certificate's key, expected the key of {certificate}",
        ),
        (ClientTls(str(half)), f"CA file: got {unusable}"),
        (ClientTls(ca, str(half), str(alice.key)), f"certificate file: got {unusable}"),
        (odd, f"key file: got {curve}"),
    ):
        with pytest.raises(TlsError) as caught:
            open_blocking_channel("127.0.0.1:1", tls)
        assert str(caught.value) == words


def test_a_certificate_in_openssls_own_form_is_left_to_grpc(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pem = authority.path.read_text().replace("CERTIFICATE", "TRUSTED CERTIFICATE")
    authority.path.write_text(pem)
    with open_blocking_channel("127.0.0.1:1", authority.client()) as channel:
        assert isinstance(channel, grpc.Channel)


CALLS = {
    "aio": """
import asyncio, sys, grpc
from sluice.gateway.transport.channels import open_channel

async def main():
    async with open_channel(sys.argv[1]) as channel:
        try:
            await channel.unary_unary("/service/method")(b"", timeout=5)
        except grpc.RpcError as error:
            print(error.code().name)

asyncio.run(main())
""",
    "blocking": """
import sys, grpc
from sluice.gateway.transport.channels import open_blocking_channel

with open_blocking_channel(sys.argv[1]) as channel:
    try:
        channel.unary_unary("/service/method")(b"", timeout=5)
    except grpc.RpcError as error:
        print(error.code().name)
""",
}
SETTINGS, GOAWAY = b"\x00\x00\x00\x04" + bytes(5), b"\x00\x00\x08\x07" + bytes(5 + 8)


@pytest.mark.parametrize("call", CALLS)
def test_a_server_that_says_at_once_that_it_goes_away_costs_one_call(call: str) -> None:
    """A drained server may do so. Once the process hung and took a GB every few seconds."""

    def say_goodbye(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(24, socket.MSG_WAITALL)  # the preface: sooner it would not count as connected
            connection.sendall(SETTINGS)
            connection.sendall(GOAWAY)
            while connection.recv(1 << 16):  # the connection stays open
                pass

    def serve() -> None:
        with suppress(OSError):  # it is closed
            while True:
                threading.Thread(target=say_goodbye, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-c", CALLS[call], address],
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
        )
        server.shutdown(socket.SHUT_RDWR)
    assert done.stdout == "UNAVAILABLE\n", done.stderr
