"""First program of a cell made by `unshare`: builds its root, raises `lo`, drops capabilities.

It runs as root of a new user, mount, network and process namespace, takes the layout from the
control socket (file descriptor in argv), makes that the whole file system, and becomes `init.py`.
Standard library only. The order matters: what needs capabilities comes before they are dropped, and
dropping them from the bounding set bites at the `exec` at the end.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import json
import os
import socket
import struct
import sys
from typing import Any

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_NOATIME, MS_NODIRATIME, MS_BIND, MS_REC = 1 << 10, 1 << 11, 1 << 12, 1 << 14
MS_RELATIME = 1 << 21
ST_RELATIME = 1 << 12
MNT_DETACH = 2
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
MESSAGE_BYTES = 1 << 16

libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object) -> None:
    """A libc function that answers 0 or sets errno; OSError naming the call in the second case."""
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """mount(2)."""
    call(
        "mount",
        source.encode(),
        target.encode(),
        kind.encode(),
        ctypes.c_ulong(flags),
        data.encode() or None,
    )


def make_target(source: str, target: str) -> None:
    """An empty directory or file to mount on, whichever the source is."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "ab"):
        pass


def bind(source: str, target: str, *, read_only: bool = True) -> None:
    """Show `source` at `target` too, with everything mounted below it."""
    make_target(source, target)
    mount(source, target, "", MS_BIND | MS_REC)
    if not read_only:
        return
    for point in mount_points(target):
        # A namespace of ours may not take away flags the outer mount has, so they are repeated.
        kept = os.statvfs(point).f_flag
        flags = kept & (MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME | MS_NODIRATIME)
        flags |= MS_RELATIME if kept & ST_RELATIME else 0
        mount("", point, "", MS_REMOUNT | MS_BIND | MS_RDONLY | flags)


def mount_points(below: str) -> list[str]:
    """The mount at `below` and every one under it."""
    with open("/proc/self/mountinfo", encoding="utf-8") as lines:
        points = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    return [point for point in points if point == below or point.startswith(f"{below}/")]


def build(layout: dict[str, Any]) -> None:
    """Make the layout's directories, links and mounts under its base, which becomes the root."""
    base = layout["base"]
    mount("tmpfs", base, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=4m")
    for link, text in layout["links"].items():
        os.symlink(text, base + link)
    for path, size in layout["scratch"].items():
        os.makedirs(base + path, exist_ok=True)
        mount("tmpfs", base + path, "tmpfs", MS_NOSUID | MS_NODEV, f"mode=755,size={size}")
    for target, source in layout["binds"].items():
        bind(source, base + target)
    for device in layout["devices"]:
        bind(device, base + device, read_only=False)
    os.makedirs(f"{base}/proc")
    mount("proc", f"{base}/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("", base, "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.chdir(base)
    call("pivot_root", b".", b".")
    call("umount2", b".", MNT_DETACH)
    os.chdir("/")


def raise_loopback() -> None:
    """A new network namespace has `lo` down; bring it up (what `ip link set lo up` does)."""
    with socket.socket() as any_socket:
        request = array.array("b", struct.pack("16sh22x", b"lo", 0))
        fcntl.ioctl(any_socket, SIOCGIFFLAGS, request)
        flags = struct.unpack_from("h", request, 16)[0]
        struct.pack_into("h", request, 16, flags | IFF_UP)
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, request)


def drop_capabilities() -> None:
    """Empty the bounding set: after the next exec even uid 0 in here has no capability."""
    for capability in range(64):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def main() -> None:
    """Take the layout, build, and become the cell's `init`."""
    descriptor = int(sys.argv[1])
    with socket.socket(fileno=os.dup(descriptor)) as control:
        layout = json.loads(control.recv(MESSAGE_BYTES))
    build(layout)
    raise_loopback()
    socket.sethostname("cell")
    drop_capabilities()
    os.set_inheritable(descriptor, True)
    os.execve(layout["init"][0], [*layout["init"], str(descriptor)], {})


if __name__ == "__main__":
    main()
