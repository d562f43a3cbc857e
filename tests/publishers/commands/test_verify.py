"""`sluice verify`, on made and on real chains, and on nodes."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sluice.gateway.blocks.block import Block
from sluice.gateway.commands.cli import main
from sluice.gateway.node.node import Node
from sluice.publishers.blocks.block_files import write_block_file
from sluice.publishers.commands import verify
from sluice.publishers.commands.verify import VERIFY_TABLE_ROWS_MAX, VERIFY_WORKERS_MAX, command
from sluice.publishers.errors import SourceRefused, SourceUnreachable
from sluice.publishers.verify.verify_run import VERIFY_ALONE_BLOCKS_MAX
from sluice.publishers.verify.verify_sources import Job
from tests.certificates import Authority
from tests.gateway.blocks.proofs import real
from tests.gateway.blocks.proofs.tss_chain import TssChain
from tests.gateway.blocks.proofs.tss_network import TssNetwork
from tests.nodes import ledger_key, make_blocks
from tests.publishers import field_files
from tests.publishers.node_thread import node_thread, store
from tests.publishers.verify.test_verify_run import WAITING, stuck_command

BLOCKS = make_blocks(4)
KEY = ("--ledger-key", ledger_key())


def run(*arguments: object) -> Result:
    """Run the command."""
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def run_json(*arguments: object) -> tuple[int, dict[str, Any]]:
    """Run the command; its exit status and what it prints."""
    result = run(*arguments, "--json")
    assert result.exit_code in (0, 1), result.output
    return result.exit_code, json.loads(result.stdout)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The blocks as files."""
    for block in BLOCKS:
        write_block_file(tmp_path / f"{block.number}.blk.gz", block)
    return tmp_path


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that holds the blocks."""
    data_dir = tmp_path_factory.mktemp("node")
    store(data_dir, BLOCKS)
    with node_thread(data_dir) as running:
        yield running


def test_the_table(folder: Path) -> None:
    result = run(folder, *KEY)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "block  proof                root hash         verdict"
    assert [line.split()[0] for line in lines[1:5]] == ["0", "1", "2", "3"]
    assert all(line.endswith("  accepted") for line in lines[1:5])
    assert lines[5:] == ["4 blocks: 4 accepted, 0 refused"]


def test_a_tampered_file(folder: Path) -> None:
    path = folder / "2.blk.gz"
    content = bytearray(gzip.decompress(path.read_bytes()))
    content[-1] ^= 1  # the signature's last byte
    path.write_bytes(gzip.compress(bytes(content)))
    status, found = run_json(folder, *KEY)
    assert (status, found["sound"], found["accepted"], found["refused"]) == (1, False, 3, 1)
    assert [block["verdict"] for block in found["blocks"]] == ["accepted", "accepted", "refused", "accepted"]
    assert found["blocks"][2]["reason"]["kind"] == "bad proof"
    result = run(folder, *KEY)
    assert result.exit_code == 1
    assert "refused: bad proof: Ed25519 block proof: got " in result.stdout.splitlines()[3]
    # The signature is not part of the root hash.
    assert run(folder, *KEY, "--verify", "hash").stdout.splitlines()[-1] == (
        "4 blocks: 4 accepted, 0 refused; proofs were not checked"
    )


def test_what_stands_in_the_place_of_a_block_file_is_one_refused_block(folder: Path) -> None:
    """A pipe that nobody writes to, a link to itself, a folder, a terabyte of zeros: the rest is checked."""
    os.mkfifo(folder / "4.blk.gz")
    (folder / "5.blk").symlink_to("5.blk")
    (folder / "6.blk.zst").mkdir()
    with (folder / "7.blk.zst").open("wb") as file:
        file.truncate(1 << 40)
    status, found = run_json(folder, *KEY)
    assert (status, found["accepted"], found["refused"]) == (1, 4, 4)
    assert [block["reason"]["got"] for block in found["blocks"][4:]] == [
        "Not a regular file",
        "Too many levels of symbolic links",
        "Is a directory",
        "more than 268435456 bytes, the most that a block may have",
    ]


def test_a_block_0_that_gives_no_ledger_data_says_why_where_it_is_not_listed(tmp_path: Path) -> None:
    for block in TssChain(TssNetwork((1, 1))).blocks(2):
        write_block_file(tmp_path / f"{block.number}.blk", block)
    pinned = ("--ledger-key", f"tss:id={bytes(32).hex()}")
    result = run(tmp_path, *pinned, "--from", "1")
    assert result.exit_code == 1
    line = result.stdout.splitlines()[-1]
    assert line.startswith(
        "block 0 is refused and gives no ledger data: bad proof: ledger id publication: ledger id: got "
    )
    assert "gives no ledger data" not in run(tmp_path, *pinned).stdout
    assert "gives no ledger data" not in run(tmp_path, "--from", "1").stdout


@pytest.mark.parametrize(
    "make", [field_files.in_recent_folder, field_files.in_bucket, field_files.in_consensus_folder]
)
def test_folders_of_other_software(tmp_path: Path, make: Callable[[Path, Sequence[Block]], None]) -> None:
    make(tmp_path, BLOCKS)
    status, found = run_json(tmp_path, "--ledger-key", ledger_key())
    assert (status, found["accepted"], found["refused"]) == (0, len(BLOCKS), 0)


def test_archives_and_globs(tmp_path: Path) -> None:
    chain = make_blocks(VERIFY_ALONE_BLOCKS_MAX + 8)  # in several processes
    field_files.in_zip(tmp_path / "00/0.zip", chain[:20])
    field_files.in_tar(tmp_path / "01/0.tar", chain[20:])
    for arguments in ([tmp_path], [tmp_path / "**/*.zip", tmp_path / "01/0.tar"]):
        status, found = run_json(*arguments, "--ledger-key", ledger_key(), "--workers", 2)
        assert (status, found["accepted"], found["gaps"]) == (0, len(chain), [])
    damaged = tmp_path / "00/0.zip"
    data = bytearray(damaged.read_bytes())
    data[200] ^= 0xFF  # in the first member
    damaged.write_bytes(data)
    status, found = run_json(tmp_path, "--ledger-key", ledger_key())
    assert (status, found["refused"]) == (1, 1)
    reason = found["blocks"][0]["reason"]
    assert reason["what"] == f"{damaged}!{0:019}.blk.zstd"
    assert reason["got"].startswith("damaged: Bad CRC-32")


def test_a_gap(folder: Path) -> None:
    for number in (1, 2):
        (folder / f"{number}.blk.gz").unlink()
    status, found = run_json(folder, *KEY)
    assert (status, found["gaps"], found["sound"]) == (0, [[1, 2]], True)
    assert found["blocks"][1]["note"] == "the links to the blocks before it are believed"
    assert "blocks 1 to 2 are missing: the links across the gap are not checked" in run(folder, *KEY).stdout
    status, found = run_json(folder, *KEY, "--no-gaps")
    assert (status, found["refused"], found["sound"]) == (1, 0, False)


def test_a_gap_of_one_block_is_not_said_to_be_unchecked(folder: Path) -> None:
    """The tree over all blocks, in the next footer, tells a chain of somebody else's."""
    (folder / "1.blk.gz").unlink()
    lines = run(folder, *KEY).stdout.splitlines()
    assert "block 1 is missing" in lines
    assert any("the root hash of block 1 is taken from this block's footer" in line for line in lines)


