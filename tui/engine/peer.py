"""Who is at the other end of a Unix socket."""

import os
import socket
import struct
import sys

_SOL_LOCAL = 0
_LOCAL_PEERCRED = 1
"""From macOS's sys/un.h; Python's socket module has no name for them."""


def peer_uid(connection: socket.socket) -> int | None:
    """The user id of the process that connected; None where the system does not tell."""
    if sys.platform == "darwin":
        # struct xucred: version, uid, number of groups, groups.
        return struct.unpack_from("II", connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, 76))[1]
    if hasattr(socket, "SO_PEERCRED"):
        # struct ucred: pid, uid, gid.
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return struct.unpack("iII", credentials)[1]
    return None


def is_own(connection: socket.socket) -> bool:
    """Whether this user's own process is at the other end; where nobody can tell, the private
    folder that the socket lies in has already seen to it."""
    return peer_uid(connection) in (None, os.getuid())
