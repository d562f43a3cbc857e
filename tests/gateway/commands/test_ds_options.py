"""What the `ds` commands share. How they stop is tested with processes, in `tests/interop/test_ds.py`."""

from __future__ import annotations

import resource

import click
import pytest

from gateway.commands.ds_options import ServersType, run_until_stopped, server_limits


def test_servers() -> None:
    servers = ServersType().convert("127.0.0.1:6900,[::1]:7", None, None)
    assert servers == [("127.0.0.1", 6900), ("::1", 7)]
    with pytest.raises(click.BadParameter, match="expected a port from 1 to 65535"):
        ServersType().convert("127.0.0.1:0", None, None)


def test_limits() -> None:
    limits = server_limits(1500, 0)
    assert limits.write_timeout_seconds == 1.5
    assert limits.inactivity_timeout_seconds == 0


def test_work_that_ends_by_itself() -> None:
    async def work() -> int:
        return 7

    assert run_until_stopped(work()) == 7


def test_a_server_may_open_as_many_files_as_it_is_allowed_to() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def work() -> int:
        return int(resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard))

    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard - 1), hard))
    try:
        assert run_until_stopped(work()) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
