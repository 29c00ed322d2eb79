"""Bodies of tens of megabytes: passed on byte for byte in bounded memory, or refused readably."""

import base64
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import anthropic
import pytest
from anthropic.types import MessageParam

from tests.servers.stack import Stack, call
from tests.servers.stub import StubUpstream
from tests.support import eventually

MB = 1024 * 1024
TOO_LARGE = 40 * MB
BODY = 31 * MB
AT_ONCE = 6
PLAIN = {"model": "claude-sonnet-4-5", "max_tokens": 8}


@pytest.fixture(scope="module")
def token(module_stack: Stack) -> str:
    """An access token with money for large calls."""
    return module_stack.access_token(module_stack.sandbox(budget_usd="500.00"))


def images(size: int, seed: int = 0) -> bytes:
    """A request of images in base64, `size` bytes in all."""
    count = 5
    raw = hashlib.shake_256(str(seed).encode()).digest(MB)
    data = base64.b64encode(raw * (size // MB + 1))[: (size // count - 400) // 4 * 4].decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    content = [{"type": "image", "source": source}] * count
    messages = [{"role": "user", "content": content}]
    body = json.dumps({**PLAIN, "metadata": {"user_id": ""}, "messages": messages}).encode()
    return body.replace(b'"user_id": ""', b'"user_id": "%s"' % (b"x" * (size - len(body))))


# -- what is too large


@pytest.mark.sdk
def test_b42_the_official_client_tries_once(
    stack: Stack, upstream: StubUpstream, token: str
) -> None:
    """B42: the official client reads the 413 and does not come back."""
    before = stack.complete_log("proxy").count("request_too_large")
    asked: MessageParam = {"role": "user", "content": "x" * TOO_LARGE}
    client = anthropic.Anthropic(base_url=stack.proxy_url, auth_token=token, api_key=None)
    with client, pytest.raises(anthropic.APIStatusError) as caught:
        client.messages.create(model="claude-sonnet-4-6", max_tokens=8, messages=[asked])
    assert caught.value.status_code == 413
    assert stack.complete_log("proxy").count("request_too_large") == before + 1
    assert upstream.requests == []


# -- what is large


def resident(pid: int) -> int:
    """Bytes of memory of a process that it shares with no file on disk."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kinds = ("RssAnon:", "RssShmem:")
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(kinds))


def family(pid: int) -> list[int]:
    """A process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


@contextmanager
def peak_of(pid: int) -> Iterator[list[int]]:
    """Watch the memory of a process and its children; the list holds the peak, in bytes."""
    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            with suppress(OSError):
                peak[0] = max(peak[0], sum(map(resident, family(pid))))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def post(stack: Stack, token: str, body: bytes) -> int:
    """Send one request and return the status."""
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    return call(stack.proxy_url, "POST", "/v1/messages", body, headers, timeout=120).status


def test_b43_large_bodies_pass_in_bounded_memory(
    stack: Stack, upstream: StubUpstream, token: str
) -> None:
    """B43: 31 MB of images pass unchanged, alone and six at once, in memory of three times them.

    A body is held once on its way; two at a time are checked, each in up to six times its size.
    """
    pid = stack.processes["proxy"].pid
    before = sum(map(resident, family(pid)))
    bodies = [images(BODY, seed) for seed in range(AT_ONCE)]
    with peak_of(pid) as peak:
        assert post(stack, token, bodies[0]) == 200
    alone = peak[0] - before
    with peak_of(pid) as peak, ThreadPoolExecutor(AT_ONCE) as threads:
        statuses = list(threads.map(lambda body: post(stack, token, body), bodies))
    together = peak[0] - before
    assert statuses == [200] * AT_ONCE
    seen = sorted(hashlib.sha256(request.body).hexdigest() for request in upstream.requests)
    sent = [hashlib.sha256(body).hexdigest() for body in (bodies[0], *bodies)]
    assert seen == sorted(sent)
    assert alone < 6 * BODY, f"{alone / BODY:.1f} times the body"
    assert together < 3 * AT_ONCE * BODY, f"{together / BODY / AT_ONCE:.1f} times the bodies"
    # What was taken is given back, and no descriptor of a body is left (case B31).
    assert eventually(lambda: sum(map(resident, family(pid))) - before < BODY, timeout=20)
    left = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]
    assert not [name for name in left if "memfd:body" in name]
