"""The status page of a node, `/` on its HTTP address.

Pure: a `NodeReport` in, HTML out, without scripts or foreign resources; the browser reloads by itself.

    findings        problems first and in red, with since when and what to do; none: one green line; notes in
                    yellow
    chain           first and last block, root hash, age of the last block
    race            the last 100 blocks, a cell each, coloured by winner
    publishers      those connected, and what each is doing
    readers         data-streamer clients, subscribers, and how far the slowest is behind
    peers           the peer that the node follows, its distance, and the standbys that it waits for

Invariants
  - Everything that a peer has named is escaped.
  - `/status.json` (`as_json`) has the same values under the same names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from html import escape, unescape

from sluice.gateway.status.findings import slug
from sluice.gateway.status.node_report import NodeReport

__all__ = ["REFRESH_SECONDS", "render", "render_operations"]

REFRESH_SECONDS = 2
"""Time between two reloads by the browser."""
_HEADING = re.compile(r"^##? (.+)$", re.MULTILINE)
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#edc948", "#76b7b2", "#9c755f", "#bab0ac")
_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:1.5rem auto;max-width:60rem;padding:0 1rem}
body{color:#222;background:#fff}
h1{font-size:1.4rem;margin:0 0 .2rem}h2{font-size:1.05rem;margin:1.4rem 0 .4rem}
table{border-collapse:collapse}td,th{text-align:left;padding:.15rem 1rem .15rem 0;vertical-align:top}
td{overflow-wrap:anywhere}
th{font-weight:600;color:#555}code{font-size:.9em}.quiet{color:#777}
.ok{background:#e6f4e6;border-left:4px solid #2e7d32;padding:.4rem .7rem}
.bad{background:#fdeaea;border-left:4px solid #c62828;padding:.4rem .7rem}
.note{background:#fff8e1;border-left:4px solid #f9a825;padding:.4rem .7rem;margin-top:.6rem}
.bad ul,.note ul{margin:.2rem 0;padding-left:1.2rem}
.race{display:flex;flex-wrap:wrap;gap:2px;max-width:48rem}.race i{width:14px;height:14px;border-radius:2px}
.key{display:inline-block;width:12px;height:12px;border-radius:2px;margin-right:.4rem}
@media (prefers-color-scheme:dark){body{color:#ddd;background:#181818}th,.quiet{color:#999}
.ok{background:#1c2f1c}.bad{background:#3a1c1c}.note{background:#332b10}}
""".strip()


def render(report: NodeReport) -> str:
    """Return the page as an HTML document."""
    last = "no block yet" if report.last_block is None else f"block {report.last_block}"
    title = f"Sluice: {last}" if not report.problems else f"Sluice: {len(report.problems)} problems"
    body = "\n".join(
        (
            _heading(report),
            _problems(report),
            _notes(report),
            _section("Chain", _chain(report)),
            _section("Race", _race(report)),
            _section("Publishers", _publishers(report)),
            _section("Readers", _readers(report)),
            _section("Peers", _peers(report)),
            _section("Addresses", _table(report.addresses)),
        )
    )
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        f'<meta http-equiv=refresh content="{REFRESH_SECONDS}">'
        '<meta name=viewport content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def render_operations(markdown: str) -> str:
    """Return docs/operations.md as an HTML document with anchors."""
    text = _HEADING.sub(
        lambda line: f'<a id="{escape(slug(unescape(line[1])))}"></a>{line[0]}', escape(markdown, quote=False)
    )
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width,initial-scale=1">'
        "<title>Sluice: operations</title>"
        "<style>pre{white-space:pre-wrap;overflow-wrap:anywhere}</style></head>\n<body>\n"
        f'<p><a href="/">status</a></p>\n<pre>{text}</pre>\n</body></html>\n'
    )


def _heading(report: NodeReport) -> str:
    words = f"{report.phase} node, version {report.version}, verification {report.verification_mode}"
    return f"<h1>Sluice</h1><div class=quiet>{escape(words)}</div>"


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n{content}</section>"


