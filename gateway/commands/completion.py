"""Shell completion without imports: what may follow each command, from a table made in advance.

A shell runs `sluice` at each press of Tab, and the modules of commands take a second to import. So the table
`completions.json` has their options and values; a test compares it with the commands. Made by

    python -m sluice.gateway.commands.completion > gateway/commands/completions.json
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

__all__ = ["COMPLETE_VARIABLE", "command_of", "stored_commands", "table_of"]

COMPLETE_VARIABLE: Final = "_SLUICE_COMPLETE"
"""Set by a shell that asks for completions."""

_FILE: Final = Path(__file__).with_name("completions.json")
_CONTEXT, _NODE = "context", "node"
"""The kinds of values that the table cannot know: names of contexts, and nodes in them."""
_NODE_TYPE: Final = "HOST[:PORT]"
"""The name of `node_options.NodeType`, which takes too long to import."""


def stored_commands() -> dict[str, Any]:
    """Return the table of each command."""
    found: dict[str, Any] = json.loads(_FILE.read_text("utf-8"))
    return found


def table_of(command: click.Command) -> dict[str, Any]:
    """Return what a completion needs of a command, as JSON values."""
    params = [_param_table(command, param) for param in command.params if not getattr(param, "hidden", False)]
    table: dict[str, Any] = {"params": params}
    if isinstance(command, click.Group):
        context = click.Context(command)
        subcommands = [
            (name, found)
            for name in command.list_commands(context)
            if (found := command.get_command(context, name)) is not None
        ]
        table["commands"] = {name: table_of(found) for name, found in subcommands}
    return table


def _param_table(command: click.Command, param: click.Parameter) -> dict[str, Any]:
    table: dict[str, Any] = {"names": [*param.opts, *param.secondary_opts], "nargs": param.nargs}
    if param.multiple:
        table["multiple"] = True
    if isinstance(param, click.Argument):
        table["is_argument"] = True
    elif isinstance(param, click.Option) and param.is_flag:
        table["is_flag"] = True
    if param.name == "context_name" or param.type.name.startswith(_NODE_TYPE):
        table["kind"] = _CONTEXT if param.name == "context_name" else _NODE
        return table
    items = [] if table.get("is_flag") else param.shell_complete(click.Context(command), "")
    if words := [item.value for item in items if item.type == "plain"]:
        table["words"] = words
    elif items:
        table["kind"] = items[0].type
    return table


def command_of(name: str, table: Mapping[str, Any]) -> click.Command:
    """Make a command that does nothing and completes as the one that the table is of."""
    params = [_param_of(one) for one in table["params"]]
    if "commands" in table:
        commands = {sub: command_of(sub, one) for sub, one in table["commands"].items()}
        return click.Group(name, commands=commands, params=params)
    return click.Command(name, params=params)


def _param_of(table: Mapping[str, Any]) -> click.Parameter:
    names, nargs, complete = table["names"], table["nargs"], partial(_complete, table)
    if table.get("is_argument"):
        return click.Argument(names, nargs=nargs, required=False, shell_complete=complete)
    if table.get("is_flag"):
        return click.Option(names, is_flag=True)
    return click.Option(names, nargs=nargs, multiple=table.get("multiple", False), shell_complete=complete)


def _complete(
    table: Mapping[str, Any], context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    kind = table.get("kind")
    if kind in (_CONTEXT, _NODE):
        from sluice.gateway.commands.contexts import context_names, known_nodes

        words = (context_names if kind == _CONTEXT else known_nodes)(os.environ)
    elif kind is not None:
        return [CompletionItem(incomplete, type=kind)]
    else:
        words = table.get("words", [])
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


if __name__ == "__main__":
    from importlib import import_module

    tables = table_of(import_module("sluice.gateway.commands.cli").sluice)[
        "commands"
    ]  # which imports this one
    lines = [f"{json.dumps(name)}: {json.dumps(one)}" for name, one in tables.items()]
    sys.stdout.write("{\n" + ",\n".join(lines) + "\n}\n")
