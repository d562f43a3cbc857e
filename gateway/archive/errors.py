"""The errors of an archive.

GatewayError
├── ArchiveDamaged            an object is not what its name, or the archive, says
└── ArchiveUnavailable        the store did not answer, or refused; a later try may succeed
    └── ArchiveRefused        it refused who asks
"""

from __future__ import annotations

from sluice.gateway.errors import GatewayError, GotExpected

__all__ = ["ArchiveDamaged", "ArchiveRefused", "ArchiveUnavailable"]


class ArchiveDamaged(GotExpected):
    """An object of the archive is not what it has to be."""


class ArchiveUnavailable(GatewayError):
    """The store did not answer, or answered with an error."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what}: {reason}")
        self.what = what
        """The object or prefix, with the archive's URL."""
        self.reason = reason


class ArchiveRefused(ArchiveUnavailable):
    """The store refused the credentials, or has no such bucket."""
