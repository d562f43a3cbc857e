"""A node that is killed while it archives and gives pages up: every entry stays here or there."""

from __future__ import annotations

import hashlib
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

from sluice.datastream import DataStreamer
from sluice.gateway.archive.objects import open_store
from sluice.gateway.archive.reader import ArchiveReader
from tests.gateway.archive.chains import ARCHIVED_PAGES, fill

MIB = 1 << 20
KILLS = 4


def digest_of(folder: Path, place: Path) -> str:
    """Return the digest of all entries, from the file and the archive."""
    digest = hashlib.sha256()
    with DataStreamer.open(folder / "datastream.bin") as streamer:
        streamer.remote.cache_pages_max = 16
        reader = ArchiveReader(open_store(f"file://{place}"), streamer)
        for entry in streamer.read_entries(0):
            digest.update(entry.data)
        reader.close()
    return digest.hexdigest()


def archive_and_kill(source: Path, tmp_path: Path, kills: int, seed: int) -> int:
    """Kill the archiving of a chain again and again; return how often it was under way."""
    folder, place = tmp_path / "node", tmp_path / "archive"
    shutil.copytree(source, folder)
    expected, killed, chance = digest_of(folder, place), 0, random.Random(seed)
    while killed < kills:
        arguments = (str(folder), str(place), str(64 * MIB))
        command = [sys.executable, "-m", "tests.gateway.archive.chains", *arguments]
        with subprocess.Popen(command) as process:
            time.sleep(chance.uniform(0.6, 2.5))
            if process.poll() is None:
                process.kill()
                killed += 1
            else:
                assert process.returncode == 0
        assert digest_of(folder, place) == expected
        names = sorted(path.name for path in (place / "segments").glob("*.seg"))
        assert len({name[:12] for name in names}) == len(names)
        with DataStreamer.open(folder / "datastream.bin") as streamer:
            if streamer.remote.archived_pages == ARCHIVED_PAGES and streamer.remote.end:
                shutil.rmtree(folder)
                shutil.rmtree(place)
                shutil.copytree(source, folder)
    return killed


def test_a_kill_at_any_moment_loses_nothing(filled: Path, tmp_path: Path) -> None:
    assert archive_and_kill(filled, tmp_path, KILLS, 7) == KILLS


if __name__ == "__main__":
    place = Path(sys.argv[1])
    fill(place / "source")
    killed = archive_and_kill(place / "source", place, int(sys.argv[2]), int(sys.argv[3]))
    sys.stdout.write(f"{killed} kills\n")
