"""`sluice serve`.

The options come from `gateway.settings.table`; this module adds `--config` and `--print-config`.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from functools import cache, partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from sluice.datastream.server.descriptors import raise_descriptors_max
from sluice.gateway.commands.parameter_types import NamedPath
from sluice.gateway.errors import GatewayError
from sluice.gateway.logs import fields, log_what_python_says, one_line, set_up_logging
from sluice.gateway.node.grpc_engine import use_poller
from sluice.gateway.settings.kinds import Choice, File, Folder, Switch
from sluice.gateway.settings.sources import (
    CONFIG_ENVIRONMENT,
    CONFIG_FLAG,
    Resolved,
    config_bytes,
    log_format,
    resolve,
    to_toml,
)
from sluice.gateway.settings.table import SETTINGS, Setting

__all__ = ["command"]

log = logging.getLogger(__name__)

_FORMER = "former_"
"""The prefix of the parameter of an option's former name."""
_SECOND_NAME = re.compile(r", --\S+")
"""The option without its unit: a line of the help with both is too long for a terminal."""
_HEADINGS = {"grpc": "gRPC", "tcp": "TCP", "http": "HTTP"}


class _ServeCommand(click.Command):
    """A command whose help groups the options by section."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Begin a log as JSON before anything can be refused: the refusal, too, is a line of it."""
        read = cache(config_bytes)  # a pipe can be read only once, and `_run` needs it, too
        if extra.get("resilient_parsing"):  # for a completion, which reads no file
            return super().make_context(info_name, args, parent, **extra)
        config = _last_value(args, CONFIG_FLAG)
        flags = {"log.format": _last_value(args, "--log-format")}
        if log_format(flags, os.environ, Path(config) if config else None, read) == "json":
            set_up_logging(form="json")
            log_what_python_says()
        try:
            return super().make_context(info_name, args, parent, **{**extra, "obj": read})
        except click.NoSuchOption as error:
            key = error.option_name.lstrip("-").replace("-", "_")  # grpc.address has the option --grpc
            if meant := [setting.flag for setting in SETTINGS if setting.attribute == key]:
                raise click.NoSuchOption(error.option_name, None, meant, error.ctx) from error
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a list for each section, then the options that are no settings."""
        sections: dict[str, list[tuple[str, str]]] = {}
        section_of = {setting.attribute: setting.section for setting in SETTINGS}
        for param in self.get_params(ctx):
            if record := param.get_help_record(ctx):
                names = _SECOND_NAME.sub("", record[0])  # a line with both would be too long for a terminal
                sections.setdefault(section_of.get(param.name or "", "command"), []).append(
                    (names, record[1])
                )
        for name, records in sections.items():
            with formatter.section(_HEADINGS.get(name, name.capitalize())):
                formatter.write_dl(records, col_max=30)


def _last_value(args: Sequence[str], flag: str) -> str | None:
    """Return the value of a flag among words that are not parsed yet."""
    words = [*args, ""]
    values = [
        after if word == flag else word.removeprefix(f"{flag}=")
        for word, after in pairwise(words)
        if word == flag or word.startswith(f"{flag}=")
    ]
    return values[-1] if values else None


def _option(setting: Setting) -> click.Option:
    """It accepts any text; the setting's kind reads it, as from other sources."""
    unit = f"{setting.unit}, " if setting.unit else ""
    help_text = f"{setting.help}  [{unit}default: {setting.default_text}]"
    name = setting.attribute
    return click.Option(
        [name, *setting.flags],
        metavar=setting.kind.metavar,
        multiple=setting.is_list,
        default=None,
        help=help_text,
        shell_complete=partial(_complete, setting),
    )


