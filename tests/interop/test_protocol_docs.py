"""What docs/protocol.md says of the code: each rule is where the page says, and so is its test.

Its tables are compared with those of the code in tests/gateway/race/test_tables.py.
"""

from __future__ import annotations

import re

from tests.interop.doc_tables import found, functions_in, names_in, page, rows_of, section_of

SECTION = section_of(page("protocol.md"), "From the rules to the code and the tests")
ROWS = rows_of(SECTION)


def test_each_rule_is_where_the_page_says() -> None:
    assert sorted({int(row[0]) for row in ROWS}) == list(range(1, 11))
    for _, _, where, _ in ROWS:
        assert names_in(where)
        for name in names_in(where):
            found(name)


def test_each_test_is_there() -> None:
    named = re.findall(r"`(test_\w+)`", SECTION)
    assert len(named) > len(ROWS)
    assert set(named) <= functions_in("interop/rules")
