"""Tests of `gateway.limits`: that each limit is public and has a reason.

What happens one past a limit is tested where it is reached.
"""

from __future__ import annotations

import ast
import inspect

from gateway import limits


def test_every_limit_is_public_and_says_why() -> None:
    body = ast.parse(inspect.getsource(limits)).body
    names, reasons = [], []
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                reasons.append(node.target.id)
    assert names == reasons
    assert set(names) == set(limits.__all__)


def test_every_limit_is_a_positive_number() -> None:
    for name in limits.__all__:
        assert getattr(limits, name) > 0, name
