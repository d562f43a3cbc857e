"""The status page of a node, `/` on its HTTP address: what an operator sees at a glance.

Pure: a `Status` in, HTML out. No script and nothing from elsewhere; the browser asks again by itself.

    findings        what is wrong, since when, and what to do, first and in red; none: one green line;
                    what is only worth a look in yellow
    chain           first and last block, root hash, age of the last block
    race            the last 100 blocks, a coloured cell each, by who won them
    publishers      who is connected, and what each is doing
    readers         data-streamer clients, subscribers, and how far the slowest is behind
    peers           whom the node follows, how far it is behind, and what the standbys have that it waits for

Invariants
  - Everything that a peer has named is escaped.
  - `as_json` has the same facts under the same names, for `/status.json`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from html import escape

from gateway.race.history import Won
from gateway.status.findings import Finding, slug

__all__ = ["REFRESH_SECONDS", "PublisherStatus", "Status", "as_json", "render"]

REFRESH_SECONDS = 2
"""How often a browser asks again by itself."""
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


@dataclass(frozen=True, slots=True)
class PublisherStatus:
    """One publisher's stream."""

    name: str
    """Who it is."""
    doing: str
    """What it does now, in words."""


@dataclass(frozen=True, slots=True)
class Status:
    """What a node knows of itself, for people."""

    version: str
    """Of Sluice."""
    phase: str
    """active, draining, drained or standby."""
    verification_mode: str
    """full or hash."""
    addresses: tuple[tuple[str, str], ...]
    """Name and address of each server."""
    problems: tuple[str, ...]
    """Why the node is not ready; empty if it is."""
    findings: tuple[Finding, ...]
    """The same with what to do, and what else is worth a look."""
    now_unix_seconds: float
    """When this was gathered."""
    first_block: int | None
    """First block held; None for an empty node."""
    last_block: int | None
    """Last committed block."""
    last_root_hash: str
    """Its root hash, hexadecimal; empty for an empty node."""
    last_block_age_seconds: float | None
    """Since this process acknowledged a block; None: it has not yet."""
    race: tuple[Won, ...]
    """The last blocks and who won them, the newest last."""
    winners: tuple[tuple[str, int], ...]
    """Publishers and how many of those blocks they won."""
    median_seconds: float | None
    """Median time from header to acknowledgement over those blocks."""
    publishers: tuple[PublisherStatus, ...]
    """Publishers connected."""
    inflight_bytes: int
    """Bytes of items that are held and not yet committed."""
    tcp_clients: int
    """Data-streamer clients connected."""
    tcp_slowest_bytes: int
    """How far the slowest streaming one is behind, in bytes of the stream file."""
    subscribers: int
    """Subscribers connected."""
    subscriber_lag_blocks: int
    """How far the slowest subscriber is behind."""
    peers: tuple[str, ...]
    """Nodes that this one may take blocks from."""
    followed: str | None
    """The one that it takes blocks from now."""
    distance_blocks: int | None
    """How many blocks it knows of and does not have; None: it follows nobody."""
    min_standbys: int = 0
    """How many other nodes must have a block before it is acknowledged."""
    standbys: tuple[tuple[str, str], ...] = ()
    """Those that it waits for, and what is known of each, in words."""
    awaiting_standbys: int = 0
    """Blocks on disk here that wait for them."""


def as_json(status: Status) -> dict[str, object]:
    """Return the status as JSON values, under the names of its fields."""
    return asdict(status)


def render(status: Status) -> str:
    """Return the page, a whole HTML document."""
    last = "no block yet" if status.last_block is None else f"block {status.last_block}"
    title = f"Sluice: {last}" if not status.problems else f"Sluice: {len(status.problems)} problems"
    body = "\n".join(
        (
            _heading(status),
            _problems(status),
            _notes(status),
            _section("Chain", _chain(status)),
            _section("Race", _race(status)),
            _section("Publishers", _publishers(status)),
            _section("Readers", _readers(status)),
            _section("Peers", _peers(status)),
            _section("Addresses", _table(status.addresses)),
        )
    )
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        f'<meta http-equiv=refresh content="{REFRESH_SECONDS}">'
        '<meta name=viewport content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _heading(status: Status) -> str:
    facts = f"{status.phase} node, version {status.version}, verification {status.verification_mode}"
    return f"<h1>Sluice</h1><div class=quiet>{escape(facts)}</div>"


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n{content}</section>"


