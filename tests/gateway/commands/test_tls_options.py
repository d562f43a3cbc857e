"""The TLS options of commands."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gateway.commands import failover, ledger, status
from gateway.commands.tls_options import tls_options
from gateway.errors import TlsError
from gateway.transport.channels import ClientTls
from publishers.commands import block, publish, subscribe


@click.command()
@tls_options
def probe(tls: ClientTls | None) -> None:
    """Say what was given."""
    click.echo(repr(tls))


def test_without_options_there_is_no_tls() -> None:
    assert CliRunner().invoke(probe, []).output == "None\n"


def test_files_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--tls-ca", "ca.pem", "--tls-cert", "/x/c.pem", "--tls-key", "k.pem"]
    expected = ClientTls(str(tmp_path / "ca.pem"), "/x/c.pem", str(tmp_path / "k.pem"))
    assert CliRunner().invoke(probe, words).output == f"{expected!r}\n"


def test_tls_alone_and_a_name_of_the_server_are_enough() -> None:
    assert CliRunner().invoke(probe, ["--tls"]).output == f"{ClientTls()!r}\n"
    named = ClientTls(server_name="node.example")
    assert CliRunner().invoke(probe, ["--tls-server-name", "node.example"]).output == f"{named!r}\n"


def test_a_certificate_needs_its_key() -> None:
    with pytest.raises(TlsError) as caught:
        CliRunner().invoke(probe, ["--tls-cert", "c.pem"], catch_exceptions=False)
    assert str(caught.value) == "client TLS: got a certificate without a key, expected both, or neither"


@pytest.mark.parametrize(
    "command",
    [failover.command, ledger.show, status.command, block.command, publish.command, subscribe.command],
    ids=["failover", "ledger show", "status", "block", "publish", "subscribe"],
)
def test_every_command_that_connects_to_nodes_has_them(command: click.Command) -> None:
    known = {option for parameter in command.params for option in parameter.opts}
    assert {"--tls-ca", "--tls-cert", "--tls-key"} <= known
