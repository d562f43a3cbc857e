"""Errors say what is wrong, and cross process borders."""

from __future__ import annotations

import pickle

import pytest

from sluice.publishers import errors
from sluice.publishers.report import PublishReport

CASES = [
    (
        errors.BadBlock(5, "bad root hash"),
        "block 5 is bad; neither it nor later blocks were sent: bad root hash",
    ),
    (errors.ArchiveError("not a zip"), "not a zip"),
    (errors.SparkJobFailed("no Java"), "the Spark job failed: no Java"),
    (errors.FrameError("block 5 is missing", "add it"), "block 5 is missing; add it"),
    (
        errors.PartOrderTimeout(5, 3, 2.5),
        (
            "block 5 cannot be sent before block 4 is stored; block 3 is the last that is stored, "
            "without change for 2.5 s"
        ),
    ),
    (
        errors.PartOrderTimeout(5, None, 2.5, "a:1: refused"),
        "block 5 cannot be sent before block 4 is stored; no gateway has answered for 2.5 s (a:1: refused)",
    ),
    (errors.CheckpointError("a", "of another source"), "checkpoint a: of another source"),
    (errors.MisbehaviourFailed("no block comes"), "no block comes"),
    (errors.PublishStopped("p-1"), "publisher p-1 was told to stop"),
    (errors.BlockFileError("a/5.blk", "truncated"), "a/5.blk: truncated"),
    (errors.BlockListError("a", "block 5 is missing"), "a: block 5 is missing"),
    (errors.BlockOrderError(5, 6), "block 5 is missing: block 6 came after block 4"),
    (errors.BlockOrderError(5, 8), "blocks 5 to 7 are missing: block 8 came after block 4"),
    (errors.BlockOrderError(5, 5 - 1), "block 4 comes twice or out of order: block 5 was expected"),
    (
        errors.ItemTooLarge(5, 2, 9_000_000, 8_387_584),
        "block 5: item 2 takes 9000000 bytes in a message, at most 8387584 are allowed",
    ),
    (errors.MakerOptionError("--rounds", 0, "1 to 1000"), "--rounds: got 0, expected 1 to 1000"),
    (
        errors.OptionError("gateways", "nothing", "host:port"),
        "option 'gateways': got nothing, expected host:port",
    ),
    (errors.PrepareError(5, "no header"), "block 5 cannot be prepared: no header"),
    (errors.PrepareError(None, "a null"), "the blocks cannot be prepared: a null"),
    (errors.SourceCancelled(5), "the source of blocks was cancelled after block 5"),
    (errors.SourceCancelled(None), "the source of blocks was cancelled before its first block"),
    (
        errors.SourceRefused("block 5", "a:1 says NOT_AVAILABLE"),
        "cannot get block 5: a:1 says NOT_AVAILABLE",
    ),
    (
        errors.SchemaError("items", "string", "ARRAY<BINARY>"),
        "column 'items': got string, expected ARRAY<BINARY>",
    ),
    (errors.PublishFailed("no Java", PublishReport("alice")), "publisher alice: no Java"),
    (
        errors.SourceUnreachable("entry 7", 2.5, "a:1: refused"),
        "entry 7 did not come within 2.5 s (a:1: refused)",
    ),
    (errors.SourceUnreachable("entry 7", None, "a:1: refused"), "entry 7 did not come (a:1: refused)"),
    (errors.SparkUnavailable("no Java found", "install one"), "no Java found; install one"),
    (errors.MachineError("clock", "done"), "publisher: can't handle clock in state done"),
]


@pytest.mark.parametrize(("error", "text"), CASES, ids=lambda value: type(value).__name__)
def test_text_and_pickle(error: errors.PublisherError, text: str) -> None:
    assert str(error) == text
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert vars(copy).keys() == vars(error).keys()
    assert str(copy) == text


def test_every_error_has_a_case() -> None:
    classes = {getattr(errors, name) for name in errors.__all__} - {errors.PublisherError}
    assert classes == {type(error) for error, _ in CASES}