def test_a_part_from_an_anchor(folder: Path) -> None:
    status, found = run_json(folder, *KEY, "--from", 2, "--to", 3)
    assert status == 0
    assert [block["number"] for block in found["blocks"]] == [2, 3]
    notes = [block["note"] for block in found["blocks"]]
    assert notes == ["the links to the blocks before it are believed", None]


def test_a_node_over_both_protocols(node: Node, folder: Path) -> None:
    by_files = run_json(folder, *KEY)
    assert by_files[0] == 0
    assert run_json(node.grpc_address, *KEY) == by_files
    assert run_json(node.tcp_address, "--tcp", *KEY) == by_files


def test_the_data_folder_of_a_node(tmp_path: Path, folder: Path) -> None:
    by_files = run_json(folder, *KEY)
    data_dir = tmp_path / "node"
    store(data_dir, BLOCKS)
    assert run_json(data_dir, *KEY) == by_files
    assert run_json(data_dir / "datastream.bin", *KEY) == by_files
    with node_thread(data_dir):
        assert run_json(data_dir, *KEY) == by_files
    assert [block["number"] for block in run_json(data_dir, *KEY, "--from", 2)[1]["blocks"]] == [2, 3]


@pytest.mark.parametrize("mutual", [False, True])
@pytest.mark.parametrize("port", ["grpc", "tcp"])
def test_a_node_that_is_asked_with_tls(tmp_path: Path, port: str, mutual: bool) -> None:
    authority = Authority(tmp_path)
    server, own = authority.issue("node"), authority.issue("auditor")
    serving = {f"{port}_tls_certificate": server.certificate, f"{port}_tls_key": server.key}
    trust: tuple[object, ...] = ("--tls-ca", authority.path)
    identity: tuple[object, ...] = ()
    if mutual:
        serving[f"{port}_tls_client_ca"] = authority.path
        identity = ("--tls-cert", own.certificate, "--tls-key", own.key)
    store(tmp_path / "node", BLOCKS)
    with node_thread(tmp_path / "node", **serving) as node:
        asked = (node.grpc_address,) if port == "grpc" else (node.tcp_address, "--tcp")
        status, found = run_json(*asked, *KEY, *trust, *identity)
        assert (status, found["accepted"]) == (0, 4)
        misnamed = run(*asked, *KEY, *trust, *identity, "--tls-server-name", "node.example")
        assert isinstance(misnamed.exception, SourceUnreachable)
        without = run(*asked, *KEY, *(trust if mutual else ()))
        assert isinstance(without.exception, SourceUnreachable)


