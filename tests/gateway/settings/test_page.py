"""Tests of `gateway.settings.page`: the page in the repository is the one that the table makes."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.settings.page import markdown
from gateway.settings.table import SETTINGS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "settings.md"


def test_the_page_is_what_the_table_makes() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown(), (
        "run: python -m gateway.settings.page > docs/settings.md"
    )


def test_each_setting_has_a_row_of_six_cells_in_its_section() -> None:
    """A bar within a cell, as in `full|hash`, must not begin another."""
    section, rows = "", []
    for line in markdown().splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("| `"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            assert len(cells) == 6, line
            rows.append((section, cells[0].strip("`"), cells[2].strip("`")))
    expected = [(setting.section, setting.name, setting.environment) for setting in SETTINGS]
    assert sorted(rows) == sorted(expected)
