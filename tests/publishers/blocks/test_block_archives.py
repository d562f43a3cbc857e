"""Zips and tars with blocks: listed, read member by member, and every way to be wrong."""

from __future__ import annotations

import gzip
import io
import os
import random
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from sluice.publishers.blocks import block_archives
from sluice.publishers.blocks.block_archives import Archive
from sluice.publishers.errors import ArchiveError
from sluice.publishers.limits import BLOCK_FILE_BYTES_MAX

NAMES = [f"{number:019}.blk.zstd" for number in (3, 4, 5)]
DATA = [bytes([number]) * (600 * number) for number in (3, 4, 5)]
LIMIT = 1 << 20


def a_zip(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return file.getvalue()


def a_tar(members: dict[str, bytes], form: int = tarfile.USTAR_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


MEMBERS = {"README": b"none", **dict(zip(NAMES, DATA, strict=True)), "sub/": b""}
KINDS: dict[str, Callable[[], bytes]] = {
    "stored": lambda: a_zip(MEMBERS),
    "deflated": lambda: a_zip(MEMBERS, zipfile.ZIP_DEFLATED),
    "tar": lambda: a_tar(MEMBERS),
    "tar.gz": lambda: gzip.compress(a_tar(MEMBERS)),
    "tar.zst": lambda: zstandard.ZstdCompressor().compress(a_tar(MEMBERS)),
}


def opened(data: bytes, members_max: int = block_archives.ARCHIVE_MEMBERS_MAX) -> Archive:
    return Archive(io.BytesIO(data), len(data), members_max=members_max)


def refusal(data: bytes, members_max: int = block_archives.ARCHIVE_MEMBERS_MAX) -> str:
    with pytest.raises(ArchiveError) as caught:
        list(opened(data, members_max).members())
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_members_are_listed_and_read_in_any_order(kind: str) -> None:
    archive = opened(KINDS[kind]())
    members = list(archive.members())
    assert [(member.number, member.name) for member in members] == list(zip((3, 4, 5), NAMES, strict=True))
    for place in (0, 2, 1, 0):
        member = members[place]
        assert archive.read(member.entry, member.size_bytes, LIMIT) == DATA[place]
        assert len(archive.read(member.entry, member.size_bytes, 100)) == 101


@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_archive_is_refused_or_has_all_that_it_lists(kind: str) -> None:
    whole = KINDS[kind]()
    for size in range(1, len(whole), 97):
        reason = ""
        try:
            archive = opened(whole[:size])
            members = list(archive.members())
        except ArchiveError as error:
            reason = error.reason
        if reason:
            assert "truncated" in reason or "not an archive" in reason, size
            continue
        # A tar may end after a member.
        assert [archive.read(member.entry, member.size_bytes, LIMIT) for member in members] == DATA[
            : len(members)
        ]
        assert kind.startswith("tar")


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_refused_or_harmless_and_never_anything_else(kind: str) -> None:
    whole, choose, refused_count = KINDS[kind](), random.Random(kind), 0
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(choose.randrange(1, 4)):
            data[choose.randrange(len(data))] = choose.randrange(256)
        try:
            archive = opened(bytes(data))
            for member in archive.members():
                archive.read(member.entry, member.size_bytes, LIMIT)
        except ArchiveError:
            refused_count += 1
    assert refused_count > 0


def test_what_is_no_archive() -> None:
    assert (
        refusal(b"") == "not an archive: it begins with nothing: it is empty; "
        "expected N.blk, N.blk.gz, N.blk.zst, a zip or a tar"
    )
    assert refusal(b"\x0a\x02\x08\x01") == (
        "not an archive: it begins with 0a 02 08 01; expected N.blk, N.blk.gz, N.blk.zst, a zip or a tar"
    )
    assert refusal(gzip.compress(b"x" * 600)).startswith("not an archive: it begins with 1f 8b")
    assert refusal(b"PK\x03\x04 and nothing") == (
        "damaged, truncated or still being written: File is not a zip file"
    )


def test_a_member_without_a_name_is_no_block() -> None:
    data = a_zip({"1.blk": b"x"})
    at = data.index(b"PK\x01\x02")
    nameless = bytearray(data[: at + 46] + data[at + 51 :])  # in the list at the end
    nameless[at + 28] = 0
    end = nameless.index(b"PK\x05\x06")
    nameless[end + 12] -= 5
    assert list(opened(bytes(nameless)).members()) == []


def test_empty_archives_have_no_blocks() -> None:
    assert list(opened(a_zip({})).members()) == []
    assert list(opened(a_tar({})).members()) == []


@pytest.mark.parametrize("name", ["/0.blk", "../0.blk", "a/../../0.blk", "..", "\\0.blk"])
@pytest.mark.parametrize("make", [a_zip, a_tar])
def test_a_name_that_leads_out_of_the_archive_refuses_it(
    make: Callable[[dict[str, bytes]], bytes], name: str
) -> None:
    assert refusal(make({"1.blk": b"", name: b"x"})) == f"a member is named {name!r}, which leads out of it"


def test_an_encrypted_member_is_named() -> None:
    data = bytearray(a_zip({"1.blk": b"xyz"}))
    data[data.index(b"PK\x01\x02") + 8] |= 1
    archive = opened(bytes(data))
    (member,) = archive.members()
    with pytest.raises(ArchiveError, match=r"^encrypted: "):
        archive.read(member.entry, member.size_bytes, LIMIT)


def test_a_method_whose_memory_a_member_chooses_is_refused() -> None:
    archive = opened(a_zip({"1.blk": b"xyz"}, zipfile.ZIP_LZMA))
    (member,) = archive.members()
    with pytest.raises(ArchiveError, match=r"method 14; expected stored or deflated"):
        archive.read(member.entry, member.size_bytes, LIMIT)


def test_a_bomb_is_not_unpacked() -> None:
    archive = opened(a_zip({"1.blk": bytes(1 << 28)}, zipfile.ZIP_DEFLATED))
    (member,) = archive.members()
    tracemalloc.start()
    assert len(archive.read(member.entry, member.size_bytes, LIMIT)) == LIMIT + 1
    assert tracemalloc.get_traced_memory()[1] < 8 * LIMIT
    tracemalloc.stop()


def test_a_member_that_no_block_can_be_is_not_decompressed_to_be_passed_over() -> None:
    info = tarfile.TarInfo("x")
    info.size = BLOCK_FILE_BYTES_MAX + 1
    assert refusal(gzip.compress(info.tobuf())) == (
        "x has 268,435,457 bytes and would have to be decompressed to come to what is after it; expected at "
        "most 268,435,456"
    )


def test_a_tar_that_is_cut_off_in_a_member_says_so() -> None:
    data = a_tar({"1.blk": b"x" * 5_000})
    assert refusal(data[:4_000]) == "truncated: 1.blk would end at byte 5,512, the file at 4,000"


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_that_are_too_long_for_a_header(form: int) -> None:
    name = "x" * 200 + "/" + NAMES[0]
    (member,) = opened(a_tar({name: b"abc"}, form)).members()
    assert (member.number, member.name) == (3, name)


def test_a_name_longer_than_any_is_refused() -> None:
    for size in (block_archives.TAR_NAME_BYTES_MAX, block_archives.TAR_NAME_BYTES_MAX + 1):
        info = tarfile.TarInfo("././@LongLink")
        info.type, info.size = tarfile.GNUTYPE_LONGNAME, size
        data = info.tobuf(tarfile.GNU_FORMAT) + b"x" * (size + -size % 512) + a_tar({"1.blk": b""})
        if size == block_archives.TAR_NAME_BYTES_MAX:
            assert list(opened(data).members()) == []
        else:
            assert refusal(data) == "a name of 65,537 bytes; expected at most 65,536"


def test_links_and_folders_in_a_tar_are_no_blocks() -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, kind in (
            ("1.blk", tarfile.SYMTYPE),
            ("2.blk", tarfile.LNKTYPE),
            ("3.blk", tarfile.DIRTYPE),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    assert list(opened(file.getvalue()).members()) == []


def test_non_ascii_names_are_kept() -> None:
    for make in (a_zip, a_tar):
        (member,) = opened(make({"блоки/7.blk": b"abc", "\u0661.blk": b""})).members()
        assert (member.number, member.name) == (7, "блоки/7.blk")


def test_so_many_members_and_no_more() -> None:
    for make in (a_zip, a_tar):
        assert len(list(opened(make({f"{n}.blk": b"" for n in range(5)}), 5).members())) == 5
        assert refusal(make({f"{n}.blk": b"" for n in range(6)}), 5) == "more than 5 members"


def test_headers_without_members_are_counted_too() -> None:
    info = tarfile.TarInfo("x")
    info.type = tarfile.XGLTYPE
    assert refusal(gzip.compress(info.tobuf() * 6), 5) == "more than 5 members"


def test_a_zip_s_list_is_not_as_long_as_it_says(tmp_path: Path) -> None:
    """The end of a sparse zip of a terabyte claims a list that is too long."""
    end = a_zip({})
    path = tmp_path / "x.zip"
    with path.open("wb") as file:
        file.write(b"PK\x03\x04")
        file.truncate(1 << 40)
        file.seek(0, os.SEEK_END)
        listed = block_archives.ARCHIVE_LIST_BYTES_MAX + 1
        file.write(end[:12] + listed.to_bytes(4, "little") + end[16:])
    with path.open("rb") as file, pytest.raises(ArchiveError) as caught:
        Archive(file, path.stat().st_size)
    assert str(caught.value) == "a list of members of 100,663,297 bytes; expected at most 100,663,296"


def test_an_archive_that_was_replaced_by_a_shorter_one() -> None:
    with pytest.raises(ArchiveError, match="changed: it has 1 members, and had more than 2"):
        opened(a_zip({"1.blk": b""})).read(2, 10, LIMIT)
