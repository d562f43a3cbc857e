"""Blocks of a DataFrame verified by Spark, and the row checks without it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sluice.gateway.blocks.trusted_keys import TrustedKeys
from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.errors import OptionError, SchemaError
from sluice.publishers.spark import verify_blocks
from sluice.publishers.spark.verify import VERDICT_COLUMNS, _checked_row
from sluice.publishers.verify.verify_run import make_verifier
from tests.gateway.blocks.proofs import real
from tests.gateway.blocks.proofs.tss_chain import TssChain
from tests.gateway.blocks.proofs.tss_network import TssNetwork
from tests.nodes import ledger_key, make_blocks
from tests.publishers.verify.test_verdicts import in_layouts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BLOCKS = make_blocks(5)
KIND = "Ed25519 block proof"
VERIFIER = make_verifier(TrustedKeys.parse([ledger_key()]), "full", "auto", 0)


def rows_of(frame: DataFrame) -> list[tuple[int | None, str, str, str | None]]:
    """The rows of a result, by number."""
    assert tuple(frame.columns) == VERDICT_COLUMNS
    return sorted(
        ((row[0], row[1], row[2], row[3]) for row in frame.collect()),
        key=lambda row: -1 if row[0] is None else row[0],
    )


@pytest.mark.parametrize(
    ("number", "items", "corrupt", "reason"),
    [
        (None, BLOCKS[0].items, None, "cannot parse: row: got no number, expected block_number and items"),
        (1, None, None, "cannot parse: row: got no items, expected block_number and items"),
        (
            1,
            None,
            "1.blk: truncated",
            "cannot parse: row: got 1.blk: truncated, expected block_number and items",
        ),
        (1, [None], None, "cannot parse: row: got an item is null, expected block_number and items"),
        (1, [], None, "missing item: block: got no items, expected a block header first"),
        (1, BLOCKS[2].items, None, "cannot parse: block header: number: got 2, expected 1, the row's"),
    ],
)
def test_rows_that_hold_no_block(
    number: int | None, items: list[bytes] | None, corrupt: str | None, reason: str
) -> None:
    row = _checked_row(VERIFIER, {"block_number": number, "items": items, "_corrupt": corrupt})
    assert row == {
        "block_number": number,
        "verdict": "refused",
        "kind": "none",
        "reason": reason,
        "root_hash": None,
        "other_root_hash": None,
        "previous_root_hash": None,
    }


def test_a_row_that_holds_one() -> None:
    row = _checked_row(VERIFIER, {"block_number": 2, "items": list(BLOCKS[2].items)})
    assert (row["verdict"], row["kind"], row["reason"]) == ("accepted", KIND, None)
    following = _checked_row(VERIFIER, {"block_number": 3, "items": list(BLOCKS[3].items)})
    assert following["previous_root_hash"] == row["root_hash"]


@pytest.mark.spark
def test_a_frame_with_every_kind_of_trouble(spark: SparkSession, tmp_path: Path) -> None:
    stranger = make_blocks(4, seed=8)[3]  # signed with the same key, of another chain
    for block in (*BLOCKS[:3], stranger):
        write_block_file(tmp_path / f"{block.number}.blk", block)
    tampered = BLOCKS[1].to_bytes()
    (tmp_path / "1.blk").write_bytes(tampered[:-1] + bytes([tampered[-1] ^ 1]))
    (tmp_path / "4.blk").write_bytes(b"nothing")
    blocks = spark.read.format("blockfiles").option("mode", "permissive").load(str(tmp_path))
    found = rows_of(verify_blocks(blocks, ledger_keys=[ledger_key()]))
    assert [(number, verdict) for number, verdict, _, _ in found] == [
        (0, "accepted"),
        (1, "refused"),
        (2, "accepted"),
        (3, "refused"),
        (4, "refused"),
    ]
    reasons = [reason for _, _, _, reason in found]
    assert reasons[0] is reasons[2] is None
    assert str(reasons[1]).startswith(f"bad proof: {KIND}: got ")
    assert str(reasons[3]).startswith("bad root hash: block footer field 1 (previous_block_root_hash): got ")
    assert str(reasons[4]).startswith(f"cannot parse: row: got {tmp_path / '4.blk'}: not a block: ")
    with pytest.raises(SchemaError):
        verify_blocks(blocks.drop("items"))


@pytest.mark.spark
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mode": "none"}, "option 'mode': got 'none', expected full or hash"),
        ({"root_layout": "8"}, "option 'root_layout': got '8', expected 'auto', 8 or 16"),
        ({"rsa_threshold": "2"}, "option 'rsa_threshold': got '2', expected a whole number from 0 on"),
        ({"rsa_threshold": -1}, "option 'rsa_threshold': got -1, expected a whole number from 0 on"),
    ],
)
def test_options_that_there_are_not(spark: SparkSession, options: dict[str, Any], text: str) -> None:
    frame = spark.createDataFrame([], "block_number BIGINT, items ARRAY<BINARY>")
    with pytest.raises(OptionError) as caught:
        verify_blocks(frame, [ledger_key()], **options)
    assert str(caught.value) == text


@pytest.mark.spark
def test_block_0_is_found_beside_rows_that_only_have_its_number(spark: SparkSession) -> None:
    chain = TssChain(TssNetwork((1, 1))).blocks(2)
    rows: list[tuple[int, list[bytes | None]]] = [(0, [None]), (0, [b"\x0a\x00"])]
    rows += [(block.number, list(block.items)) for block in chain]
    frame = spark.createDataFrame(rows, "block_number BIGINT, items ARRAY<BINARY>").coalesce(1)
    found = rows_of(verify_blocks(frame))
    assert sorted((number or 0, verdict) for number, verdict, _, _ in found) == [
        (0, "accepted"),
        (0, "refused"),
        (0, "refused"),
        (1, "accepted"),
    ]


@pytest.mark.spark
def test_a_root_that_no_proof_signs_may_be_that_of_the_other_layout(spark: SparkSession) -> None:
    rows = [(block.number, list(block.items)) for block in in_layouts((16, 8, 16, 16), minor=77)]
    rows[2] = (2, list(in_layouts((16, 16, 16), minor=77)[2].items))  # follows another block 1
    frame = spark.createDataFrame(rows, "block_number BIGINT, items ARRAY<BINARY>").coalesce(1)
    found = rows_of(verify_blocks(frame, mode="hash"))
    assert [verdict for _, verdict, _, _ in found] == ["accepted", "accepted", "accepted", "refused"]


@pytest.mark.spark
@pytest.mark.parametrize("turned", [False, True])
def test_a_number_that_is_there_twice_and_numbers_that_no_block_can_have(
    spark: SparkSession, turned: bool
) -> None:
    """Whatever the order of the rows: block 3 follows one of the two, whether the other is good or not."""
    stranger = make_blocks(4, seed=8)
    blocks = [*BLOCKS[:3], stranger[2], BLOCKS[3], stranger[3], BLOCKS[0], *make_blocks(6, seed=9)[5:]]
    rows: list[tuple[int | None, list[bytes]]] = [(block.number, list(block.items)) for block in blocks]
    nowhere = [None, -(1 << 63), (1 << 63) - 1, -1, 2, 4]
    rows += [(number, list(BLOCKS[1].items)) for number in nowhere]
    frame = spark.createDataFrame(rows[::-1] if turned else rows, "block_number BIGINT, items ARRAY<BINARY>")
    found = rows_of(verify_blocks(frame.coalesce(1), ledger_keys=[ledger_key()]))
    accepted = [number for number, verdict, _, _ in found if verdict == "accepted"]
    # Of the two blocks 2 one does not follow block 1; both blocks 3 follow a block 2 that is good in itself.
    assert accepted == [0, 0, 1, 2, 3, 3, 5]
    [link] = [reason for *_, reason in found if str(reason).startswith("bad root hash: block footer")]
    expected = VERIFIER.hasher()
    expected.add(BLOCKS[1].items)
    assert str(link).endswith(f", expected {expected.finish().root_hash.hex()}")


@pytest.mark.spark
@real.needs_real_blocks
def test_real_blocks_with_what_block_0_publishes(spark: SparkSession) -> None:
    blocks = spark.read.format("blockfiles").load(str(real.FOLDER / "layout-8-chain"))
    found = rows_of(verify_blocks(blocks))
    assert [(number, verdict, kind) for number, verdict, kind, _ in found] == [
        (number, "accepted", "TSS block proof" if number in (0, 4) else "state proof") for number in range(5)
    ]
    last = spark.read.format("blockfiles").option("from", 4).load(str(real.FOLDER / "layout-8-chain"))
    without_0 = rows_of(verify_blocks(last))
    assert str(without_0[0][3]).startswith("missing verification data: TSS block proof: got no ledger data")
