"""Tests of `datastream.server.descriptors`; each in a process of its own, whose limit can be changed."""

from __future__ import annotations

import subprocess
import sys

import pytest

READ = "from datastream import descriptors as d; import resource; "
LIMIT = "resource.setrlimit(resource.RLIMIT_NOFILE, ({}, {})); "


def say(program: str) -> str:
    """Run a program; what it prints."""
    command = [sys.executable, "-c", READ + program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(("most", "end"), [(1024, 960), (129, 65), (128, 64), (100, 50)])
def test_the_last_ones_are_not_for_clients(most: int, end: int) -> None:
    program = LIMIT.format(most, most) + "print(d.descriptors_max(), d.client_descriptors_end())"
    assert say(program) == f"{most} {end}"


def test_the_limit_is_raised_as_far_as_is_allowed() -> None:
    limits = "print(*resource.getrlimit(resource.RLIMIT_NOFILE)); "
    program = LIMIT.format(100, 200) + (limits + "d.raise_descriptors_max(); ") * 2 + limits
    assert say(program).splitlines() == ["100 200", "200 200", "200 200"]


def test_no_limit() -> None:
    program = (
        "resource.getrlimit = lambda _: (resource.RLIM_INFINITY,) * 2; d.raise_descriptors_max(); "
        "print(d.descriptors_max(), d.client_descriptors_end())"
    )
    assert say(program) == "None None"