def test_the_progress_of_many_blocks_on_a_terminal(tmp_path: Path) -> None:
    """It is on standard error, which is a terminal here, and is gone at the end; the verdicts stay whole."""
    for block in BLOCKS:
        write_block_file(tmp_path / f"{block.number}.blk", block)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "sluice.gateway.commands.cli", "verify", str(tmp_path), *KEY]
    shown_bytes = bytearray()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True) as process:
        os.close(theirs)
        with contextlib.suppress(OSError):  # how a terminal says that nobody writes any more
            while data := os.read(ours, 65_536):
                shown_bytes += data
        assert process.stdout is not None
        verdicts = process.stdout.read()
    os.close(ours)
    shown = shown_bytes.decode()
    assert process.returncode == 0
    assert "verifying" in shown
    assert "4/4" in shown
    assert shown.endswith("\x1b[2K")  # the line is cleared
    assert verdicts.splitlines()[-1] == "4 blocks: 4 accepted, 0 refused"


@pytest.mark.timeout(120)
def test_what_was_found_before_an_interruption_is_printed(folder: Path) -> None:
    """Ctrl-C while block 2 is read, which takes for ever."""
    (folder / "sitecustomize.py").write_text(WAITING)
    path = folder / "1.blk.gz"
    path.write_bytes(gzip.compress(b"spoiled"))
    stuck = folder / "2.blk.gz"
    stuck.unlink()
    os.mkfifo(stuck)
    for flags in ([], ["--json"]):
        command = [sys.executable, "-m", "sluice.gateway.commands.cli", "verify", str(folder), *KEY, *flags]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(folder), str(Path.cwd())))}
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)
        with stuck.open("wb"):  # opened when the command has opened it to read
            # Python sees a signal before a call that blocks, or in it: one that comes as the read begins
            # would be seen behind it, and this read has no end.
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate()
        assert (process.returncode, stderr) == (130, "\n")
        if flags:
            found = json.loads(stdout)
            assert (found["complete"], found["sound"], found["accepted"], found["refused"]) == (
                False,
                False,
                1,
                1,
            )
            continue
        lines = stdout.splitlines()
        assert [line.split()[0] for line in lines[1:-2]] == ["0", "1"]
        assert lines[-2:] == [
            "2 blocks: 1 accepted, 1 refused",
            "not complete: the check ended after block 1",
        ]


