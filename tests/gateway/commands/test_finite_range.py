"""Numbers with a fraction that commands are given: what is no number is refused."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from gateway.commands.finite_range import FiniteRange


@click.command()
@click.option("--seconds", type=FiniteRange(min=0))
def probe(seconds: float) -> None:
    """Say what it was given."""
    click.echo(repr(seconds))


@pytest.mark.parametrize(("text", "number"), [("0", "0.0"), ("2.5", "2.5"), ("1e9", "1000000000.0")])
def test_numbers_are_taken(text: str, number: str) -> None:
    assert CliRunner().invoke(probe, ["--seconds", text]).output == f"{number}\n"


@pytest.mark.parametrize(
    ("text", "got"), [("nan", "nan"), ("inf", "inf"), ("1e400", "inf"), ("9" * 5000, "inf")]
)
def test_what_is_no_number_is_refused(text: str, got: str) -> None:
    result = CliRunner().invoke(probe, ["--seconds", text])
    assert result.exit_code == 2
    assert f"Error: Invalid value for '--seconds': got {got}, expected a number\n" in result.output


def test_the_range_holds() -> None:
    result = CliRunner().invoke(probe, ["--seconds", "-1"])
    assert result.exit_code == 2
    assert "-1.0 is not in the range x>=0" in result.output
