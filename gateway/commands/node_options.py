"""The options by which commands name nodes: --node, --context, and those of TLS.

`node_options` is for a command that asks nodes; the function gets `nodes`, a `Chosen`, and `tls`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from sluice.gateway.commands.contexts import Port, choose, node_address
from sluice.gateway.commands.tls_options import client_tls_options, tls_options
from sluice.gateway.errors import AddressError
from sluice.gateway.settings.sources import CONTEXT_ENVIRONMENT, NODES_ENVIRONMENT

__all__ = ["NodeType", "node_options"]


class NodeType(click.ParamType):  # type: ignore[type-arg]
    """The address of a node, with or without the port."""

    name = "HOST[:PORT]"

    def __init__(self, port: Port) -> None:
        self._port = port

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the address with a port; refuse what is no address."""
        try:
            return node_address(value, self._port)
        except AddressError as error:
            self.fail(str(error), param, ctx)


class _NodesType(NodeType):
    """One or several addresses, with commas between them."""

    name = "HOST[:PORT][,…]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the addresses with commas between them: click keeps what a type returns as one value."""
        return ",".join(super(_NodesType, self).convert(one, param, ctx) for one in value.split(","))


def node_options(
    port: Port = Port.GRPC, *former_names: str, as_arguments: bool = False, instead: Sequence[str] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add --node, --context and the options of TLS; the function gets `nodes`, a `Chosen`, and `tls`.

    Args:
        port: what the command asks nodes for.
        former_names: other spellings of --node.
        as_arguments: the command also takes nodes as arguments.
        instead: arguments of the command: with all of them, it asks no node that the environment names.
    """
    add_tls = client_tls_options if port is Port.TCP else tls_options

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def with_nodes(
            *,
            given_nodes: tuple[str, ...],
            node_arguments: tuple[str, ...] = (),
            context_name: str | None,
            tls: Any,
            **others: Any,
        ) -> Any:
            given = [one for several in (*given_nodes, *node_arguments) for one in several.split(",")]
            environ: Mapping[str, str] = os.environ
            if instead and all(others[name] for name in instead):
                environ = {
                    name: value
                    for name, value in os.environ.items()
                    if name not in (NODES_ENVIRONMENT, CONTEXT_ENVIRONMENT)
                }
            chosen = choose(port, given, context_name, environ)
            return function(nodes=chosen, tls=tls or chosen.tls, **others)

        with_options = click.option(
            "--context",
            "context_name",
            metavar="NAME",
            help="Nodes and TLS files of this name in ~/.config/sluice/contexts.toml; "
            f"{CONTEXT_ENVIRONMENT} has the same effect.",
        )(add_tls(with_nodes))
        if as_arguments:
            argument = click.argument("node_arguments", nargs=-1, type=NodeType(port), metavar="[NODE]...")
            with_options = argument(with_options)
        return click.option(
            "--node",
            *former_names,
            "given_nodes",
            type=_NodesType(port),
            multiple=True,
            help=f"A node, at port {port.default} if none is given; repeatable. By default those of "
            f"{NODES_ENVIRONMENT}, else this machine.",
        )(with_options)

    return add
