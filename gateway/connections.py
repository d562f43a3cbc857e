"""Ends the connection of a gRPC client that cannot be reached otherwise, from below: at its socket.

A shell around `/proc/self/fd`. gRPC's server has no way to reset a call: a status waits behind what the
client does not read, for ever. The socket of a connection is found among those of this process by the
client's address and shut down; gRPC then ends all calls of that connection as when a client is gone.

Where there is no `/proc`, or no file descriptor left to read it, nothing is found, and nothing is done.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
from pathlib import Path

__all__ = ["cut_off"]

_OPEN_FILES = Path("/proc/self/fd")


def cut_off(peer: str) -> bool:
    """End the connection of a client; say whether it was found.

    Args:
        peer: gRPC's name of the connection, `ipv4:192.0.2.1:5000` or `ipv6:%5B2001:db8::1%5D:5000`.
    """
    wanted = _place_of(peer)
    if wanted is None:
        return False
    try:
        numbers = [int(entry.name) for entry in _OPEN_FILES.iterdir()]
    except OSError:
        return False
    return any(_shut_down(number, wanted) for number in numbers)


_Place = tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]


def _place_of(peer: str) -> _Place | None:
    """Read gRPC's name of a connection; None for one that is not over IP."""
    kind, _, rest = peer.replace("%5B", "[").replace("%5D", "]").partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return _place(host.strip("[]"), int(port))


def _place(host: str, port: int) -> _Place | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address, port


def _shut_down(number: int, wanted: _Place) -> bool:
    """Shut an open file down if it is the socket that is wanted; say whether it was."""
    try:
        # Of sockets alone: who closes a copy of LevelDB's LOCK gives its lock away, as POSIX has it.
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return False
        # A copy: gRPC may close the file meanwhile, and its number be given to another.
        copy = os.dup(number)
    except OSError:  # closed by now
        return False
    try:
        found = socket.socket(fileno=copy)
    except OSError:  # closed, and the number given to another, since it was looked at
        os.close(copy)
        return False
    with found:
        try:
            name = found.getpeername()
            if not isinstance(name, tuple) or _place(str(name[0]), int(name[1])) != wanted:
                return False
            found.shutdown(socket.SHUT_RDWR)
        except OSError:  # not connected
            return False
    return True
