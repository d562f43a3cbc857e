"""Listings that are remembered, and streams over them, without Spark."""

from __future__ import annotations

import math
import os
import pickle
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")
pytest.importorskip("obstore", reason="needs the extra archive")

from sluice.gateway.archive.objects import ArchiveStore
from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.blocks.block_layouts import path_in
from sluice.publishers.errors import BlockListError, OptionError
from sluice.publishers.number_range import NumberRange, first_at
from sluice.publishers.spark import remote_store
from sluice.publishers.spark.block_files import (
    BlockFilesDataSource,
    BlockFilesReader,
    BlockFilesStreamReader,
    FileRange,
)
from sluice.publishers.spark.folders import BlockFolders
from sluice.publishers.spark.listed_places import ListedPlaces
from tests.gateway.archive.stores import BUCKET, FaultProxy, as_s3_user, s3_server, s3_store
from tests.nodes import make_blocks
from tests.publishers import field_files
from tests.publishers.stored import times_of

BLOCKS = make_blocks(12)


def put(folder: Path, *numbers: int) -> None:
    folder.mkdir(exist_ok=True)
    for number in numbers:
        write_block_file(folder / f"{number}.blk", BLOCKS[number])


def make_old(folder: Path) -> None:
    """A change just before a listing counts as one after it: some disks count 2 s."""
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (time.time() - 60,) * 2)


def listed(folder: Path, numbers: NumberRange | None = None) -> ListedPlaces:
    return ListedPlaces(BlockFolders([str(folder)]), numbers or NumberRange())


def stream_of(folder: Path, **options: object) -> BlockFilesStreamReader:
    source = BlockFilesDataSource(
        {"path": str(folder), **{name: str(value) for name, value in options.items()}}
    )
    return source.streamReader(source.schema())


def batches_of(reader: BlockFilesStreamReader, offset: dict[str, Any]) -> list[list[int]]:
    """Run all batches that are there; return the numbers of each."""
    batches = []
    while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        parts = reader.partitions(offset, end)
        sent, parts = pickle.loads(pickle.dumps((reader, list(parts))))
        rows = [row for part in parts for batch in sent.read(part) for row in batch.to_pylist()]
        batches.append([row["block_number"] for row in rows])
        offset = end
    return batches


# --- listings -----------------------------------------------------------------------------------------------


def test_what_is_listed_is_not_listed_again(tmp_path: Path) -> None:
    chain = tmp_path / "chain"
    put(chain, 0, 1, 2, 3, 6)
    make_old(chain)
    places = listed(chain)
    assert places.first() == 0
    assert [places.end_of_run(number) for number in (0, 1, 3)] == [4, 4, 4]
    assert [place.number for place in places.between(1, 3)] == [1, 2]
    assert places.count == 1
    assert places.end_of_run(4) == 4  # a disk that has not changed
    assert (places.count, places.known_end()) == (1, 7)
    later = places.next_one(4)
    assert later is not None
    assert later.number == 6
    put(chain, 4, 5)
    assert places.end_of_run(4) == 7
    assert places.count == 2
    assert [place.number for place in places.between(2, 6)] == [2, 3, 4, 5]  # listed for itself: a retry
    assert places.after_all() == 7
    assert places.next_one(7) is None


def test_wanted_numbers_bound_all_of_it(tmp_path: Path) -> None:
    put(tmp_path, *range(8))
    places = listed(tmp_path, NumberRange(2, 5))
    assert (places.first(), places.end_of_run(2), places.after_all()) == (2, 5, 5)


def test_more_places_than_are_remembered(tmp_path: Path) -> None:
    put(tmp_path, *range(10))
    places = ListedPlaces(BlockFolders([str(tmp_path)]), NumberRange(), places_max=4)
    ends, number = [], 0
    while (end := places.end_of_run(number)) > number:
        assert [place.number for place in places.between(number, end)] == list(range(number, end))
        ends.append(end)
        number = end
    assert ends == [4, 8, 10]
    assert places.after_all() == 10


def test_nothing_is_there(tmp_path: Path) -> None:
    places = listed(tmp_path)
    assert (places.first(), places.end_of_run(0), places.after_all(), places.next_one(0)) == (
        None,
        0,
        0,
        None,
    )
    with pytest.raises(BlockListError, match="No such file"):
        listed(tmp_path / "nowhere").first()


# --- object stores ------------------------------------------------------------------------------------------


