"""The options --tls, --tls-… and --via of all commands that connect to nodes."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from sluice.gateway.commands.parameter_types import NamedPath
from sluice.gateway.transport.channels import ClientTls
from sluice.gateway.transport.outgoing import VIA_VARIABLE

__all__ = ["tls_options"]

_OPTIONS = (
    ("--tls-ca", "TLS: PEM file of the authorities that sign the nodes' certificates."),
    ("--tls-cert", "TLS: PEM file of your own certificate."),
    ("--tls-key", "TLS: PEM file of the private key of --tls-cert."),
)


def tls_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the function gets `tls`, a `ClientTls`, or None without any of them.

    Without --tls-ca the system's authorities check the node's certificate.

    Raises:
        TlsError: from the returned function: a certificate without a key, or a key without a certificate.
    """

    @functools.wraps(function)
    def with_tls(
        *,
        use_tls: bool,
        tls_ca: str | None,
        tls_cert: str | None,
        tls_key: str | None,
        tls_server_name: str | None,
        via: str | None,
        **others: Any,
    ) -> Any:
        if via is not None:
            os.environ[VIA_VARIABLE] = via  # for child processes, too
        # Absolute: processes in other folders may read them (Spark's workers).
        files = [None if file is None else str(Path(file).absolute()) for file in (tls_ca, tls_cert, tls_key)]
        ca_file, certificate_file, key_file = files
        is_wanted = use_tls or any(files) or tls_server_name is not None
        return function(
            tls=ClientTls(ca_file, certificate_file, key_file, tls_server_name) if is_wanted else None,
            **others,
        )

    via_help = (
        "Connect to nodes directly, or relay through this process with headers that Helidon's servers "
        "accept. auto, the default, connects directly first, and relays if the server refuses."
    )
    via = click.option("--via", type=click.Choice(["auto", "direct", "relay"]), help=via_help)
    name_help = "TLS: the name in the nodes' certificates, if it is not their host."
    with_tls = click.option("--tls-server-name", metavar="NAME", help=name_help)(via(with_tls))
    for name, text in reversed(_OPTIONS):
        with_tls = click.option(name, type=NamedPath(), metavar="FILE", help=text)(with_tls)
    flag_help = "Connect with TLS; each --tls-… option implies it."
    return click.option("--tls", "use_tls", is_flag=True, help=flag_help)(with_tls)
