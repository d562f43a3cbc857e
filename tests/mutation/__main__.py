"""Mutate the tables of the publish protocol, one cell at a time, and list the mutants that no test notices.

    python -m tests.mutation            all of them, some minutes
    python -m tests.mutation ENDINGS    those whose names begin so

The tests are collected once; each mutant runs them in a child process, up to the first failure. The exit
status is 1 if a mutant survives that `UNREACHABLE` does not explain.
"""

from __future__ import annotations

import os
import signal
import sys

import pytest

from tests.mutation.mutants import TESTS, Mutant, mutants
from tests.mutation.unreachable import reason_of

CHILD_SECONDS = 60
"""The deadline of a mutant that makes the tests run for ever."""


class _Runner:
    """A pytest plugin that runs the collected tests once for each mutant."""

    def __init__(self, chosen: list[Mutant]) -> None:
        self.chosen = chosen
        self.survivors: list[Mutant] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run instead of pytest's own loop."""
        assert session.testsfailed == 0, "a test module cannot be collected"
        assert self._is_noticed(session, None) is False, "the tests fail without any mutation"
        for mutant in self.chosen:
            if not self._is_noticed(session, mutant):
                self.survivors.append(mutant)
        return True

    def _is_noticed(self, session: pytest.Session, mutant: Mutant | None) -> bool:
        child = os.fork()
        if child == 0:
            self._run(session, mutant)
        _, status = os.waitpid(child, 0)
        return status != 0

    def _run(self, session: pytest.Session, mutant: Mutant | None) -> None:
        """Run the tests in this process, and end it."""
        signal.alarm(CHILD_SECONDS)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        if mutant is not None:
            mutant.apply()
        items = session.items
        for index, item in enumerate(items):
            following = items[index + 1] if index + 1 < len(items) else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed:
                os._exit(1)
        os._exit(0)


def main(prefixes: list[str]) -> int:
    """Run the mutants whose names begin with one of `prefixes`; print the results."""
    is_bad = False
    for side, paths in TESTS.items():
        chosen = [
            mutant
            for mutant in mutants()
            if mutant.side == side and (not prefixes or mutant.name.startswith(tuple(prefixes)))
        ]
        if not chosen:
            continue
        runner = _Runner(chosen)
        options = ["-qq", "-x", "--no-header", "-p", "no:cacheprovider", "--capture=no", "--no-summary"]
        pytest.main([*options, *paths], plugins=[runner])
        explained = {mutant.name: reason_of(mutant.name) for mutant in runner.survivors}
        open_ends = [name for name, reason in explained.items() if reason is None]
        is_bad |= bool(open_ends)
        for name, reason in explained.items():
            sys.stdout.write(f"{'SURVIVES' if reason is None else 'unreachable'} {name}  {reason or ''}\n")
        noticed, unreachable = len(chosen) - len(explained), len(explained) - len(open_ends)
        counts = f"{noticed} noticed, {unreachable} unreachable, {len(open_ends)} survive"
        sys.stdout.write(f"{side}: {len(chosen)} mutants, {counts}\n")
    return 1 if is_bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
