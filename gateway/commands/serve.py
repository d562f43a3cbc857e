"""`sluice serve`: resolve the settings, set up the log, run one node.

The options follow from `gateway.settings.table`; this module adds `--config` and `--print-config`.
"""

from __future__ import annotations

import logging
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from sluice.datastream.server.descriptors import raise_descriptors_max
from sluice.gateway.commands.parameter_types import NamedPath
from sluice.gateway.logs import fields, set_up_logging
from sluice.gateway.node.grpc_engine import use_poller
from sluice.gateway.settings.sources import CONFIG_ENVIRONMENT, Resolved, resolve, to_toml
from sluice.gateway.settings.table import SETTINGS, Setting

__all__ = ["command"]

log = logging.getLogger(__name__)

_FORMER = "former_"
"""Begins the parameter of an option under its former name."""
_HEADINGS = {"grpc": "gRPC", "tcp": "TCP", "http": "HTTP"}


class _ServeCommand(click.Command):
    """A command whose help groups the options by the section of their setting."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one definition list for each section, then the options that are no settings."""
        sections: dict[str, list[tuple[str, str]]] = {}
        section_of = {setting.attribute: setting.section for setting in SETTINGS}
        for param in self.get_params(ctx):
            if record := param.get_help_record(ctx):
                sections.setdefault(section_of.get(param.name or "", "command"), []).append(record)
        for section, records in sections.items():
            with formatter.section(_HEADINGS.get(section, section.capitalize())):
                formatter.write_dl(records, col_max=30)


def _option(setting: Setting) -> click.Option:
    """Make the option of one setting. It takes any text: the kind reads it, as it does for other sources."""
    unit = f"{setting.unit}, " if setting.unit else ""
    help_text = f"{setting.help}  [{unit}default: {setting.default_text}]"
    name = setting.attribute
    return click.Option(
        [name, *setting.flags],
        metavar=setting.kind.metavar,
        multiple=setting.is_list,
        default=None,
        help=help_text,
    )


def _former_option(setting: Setting) -> click.Option:
    """Make the hidden option of a setting's former name."""
    return click.Option(
        [_FORMER + setting.attribute, *setting.former_flags],
        multiple=setting.is_list,
        default=None,
        hidden=True,
    )


def _run(config: Path | None, print_config: bool, **flags: Any) -> None:
    """Run one node until it is told to stop; its exit status becomes the command's."""
    written = {setting.name: flags[setting.attribute] for setting in SETTINGS}
    written |= {
        setting.former_name: flags[_FORMER + setting.attribute]
        for setting in SETTINGS
        if setting.former_name is not None
    }
    resolved = resolve(written, os.environ, config)
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


def _log_start(resolved: Resolved) -> None:
    """Log which settings are not the defaults, and variables that may have been meant as settings."""
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
            help=f"TOML file of settings.  [environment: {CONFIG_ENVIRONMENT}]",
        ),
        click.Option(
            ["--print-config"],
            is_flag=True,
            help="Print the settings that apply, as TOML with the origin of each, and end.",
        ),
    ],
    help=(
        "Run one node: publishers over gRPC, verified blocks to data-streamer clients over TCP.\n\n"
        "Every option is also a key of the TOML file and a variable of the environment: "
        "publish.max_block_bytes is max_block_bytes in [publish], and SLUICE_PUBLISH_MAX_BLOCK_BYTES. "
        "Flags go before the environment, the environment before the file. "
        "Sizes may be written 8MiB or 1GiB; a time limit of 0 means no limit. "
        "A name that ends in _seconds may be written without that."
    ),
    short_help="Run one node.",
)
"""The click command."""
