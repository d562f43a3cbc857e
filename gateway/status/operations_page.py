"""docs/operations.md as a web page, `/operations` on a node's HTTP address: its text, with anchors.

Pure. No Markdown is interpreted but headings: what stands in the file is what a person reads, and a link from
the status page leads to the paragraph about a problem, with no other machine needed.
"""

from __future__ import annotations

from html import escape

from gateway.status.findings import slug

__all__ = ["render_operations"]

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:1.5rem auto;max-width:60rem;padding:0 1rem}
body{color:#222;background:#fff}pre{white-space:pre-wrap;overflow-wrap:anywhere;font-size:13px;margin:0}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin:1.6rem 0 .4rem}:target{background:#fff3cd;color:#222}
@media (prefers-color-scheme:dark){body{color:#ddd;background:#181818}}
""".strip()


def render_operations(markdown: str) -> str:
    """Return the page, a whole HTML document; each `#` and `##` heading has its anchor."""
    parts: list[str] = []
    lines: list[str] = []
    is_code = False

    def close_text() -> None:
        text = "\n".join(lines).strip("\n")
        if text:
            parts.append(f"<pre>{escape(text)}</pre>")
        lines.clear()

    for line in markdown.splitlines():
        is_code ^= line.startswith("```")
        level = len(line) - len(line.lstrip("#"))
        if is_code or level not in (1, 2) or not line[level:].startswith(" "):
            lines.append(line)
            continue
        close_text()
        heading = line[level:].strip()
        parts.append(f'<h{level} id="{escape(slug(heading))}">{escape(heading)}</h{level}>')
    close_text()
    body = "\n".join(parts)
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width,initial-scale=1">'
        f"<title>Sluice: operations</title><style>{_STYLE}</style></head>\n<body>\n"
        f'<p><a href="/">status</a></p>\n{body}\n</body></html>\n'
    )
