"""docs/existing-network.md: its commands bring a network's stream to a node; its example compares them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from sluice.datastream.file.streamer import DataStreamer
from sluice.gateway.commands.cli import main
from sluice.gateway.key_files import create_private_key
from tests.datastream.serving import ServerThread
from tests.datastream.streams import sample_file
from tests.nodes import ledger_key
from tests.publishers.node_thread import node_thread
from tests.reference_data import needs_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[2] / "docs" / "existing-network.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.spark
@needs_stream
def test_from_file_and_server_to_a_node_and_back(
    spark_for_commands: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = create_private_key(tmp_path / "network.key")
    source = sample_file(tmp_path)
    with (
        DataStreamer.open(source) as streamer,
        ServerThread(streamer) as sequencer,
        node_thread(tmp_path / "node", ledger_keys=(ledger_key(key),), verification_mode="full") as node,
    ):
        common = ("--sign", tmp_path / "network.key", "--gateway", node.grpc_address, "--master", "local[2]")

        def publish(source: str, *words: object) -> None:
            """Run the command in this process: a JVM for each run costs more than all the rest."""
            given = ("--source", source, *words, "--group-by", "batch", *common)
            status = main(["publish", *map(str, given)])
            assert status == 0, capsys.readouterr().err

        publish(f"file:{source}", "--to", 9)
        assert node.store.last_number == 9
        publish(f"server:{sequencer.host}:{sequencer.port}", "--publishers", 2, "--json")
        assert node.store.last_number == 26
        capsys.readouterr()

        (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
        example = re.sub("^ {3}", "", example, flags=re.MULTILINE)
        for words, here in (
            ("127.0.0.1:40840", str(node.grpc_address)),
            ('"sequencer", 6900', f'"{sequencer.host}", {sequencer.port}'),
        ):
            assert words in example
            example = example.replace(words, here)
        names: dict[str, object] = {}
        exec(example, names)
        assert capsys.readouterr().out == "13617 entries are the same\n"
        assert names["spark"] is spark_for_commands
