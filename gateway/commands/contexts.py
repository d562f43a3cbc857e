"""The nodes that a command asks: named on the command line, by a context, or by the environment.

    --node HOST[:PORT] …            these; with --context, with its TLS files
    --context NAME                  the nodes of a context
    SLUICE_NODES=HOST[:PORT],…      these
    SLUICE_CONTEXT=NAME             the nodes of a context
    none of them                    this machine

The first of these that is there decides. Without a port a node has the default port of what is asked there.

A context is a table in `contexts.toml` in the folder `sluice` of `XDG_CONFIG_HOME`, else of `~/.config`:

    [production]
    nodes = ["node-a.example", "node-b.example:40840"]
    tls_ca = "ca.crt"                           # relative to the folder of this file
    control = ["node-a.example:40841"]          # only where a node's other ports are no default ones
    tcp = ["node-a.example:6900"]

Source: docs/operations.md, "Name the nodes".
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sluice.gateway.addresses import parse_address
from sluice.gateway.errors import AddressError, SettingError, TlsError
from sluice.gateway.settings.sources import CONTEXT_ENVIRONMENT, NODES_ENVIRONMENT
from sluice.gateway.settings.table import SETTINGS

if TYPE_CHECKING:
    from sluice.gateway.transport.channels import ClientTls

__all__ = [
    "Chosen",
    "Context",
    "Port",
    "choose",
    "context_names",
    "contexts_path",
    "known_nodes",
    "node_address",
]

CONTEXTS_BYTES_MAX: Final = 1 << 20
"""Bytes of the file; a larger one is a wrong path."""

_TLS_KEYS: Final = ("tls_ca", "tls_cert", "tls_key", "tls_server_name")


class Port(Enum):
    """The ports of a node that commands connect to; the value is the key of a context."""

    GRPC = "nodes"
    CONTROL = "control"
    TCP = "tcp"

    @property
    def default(self) -> int:
        """Return the port where a node has it by default."""
        return _DEFAULT_PORTS[self]


_SETTING_OF: Final = {Port.GRPC: "grpc.address", Port.CONTROL: "control.address", Port.TCP: "tcp.address"}
_DEFAULTS: Final = {setting.name: setting.default for setting in SETTINGS}
_DEFAULT_PORTS: Final = {port: parse_address(str(_DEFAULTS[name])).port for port, name in _SETTING_OF.items()}


@dataclass(frozen=True, slots=True)
class Context:
    """A named set of nodes."""

    addresses: Mapping[Port, tuple[str, ...]] = field(default_factory=dict)
    """As written; without CONTROL and TCP, they are at the default ports of the nodes."""
    tls: ClientTls | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """The nodes that a command asks."""

    addresses: tuple[str, ...]
    """`host:port` each."""
    tls: ClientTls | None = None
    """Of the context."""
    are_named: bool = True
    """False: nobody named any, and this machine is the default."""


def choose(port: Port, given: Sequence[str], context_name: str | None, environ: Mapping[str, str]) -> Chosen:
    """Return the nodes that a command asks.

    Args:
        given: those of the command line, as written.

    Raises:
        SettingError: a context, its file or a variable is wrong.
        AddressError: an address in `given` is wrong.
    """
    written = environ.get(NODES_ENVIRONMENT, "")
    if context_name is None and not given and not written:
        context_name = environ.get(CONTEXT_ENVIRONMENT) or None
    context = None if context_name is None else _read_context(contexts_path(environ), context_name)
    tls = None if context is None else context.tls
    if given:
        return Chosen(tuple(node_address(one, port) for one in given), tls)
    if context is not None:
        own = context.addresses.get(port, ())
        nodes = [node_address(one, port) for one in own]
        if not nodes:
            where = f"file {contexts_path(environ)}"
            nodes = [
                _beside(one, port, f"{context_name}.nodes", where) for one in context.addresses[Port.GRPC]
            ]
        return Chosen(tuple(nodes), tls)
    if written:
        where = f"environment {NODES_ENVIRONMENT}"
        return Chosen(tuple(_beside(one, port, NODES_ENVIRONMENT, where) for one in written.split(",")))
    return Chosen((f"127.0.0.1:{port.default}",), are_named=False)


def node_address(text: str, port: Port) -> str:
    """Return `host:port` of a node that is written as HOST or HOST:PORT; raise AddressError."""
    try:
        return str(parse_address(text, port_min=1))
    except AddressError as error:
        try:
            return str(parse_address(f"{text.strip()}:{port.default}", port_min=1))
        except AddressError:
            expected = f"HOST or HOST:PORT, such as node-a, 127.0.0.1:{port.default} or [::1]"
            raise AddressError(text, expected) from error


def _beside(text: str, port: Port, name: str, where: str) -> str:
    """Return the address of another port of a node that is written with its gRPC port, or without one."""
    try:
        grpc = parse_address(node_address(text, Port.GRPC))
    except AddressError as error:
        raise SettingError(name, got=repr(text), expected=error.expected, where=where) from error
    if port is Port.GRPC:
        return str(grpc)
    if grpc.port != Port.GRPC.default:
        got = f"{text!r}, whose other ports may be no default ones either"
        expected = f"--node with the port, or a context with `{port.value}`"
        raise SettingError(name, got=got, expected=expected, where=where)
    return node_address(f"[{grpc.host}]" if ":" in grpc.host else grpc.host, port)


# --- the file -----------------------------------------------------------------------------------------------


def contexts_path(environ: Mapping[str, str]) -> Path:
    """Return where the file of contexts is."""
    base = environ.get("XDG_CONFIG_HOME", "")
    folder = Path(base) if Path(base).is_absolute() else Path.home() / ".config"  # as the XDG text says
    return folder / "sluice" / "contexts.toml"


def context_names(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the contexts that there are, for the completion; none if the file is wrong."""
    try:
        return sorted(_tables(contexts_path(environ)))
    except SettingError:
        return []


