"""What a service gives up before it serves."""

import json
import subprocess
import sys
import textwrap

SCRIPT = """
    import ctypes, json, os, stat, subprocess, sys
    from daypass_core.hardening import forget_environment, harden
    harden()
    forget_environment()
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_char_p
    child = subprocess.run(["env"], capture_output=True, text=True).stdout
    print(json.dumps({
        "kept": sorted(os.environ),
        "shown": open("/proc/self/environ").read().strip(chr(0)),
        "library": (libc.getenv(b"SSL_CERT_FILE") or b"").decode(),
        "secret": (libc.getenv(b"DAYPASS_DATABASE_URL") or b"").decode(),
        "child": sorted(line.partition("=")[0] for line in child.splitlines()),
        "umask": os.umask(0),
    }))
"""


def test_the_environment_is_forgotten() -> None:
    """Row 44: nothing is left of settings and keys, in memory, in /proc or for a child process."""
    given = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": ":".join(sys.path),
        "SSL_CERT_FILE": "/etc/ca.pem",
        "LC_ALL": "C.UTF-8",
        "https_proxy": "http://proxy:3128",
        "DAYPASS_DATABASE_URL": "postgresql://user:word@host/db",
        "LLM_KEY": "sk-ant-nothing",
        "VAULT_TOKEN": "nothing",
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        env=given, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    found = json.loads(done.stdout)
    kept = ["LC_ALL", "PATH", "PYTHONPATH", "SSL_CERT_FILE", "https_proxy"]
    assert found["kept"] == kept
    assert set(found["child"]) <= {*kept, "_"}
    assert found["shown"] == ""
    assert found["library"] == "/etc/ca.pem"
    assert found["secret"] == ""
    assert found["umask"] == 0o077
