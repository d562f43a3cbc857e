"""The opener on files that hypothesis mutates; `fuzz_opener.py` runs many more."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sluice.datastream.layout import HEADER_PAGE_SIZE, PAGE_SIZE
from tests.datastream.fuzz_opener import HOW, Mutation, check_case, main, template

_OFFSETS = st.one_of(
    st.integers(0, 60),
    st.integers(HEADER_PAGE_SIZE, HEADER_PAGE_SIZE + 500),
    st.integers(HEADER_PAGE_SIZE + PAGE_SIZE - 3000, HEADER_PAGE_SIZE + PAGE_SIZE + 3000),
    st.integers(0, HEADER_PAGE_SIZE + 3 * PAGE_SIZE),
)
MUTATIONS = st.lists(
    st.one_of(
        st.builds(Mutation, st.just("set"), _OFFSETS, st.binary(min_size=1, max_size=20)),
        st.builds(Mutation, st.just("cut"), _OFFSETS),
        st.builds(Mutation, st.just("extend"), st.just(0), st.sampled_from([b"x", bytes(PAGE_SIZE)])),
    ),
    min_size=1,
    max_size=4,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    template(folder)
    return folder


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(mutations=MUTATIONS, how=st.sampled_from(HOW))
@example(mutations=[Mutation("set", 38, (1 << 63).to_bytes(8, "big"))], how="index")
@example(mutations=[Mutation("cut", 0)], how="no index")
@example(mutations=[Mutation("set", 46, b"\xff" * 8)], how="read only")
def test_mutated_files(folder: Path, mutations: list[Mutation], how: str) -> None:
    check_case(folder, (folder / "s.bin").read_bytes(), mutations, how)


def test_the_long_run_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cases", "60"]) == 0
    assert capsys.readouterr().out.startswith("60 cases in ")