@dataclass
class Bucket:
    """A real S3 server behind a proxy."""

    proxy: FaultProxy
    objects: ArchiveStore
    places: ListedPlaces

    def put(self, *names: str) -> None:
        for name in names:
            number = int(name.rsplit("/", 1)[-1].split(".")[0])
            assert self.objects.put_new(name, BLOCKS[number].to_bytes())
        self.listings()

    def listings(self) -> list[bool]:
        """Return for each listing so far whether it began behind a name; forget them."""
        asked = [line for line in self.proxy.requests if "list-type=2" in line and "max-keys=1&" not in line]
        self.proxy.requests.clear()
        return ["start-after=" in line for line in asked]


@contextmanager
def bucket(*names: str) -> Iterator[Bucket]:
    """Yield a bucket with some blocks, which was listed and waits long before it is listed whole again."""
    remote_store._connect.cache_clear()
    remote_store._objects.cache_clear()
    with ExitStack() as stack:
        stack.enter_context(as_s3_user())
        port = stack.enter_context(s3_server())
        proxy = stack.enter_context(FaultProxy(port))
        endpoint = f"http://127.0.0.1:{proxy.port}"
        stack.enter_context(mock.patch.dict(os.environ, AWS_ENDPOINT_URL=endpoint))
        places = ListedPlaces(BlockFolders([f"s3://{BUCKET}/chain"]), NumberRange())
        found = Bucket(proxy, s3_store(port, "chain"), places)
        found.put(*names)
        assert places.end_of_run(0) == len(names)
        assert found.listings() == [False]
        places._whole_at = math.inf  # as if listing had taken long
        yield found


def names_of(*numbers: int) -> list[str]:
    return [path_in("recent", number, "blk") for number in numbers]


def test_a_bucket_is_listed_on_from_the_last_block() -> None:
    with bucket(*names_of(0, 1, 2)) as found:
        places = found.places
        assert places.end_of_run(3) == 3
        found.put(*names_of(3, 4, 6))
        assert (places.end_of_run(3), places.known_end()) == (5, 7)
        assert [place.number for place in places.between(3, 5)] == [3, 4]
        assert found.listings() == [True]
        found.put(*names_of(5))
        assert places.end_of_run(5) == 7
        assert found.listings() == [True]
        assert (places.count, places.whole_count) == (4, 1)
        assert places.after_all() == 7  # what is there now is asked of all of it
        assert found.listings() == [False]


def test_names_that_are_not_in_order_are_all_listed() -> None:
    with bucket(*(f"{number}.blk" for number in range(11))) as found:
        found.put("11.blk")
        assert found.places.end_of_run(11) == 12
        assert found.listings() == [False]


def test_a_store_that_does_not_begin_where_it_is_asked_to_gives_the_same() -> None:
    with bucket(*names_of(0, 1, 2)) as found:
        found.proxy.fault = "from_start"
        found.put(*names_of(3))
        assert found.places.end_of_run(3) == 4
        assert found.listings() == [True]


def test_a_bucket_that_only_one_library_can_read_is_listed_whole() -> None:
    with bucket(*names_of(0, 1, 2)) as found:
        found.put(*names_of(3))
        found.proxy.fault, found.proxy.only = "403", b"start-after="
        assert found.places.end_of_run(3) == 4
        assert found.listings() == [True, False]
        found.put(*names_of(4))
        found.places._whole_at = math.inf
        assert found.places.end_of_run(4) == 5
        assert found.listings() == [False]


# --- streams ------------------------------------------------------------------------------------------------


def test_all_batches_of_a_query_take_one_listing(tmp_path: Path) -> None:
    chain = tmp_path / "chain"
    put(chain, *range(12))
    make_old(chain)
    reader = stream_of(chain, max_blocks_per_trigger=2)
    offset = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    assert batches_of(reader, offset) == [[n, n + 1] for n in range(0, 12, 2)]
    assert reader._listed.count == 1
    assert reader.reportLatestOffset() == {"next": 12}


def test_blocks_that_a_block_node_puts_into_a_zip_between_two_batches(tmp_path: Path) -> None:
    chain = tmp_path / "chain"
    put(chain, *range(10))
    make_old(chain)
    reader = stream_of(chain, max_blocks_per_trigger=5)
    first = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    field_files.in_zip(chain / "0.zip", BLOCKS[:10])
    for number in range(10):
        (chain / f"{number}.blk").unlink()
    assert batches_of(reader, first) == [[5, 6, 7, 8, 9]]
    (part, *_) = reader.partitions({"next": 0}, first)
    assert isinstance(part, FileRange)
    assert all(place.entry >= 0 for place in part.places)


