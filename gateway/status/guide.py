"""The guide that a node serves: docs/operations.md at `/operations`, the pages around it at `/guide/NAME`.

Markdown in, HTML out, by markdown-it-py, which `rich` brings along. Links between the pages lead to the
served pages; a link to another file of the repository is text, with the file's name. HTML in the Markdown
is escaped.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluice.gateway.status.findings import slug
from sluice.gateway.status.status_page import document

if TYPE_CHECKING:
    from markdown_it.token import Token

__all__ = ["PAGES", "guide_page", "render_guide"]

_FOLDER: Final = Path(__file__).with_name("pages")
PAGES: Final = (
    *("operations", "archive", "connecting", "datastream", "existing-network", "glossary", "protocol"),
    *("settings", "subscribing", "verification"),
)
"""The pages of the guide."""
_LINK: Final = re.compile(r"([a-z-]+)\.md(#[^#]*)?")
_STYLE: Final = """
p,ul,ol,pre{max-width:58rem}nav{margin-bottom:.8rem}
h2{font-size:1.25rem}h3{font-size:1.05rem;margin:1.4rem 0 .4rem}
pre{overflow-x:auto;padding:.6rem;background:var(--card);border-radius:6px}
code{background:var(--card);padding:0 .2em}pre code{padding:0}
.scroll{overflow-x:auto}td,th{border-bottom:1px solid var(--line)}td{min-width:4.5rem;overflow-wrap:normal}
td:last-child{min-width:14rem}
:target{scroll-margin-top:.6rem;background:var(--note)}
""".strip()


@lru_cache(maxsize=len(PAGES))
def guide_page(name: str) -> str:
    """Return a page of the guide as an HTML document; this takes some 0.1 s at first.

    Args:
        name: one of `PAGES`.
    """
    return render_guide((_FOLDER / f"{name}.md").read_text("utf-8"))


def render_guide(markdown: str) -> str:
    """Return Markdown as an HTML document, with an anchor for each heading."""
    from markdown_it import MarkdownIt  # most nodes are never asked, and it takes 2 MB

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(markdown)
    has_parts = sum(token.type == "heading_open" and token.tag == "h1" for token in tokens) > 1
    title, anchors = "", set[str]()
    for place, token in enumerate(tokens):
        if token.type == "heading_open":
            heading = tokens[place + 1].content
            if title and has_parts:  # the title alone is of the first level
                token.tag = tokens[place + 2].tag = f"h{int(token.tag[1]) + 1}"
            title = title or heading
            token.attrSet("id", _anchor(heading, anchors))
        if token.children:
            token.children = list(_linked(token.children))
    html = parser.renderer.render(tokens, parser.options, {})
    html = html.replace("<table>", "<div class=scroll tabindex=0><table>").replace(
        "</table>", "</table></div>"
    )
    html = html.replace("<pre>", "<pre tabindex=0>")  # what scrolls is reached with the keyboard
    links = " · ".join(f'<a href="{_address(name)}">{escape(name.replace("-", " "))}</a>' for name in PAGES)
    head = f'<nav><a href="/">status</a> · <span class=quiet>guide:</span> {links}</nav>'
    return document(f"Sluice: {title.lower()}", f"{head}\n{html}", style=_STYLE)


def _anchor(heading: str, anchors: set[str]) -> str:
    """Return a heading's anchor; a second one of the same name gets a number, as on GitHub."""
    anchor = slug(heading)
    place = 0
    while (found := f"{anchor}-{place}" if place else anchor) in anchors:
        place += 1
    anchors.add(found)
    return found


def _linked(tokens: Sequence[Token]) -> Iterator[Token]:
    """Lead links to what the node serves; of others, the text and the file's name stay."""
    from markdown_it.token import Token

    file, label = "", ""
    for token in tokens:
        target = str(token.attrGet("href") or "")
        page = _LINK.fullmatch(target)
        if token.type == "link_open" and not target.startswith(("#", "https://", "http://")):
            if page is None or page[1] not in PAGES:
                file, label = posixpath.normpath(f"docs/{target.partition('#')[0]}"), ""
                continue
            token.attrSet("href", f"{_address(page[1])}{page[2] or ''}")
        elif token.type == "link_close" and file:
            if label.strip("/") not in file:
                yield Token("text", "", 0, content=" (")
                yield Token("code_inline", "code", 0, content=file)
                yield Token("text", "", 0, content=")")
            file = ""
            continue
        label += token.content
        yield token


def _address(name: str) -> str:
    return "/operations" if name == "operations" else f"/guide/{name}"
