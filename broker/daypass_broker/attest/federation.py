"""Attestation by somebody else: a workload shows an assertion of an issuer that a rule names.

rule → form → addressed to us → signature, or the cluster's word → times → conditions → identity.
The caller names the rule, and no other is tried (attacks row 23). Rules are looked up in memory and
read again at most once a second, so names made up by strangers cost the store nothing; that a rule
is in force is asked of the store once more in the transaction that issues (`enrol`).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from daypass_broker import db, oauth, rule_store
from daypass_broker.attest import jws, oidc
from daypass_broker.attest.https import HttpsClient
from daypass_broker.attest.jws import Assertion, refuse
from daypass_broker.attest.keysets import KeySets, KeysUnavailable
from daypass_broker.attest.kubernetes import Reviewer, ReviewUnavailable
from daypass_broker.rule import Kind, NoIdentity, Rule, State, claim
from daypass_broker.services import Services
from daypass_core.log import event, get_logger
from daypass_core.verify import Reason

log = get_logger(__name__)

LOOK_SECONDS = 1.0
"""How old the rules in memory may be."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload whose assertion verified and meets a rule; times in epoch seconds.

    `identity` is the canonical JSON of the claims that name it, `digest` the SHA-256 (hex) of what
    was signed, `claims` what the audit trail is told.
    """

    rule: Rule
    identity: str
    issued_at: int
    expires_at: int
    digest: str
    claims: Mapping[str, object]


class Federation:
    """A broker's view of the rules, the keys of their issuers, and the cluster's word."""

    def __init__(self, services: Services, monotonic: Callable[[], float] = time.monotonic) -> None:
        settings = services.settings.federation
        client = HttpsClient(settings.networks, settings.ca_file)
        self._services = services
        self._monotonic = monotonic
        self._sets = KeySets(client.get, monotonic)
        self._reviewer = Reviewer(settings.kubernetes, monotonic)
        self._rules: dict[str, Rule] = {}
        self._version: object = None
        self._looked = float("-inf")
        self._looking = asyncio.Lock()

    async def attest(self, unverified_token: str, rule_id: str, now: float) -> Workload:
        """Verify an assertion by the rule the caller names, at `now` (epoch seconds).

        Raises TokenRefused, and OAuthError (503) when the issuer's keys or the cluster's word
        cannot be had.
        """
        await self._look()
        rule = self._rules.get(rule_id)
        if rule is None or rule.state is not State.ACTIVE:
            refuse(Reason.WRONG_ISSUER, "no such rule in force")
        assertion = jws.parse(unverified_token)
        oidc.check_addressed(assertion.unverified_claims, rule)
        claims = await self._verify(unverified_token, assertion, rule)
        # The cluster's answer has no times; that the token is good says that its payload is.
        times = oidc.check_times(assertion.unverified_claims, rule, now)
        unmet = rule.unmet(claims)
        if unmet is not None:
            refuse(Reason.BAD_CLAIMS, f"{unmet}: is not what the rule demands", signed=True)
        try:
            identity = rule.name_workload(claims)
        except NoIdentity as error:
            refuse(Reason.BAD_CLAIMS, f"{error}: is missing, or names no workload", signed=True)
        return Workload(
            rule=rule,
            identity=identity,
            issued_at=times[0],
            expires_at=times[1],
            # Without the signature: some kinds have several good ones for the same assertion.
            digest=hashlib.sha256(assertion.signed).hexdigest(),
            claims={path: claim(claims, path) for path in (*rule.conditions, *rule.identity)},
        )

    async def _verify(
        self, unverified_token: str, assertion: Assertion, rule: Rule
    ) -> Mapping[str, object]:
        try:
            if rule.kind is Kind.KUBERNETES:
                return await self._reviewer.review(unverified_token, rule)
            return await oidc.verify(assertion, rule, self._sets)
        except (KeysUnavailable, ReviewUnavailable) as error:
            event(log, "issuer_unavailable", level=logging.ERROR, rule=rule.id, cause=str(error))
            raise oauth.unavailable("the issuer of the assertion cannot be asked") from None

    async def _look(self) -> None:
        """Read the rules again when they are old; with the store away the old ones have to do.

        Nothing is issued by them then: issuing needs the store.
        """
        if self._monotonic() - self._looked < LOOK_SECONDS:
            return
        async with self._looking:
            if self._monotonic() - self._looked < LOOK_SECONDS:
                return
            started = self._monotonic()
            try:
                await asyncio.to_thread(self._read)
            except db.StoreUnavailable:
                event(log, "rules_not_read", level=logging.WARNING)
                # Its end: of all that waited for it, nobody waits for the next one too.
                started = self._monotonic()
            self._looked = started
            self._sets.forget({(rule.issuer, rule.keys.url) for rule in self._rules.values()})

    def _read(self) -> None:
        with db.read(self._services.engine) as conn:
            version = rule_store.version(conn)
            if version == self._version:
                return
            rules = rule_store.every(conn)
        self._rules = {rule.id: rule for rule in rules}
        self._version = version
