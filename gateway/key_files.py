"""Private key files: an Ed25519 key in PKCS#8 PEM, readable by its owner alone.

`sluice keygen` writes one, and the block maker signs with it. A node needs only the public half, as
`--ledger-key`.
"""

import os
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from sluice.gateway.errors import KeyFileError

__all__ = ["create_private_key", "load_private_key", "private_key_of", "public_key_hex"]

KEY_FILE_BYTES_MAX: Final = 65_536
"""Bytes of a private key file. One has about 120; a larger one is a wrong path."""

_EXPECTED: Final = "an unencrypted Ed25519 private key in PEM (`sluice keygen` writes one)"


def create_private_key(path: Path) -> Ed25519PrivateKey:
    """Create a key and write it to a new file of mode 0600.

    Raises:
        KeyFileError: the file exists, and stays unchanged, or cannot be written.
    """
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise KeyFileError(str(path), got="a file that is there already", expected="a new file") from None
    except OSError as error:
        raise KeyFileError(str(path), got=_reason(error), expected="a file that can be written") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        path.unlink(missing_ok=True)  # half a key is no key
        raise KeyFileError(str(path), got=_reason(error), expected="a file that can be written") from error
    return key


def load_private_key(path: Path) -> Ed25519PrivateKey:
    """Read the key in a file. Raises KeyFileError."""
    try:
        with path.open("rb") as file:
            pem = file.read(KEY_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise KeyFileError(str(path), got=_reason(error), expected="a file that can be read") from error
    if len(pem) > KEY_FILE_BYTES_MAX:
        raise KeyFileError(str(path), got=f"more than {KEY_FILE_BYTES_MAX} bytes", expected=_EXPECTED)
    return private_key_of(pem, str(path))


def private_key_of(pem: bytes, where: str) -> Ed25519PrivateKey:
    """Read the key in a file's content.

    `where` names the file in errors; no error quotes the content. Raises KeyFileError.
    """
    try:
        key = load_pem_private_key(pem, password=None)
    except TypeError:  # the library's error for a key that needs a password
        raise KeyFileError(where, got="an encrypted key", expected=_EXPECTED) from None
    except (ValueError, UnsupportedAlgorithm):
        raise KeyFileError(where, got="something else", expected=_EXPECTED) from None
    if not isinstance(key, Ed25519PrivateKey):
        got = f"a key of another kind ({type(key).__name__})"
        raise KeyFileError(where, got=got, expected=_EXPECTED)
    return key


def public_key_hex(key: Ed25519PrivateKey) -> str:
    """Return the public half as 64 hex digits, the HEX of `--ledger-key ed25519:HEX`."""
    return key.public_key().public_bytes_raw().hex()


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
