"""The options of commands that read an archive: where an S3-alike is, and how long to wait for it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from sluice.gateway.archive.objects import SCHEMES, StoreOptions
from sluice.gateway.commands.parameter_types import NamedPath

__all__ = ["PathOrUrl", "store_options", "store_options_beside_tls"]

_RETRY_SECONDS: Final = 60.0
"""A command waits longer than a node, which tries again by itself."""


class PathOrUrl(NamedPath):
    """A path, as `Path`, or the URL of an archive, as text."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Let a URL pass."""
        scheme, mark, _ = str(value).partition("://")
        return str(value) if mark and scheme in SCHEMES else super().convert(value, param, ctx)


def store_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the function gets `store`, a `StoreOptions`."""

    @functools.wraps(function)
    def with_authorities(*, store: StoreOptions, tls_ca: Path | None, **others: Any) -> Any:
        return function(store=replace(store, tls_ca=tls_ca), **others)

    authorities = click.option(
        "--tls-ca",
        type=NamedPath(exists=True, dir_okay=False, path_type=Path),
        envvar="SLUICE_ARCHIVE_TLS_CA",
        help="PEM file of authorities that sign the store's certificate, besides those of the system.",
    )
    return store_options_beside_tls(authorities(with_authorities))


def store_options_beside_tls(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command that has --tls-ca: its `store` lacks the authorities."""

    @functools.wraps(function)
    def with_store(*, endpoint: str | None, region: str | None, timeout: float, **others: Any) -> Any:
        return function(store=StoreOptions(endpoint, region, timeout, _RETRY_SECONDS), **others)

    for decorator in (
        click.option(
            "--timeout",
            type=click.FloatRange(0, 3600, min_open=True),
            default=30.0,
            show_default=True,
            metavar="SECONDS",
            help="Longest time of one request to the store, for each 8 MiB of it.",
        ),
        click.option(
            "--region", envvar="SLUICE_ARCHIVE_REGION", help="Region of an S3 bucket. Default: AWS_REGION."
        ),
        click.option(
            "--endpoint",
            envvar="SLUICE_ARCHIVE_ENDPOINT",
            metavar="URL",
            help="Address of a store that is not the cloud's own, such as https://minio.example:9000.",
        ),
    ):
        with_store = decorator(with_store)
    return with_store