def test_data_that_is_lost_may_be_passed_over(tmp_path: Path) -> None:
    chain = tmp_path / "chain"
    put(chain, 2, 3, 6, 7, 9)
    make_old(chain)
    reader = stream_of(chain, max_blocks_per_trigger=4, fail_on_data_loss=False)
    reader.prepareForTriggerAvailableNow()
    assert batches_of(reader, reader.initialOffset()) == [[2, 3], [6, 7], [9]]
    strict = stream_of(chain, max_blocks_per_trigger=4)
    strict.prepareForTriggerAvailableNow()
    with pytest.raises(BlockListError, match=r"blocks 4 to 5 are missing \(before 6\.blk\)"):
        batches_of(strict, strict.initialOffset())


def test_a_batch_is_bounded_in_bytes(tmp_path: Path) -> None:
    chain = tmp_path / "chain"
    put(chain, *range(6))
    sizes = [(chain / f"{number}.blk").stat().st_size for number in range(6)]
    reader = stream_of(chain, max_bytes_per_trigger=sizes[0] + sizes[1] + sizes[2])
    found = batches_of(reader, reader.initialOffset())
    assert [number for batch in found for number in batch] == list(range(6))
    assert all(sum(sizes[n] for n in batch) <= sum(sizes[:3]) or len(batch) == 1 for batch in found)
    assert len(found) > 1
    one_by_one = stream_of(chain, max_bytes_per_trigger=1)
    assert batches_of(one_by_one, one_by_one.initialOffset()) == [[n] for n in range(6)]


# --- times --------------------------------------------------------------------------------------------------


def test_blocks_between_two_times(tmp_path: Path) -> None:
    chain = tmp_path / "chain"
    put(chain, *range(12))
    times = times_of(BLOCKS)
    assert times == sorted(set(times))

    def numbers(**options: str) -> list[int]:
        source = BlockFilesDataSource({"path": str(chain), **options})
        reader = source.reader(source.schema())
        assert isinstance(reader, BlockFilesReader)
        parts = reader.partitions()
        assert all(isinstance(part, FileRange) for part in parts)
        return [place.number for part in parts for place in part.places]  # type: ignore[attr-defined]

    assert numbers(starting_timestamp=times[4]) == list(range(4, 12))
    assert numbers(ending_timestamp=times[4]) == list(range(4))
    assert numbers(starting_timestamp=times[2], ending_timestamp=times[4]) == [2, 3]
    assert numbers(starting_timestamp="2999-01-01T00:00:00Z") == []
    reader = stream_of(chain, starting_timestamp=times[7])
    assert batches_of(reader, reader.initialOffset()) == [[7, 8, 9, 10, 11]]
    late = stream_of(chain, starting_timestamp="2999-01-01T00:00:00+00:00")
    assert late.initialOffset() == {"next": 12}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"starting_timestamp": "yesterday"}, "'yesterday', expected a time with its zone"),
        ({"starting_timestamp": "2026-01-31T12:00:00"}, "expected a time with its zone"),
        (
            {"starting_timestamp": "2026-01-31T12:00:00Z", "from": "3"},
            "got from as well, expected one of the",
        ),
        ({"ending_timestamp": "2026-01-31T12:00:00Z", "to": "3"}, "got to as well, expected one of the two"),
    ],
)
def test_times_that_are_refused(tmp_path: Path, options: dict[str, str], said: str) -> None:
    source = BlockFilesDataSource({"path": str(tmp_path), **options})
    with pytest.raises(OptionError, match=said):
        source.schema()


def test_a_stream_has_no_ending_time(tmp_path: Path) -> None:
    with pytest.raises(
        OptionError, match="option 'ending_timestamp': got a time, expected nothing in a stream"
    ):
        stream_of(tmp_path, ending_timestamp="2026-01-31T12:00:00Z")


def test_former_names_of_the_limits(tmp_path: Path) -> None:
    with pytest.warns(FutureWarning, match="option 'blocks_per_batch' is now 'max_blocks_per_trigger'"):
        stream_of(tmp_path, blocks_per_batch=3)


def test_the_first_of_a_value() -> None:
    asked: list[int] = []

    def value_of(number: int) -> int:
        asked.append(number)
        return number * 10

    assert first_at(5, 1_000_005, 7_001, value_of) == 701
    assert len(asked) <= 21
    assert first_at(5, 10, 0, value_of) == 5
    assert first_at(5, 10, 1_000, value_of) == 10
    assert first_at(5, 5, 1, value_of) == 5
