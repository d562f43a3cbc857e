"""How this command was started, as a line that starts it again: by its own name, or by spark-submit.

spark-submit starts a JVM, which starts Python: the JVM is the parent, and its command line has the words that
spark-submit was given.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

__all__ = ["command_line", "is_submitted", "program_words"]

_OWN_WORDS: Final = ("sluice", "publish")
_SUBMIT_CLASS: Final = "org.apache.spark.deploy.SparkSubmit"
_GATEWAY_PORT: Final = "PYSPARK_GATEWAY_PORT"


def is_submitted(environment: Mapping[str, str]) -> bool:
    """Whether spark-submit started this process: its JVM is there already."""
    return _GATEWAY_PORT in environment


def program_words(environment: Mapping[str, str], parent: Path | None = None) -> list[str]:
    """Give the words before those of the command itself.

    Args:
        environment: of this process.
        parent: the parent's folder in /proc.
    """
    if not is_submitted(environment):
        return list(_OWN_WORDS)
    parent = parent or Path(f"/proc/{os.getppid()}")
    try:
        words = (parent / "cmdline").read_text().rstrip("\0").split("\0")
    except OSError:
        words = []
    if _SUBMIT_CLASS not in words:
        return ["spark-submit", "…", "sluice_publish.py"]
    rest = words[words.index(_SUBMIT_CLASS) + 1 :]
    script = next((at for at, word in enumerate(rest) if word.endswith(".py")), len(rest) - 1)
    return ["spark-submit", *rest[: script + 1]]


def command_line(program: Sequence[str], words: Sequence[str], first_block: int | None) -> str:
    """Write the command that goes on.

    Args:
        program: the words before `words`.
        words: as they were given.
        first_block: takes the place of `--from`; None: it stays.
    """
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if first_block is not None and word == "--from":
            next(rest, None)
        elif first_block is None or not word.startswith("--from="):
            kept.append(word)
    if first_block is not None:
        kept += ["--from", str(first_block)]
    return shlex.join([*program, *kept])
