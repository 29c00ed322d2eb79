"""What the broker's contract tests do to a store: make sandboxes, revoke, many at a time."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from daypass_broker import revocation, sandbox
from daypass_broker.credential import Principal
from daypass_broker.revoke import Order, revoke
from daypass_broker.sandbox_request import SandboxRequest
from tests.unit.broker.desk import ADMIN, Store

WORKERS = 8
ACME = SandboxRequest(tenant="acme")

T = TypeVar("T")


def at_once(work: Callable[[int], T], workers: int = WORKERS) -> list[T]:
    """Run `work(0…n-1)` in threads that start together; the results in order."""
    barrier = threading.Barrier(workers)

    def started(number: int) -> T:
        barrier.wait(10)
        return work(number)

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(started, range(workers)))


def make(desk: Store, request: SandboxRequest = ACME, principal: Principal = ADMIN) -> list[Any]:
    """Make the sandboxes of a request."""
    with desk.acting(revocation.share_version) as act:
        return sandbox.create(act, principal, request, min_token_ttl=2)


def cut(desk: Store, scope: str, ident: str = "*") -> Any:
    """Revoke as admin; the effect."""
    with desk.acting(revocation.lock_version) as act:
        return revoke(act, ADMIN, Order(scope, ident))