def _complete(
    setting: Setting, context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    kind = setting.kind
    if isinstance(kind, Folder | File):
        return [CompletionItem(incomplete, type="dir" if isinstance(kind, Folder) else "file")]
    words = kind.words if isinstance(kind, Choice) else ("on", "off") if isinstance(kind, Switch) else ()
    return [CompletionItem(word) for word in map(str, words) if word.startswith(incomplete)]


def _former_option(setting: Setting) -> click.Option:
    return click.Option(
        [_FORMER + setting.attribute, *setting.former_flags],
        multiple=setting.is_list,
        default=None,
        hidden=True,
    )


def _run(config: Path | None, print_config: bool, check: bool, **flags: Any) -> None:
    written = {setting.name: flags[setting.attribute] for setting in SETTINGS}
    written |= {
        setting.former_name: flags[_FORMER + setting.attribute]
        for setting in SETTINGS
        if setting.former_name is not None
    }
    read = click.get_current_context().obj
    faults: list[GatewayError] = []
    if check:
        resolved = resolve(written, os.environ, config, faults.append, read)
        click.get_current_context().exit(_check(resolved, faults))
    resolved = resolve(written, os.environ, config, read=read)
    if print_config:
        click.echo(to_toml(resolved), nl=False)
        return
    settings = resolved.settings
    set_up_logging(level=settings.log_level, form=settings.log_format)
    _log_start(resolved)
    raise_descriptors_max()
    use_poller(os.environ, version("grpcio"))
    from sluice.gateway.node.run import run_node

    click.get_current_context().exit(run_node(settings))


def _check(resolved: Resolved, faults: list[GatewayError]) -> int:
    """Print what a start would do, and each fault; return the exit status."""
    from sluice.gateway.node.start_check import check_start

    set_up_logging(level="error")  # the plan says what a start would log
    found = check_start(resolved.settings)
    faults = [*faults, *found.faults]
    for what, how in found.plan:
        click.echo(f"{what:<14}{one_line(how)}")
    for former, name in resolved.former_names:
        click.echo(f"warning: {former} is {name} now")
    for name in resolved.unknown_environment:
        click.echo(f"warning: the environment variable {name} is no setting")
    for warning in found.warnings:
        click.echo(f"warning: {one_line(warning)}")
    for fault in faults:
        click.echo(f"fault: {one_line(str(fault))}")
    click.echo("nothing is wrong" if not faults else f"faults: {len(faults)}")
    return max((fault.exit_status for fault in faults), default=0)


def _log_start(resolved: Resolved) -> None:
    """Log changed settings, and variables that may have been meant as settings."""
    for setting in SETTINGS:
        if (origin := resolved.origins[setting.name]) != "default":
            value = setting.kind.to_toml(getattr(resolved.settings, setting.attribute)).strip('"')
            log.info("setting", extra=fields(name=setting.name, value=value, origin=origin))
    for former, name in resolved.former_names:
        log.warning("setting has another name now", extra=fields(former=former, name=name))
    for name in resolved.unknown_environment:
        log.warning("environment variable is no setting", extra=fields(variable=name))


command = _ServeCommand(
    "serve",
    callback=_run,
    params=[
        *(_option(setting) for setting in SETTINGS),
        *(_former_option(setting) for setting in SETTINGS if setting.former_name is not None),
        click.Option(
            ["--config"],
            type=NamedPath(path_type=Path),
            metavar="FILE",
            help=f"TOML file of settings. It lies over the one that {CONFIG_ENVIRONMENT} names.",
        ),
        click.Option(
            ["--check"],
            is_flag=True,
            help="Read settings, files, keys and certificates; print what a start would do, and every fault. "
            "Nothing is opened, locked or written.",
        ),
        click.Option(
            ["--print-config"],
            is_flag=True,
            help="Print the effective settings as TOML, each with its origin, and end.",
        ),
    ],
    help=(
        "Run one node: take blocks from publishers over gRPC, serve verified blocks over TCP and gRPC.\n\n"
        "Every option is also a key of the TOML file and a variable of the environment: "
        "publish.max_block_bytes is max_block_bytes in [publish], and SLUICE_PUBLISH_MAX_BLOCK_BYTES. "
        "A flag overrides the environment, the environment overrides the file. "
        "A size may have a unit, as in 8MiB or 1GiB; a time limit of 0 means no limit. "
        "The ending _seconds of a name may be left out."
    ),
    short_help="Run one node.",
)
