"""`sluice publish` for spark-submit, which starts scripts only; the same options follow it.

spark-submit --master spark://host:7077 \\
    "$(python -m sluice.publishers.job.submit.sluice_publish --where)" --source …
"""

from __future__ import annotations

import sys
from pathlib import Path

import click


def main(words: list[str]) -> int:
    """Run `sluice publish` with these words; with `--where` alone, print the path of this script."""
    if words == ["--where"]:
        click.echo(Path(__file__).absolute())
        return 0
    from sluice.gateway.commands.cli import main as sluice

    return sluice(["publish", *words])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
