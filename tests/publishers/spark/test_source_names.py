"""What --source names."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.datastream.layout import MAGIC
from sluice.publishers.errors import OptionError
from sluice.publishers.spark.source_names import SourceName, parse_source, parse_sources

FORMS = (
    "a folder or archive of block files, blockfiles:PATH, datastream:PATH, datastream:HOST:PORT, "
    "blockstream:HOST:PORT, server:HOST:PORT, file:PATH, parquet:PATH or table:NAME"
)


@pytest.mark.parametrize(
    ("text", "kind", "location", "is_server"),
    [
        ("blockfiles:s3a://lake/chain", "blockfiles", "s3a://lake/chain", False),
        ("s3://lake/chain", "blockfiles", "s3://lake/chain", False),
        ("datastream:a:6900", "datastream", "a:6900", True),
        ("blockstream:a:40840,[::1]:40840", "blockstream", "a:40840,[::1]:40840", False),
        ("server:a:6900,b:6900", "server", "a:6900,b:6900", True),
        ("file:/dev/null", "file", "/dev/null", False),
        ("parquet:s3a://lake/blocks", "parquet", "s3a://lake/blocks", False),
        ("table:lake.blocks", "table", "lake.blocks", False),
        ("TABLE: delta.`/x`", "table", "delta.`/x`", False),
    ],
)
def test_formats(text: str, kind: str, location: str, is_server: bool) -> None:
    source = parse_source(text, {"a": "b"})
    assert (source.kind, source.location, source.is_server) == (kind, location, is_server)
    assert source.options == {"a": "b"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("3.blk.zst", "blockfiles"),
        ("0000.zip", "blockfiles"),
        ("datastream.bin", "datastream"),
        ("part-0.parquet", "parquet"),
    ],
)
def test_a_folder_is_what_is_in_it(tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / name).touch()
    assert str(parse_source(str(tmp_path))) == f"{kind}:{tmp_path}"


def test_an_empty_folder_is_one_of_block_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path.parent)
    assert parse_source(tmp_path.name) == SourceName("blockfiles", str(tmp_path))
    assert parse_source(f"blockfiles:{tmp_path.name}") == SourceName("blockfiles", str(tmp_path))


def test_a_file_is_what_it_begins_with(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(MAGIC + b"...")
    (tmp_path / "x.parquet").touch()
    assert parse_source(str(tmp_path / "x.bin")).kind == "datastream"
    assert parse_source(str(tmp_path / "x.parquet")).kind == "parquet"
    assert str(parse_source(f"datastream:{tmp_path}")) == f"datastream:{tmp_path}"


def refusal(text: str) -> tuple[str, str]:
    with pytest.raises(OptionError) as caught:
        parse_source(text)
    assert caught.value.option == "source"
    return caught.value.got, caught.value.expected


def test_what_cannot_be_guessed_is_asked_for(tmp_path: Path) -> None:
    assert refusal("a:40840") == (
        "'a:40840', which may be either",
        "blockstream:a:40840 for a node's gRPC address, or datastream:a:40840 for a data streamer",
    )
    assert refusal("orc:x") == ("'orc:x', a format that is not known", FORMS)
    assert refusal("no-such-folder") == ("'no-such-folder', which is not there", FORMS)
    assert refusal(" ") == ("nothing", FORMS)
    (tmp_path / "notes.txt").write_text("x")
    assert refusal(str(tmp_path / "notes.txt")) == (
        f"'{tmp_path}/notes.txt', a file of no kind that is known",
        FORMS,
    )


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    assert refusal("parquet:nothing") == ("'nothing', which is not there", "a path after parquet:")
    assert refusal("datastream:nothing") == ("'nothing', which is not there", "a path after datastream:")
    assert refusal("blockstream:x") == ("'blockstream:x'", "blockstream:HOST:PORT")
    assert refusal("table:") == ("table: and nothing", "table: and where the blocks are")
    assert refusal(f"blockfiles:{tmp_path}/7.blk") == (
        f"'{tmp_path}/7.blk', which is not there",
        "a path after blockfiles:",
    )


def test_files_archives_and_globs_are_block_files(tmp_path: Path) -> None:
    for name in ("7.blk", "0.zip", "0.tar.zst"):
        (tmp_path / name).touch()
        for text in (f"{tmp_path}/{name}", f"blockfiles:{tmp_path}/{name}"):
            assert str(parse_source(text)) == f"blockfiles:{tmp_path}/{name}"
    for text in (f"{tmp_path}/**/*.zip", f"blockfiles:{tmp_path}/**/*.zip"):
        assert str(parse_source(text)) == f"blockfiles:{tmp_path}/**/*.zip"
    assert refusal("[::1]:40840")[0] == "'[::1]:40840', which may be either"  # not a glob


def test_several_sources_are_block_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    source = parse_sources([f"{tmp_path}/a", f"{tmp_path}/*.zip"], {"check": "true"})
    assert source.locations == (f"{tmp_path}/a", f"{tmp_path}/*.zip")
    assert str(source) == f"blockfiles:{tmp_path}/a blockfiles:{tmp_path}/*.zip"
    assert source.options == {"check": "true"}
    assert parse_sources([f"{tmp_path}/a"]) == parse_source(f"{tmp_path}/a")
    with pytest.raises(OptionError) as caught:
        parse_sources([str(tmp_path), "table:lake.blocks"])
    assert (caught.value.got, caught.value.expected) == (
        "table:lake.blocks among several",
        "block files, where there are several",
    )
