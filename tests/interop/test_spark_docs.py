"""docs/spark.md: its first example runs, and its tables name every option of the sink."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.blocks.block_layouts import BlockLayout, default_format, path_in, zip_of
from sluice.publishers.spark.option_types import (
    BlockFilesSinkOptions,
    BlockSinkOptions,
    SparkSinkOptions,
    names_of,
)
from tests.nodes import make_blocks
from tests.publishers.node_thread import node_thread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()


@pytest.mark.parametrize(
    ("title", "known"),
    [
        ("Options of the sink", names_of(BlockSinkOptions) - names_of(SparkSinkOptions)),
        ("Write block files", names_of(BlockFilesSinkOptions) - names_of(SparkSinkOptions) | {"path"}),
    ],
)
def test_every_option_of_a_sink_is_in_the_table(title: str, known: frozenset[str]) -> None:
    table = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert named == known


def test_the_layouts_in_the_table_are_those_that_are_written() -> None:
    table = PAGE.partition("## Block files")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", table, re.MULTILINE))
    assert list(rows) == list(get_args(BlockLayout))
    for layout in get_args(BlockLayout):
        names = [zip_of(1_234_567)[0]] if layout == "historic" else []
        names.append(path_in(layout, 1_234_567, default_format(layout)).rpartition("staging/")[2])
        if layout == "historic":
            names[1] = names[1].rpartition("/")[2]
        assert all(name in rows[layout] for name in names), layout


@pytest.mark.spark
def test_the_first_example_runs(spark: SparkSession, tmp_path: Path) -> None:
    example = PAGE.partition("```python\n")[2].partition("```")[0]
    chain = tmp_path / "chain"
    chain.mkdir()
    for block in make_blocks(5):
        write_block_file(chain / f"{block.number}.blk", block)
    with node_thread(tmp_path / "node") as node:
        for words, here in (("chain/", str(chain)), ("127.0.0.1:40840", str(node.grpc_address))):
            assert words in example
            example = example.replace(words, here)
        names: dict[str, object] = {}
        exec(example, names)
        assert node.store.last_number == 4
    assert names["spark"] is spark
