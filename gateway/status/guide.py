"""The guide that a node serves: docs/operations.md at `/operations`, the pages around it at `/guide/NAME`.

Markdown in, HTML out, by markdown-it-py, which `rich` brings along. Links between the pages lead to the
served pages; a link to another file of the repository is plain text. HTML in the Markdown is escaped.
"""

from __future__ import annotations

import re
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
body{max-width:58rem}pre{overflow-x:auto;padding:.6rem;background:var(--card);border-radius:6px}
code{background:var(--card);padding:0 .2em}pre code{padding:0}a:not([href]){color:inherit}
.scroll{overflow-x:auto}td,th{border-bottom:1px solid var(--line)}td{min-width:6rem;overflow-wrap:normal}
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
    title, anchors = "", set[str]()
    for place, token in enumerate(tokens):
        if token.type == "heading_open":
            heading = tokens[place + 1].content
            title = title or heading
            token.attrSet("id", _anchor(heading, anchors))
        for child in token.children or ():
            if child.type == "link_open":
                _set_link(child)
    html = parser.renderer.render(tokens, parser.options, {})
    html = html.replace("<table>", "<div class=scroll><table>").replace("</table>", "</table></div>")
    links = " · ".join(f'<a href="{_address(name)}">{escape(name.replace("-", " "))}</a>' for name in PAGES)
    head = f'<p><a href="/">status</a> · <span class=quiet>guide:</span> {links}</p>'
    return document(f"Sluice: {title.lower()}", f"{head}\n{html}", style=_STYLE)


def _anchor(heading: str, anchors: set[str]) -> str:
    """Return a heading's anchor; a second one of the same name gets a number, as on GitHub."""
    anchor = slug(heading)
    place = 0
    while (found := f"{anchor}-{place}" if place else anchor) in anchors:
        place += 1
    anchors.add(found)
    return found


def _set_link(token: Token) -> None:
    target = str(token.attrGet("href") or "")
    if target.startswith(("#", "https://", "http://")):
        return
    page = _LINK.fullmatch(target)
    if page is not None and page[1] in PAGES:
        token.attrSet("href", f"{_address(page[1])}{page[2] or ''}")
    else:
        token.attrs.pop("href", None)


def _address(name: str) -> str:
    return "/operations" if name == "operations" else f"/guide/{name}"
