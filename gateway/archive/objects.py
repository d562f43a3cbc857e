"""The objects of an archive in a store: S3, GCS, Azure, or a folder. A thin shell over `obstore`.

    store = open_store("s3://bucket/prefix", region="eu-west-1")
    store.put_new("segments/…", data)

Every call blocks, retries for a few seconds, and raises ArchiveUnavailable then. Credentials come from where
the tools of each store look: environment, web identity, the machine's own; for S3 also a profile, if `boto3`
is installed.

Source: docs/archive.md.
"""

from __future__ import annotations

import contextlib
import html
import mmap
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from sluice.gateway.archive.errors import ArchiveRefused, ArchiveUnavailable
from sluice.gateway.errors import Fatal, TlsError

if TYPE_CHECKING:
    from obstore import GetResult
    from obstore.store import ObjectStore

__all__ = ["ArchiveStore", "ObjectTail", "StoreOptions", "open_store"]

T = TypeVar("T")

SCHEMES: Final = ("file", "s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
_RETRY_SECONDS: Final = 10.0
"""Longest retrying of one call; who calls tries again later."""
_SHARE_BYTES: Final = 8 << 20
"""The part of a request that has the time limit for itself; larger ones have a multiple of it."""
_REQUEST: Final = re.compile(
    r"(?P<request>[A-Z]+ \w+://[^/?\s]+)\S* in .*? - (?P<outcome>.*?)(?:\n\nDebug source|\Z)", re.DOTALL
)
_STATUS: Final = re.compile(r"Server returned non-2xx status code: (?P<text>(?P<number>\d{3})[^:\n]*)")
_CODE: Final = re.compile(r"<Code>([^<]+)</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<\n]+)|\"message\": *\"([^\"\n]+)\"")
_CAUSE: Final = re.compile(r"(?:message|error): \"([^\"]+)\"|InvalidCertificate\(\s*(\w+)|(TimedOut)\b")
_REFUSED: Final = (401, 403)
_NOT_FOUND: Final = 404
_BEHIND_END: Final = 416
_AZURE_SCHEMES: Final = ("az", "azure", "abfs", "abfss")
_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound")
_SMALL_BYTES_MAX: Final = 1 << 20
"""Bytes of an object that is read whole: `stream.json`, or a header page."""
_PIECE_BYTES: Final = 8 << 20
"""Bytes that are read from a file at once."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The options of a store."""

    endpoint: str | None = None
    """Address of a store other than the cloud's own, with http:// or https://."""
    region: str | None = None
    """Region of an S3 bucket."""
    timeout_seconds: float = 30.0
    """Longest time of one request, for each 8 MiB of it."""
    retry_seconds: float = _RETRY_SECONDS
    """Longest retrying of one call."""
    tls_ca: Path | None = None
    """PEM file of authorities to trust besides those of the system."""


class ObjectTail(NamedTuple):
    """The end of an object."""

    data: bytes
    object_size: int


class ArchiveStore:
    """The objects below one prefix. Any thread may call.

    Args:
        connect: returns a store of the library whose requests last that many times the limit.
        folder: of a `file://` URL.
        has_suffixes: the store knows ranges that count from the end.
    """

    def __init__(
        self,
        url: str,
        connect: Callable[[int], ObjectStore],
        folder: Path | None,
        *,
        has_suffixes: bool = True,
    ) -> None:
        self.url = url.rstrip("/")
        self._connect = connect
        self._folder = folder
        self._has_suffixes = has_suffixes
        self._stores = {1: connect(1)}
        self._lock = threading.Lock()
        self._asked: set[Future[Any]] | None = set()
        """Requests under way; None: closed."""

    def close(self) -> None:
        """Abandon the requests under way, and begin none."""
        with self._lock:
            asked, self._asked = self._asked or set(), None
        for answer in asked:
            answer.cancel()

    def _ask(self, request: Callable[[], T]) -> T:
        """Return what a request returns; it has a thread of its own, so that nobody has to wait for it."""
        answer: Future[T] = Future()

        def run() -> None:
            with contextlib.suppress(InvalidStateError):  # abandoned
                try:
                    result = request()
                except BaseException as error:
                    answer.set_exception(error)
                else:
                    answer.set_result(result)

        with self._lock:
            if self._asked is None:
                raise CancelledError
            self._asked.add(answer)
        threading.Thread(target=run, name="archive-request", daemon=True).start()
        try:
            return answer.result()
        finally:
            with self._lock:
                if self._asked is not None:
                    self._asked.remove(answer)

    def _store(self, size: int = 0) -> ObjectStore:
        """Return the store for a request with so many bytes: a slow line needs more time for more."""
        shares = 1
        while shares * _SHARE_BYTES < size:
            shares *= 2
        if shares not in self._stores:
            self._stores[shares] = self._connect(shares)
        return self._stores[shares]

    def address(self, name: str) -> str:
        """Return the URL of an object, for messages."""
        return f"{self.url}/{name}"

    def put_new(self, name: str, data: bytes | IO[bytes]) -> bool:
        """Write an object, from bytes or a file; return False, and change nothing, if its name is taken.

        Raises:
            ArchiveUnavailable: the store did not take it, or nobody knows whether it did.
        """
        import obstore

        with self._errors(name):
            content = data if isinstance(data, bytes) else _read_all(data)
            try:
                # In one request: the library's multipart uploads overwrite what has the name.
                store = self._store(len(content))
                self._ask(lambda: obstore.put(store, name, content, mode="create", use_multipart=False))
            except obstore.exceptions.AlreadyExistsError:
                return False
            except FileNotFoundError as error:  # writing an object needs none
                raise ArchiveRefused(self.address(name), _no_bucket(error)) from error
            if self._folder is not None:
                _flush(self._folder / name, self._folder)
        return True

    def get(self, name: str) -> bytes | None:
        """Read a small object; None without one.

        Raises:
            ArchiveUnavailable: the store did not give it, or gives more than a MiB.
        """
        import obstore

        with self._errors(name):
            try:
                return self._ask(lambda: _bytes_of(obstore.get(self._store(), name), _SMALL_BYTES_MAX))
            except FileNotFoundError as error:
                if _code(error) in _NO_BUCKET:
                    raise
                return None

    def get_range(self, name: str, offset: int, end: int) -> memoryview:
        """Read bytes of an object, fewer at its end; they are not copied, which would hold Python's lock.

        Raises:
            ArchiveUnavailable: the store did not give them, or there is no such object.
        """
        import obstore

        with self._errors(name):
            try:
                store = self._store(end - offset)
                found = self._ask(lambda: memoryview(obstore.get_range(store, name, start=offset, end=end)))
                if len(found) > end - offset:
                    raise ValueError(f"{len(found)} bytes, and {end - offset} were asked for")
                return found
            except obstore.exceptions.BaseError as error:
                if _status(error) == _BEHIND_END:
                    return memoryview(b"")
                raise

    def get_tail(self, name: str, size: int) -> ObjectTail:
        """Read the last bytes of an object, fewer of a shorter one.

        Raises:
            ArchiveUnavailable: the store did not give them, or there is no such object.
        """
        import obstore

        def tail() -> ObjectTail:
            got = obstore.get(self._store(size), name, options={"range": {"suffix": size}})
            return ObjectTail(_bytes_of(got, size), got.meta["size"])

        if self._has_suffixes:
            with self._errors(name):
                try:
                    return self._ask(tail)
                except obstore.exceptions.BaseError as error:
                    # So some answer for an object that is shorter.
                    if _status(error) != _BEHIND_END:
                        raise
        with self._errors(name):
            object_size = self._ask(lambda: obstore.head(self._store(), name)["size"])
        offset = max(0, object_size - size)
        return ObjectTail(
            bytes(self.get_range(name, offset, object_size)) if object_size else b"", object_size
        )

    def names(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Yield the names of the objects in a folder, in order, behind a name.

        Args:
            prefix: the beginning of the names; what follows its last slash may be part of a name.
            after: the name after which to begin.

        Raises:
            ArchiveUnavailable: the store did not list them.
        """
        import obstore

        folder, _, begin = prefix.rpartition("/")
        if after is None and begin:
            after = prefix
        with self._errors(prefix):
            batches = iter(obstore.list(self._store(), folder, offset=after))
            filled = iter(lambda: self._ask(lambda: next(batches, None)), None)
            paths = (meta["path"] for batch in filled for meta in batch)
            for path in paths if self._folder is None else sorted(paths):
                if after is not None and path <= after:
                    continue  # not every store begins there
                if path.startswith(prefix):
                    yield path
                elif path > prefix:
                    return

    @contextlib.contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        """Make errors of the library ours."""
        from obstore import exceptions as errors

        try:
            yield
        except ArchiveUnavailable:
            raise
        except CancelledError as error:
            raise ArchiveUnavailable(self.address(name), "the archive is being closed") from error
        except (errors.BaseError, OSError, ValueError) as error:
            status, reason = _status(error), _reason(error)
            # A list finds nothing, or has no bucket to look into.
            if _code(error) in _NO_BUCKET or (status == _NOT_FOUND and "list request" in str(error)):
                raise ArchiveRefused(self.address(name), _no_bucket(error)) from error
            if isinstance(error, FileNotFoundError):
                raise ArchiveUnavailable(self.address(name), "no such object") from error
            if status in _REFUSED or isinstance(
                error, (errors.PermissionDeniedError, errors.UnauthenticatedError)
            ):
                reason = f"{reason}; are the credentials right, and may they list, read and write?"
                raise ArchiveRefused(self.address(name), reason) from error
            raise ArchiveUnavailable(self.address(name), reason) from error


def open_store(url: str, options: StoreOptions | None = None, *, read_only: bool = False) -> ArchiveStore:
    """Return the store at a URL; nothing is asked of it yet.

    Args:
        read_only: do not create the folder of a `file://` URL.

    Raises:
        Fatal: the URL or an option is wrong, or the extra `archive` is not installed.
        TlsError: the file of authorities cannot be used.
    """
    try:
        from obstore.store import from_url
    except ImportError as error:
        raise Fatal(
            f"archive {url}",
            got=f"no module {error.name}",
            expected="the extra: pip install 'sluice-gateway[archive]'",
        ) from error
    options = options or StoreOptions()
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES or not (parts.netloc or parts.path.strip("/")):
        expected = "file:///FOLDER, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX"
        raise Fatal("archive URL", got=url, expected=expected)
    if parts.scheme == "file" and parts.netloc not in ("", "localhost"):
        raise Fatal("archive URL", got=url, expected="file:///FOLDER, with an absolute path")
    if parts.scheme == "file" and read_only and not Path(unquote(parts.path)).is_dir():
        raise Fatal(f"archive {url}", got="no such folder", expected="a folder with an archive")
    try:
        if parts.scheme == "file":
            folder = Path(unquote(parts.path))
            folder.mkdir(parents=True, exist_ok=True)
            return ArchiveStore(url, lambda _: from_url(url), folder)
        kind = "azure" if parts.scheme in _AZURE_SCHEMES else "gs" if parts.scheme == "gs" else "s3"
        shared = _config(kind, options)

        def connect(shares: int) -> ObjectStore:
            timeout = timedelta(seconds=options.timeout_seconds)
            client = {"timeout": shares * timeout, "connect_timeout": min(timeout, timedelta(seconds=5))}
            return from_url(url, **shared | {"client_options": shared["client_options"] | client})

        return ArchiveStore(url, connect, None, has_suffixes=kind != "azure")
    except TlsError:
        raise
    except OSError as error:
        raise Fatal(f"archive {url}", got=str(error), expected="a folder that can be written") from error
    except Exception as error:  # the library has no error of its own for a wrong option
        raise Fatal(f"archive {url}", got=_reason(error), expected="a store that can be used") from error


def _config(kind: str, options: StoreOptions) -> dict[str, Any]:
    """Return what the library is told about a store, besides the time limits."""
    endpoint, config, client = options.endpoint, dict[str, Any](), dict[str, Any]()
    shared: dict[str, Any] = {"config": config, "client_options": client}
    if kind == "s3":
        endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        config["conditional_put"] = "etag"
        region = options.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if region is not None or endpoint:
            config["region"] = region or "us-east-1"
        provider = _s3_profile()
        if provider is not None:
            shared["credential_provider"] = provider
    if endpoint:
        config["base_url" if kind == "gs" else "endpoint"] = endpoint
        client["allow_http"] = endpoint.startswith("http://")
    if options.tls_ca is not None:
        client["root_certificate"] = _authorities(options.tls_ca)
    shared["retry_config"] = {"max_retries": 10, "retry_timeout": timedelta(seconds=options.retry_seconds)}
    return shared


def _authorities(file: Path) -> bytes:
    """Read the file of authorities; raise TlsError if it has none."""
    from cryptography import x509  # takes a tenth of a second, in each task of Spark

    try:
        pem = file.read_bytes()
        x509.load_pem_x509_certificates(pem)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "which has none"
        what, expected = "authorities of the archive's store", "a PEM file of certificates"
        raise TlsError(what, got=f"{file}, {reason}", expected=expected) from error
    return pem


def _s3_profile() -> Any:
    """Return a provider of the credentials in a profile; None: the environment, or the machine, has them."""
    if "AWS_ACCESS_KEY_ID" in os.environ or "AWS_WEB_IDENTITY_TOKEN_FILE" in os.environ:
        return None
    file = os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
    if "AWS_PROFILE" not in os.environ and not Path(file).expanduser().exists():
        return None
    try:
        from boto3 import Session  # type: ignore[import-untyped, unused-ignore]
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return None
    return Boto3CredentialProvider(Session())


def _status(error: Exception) -> int | None:
    """Return the status with which a store answered; None: it did not."""
    status = _STATUS.search(str(error))
    return None if status is None else int(status["number"])


def _code(error: Exception) -> str | None:
    code = _CODE.search(str(error))
    return None if code is None else code[1]


def _no_bucket(error: Exception) -> str:
    return f"no such bucket or container ({_reason(error)})"


def _read_all(file: IO[bytes]) -> mmap.mmap:
    """Read a file into memory without holding Python's lock, for which the node's event loop would wait."""
    size = os.fstat(file.fileno()).st_size
    memory = mmap.mmap(-1, size)
    for offset in range(0, size, _PIECE_BYTES):
        piece = memoryview(memory)[offset : min(offset + _PIECE_BYTES, size)]
        if os.preadv(file.fileno(), [piece], offset) != len(piece):
            raise OSError(f"{size} bytes of an object cannot be read from its file")
    return memory


def _bytes_of(found: GetResult, most: int) -> bytes:
    """Return the bytes of an answer. Raises ValueError if the store sends more than it may."""
    data = bytearray()
    for piece in found.stream():
        data += piece
        if len(data) > most:
            raise ValueError(f"an answer of more than {most} bytes")
    return bytes(data)


def _reason(error: Exception) -> str:
    """Return an error in one line, the same one for the same cause.

    The library has the cause on one of the lines that follow. Its first line has the time that a request
    took, and the URL, which may have a secret in it.
    """
    text = str(error).strip()
    request, status = _REQUEST.search(text), _STATUS.search(text)
    if request is not None and status is not None:
        message = _MESSAGE.search(request["outcome"])
        words = [request["request"], status["text"], _code(error), message and (message[1] or message[2])]
        return html.unescape(": ".join(word.strip() for word in words if word))
    first = text.partition("\n")[0] or type(error).__name__
    if request is not None:
        first = f"{request['request']}: {request['outcome'].partition(chr(10))[0]}"
    causes = [next(filter(None, cause)) for cause in _CAUSE.findall(text)]
    return ": ".join([first, *causes[-1:]])


def _flush(path: Path, top: Path) -> None:
    """Flush a new file, and the folders up to the top one."""
    while True:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        if path == top:
            return
        path = path.parent
