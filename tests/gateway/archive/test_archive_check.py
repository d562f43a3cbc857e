"""`sluice check URL`: an archive without a node."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sluice.datastream import DataStreamer
from sluice.gateway.archive.archive_check import _is_header
from sluice.gateway.archive.errors import ArchiveUnavailable
from sluice.gateway.commands import check
from sluice.gateway.commands.restore import command as restore_command
from sluice.gateway.errors import Fatal
from tests.certificates import Authority
from tests.gateway.archive import test_restore
from tests.gateway.archive.stores import BUCKET, FaultProxy, as_s3_user, s3_server, s3_store
from tests.gateway.archive.test_beginning import change, page_of, segments

SOUND = "3 segments, 1154 entries, 193 bookmarks, 192 pages, 192 blocks"


def run(place: Path | str, *options: str) -> Result:
    url = place if isinstance(place, str) else f"file://{place}"
    return CliRunner().invoke(check.command, [url, *options])


def found(place: Path, *options: str) -> dict[str, Any]:
    result = run(place, "--json", *options)
    assert not isinstance(result.exception, Exception), result.exception
    read: dict[str, Any] = json.loads(result.output)
    assert result.exit_code == (0 if read["sound"] else 1)
    return read


def words(place: Path, *options: str) -> list[str]:
    return [finding["what"] for finding in found(place, *options)["findings"]]


def test_a_sound_archive(archived: Path) -> None:
    said = run(archived).output
    assert said.startswith(f"file://{archived}: {SOUND}, ")
    assert said.endswith("bytes: sound\n")
    assert run(archived, "--indexes").output.endswith("bytes: sound; only the indexes were read\n")
    read = found(archived)
    assert (read["last_block"], read["counts"]["note"], read["findings"]) == (191, 0, [])


def test_an_archive_in_a_store(archived: Path, tmp_path: Path) -> None:
    with as_s3_user(), s3_server() as port:
        store = s3_store(port, "deep/prefix")
        for file in archived.rglob("*.*"):
            store.put_new(str(file.relative_to(archived)), file.read_bytes())
        url, endpoint = f"s3://{BUCKET}/deep/prefix", f"--endpoint=http://127.0.0.1:{port}"
        assert run(url, endpoint).output.startswith(f"{url}: {SOUND}, ")
        result = CliRunner().invoke(restore_command, [url, str(tmp_path / "new"), endpoint])
        assert result.exit_code == 0, result.output
        with pytest.raises(Fatal, match=r"got no stream.json"):
            raise run(f"s3://{BUCKET}/deep", endpoint).exception or AssertionError
    with DataStreamer.open(tmp_path / "new" / "datastream.bin", read_only=True) as streamer:
        assert streamer.committed.total_entries == 1152


@pytest.mark.slow
def test_an_archive_in_a_store_with_a_certificate_of_a_private_authority(
    archived: Path, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    with as_s3_user(), s3_server() as port, FaultProxy(port, authority.context("store")) as proxy:
        store = s3_store(port)
        for file in archived.rglob("*.*"):
            store.put_new(str(file.relative_to(archived)), file.read_bytes())
        ours = [f"--endpoint=https://localhost:{proxy.port}", f"--tls-ca={authority.path}"]
        assert run(f"s3://{BUCKET}/prefix", *ours, "--indexes").output.startswith(
            f"s3://{BUCKET}/prefix: {SOUND}, "
        )
        result = CliRunner().invoke(restore_command, [f"s3://{BUCKET}/prefix", str(tmp_path / "new"), *ours])
        assert result.exit_code == 0, result.output


def test_while_the_store_is_away_nothing_is_said(archived: Path) -> None:
    with as_s3_user():
        result = run(f"s3://{BUCKET}/x", "--endpoint=http://127.0.0.1:1", "--timeout=0.1")
    assert isinstance(result.exception, ArchiveUnavailable)
    assert result.output == ""


@pytest.mark.parametrize(
    ("harm", "text"),
    [
        (test_restore.drop_segment, "none with pages 64 to 127 before it, expected no gap"),
        (test_restore.second_name, "two nodes disagree about pages 64 to 127"),
        pytest.param(test_restore.swap_segments, "first page 64, expected 1, 0", marks=pytest.mark.slow),
        pytest.param(test_restore.cut_short, "expected its trailer", marks=pytest.mark.slow),
        pytest.param(
            lambda place: change(
                segments(place)[1], lambda segment: setattr(segment.index.blocks[3], "number", 9)
            ),
            "got block 9",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda place: segments(place)[2].unlink(),
            "the segment that ends there is missing",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda place: (place / "headers/000000000064.zst").write_bytes(b"x"),
            "a header page",
            marks=pytest.mark.slow,
        ),
        (
            lambda place: shutil.copy(place / "headers/000000000064.zst", place / "headers/000000000128.zst"),
            "header page: got another one of 4096 bytes, expected that of",
        ),
    ],
)
def test_what_names_and_indexes_show(place: Path, harm: Callable[[Path], object], text: str) -> None:
    harm(place)
    assert any(text in what for what in words(place, "--indexes"))
    assert not found(place, "--indexes")["sound"]
    assert any(text in what for what in words(place))


@pytest.mark.parametrize(
    ("harm", "texts"),
    [
        (test_restore.flip_byte, ["CRC32C"]),
        pytest.param(test_restore.other_hash, ["SHA-256 of the pages"], marks=pytest.mark.slow),
        pytest.param(test_restore.other_root_in_index, ["block 3 on the pages"], marks=pytest.mark.slow),
        pytest.param(
            test_restore.other_bookmark_in_index, ["bookmark 3 on the pages"], marks=pytest.mark.slow
        ),
        pytest.param(
            test_restore.other_first_entry_of_block,
            ["first entry of block 64: got 380, expected 384"],
            marks=pytest.mark.slow,
        ),
        (test_restore.other_block, ["block 69: root hash"]),
    ],
)
def test_what_only_pages_show(place: Path, harm: Callable[[Path], None], texts: list[str]) -> None:
    harm(place)
    assert found(place, "--indexes")["sound"]
    seen = words(place)
    assert len(seen) == len(texts)
    for what, text in zip(seen, texts, strict=True):
        assert text in what


def test_every_fault_is_reported(place: Path) -> None:
    """The check goes on behind each."""
    first, second, third = segments(place)
    for path, page in ((first, 7), (first, 20), (third, 3)):
        other = bytearray(page_of(path, page))
        other[500_000] ^= 1
        data = path.read_bytes()
        change(path, lambda segment: None, {page: bytes(other)})
        changed = next(one for one in segments(place) if one.name[:12] == path.name[:12])
        changed.rename(path)
        assert path.read_bytes() != data
    second.write_bytes(second.read_bytes()[:-1])
    (place / "stray.txt").write_bytes(b"x")
    read = found(place)
    seen = [finding["what"] for finding in read["findings"]]
    for text in (
        "block 7: root hash",
        "block 20: root hash",
        "block 131: root hash",
        "its trailer",
        "stray.txt",
    ):
        assert any(text in what for what in seen), text
    assert sum("SHA-256" in what for what in seen) == 2
    assert (read["segments_without_index"], read["counts"]["note"]) == ([64], 1)


def test_damaged_pages_are_numbered(place: Path) -> None:
    test_restore.flip_byte(place)
    assert found(place)["bad_pages"] == [66]


def test_objects_that_are_none_of_ours(place: Path) -> None:
    for name in ("segments/readme", "headers/000000000065.zst", "blocks/stream.json", "other.seg"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(b"")
    read = found(place)
    assert [finding["severity"] for finding in read["findings"]] == ["note"] * 3 + ["damage"]
    assert sorted(finding["what"].split(": ")[0].split(" ")[0] for finding in read["findings"]) == sorted(
        f"file://{place}/{name}"
        for name in ("blocks/stream.json", "headers/000000000065.zst", "other.seg", "segments/readme")
    )


def test_a_name_with_more_digits_than_python_reads() -> None:
    """No folder has such names, and a store that lies may."""
    assert not _is_header(f"headers/{'9' * 5_000}.zst")


def test_a_header_page_that_is_not_written_yet(place: Path) -> None:
    (place / "headers/000000000192.zst").unlink()
    read = found(place)
    assert [(one["severity"], one["what"].endswith("writes it next")) for one in read["findings"]] == [
        ("unfinished", True)
    ]
    (place / "headers/000000000064.zst").unlink()
    assert found(place)["counts"] == {"damage": 0, "fixable": 0, "unfinished": 1, "note": 1}


def test_an_archive_that_has_just_begun(place: Path) -> None:
    shutil.rmtree(place / "segments")
    shutil.rmtree(place / "headers")
    assert "no segment yet" in run(place).output
    assert run(place).exit_code == 0


def test_options_of_files_are_refused(place: Path, tmp_path: Path) -> None:
    for options in (["--repair"], ["--against", str(tmp_path)]):
        assert "an archive is only checked" in run(place, *options).output
    assert "expected the URL of an archive" in run(str(tmp_path), "--indexes").output
    assert run("s3:/bucket").exit_code == run("ftp://host/x").exit_code == 2


def test_both_streams_of_the_native_layout(native: Path, tmp_path: Path) -> None:
    result = run(native / "archive")
    assert result.exit_code == 0, result.output
    network, blocks = result.output.splitlines()
    assert network.startswith(f"file://{native}/archive: 2 segments, 193 entries, 65 bookmarks, 128 pages, ")
    assert blocks.startswith(f"file://{native}/archive/blocks: 1 segments, ")
    assert ", 64 blocks, " in blocks
    shutil.copytree(native / "archive", tmp_path / "archive")
    segments(tmp_path / "archive")[1].unlink()
    (tmp_path / "archive/headers/000000000128.zst").unlink()
    result = run(tmp_path / "archive")  # the network's archive is behind
    assert result.exit_code == 0, result.output
    assert "blocks from 32 on were not checked: their entries of the network, from 97 on" in result.output


def test_blocks_whose_entries_are_others(native: Path, tmp_path: Path) -> None:
    shutil.copytree(native / "archive", tmp_path / "archive")
    path = segments(tmp_path / "archive")[0]
    page = bytearray(page_of(path, 5))
    page[500_000] ^= 1
    change(path, lambda segment: None, {5: bytes(page)})
    result = run(tmp_path / "archive")
    assert result.exit_code == 1
    assert "block 2: root hash" in result.output
