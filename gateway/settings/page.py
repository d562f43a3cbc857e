"""The page `docs/settings.md`: the table of settings for people, with each setting's name in every form.

`python -m gateway.settings.page` prints it; a test compares it with the page in the repository. Pure: it is
made of nothing but the table.
"""

from __future__ import annotations

import sys

from gateway.settings.table import NODE_SECTION, SETTINGS

__all__ = ["markdown"]


def markdown() -> str:
    """Return the whole page, a heading and a table for each section."""
    lines = [
        "# Settings of `sluice serve`",
        "",
        "Made by `python -m gateway.settings.page > docs/settings.md`; a test compares it with the code.",
        "",
        "In rising order of precedence: the default, the TOML file (`--config FILE` or `SLUICE_CONFIG`), the",
        "environment, the flag. In the environment several values have commas between them. Sizes may be",
        "written `8MiB`, `1GiB`; a time limit of 0 means no limit. A name that ends in `_seconds` may be",
        "written without that: `publish.block_timeout`. `sluice serve --print-config` shows what applies,",
        "and from where.",
    ]
    for section in dict.fromkeys(setting.section for setting in SETTINGS):
        place = "the top of the file" if section == NODE_SECTION else f"`[{section}]`"
        lines += ["", f"## {section}", "", f"In the TOML file: {place}.", ""]
        lines += ["| setting | flag | environment | default | unit | |", "|---|---|---|---|---|---|"]
        for one in SETTINGS:
            if one.section == section:
                flag = f"`{one.flag} {one.kind.metavar}`".replace("|", "\\|")
                cells = (f"`{one.name}`", flag, f"`{one.environment}`", one.default_text, one.unit, one.help)
                lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
