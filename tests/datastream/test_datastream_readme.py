"""The tables of `datastream/README.md` are those of the code, and its example runs."""

from __future__ import annotations

import asyncio
import pkgutil
import re
from importlib import import_module
from pathlib import Path

import pytest

from sluice import datastream
from sluice.datastream.file.appending import COMMIT_STEPS
from sluice.datastream.file.recovery import RECOVERY
from sluice.datastream.file.updating import TRUNCATE_STEPS, UPDATE_STEPS
from sluice.datastream.limits import ServerLimits
from sluice.datastream.protocol.commands import COMMANDS, ERRORS, REPLIES, ClientState, Command

FOLDER = Path(datastream.__file__).parent
TEXT = (FOLDER / "README.md").read_text()


def rows_under(*heading: str) -> list[list[str]]:
    """Return the cells of the rows below a table's heading."""
    lines = TEXT.splitlines()
    start = lines.index("| " + " | ".join(heading) + " |")
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_commit_steps() -> None:
    rows = rows_under("step", "what is done", "what opening finds if the machine stops just after it")
    assert rows == [[step.value, *texts] for step, texts in COMMIT_STEPS.items()]


def test_steps_of_changes() -> None:
    fate = "what opening finds if the machine stops just after it"
    rows = rows_under("step of an update", "what is done", fate)
    assert rows == [[step.value, *texts] for step, texts in UPDATE_STEPS.items()]
    rows = rows_under("step of a truncation", "what is done", fate)
    assert rows == [[step, *texts] for step, texts in TRUNCATE_STEPS.items()]


def test_recovery() -> None:
    rows = rows_under("what is found", "what is done")
    assert rows == [
        [row.label, ", ".join(f"`{action.name}`" for action in row.actions) or "nothing"] for row in RECOVERY
    ]


def test_commands() -> None:
    rows = rows_under("command", "id", "parameter", "after Result OK")
    assert rows == [
        [name, str(int(command)), parameter.name.lower().replace("_", " "), after]
        for command, (name, parameter, after) in COMMANDS.items()
    ]


def test_errors() -> None:
    rows = rows_under("error", "text", "the connection")
    assert rows == [[str(int(error)), f"`{text}`", fate] for error, (text, fate) in ERRORS.items()]


def test_replies() -> None:
    rows = rows_under("command", "while stopped", "while streaming")
    assert rows == [
        [
            COMMANDS[command][0],
            *(REPLIES[state][command].name.lower().replace("_", " ") for state in ClientState),
        ]
        for command in Command
    ]


def test_limits() -> None:
    defaults = ServerLimits()
    modules = [
        import_module(name) for _, name, _ in pkgutil.walk_packages(datastream.__path__, "sluice.datastream.")
    ]
    for name, value, _ in rows_under("limit", "default", "what happens when it is reached"):
        plain = name.strip("`")
        owner, _, field = plain.rpartition(".")
        actual = {getattr(defaults if owner else module, field, None) for module in modules} - {None}
        assert [value] == [f"{each:,}" for each in actual], name


async def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    namespace: dict[str, object] = {}
    exec(example.replace("6900", "0"), namespace)
    streamer = namespace["streamer"]
    assert isinstance(streamer, datastream.DataStreamer)
    assert streamer.get_first_event_after_bookmark(b"block 7").data == b"an event"

    task = asyncio.ensure_future(namespace["serve"]())  # type: ignore[operator]
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    streamer.close()
