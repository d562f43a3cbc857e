"""The status page in a real browser: what Chromium makes of it; the screenshot is a temporary file."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.nodes import make_blocks, running_node, wire_to

BROWSER_SECONDS = 60.0


def test_chromium_shows_the_status_page(tmp_path: Path) -> None:
    names = ("chromium", "chromium-browser", "chromium-headless-shell")
    command = next((found for name in names if (found := shutil.which(name))), None)
    if command is None:
        pytest.skip("needs chromium; the package chromium has it")
    picture = tmp_path / "page.png"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    # One of a snap cannot write here; none starts where the path is too long for its sockets.
    words = [command, *flags, f"--screenshot={picture}", "about:blank"]
    trial = subprocess.run(words, capture_output=True, timeout=BROWSER_SECONDS, check=False)
    if trial.returncode != 0 or not picture.exists():
        pytest.skip(
            "needs a chromium that runs here: not one of a snap, and a short path for temporary files"
        )
    picture.unlink()

    async def browse(*words: str) -> str:
        process = await asyncio.create_subprocess_exec(
            command, *flags, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        out, _ = await asyncio.wait_for(process.communicate(), BROWSER_SECONDS)
        assert process.returncode == 0
        return out.decode()

    async def main() -> str:
        async with running_node(tmp_path / "node") as node, wire_to(node) as wire:
            publisher = await wire.publisher("<b>alice</b>")
            await publisher.block(*make_blocks(3))
            await publisher.expect("ack 0", "ack 1", "ack 2")
            node.sampler.take(time.time(), 1e9)
            page = f"http://{node.http_address}/"
            for size in ("1280,900", "390,900"):
                await browse(f"--screenshot={picture}", f"--window-size={size}", page)
                assert picture.read_bytes().startswith(b"\x89PNG")
            guide = await browse("--dump-dom", f"{page}operations")
            assert '<h3 id="a-node-is-behind">' in guide
            return await browse("--dump-dom", page)

    document = asyncio.run(main())
    assert "Ready: no problem is known." in document
    assert "only one publisher is connected" in document
    assert 'href="/operations#publishers-are-missing"' in document
    assert "&lt;b&gt;alice&lt;/b&gt;" in document
    assert document.count("<svg ") == 9
