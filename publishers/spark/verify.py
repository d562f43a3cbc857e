"""Verifies the blocks of a DataFrame in parallel, such as a whole archive on a cluster.

The task of a block checks its structure, root hash and proofs. Then the footer's previous_block_root_hash
must be the root hash of an accepted block of the number before, if the frame has one. Only `sluice verify`
and the node, which see blocks in order, check the second link, the tree over all blocks. A streaming frame
gets no link checks.

The driver reads the files that keys name. If the keys trust what block 0 publishes, it searches the frame for
block 0: for an archive without it name a tss:FILE.
Source: docs/spec/block-hash.md section 4; docs/spec/proofs.md section 2; docs/spec/tss.md section 1.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from sluice.gateway.blocks.block import Block
from sluice.gateway.blocks.errors import BlockRefused
from sluice.gateway.blocks.merkle import EMPTY_HASH
from sluice.gateway.blocks.refusal import Refusal, RefusalKind
from sluice.gateway.blocks.root_hash import RootLayout
from sluice.gateway.blocks.trusted_keys import TrustedKeys, VerificationMode
from sluice.gateway.blocks.verification import BlockVerifier
from sluice.publishers.errors import OptionError
from sluice.publishers.spark.batches import row_batches
from sluice.publishers.spark.options import check_root_layout
from sluice.publishers.spark.schema import BLOCK_NUMBER, CORRUPT, ITEMS, check_schema
from sluice.publishers.verify.verdicts import CheckedBlock, check_block, kinds_text
from sluice.publishers.verify.verify_run import make_verifier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["VERDICT_COLUMNS", "verify_blocks"]

VERDICT_COLUMNS: Final = (BLOCK_NUMBER, "verdict", "kind", "reason")

_CHECKED_COLUMNS: Final[Mapping[str, pa.DataType]] = {
    BLOCK_NUMBER: pa.int64(),
    "verdict": pa.string(),
    "kind": pa.string(),
    "reason": pa.string(),
    "root_hash": pa.string(),
    "other_root_hash": pa.string(),
    "previous_root_hash": pa.string(),
}
_CHECKED_SCHEMA: Final = (
    f"{BLOCK_NUMBER} BIGINT, verdict STRING, kind STRING, reason STRING, root_hash STRING, "
    "other_root_hash STRING, previous_root_hash STRING"
)
_BLOCK_0_ROWS_MAX: Final = 8
"""Rows of number 0 to try for the ledger data: some may be garbage."""
_VERDICT_ROWS: Final = 4096
"""Verdicts in one Arrow batch."""


def verify_blocks(
    frame: DataFrame,
    ledger_keys: Iterable[str] = (),
    *,
    mode: VerificationMode = "full",
    root_layout: RootLayout = "auto",
    rsa_threshold: int = 0,
) -> DataFrame:
    """Check the blocks of a DataFrame: structure, root hashes, proofs and links.

    Args:
        frame: `block_number BIGINT, items ARRAY<BINARY>`, batch or streaming; also `_corrupt`, if it has
            that.
        ledger_keys: as `--ledger-key` of `sluice serve`; without any, trust what block 0 publishes.
        mode: `full`, or `hash`, which does not check proofs.
        root_layout: leaves of the top hash tree, 8 or 16; `auto` goes by the version in the header.
        rsa_threshold: how many nodes must have signed a record file; 0: more than a third.

    Returns:
        A row for each block, in no order: block_number BIGINT; verdict STRING, `accepted` or `refused`; kind
        STRING, the kinds of its proofs, `none` if none parses; reason STRING, why it is refused, beginning
        with the kind of the refusal, or null.

    Raises:
        LedgerKeyError: a key cannot be used.
    """
    check_schema(frame.schema)
    _check_options(mode, root_layout, rsa_threshold)
    verifier = make_verifier(TrustedKeys.parse(ledger_keys), mode, root_layout, rsa_threshold)
    if verifier.awaits_block_0 and not frame.isStreaming:
        _believe_block_0(verifier, frame)
    wanted = [name for name in (BLOCK_NUMBER, ITEMS, CORRUPT) if name in frame.columns]
    checked = frame.select(*wanted).mapInArrow(_checker(verifier), _CHECKED_SCHEMA)
    if not frame.isStreaming:
        checked = _with_links(checked)
    return checked.select(*VERDICT_COLUMNS)


def _check_options(mode: str, root_layout: str | int, rsa_threshold: int) -> None:
    if mode not in ("full", "hash"):
        raise OptionError("mode", repr(mode), "full or hash")
    check_root_layout(root_layout)
    if not isinstance(rsa_threshold, int) or rsa_threshold < 0:
        raise OptionError("rsa_threshold", repr(rsa_threshold), "a whole number from 0 on")


def _believe_block_0(verifier: BlockVerifier, frame: DataFrame) -> None:
    """Take the ledger data from block 0, if it is there and verifies with them."""
    # Spark cannot push this filter into the source, where it would stay for the next query.
    is_block_0 = f"CAST({BLOCK_NUMBER} AS STRING) = '0' AND {ITEMS} IS NOT NULL"
    rows_0 = frame.filter(is_block_0).select(ITEMS)
    # More rows only if the first is bad: that may read all of the frame.
    for count in (1, _BLOCK_0_ROWS_MAX):
        for row in rows_0.take(count):
            items = [None if item is None else bytes(item) for item in row[0]]
            checked = _check(verifier, 0, items, None)
            if checked.published is not None:
                verifier.believe(checked.published)
                return


def _checker(
    verifier: BlockVerifier,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (_checked_row(verifier, row) for batch in batches for row in batch.to_pylist())
        return row_batches(rows, _CHECKED_COLUMNS, _VERDICT_ROWS)

    return check


def _checked_row(verifier: BlockVerifier, row: Mapping[str, Any]) -> dict[str, str | int | None]:
    number, items = row[BLOCK_NUMBER], row[ITEMS]
    checked = _check(verifier, number, items, row.get(CORRUPT))
    summary, refusal = checked.summary, checked.refusal
    return {
        BLOCK_NUMBER: number,
        "verdict": "accepted" if refusal is None else "refused",
        "kind": kinds_text(checked.proof_kinds),
        "reason": None if refusal is None else str(refusal),
        "root_hash": None if summary is None else summary.root_hash.hex(),
        "other_root_hash": _hex(None if summary is None else summary.root_hash_other_layout),
        "previous_root_hash": None if summary is None else summary.previous_root_hash.hex(),
    }


def _check(
    verifier: BlockVerifier, number: int | None, items: list[bytes | None] | None, corrupt: str | None
) -> CheckedBlock:
    if number is None or items is None or None in items:
        got = corrupt or (
            "no number" if number is None else "no items" if items is None else "an item is null"
        )
        return _refused(number, "row", got, "block_number and items")
    try:
        block = Block.from_items(item for item in items if item is not None)
    except BlockRefused as refused:
        return CheckedBlock(number, refusal=refused.refusal)
    if block.number != number:
        return _refused(number, "block header: number", str(block.number), f"{number}, the row's")
    return check_block(verifier, block)


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()


def _refused(number: int | None, what: str, got: str, expected: str) -> CheckedBlock:
    refusal = Refusal(RefusalKind.CANNOT_PARSE, what, got, expected)
    return CheckedBlock(-1 if number is None else number, refusal=refusal)


def _with_links(checked: DataFrame) -> DataFrame:
    """Refuse the blocks whose footer names another root hash than that of the block before."""
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    # Only accepted blocks count: a refused one may claim any number.
    is_accepted = F.col("verdict") == "accepted"
    accepted_number = F.when(is_accepted, F.col(BLOCK_NUMBER))
    # One task sees all rows, some 300 bytes each without items. The window has all rows of the number before,
    # as there may be several.
    just_before = Window.orderBy(accepted_number).rangeBetween(-1, -1)
    linked = checked.withColumn("_roots", F.sort_array(F.collect_set("root_hash").over(just_before)))
    # If no proof signs the root hash of the block before, the footer may name it in the other layout.
    linked = linked.withColumn("_other_roots", F.collect_set("other_root_hash").over(just_before))
    is_broken = (
        is_accepted
        & (F.size("_roots") > 0)
        & ~F.array_contains("_roots", F.col("previous_root_hash"))
        & ~F.array_contains("_other_roots", F.col("previous_root_hash"))
    )
    # Block 0 has no block before it; its footer must say so.
    starts_badly = (
        is_accepted & (F.col(BLOCK_NUMBER) == 0) & (F.col("previous_root_hash") != F.lit(EMPTY_HASH.hex()))
    )
    expected = F.when(starts_badly, F.lit(EMPTY_HASH.hex())).otherwise(F.array_join("_roots", " or "))
    reason = F.concat(
        F.lit(f"{RefusalKind.BAD_ROOT_HASH.value}: block footer field 1 (previous_block_root_hash): got "),
        F.col("previous_root_hash"),
        F.lit(", expected "),
        expected,
    )
    is_refused = F.coalesce(is_broken, F.lit(False)) | starts_badly
    return linked.withColumn("reason", F.when(is_refused, reason).otherwise(F.col("reason"))).withColumn(
        "verdict", F.when(is_refused, F.lit("refused")).otherwise(F.col("verdict"))
    )
