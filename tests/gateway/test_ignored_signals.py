"""Ignored signals stay ignored."""

from __future__ import annotations

import signal

from sluice.gateway.ignored_signals import unless_ignored


def test_what_is_ignored_is_left_out_and_the_order_stays() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert unless_ignored(signal.SIGTERM, signal.SIGHUP, signal.SIGINT) == (signal.SIGTERM, signal.SIGINT)
        assert unless_ignored(signal.SIGHUP) == ()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        assert unless_ignored(signal.SIGHUP) == (signal.SIGHUP,)
    finally:
        signal.signal(signal.SIGHUP, before)
