"""The options that say which gateways to talk to, and how: the same for publishing and subscribing.

    gateways            `host:port`, comma list, the preferred one first. A priority may follow each, as in
                        `a:40840/1,b:40840/1,c:40840/2`: the lowest number is preferred, and those with the
                        same number are shared by racing publishers
    max_message_bytes   the longest message that the gateways take, or that is taken from them: as their
                        setting `grpc.max_message_bytes`; 131072000 otherwise
    tls                 `true`: TLS with the system's authorities. Any of the following means TLS, too
    tls_ca              PEM file of the authorities that the gateways' certificates come from
    tls_certificate     PEM file of this side's certificate, for gateways that ask for one
    tls_key             PEM file of its private key
    tls_server_name     the name in the gateways' certificates, where it is not their host

Files are read on the worker that connects: no key is in the plan.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gateway.addresses import parse_address
from gateway.errors import AddressError, TlsError
from gateway.transport.channels import ClientTls
from publishers import limits
from publishers.errors import OptionError
from publishers.sources.block_gateways import SIZE_OPTION
from publishers.spark.options import flag, required, whole_number

__all__ = [
    "GATEWAY_OPTIONS",
    "Gateways",
    "gateway_tls",
    "gateways_of",
    "message_bytes_of",
    "rotated",
    "tls_gateway_options",
]

_PRIORITY: Final = re.compile(r"\d{1,20}")

GATEWAY_OPTIONS: Final = frozenset(
    ("gateways", SIZE_OPTION, "tls", "tls_ca", "tls_certificate", "tls_key", "tls_server_name")
)

Gateways = tuple[tuple[str, int], ...]
"""Address and priority of each, the preferred one first."""


def gateways_of(options: Mapping[str, str]) -> Gateways:
    """Read the list of gateways.

    Returns:
        (address, priority) of each, in order of priority; without priorities in the order given.

    Raises:
        OptionError: there is none, or one is no address.
    """
    text = required(options, "gateways", "host:port, or several with commas between")
    found: dict[str, int] = {}
    for position, part in enumerate(text.split(",")):
        address, slash, priority = part.partition("/")
        try:
            name = str(parse_address(address, port_min=1))
        except AddressError as error:
            raise OptionError("gateways", repr(error.text), error.expected) from error
        if slash and not _PRIORITY.fullmatch(priority.strip()):
            raise OptionError("gateways", repr(part.strip()), "host:port/priority, such as 127.0.0.1:40840/1")
        found.setdefault(name, int(priority) if slash else position)
    return tuple(sorted(found.items(), key=lambda pair: pair[1]))


def message_bytes_of(options: Mapping[str, str]) -> int:
    """Read how long a message may be.

    Raises:
        OptionError: it is no number, or not one of those that nodes take.
    """
    least, most = limits.MESSAGE_OPTION_MIN, limits.MESSAGE_OPTION_MAX
    return whole_number(options, SIZE_OPTION, limits.MESSAGE_BYTES_MAX, least, most)


def rotated(gateways: Gateways, turn: int) -> tuple[str, ...]:
    """Give the addresses for one of several racing publishers.

    Args:
        gateways: as `gateways_of` gives them.
        turn: 0-based number of the publisher; those with the same priority take turns in being first.
    """
    ordered: list[str] = []
    for priority in sorted({priority for _, priority in gateways}):
        equal = [address for address, its in gateways if its == priority]
        start = turn % len(equal)
        ordered += equal[start:] + equal[:start]
    return tuple(ordered)


def gateway_tls(options: Mapping[str, str]) -> ClientTls | None:
    """Read the TLS options; None: connect without.

    Raises:
        OptionError: a certificate without its key, or a key without its certificate.
    """
    files = {name: options.get(f"tls_{name}") for name in ("ca", "certificate", "key", "server_name")}
    if not flag(options, "tls") and not any(files.values()):
        return None
    try:
        return ClientTls(files["ca"], files["certificate"], files["key"], files["server_name"])
    except TlsError as error:
        raise OptionError("tls_certificate, tls_key", error.got, error.expected) from error


def tls_gateway_options(tls: ClientTls | None) -> dict[str, str]:
    """Write TLS as options: what `gateway_tls` reads."""
    if tls is None:
        return {}
    named = {
        "tls_ca": tls.ca_file,
        "tls_certificate": tls.certificate_file,
        "tls_key": tls.key_file,
        "tls_server_name": tls.server_name,
    }
    return {"tls": "true"} | {name: value for name, value in named.items() if value is not None}
