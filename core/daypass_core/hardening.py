"""What a service gives up before it serves: dumps, new privileges, its first environment.

`__main__` calls `harden` before any secret is read and `forget_environment` once the settings are.
An environment is the one place where a secret lies in the clear for whoever may read
/proc/PID/environ, and the one thing that every child is given without asking (attacks row 44).
"""

import ctypes
import logging
import os
import sys
from pathlib import Path

from daypass_core.log import event, get_logger

log = get_logger(__name__)

_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
_ENV_START, _ENV_END = 47, 48
"""Where proc(5) has env_start and env_end, behind the name of the process."""
# What libraries look up again while the service runs; none of it is a setting of ours. It stays in
# memory alone: /proc/PID/environ shows nothing of it.
_KEPT = frozenset({"PATH", "HOME", "TMPDIR", "TZ", "LANG"})
_KEPT |= {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}
_KEPT |= {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}
_KEPT_FAMILIES = ("LC_", "PYTHON", "PG", "MALLOC_")


def harden() -> None:
    """Keep secrets in memory out of core dumps and /proc/PID/mem, and files to their owner (Linux).

    Nothing started from here can gain privileges, by whatever bit a file of it has.
    """
    os.umask(0o077)
    if sys.platform != "linux":
        event(log, "hardening_not_available", platform=sys.platform)
        return
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    libc = ctypes.CDLL(None)
    for step, number, value in (
        ("PR_SET_DUMPABLE", _PR_SET_DUMPABLE, 0),
        ("PR_SET_NO_NEW_PRIVS", _PR_SET_NO_NEW_PRIVS, 1),
    ):
        if libc.prctl(number, value, 0, 0, 0) != 0:
            event(log, "hardening_failed", level=logging.WARNING, step=step)


def forget_environment() -> None:
    """Empty the environment of this process, but for what libraries need; call it without threads.

    Also what the kernel shows of it: that is the memory in which the process was given it, so that
    memory is zeroed. Values that are kept have been copied elsewhere before.
    """
    for name, value in list(os.environ.items()):  # noqa: TID251  nothing is read from it
        del os.environ[name]  # noqa: TID251
        if name.upper() in _KEPT or name.startswith(_KEPT_FAMILIES):
            os.environ[name] = value  # noqa: TID251
    if sys.platform != "linux":
        return
    try:
        figures = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        start, end = int(figures[_ENV_START]), int(figures[_ENV_END])
    except (OSError, ValueError, IndexError):
        start = end = 0
    if 0 < start < end:
        ctypes.memset(start, 0, end - start)
    else:
        event(log, "hardening_failed", level=logging.WARNING, step="environment")
