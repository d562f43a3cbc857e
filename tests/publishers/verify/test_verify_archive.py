"""`sluice verify` of an archive: every block of either layout, without a node."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sluice.gateway.errors import Fatal
from sluice.publishers.commands.verify import command
from tests.certificates import Authority
from tests.gateway.archive import test_restore
from tests.gateway.archive.chains import ARCHIVED_PAGES, archive, fill
from tests.gateway.archive.native_chains import archive_native
from tests.gateway.archive.stores import BUCKET, FaultProxy, as_s3_user, s3_server
from tests.gateway.archive.test_beginning import segments
from tests.nodes import ledger_key


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chain's archive, and a native chain's; the nodes are gone."""
    folder = tmp_path_factory.mktemp("made")
    fill(folder / "node")
    archive(folder / "node", folder / "block")
    archive_native(folder / "other", folder / "native")
    for name in ("node", "other"):
        shutil.rmtree(folder / name)
    return folder


def verify(url: str, *options: str) -> Result:
    return CliRunner().invoke(command, [url, "--workers", "1", "--ledger-key", ledger_key(), *options])


def found(url: str, *options: str) -> dict[str, object]:
    result = verify(url, "--json", *options)
    assert result.output, result.exception
    read: dict[str, object] = json.loads(result.output)
    return read


@pytest.mark.parametrize(("name", "count"), [("block", ARCHIVED_PAGES), ("native", 64)])
def test_every_block(
    made: Path, tmp_path: Path, name: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    read = found(f"file://{made}/{name}")
    assert (read["sound"], read["complete"], read["accepted"], read["refused"]) == (True, True, count, 0)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "last"), [("block", ARCHIVED_PAGES - 1), ("native", 63)])
def test_some_blocks(made: Path, name: str, last: int) -> None:
    for options, numbers in (
        (("--from", str(last - 1)), [last - 1, last]),
        (("--from", "30", "--to", "32"), [30, 31, 32]),
    ):
        blocks = found(f"file://{made}/{name}", *options)["blocks"]
        assert isinstance(blocks, list)
        assert [block["number"] for block in blocks] == numbers


def test_the_network_s_archive_may_be_behind(made: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(made / "native", tmp_path / "archive"))
    segments(place)[1].unlink()
    assert found(f"file://{place}")["accepted"] == 32


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (test_restore.flip_byte, "CRC32C"),
        (test_restore.drop_segment, "the one of page 64"),
        (test_restore.second_name, "two nodes disagree"),
        (test_restore.cut_short, "its trailer"),
    ],
)
def test_an_archive_that_lies(made: Path, tmp_path: Path, harm: Callable[[Path], None], words: str) -> None:
    place = Path(shutil.copytree(made / "block", tmp_path / "archive"))
    harm(place)
    result = verify(f"file://{place}")
    assert result.exit_code == 1
    assert words in str(result.exception)


def test_a_block_that_was_changed_is_refused(made: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(made / "block", tmp_path / "archive"))
    test_restore.other_block(place)
    blocks = found(f"file://{place}")["blocks"]
    assert isinstance(blocks, list)
    assert [block["number"] for block in blocks if block["verdict"] == "refused"] == [69]


def test_another_network(made: Path) -> None:
    for name in ("block", "native"):
        url = f"file://{made}/{name}"
        other = ledger_key(Ed25519PrivateKey.generate())
        result = CliRunner().invoke(command, [url, "--ledger-key", other, "--to", "3", "--json"])
        assert json.loads(result.output)["refused"] == 4


def test_no_archive(tmp_path: Path) -> None:
    for url, words in (
        (f"file://{tmp_path}/none", "got no such folder"),
        (f"file://{tmp_path}", "got no stream.json"),
    ):
        result = verify(url)
        assert isinstance(result.exception, Fatal)
        assert words in str(result.exception)
    assert not any(tmp_path.iterdir())
    assert verify(f"file://{tmp_path}", "--tcp").exit_code == 2
    result = CliRunner().invoke(command, [f"file://{tmp_path}", str(tmp_path)])
    assert "expected an archive alone" in str(result.exception)


def test_from_s3(made: Path, tmp_path: Path) -> None:
    from sluice.gateway.archive.objects import StoreOptions, open_store

    authority = Authority(tmp_path)
    with s3_server() as port, as_s3_user(), FaultProxy(port, authority.context("store")) as proxy:
        endpoint = f"http://127.0.0.1:{port}"
        store = open_store(f"s3://{BUCKET}/chain", StoreOptions(endpoint, "eu-west-1"))
        for path in (made / "native").rglob("*"):
            if path.is_file():
                store.put_new(str(path.relative_to(made / "native")), path.read_bytes())
        read = found(f"s3://{BUCKET}/chain", "--endpoint", endpoint, "--region", "eu-west-1", "--to", "5")
        assert (read["accepted"], read["sound"]) == (6, True)
        secured = ("--endpoint", f"https://localhost:{proxy.port}", "--tls-ca", str(authority.path))
        read = found(f"s3://{BUCKET}/chain", *secured, "--region", "eu-west-1", "--to", "5")
        assert (read["accepted"], read["sound"]) == (6, True)
