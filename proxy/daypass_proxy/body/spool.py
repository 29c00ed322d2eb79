"""A large request body in memory of its own, which another process can look at without a copy.

`exchange` writes a body here as it arrives once it is larger than SPOOL_ABOVE, `checkers` hands the
descriptor to a worker, and when the check is over the bytes come back for the way up. Sealed before
it is shared: what a worker has checked nobody can change (attack row 31). It is anonymous memory,
so a read-only file system and a missing /dev/shm do no harm.
"""

import asyncio
import ctypes
import fcntl
import os
import sys

from daypass_core.problem import Code, refuse

SPOOL_ABOVE = 2 * 1024 * 1024
"""Smaller bodies are joined in memory; that takes a millisecond."""
AVAILABLE = sys.platform == "linux"
"""Elsewhere, on a developer's machine, bodies stay in memory and a thread checks large ones."""
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGE_BLOCK = 4 * 1024 * 1024
_KEPT = 16 * 1024 * 1024
_SEALS = (
    (fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    if AVAILABLE
    else 0
)


def spool_above(limit: int) -> int:
    """Return the size above which a body of at most `limit` bytes is spooled."""
    return SPOOL_ABOVE if AVAILABLE else limit


def return_large_blocks() -> None:
    """Have blocks of over 4 MiB given back to the system as soon as they are free (glibc).

    Left alone, glibc takes the first of them for a habit and then keeps up to 64 MiB for each
    thread that has ever held one. Of smaller ones 16 MiB are kept: to get a megabyte from the
    system anew for each body takes a quarter of a millisecond.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)
        mallopt(_M_TRIM_THRESHOLD, _KEPT)


class Spool:
    """Bytes that are written once, in order. Its memory is given back with the object."""

    __slots__ = ("_size", "fd")

    def __init__(self) -> None:
        """Make an empty one; raises Refusal overloaded without memory or descriptors."""
        self.fd = -1
        self._size = 0
        try:
            self.fd = os.memfd_create("body", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError:
            raise refuse(Code.OVERLOADED) from None

    @classmethod
    def of(cls, body: bytes) -> "Spool":
        """Return one that holds `body`; raises Refusal overloaded."""
        spool = cls()
        spool.write(body)
        return spool

    def __len__(self) -> int:
        return self._size

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)

    def write(self, piece: bytes) -> None:
        """Append `piece`; raises Refusal overloaded when the memory is not there."""
        rest = memoryview(piece)
        try:
            while rest:
                rest = rest[os.write(self.fd, rest) :]
        except OSError:
            raise refuse(Code.OVERLOADED) from None
        self._size += len(piece)

    def seal(self) -> None:
        """Let nobody write any more, whoever has the descriptor."""
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)

    async def take(self) -> bytes:
        """Return all bytes, once. In a thread: 32 MiB take up to 50 ms."""
        # The thread holds on to this object, so the descriptor is not closed under its hands.
        return await asyncio.to_thread(self._read)

    def _read(self) -> bytes:
        data = os.pread(self.fd, self._size, 0)
        if len(data) != self._size:
            raise OSError("spooled body came back short")
        # Its bytes are not needed twice, and whoever still holds this object may do so for long.
        descriptor, self.fd = self.fd, -1
        os.close(descriptor)
        return data
