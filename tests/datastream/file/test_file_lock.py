"""One writer to a stream file, by whatever name; the others are real processes."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sluice.datastream.check.check import check_stream
from sluice.datastream.errors import StreamFileUnavailable, StreamInUse
from sluice.datastream.file import file_lock
from sluice.datastream.file.file_lock import holder_of, lock_file, unlock_file
from sluice.datastream.file.folder_lock import other_folders
from sluice.datastream.file.streamer import DataStreamer
from tests.datastream.streams import commit, names

OPEN = """
import sys
from sluice.datastream.errors import StreamInUse
from sluice.datastream.file.streamer import DataStreamer
try:
    DataStreamer.open(sys.argv[1], read_only=sys.argv[2:] == ["read"]).close()
except StreamInUse as error:
    sys.stdout.write(str(error))
    sys.exit(7)
"""
HOLD = """
import fcntl, struct, sys
how, path = sys.argv[1:]
if how == "leveldb":
    from sluice.datastream.file.index_database import plyvel
    held = plyvel.DB(path, create_if_missing=True)
else:
    held = open(path, "r+b")
if how == "flock":
    fcntl.flock(held, fcntl.LOCK_EX)
elif how == "posix":
    fcntl.lockf(held, fcntl.LOCK_EX)
elif how == "ofd":
    fcntl.fcntl(held, fcntl.F_OFD_SETLK, struct.pack("@hhqqi0q", fcntl.F_WRLCK, 0, 0, 0, 0))
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(how: str, path: Path) -> Iterator[int]:
    """Have another process hold a file or a database; yield its process id."""
    words = [sys.executable, "-c", HOLD, how, str(path)]
    holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    try:
        yield holder.pid
    finally:
        holder.communicate(timeout=60)


def opened_elsewhere(path: Path | str, *how: str) -> str:
    """Open and close a stream in another process; return its refusal, or ""."""
    words = [sys.executable, "-c", OPEN, str(path), *how]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode in (0, 7), done.stderr
    return done.stdout


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text("utf-8").strip()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "node" / "s.bin"
    path.parent.mkdir()
    with DataStreamer.open(path, initial_pages=1) as streamer:
        commit(streamer, (1, b"x"))
    return path


def hard_link(path: Path, folder: Path) -> Path:
    os.link(path, folder / "hard.bin")
    return folder / "hard.bin"


def symbolic_link(path: Path, folder: Path) -> Path:
    (folder / "link.bin").symlink_to(path)
    return folder / "link.bin"


