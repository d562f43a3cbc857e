"""The page about operations as a node serves it: every heading has its anchor, and nothing becomes markup."""

from __future__ import annotations

import re
from pathlib import Path

import gateway
from gateway.status.operations_page import render_operations

PAGE = Path(__file__).resolve().parents[3] / "docs" / "operations.md"


def test_headings_have_anchors_and_text_stays_as_it_is() -> None:
    page = render_operations(
        "# Title\n\nSome <b>text</b>.\n\n## A part\n\n```\n# no heading\n```\n### nor this\n"
    )
    assert '<h1 id="title">Title</h1>' in page
    assert '<h2 id="a-part">A part</h2>' in page
    assert "<pre>Some &lt;b&gt;text&lt;/b&gt;.</pre>" in page
    assert "<pre>```\n# no heading\n```\n### nor this</pre>" in page


def test_every_link_inside_the_page_leads_to_an_anchor() -> None:
    text = PAGE.read_text("utf-8")
    anchors = set(re.findall(r'id="([^"]+)"', render_operations(text)))
    links = set(re.findall(r"\(#([a-z-]+)\)", text))
    assert links
    assert links <= anchors


def test_the_page_comes_with_the_code() -> None:
    shipped = Path(gateway.__file__).with_name("operations.md")
    assert shipped.read_text("utf-8") == PAGE.read_text("utf-8")