def known_nodes(environ: Mapping[str, str]) -> list[str]:
    """Return the nodes that contexts and the environment name, as written, for the completion."""
    written = {one.strip() for one in environ.get(NODES_ENVIRONMENT, "").split(",")}
    try:
        tables = [one for one in _tables(contexts_path(environ)).values() if isinstance(one, dict)]
    except SettingError:
        tables = []
    for table in tables:
        listed = table.get(Port.GRPC.value)
        written.update(one for one in (listed if isinstance(listed, list) else ()) if isinstance(one, str))
    return sorted(written - {""})


def _read_context(path: Path, name: str) -> Context:
    tables = _tables(path)
    where = f"file {path}"
    if name not in tables:
        near = difflib.get_close_matches(name, tables, n=1, cutoff=0.5)
        known = f"such as {near[0]}" if near else f"of {', '.join(sorted(tables)) or 'those in the file'}"
        raise SettingError(
            "context", got=f"{name!r}, which is not there", expected=f"one {known}", where=where
        )
    table = tables[name]

    def wrong(key: str, got: object, expected: str) -> SettingError:
        return SettingError(f"{name}.{key}", got=repr(got), expected=expected, where=where)

    if not isinstance(table, dict):
        raise SettingError(name, got=repr(table), expected=f"a table: [{name}]", where=where)
    known_keys = (*(port.value for port in Port), "tls", *_TLS_KEYS)
    for key in table:
        if key not in known_keys:
            near = difflib.get_close_matches(key, known_keys, n=1)
            expected = f"a key such as {near[0]}" if near else f"one of {', '.join(known_keys)}"
            raise SettingError(f"{name}.{key}", got="no key of this name", expected=expected, where=where)
    addresses = {}
    for port in Port:
        listed = table.get(port.value, [])
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            raise wrong(port.value, listed, 'a list of addresses, such as ["node-a", "node-b:40840"]')
        for one in listed:
            try:
                node_address(one, port)
            except AddressError as error:
                raise wrong(port.value, one, error.expected) from error
        if listed:
            addresses[port] = tuple(listed)
    if Port.GRPC not in addresses:
        raise wrong("nodes", table.get("nodes"), 'a list of nodes, such as ["node-a", "node-b:40840"]')
    return Context(addresses, _tls_of(table, path, name))


def _tls_of(table: Mapping[str, Any], path: Path, name: str) -> ClientTls | None:
    from sluice.gateway.transport.channels import ClientTls  # takes half a second, which a completion has not

    where = f"file {path}"
    for key in _TLS_KEYS:
        if not isinstance(table.get(key, ""), str):
            expected = "a text in quotes"
            raise SettingError(f"{name}.{key}", got=repr(table[key]), expected=expected, where=where)
    if not isinstance(table.get("tls", True), bool):
        raise SettingError(f"{name}.tls", got=repr(table["tls"]), expected="true or false", where=where)
    given = {key: table[key] for key in _TLS_KEYS if key in table}
    if not table.get("tls", bool(given)):
        return None
    ca, certificate, key_file = (
        None if key not in given else str(path.parent / Path(given[key]).expanduser())
        for key in _TLS_KEYS[:3]
    )
    try:
        return ClientTls(ca, certificate, key_file, given.get("tls_server_name"))
    except TlsError as error:
        raise SettingError(f"{name}.tls_key", got=error.got, expected=error.expected, where=where) from error


def _tables(path: Path) -> dict[str, Any]:
    where = f"file {path}"
    try:
        with path.open("rb") as file:
            content = file.read(CONTEXTS_BYTES_MAX + 1)
        if len(content) > CONTEXTS_BYTES_MAX:
            got = f"more than {CONTEXTS_BYTES_MAX} bytes"
            raise SettingError("contexts", got=got, expected="a file of contexts", where=where)
        return tomllib.loads(content.decode("utf-8"))
    except OSError as error:
        expected = "a file with a table for each context"
        raise SettingError(
            "contexts", got=error.strerror or str(error), expected=expected, where=where
        ) from error
    except (ValueError, RecursionError) as error:  # of TOML, UTF-8, or a number without end
        raise SettingError("contexts", got=str(error), expected="TOML in UTF-8", where=where) from error