def _problems(status: Status) -> str:
    if not status.problems:
        return "<p class=ok>Ready: no problem is known.</p>"
    return f"<div class=bad>Not ready:{_findings(status, are_problems=True)}</div>"


def _notes(status: Status) -> str:
    if all(finding.is_problem for finding in status.findings):
        return ""
    return f"<div class=note>Worth a look:{_findings(status, are_problems=False)}</div>"


def _findings(status: Status, *, are_problems: bool) -> str:
    listed = ""
    for finding in status.findings:
        if finding.is_problem is not are_problems:
            continue
        began = datetime.fromtimestamp(finding.since_unix_seconds, UTC)
        lasts = _duration(max(0.0, status.now_unix_seconds - finding.since_unix_seconds))
        more = f'<a href="/operations#{escape(slug(finding.section))}">{escape(finding.section)}</a>'
        listed += (
            f"<li><b>{escape(finding.text)}</b><br>since {began:%Y-%m-%d %H:%M:%S} UTC ({lasts})<br>"
            f"{escape(finding.advice)} More: {more}</li>"
        )
    return f"<ul>{listed}</ul>"


def _chain(status: Status) -> str:
    if status.last_block is None:
        return "<p>The node holds no block yet.</p>"
    age = status.last_block_age_seconds
    since = "none since the node started" if age is None else f"{_duration(age)} ago"
    return _table(
        (
            ("last block", str(status.last_block)),
            ("acknowledged", since),
            ("root hash", status.last_root_hash),
            ("first block", str(status.first_block)),
        )
    )


def _race(status: Status) -> str:
    if not status.race:
        return "<p>No block was acknowledged since the node started.</p>"
    colour_of = {name: _COLOURS[at % len(_COLOURS)] for at, (name, _) in enumerate(status.winners)}
    cells = "".join(
        f'<i style="background:{colour_of[won.publisher]}" '
        f'title="block {won.number}: {escape(won.publisher)}, {_duration(won.seconds)}"></i>'
        for won in status.race
    )
    rows = "".join(
        f'<tr><td><span class=key style="background:{colour_of[name]}"></span>{escape(name)}</td>'
        f"<td>{count}</td></tr>"
        for name, count in status.winners
    )
    median = "" if status.median_seconds is None else f", median {_duration(status.median_seconds)}"
    return (
        f"<div class=race>{cells}</div>"
        f"<table><tr><th>winner of the last {len(status.race)} blocks</th><th>blocks</th></tr>{rows}</table>"
        f"<div class=quiet>from header to acknowledgement{median}</div>"
    )


def _publishers(status: Status) -> str:
    if not status.publishers:
        return "<p>None is connected.</p>"
    rows = ((publisher.name, publisher.doing) for publisher in status.publishers)
    return _table(rows) + f"<div class=quiet>{_size(status.inflight_bytes)} in flight</div>"


def _readers(status: Status) -> str:
    return _table(
        (
            ("data-streamer clients", str(status.tcp_clients)),
            ("the slowest is behind by", _size(status.tcp_slowest_bytes)),
            ("subscribers", str(status.subscribers)),
            ("the slowest is behind by", f"{status.subscriber_lag_blocks} blocks"),
        )
    )


def _peers(status: Status) -> str:
    if not status.peers and status.followed is None:
        return "<p>None is set.</p>"
    rows = [("may be followed", ", ".join(status.peers) or "none")]
    rows.append(("followed now", status.followed or "none"))
    if status.distance_blocks is not None:
        rows.append(("behind by", f"{status.distance_blocks} blocks"))
    if status.min_standbys:
        rows.append(("acknowledged when on", f"{status.min_standbys} of these as well"))
        rows += status.standbys
        rows.append(("not acknowledged yet", f"{status.awaiting_standbys} blocks"))
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
