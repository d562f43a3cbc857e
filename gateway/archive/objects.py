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
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from sluice.gateway.archive.errors import ArchiveRefused, ArchiveUnavailable
from sluice.gateway.errors import Fatal

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ["ArchiveStore", "ObjectTail", "StoreOptions", "open_store"]

SCHEMES: Final = ("file", "s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
_RETRY_SECONDS: Final = 10.0
"""Longest retrying of one call; who calls tries again later."""
_PIECE_BYTES: Final = 8 << 20
"""Bytes that are read from a file at once."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The options of a store."""

    endpoint: str | None = None
    """Address of an S3-alike, with http:// or https://."""
    region: str | None = None
    """Region of an S3 bucket."""
    timeout_seconds: float = 30.0
    """Longest time of one request."""
    retry_seconds: float = _RETRY_SECONDS
    """Longest retrying of one call."""


class ObjectTail(NamedTuple):
    """The end of an object."""

    data: bytes
    object_size: int


class ArchiveStore:
    """The objects below one prefix. Any thread may call."""

    def __init__(self, url: str, store: ObjectStore, folder: Path | None) -> None:
        self.url = url.rstrip("/")
        self._store = store
        self._folder = folder
        """Of a `file://` URL."""

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
                obstore.put(self._store, name, content, mode="create", use_multipart=False)
            except obstore.exceptions.AlreadyExistsError:
                return False
            if self._folder is not None:
                _flush(self._folder / name, self._folder)
        return True

    def get(self, name: str) -> bytes | None:
        """Read an object; None without one.

        Raises:
            ArchiveUnavailable: the store did not give it.
        """
        import obstore

        with self._errors(name):
            try:
                return bytes(obstore.get(self._store, name).bytes())
            except FileNotFoundError:
                return None

    def get_range(self, name: str, offset: int, end: int) -> memoryview:
        """Read bytes of an object, fewer at its end; they are not copied, which would hold Python's lock.

        Raises:
            ArchiveUnavailable: the store did not give them, or there is no such object.
        """
        import obstore

        with self._errors(name):
            return memoryview(obstore.get_range(self._store, name, start=offset, end=end))

    def get_tail(self, name: str, size: int) -> ObjectTail:
        """Read the last bytes of an object, fewer of a shorter one.

        Raises:
            ArchiveUnavailable: the store did not give them, or there is no such object.
        """
        import obstore

        with self._errors(name):
            got = obstore.get(self._store, name, options={"range": {"suffix": size}})
            return ObjectTail(bytes(got.bytes()), got.meta["size"])

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
            paths = (
                meta["path"] for batch in obstore.list(self._store, folder, offset=after) for meta in batch
            )
            for path in paths if self._folder is None else sorted(paths):
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
        except (errors.PermissionDeniedError, errors.UnauthenticatedError) as error:
            raise ArchiveRefused(self.address(name), _reason(error)) from error
        except FileNotFoundError as error:
            raise ArchiveUnavailable(self.address(name), "no such object") from error
        except (errors.BaseError, OSError, ValueError) as error:
            raise ArchiveUnavailable(self.address(name), _reason(error)) from error


def open_store(url: str, options: StoreOptions | None = None, *, read_only: bool = False) -> ArchiveStore:
    """Return the store at a URL; nothing is asked of it yet.

    Args:
        read_only: do not create the folder of a `file://` URL.

    Raises:
        Fatal: the URL or an option is wrong, or the extra `archive` is not installed.
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
            return ArchiveStore(url, from_url(url), folder)
        timeout = timedelta(seconds=options.timeout_seconds)
        shared: dict[str, Any] = {
            "client_options": {
                "timeout": timeout,
                "connect_timeout": min(timeout, timedelta(seconds=5)),
                "allow_http": (options.endpoint or "").startswith("http://"),
            },
            "retry_config": {
                "max_retries": 10,
                "retry_timeout": timedelta(seconds=options.retry_seconds),
            },
        }
        if parts.scheme in ("s3", "s3a"):
            shared["config"] = _s3_config(options)
            provider = _s3_profile()
            if provider is not None:
                shared["credential_provider"] = provider
        return ArchiveStore(url, from_url(url, **shared), None)
    except OSError as error:
        raise Fatal(f"archive {url}", got=str(error), expected="a folder that can be written") from error
    except Exception as error:  # the library has no error of its own for a wrong option
        raise Fatal(f"archive {url}", got=_reason(error), expected="a store that can be used") from error


def _s3_config(options: StoreOptions) -> dict[str, Any]:
    config: dict[str, Any] = {"conditional_put": "etag"}
    if options.endpoint is not None:
        config["endpoint"] = options.endpoint
    region = options.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region is not None or options.endpoint is not None:
        config["region"] = region or "us-east-1"
    return config


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


def _read_all(file: IO[bytes]) -> mmap.mmap:
    """Read a file into memory without holding Python's lock, for which the node's event loop would wait."""
    size = os.fstat(file.fileno()).st_size
    memory = mmap.mmap(-1, size)
    for offset in range(0, size, _PIECE_BYTES):
        piece = memoryview(memory)[offset : min(offset + _PIECE_BYTES, size)]
        if os.preadv(file.fileno(), [piece], offset) != len(piece):
            raise OSError(f"{size} bytes of an object cannot be read from its file")
    return memory


def _reason(error: Exception) -> str:
    """Return the first line of an error; the library adds pages for its developers."""
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


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
