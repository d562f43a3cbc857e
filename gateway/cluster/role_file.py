"""The role of a node over a restart: `role.json` in its data folder.

    {"role": "standby", "followed": "192.0.2.7:40840"}

A shell. The file goes before the setting `role`: an operator sets how a new node begins, a failover decides
how it goes on. It is replaced whole and flushed before anything that follows from it is done.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from gateway.addresses import parse_address
from gateway.cluster.roles import RoleRecord
from gateway.errors import AddressError, Fatal
from gateway.regular_files import replace_file

__all__ = ["ROLE_FILE_NAME", "read_role", "write_role"]

ROLE_FILE_NAME = "role.json"
_EXPECTED = 'an object such as {"role": "standby", "followed": "host:port"}'


def read_role(data_dir: Path) -> RoleRecord | None:
    """Read what is remembered; None where there is nothing.

    Raises:
        Fatal: the file cannot be read. A node that guesses its role could be a second active one.
    """
    path = data_dir / ROLE_FILE_NAME
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise Fatal(str(path), got=str(error), expected=_EXPECTED) from error
    try:
        found = json.loads(text)
        role, followed = found["role"], found.get("followed")
        if role not in ("active", "standby"):
            raise ValueError(f"role {role!r}")
        if followed is not None:
            parse_address(followed, port_min=1)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, AddressError):
        raise Fatal(str(path), got=repr(text[:200]), expected=_EXPECTED) from None
    return RoleRecord(role, followed)


def write_role(data_dir: Path, record: RoleRecord) -> None:
    """Remember a role; it is on disk when this returns.

    Raises:
        OSError: the disk refused; what was remembered before still is.
    """
    path = data_dir / ROLE_FILE_NAME
    before = path.read_bytes() if path.exists() else None
    content: dict[str, str] = {"role": record.role}
    if record.followed is not None:
        content["followed"] = record.followed
    try:
        replace_file(path, (json.dumps(content) + "\n").encode())
    except OSError:
        # Nobody acts on the new role, so a restart must not find it: that could be a second active node.
        with contextlib.suppress(OSError):
            if before is None:
                path.unlink()
            else:
                replace_file(path, before)
        raise
