"""Places as runs, and back."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.publishers.blocks.block_layouts import BlockLayout, default_format, member_name, path_in, zip_of
from sluice.publishers.blocks.block_places import BlockPlace
from sluice.publishers.blocks.place_runs import places_of, runs_of

LAYOUTS: tuple[BlockLayout, ...] = ("plain", "consensus", "recent", "historic", "bucket")


def files(layout: BlockLayout, numbers: range) -> list[BlockPlace]:
    ending = default_format(layout)
    return [BlockPlace(number, "/data/" + path_in(layout, number, ending)) for number in numbers]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("first", "count"), [(0, 3000), (995, 2010), (10**12 - 5, 10), (7, 1)])
def test_every_layout_has_few_runs(layout: BlockLayout, first: int, count: int) -> None:
    places = files(layout, range(first, first + count))
    runs = runs_of(places)
    assert list(places_of(runs)) == places
    folders = len({place.path.rpartition("/")[0] for place in places})
    assert len(runs) == folders
    assert len(pickle.dumps(runs)) < 400 * folders


def test_members_of_archives() -> None:
    places = []
    for first in (0, 10, 20):
        name, numbers = zip_of(first, 1)
        places += [
            BlockPlace(number, name, member_name(number, ".blk.zstd"), number - first, 100 + number, 5)
            for number in numbers
        ]
    runs = runs_of(places)
    assert list(places_of(runs)) == places
    assert [run.count for run in runs] == [10, 10, 10]
    backwards = [
        BlockPlace(place.number, "x.zip", place.member, 9 - place.number, 1, 5) for place in places[:10]
    ]
    assert list(places_of(runs_of(backwards))) == backwards


@given(
    st.lists(
        st.tuples(
            st.integers(0, 40),
            st.sampled_from(["a/", "b/", "", "/x/0000/0000/0000/0000/"]),
            st.sampled_from([0, 3, 19, 36]),
            st.sampled_from([".blk", ".blk.gz"]),
            st.booleans(),
        ),
        unique_by=lambda one: one[0],
    )
)
def test_any_places_come_back(drawn: list[tuple[int, str, int, str, bool]]) -> None:
    places = []
    for number, folder, width, ending, is_member in sorted(drawn):
        name = f"{folder}{number:0{width}}{ending}"
        places.append(
            BlockPlace(number, "z.zip", name, number % 7, number, 3)
            if is_member
            else BlockPlace(number, name)
        )
    assert list(places_of(runs_of(places))) == places
