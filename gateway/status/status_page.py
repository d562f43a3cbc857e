"""The status page of a node, `/` on its HTTP address.

Pure: a `NodeReport`, charts and events in, HTML out, without scripts or foreign resources; the browser
reloads by itself, unless the reader holds the page still (`?hold=on`).

    findings        problems first and in red, with since when and what to do; none: one green line; notes in
                    yellow
    race            the last 100 blocks as a ribbon, coloured by winner, and a legend
    figures         charts of the last hour; of the last day at `/?over=day`
    events          role changes, failovers, refusals, timeouts, certificates, the front door: the newest
                    here, older ones at the end
    chain           first and last block, root hash, age of the last block
    publishers      those connected, and what each is doing
    readers         data-streamer clients, subscribers, and how far the slowest is behind
    peers           the peer that the node follows, its distance, and the standbys that it waits for

Invariants
  - Everything that a peer has named is escaped.
  - A publisher keeps its colour while the node runs. It follows from the name, and so is the same on other
    nodes and after a restart, unless another name had it first (`Colours`).
  - `/status.json` (`as_json`) has the values of the report under the same names.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape

from sluice.gateway.status.charts import block_count, duration, size
from sluice.gateway.status.events import Event
from sluice.gateway.status.findings import slug
from sluice.gateway.status.node_report import NodeReport

__all__ = ["REFRESH_SECONDS", "Colours", "document", "moment", "render", "table"]

REFRESH_SECONDS = 5
"""Time between two reloads by the browser; figures come as often."""

EVENTS_SHOWN = 12
"""Newest events; a reload would roll back a list that scrolls in itself, so older ones are at the end."""

_COLOURS = 12
_MARKS = 4
"""Plain, and stripes where all colours are taken."""

_STYLE = """
:root{color-scheme:light dark;--text:#222;--back:#fff;--quiet:#666;--line:#ddd;--card:#f6f7f8;--link:#0b57d0;
--ok:#e6f4e6;--bad:#fdeaea;--note:#fff8e1;--l0:#1f6fb2;--l1:#b34c14;--l2:#4a7515}
@media (prefers-color-scheme:dark){:root{--text:#ddd;--back:#161819;--quiet:#9aa0a6;--line:#3a3d40;
--card:#1f2224;--link:#8ab4f8;--ok:#1c2f1c;--bad:#3a1c1c;--note:#332b10;--l0:#6db3f2;--l1:#ff9d5c;--l2:#a5d65f}}
*{box-sizing:border-box}
body{font:15px/1.45 system-ui,sans-serif;margin:1.2rem auto;max-width:72rem;padding:0 1rem;
color:var(--text);background:var(--back);overflow-wrap:anywhere}
a{color:var(--link)}h1{font-size:1.4rem;margin:0 0 .2rem}h2{font-size:1.05rem;margin:1.4rem 0 .4rem}
table{border-collapse:collapse;max-width:100%}
td,th{text-align:left;padding:.15rem 1rem .15rem 0;vertical-align:top}
th{font-weight:600;color:var(--quiet);overflow-wrap:normal}code{font-size:.9em}.quiet{color:var(--quiet)}
.wide{overflow-x:auto}.wide td,.wide th{white-space:nowrap}.wide td.free{white-space:normal;min-width:12rem}
.ok,.bad,.note{padding:.4rem .7rem;border-left:4px solid;margin:.6rem 0}
.ok{background:var(--ok);border-color:#2e7d32}.bad{background:var(--bad);border-color:#c62828}
.note{background:var(--note);border-color:#f9a825}.bad ul,.note ul{margin:.2rem 0;padding-left:1.2rem}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,19rem),1fr));gap:.7rem}
figure{display:flex;flex-direction:column;margin:0;padding:.5rem .7rem;background:var(--card);
border-radius:6px;min-width:0}
figcaption{font-size:.85rem;margin-bottom:auto}figcaption div{min-height:1.5em}
figcaption span{white-space:nowrap;font-weight:600;margin-right:.4rem}
svg{display:block;width:100%;height:64px;border-bottom:1px solid var(--line);margin-top:.3rem}
path{fill:none;stroke-width:1.5;vector-effect:non-scaling-stroke;stroke-linecap:round;stroke-linejoin:round}
.l0{stroke:var(--l0)}.l1{stroke:var(--l1)}.l2{stroke:var(--l2)}
.k0{color:var(--l0)}.k1{color:var(--l1)}.k2{color:var(--l2)}
.charts+.quiet{margin-top:.5rem}.scale{display:flex;
justify-content:space-between;gap:.4rem;font-size:.75rem;color:var(--quiet)}.scale span{white-space:nowrap}
.scale span:nth-child(2){white-space:normal;text-align:center}
.ribbon{display:flex;height:2.2rem;border-radius:4px;overflow:hidden;background:var(--card)}
.ribbon i{flex:1 1 0;min-width:0}.ribbon i+i{border-left:1px solid var(--back)}
.legend{list-style:none;margin:.4rem 0;padding:0;display:grid;gap:.1rem 1rem;
grid-template-columns:repeat(auto-fill,minmax(min(100%,19rem),1fr))}
.legend li{display:flex;align-items:baseline;gap:.4rem;min-width:0}
.legend i{flex:none;display:inline-block;width:.9rem;height:.9rem;border-radius:2px;align-self:center}
.legend span{min-width:0;display:-webkit-box;-webkit-line-clamp:3;-webkit-box-orient:vertical;overflow:hidden}
.legend b{margin-left:auto;flex:none}
.events{border-top:1px solid var(--line);border-bottom:1px solid var(--line)}.events td{font-size:.85rem}
.short{white-space:nowrap}.trouble{color:var(--l1)}
@media (max-width:40rem){body{margin-top:.6rem;padding:0 .6rem}.events tr{display:block;padding:.2rem 0}
.events td{display:inline;padding-right:.5rem}.who td{display:block;padding:0}
.who .short{color:var(--quiet);padding-bottom:.3rem}.ribbon i+i{border-left:0}
.charts{grid-template-columns:1fr 1fr;gap:.4rem}
figure{padding:.4rem .5rem}.scale{font-size:.68rem;gap:.25rem}}
""".strip()
_COLOUR_STYLE = "".join(
    f".c{at}{{background-color:{colour}}}"
    for at, colour in enumerate(
        (
            *("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#edc948"),
            *("#17a2b8", "#9c755f", "#ff9da7", "#8c8c8c", "#2f4b7c", "#a5d65f"),
        )
    )
) + "".join(
    f".m{at}{{background-image:repeating-linear-gradient({angle}deg,#fff9 0 2px,#0000 2px 6px)}}"
    for at, angle in ((1, 45), (2, 0), (3, 135))
)
"""The colours of publishers: apart from each other on light and dark."""


class Colours:
    """The colours of publishers: twelve, and three times as many with stripes."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def of(self, names: Iterable[str]) -> dict[str, str]:
        """Return the CSS classes of each name; beyond 48 names some share one."""
        shown = sorted(names)
        for name in shown:
            if name not in self._places:
                if len(self._places) >= _COLOURS * _MARKS:  # names that are no longer shown give theirs up
                    self._places = {name: self._places[name] for name in shown if name in self._places}
                self._places[name] = self._free(zlib.crc32(name.encode("utf-8", "surrogatepass")) % _COLOURS)
        return {name: f"c{self._places[name] % _COLOURS} m{self._places[name] // _COLOURS}" for name in shown}

    def _free(self, wanted: int) -> int:
        """Return the wanted colour, or the next one that is free."""
        taken = set(self._places.values())
        places = (
            mark * _COLOURS + (wanted + step) % _COLOURS for mark in range(_MARKS) for step in range(_COLOURS)
        )
        return next((place for place in places if place not in taken), wanted)


def render(
    report: NodeReport,
    charts: str,
    events: Sequence[Event] = (),
    colours: Colours | None = None,
    *,
    over: str = "hour",
    is_held: bool = False,
    pages: Mapping[str, str] | None = None,
) -> str:
    """Return the page as an HTML document.

    Args:
        charts: as HTML (`status.charts`).
        colours: of the publishers; None: each name's own.
        over: `hour` or `day`, the time that the charts show.
        is_held: the browser does not reload the page.
        pages: addresses of peers, and where each has its page.
    """
    last = "no block yet" if report.last_block is None else f"block {report.last_block}"
    title = f"Sluice: {last}" if not report.problems else f"Sluice: {len(report.problems)} problems"
    body = "\n".join(
        (
            _heading(report, over, is_held=is_held),
            _problems(report),
            _notes(report),
            _section("Race", _race(report, colours or Colours())),
            _figures(charts, over, is_held=is_held),
            _section("Events", _events(events, over)),
            _section("Chain", _chain(report)),
            _section("Publishers", _publishers(report)),
            _section("Readers", _readers(report)),
            _section("Peers", _peers(report, pages or {})),
            _section("Addresses", table(report.addresses)),
            _older(events),
        )
    )
    return document(title, body, is_live=not is_held)


def document(title: str, body: str, *, is_live: bool = False, style: str = "") -> str:
    """Return an HTML document in the style of all pages.

    Args:
        is_live: the browser reloads it.
        style: further rules.
    """
    refresh = f'<meta http-equiv=refresh content="{REFRESH_SECONDS}">' if is_live else ""
    return (
        f"<!doctype html>\n<html lang=en><head><meta charset=utf-8>{refresh}"
        '<meta name=viewport content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}{_COLOUR_STYLE}{style}</style></head>\n"
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


def moment(now_unix_seconds: float, address: str, *, is_held: bool) -> str:
    """Return when a page was made, and the link that holds it still or lets it go on.

    Args:
        address: of the page that reloads.
    """
    at = f"{datetime.fromtimestamp(now_unix_seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    if is_held:
        return f'{at}, held still · <a href="{escape(address)}">go on</a>'
    return f'{at}, every {REFRESH_SECONDS} s · <a href="{escape(_held(address))}">hold still</a>'


def _held(address: str) -> str:
    return f"{address}{'&' if '?' in address else '?'}hold=on"


def _page_address(over: str) -> str:
    return "/?over=day" if over == "day" else "/"


def _heading(report: NodeReport, over: str, *, is_held: bool) -> str:
    words = f"{report.phase} node, version {report.version}, verification {report.verification_mode}"
    links = '<a href="/operations">operations</a> · <a href="/status.json">status.json</a>'
    if report.peers:
        links = f'<a href="/cluster">cluster</a> · {links}'
    at = moment(report.now_unix_seconds, _page_address(over), is_held=is_held)
    return (
        f"<h1>Sluice</h1><div class=quiet>{escape(words)}</div><div class=quiet>{at}</div><nav>{links}</nav>"
    )


def _section(title: str, content: str) -> str:
    return _section_html(escape(title), content)


def _section_html(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>\n{content}</section>"


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
        lasts = duration(max(0.0, report.now_unix_seconds - finding.since_unix_seconds))
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
    since = "none since the node started" if age is None else f"{duration(age)} ago"
    return table(
        (
            ("last block", str(report.last_block)),
            ("acknowledged", since),
            ("root hash", report.last_root_hash),
            ("first block", str(report.first_block)),
        )
    )


def _figures(charts: str, over: str, *, is_held: bool) -> str:
    hour, day = "The last hour", "the last day"
    other = _page_address("hour" if over == "day" else "day")
    link = escape(_held(other) if is_held else other)
    title = (
        f'<a href="{link}">{hour}</a> · {day}' if over == "day" else f'{hour} · <a href="{link}">{day}</a>'
    )
    return _section_html(title, charts)


def _race(report: NodeReport, colours: Colours) -> str:
    if not report.race:
        return "<p>No block was acknowledged since the node started.</p>"
    look_of = colours.of(name for name, _ in report.winners)
    cells = "".join(
        f'<i class="{look_of[won.publisher]}" '
        f'title="block {won.number}: {escape(won.publisher)}, {duration(won.seconds)}"></i>'
        for won in report.race
    )
    legend = "".join(
        f'<li><i class="{look_of[name]}"></i><span>{escape(name)}</span><b>{count}</b></li>'
        for name, count in report.winners
    )
    median = "" if report.median_seconds is None else f", median {duration(report.median_seconds)}"
    return (
        f'<div class=ribbon role=img aria-label="The winner of each block, counted below">{cells}</div>'
        f"<div class=scale><span>block {report.race[0].number}</span>"
        f"<span>block {report.race[-1].number}</span></div>"
        f"<ul class=legend>{legend}</ul>"
        f"<div class=quiet>winners of the last {len(report.race)} blocks; "
        f"from header to acknowledgement{median}</div>"
    )


def _events(events: Sequence[Event], over: str) -> str:
    if not events:
        return "<p>None since the node started.</p>"
    older = len(events) - EVENTS_SHOWN
    held = escape(_held(_page_address(over)))  # with a fragment in its address, a page does not reload
    more = f'<div class=quiet><a href="{held}#older">{older:,} older</a></div>' if older > 0 else ""
    return f"{_event_table(events[:EVENTS_SHOWN])}{more}"


def _older(events: Sequence[Event]) -> str:
    if len(events) <= EVENTS_SHOWN:
        return ""
    return f"<section id=older><h2>Older events</h2>\n{_event_table(events[EVENTS_SHOWN:])}</section>"


def _event_table(events: Sequence[Event]) -> str:
    rows = "".join(
        f"<tr><td class=short>{datetime.fromtimestamp(event.unix_seconds, UTC):%Y-%m-%d %H:%M:%S}</td>"
        f'<td class="short{" trouble" if event.is_trouble else ""}">{event.kind.value}</td>'
        f"<td>{escape(event.text)}{f' <b>× {event.count:,}</b>' if event.count > 1 else ''}</td></tr>"
        for event in events
    )
    return f"<div class=events><table>{rows}</table></div>"


def _publishers(report: NodeReport) -> str:
    if not report.publishers:
        return "<p>None is connected.</p>"
    rows = "".join(
        f"<tr><td>{escape(publisher.name)}</td><td class=short>{escape(publisher.doing)}</td></tr>"
        for publisher in report.publishers
    )
    return f"<table class=who>{rows}</table><div class=quiet>{size(report.inflight_bytes)} in flight</div>"


def _readers(report: NodeReport) -> str:
    return table(
        (
            ("data-streamer clients", str(report.tcp_clients)),
            ("the slowest is behind by", size(report.tcp_slowest_bytes)),
            ("subscribers", str(report.subscribers)),
            ("the slowest is behind by", block_count(report.subscriber_lag_blocks)),
        )
    )


def _peers(report: NodeReport, pages: Mapping[str, str]) -> str:
    if not report.peers and report.followed is None:
        return "<p>None is set.</p>"
    listed = ", ".join(_peer(peer, pages) for peer in report.peers) or "none"
    rows = [("followed now", report.followed or "none")]
    if report.distance_blocks is not None:
        rows.append(("behind by", block_count(report.distance_blocks)))
    if (election := report.election) is not None:
        held = (
            "nobody"
            if election.holder is None
            else f"{election.holder.address}, epoch {election.holder.epoch}"
        )
        rows.append(("election", f"this node {election.phase.value}; the term has {held}"))
    if report.min_standbys:
        rows.append(("acknowledged when on", f"{report.min_standbys} of these as well"))
        rows += report.standbys
        rows.append(("not acknowledged yet", block_count(report.awaiting_standbys)))
    first = f"<tr><th scope=row>may be followed</th><td>{listed}</td></tr>"
    return f'<table>{first}{_rows(rows)}</table><p><a href="/cluster">all nodes of the cluster</a></p>'


def _peer(address: str, pages: Mapping[str, str]) -> str:
    page = pages.get(address)
    return escape(address) if page is None else f'<a href="{escape(page)}">{escape(address)}</a>'


def table(rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of names and values."""
    return f"<table>{_rows(rows)}</table>"


def _rows(rows: Iterable[tuple[str, str]]) -> str:
    return "".join(
        f"<tr><th scope=row>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows
    )