def _problems(report: NodeReport) -> str:
    if not report.problems:
        return "<p class=ok>Ready: no problem is known.</p>"
    return f"<div class=bad>Not ready:{_findings(report, are_problems=True)}</div>"


def _notes(report: NodeReport) -> str:
    if all(finding.is_problem for finding in report.findings):
        return ""
    return f"<div class=note>Worth a look:{_findings(report, are_problems=False)}</div>"


def _findings(report: NodeReport, *, are_problems: bool) -> str:
    listed = ""
    for finding in report.findings:
        if finding.is_problem is not are_problems:
            continue
        began = datetime.fromtimestamp(finding.since_unix_seconds, UTC)
        lasts = _duration(max(0.0, report.now_unix_seconds - finding.since_unix_seconds))
        more = f'<a href="/operations#{escape(slug(finding.section))}">{escape(finding.section)}</a>'
        listed += (
            f"<li><b>{escape(finding.text)}</b><br>since {began:%Y-%m-%d %H:%M:%S} UTC ({lasts})<br>"
            f"{escape(finding.advice)} More: {more}</li>"
        )
    return f"<ul>{listed}</ul>"


def _chain(report: NodeReport) -> str:
    if report.last_block is None:
        return "<p>The node holds no block yet.</p>"
    age = report.last_block_age_seconds
    since = "none since the node started" if age is None else f"{_duration(age)} ago"
    return _table(
        (
            ("last block", str(report.last_block)),
            ("acknowledged", since),
            ("root hash", report.last_root_hash),
            ("first block", str(report.first_block)),
        )
    )


def _race(report: NodeReport) -> str:
    if not report.race:
        return "<p>No block was acknowledged since the node started.</p>"
    colour_of = {name: _COLOURS[at % len(_COLOURS)] for at, (name, _) in enumerate(report.winners)}
    cells = "".join(
        f'<i style="background:{colour_of[won.publisher]}" '
        f'title="block {won.number}: {escape(won.publisher)}, {_duration(won.seconds)}"></i>'
        for won in report.race
    )
    rows = "".join(
        f'<tr><td><span class=key style="background:{colour_of[name]}"></span>{escape(name)}</td>'
        f"<td>{count}</td></tr>"
        for name, count in report.winners
    )
    median = "" if report.median_seconds is None else f", median {_duration(report.median_seconds)}"
    return (
        f"<div class=race>{cells}</div>"
        f"<table><tr><th>winner of the last {len(report.race)} blocks</th><th>blocks</th></tr>{rows}</table>"
        f"<div class=quiet>from header to acknowledgement{median}</div>"
    )


def _publishers(report: NodeReport) -> str:
    if not report.publishers:
        return "<p>None is connected.</p>"
    rows = ((publisher.name, publisher.doing) for publisher in report.publishers)
    return _table(rows) + f"<div class=quiet>{_size(report.inflight_bytes)} in flight</div>"


def _readers(report: NodeReport) -> str:
    return _table(
        (
            ("data-streamer clients", str(report.tcp_clients)),
            ("the slowest is behind by", _size(report.tcp_slowest_bytes)),
            ("subscribers", str(report.subscribers)),
            ("the slowest is behind by", f"{report.subscriber_lag_blocks} blocks"),
        )
    )


def _peers(report: NodeReport) -> str:
    if not report.peers and report.followed is None:
        return "<p>None is set.</p>"
    rows = [("may be followed", ", ".join(report.peers) or "none")]
    rows.append(("followed now", report.followed or "none"))
    if report.distance_blocks is not None:
        rows.append(("behind by", f"{report.distance_blocks} blocks"))
    if report.min_standbys:
        rows.append(("acknowledged when on", f"{report.min_standbys} of these as well"))
        rows += report.standbys
        rows.append(("not acknowledged yet", f"{report.awaiting_standbys} blocks"))
    return _table(rows)


def _table(rows: Iterable[tuple[str, str]]) -> str:
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<table>{cells}</table>"


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = int(seconds) // 60
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _size(size_bytes: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes} bytes"