@pytest.mark.timeout(120)
def test_a_second_ctrl_c_waits_with_the_first_for_the_processes(tmp_path: Path) -> None:
    """It would leave their pool half ended, and Python waits for that at its own end."""
    process, stuck = stuck_command(tmp_path)
    with stuck.open("wb"):  # opened when one of the processes has opened it to read
        for _ in range(3):
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (130, "\n")
    assert stdout.splitlines()[-1] == "not complete: the check ended after block 0"


def test_what_was_found_before_a_node_failed_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = make_blocks(VERIFY_ALONE_BLOCKS_MAX + 1)  # so many are asked for before the first is checked

    class Failing:
        count = len(blocks) + 2

        def jobs(self) -> Iterator[Job]:
            for block in blocks:
                yield Job(block.number, items=block.items)
            raise SourceRefused("the next block", "it is not there")

        def block_0(self) -> Job | None:
            return None

    monkeypatch.setattr(verify, "_source", lambda *_, **__: Failing())
    assert main(["verify", "anything", *KEY, "--workers", "1"]) == 1
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-2:] == [
        f"{len(blocks)} blocks: {len(blocks)} accepted, 0 refused",
        f"not complete: the check ended after block {len(blocks) - 1}",
    ]
    assert printed.err == f"sluice: {SourceRefused('the next block', 'it is not there')}\n"


def test_many_blocks_are_not_all_listed(tmp_path: Path) -> None:
    count = VERIFY_TABLE_ROWS_MAX + 1
    for block in make_blocks(count):
        write_block_file(tmp_path / f"{block.number}.blk", block)
    (tmp_path / "7.blk").write_bytes(b"")
    result = run(tmp_path, *KEY, "--workers", 1)
    lines = result.stdout.splitlines()
    assert lines[1].split()[:4] == ["7", "none", "-", "refused:"]
    assert lines[2].endswith("accepted; the root hash of block 7 is taken from this block's footer")
    assert lines[3:] == [
        f"{count - 2} more blocks are not listed here (--all lists them)",
        f"{count} blocks: {count - 1} accepted, 1 refused",
    ]
    assert len(run(tmp_path, *KEY, "--workers", 1, "--all").stdout.splitlines()) == count + 2


def test_one_block_is_one_block(tmp_path: Path) -> None:
    (block,) = make_blocks(1)
    write_block_file(tmp_path / "0.blk", block)
    assert run(tmp_path, *KEY).stdout.splitlines()[-1] == "1 block: 1 accepted, 0 refused"


