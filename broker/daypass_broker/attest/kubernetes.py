"""Attestation by the cluster: the API server is asked about a projected token (TokenReview).

It alone knows whether the pod still lives: keys verify a deleted pod's token until it expires. A
yes is kept for ten seconds, which is also how long a pod may be gone before its token is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Mapping

from daypass_broker.attest import jws
from daypass_broker.attest.https import FetchError, HttpsClient
from daypass_broker.attest.jws import refuse
from daypass_broker.rule import Rule
from daypass_broker.settings import KubernetesSettings
from daypass_core.secret import Secret, SecretUnreadable, read_secret_file
from daypass_core.verify import Reason

KEEP_SECONDS = 10.0
MAX_AT_ONCE = 8
"""Reviews under way: a flood of made-up tokens must not become a flood at the API server."""
_MAX_KEPT = 4096
_PATH = "/apis/authentication.k8s.io/v1/tokenreviews"
_EXTRA = "authentication.kubernetes.io/"
_USER = "system:serviceaccount:"


class ReviewUnavailable(Exception):
    """The cluster does not say: down, refusing us, too busy. The message is for our log."""


class Reviewer:
    """Asks the API server, and remembers its yes; one object a running loop."""

    def __init__(
        self, settings: KubernetesSettings, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._monotonic = monotonic
        # The operator's own setting, and inside by nature; no other authority may speak for it.
        self._client = HttpsClient(ca_file=settings.ca_file, anywhere=True, only_ca=True)
        self._kept: dict[str, tuple[float, Mapping[str, object]]] = {}
        self._free = asyncio.Semaphore(MAX_AT_ONCE)

    async def review(self, unverified_token: str, rule: Rule) -> Mapping[str, object]:
        """Return what the cluster says of a live pod's token, by claim as rules name them.

        Raises TokenRefused and ReviewUnavailable.
        """
        asked = f"{rule.audience} {unverified_token}"
        digest = hashlib.sha256(asked.encode()).hexdigest()
        kept = self._kept.get(digest)
        if kept is not None and self._monotonic() - kept[0] < KEEP_SECONDS:
            return kept[1]
        if self._free.locked():
            raise ReviewUnavailable("too many reviews at once")
        async with self._free:
            started = self._monotonic()
            claims = _read(await self._ask(unverified_token, rule.audience), rule.audience)
        self._keep(digest, started, claims)
        return claims

    def _keep(self, digest: str, moment: float, claims: Mapping[str, object]) -> None:
        if len(self._kept) >= _MAX_KEPT:
            oldest = moment - KEEP_SECONDS
            self._kept = {key: kept for key, kept in self._kept.items() if kept[0] > oldest}
        if len(self._kept) < _MAX_KEPT:
            self._kept[digest] = (moment, claims)

    async def _ask(self, unverified_token: str, audience: str) -> Mapping[str, object]:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": unverified_token, "audiences": [audience]},
        }
        try:
            own = await asyncio.to_thread(self._own_token)
            headers = {
                "authorization": f"Bearer {own.reveal()}",
                "content-type": "application/json",
                "accept": "application/json",
            }
            url = self._settings.url + _PATH
            answer = await self._client.send("POST", url, headers, json.dumps(body).encode())
            document = jws.decode_json(answer.body)
        except (FetchError, SecretUnreadable, ValueError) as error:
            raise ReviewUnavailable(str(error)) from None
        if answer.status not in (200, 201):
            raise ReviewUnavailable(
                f"the API server answered {answer.status}: may the broker create tokenreviews?"
            )
        status = document.get("status") if isinstance(document, dict) else None
        if not isinstance(status, dict):
            raise ReviewUnavailable("the API server answered no TokenReview")
        return status

    def _own_token(self) -> Secret:
        # At every review: the kubelet replaces the file, and its token ends an hour later.
        return read_secret_file(self._settings.token_file)


def _read(status: Mapping[str, object], audience: str) -> Mapping[str, object]:
    """Read the status of a TokenReview; raises TokenRefused."""
    if status.get("authenticated") is not True:
        refuse(Reason.BAD_SIGNATURE, "the cluster does not know the token, or its pod is gone")
    # A server that knows no audiences leaves them out: it did not check ours.
    if status.get("audiences") != [audience]:
        refuse(Reason.WRONG_AUDIENCE, "the cluster did not confirm the audience")
    user = status.get("user")
    user = user if isinstance(user, dict) else {}
    name, extra = user.get("username"), user.get("extra")
    if not isinstance(name, str) or not name.startswith(_USER) or not isinstance(extra, dict):
        refuse(Reason.BAD_CLAIMS, "not the token of a service account", signed=True)
    namespace, _, account = name.removeprefix(_USER).partition(":")
    claims = {
        "namespace": namespace,
        "service_account": account,
        "service_account_uid": user.get("uid"),
        "pod": _one(extra, "pod-name"),
        "pod_uid": _one(extra, "pod-uid"),
        "node": _one(extra, "node-name"),
    }
    if not claims["pod_uid"]:
        refuse(Reason.BAD_CLAIMS, "pod_uid: the token is bound to no pod", signed=True)
    return {name: value for name, value in claims.items() if value}


def _one(extra: Mapping[str, object], name: str) -> object:
    values = extra.get(_EXTRA + name)
    return values[0] if isinstance(values, list) and len(values) == 1 else None
