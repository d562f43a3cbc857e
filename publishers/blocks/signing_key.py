"""The place of the key that signs blocks, on a worker: a file or an environment variable.

A Spark job carries the place, never the key. The worker reads the key where it uses it, so no plan, log or
error contains it. It is what `sluice keygen` writes: Ed25519 in PKCS#8 PEM.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sluice.gateway.errors import KeyFileError
from sluice.gateway.key_files import load_private_key, private_key_of
from sluice.publishers.errors import OptionError

__all__ = ["KeyPlace"]

KEY_PATH_CHARACTERS_MAX: Final = 4_096
"""As in the kernel. A longer one may be a key by mistake, and is not repeated."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_RAW_KEY: Final = re.compile(r"(0x)?[0-9A-Fa-f]{64,128}")


@dataclass(frozen=True, slots=True)
class KeyPlace:
    """The place of the key."""

    file: str | None
    """Path on the worker."""
    variable: str | None
    """An environment variable of the worker; its value is the PEM text."""

    @classmethod
    def parse(cls, key_file: str | os.PathLike[str] | None, key_env: str | None) -> Self:
        """Return the place that a caller gave; nothing is read.

        Raises:
            OptionError: not exactly one is given, or it is no path or name. The error does not repeat what
                may be a key.
        """
        file = None if key_file is None else os.fspath(key_file)
        if (file is None) == (key_env is None):
            got = "neither" if file is None else "both"
            raise OptionError("key_file, key_env", got, "one of them")
        if file is not None and (
            not file
            or len(file) > KEY_PATH_CHARACTERS_MAX
            or "\n" in file
            or "PRIVATE KEY" in file
            or _is_raw(file)
        ):
            raise OptionError(
                "key_file", "something that is no path", "the path of a key file on the workers"
            )
        if key_env is not None and (not _NAME.fullmatch(key_env) or _is_raw(key_env)):
            raise OptionError(
                "key_env", "something that is no name", "the name of an environment variable on the workers"
            )
        return cls(file, key_env)

    def load(self, environment: Mapping[str, str] | None = None) -> Ed25519PrivateKey:
        """Read the key, on the worker.

        Raises:
            KeyFileError: it is missing, or not an Ed25519 private key; the error names only the place.
        """
        if self.file is not None:
            return load_private_key(Path(self.file))
        assert self.variable is not None
        where = f"environment variable {self.variable}"
        text = (os.environ if environment is None else environment).get(self.variable)
        if not text:
            raise KeyFileError(where, got="nothing", expected="a private key in PEM, set on every worker")
        return private_key_of(text.encode("utf-8", "replace"), where)


def _is_raw(text: str) -> bool:
    return _RAW_KEY.fullmatch(text) is not None
