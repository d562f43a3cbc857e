"""The options of commands that read an archive: where an S3-alike is, and how long to wait for it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import click

from sluice.gateway.archive.objects import SCHEMES, StoreOptions

__all__ = ["is_archive_url", "store_options"]

_RETRY_SECONDS: Final = 60.0
"""A command waits longer than a node, which tries again by itself."""


def is_archive_url(text: str) -> bool:
    """Return whether a text is the URL of an archive, rather than a path."""
    scheme, mark, _ = text.partition("://")
    return bool(mark) and scheme in SCHEMES


def store_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options, with the variables of the settings; the function gets `store`, a `StoreOptions`."""

    @functools.wraps(function)
    def with_store(*, endpoint: str | None, region: str | None, timeout: float, **others: Any) -> Any:
        return function(store=StoreOptions(endpoint, region, timeout, _RETRY_SECONDS), **others)

    for decorator in (
        click.option(
            "--timeout",
            type=click.FloatRange(0, 3600, min_open=True),
            default=30.0,
            show_default=True,
            envvar="SLUICE_ARCHIVE_TIMEOUT_SECONDS",
            metavar="SECONDS",
            help="Longest time of one request to the store.",
        ),
        click.option(
            "--region", envvar="SLUICE_ARCHIVE_REGION", help="Region of an S3 bucket. Default: AWS_REGION."
        ),
        click.option(
            "--endpoint",
            envvar="SLUICE_ARCHIVE_ENDPOINT",
            metavar="URL",
            help="Address of an S3-alike, such as https://minio.example:9000.",
        ),
    ):
        with_store = decorator(with_store)
    return with_store
