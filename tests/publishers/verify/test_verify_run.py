"""Runs over a source: ledger data, one process or several, verdicts in order."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sluice.gateway.blocks.errors import LedgerKeyError
from sluice.gateway.blocks.trusted_keys import TrustedKeys
from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.number_range import NumberRange
from sluice.publishers.verify.verify_run import VERIFY_ALONE_BLOCKS_MAX, VerifyRun, make_verifier
from sluice.publishers.verify.verify_sources import FileSource
from tests.gateway.blocks.proofs.tss_chain import TssChain
from tests.gateway.blocks.proofs.tss_network import TssNetwork
from tests.nodes import ledger_key, make_blocks

NETWORK, OTHER = TssNetwork((3, 1)), TssNetwork((1, 1))


def run_over(folder: Path, *keys: str, workers_count: int = 1, first: int = 0) -> VerifyRun:
    """A run over a folder."""
    verifier = make_verifier(TrustedKeys.parse(keys), "full", "auto", 0)
    return VerifyRun(FileSource([str(folder)], NumberRange(first)), verifier, workers_count)


def test_several_processes_keep_the_order(tmp_path: Path) -> None:
    blocks = make_blocks(VERIFY_ALONE_BLOCKS_MAX + 8)
    for block in blocks:
        write_block_file(tmp_path / f"{block.number}.blk", block)
    (tmp_path / "20.blk").write_bytes(b"spoiled")
    run = run_over(tmp_path, ledger_key(), workers_count=2)
    verdicts = list(run.verdicts())
    assert [verdict.number for verdict in verdicts] == [block.number for block in blocks]
    assert [verdict.number for verdict in verdicts if not verdict.is_accepted] == [20]
    assert run.gaps == []


# Has each process wait for a pipe in the place of a block file, which none does: as for a slow disk.
WAITING = """
from pathlib import Path
from sluice.gateway import regular_files
regular_files.open_regular = lambda path: Path(path).open("rb")
"""


def stuck_command(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    """A command that checks blocks in two processes, one of which waits for block 1; and its file, a pipe."""
    (folder / "sitecustomize.py").write_text(WAITING)
    for block in make_blocks(VERIFY_ALONE_BLOCKS_MAX + 2):
        write_block_file(folder / f"{block.number}.blk", block)
    stuck = folder / "1.blk"
    stuck.unlink()
    os.mkfifo(stuck)
    command = [sys.executable, "-m", "sluice.gateway.commands.cli", "verify", str(folder), "--workers", "2"]
    command += ["--ledger-key", ledger_key()]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(folder), str(Path.cwd())))}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment), stuck


@pytest.mark.timeout(120)
def test_the_processes_are_deaf_to_ctrl_c_and_end_with_a_command_that_is_killed(tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to all of them, and one that is just starting would print where it was."""
    process, stuck = stuck_command(tmp_path)
    with stuck.open("wb") as fifo:  # opened when one of the processes has opened it to read
        while (deaf_count := sum(map(_is_deaf, _children(process.pid)))) < 2:
            time.sleep(0.01)  # the other one comes as soon as the command gets to it
        process.kill()
        process.communicate()
        poll = select.poll()
        poll.register(fifo, 0)
        assert poll.poll(60_000) == [(fifo.fileno(), select.POLLERR)]  # nobody has it open any more
    assert deaf_count >= 2


def _children(process_id: int) -> list[int]:
    return list(map(int, Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()))


def _is_deaf(process_id: int) -> bool:
    status = Path(f"/proc/{process_id}/status").read_text()
    mask = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigBlk:"))
    return bool(1 << signal.SIGINT - 1 & mask)


def test_ledger_data_of_block_0(tmp_path: Path) -> None:
    for block in TssChain(NETWORK).blocks(3):
        write_block_file(tmp_path / f"{block.number}.blk", block)
    run = run_over(tmp_path, first=1)
    assert run.ledger_id is None
    assert [verdict.is_accepted for verdict in run.verdicts()] == [True, True]
    assert run.is_from_block_0
    assert run.ledger_id == NETWORK.ledger.ledger_id


@pytest.mark.parametrize("pinned", [True, False])
def test_ledger_data_of_another_network(tmp_path: Path, pinned: bool) -> None:
    for block in TssChain(NETWORK).blocks(2):
        write_block_file(tmp_path / f"{block.number}.blk", block)
    other = tmp_path / "other"
    other.write_bytes(OTHER.publication)
    key = f"tss:id={OTHER.ledger.ledger_id.hex()}" if pinned else f"tss:{other}"
    run = run_over(tmp_path, key)
    assert [verdict.is_accepted for verdict in run.verdicts()] == [False, False]
    assert not run.is_from_block_0
    assert run.ledger_id == (None if pinned else OTHER.ledger.ledger_id)


def test_without_block_0_tss_proofs_say_what_is_missing(tmp_path: Path) -> None:
    write_block_file(tmp_path / "1.blk", TssChain(NETWORK).block(1))
    [verdict] = run_over(tmp_path).verdicts()
    assert str(verdict.refusal).startswith("missing verification data: TSS block proof: got no ledger data, ")


def test_a_key_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LedgerKeyError, match=r"ledger key tss:.*none: got "):
        make_verifier(TrustedKeys.parse([f"tss:{tmp_path / 'none'}"]), "full", "auto", 0)
