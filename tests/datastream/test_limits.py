"""Limits that an operator sets refuse invalid values; each room tests going past its limits."""

from __future__ import annotations

import pytest

from sluice.datastream.limits import ServerLimits


def test_defaults() -> None:
    limits = ServerLimits()
    assert limits.connections_max == 10_000
    assert limits.write_timeout_seconds == 3.0
    assert limits.inactivity_timeout_seconds == 120.0


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("connections_max", 0, "connections_max: got 0, expected 1 or more"),
        ("write_timeout_seconds", -1, "write_timeout_seconds: got -1, expected 0 (never) or more"),
        (
            "inactivity_timeout_seconds",
            -0.5,
            "inactivity_timeout_seconds: got -0.5, expected 0 (never) or more",
        ),
        ("sweep_interval_seconds", 0, "sweep_interval_seconds: got 0, expected more than 0"),
    ],
)
def test_refusals(name: str, value: float, message: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        ServerLimits(**{name: value})  # type: ignore[arg-type]
    assert str(caught.value) == message
