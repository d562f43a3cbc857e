"""Tests of `gateway.limits`: each limit is public and has a reason.

Other tests cover what happens beyond a limit.
"""

from __future__ import annotations

import ast
import inspect

from hypothesis import given
from hypothesis import strategies as st

from sluice.datastream.file.operation import OPERATION_GROUP_BYTES_MAX, OperationGroup
from sluice.datastream.layout import DATA_SIZE_MAX, ENTRY_HEAD_SIZE, HEADER_PAGE_SIZE, PAGE_SIZE, Committed
from sluice.gateway import limits
from sluice.gateway.settings.kinds import Size
from sluice.gateway.settings.table import SETTINGS


def test_every_limit_is_public_and_says_why() -> None:
    body = ast.parse(inspect.getsource(limits)).body
    names, reasons = [], []
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                reasons.append(node.target.id)
    assert names == reasons
    assert set(names) == set(limits.__all__)


def test_every_limit_is_a_positive_number() -> None:
    for name in limits.__all__:
        assert getattr(limits, name) > 0, name


def test_the_largest_group_of_blocks_is_one_that_the_data_streamer_takes() -> None:
    """The stream must accept the largest block behind others, and items that each need a page.

    Otherwise every publisher gets PERSISTENCE_FAILED and sends the same block for ever.
    """
    (kind,) = (row.kind for row in SETTINGS if row.name == "publish.max_block_bytes")
    assert isinstance(kind, Size)
    largest_block_bytes = kind.most + limits.BLOCK_ITEMS_MAX * ENTRY_HEAD_SIZE
    # The entries of two successive pages would not fit on one.
    with_padding_bytes = 2 * (limits.COMMIT_GROUP_BYTES_MAX + largest_block_bytes) + PAGE_SIZE
    assert with_padding_bytes <= OPERATION_GROUP_BYTES_MAX


@given(
    st.lists(st.sampled_from([0, 1, 30_000, PAGE_SIZE // 2, PAGE_SIZE // 2 - 17, DATA_SIZE_MAX]), max_size=40)
)
def test_padding_is_at_most_as_much_as_the_entries_and_a_page(sizes: list[int]) -> None:
    group, data = OperationGroup(Committed(HEADER_PAGE_SIZE, 0)), bytes(DATA_SIZE_MAX)
    group.begin()
    group.add_entries([1] * len(sizes), [data[:size] for size in sizes])
    assert len(group.buffer) <= 2 * sum(ENTRY_HEAD_SIZE + size for size in sizes) + PAGE_SIZE
