"""The objects of an archive in a store: a folder, and a real S3 server behind a proxy that does harm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.gateway.archive.errors import ArchiveRefused, ArchiveUnavailable
from sluice.gateway.archive.objects import ArchiveStore, StoreOptions, open_store
from sluice.gateway.errors import Fatal
from tests.gateway.archive.stores import FaultProxy, as_s3_user, s3_server, s3_store


@pytest.fixture(scope="module")
def s3_port() -> Iterator[int]:
    with as_s3_user(), s3_server() as port:
        yield port


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ArchiveStore:
    """An empty store of each kind."""
    if request.param == "folder":
        return open_store(f"file://{tmp_path}/a%20b/archive/")
    port: int = request.getfixturevalue("s3_port")
    return s3_store(port, f"pre/{tmp_path.name}")


def test_an_object_is_written_once(store: ArchiveStore) -> None:
    assert store.get("stream.json") is None
    assert store.put_new("stream.json", b"first")
    assert not store.put_new("stream.json", b"second")
    assert store.get("stream.json") == b"first"
    assert store.address("stream.json") == f"{store.url}/stream.json"
    assert not store.url.endswith("/")


def test_parts_of_an_object(store: ArchiveStore) -> None:
    data = bytes(range(256)) * 1_000
    assert store.put_new("segments/one", data)
    assert store.get_range("segments/one", 1_000, 1_100) == data[1_000:1_100]
    assert store.get_range("segments/one", len(data) - 3, len(data) + 50) == data[-3:]
    tail = store.get_tail("segments/one", 24)
    assert (tail.data, tail.object_size) == (data[-24:], len(data))
    assert store.get_tail("segments/one", len(data) + 1) == (data, len(data))


def test_names_come_in_order_and_only_those_of_the_prefix(store: ArchiveStore) -> None:
    assert list(store.names("segments/")) == []
    names = [f"segments/{number:012d}-x" for number in (128, 0, 64, 1_280)]
    for name in [*names, "headers/a", "stream.json", "segments-of-others/a"]:
        store.put_new(name, b"x")
    assert list(store.names("segments/")) == sorted(names)
    assert list(store.names("segments/000000000064-")) == ["segments/000000000064-x"]
    assert list(store.names("segments/000000000192-")) == []
    assert list(store.names("segments/", after="segments/000000000064-x")) == sorted(names)[2:]
    assert list(store.names("")) == sorted([*names, "headers/a", "stream.json", "segments-of-others/a"])


def test_no_such_object(store: ArchiveStore) -> None:
    for read in (lambda: store.get_range("none", 0, 10), lambda: store.get_tail("none", 10)):
        with pytest.raises(ArchiveUnavailable, match="none: no such object"):
            read()


def test_names_over_several_answers_of_a_list(s3_port: int) -> None:
    store = s3_store(s3_port, "many")
    names = [f"segments/{number:012d}" for number in range(1_005)]
    for name in names:
        store.put_new(name, b"")
    assert list(store.names("segments/")) == names


def test_a_folder_s_objects_are_whole_files(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/archive")
    store.put_new("segments/one", b"1234")
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == [
        "archive/segments/one"
    ]
    assert (tmp_path / "archive/segments/one").read_bytes() == b"1234"


# --- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "",
        "bucket",
        "/folder",
        "file://",
        "file:///",
        "s3://",
        "http://host/bucket",
        "file://host/folder",
    ],
)
def test_a_wrong_url(url: str) -> None:
    with pytest.raises(Fatal, match=r"archive URL: got .*, expected file:///FOLDER"):
        open_store(url)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Fatal, match="expected a folder that can be written"):
        open_store(f"file://{tmp_path}/file/archive")
    with pytest.raises(Fatal, match="got no such folder"):
        open_store(f"file://{tmp_path}/none", read_only=True)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [
        ("503", ArchiveUnavailable, "503"),
        ("403", ArchiveRefused, "privileges"),
        ("cut", ArchiveUnavailable, "body"),
        ("refused", ArchiveUnavailable, "error sending request"),
    ],
)
def test_a_fault_is_an_error_in_one_line_and_passes(
    s3_port: int, fault: str, kind: type[ArchiveUnavailable], text: str
) -> None:
    with FaultProxy(s3_port) as proxy:
        store = s3_store(proxy.port, fault)
        store.put_new("one", b"x" * 1_000)
        proxy.fault = fault
        with pytest.raises(kind, match=text) as caught:
            store.get("one")
        assert "\n" not in str(caught.value)
        assert caught.value.what == f"s3://chain/{fault}/one"
        proxy.fault = None
        assert store.get("one") == b"x" * 1_000


def test_nobody_knows_whether_it_was_written(s3_port: int) -> None:
    """The store has it, and its answer is lost: the next attempt finds it there."""
    with FaultProxy(s3_port) as proxy:
        store = s3_store(proxy.port, "lost")
        proxy.fault = "lost"
        with pytest.raises(ArchiveUnavailable):
            store.put_new("one", b"x")
        proxy.fault = None
        assert not store.put_new("one", b"x")
        assert store.get("one") == b"x"


def test_a_port_where_nobody_listens() -> None:
    with as_s3_user(), pytest.raises(ArchiveUnavailable, match="error sending request"):
        s3_store(1).get("stream.json")


def test_a_bucket_that_is_not_there(s3_port: int) -> None:
    options = StoreOptions(f"http://127.0.0.1:{s3_port}", "eu-west-1", 5.0, 0.3)
    with pytest.raises(ArchiveUnavailable):
        open_store("s3://nobody/x", options).put_new("one", b"x")
