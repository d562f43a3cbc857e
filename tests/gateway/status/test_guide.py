"""Tests of `gateway.status.guide`: every link that is served leads somewhere, and nothing becomes markup."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from sluice.gateway.status import guide
from sluice.gateway.status.findings import ADVICE, slug
from sluice.gateway.status.guide import PAGES, guide_page, render_guide
from tests.gateway.status.test_status_page import Page

DOCS = Path(__file__).resolve().parents[3] / "docs"
ADDRESSES = {"/operations" if name == "operations" else f"/guide/{name}": name for name in PAGES}


def anchors_of(name: str) -> set[str]:
    return set(re.findall(r'<h\d id="([^"]+)"', guide_page(name)))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_the_guide_comes_with_the_code_and_is_whole(name: str) -> None:
    shipped = Path(guide.__file__).parent / "pages" / f"{name}.md"
    assert shipped.read_text("utf-8") == (DOCS / f"{name}.md").read_text("utf-8")
    page = Page(guide_page(name))
    assert "script" not in page.tags
    levels = [int(tag[1]) for tag in page.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(below <= above + 1 for above, below in pairwise(levels))


def test_no_page_is_shipped_that_is_not_served() -> None:
    shipped = (Path(guide.__file__).parent / "pages").iterdir()
    assert {path.stem for path in shipped} == set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_to_a_page_and_an_anchor(name: str) -> None:
    links = re.findall(r'<a href="([^"]+)"', guide_page(name))
    assert len(links) > len(PAGES)
    for link in links:
        if link.startswith(("https://", "http://")):
            continue
        address, _, anchor = link.partition("#")
        assert address in {*ADDRESSES, "/", ""}, link
        if anchor:
            assert anchor in anchors_of(ADDRESSES.get(address, name)), link


def test_the_findings_lead_to_sections_of_the_guide() -> None:
    assert {slug(advice.section) for advice in ADVICE.values()} <= anchors_of("operations")


def test_markdown_becomes_html_and_html_text() -> None:
    html = render_guide(
        "# Title\n\nSome <b>text</b> & `<code>`.\n\n## A <part>\n\n### The end\n\n## The end\n\n"
        "| a | b |\n|---|---|\n| 1 | <script>alert(1)</script> |\n\n"
        "[in](#the-end) [page](archive.md#x) [guide](operations.md) [file](../README.md) "
        "[keys](spec/tss.md#keys) [spec/tss.md](spec/tss.md) "
        "[out](https://example.org/?a=1&b=2) [bad](javascript:alert(1)) [worse](data:text/html,x)\n"
    )
    page = Page(html)
    assert "script" not in page.tags
    for part in (
        '<h1 id="title">Title</h1>\n<p>Some &lt;b&gt;text&lt;/b&gt; &amp; <code>&lt;code&gt;</code>.</p>',
        '<h2 id="a-part">A &lt;part&gt;</h2>\n<h3 id="the-end">The end</h3>\n<h2 id="the-end-1">The end</h2>',
        "<div class=scroll tabindex=0><table>",
        "<td>&lt;script&gt;alert(1)&lt;/script&gt;</td>",
        '<a href="#the-end">in</a> <a href="/guide/archive#x">page</a> <a href="/operations">guide</a>',
        'file (<code>README.md</code>) keys (<code>docs/spec/tss.md</code>) spec/tss.md <a href="https://example.org/?a=1&amp;b=2">out</a>',
    ):
        assert part in html
    assert 'href="javascript' not in html
    assert 'href="data' not in html
    assert "<a>" not in html


def test_only_the_title_is_of_the_first_level() -> None:
    html = render_guide("# Title\n\n# Part\n\n## Section\n")
    assert '<h1 id="title">' in html
    assert '<h2 id="part">' in html
    assert '<h3 id="section">Section</h3>' in html