def test_errors_are_one_line(folder: Path, node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    other = folder / "none"
    both = folder / "both"
    store(both, BLOCKS[:1])
    write_block_file(both / "0.blk", BLOCKS[0])
    stream = both / "datastream.bin"
    address = str(node.grpc_address)
    cases = {
        (str(other),): (
            1,
            f"sluice: {other}: got nothing of that name, expected a file, a folder, or a node",
        ),
        (str(folder), address): (1, f"sluice: {address}: got nothing of that name, expected block files or"),
        (str(folder), "--tcp"): (2, "sluice verify: --tcp is for HOST:PORT, not for files"),
        (address, "--tcp", "--tls-ca", "/none.pem"): (
            2,
            "sluice: CA file: got /none.pem (No such file or directory)",
        ),
        (str(folder), "--tls-ca", "x"): (
            2,
            "sluice verify: --tls and --tls-… are for HOST:PORT, not for files",
        ),
        (address, "--tls-ca", "/none.pem"): (2, "sluice: CA file: got /none.pem (No such file or directory)"),
        (str(stream), str(folder)): (1, f"sluice: {stream}: got a stream among other files, expected a node"),
        (str(both),): (1, f"sluice: {both}: got a stream file and block files, expected the one or the"),
        (str(folder), "--from", "3", "--to", "2"): (2, "sluice verify: --to 2 is before --from 3"),
        (str(folder), "--from", "9"): (1, "alone or in a zip or a tar) of these numbers"),
        (str(folder), "--ledger-key", "x"): (2, "sluice: ledger key 'x': got no kind"),
        ("127.0.0.1:1",): (1, "sluice: what the node has did not come (127.0.0.1:1: UNAVAILABLE"),
    }
    for arguments, (status, words) in cases.items():
        assert main(["verify", *arguments]) == status
        [line] = capsys.readouterr().err.splitlines()
        assert words in line


@real.needs_real_blocks
@pytest.mark.parametrize(
    ("chain", "numbers", "kinds"),
    [
        ("signed-chain", [0, 1, 2, 3, 4, 5], {"TSS block proof", "state proof"}),
        ("layout-8-chain", [0, 1, 2, 3, 4], {"TSS block proof", "state proof"}),
        ("record-file-chain", [0, 1, 2], {"RSA record-file proof"}),
        ("wraps-chain", [0, 391], {"TSS block proof"}),
    ],
)
def test_real_chains(chain: str, numbers: list[int], kinds: set[str]) -> None:
    book = real.FOLDER / chain / "address-book.json"
    keys = ["--ledger-key", f"rsa:{book}"] if book.exists() else []
    status, found = run_json(real.FOLDER / chain, *keys)
    assert status == 0, found
    assert [block["number"] for block in found["blocks"]] == numbers
    assert {kind for block in found["blocks"] for kind in block["proofs"]} == kinds
    if not keys:
        assert found["ledger_id"] == real.ledger(chain).ledger_id.hex()
        printed = run(real.FOLDER / chain).stdout.splitlines()
        assert printed[-1].endswith(f"pin it with --ledger-key tss:id={found['ledger_id']}")


@real.needs_real_blocks
@pytest.mark.parametrize(("needed", "status"), [(0, 0), (3, 0), (4, 1)])
def test_how_many_nodes_must_have_signed_a_record_file(needed: int, status: int) -> None:
    """Three of the four have."""
    folder = real.FOLDER / "record-file-chain"
    keys = ("--ledger-key", f"rsa:{folder / 'address-book.json'}")
    found_status, found = run_json(folder, *keys, "--verification-rsa-threshold", needed)
    assert found_status == status
    reasons = [block["reason"] and block["reason"]["got"] for block in found["blocks"]]
    assert reasons == [None if status == 0 else "3 nodes that signed"] * 3


@pytest.mark.parametrize(("layout", "verdict"), [("auto", "accepted"), ("16", "accepted"), ("8", "refused")])
def test_a_layout_that_is_set_is_the_only_one(folder: Path, layout: str, verdict: str) -> None:
    _, found = run_json(folder, *KEY, "--verification-root-layout", layout)
    assert {block["verdict"] for block in found["blocks"]} == {verdict}


@real.needs_real_blocks
def test_one_real_block_with_the_ledger_data_of_its_block_0() -> None:
    folder = real.FOLDER / "wraps-chain"
    one = folder / "391.blk.gz"
    status, found = run_json(one, "--ledger-key", f"tss:{folder / '0.blk.gz'}")
    assert (status, found["blocks"][0]["note"]) == (0, "the links to the blocks before it are believed")
    other = real.FOLDER / "signed-chain" / "0.blk.gz"
    status, found = run_json(one, "--ledger-key", f"tss:{other}")
    assert (status, found["blocks"][0]["reason"]["kind"]) == (1, "bad proof")
    status, found = run_json(one)
    assert (status, found["blocks"][0]["reason"]["kind"]) == (1, "missing verification data")


def test_so_many_workers_may_be_asked_for_and_not_one_more(tmp_path: Path) -> None:
    write_block_file(tmp_path / "0.blk", make_blocks(1)[0])
    assert run(tmp_path, *KEY, "--workers", VERIFY_WORKERS_MAX).exit_code == 0
    refused = run(tmp_path, *KEY, "--workers", VERIFY_WORKERS_MAX + 1)
    assert refused.exit_code == 2
    assert "257 is not in the range 1<=x<=256" in refused.stderr
