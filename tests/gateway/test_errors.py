"""Tests of `gateway.errors` and `gateway.blocks.errors`."""

from __future__ import annotations

import inspect
import re
from types import ModuleType

import pytest

from sluice.gateway import errors
from sluice.gateway.blocks import errors as block_errors
from sluice.gateway.blocks.refusal import Refusal, RefusalKind


def classes(module: ModuleType) -> dict[str, type[Exception]]:
    """The errors that a module defines."""
    return {
        name: cls
        for name, cls in vars(module).items()
        if inspect.isclass(cls) and issubclass(cls, Exception) and cls.__module__ == module.__name__
    }


@pytest.mark.parametrize("module", [errors, block_errors])
def test_the_hierarchy_in_the_docstring_is_the_real_one(module: ModuleType) -> None:
    parents = {}
    path: list[str] = []
    for line in (module.__doc__ or "").splitlines():
        match = re.match(r"(?:    )?((?:│   |    )*)(├── |└── |(?=GatewayError))([A-Z]\w+)  ", line + "  ")
        if match is None:
            continue
        depth = len(match[1]) // 4 + 1 if match[2] else 0
        path[depth:] = [match[3]]
        parents[match[3]] = path[depth - 1] if depth else "Exception"
    own = classes(module)
    assert {name: parents[name] for name in own} == {n: cls.__bases__[0].__name__ for n, cls in own.items()}
    assert set(parents) - set(own) <= set(classes(errors))


@pytest.mark.parametrize("module", [errors, block_errors])
def test_every_error_is_public(module: ModuleType) -> None:
    assert set(module.__all__) == set(classes(module))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (block_errors.ItemError("item", "no bytes", "one field"), "item: got no bytes, expected one field"),
        (block_errors.ItemError("item", "a", "b", where="item 3"), "item 3: item: got a, expected b"),
        (
            block_errors.BlockRefused(Refusal(RefusalKind.MISSING_ITEM, "block", "no footer", "one")),
            "missing item: block: got no footer, expected one",
        ),
        (block_errors.LayoutError("block 1", "a", "b"), "block 1: got a, expected b"),
        (block_errors.ChainStateError("chain state", "a", "b"), "chain state: got a, expected b"),
        (block_errors.ChainMisuse(7, 5), "chain: got block 7, expected block 5"),
        (
            block_errors.LedgerKeyError("ledger keys", got="none", expected="one"),
            "ledger keys: got none, expected one",
        ),
        (errors.KeyFileError("k.pem", got="a", expected="b"), "k.pem: got a, expected b"),
    ],
)
def test_an_error_says_object_got_and_expected(error: errors.GatewayError, text: str) -> None:
    assert str(error) == text


def test_a_refused_block_holds_its_refusal() -> None:
    refusal = Refusal(RefusalKind.MISSING_ITEM, "block", "no footer", "one")
    error = block_errors.BlockRefused(refusal)
    assert error.refusal is refusal
    assert (error.what, error.got, error.expected) == ("block", "no footer", "one")


def test_what_the_operator_told_it_ends_with_status_2() -> None:
    assert block_errors.LedgerKeyError.exit_status == errors.SettingError.exit_status == 2
    assert block_errors.BlockRefused.exit_status == errors.KeyFileError.exit_status == 1
