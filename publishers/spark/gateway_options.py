"""The options that name gateways and how to connect to them, for publishing and subscribing.

Workers read the TLS files when they connect: no key is in the plan.
Source: docs/spark.md, "Options of the sink".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from sluice.gateway.addresses import parse_address
from sluice.gateway.errors import AddressError, TlsError
from sluice.publishers import limits
from sluice.publishers.errors import OptionError
from sluice.publishers.spark.options import flag, required, whole_number

if TYPE_CHECKING:
    from sluice.gateway.transport.channels import ClientTls

__all__ = [
    "Gateways",
    "gateway_tls",
    "gateways_of",
    "message_bytes_of",
    "rotated",
    "tls_gateway_options",
]

_PRIORITY: Final = re.compile(r"\d{1,20}")

Gateways = tuple[tuple[str, int], ...]
"""Address and priority of each gateway, the preferred one first."""


def gateways_of(options: Mapping[str, str]) -> Gateways:
    """Read the list of gateways, in order of priority. Raises OptionError."""
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
    """Return how long a message may be; raise OptionError."""
    size_bytes = whole_number(
        options, limits.SIZE_OPTION, limits.MESSAGE_OPTION_MIN, limits.MESSAGE_OPTION_MAX
    )
    return limits.MESSAGE_BYTES_MAX if size_bytes is None else size_bytes


def rotated(gateways: Gateways, place: int) -> tuple[str, ...]:
    """Return the addresses for the racing publisher number `place`, the one to begin with first.

    Gateways of the same priority rotate.
    """
    ordered: list[str] = []
    for priority in sorted({priority for _, priority in gateways}):
        equal = [address for address, its in gateways if its == priority]
        start = place % len(equal)
        ordered += equal[start:] + equal[:start]
    return tuple(ordered)


def gateway_tls(options: Mapping[str, str]) -> ClientTls | None:
    """Read the TLS options; None: connect without TLS. Raises OptionError."""
    files = {name: options.get(f"tls_{name}") for name in ("ca", "certificate", "key", "server_name")}
    if not flag(options, "tls") and not any(files.values()):
        return None
    from sluice.gateway.transport.channels import ClientTls  # with gRPC, which block files do not need

    try:
        return ClientTls(files["ca"], files["certificate"], files["key"], files["server_name"])
    except TlsError as error:
        raise OptionError("tls_certificate, tls_key", error.got, error.expected) from error


def tls_gateway_options(tls: ClientTls | None) -> dict[str, str]:
    """Return TLS as options, as `gateway_tls` reads them."""
    if tls is None:
        return {}
    named = {
        "tls_ca": tls.ca_file,
        "tls_certificate": tls.certificate_file,
        "tls_key": tls.key_file,
        "tls_server_name": tls.server_name,
    }
    return {"tls": "true"} | {name: value for name, value in named.items() if value is not None}
