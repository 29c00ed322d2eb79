"""Rounds of a race: fifty exchanges at two brokers, and a revocation that falls among them.

Whatever token an exchange brought, it was issued before or during the revocation, or it was issued
past it; the last must not be, and the others must not be accepted anywhere once the bound is over.
"""

import threading
import time
from collections.abc import Mapping
from typing import Any

from tests.servers.fleet import Fleet
from tests.servers.stack import call

EXCHANGES, SANDBOXES = 50, 10
BOUND_SECONDS = 0.8
ENDS = ("sandbox", "tenant", "grant", "global", "ended")


class Rounds:
    """Races on one fleet; `issued` are all tokens that were ever brought by a lost race."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.issued: set[str] = set()
        self.accepted: list[str] = []

    def run(self, number: int) -> None:
        """Race one revocation, of another kind each time; fails when a token outlives it."""
        fleet, end = self.fleet, ENDS[number % len(ENDS)]
        sandboxes = fleet.sandboxes(SANDBOXES)
        tokens: list[str] = []
        threads = [
            threading.Thread(
                target=self._exchange, args=(one % 2, sandboxes[one % SANDBOXES], tokens)
            )
            for one in range(EXCHANGES)
        ]
        for thread in threads[: EXCHANGES // 2]:
            thread.start()
        revoking = threading.Thread(target=self._end, args=(end, sandboxes, number % 2))
        revoking.start()
        for thread in threads[EXCHANGES // 2 :]:
            thread.start()
        revoking.join()
        stored = time.monotonic()
        for thread in threads:
            thread.join()
        late = [one for one in sandboxes if fleet.exchange(one, fleet.proxies[0]).status == 200]
        assert late == [], f"{end}: issued after the revocation was confirmed"
        time.sleep(max(0.0, stored + BOUND_SECONDS - time.monotonic()))
        self._refused(set(tokens), f"round {number}, {end}")
        self.issued.update(tokens)

    def assert_all_refused(self) -> None:
        """Fail when any token of any round is accepted by any proxy."""
        self._refused(self.issued, "afterwards")

    def _refused(self, tokens: set[str], when: str) -> None:
        for token in tokens:
            headers = {"authorization": f"Bearer {token}"}
            for url in self.fleet.proxies:
                status = call(url, "GET", "/v1/models", headers=headers).status
                assert status == 401, f"{when}: answered {status} by {url}"

    def _exchange(self, proxy: int, sandbox: Mapping[str, Any], tokens: list[str]) -> None:
        answer = self.fleet.exchange(sandbox, self.fleet.proxies[proxy])
        if answer.status == 200:
            tokens.append(answer.json()["access_token"])
        else:
            assert answer.status in (400, 503), answer.body

    def _end(self, end: str, sandboxes: list[dict[str, Any]], broker: int) -> None:
        fleet = self.fleet
        if end in ("tenant", "global"):
            # Bounded: the tenant has to go on for the next round.
            ident = "acme" if end == "tenant" else None
            fleet.revoke(end, ident, broker=broker, not_before="now")
            return
        for sandbox in sandboxes:
            if end == "ended":
                path = f"/v1/sandboxes/{sandbox['id']}"
                answer = fleet.admin("DELETE", path, url=fleet.brokers[broker])
                assert answer.status == 200, answer.body
            elif end == "grant":
                query = "SELECT id FROM grant_record WHERE sandbox = ? AND parent IS NULL"
                (grant,) = fleet.rows(query, sandbox["id"])
                fleet.revoke("grant", grant["id"], broker=broker)
            else:
                fleet.revoke("sandbox", sandbox["id"], broker=broker)
