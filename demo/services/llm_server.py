"""The process `LocalLlm` runs: llama.cpp's own server with a small real model, a key demanded.

Reads one JSON line of settings from standard input (so its keys are on no command line and in no
environment), prints one JSON line `{"url": …}` when it listens, and ends when standard input does:
it cannot outlive the program that started it.
"""

from __future__ import annotations

import json
import os
import sys

import xllamacpp


def main() -> None:
    """Serve until standard input ends."""
    settings = json.loads(sys.stdin.buffer.readline())
    parameters = xllamacpp.CommonParams()
    parameters.model.path = settings["weights"]
    parameters.model_alias = {settings["model"]}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = settings["port"]
    parameters.n_ctx = settings["context"] * settings["slots"]
    parameters.n_parallel = settings["slots"]
    parameters.cpuparams.n_threads = settings["threads"]
    parameters.api_keys = settings["api_keys"]
    parameters.endpoint_metrics = True
    # The likeliest token each time: the same question has the same answer on every run.
    parameters.sampling.temp = 0.0
    server = xllamacpp.Server(parameters)
    # One write, on a line of its own: the server's threads log to the same place meanwhile.
    os.write(1, b"\n%s\n" % json.dumps({"url": server.listening_address}).encode())
    sys.stdin.buffer.read()
    # Not a tidy exit: the server's threads would first finish the answer they are working on.
    os._exit(0)


if __name__ == "__main__":
    main()
