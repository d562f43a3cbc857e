"""The tree of all block hashes over real block stores: each path against a naive tree, written here."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from sluice.datastream.check.check import check_stream
from sluice.datastream.errors import PageNotLocal
from sluice.gateway.archive.archive import ArchiveOptions, Archives
from sluice.gateway.archive.objects import StoreOptions
from sluice.gateway.archive.reader import ArchiveReader
from sluice.gateway.blocks.errors import LayoutError, NotProvable
from sluice.gateway.blocks.items import field_item
from sluice.gateway.commands.check import command as check_command
from sluice.gateway.store.block_hash_tree import GROUP_BLOCKS, GROUPS_AT_ONCE, BlockHashTree
from sluice.gateway.store.block_store import BlockStore, Layout, VerifiedBlock
from tests.gateway.archive.chains import archive, fill
from tests.gateway.block_makers import footer_item, header_item, proof_item, summary_of
from tests.gateway.store.test_block_store import commit as commit_some
from tests.gateway.store.test_block_store import logged
from tests.nodes import until

COUNT = 300
GROUP = 4
"""Levels of 4, 16, 64 and 256 blocks are reached."""
GROUPS = (COUNT - 1) // GROUP
LEVELS_MAX = 4
LOCAL_BYTES = 64 << 20
TRIES_MAX = 10
"""One call notes 64 blocks; so many calls note more than a chain here has."""

Path_ = list[tuple[bool, bytes]]


# --- the oracle ---------------------------------------------------------------------------------------------


def node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha384(b"\x02" + left + right).digest()


def middle_of(count: int) -> int:
    """Return the largest power of two below a count."""
    power = 1
    while power * 2 < count:
        power *= 2
    return power


def naive_root(leaves: Sequence[bytes]) -> bytes:
    return naive_root_of(tuple(leaves))


@lru_cache(maxsize=10_000)
def naive_root_of(leaves: tuple[bytes, ...]) -> bytes:
    """Remember the subtrees: those of one chain are the same in all its paths."""
    if not leaves:
        return hashlib.sha384(b"\x00").digest()
    if len(leaves) == 1:
        return leaves[0]
    middle = middle_of(len(leaves))
    return node(naive_root_of(leaves[:middle]), naive_root_of(leaves[middle:]))


def naive_path(index: int, leaves: Sequence[bytes]) -> Path_:
    """Return the siblings from a leaf up: whether one is the left child, and its hash."""
    if len(leaves) == 1:
        return []
    middle = middle_of(len(leaves))
    if index < middle:
        return [*naive_path(index, leaves[:middle]), (False, naive_root(leaves[middle:]))]
    return [*naive_path(index - middle, leaves[middle:]), (True, naive_root(leaves[:middle]))]


def test_the_oracle_is_that_of_the_specification() -> None:
    """The figure with seven leaves in docs/spec/block-hash.md section 1.1."""
    leaves = [bytes([place]) * 48 for place in range(7)]
    first = node(node(leaves[0], leaves[1]), node(leaves[2], leaves[3]))
    last = node(node(leaves[4], leaves[5]), leaves[6])
    assert naive_root(leaves) == node(first, last)
    assert naive_path(6, leaves) == [(True, node(leaves[4], leaves[5])), (True, first)]
    assert naive_path(1, leaves) == [
        (True, leaves[0]),
        (False, node(leaves[2], leaves[3])),
        (False, last),
    ]


# --- chains and stores --------------------------------------------------------------------------------------


def grown(blocks: Sequence[VerifiedBlock], count: int, salt: int = 0) -> list[VerifiedBlock]:
    """Return a chain of so many blocks that begins with these; another salt gives other further ones."""
    chain = list(blocks)
    roots = [block.root_hash for block in chain]
    for number in range(len(chain), count):
        previous = roots[-1] if roots else naive_root(())
        items = [header_item(number), field_item(4, b"%d of chain %d" % (number, salt))]
        items += [footer_item(previous, naive_root(roots)), proof_item(number)]
        roots.append(summary_of(items).root_hash)
        chain.append(VerifiedBlock(number, items, roots[-1]))
    return chain


@cache
def chain_of(salt: int = 0) -> list[VerifiedBlock]:
    return grown([], COUNT, salt)


def roots_of(blocks: Sequence[VerifiedBlock]) -> list[bytes]:
    return [block.root_hash for block in blocks]


def commit(store: BlockStore, blocks: Sequence[VerifiedBlock]) -> None:
    """Commit blocks, or none."""
    if blocks:
        commit_some(store, blocks)


def key_of(level: int, index: int) -> bytes:
    """The key of docs/spec/stream-file.md section 3."""
    return b"sluice/block-hash-group/" + bytes([level]) + index.to_bytes(8, "big")


def noted(store: BlockStore) -> list[tuple[int, int]]:
    """Return level and index of all notes."""
    notes = store.streamer.notes
    places = [(level, index) for level in range(1, LEVELS_MAX + 2) for index in range(COUNT)]
    return [place for place in places if notes.get(key_of(*place)) is not None]


@contextmanager
def opened(folder: Path, layout: Layout | None = None) -> Iterator[BlockStore]:
    store = BlockStore.open(folder, layout=layout)
    try:
        yield store
    finally:
        store.close()


@pytest.fixture
def tmp_path(memory_path: Path) -> Path:
    """A folder in memory: no test here asks what a disk keeps."""
    return memory_path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BlockStore]:
    """A store of the whole chain, without notes."""
    with opened(tmp_path / "node") as store:
        commit(store, chain_of())
        yield store


def grow_all(tree: BlockHashTree) -> None:
    while tree.grow():
        pass


def path_of(tree: BlockHashTree, number: int, leaves: Sequence[bytes]) -> Path_:
    """Return a path among so many blocks; ask again while root hashes are read."""
    for _ in range(TRIES_MAX):
        try:
            return [(one.is_left, one.hash) for one in tree.path(number, len(leaves), naive_root(leaves))]
        except NotProvable as error:
            if "ask again later" not in str(error):
                raise
    raise AssertionError(f"block {number} among {len(leaves)}: not after {TRIES_MAX} tries")


def assert_all_paths(tree: BlockHashTree, leaves: Sequence[bytes], every: int = 1) -> None:
    for number in range(0, len(leaves), every):
        assert path_of(tree, number, leaves) == naive_path(number, leaves), (number, len(leaves))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the blocks whose root hashes are read, as they are read."""
    numbers: list[int] = []
    root_hash_at = BlockStore.root_hash_at

    def counted(store: BlockStore, number: int) -> bytes | None:
        numbers.append(number)
        return root_hash_at(store, number)

    monkeypatch.setattr(BlockStore, "root_hash_at", counted)
    return numbers


