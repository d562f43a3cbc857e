"""Tests of `gateway.proof_process`: a real process that answers, dies, hangs and is replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.errors import BlockRefused
from gateway.ledger_keys import LedgerKeys
from gateway.proof_process import ProofProcess
from gateway.proofs import ProofVerifier
from gateway.verification import BlockVerifier
from tests.gateway.blocks import PUBLIC_KEY, block_items, summary_of
from tests.gateway.proofs.tss_chain import TssChain
from tests.gateway.proofs.tss_network import TssNetwork

NETWORK = TssNetwork((1, 1, 1))
CHAIN = TssChain(NETWORK)
KNOWING = ProofVerifier(LedgerKeys((PUBLIC_KEY,)), "full", NETWORK.ledger)
ITEMS = list(CHAIN.block(1).items)
SUMMARY = summary_of(ITEMS)
FORGED = summary_of(list(CHAIN.block(1, signed_by=TssNetwork((1, 1, 1), seed=2)).items))


@pytest.fixture
def process() -> Iterator[ProofProcess]:
    """A process that is ended with the test."""
    process = ProofProcess()
    yield process
    process.close()
    assert process.pid is None


def test_it_answers_as_the_verifier_here_does(process: ProofProcess) -> None:
    assert process.pid is None
    assert process.check(KNOWING, SUMMARY, ()) == BlockVerifier(KNOWING).check(SUMMARY)
    with pytest.raises(BlockRefused) as there:
        process.check(KNOWING, FORGED, ())
    with pytest.raises(BlockRefused) as here:
        BlockVerifier(KNOWING).check(FORGED)
    assert there.value.refusal == here.value.refusal
    assert process.check(KNOWING, summary_of(block_items(3)), ()).summary.number == 3


def test_it_checks_with_the_keys_of_each_request(process: ProofProcess) -> None:
    pid = None
    for proofs, is_accepted in (
        (ProofVerifier(LedgerKeys(), "full"), False),
        (KNOWING, True),
        (ProofVerifier(LedgerKeys(), "full", TssNetwork((1, 1, 1), seed=2).ledger), False),
        (KNOWING, True),
    ):
        try:
            process.check(proofs, SUMMARY, ())
        except BlockRefused:
            assert not is_accepted
        else:
            assert is_accepted
        pid = pid or process.pid
        assert process.pid == pid


def test_what_block_0_publishes_comes_back(process: ProofProcess) -> None:
    block_0 = CHAIN.block(0)
    verdict = process.check(
        ProofVerifier(LedgerKeys(), "full"), summary_of(list(block_0.items)), block_0.items
    )
    assert verdict.published == NETWORK.ledger
    assert verdict.published is not None
    assert verdict.published.publication == NETWORK.publication


def test_one_that_was_killed_is_replaced(process: ProofProcess) -> None:
    assert process.check(KNOWING, SUMMARY, ()).published is None
    first = process.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert process.check(KNOWING, SUMMARY, ()).published is None
    assert process.pid not in (None, first)


def test_one_that_hangs_is_killed_by_somebody_else(process: ProofProcess) -> None:
    process.start()
    hanging = process.pid
    assert hanging is not None
    os.kill(hanging, signal.SIGSTOP)
    answers: list[object] = []
    asking = threading.Thread(target=lambda: answers.append(process.check(KNOWING, SUMMARY, ())))
    asking.start()
    process.kill()  # before it is asked, or while it hangs
    asking.join()
    assert answers == [BlockVerifier(KNOWING).check(SUMMARY)]


def test_a_block_that_ends_it_twice_is_refused(
    process: ProofProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter of the process is one that ends at once, as if it crashed."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(BlockRefused) as caught:
        process.check(KNOWING, SUMMARY, ())
    assert str(caught.value.refusal) == (
        "unsupported: block proofs: got 2 checks that did not come to an end, expected proofs that can be "
        "checked"
    )


def test_once_ended_for_good_it_is_not_started_again() -> None:
    process = ProofProcess()
    process.start()
    pid = process.pid
    assert pid is not None
    process.kill(for_good=True)
    with pytest.raises(BlockRefused):
        process.check(KNOWING, SUMMARY, ())
    process.close()
    process.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_signals_to_the_group_do_not_end_it(process: ProofProcess) -> None:
    process.check(KNOWING, SUMMARY, ())
    pid = process.pid
    assert pid is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, number)
    process.check(KNOWING, SUMMARY, ())
    assert process.pid == pid


ORPHAN = """
import sys
from gateway.proof_process import ProofProcess
process = ProofProcess()
process.start()
print(process.pid, flush=True)
sys.stdin.read()
"""


def test_it_ends_with_a_node_that_was_killed() -> None:
    node = subprocess.Popen(
        [sys.executable, "-c", ORPHAN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert node.stdout is not None
    pid = int(node.stdout.readline())
    node.kill()
    node.communicate()
    deadline = time.monotonic() + 20
    while is_running(pid):
        assert time.monotonic() < deadline, "the process outlived its node"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
