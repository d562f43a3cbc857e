"""Nodes whose clock jumps by hours while blocks are published: nothing depends on it.

Real processes. A small library over the C library shifts only the time of day; the test compiles it, and is
skipped without a C compiler.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.interop.test_standbys import ClusterNode, Publishing, cluster
from tests.nodes import ANSWER_SECONDS

HOUR = 3_600
SHIFT = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile long *shift;
__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CLOCK_SHIFT");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *map = fd < 0 ? MAP_FAILED : mmap(0, sizeof(long), PROT_READ, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) shift = map;
}
int clock_gettime(clockid_t id, struct timespec *now) {
    long failed = syscall(SYS_clock_gettime, id, now);
    if (!failed && shift && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += *shift;
    return failed;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec at;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &at);
    now->tv_sec = at.tv_sec;
    now->tv_usec = at.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *now) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (now) *now = at.tv_sec;
    return at.tv_sec;
}
"""


class Clock:
    """The time of day for processes started from now on."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("needs a C compiler as cc; the package gcc has one")
        source, library, self._path = folder / "shift.c", folder / "shift.so", folder / "shift"
        source.write_text(SHIFT)
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
        self.set(0)
        monkeypatch.setenv("LD_PRELOAD", str(library))
        monkeypatch.setenv("CLOCK_SHIFT", str(self._path))

    def set(self, seconds: int) -> None:
        """Shift it by so much from now on."""
        with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644), "wb") as file:
            file.write(struct.pack("@l", seconds))


async def status_of(node: ClusterNode) -> dict[str, Any]:
    def ask() -> dict[str, Any]:
        with urlopen(f"http://{node.http_address}/status.json", timeout=ANSWER_SECONDS) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    return await asyncio.to_thread(ask)


async def test_a_clock_that_is_set_by_hours_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(tmp_path, monkeypatch)

    async with cluster(tmp_path, 2, 1) as (a, b):
        publishing = Publishing([a], blocks_per_second=50)
        await publishing.reach(20)
        begun_at, number = time.monotonic(), 20
        starts = [len(node.log_text()) for node in (a, b)]
        for hours in (3, -5, 1_000, 0):
            clock.set(hours * HOUR)
            number += 20
            await publishing.reach(number)
            status = await status_of(a)
            # Its own clock is shifted, and says so; how long something lasts is as it is.
            assert abs(status["now_unix_seconds"] - time.time() - hours * HOUR) < 60
            finding = next(one for one in status["findings"] if one["text"].startswith("only one publisher"))
            lasts = status["now_unix_seconds"] - finding["since_unix_seconds"]
            assert 0 <= lasts < time.monotonic() - begun_at + 60
            assert await a.reasons() == await b.reasons() == []
        assert publishing.client.disconnected == []
        for node, start in zip((a, b), starts, strict=True):
            lines = [json.loads(line) for line in node.log_text()[start:].splitlines()]
            warnings = {line["message"] for line in lines if line["level"] not in ("debug", "info")}
            assert warnings <= {"the node gets too little processor"}  # of a machine that is busy
        assert await publishing.end() > number
