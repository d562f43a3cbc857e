"""The options --tls-ca, --tls-cert and --tls-key of all commands that connect to nodes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from gateway.channels import ClientTls

__all__ = ["tls_options"]

_OPTIONS = (
    ("--tls-ca", "TLS: PEM file of the authorities of the nodes' certificates."),
    ("--tls-cert", "TLS: PEM file of a certificate of your own."),
    ("--tls-key", "TLS: PEM file of its private key."),
)


def tls_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the three options; the function gets `tls`, a `ClientTls`, or None where none of them is given.

    Without --tls-ca the node's certificate is checked against the system's authorities.

    Raises:
        TlsError: from the function that is returned: a certificate without a key, or a key without one.
    """

    @functools.wraps(function)
    def with_tls(*, tls_ca: str | None, tls_cert: str | None, tls_key: str | None, **others: Any) -> Any:
        # Absolute, because other processes with folders of their own may read them (Spark's workers).
        files = [None if file is None else str(Path(file).absolute()) for file in (tls_ca, tls_cert, tls_key)]
        return function(tls=ClientTls(*files) if any(files) else None, **others)

    for name, text in reversed(_OPTIONS):
        with_tls = click.option(name, metavar="FILE", help=text)(with_tls)
    return with_tls
