"""What cannot be published is refused in words that say what to do, and nothing after it is stored.

`publish` of DataFrames that are no chain is in `tests/publishers/spark/test_publishing.py`; here is the rest:
what is written without `publish`, streaming queries, a gateway that does not take the blocks, and TLS.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra spark")

from pyspark.errors import PySparkException

from sluice.gateway.blocks.block import Block
from sluice.gateway.node.node import Node
from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.blocks.maker import key_of_seed
from sluice.publishers.errors import SparkJobFailed
from sluice.publishers.spark import publish
from sluice.publishers.spark.failures import reason_in
from sluice.publishers.spark.schema import BLOCK_SCHEMA
from tests.certificates import Authority
from tests.interop.sinking import wait_until, write_chain
from tests.nodes import ledger_key, make_blocks
from tests.publishers.fake_node import FakeNode, running
from tests.publishers.node_thread import node_thread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

BLOCKS = make_blocks(8)
DAMAGED = dataclasses.replace(BLOCKS[3], items=BLOCKS[3].items[:-2])
REMEDY = (
    "publish the DataFrame with sluice.publishers.spark.publish, which sorts it, or sort it by block_number"
)


def frame_of(spark: SparkSession, blocks: Sequence[Block]) -> DataFrame:
    rows = [(block.number, [bytearray(item) for item in block.items]) for block in blocks]
    return spark.createDataFrame(rows, BLOCK_SCHEMA).coalesce(1)


def refusal_of_write(frame: DataFrame, gateway: str, **options: Any) -> str:
    """Write without `publish`, and give the line that matters of what Spark says."""
    with pytest.raises(PySparkException) as caught:
        frame.write.format("blockstream").mode("append").options(gateways=gateway, **options).save()
    return reason_in(str(caught.value))


def test_rows_out_of_order_written_without_publish(spark: SparkSession) -> None:
    with running(FakeNode()) as node:
        frame = frame_of(spark, [BLOCKS[number] for number in (0, 1, 3, 2)])
        reason = "partition 0: block 2 is missing: block 3 came after block 1"
        assert refusal_of_write(frame, node.address) == f"{reason}; {REMEDY}"
    assert [block.number for block in node.received] in ([], [0], [0, 1])


def test_wrong_columns_are_named_before_any_task(spark: SparkSession) -> None:
    for schema, reason in (
        ("number BIGINT, items ARRAY<BINARY>", "column 'block_number': got no such column, expected BIGINT"),
        ("block_number BIGINT, items BINARY", "column 'items': got binary, expected ARRAY<BINARY>"),
        (
            "block_number STRING, items ARRAY<BINARY>",
            "column 'block_number': got string, expected BIGINT",
        ),
    ):
        frame = spark.createDataFrame([], schema)
        assert refusal_of_write(frame, "127.0.0.1:1") == reason


def test_an_empty_frame_is_published_by_doing_nothing(spark: SparkSession) -> None:
    with running(FakeNode()) as node:
        frame_of(spark, []).write.format("blockstream").mode("append").option("gateways", node.address).save()
    assert node.stream_count == 0


@pytest.mark.slow
def test_a_gateway_of_other_keys(spark: SparkSession, tmp_path: Path) -> None:
    """It answers BAD_BLOCK_PROOF: the job says what that may come from, and nothing is stored."""
    with node_thread(tmp_path, ledger_keys=(ledger_key(key_of_seed(8)),)) as node:
        with pytest.raises(SparkJobFailed) as caught:
            publish(frame_of(spark, BLOCKS), str(node.grpc_address), race=2, publisher_id="team")
        assert node.store.last_number is None
    assert caught.value.reason == (
        "publisher team.1: block 0 was refused 3 times with BAD_BLOCK_PROOF: its proof is not of the "
        "gateway's ledger keys, or it does not continue the gateway's chain; the gateway's log says which"
    )


def test_a_block_that_is_signed_by_another_key_stops_the_job_at_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Root hash and links are right, so that only the gateway can see it; what came before is stored."""
    forged = make_blocks(8, key=key_of_seed(8))[5]
    assert forged.items[:-1] == BLOCKS[5].items[:-1]
    with node_thread(tmp_path) as node:
        with pytest.raises(SparkJobFailed, match="block 5 was refused 3 times with BAD_BLOCK_PROOF: "):
            publish(frame_of(spark, [*BLOCKS[:5], forged, *BLOCKS[6:]]), str(node.grpc_address))
        wait_until(lambda: node.store.last_number == 4, "the blocks before it")


@pytest.mark.slow
def test_a_streaming_query_ends_at_a_damaged_block(spark: SparkSession, tmp_path: Path) -> None:
    chain = write_chain(tmp_path / "chain", [*BLOCKS[:3], *BLOCKS[4:]])
    write_block_file(chain / "3.blk", DAMAGED)
    with node_thread(tmp_path / "node") as node:
        blocks = spark.readStream.format("blockfiles").option("max_blocks_per_trigger", 2).load(str(chain))
        query = (
            blocks.writeStream.format("blockstream")
            .option("gateways", str(node.grpc_address))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        with pytest.raises(PySparkException, match="block 3 is bad") as caught:
            query.awaitTermination()
        assert node.store.last_number in (1, 2)
    reason = reason_in(str(caught.value))
    assert reason.startswith("block 3 is bad; neither it nor later blocks were sent: ")


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[tuple[Authority, Node]]:
    """A gateway that wants a certificate of its authority from everybody."""
    authority = Authority(tmp_path)
    server = authority.issue("node")
    with node_thread(
        tmp_path / "node",
        grpc_tls_certificate=server.certificate,
        grpc_tls_key=server.key,
        grpc_tls_client_ca=authority.path,
    ) as node:
        yield authority, node


@pytest.mark.slow
def test_both_sides_show_certificates(spark: SparkSession, secured: tuple[Authority, Node]) -> None:
    authority, node = secured
    gateway, alice = str(node.grpc_address), authority.issue("alice")
    frame, ca = frame_of(spark, BLOCKS), str(authority.path)

    def refusal(**options: Any) -> str:
        with pytest.raises(SparkJobFailed) as caught:
            publish(frame, gateway, deadline_seconds=3, **options)
        return caught.value.reason

    late = f"publisher spark: block 0 was not acknowledged within 3 s (cannot connect to {gateway}: "
    for options in ({}, {"tls_ca": ca}):
        assert refusal(**options).startswith(late)
    assert refusal(tls="true").startswith(f"{late}UNAVAILABLE: the server's certificate is not accepted: ")
    none = str(authority.folder / "none.key")
    assert refusal(tls_ca=ca, tls_certificate=str(alice.certificate), tls_key=none) == (
        f"key file: got {none} (No such file or directory), expected a file that can be read"
    )
    assert node.store.last_number is None

    publish(
        frame.repartition(2),
        gateway,
        shards=2,  # the second asks the gateway how far it is, over TLS as well
        race=2,
        tls_ca=ca,
        tls_certificate=str(alice.certificate),
        tls_key=str(alice.key),
        tls_server_name="localhost",
        deadline_seconds=240,
    )
    assert node.store.last_number == 7
    back = spark.read.format("blockstream").options(
        gateways=gateway, tls_ca=ca, tls_certificate=str(alice.certificate), tls_key=str(alice.key)
    )
    assert back.load().count() == 8
