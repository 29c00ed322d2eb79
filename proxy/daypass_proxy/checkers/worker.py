"""A process that checks large bodies, so that the proxy's event loop goes on meanwhile.

Started by `pool` as a fresh interpreter with an empty environment and one socket: it has no
key, no token, no database and no way to the network that it was given. For each body it gets a
descriptor of sealed memory and the scope, runs the very same check as the proxy itself, and
answers with the few figures of `Asked` or with the refusal, never with any part of the document.

Limits per body: memory six times its size and a little, CPU time a second and 100 ns a byte
(attack row 17). A breach of the one is answered, of the other ends the process; the pool sees it.
"""

import ctypes
import gc
import mmap
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable

import msgspec

from daypass_core.problem import Code, Problem, Refusal
from daypass_core.scope import Detail
from daypass_proxy.body.outline import Buffer
from daypass_proxy.body.spool import SPOOL_ABOVE, return_large_blocks
from daypass_proxy.providers import Asked
from daypass_proxy.providers.dialects import CHECKS

PACKET = 64 * 1024
"""The largest question or answer. A scope has 2 KiB at most, an answer a few model names."""
READY = b"ready"
CPU_SECONDS = 1.0
CPU_SECONDS_PER_BYTE = 100e-9
_MEMORY_PER_BYTE = 8
_MEMORY_SPARE = 96 * 1024 * 1024
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38


class Question(msgspec.Struct, frozen=True):
    """What the pool asks about the body whose descriptor comes along."""

    dialect: str
    size: int
    max_tokens_needed: bool
    detail: Detail


class Verdict(msgspec.Struct, frozen=True):
    """What the worker says: one of the two."""

    asked: Asked | None = None
    problem: Problem | None = None


def judge(question: Question, descriptor: int) -> Verdict:
    """Check one body; a body that takes too much memory is refused like any other."""
    try:
        with mmap.mmap(
            descriptor, question.size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ
        ) as mapped:
            body: Buffer = mapped if question.size > SPOOL_ABOVE else mapped[:]
            check = CHECKS[question.dialect]
            return Verdict(
                asked=check(body, question.detail, max_tokens_needed=question.max_tokens_needed)
            )
    except Refusal as refusal:
        return Verdict(problem=refusal.problem)
    except MemoryError:
        return Verdict(
            problem=Problem.of(Code.INVALID_REQUEST, "request body takes too much memory")
        )


def serve(link: socket.socket, begin: Callable[[int], None] = lambda size: None) -> None:
    """Answer questions until the other end is gone. `begin` is told the size of each body."""
    link.send(READY)
    while True:
        packet, descriptors, _, _ = socket.recv_fds(link, PACKET, 1)
        if not packet:
            return
        question = msgspec.json.decode(packet, type=Question)
        try:
            begin(question.size)
            verdict = judge(question, descriptors[0])
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        link.send(msgspec.json.encode(verdict))
        gc.collect()


def confine(parent: int) -> None:
    """Give up what a check does not need, and end with `parent` (Linux)."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)  # it ended before the kernel was told
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC):
        resource.setrlimit(limit, (0, 0))
    # The proxy decides when it is over: signals to the whole group are its own to handle.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Nothing of a check refers to itself but exceptions, and those are collected after each.
    gc.disable()
    gc.freeze()
    return_large_blocks()


def limits() -> Callable[[int], None]:
    """Return the function that sets the limits for one body of so many bytes."""
    with open("/proc/self/statm", "rb") as figures:
        before = int(figures.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)

    def begin(size: int) -> None:
        memory = before + size + _MEMORY_PER_BYTE * size + _MEMORY_SPARE
        resource.setrlimit(resource.RLIMIT_AS, (memory, hard))
        # Without a handler SIGPROF ends the process, even inside of a decoder written in C.
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS + size * CPU_SECONDS_PER_BYTE)

    return begin


def main() -> None:
    """Serve the socket that is standard input."""
    confine(int(sys.argv[1]))
    with socket.socket(fileno=os.dup(0)) as link:
        serve(link, limits())


if __name__ == "__main__":
    main()
