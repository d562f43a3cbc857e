"""Tests of `gateway.commands.contexts` and the options that name nodes: what is asked, what refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sluice.gateway.commands.contexts import (
    Chosen,
    Port,
    choose,
    context_names,
    contexts_path,
    known_nodes,
    node_address,
)
from sluice.gateway.commands.node_options import node_options
from sluice.gateway.errors import AddressError, SettingError
from sluice.gateway.transport.channels import ClientTls

FILE = """
[production]
nodes = ["node-a.example", "node-b.example:40840", "[::1]"]
tls_ca = "ca.crt"
tls_cert = "/etc/me.crt"
tls_key = "~/me.key"

[here]
nodes = ["127.0.0.1:41840"]
control = ["127.0.0.1:41841"]
tls = false
"""
Environ = Mapping[str, str]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path)}


@pytest.fixture
def write(environ: dict[str, str]) -> Callable[[str], Path]:
    def put(text: str) -> Path:
        path = contexts_path(environ)
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return put


def test_this_machine_is_asked_if_nobody_is_named(environ: Environ) -> None:
    assert choose(Port.GRPC, (), None, environ) == Chosen(("127.0.0.1:40840",), are_named=False)
    assert choose(Port.CONTROL, (), None, environ).addresses == ("127.0.0.1:40841",)
    assert choose(Port.TCP, (), None, environ).addresses == ("127.0.0.1:6900",)


@pytest.mark.parametrize(
    ("given", "context", "nodes", "env_context", "expected"),
    [
        (("x", "y:1"), None, "n", "here", "x:40840 y:1"),
        (("x",), "here", "n", "production", "x:40840"),
        ((), "here", "n", "production", "127.0.0.1:41840"),
        ((), None, "n, [::2]:7", "here", "n:40840 [::2]:7"),
        ((), None, "", "here", "127.0.0.1:41840"),
        ((), None, "", "", "127.0.0.1:40840"),
    ],
)
def test_the_first_that_is_there_decides(
    environ: dict[str, str],
    write: Callable[[str], Path],
    given: tuple[str, ...],
    context: str | None,
    nodes: str,
    env_context: str,
    expected: str,
) -> None:
    write(FILE)
    environ |= {"SLUICE_NODES": nodes, "SLUICE_CONTEXT": env_context}
    assert " ".join(choose(Port.GRPC, given, context, environ).addresses) == expected


def test_a_context_brings_tls_and_other_ports(environ: Environ, write: Callable[[str], Path]) -> None:
    folder = write(FILE).parent
    chosen = choose(Port.CONTROL, (), "production", environ)
    assert chosen.addresses == ("node-a.example:40841", "node-b.example:40841", "[::1]:40841")
    assert chosen.tls == ClientTls(str(folder / "ca.crt"), "/etc/me.crt", str(Path.home() / "me.key"))
    assert choose(Port.GRPC, ("x",), "production", environ).tls == chosen.tls
    here = choose(Port.CONTROL, (), "here", environ)
    assert (here.addresses, here.tls) == (("127.0.0.1:41841",), None)
    assert context_names(environ) == ["here", "production"]


@pytest.mark.parametrize("text", ["", ":1", "a:0", "a:70000", "::1", "a b", "http://a"])
def test_what_is_no_node(text: str) -> None:
    with pytest.raises(AddressError, match="expected HOST or HOST:PORT"):
        node_address(text, Port.GRPC)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "contexts: got No such file or directory, expected a file with a table for each context"),
        (
            "[prod",
            "contexts: got Expected ']' at the end of a table declaration (at end of document), expected",
        ),
        (FILE, "context: got 'prod', which is not there, expected one such as production"),
        ("[a]\n[b]", "context: got 'prod', which is not there, expected one of a, b"),
        ("prod = 7", "prod: got 7, expected a table: [prod]"),
        ("[prod]", 'prod.nodes: got None, expected a list of nodes, such as ["node-a", "node-b:40840"]'),
        ('[prod]\nnodes = "a"', "prod.nodes: got 'a', expected a list of addresses"),
        ('[prod]\nnodes = ["a:x"]', "prod.nodes: got 'a:x', expected HOST or HOST:PORT"),
        (
            '[prod]\nnodes = ["a"]\nnode = 1',
            "prod.node: got no key of this name, expected a key such as nodes",
        ),
        (
            '[prod]\nnodes = ["a"]\nx = 1',
            "prod.x: got no key of this name, expected one of nodes, control, tcp,",
        ),
        ('[prod]\nnodes = ["a"]\ntls = 1', "prod.tls: got 1, expected true or false"),
        ('[prod]\nnodes = ["a"]\ntls_ca = 1', "prod.tls_ca: got 1, expected a text in quotes"),
        (
            '[prod]\nnodes = ["a"]\ntls_cert = "c"',
            "prod.tls_key: got a certificate without a key, expected both",
        ),
        ("n = " + "9" * 5000, "contexts: got "),
        ("#" * (1 << 20) + "#", "contexts: got more than 1048576 bytes"),
    ],
)
def test_a_wrong_file_is_one_clear_line(
    environ: Environ, write: Callable[[str], Path], text: str | None, words: str
) -> None:
    path = contexts_path(environ) if text is None else write(text)
    with pytest.raises(SettingError) as caught:
        choose(Port.GRPC, (), "prod", environ)
    assert str(caught.value).startswith(words)
    assert str(caught.value).endswith(f"(file {path})")
    assert caught.value.exit_status == 2


def test_a_file_that_is_not_text(environ: Environ, write: Callable[[str], Path]) -> None:
    write("").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingError, match="expected TOML in UTF-8"):
        choose(Port.GRPC, (), "prod", environ)
    assert context_names(environ) == []


def test_without_a_folder_of_its_own_the_file_is_in_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/var/alice")
    assert str(contexts_path({})) == "/var/alice/.config/sluice/contexts.toml"
    assert contexts_path({"XDG_CONFIG_HOME": "relative"}) == contexts_path({})


@pytest.mark.parametrize("nodes", ["a:41840", "a,b:1"])
def test_a_node_at_another_port_has_no_default_control_port(environ: dict[str, str], nodes: str) -> None:
    environ["SLUICE_NODES"] = nodes
    with pytest.raises(
        SettingError, match=r"SLUICE_NODES: got .*expected --node with the port, or a context"
    ):
        choose(Port.CONTROL, (), None, environ)


def test_a_wrong_variable_is_named(environ: dict[str, str]) -> None:
    environ["SLUICE_NODES"] = "a,,b"
    with pytest.raises(SettingError, match=r"^SLUICE_NODES: got '', expected HOST or HOST:PORT"):
        choose(Port.GRPC, (), None, environ)


def test_a_wrong_context_takes_no_node_from_the_completion(
    environ: dict[str, str], write: Callable[[str], Path]
) -> None:
    write("[a]\nnodes = 5\n[b]\nnodes = ['b']\n[c]\nnodes = 'text'\n")
    assert known_nodes(environ | {"SLUICE_NODES": "d"}) == ["b", "d"]


# --- the options --------------------------------------------------------------------------------------------


@click.command()
@click.argument("source", required=False)
@node_options(Port.GRPC, "--gateway", instead=["source"])
def ask(source: str | None, nodes: Chosen, tls: ClientTls | None) -> None:
    ca = None if tls is None else Path(tls.ca_file or "").name
    click.echo(f"{source} {' '.join(nodes.addresses)} {ca}")


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ("", "None node-a.example:40840 node-b.example:40840 [::1]:40840 ca.crt"),
        ("--node x --gateway y:1,z", "None x:40840 y:1 z:40840 None"),
        ("--context here", "None 127.0.0.1:41840 None"),
        ("--tls-ca other.crt", "None node-a.example:40840 node-b.example:40840 [::1]:40840 other.crt"),
        ("file", "file 127.0.0.1:40840 None"),
        ("file --context production", "file node-a.example:40840 node-b.example:40840 [::1]:40840 ca.crt"),
    ],
)
def test_options_name_nodes_and_tls(
    tmp_path: Path, write: Callable[[str], Path], words: str, printed: str
) -> None:
    write(FILE)
    environ = {"XDG_CONFIG_HOME": str(tmp_path), "SLUICE_NODES": "", "SLUICE_CONTEXT": "production"}
    result = CliRunner().invoke(ask, words.split(), env=environ)
    assert result.output == f"{printed}\n"


def test_an_option_that_is_no_address() -> None:
    result = CliRunner().invoke(ask, ["--node", "a,http://b"])
    assert result.exit_code == 2
    assert "got 'http://b', expected HOST or HOST:PORT" in result.output