@pytest.mark.parametrize("link", [hard_link, symbolic_link])
@pytest.mark.parametrize("first", ["file", "link"])
def test_links_lead_to_the_same_lock(
    path: Path, tmp_path: Path, link: Callable[[Path, Path], Path], first: str
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    pair = (path, link(path, folder))
    one, other = pair if first == "file" else pair[::-1]
    with DataStreamer.open(one) as streamer:
        refused = opened_elsewhere(other)
        assert refused.startswith(f"{other}: the stream is in use by another program or opener (")
        assert f"process {os.getpid()} (" in refused
        with pytest.raises(StreamInUse, match="this process"):
            DataStreamer.open(other)
        commit(streamer, (1, b"y"))
    assert opened_elsewhere(other) == ""


def test_a_bind_mount_leads_to_the_same_lock(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mounted"
    folder.mkdir()
    mount = shutil.which("mount")
    if os.getuid() or mount is None:
        pytest.skip("needs root, and the command mount")
    if subprocess.run([mount, "--bind", path.parent, folder], check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount (CAP_SYS_ADMIN)")
    try:
        with DataStreamer.open(path):
            assert "s.bin: the stream is in use" in opened_elsewhere(folder / "s.bin")
        assert opened_elsewhere(folder / "s.bin") == ""
    finally:
        subprocess.run(["umount", folder], check=True)


def test_an_open_descriptor_leads_to_the_same_lock(path: Path) -> None:
    with path.open("rb") as file:
        name = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        with DataStreamer.open(path):
            assert "the stream is in use" in opened_elsewhere(name)


@pytest.mark.parametrize("how", ["flock", "posix", "ofd", "writer"])
def test_what_another_program_locks_or_writes_is_not_opened(path: Path, tmp_path: Path, how: str) -> None:
    other = hard_link(path, tmp_path)
    with held(how, other) as pid:
        with pytest.raises(StreamInUse) as caught:
            DataStreamer.open(path)
        assert str(caught.value) == (
            f"{path}: the stream is in use by another program or opener "
            f"(which has it open for writing, process {pid} ({name_of(pid)}))"
        )
        assert caught.value.path == path
        # Locks keep out readers, as before.
        assert bool(opened_elsewhere(path, "read")) == (how != "writer")
    DataStreamer.open(path).close()


def test_where_nobody_may_ask_who_writes_locks_decide(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file belongs to another user, or the file system has no leases."""
    call = fcntl.fcntl

    def without_leases(fd: int, command: int, argument: Any = 0) -> Any:
        if command == fcntl.F_SETLEASE:
            raise OSError(errno.EINVAL, "Invalid argument")
        return call(fd, command, argument)

    monkeypatch.setattr(fcntl, "fcntl", without_leases)
    with held("ofd", path) as pid:
        with pytest.raises(StreamInUse) as caught:
            DataStreamer.open(path)
        assert str(caught.value).endswith(f"opener (lock {path}, process {pid} ({name_of(pid)}))")
    with held("writer", path):
        DataStreamer.open(path).close()


def test_a_server_elsewhere_that_grants_no_lease_is_no_writer(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS and SMB answer as if there were a writer, unless the server has delegated the file."""
    monkeypatch.setattr(file_lock, "file_system_of", lambda fd: 0x6969)
    with held("writer", path), DataStreamer.open(path) as streamer:
        assert streamer.committed.total_entries == 1


def test_whoever_looks_at_a_stream_in_use_by_another_name_is_refused(path: Path, tmp_path: Path) -> None:
    other = hard_link(path, tmp_path)  # without a folder, whose lock would keep it out
    with DataStreamer.open(path):
        with pytest.raises(StreamInUse):
            check_stream(other)
        with pytest.raises(StreamInUse):
            DataStreamer.open(other)
    assert names(tmp_path) == ["hard.bin", "node"]


def test_who_asks_whether_anybody_writes_kills_nobody(path: Path) -> None:
    """The check holds a lease for a moment; an opener at this moment comes second."""
    with path.open("rb") as file:
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        assert "which has it open for writing" in opened_elsewhere(path)
    assert opened_elsewhere(path) == ""


def test_readers_share_and_keep_writers_out(path: Path, tmp_path: Path) -> None:
    shutil.rmtree(path.with_name("s.db"))  # no folder has a lock to meet in
    other = hard_link(path, tmp_path)
    with DataStreamer.open(path, read_only=True):
        assert opened_elsewhere(other, "read") == ""
        assert f"(lock {other}, process {os.getpid()} (" in opened_elsewhere(other)
        with DataStreamer.open(other, read_only=True), pytest.raises(StreamInUse):
            DataStreamer.open(path)
    assert names(path.parent) == ["s.bin"]
    with DataStreamer.open(path):
        assert "the stream is in use" in opened_elsewhere(other, "read")


def test_a_file_system_without_locks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = fcntl.flock

    def refuse(fd: int, kind: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink() == path:
            raise OSError(errno.ENOLCK, "No locks available")
        lock(fd, kind)

    monkeypatch.setattr(fcntl, "flock", refuse)
    before = path.read_bytes()
    with pytest.raises(StreamFileUnavailable) as caught:
        DataStreamer.open(path)
    assert str(caught.value) == (
        f"{path}: cannot open the stream file: its file system has no locks (No locks available), "
        "expected one where two writers are kept apart"
    )
    assert path.read_bytes() == before
    with DataStreamer.open(path, read_only=True) as streamer:
        assert streamer.get_entry(0).data == b"x"


# --- the folders of Go programs ----------------------------------------------------------------------------


@pytest.fixture
def dotted(tmp_path: Path) -> Path:
    """A stream in a folder with a dot in its name, without any other folder."""
    path = tmp_path / "v1.2" / "s.a.bin"
    path.parent.mkdir()
    with DataStreamer.open(path, initial_pages=1) as streamer:
        commit(streamer, (1, b"x"))
    assert names(tmp_path) == ["v1.2"]
    path.with_name("s.a.db").unlink()  # a link, as the fork needs it
    assert names(path.parent) == ["s.a.bin", "s.db"]
    return path


def test_the_folders_of_go_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "v1.2" / "s.a.bin"
    expected = [tmp_path / "v1.db", tmp_path / "v1.2" / "s.a.db"]
    assert other_folders(path) == expected
    path.parent.mkdir()
    monkeypatch.chdir(path.parent)
    assert other_folders(Path("s.a.bin")) == expected
    link = tmp_path / "l.bin"
    link.symlink_to(path)
    assert other_folders(link) == [tmp_path / "v1.db", path.with_name("s.db"), path.with_name("s.a.db")]
    assert other_folders(tmp_path / "s.bin") == []


@pytest.mark.parametrize("how", ["flock", "leveldb"])
@pytest.mark.parametrize("folder", ["v1.db", "v1.2/s.a.db"])
def test_a_go_program_and_ours_exclude_each_other(
    dotted: Path, tmp_path: Path, how: str, folder: str
) -> None:
    other = tmp_path / folder
    lock = other / "LOCK"
    other.mkdir()
    lock.touch()
    with held(how, other if how == "leveldb" else lock) as pid:
        with pytest.raises(StreamInUse) as caught:
            DataStreamer.open(dotted)
        assert caught.value.lock_path == lock
        assert f"process {pid} (" in caught.value.holder
        assert str(caught.value).startswith(f"{dotted}: the stream is in use")
    shutil.rmtree(other)
    with DataStreamer.open(dotted) as streamer:
        commit(streamer, (1, b"y"))
        program = (
            "import sys; from sluice.datastream.file.index_database import plyvel; "
            "plyvel.DB(sys.argv[1], create_if_missing=True)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, str(other)], capture_output=True, text=True, check=False
        )
        assert "LOCK: Resource temporarily unavailable" in done.stderr
        # Like the Go programs; last, since closing our own LOCK drops its fcntl lock.
        with pytest.raises(BlockingIOError), lock.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_folder_that_is_found_in_two_ways_is_taken_away_too(tmp_path: Path) -> None:
    path = tmp_path / ".part" / "s.bin"
    path.parent.mkdir()
    with DataStreamer.open(path):
        assert names(tmp_path) == [".db", ".part"]
    assert names(tmp_path) == [".part"]


def test_a_folder_that_somebody_uses_stays(dotted: Path, tmp_path: Path) -> None:
    with held("leveldb", tmp_path / "v1.db"):
        pass
    before = names(tmp_path / "v1.db")
    assert "CURRENT" in before
    DataStreamer.open(dotted).close()
    assert names(tmp_path / "v1.db") == before
    (tmp_path / "v1.2" / "s.a.db").unlink()
    (tmp_path / "v1.2" / "s.a.db").write_bytes(b"no folder")
    DataStreamer.open(dotted).close()
    assert (tmp_path / "v1.2" / "s.a.db").read_bytes() == b"no folder"


def test_ours_share_the_folder_of_a_go_program(dotted: Path, tmp_path: Path) -> None:
    other = tmp_path / "v1.3" / "s.bin"
    other.parent.mkdir()
    with DataStreamer.open(dotted):
        with DataStreamer.open(other):
            assert opened_elsewhere(tmp_path / "v1.3" / "t.bin") == ""
        assert names(tmp_path / "v1.db") == ["LOCK"]
    assert names(tmp_path) == ["v1.2", "v1.3"]


def test_a_folder_that_may_not_be_made_is_not_locked(
    dotted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = Path.mkdir

    def refuse(self: Path, *args: Any, **more: Any) -> None:
        if self == tmp_path / "v1.db":
            raise PermissionError(errno.EACCES, "Permission denied")
        mkdir(self, *args, **more)

    monkeypatch.setattr(Path, "mkdir", refuse)
    with DataStreamer.open(dotted) as streamer:
        assert streamer.committed.total_entries == 1
        assert names(tmp_path) == ["v1.2"]


def test_a_go_program_that_was_given_a_path_with_two_dots(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is .db in its working folder, for all its files; it is kept out where it has been before."""
    monkeypatch.chdir(path.parent.parent)
    folder = path.parent.parent / ".db"
    DataStreamer.open(path).close()
    assert not folder.exists()
    with held("leveldb", folder):
        DataStreamer.open(path).close()  # it has another file open
        with held("writer", path), pytest.raises(StreamInUse):
            DataStreamer.open(path)
    with (
        DataStreamer.open(path),
        (folder / "LOCK").open("r+b") as file,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


# --- forked and executed processes ------------------------------------------------------------------------

FORK = """
import os, sys, time
from sluice.datastream.errors import CommitFailed
from sluice.datastream.file.streamer import DataStreamer
streamer = DataStreamer.open(sys.argv[1])
streamer.start_atomic_op()
streamer.add_stream_entry(1, b"y")
streamer.commit_atomic_op(flush=False)
pid = os.fork()
if pid == 0:
    read = streamer.get_entry(0).data
    streamer.start_atomic_op()
    streamer.add_stream_entry(1, b"z")
    try:
        streamer.commit_atomic_op(flush=False)
    except CommitFailed as error:
        os.write(1, f"{read} {error}\\n".encode())  # a line at once: two processes write
    time.sleep(60)
os.write(1, f"{pid}\\n".encode())
time.sleep(60)
"""


def test_a_forked_process_neither_writes_nor_keeps_the_locks(path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", FORK, str(path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    lines = sorted((parent.stdout.readline(), parent.stdout.readline()), key=str.isdigit)
    child_pid = int(next(line for line in lines if line.strip().isdigit()))
    said = next(line for line in lines if not line.strip().isdigit())
    try:
        assert "b'x'" in said
        assert "commit failed at step" in said
        assert "the stream is in use" in opened_elsewhere(path)
        parent.kill()
        parent.wait(timeout=60)
        os.kill(child_pid, 0)  # it lives
        assert opened_elsewhere(path) == ""
        with DataStreamer.open(path) as streamer:
            assert [entry.data for entry in streamer.read_entries(0)] == [b"x", b"y"]
    finally:
        os.kill(child_pid, signal.SIGKILL)
        parent.kill()
        parent.communicate(timeout=60)


def test_locks_are_given_back_also_where_a_copy_of_the_descriptor_is_left(path: Path) -> None:
    """As between fork and exec of a process that another thread starts."""
    first, second = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    copy = os.dup(first)
    try:
        lock_file(first, shared=False)
        with pytest.raises(BlockingIOError):
            lock_file(second, shared=True)
        assert holder_of(second) == "this process"
        unlock_file(first)
        lock_file(second, shared=False)
    finally:
        for fd in (first, second, copy):
            os.close(fd)


def test_a_process_that_is_executed_has_no_lock(path: Path) -> None:
    streamer = DataStreamer.open(path)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    streamer.close()
    assert opened_elsewhere(path) == ""
    child.communicate(b"\n", timeout=60)


def test_a_commit_after_all_of_this(path: Path) -> None:
    """A refused opener's close drops no lock of the owner."""
    with DataStreamer.open(path) as streamer:
        for _ in range(2):
            with pytest.raises(StreamInUse):
                DataStreamer.open(path)
        assert "the stream is in use" in opened_elsewhere(path)
        commit(streamer, (1, b"y"))
