"""The objects of an archive in a store: a folder, and a real S3 server behind a proxy that does harm."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sluice.gateway.archive.errors import ArchiveRefused, ArchiveUnavailable
from sluice.gateway.archive.objects import ArchiveStore, StoreOptions, open_store
from sluice.gateway.errors import Fatal, TlsError
from tests.certificates import Authority
from tests.gateway.archive.stores import BUCKET, FaultProxy, as_s3_user, s3_server, s3_store


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


@pytest.mark.slow
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
        ("403", ArchiveRefused, r"403 Forbidden: ExpiredToken: no; are the credentials right"),
        ("cut", ArchiveUnavailable, "body"),
        ("refused", ArchiveUnavailable, "error sending request"),
    ],
)
@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.get("one"),
        pytest.param(lambda store: list(store.names("one")), marks=pytest.mark.slow),
    ],
)
def test_a_fault_is_an_error_in_one_line_and_passes(
    s3_port: int,
    fault: str,
    kind: type[ArchiveUnavailable],
    text: str,
    call: Callable[[ArchiveStore], object],
) -> None:
    """The line is the same each time: the node logs it once."""
    with FaultProxy(s3_port) as proxy:
        store = s3_store(proxy.port, fault)
        store.put_new("one", b"x" * 1_000)
        proxy.fault = fault
        lines = set()
        for _ in range(3):
            with pytest.raises(kind, match=text) as caught:
                call(store)
            lines.add(str(caught.value))
            assert caught.value.what == f"s3://chain/{fault}/one"
        assert len(lines) == 1
        assert "\n" not in lines.pop()
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
    line = "stream.json: GET http://127.0.0.1:1: HTTP error: error sending request: Connection refused"
    with as_s3_user(), pytest.raises(ArchiveUnavailable, match=f"{line}$"):
        s3_store(1).get("stream.json")


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.put_new("one", b"x"),
        lambda store: store.get("one"),
        lambda store: store.get_range("one", 0, 1),
        lambda store: store.get_tail("one", 1),
        lambda store: list(store.names("one")),
    ],
)
def test_a_bucket_that_is_not_there(s3_port: int, call: Callable[[ArchiveStore], object]) -> None:
    options = StoreOptions(f"http://127.0.0.1:{s3_port}", "eu-west-1", 5.0, 0.3)
    with pytest.raises(
        ArchiveRefused, match=r"^s3://nobody/x/one: no such bucket or container \(.*NoSuchBucket"
    ):
        call(open_store("s3://nobody/x", options))


def test_an_endpoint_in_the_environment(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{s3_port}")
    store = open_store(f"s3://{BUCKET}/environment")
    assert store.put_new("one", b"x")
    assert s3_store(s3_port, "environment").get("one") == b"x"


# --- stores that know less than Amazon's --------------------------------------------------------------------


def test_a_list_that_begins_at_the_start(s3_port: int) -> None:
    with FaultProxy(s3_port) as proxy:
        store = s3_store(proxy.port, "from_start")
        names = [f"segments/{number:012d}-x" for number in range(5)]
        for name in names:
            store.put_new(name, b"x")
        proxy.fault = "from_start"
        assert list(store.names("segments/", after=names[2])) == names[3:]
        assert list(store.names(names[2][:-1])) == [names[2]]
        assert proxy.faults_count


def test_ranges_from_the_end(s3_port: int) -> None:
    with FaultProxy(s3_port) as proxy:
        store = s3_store(proxy.port, "no_suffix")
        store.put_new("one", b"1234")
        store.put_new("empty", b"")
        proxy.fault = "no_suffix"
        assert [store.get_tail("one", size) for size in (2, 9)] == [(b"34", 4), (b"1234", 4)]
        assert store.get_tail("empty", 9) == (b"", 0)
        with pytest.raises(ArchiveUnavailable, match="none: no such object"):
            store.get_tail("none", 9)


@pytest.mark.parametrize(
    "read",
    [
        lambda store: store.get("stream.json"),
        lambda store: store.get_tail("stream.json", 100),
        lambda store: store.get_range("stream.json", 100, 200),
    ],
)
def test_more_than_was_asked_for(s3_port: int, read: Callable[[ArchiveStore], object]) -> None:
    with FaultProxy(s3_port) as proxy:
        store = s3_store(proxy.port, "more")
        store.put_new("stream.json", bytes(1_000))
        assert read(store)
        proxy.fault = "more"
        with pytest.raises(
            ArchiveUnavailable, match=r"more than \d+ bytes|\d+ bytes, and 100 were asked for"
        ):
            read(store)


def test_a_description_of_any_size_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "stream.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ArchiveUnavailable, match="an answer of more than 1048576 bytes"):
        open_store(f"file://{tmp_path}").get("stream.json")


def test_a_range_behind_the_end(s3_port: int) -> None:
    store = s3_store(s3_port, "behind")
    store.put_new("one", b"1234")
    assert bytes(store.get_range("one", 10, 20)) == b""


class _Blobs(BaseHTTPRequestHandler):
    """Answers as Azure does for one blob; a range from the end is an error there."""

    data = bytes(range(100))

    def do_HEAD(self) -> None:
        self._answer(200, b"", len(self.data))

    def do_GET(self) -> None:
        begin, _, end = self.headers["Range"].removeprefix("bytes=").partition("-")
        part = self.data[int(begin) : int(end) + 1]
        self._answer(206, part, len(part), ("Content-Range", f"bytes {begin}-{end}/{len(self.data)}"))

    def _answer(self, status: int, body: bytes, size: int, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Length", str(size)),
            ("ETag", "one"),
            ("Last-Modified", "Fri, 27 Nov 2026 11:00:00 GMT"),
            *headers,
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_azure_has_no_ranges_from_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Blobs) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        store = open_store("az://chain/x", StoreOptions(f"http://127.0.0.1:{server.server_port}/account"))
        assert store.get_tail("one", 10) == (_Blobs.data[-10:], 100)
        server.shutdown()


@pytest.mark.slow
def test_a_large_object_has_more_time(s3_port: int) -> None:
    """A line that carries 8 MiB within the limit of one request carries an object of any size."""
    options = StoreOptions("", "eu-west-1", 1.0, 0.1)
    with FaultProxy(s3_port) as proxy:
        proxy.fault = "slow"
        store = open_store(
            f"s3://{BUCKET}/large", replace(options, endpoint=f"http://127.0.0.1:{proxy.port}")
        )
        with pytest.raises(ArchiveUnavailable, match="error sending request: TimedOut"):
            store.put_new("small", b"x")
        assert store.put_new("large", bytes(40 << 20))
        assert len(store.get_range("large", 0, 40 << 20)) == 40 << 20


# --- TLS ----------------------------------------------------------------------------------------------------


def test_a_store_whose_certificate_an_authority_of_its_own_signed(s3_port: int, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with FaultProxy(s3_port, authority.context("store")) as proxy:
        options = StoreOptions(f"https://localhost:{proxy.port}", "eu-west-1", 5.0, 0.3)
        with pytest.raises(ArchiveUnavailable, match="error sending request: UnknownIssuer"):
            open_store(f"s3://{BUCKET}/tls", options).put_new("one", b"x")
        store = open_store(f"s3://{BUCKET}/tls", replace(options, tls_ca=authority.path))
        assert store.put_new("one", b"x")
        assert store.get("one") == b"x"


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_a_file_of_authorities_that_cannot_be_used(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(
        TlsError, match=r"authorities of the archive's store: got .*ca.pem.*, expected a PEM file"
    ):
        open_store(f"s3://{BUCKET}/x", StoreOptions(tls_ca=file))
