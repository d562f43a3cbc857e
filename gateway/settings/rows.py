"""One row of the table of settings: its name in each form, its kind, its default, its help.

The rows themselves are in `gateway.settings.table`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gateway.settings.kinds import Listed, SettingKind

if TYPE_CHECKING:
    from gateway.settings.table import Settings

__all__ = ["NODE_SECTION", "Derived", "Setting", "row"]

NODE_SECTION = "node"
"""The heading of the settings that are in no section of the file."""

_SECONDS: Final = "_seconds"


@dataclass(frozen=True, slots=True)
class Derived:
    """A default that follows from other settings."""

    words: str
    """How it follows, for the help: `3 x block_time_seconds`."""
    compute: Callable[[Settings], object]
    """Gives the value from the settings that have plain defaults."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table."""

    name: str
    """Dotted name, `section.key`, or `key` for those in no section."""
    kind: SettingKind
    """How the value is read and written."""
    default: object
    """A value of the kind, a `Derived`, or None for "unset"."""
    unit: str
    """What the number counts, or "" where it is no number."""
    help: str
    """One or two sentences for people."""
    flag: str
    """The command line's long option, `--publish-max-block-bytes`."""

    @property
    def attribute(self) -> str:
        """The name of the field in `Settings`."""
        return self.name.replace(".", "_")

    @property
    def environment(self) -> str:
        """The name of the environment variable."""
        return "SLUICE_" + self.attribute.upper()

    @property
    def short_name(self) -> str | None:
        """The dotted name without its unit, `publish.block_timeout`; None where it has none."""
        return self.name.removesuffix(_SECONDS) if self.name.endswith(_SECONDS) else None

    @property
    def short_environment(self) -> str | None:
        """The environment variable of `short_name`."""
        return None if self.short_name is None else "SLUICE_" + self.short_name.replace(".", "_").upper()

    @property
    def flags(self) -> tuple[str, ...]:
        """The long option, and the same without the unit."""
        short = self.flag.removesuffix(_SECONDS.replace("_", "-"))
        return (self.flag,) if short == self.flag else (self.flag, short)

    @property
    def section(self) -> str:
        """The table in the TOML file, or `NODE_SECTION` for the file's top."""
        return self.name.rpartition(".")[0] or NODE_SECTION

    @property
    def is_list(self) -> bool:
        """Whether the flag may be repeated."""
        return isinstance(self.kind, Listed)

    @property
    def default_text(self) -> str:
        """The default for people: as it would stand in the file, in words, or `unset`."""
        if isinstance(self.default, Derived):
            return self.default.words
        if self.default is None or self.default == ():
            return "unset"
        return self.kind.to_toml(self.default).strip('"')


def row(name: str, kind: SettingKind, default: object, help: str, *, unit: str = "", flag: str = "") -> Any:
    """Make the dataclass field of one row; typed `Any`, so that the annotation of the field is its type."""
    setting = Setting(
        name, kind, default, unit, help, flag or "--" + name.replace(".", "-").replace("_", "-")
    )
    return field(default=default, metadata={"setting": setting})