# --- paths --------------------------------------------------------------------------------------------------


SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 192]
LARGE_SIZES = [208, 255, 256, 257, 268, 299]


def test_the_path_of_every_block_is_that_of_the_naive_tree(store: BlockStore) -> None:
    """Groups that are exactly full and not, of all levels."""
    tree = BlockHashTree(store, group_blocks=GROUP)
    roots = roots_of(chain_of())
    for size in SIZES:
        assert_all_paths(tree, roots[:size])
    for size in LARGE_SIZES:
        assert_all_paths(tree, roots[:size], every=3)
        assert path_of(tree, size - 1, roots[:size]) == naive_path(size - 1, roots[:size])


def test_the_groups_of_a_node_have_the_same_paths(store: BlockStore) -> None:
    tree = BlockHashTree(store)
    roots = roots_of(chain_of())
    for size in (GROUP_BLOCKS - 1, GROUP_BLOCKS, GROUP_BLOCKS + 1, COUNT - 1):
        assert_all_paths(tree, roots[:size], every=17)
    assert noted(store) == [(1, 0)]


def test_paths_are_right_at_each_length_of_a_growing_chain(tmp_path: Path) -> None:
    """A block's own links are asked for as soon as it is the last."""
    roots = roots_of(chain_of())
    with opened(tmp_path) as store:
        tree = BlockHashTree(store, group_blocks=GROUP)
        for block in chain_of()[:70]:
            commit(store, [block])
            leaves = roots[: block.number]
            for number in {0, block.number // 2, block.number - 1} if leaves else ():
                assert path_of(tree, number, leaves) == naive_path(number, leaves)


def test_the_native_layout_has_the_same_paths(tmp_path: Path) -> None:
    with opened(tmp_path, "native") as store:
        commit(store, chain_of())
        assert_all_paths(BlockHashTree(store, group_blocks=GROUP), roots_of(chain_of())[:275], every=11)
    with opened(tmp_path) as store:
        assert store.pair is not None
        assert len(noted(store)) > GROUPS // 2
        assert_all_paths(BlockHashTree(store, group_blocks=GROUP), roots_of(chain_of())[:275], every=11)


def test_a_path_reads_few_root_hashes(store: BlockStore, asked: list[int]) -> None:
    """Those of its own group and of the last one, which is not full, and no others."""
    tree = BlockHashTree(store, group_blocks=GROUP)
    grow_all(tree)
    roots = roots_of(chain_of())
    asked.clear()
    tree.path(133, COUNT - 1, naive_root(roots[: COUNT - 1]))
    assert set(asked) <= {*range(132, 136), *range(296, 299)}


# --- growing ------------------------------------------------------------------------------------------------


def test_a_call_notes_some_groups_and_says_whether_there_are_more(
    store: BlockStore, asked: list[int]
) -> None:
    tree = BlockHashTree(store, group_blocks=GROUP)
    groups: list[int] = []
    answers: list[bool] = []
    while not answers or answers[-1]:
        asked.clear()
        answers.append(tree.grow())
        groups.append(sum(level == 1 for level, _ in noted(store)))
        assert len(asked) <= GROUPS_AT_ONCE * GROUP
    assert groups == [16, 32, 48, 64, GROUPS]
    assert answers == [True] * 4 + [False]
    asked.clear()
    assert not tree.grow()
    assert asked == []
    assert noted(store) == [
        *((1, index) for index in range(74)),
        *((2, index) for index in range(18)),
        *((3, index) for index in range(4)),
        (4, 0),
    ]


def test_notes_are_what_the_specification_says(store: BlockStore) -> None:
    grow_all(BlockHashTree(store, group_blocks=GROUP))
    roots = roots_of(chain_of())
    for level, index in noted(store):
        leaves = roots[index * GROUP**level : (index + 1) * GROUP**level]
        assert store.streamer.notes.get(key_of(level, index)) == naive_root(leaves) + leaves[-1]


def test_a_group_is_noted_once_a_later_block_is_there(tmp_path: Path) -> None:
    """Until then the layout of its last root hash is not settled."""
    with opened(tmp_path) as store:
        tree = BlockHashTree(store, group_blocks=GROUP)
        assert not tree.grow()
        for count, groups in ((GROUP - 1, 0), (GROUP, 0), (GROUP + 1, 1), (2 * GROUP, 1), (2 * GROUP + 1, 2)):
            commit(store, chain_of()[(store.last_number or -1) + 1 : count])
            assert not tree.grow()
            assert noted(store) == [(1, index) for index in range(groups)], count


def test_a_path_notes_groups_itself_and_says_what_it_still_lacks(store: BlockStore) -> None:
    roots = roots_of(chain_of())
    tree = BlockHashTree(store, group_blocks=GROUP)
    first = GROUPS_AT_ONCE * GROUP
    leaves = roots[: first + 2]
    got = [(one.is_left, one.hash) for one in tree.path(1, len(leaves), naive_root(leaves))]
    assert got == naive_path(1, leaves)
    assert len(noted(store)) == 16 + 4 + 1
    expected_root = naive_root(roots[: COUNT - 1])
    for calls in (2, 3, 4):
        with pytest.raises(NotProvable) as caught:
            tree.path(0, COUNT - 1, expected_root)
        assert str(caught.value) == (
            f"tree of all block hashes before block {COUNT - 1}: "
            f"got the root hashes before block {calls * first}, and others are being read, "
            "expected all: ask again later"
        )
    assert len(tree.path(0, COUNT - 1, expected_root)) == len(naive_path(0, roots[: COUNT - 1]))


def test_another_root_than_the_footers_is_no_path(store: BlockStore) -> None:
    tree = BlockHashTree(store, group_blocks=GROUP)
    roots = roots_of(chain_of())
    right, other = naive_root(roots[:9]), naive_root(roots[:10])
    with pytest.raises(LayoutError) as caught:
        tree.path(3, 9, other)
    assert str(caught.value) == (
        f"tree of all block hashes before block 9: got {right.hex()}, "
        f"expected {other.hex()}, as its footer says"
    )
    assert_all_paths(tree, roots[:9])


def test_a_chain_that_begins_in_the_middle_has_no_paths(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        commit(store, chain_of()[5:40])
        tree = BlockHashTree(store, group_blocks=GROUP)
        assert not tree.reaches_block_0
        assert not tree.grow()
        assert noted(store) == []
        for number, later in ((5, 6), (5, 30), (0, 30)):
            with pytest.raises(NotProvable) as caught:
                tree.path(number, later, naive_root(roots_of(chain_of())[:later]))
            assert str(caught.value) == (
                f"tree of all block hashes before block {later}: "
                "got a chain that begins with block 5, expected one that begins with block 0"
            )


def is_noted(store: BlockStore, group: int) -> bool:
    """Whether a group has a note."""
    return (1, group) in noted(store)


async def test_a_running_tree_notes_an_old_chain_and_each_group_that_follows(tmp_path: Path) -> None:
    roots = roots_of(chain_of())
    with opened(tmp_path) as store:
        commit(store, chain_of()[:150])
        tree = BlockHashTree(store, group_blocks=GROUP)
        task = asyncio.create_task(tree.run())
        await until(lambda: (1, 149 // GROUP - 1) in noted(store))
        for block in chain_of()[150:]:
            commit(store, [block])
            if block.number % 40 == 0:
                await until(partial(is_noted, store, block.number // GROUP - 1))
        await until(lambda: (1, GROUPS - 1) in noted(store))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert store._callbacks == ()
        assert_all_paths(tree, roots[: COUNT - 1], every=13)


async def test_an_empty_node_begins_with_its_first_group(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        tree = BlockHashTree(store, group_blocks=GROUP)
        task = asyncio.create_task(tree.run())
        await until(lambda: store._callbacks)
        commit(store, chain_of()[:9])
        await until(lambda: noted(store) == [(1, 0), (1, 1)])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


# --- other starts -------------------------------------------------------------------------------------------


def test_notes_outlast_the_process(tmp_path: Path, asked: list[int]) -> None:
    roots = roots_of(chain_of())
    with opened(tmp_path) as store:
        commit(store, chain_of())
        grow_all(BlockHashTree(store, group_blocks=GROUP))
        before = noted(store)
    with opened(tmp_path) as store:
        assert noted(store) == before
        tree = BlockHashTree(store, group_blocks=GROUP)
        asked.clear()
        assert not tree.grow()
        assert asked == [GROUPS * GROUP - 1]  # compared with the last note
        assert_all_paths(tree, roots[: COUNT - 1], every=7)


def test_notes_that_a_kill_took_are_made_again(tmp_path: Path) -> None:
    """Notes wait in memory for the next batch. A copy of the folder is what a kill leaves."""
    with opened(tmp_path / "node") as store:
        commit(store, chain_of()[:150])
        grow_all(BlockHashTree(store, group_blocks=GROUP))
    with opened(tmp_path / "node") as store:
        commit(store, chain_of()[150:])
        grow_all(BlockHashTree(store, group_blocks=GROUP))
        shutil.copytree(tmp_path / "node", tmp_path / "killed")
        complete = noted(store)
    with opened(tmp_path / "killed") as store:
        assert len(noted(store)) < len(complete)
        tree = BlockHashTree(store, group_blocks=GROUP)
        grow_all(tree)
        assert noted(store) == complete
        assert_all_paths(tree, roots_of(chain_of())[: COUNT - 1], every=5)


@pytest.mark.parametrize(
    "kept",
    [
        6,
        65,
        *(pytest.param(kept, marks=pytest.mark.slow) for kept in (1, 4, 16, 63, 64, 130, 255, 256, 257, 290)),
    ],
)
@pytest.mark.parametrize(
    "regrown", [pytest.param(0, marks=pytest.mark.slow), 1, pytest.param(30, marks=pytest.mark.slow), 300]
)
def test_a_chain_that_was_cut_and_has_grown_again_has_its_own_paths(
    tmp_path: Path, kept: int, regrown: int
) -> None:
    """Some of its notes are of the blocks that were dropped."""
    with opened(tmp_path) as store:
        commit(store, chain_of())
        grow_all(BlockHashTree(store, group_blocks=GROUP))
    with opened(tmp_path) as store:
        store.truncate(kept - 1)
    count = min(COUNT, kept + regrown)
    blocks = grown(chain_of()[:kept], count, salt=1)
    with opened(tmp_path) as store:
        commit(store, blocks[kept:])
        tree = BlockHashTree(store, group_blocks=GROUP)
        assert_all_paths(tree, roots_of(blocks)[: count - 1], every=7)
    with opened(tmp_path) as store:
        tree = BlockHashTree(store, group_blocks=GROUP)
        assert_all_paths(tree, roots_of(blocks)[: count - 1], every=19)


def test_a_node_that_runs_while_a_cut_chain_grows_again_uses_no_old_note(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        commit(store, chain_of())
        grow_all(BlockHashTree(store, group_blocks=GROUP))
    with opened(tmp_path) as store:
        store.truncate(69)
    blocks = grown(chain_of()[:70], 290, salt=2)
    with opened(tmp_path) as store:
        tree = BlockHashTree(store, group_blocks=GROUP)
        assert_all_paths(tree, roots_of(blocks)[:69], every=9)
        for begin in range(70, 290, 22):
            commit(store, blocks[begin : begin + 22])
            assert_all_paths(tree, roots_of(blocks)[: begin + 21], every=31)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(0, marks=pytest.mark.slow),
        pytest.param(1, marks=pytest.mark.slow),
        pytest.param(2, marks=pytest.mark.slow),
        3,
    ],
)
def test_whatever_happens_to_a_folder_its_paths_are_those_of_its_chain(tmp_path: Path, seed: int) -> None:
    """Blocks, cuts, starts and kills in any order."""
    chance = Random(seed)
    blocks: list[VerifiedBlock] = []
    folder = tmp_path / "0"
    for step in range(14):
        with opened(folder) as store:
            tree = BlockHashTree(store, group_blocks=GROUP)
            for _ in range(chance.randint(1, 3)):
                more = grown(blocks, min(COUNT, len(blocks) + chance.randint(1, 60)), salt=step)
                commit(store, more[len(blocks) :])
                blocks = more
                if chance.random() < 0.6:
                    tree.grow()
                for _ in range(12 if len(blocks) > 1 else 0):
                    later = chance.randint(1, len(blocks) - 1)
                    number = chance.randrange(later)
                    leaves = roots_of(blocks[:later])
                    assert path_of(tree, number, leaves) == naive_path(number, leaves)
            if chance.random() < 0.3:
                folder = Path(shutil.copytree(folder, tmp_path / str(step + 1)))  # as a kill leaves it
        if chance.random() < 0.6:
            blocks = blocks[: chance.randint(1, len(blocks))]
            with opened(folder) as store:
                store.truncate(len(blocks) - 1)


# --- notes that are lost or damaged -------------------------------------------------------------------------


def spoiled(tree: BlockHashTree, sizes: Sequence[int]) -> int:
    """Ask for paths; return how many there are not. The others are right."""
    roots, missing = roots_of(chain_of()), 0
    for size in sizes:
        leaves = roots[:size]
        for number in range(0, size, 11):
            try:
                got = path_of(tree, number, leaves)
            except (NotProvable, LayoutError):
                missing += 1
            else:
                assert got == naive_path(number, leaves)
    return missing


Loss = Callable[[bytes], bytes | None]
LOSSES: dict[str, Loss] = {
    "lost": lambda _: None,
    "cut": lambda note: note[:-1],
    "other bits in the root": lambda note: bytes([note[0] ^ 1]) + note[1:],
    "another last block": lambda note: note[:-1] + bytes([note[-1] ^ 1]),
}


@pytest.mark.parametrize("how", LOSSES)
@pytest.mark.parametrize(
    "place",
    [
        (1, 33),
        (4, 0),
        *(pytest.param(place, marks=pytest.mark.slow) for place in ((1, 0), (1, 73), (2, 0), (2, 9), (3, 1))),
    ],
)
def test_a_spoiled_note_gives_no_wrong_path(tmp_path: Path, place: tuple[int, int], how: str) -> None:
    """Neither in the process that made it, nor after the next start; and a check of the folder is content."""
    sizes = (17, 64, 150, 256, 299)
    with opened(tmp_path) as store:
        commit(store, chain_of())
        tree = BlockHashTree(store, group_blocks=GROUP)
        grow_all(tree)
        note = store.streamer.notes.get(key_of(*place))
        assert note is not None
        store.streamer.notes.put(key_of(*place), LOSSES[how](note))
        spoiled(tree, sizes)
    result = CliRunner().invoke(check_command, [str(tmp_path)])
    assert (result.exit_code, result.output.splitlines()[0].rpartition(": ")[2]) == (0, "sound")
    assert check_stream(tmp_path / "datastream.bin").findings == []
    with opened(tmp_path) as store:
        spoiled(BlockHashTree(store, group_blocks=GROUP), sizes)


def test_a_chain_whose_notes_are_all_lost_makes_them_again(store: BlockStore) -> None:
    grow_all(BlockHashTree(store, group_blocks=GROUP))
    before = noted(store)
    for place in before:
        store.streamer.notes.put(key_of(*place), None)
    assert noted(store) == []
    tree = BlockHashTree(store, group_blocks=GROUP)
    assert_all_paths(tree, roots_of(chain_of())[: COUNT - 1], every=7)
    assert noted(store) == before


def test_the_last_notes_may_be_lost(store: BlockStore) -> None:
    """As by a power failure: LevelDB keeps what it was given before them."""
    grow_all(BlockHashTree(store, group_blocks=GROUP))
    before = noted(store)
    for level, index in before:
        if (index + 1) * GROUP**level > 100:
            store.streamer.notes.put(key_of(level, index), None)
    tree = BlockHashTree(store, group_blocks=GROUP)
    assert_all_paths(tree, roots_of(chain_of())[: COUNT - 1], every=7)
    assert noted(store) == before


def test_a_check_finds_nothing_in_a_folder_with_notes(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        commit(store, chain_of())
        grow_all(BlockHashTree(store, group_blocks=GROUP))
    found = check_stream(tmp_path / "datastream.bin")
    assert (found.findings, found.is_sound) == ([], True)
    for arguments in ([], ["--repair"], []):
        result = CliRunner().invoke(check_command, [*arguments, str(tmp_path)])
        assert result.exit_code == 0, result.output
        assert result.output.endswith(f"{COUNT} blocks: sound\n")
    with opened(tmp_path) as store:
        assert_all_paths(BlockHashTree(store, group_blocks=GROUP), roots_of(chain_of())[:299], every=23)


# --- archives -----------------------------------------------------------------------------------------------


@contextmanager
def with_reader(store: BlockStore, url: str) -> Iterator[ArchiveReader]:
    options = ArchiveOptions(url, StoreOptions(), 0, 0, 1 << 30)
    reader = Archives(options, store.streamers, None, lambda: False).streams[-1].reader
    try:
        yield reader
    finally:
        reader.close()


@pytest.mark.slow
def test_an_archived_chain_is_noted_by_the_indexes_of_its_segments(tmp_path: Path) -> None:
    """No page is fetched: the root hashes are in the indexes. Of the last blocks, which are not archived yet,
    they are in the pages here.
    """
    folder, place = tmp_path / "node", tmp_path / "archive"
    fill(folder)
    with opened(folder) as store:
        last = store.last_number
        assert last is not None
        roots = [root for number in range(last + 1) if (root := store.root_hash_at(number)) is not None]
    assert len(roots) == last + 1
    leaves = roots[:last]
    archive(folder, place, LOCAL_BYTES)
    with opened(folder) as store, with_reader(store, f"file://{place}") as reader:
        remote = store.streamer.remote
        assert remote.end > 120
        alone = BlockHashTree(store, group_blocks=GROUP)
        assert not alone.grow()
        with pytest.raises(NotProvable, match="others are being read"):
            BlockHashTree(store, reader.archived_roots, GROUP).path(3, last, naive_root(leaves))
        assert noted(store) == []
        calls: list[int] = []

        def archived_roots(from_entry: int) -> Iterator[tuple[int, bytes]]:
            calls.append(from_entry)
            return reader.archived_roots(from_entry)

        tree = BlockHashTree(store, archived_roots, GROUP)
        while tree.grow():
            pass
        assert len([one for one in noted(store) if one[0] == 1]) == last // GROUP
        assert calls == [0]  # the archive is read on from call to call
        assert (remote.cached_count, reader.bytes_read) == (0, 0)
        for level, index in noted(store):
            of_group = roots[index * GROUP**level : (index + 1) * GROUP**level]
            assert store.streamer.notes.get(key_of(level, index)) == naive_root(of_group) + of_group[-1]
        for number in (0, 77, 191, 192, last - 1):
            assert path_of(tree, number, leaves) == naive_path(number, leaves)
    with opened(folder) as store:  # without its archive
        tree = BlockHashTree(store, group_blocks=GROUP)
        assert not tree.grow()
        assert path_of(tree, last - 1, leaves) == naive_path(last - 1, leaves)
        with pytest.raises(PageNotLocal):
            tree.path(3, last, naive_root(leaves))


@pytest.mark.slow
async def test_an_archive_that_is_away_is_told_of_and_the_tree_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, place = tmp_path / "node", tmp_path / "archive"
    fill(folder)
    archive(folder, place, LOCAL_BYTES)
    (place / "segments").rename(tmp_path / "away")
    with opened(folder) as store, with_reader(store, f"file://{place}") as reader:
        tree = BlockHashTree(store, reader.archived_roots, GROUP)
        task = asyncio.create_task(tree.run())
        await until(lambda: logged(caplog, "block hashes cannot be read"))
        assert not task.done()
        assert noted(store) == []
        (tmp_path / "away").rename(place / "segments")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        grow_all(tree)
        assert len([one for one in noted(store) if one[0] == 1]) == (store.last_number or 0) // GROUP


@pytest.mark.parametrize("place", [(1, 3), (1, 40), (2, 1), (2, 16), (3, 0), (4, 0)])
def test_a_note_that_is_lost_is_made_again_after_a_start(store: BlockStore, place: tuple[int, int]) -> None:
    grow_all(BlockHashTree(store, group_blocks=GROUP))
    store.streamer.notes.put(key_of(*place), None)
    assert_all_paths(BlockHashTree(store, group_blocks=GROUP), roots_of(chain_of())[:299], every=13)
