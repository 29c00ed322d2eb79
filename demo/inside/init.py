"""Process 1 of a cell: starts what the demo asks for, collects what ends, and ends with the demo.

Requests come over the control socket (file descriptor in argv): one message
`{"id", "argv", "env"}` with three file descriptors for standard input, output and error. Each
process that ends is reported as `{"id", "exit"}`. When the demo is gone the socket ends, this
process ends, and the kernel ends every other process of the namespace. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys

MESSAGE_BYTES = 1 << 16


def start(request: dict[str, object], descriptors: list[int]) -> int:
    """Start one process on the three descriptors given; its process id."""
    argv, env = request["argv"], request["env"]
    assert isinstance(argv, list)
    assert isinstance(env, dict)
    actions = [(os.POSIX_SPAWN_DUP2, descriptor, n) for n, descriptor in enumerate(descriptors)]
    return os.posix_spawn(
        argv[0], argv, env, file_actions=actions, setsigmask=(), setsigdef=[signal.SIGCHLD]
    )


def report_ended(control: socket.socket, started: dict[int, object]) -> None:
    """Collect every child that has ended; orphans that landed here are collected silently."""
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if process == 0:
            return
        if process in started:
            message = {"id": started.pop(process), "exit": os.waitstatus_to_exitcode(status)}
            with contextlib.suppress(OSError):  # the demo may be gone already
                control.send(json.dumps(message).encode())


def take_request(control: socket.socket, started: dict[int, object]) -> bool:
    """Start what the next message asks for; False when the demo has closed the socket."""
    message, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 3)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)  # the child gets copies, as 0, 1 and 2
    if message:
        request = json.loads(message)
        started[start(request, descriptors)] = request["id"]
    for descriptor in descriptors:
        os.close(descriptor)
    return bool(message)


def serve(control: socket.socket) -> None:
    """Answer requests until the other end closes, then end what still runs."""
    started: dict[int, object] = {}
    wake_up, wake_up_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake_up_write)
    control.send(b'{"hello": true}')
    with selectors.DefaultSelector() as waiting:
        waiting.register(control, selectors.EVENT_READ)
        waiting.register(wake_up, selectors.EVENT_READ)
        open_still = True
        while open_still:
            ready = [key.fileobj for key, _ in waiting.select()]
            if wake_up in ready:
                os.read(wake_up, MESSAGE_BYTES)
            if control in ready:
                open_still = take_request(control, started)
            report_ended(control, started)
    for process in started:
        # Only needed where the system allows no process namespace.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def main() -> None:
    """Serve the control socket named in argv."""
    with socket.socket(fileno=int(sys.argv[1])) as control:
        control.set_inheritable(False)
        serve(control)


if __name__ == "__main__":
    main()
