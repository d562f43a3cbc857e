"""Tests of `gateway.key_files`."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from sluice.gateway.errors import KeyFileError
from sluice.gateway.key_files import KEY_FILE_BYTES_MAX, create_private_key, load_private_key, public_key_hex

EXPECTED = "expected an unencrypted Ed25519 private key in PEM (`sluice keygen` writes one)"


def test_a_key_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    key = create_private_key(path)
    assert load_private_key(path).private_bytes_raw() == key.private_bytes_raw()
    assert public_key_hex(key) == key.public_key().public_bytes_raw().hex()
    assert path.read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----\n")


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        create_private_key(tmp_path / "key.pem")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key.pem").stat().st_mode) == 0o600


def test_two_keys_differ(tmp_path: Path) -> None:
    assert public_key_hex(create_private_key(tmp_path / "a")) != public_key_hex(
        create_private_key(tmp_path / "b")
    )


def test_a_file_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_text("precious")
    with pytest.raises(KeyFileError) as caught:
        create_private_key(path)
    assert str(caught.value) == f"{path}: got a file that is there already, expected a new file"
    assert path.read_text() == "precious"


def test_a_link_is_not_followed_to_a_new_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(KeyFileError):
        create_private_key(tmp_path / "link")
    assert not (tmp_path / "target").exists()


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "key.pem"
    with pytest.raises(KeyFileError) as caught:
        create_private_key(path)
    assert str(caught.value) == f"{path}: got No such file or directory, expected a file that can be written"


def test_a_full_disk_leaves_no_half_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    path = tmp_path / "key.pem"
    with pytest.raises(KeyFileError) as caught:
        create_private_key(path)
    assert str(caught.value) == f"{path}: got No space left on device, expected a file that can be written"
    assert not path.exists()


def test_what_is_no_key_file_is_refused(tmp_path: Path) -> None:
    ed25519, other = Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP256R1())
    pem, pkcs8 = Encoding.PEM, PrivateFormat.PKCS8
    cases = {
        "empty": (b"", "got something else"),
        "text": (b"ed25519:00", "got something else"),
        "cut": (ed25519.private_bytes(pem, pkcs8, NoEncryption())[:60], "got something else"),
        "encrypted": (
            ed25519.private_bytes(pem, pkcs8, BestAvailableEncryption(b"x")),
            "got an encrypted key",
        ),
        "other": (
            other.private_bytes(pem, pkcs8, NoEncryption()),
            "got a key of another kind (ECPrivateKey)",
        ),
    }
    for name, (content, got) in cases.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(KeyFileError) as caught:
            load_private_key(path)
        assert str(caught.value) == f"{path}: {got}, {EXPECTED}"


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError) as caught:
        load_private_key(tmp_path / "none")
    assert (
        str(caught.value)
        == f"{tmp_path / 'none'}: got No such file or directory, expected a file that can be read"
    )


def test_the_longest_file_is_taken_and_a_longer_one_is_no_key(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    key = create_private_key(path)
    pem = path.read_bytes()
    path.write_bytes(pem.ljust(KEY_FILE_BYTES_MAX, b"\n"))
    assert load_private_key(path).private_bytes_raw() == key.private_bytes_raw()
    path.write_bytes(pem.ljust(KEY_FILE_BYTES_MAX + 1, b"\n"))
    with pytest.raises(KeyFileError) as caught:
        load_private_key(path)
    assert str(caught.value).startswith(f"{path}: got more than 65536 bytes, expected an unencrypted Ed25519")
