"""A cluster's API server over TLS, as far as TokenReview goes: `Cluster`.

Pods are added and deleted; a projected token is a JWT of the cluster's own, as in a real one.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass

from tests.servers.ca import Authority
from tests.servers.issuer import SigningPair, TlsServer, sign

ISSUER = "https://kubernetes.default.svc.cluster.local"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCOUNT_UID = "0f000000-0000-0000-0000-000000000001"


@dataclass(frozen=True)
class Pod:
    """A pod and the service account it runs as."""

    name: str
    uid: str
    namespace: str = "agents"
    account: str = "runner"
    account_uid: str = ACCOUNT_UID


class Cluster(TlsServer):
    """Knows its pods, and who may ask: bearers in `allowed`."""

    def __init__(self, authority: Authority) -> None:
        super().__init__(authority)
        self.pair = SigningPair("RS256", "cluster-key")
        self.pods: dict[str, Pod] = {}
        self.allowed = {"broker-token-1"}
        self.bearers: list[str] = []
        self.patch: dict[str, object] = {}  # what to say instead, in `status`
        self.status = 201

    def add(self, pod: Pod) -> Pod:
        """Start a pod."""
        self.pods[pod.uid] = pod
        return pod

    def token(self, pod: Pod | None, audience: object, now: float, **claims: object) -> str:
        """A projected token; one without a pod is a secret's, of the old kind."""
        second = int(now)
        payload: dict[str, object] = {"iss": ISSUER, "aud": audience, "iat": second}
        payload |= {
            "nbf": second,
            "exp": second + 3600,
            "sub": "system:serviceaccount:agents:runner",
        }
        if pod is not None:
            payload["kubernetes.io"] = {"pod": {"name": pod.name, "uid": pod.uid}}
        header = {"alg": "RS256", "kid": self.pair.kid}
        return sign(self.pair, header, payload | claims)

    def answer(self, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, object]:
        """Review a token as the API server does."""
        if path != REVIEWS:
            return 404, {"kind": "Status"}
        bearer = {name.lower(): value for name, value in headers.items()}["authorization"]
        self.bearers.append(bearer.removeprefix("Bearer "))
        if self.bearers[-1] not in self.allowed:
            return 403, {"kind": "Status", "code": 403}
        spec = json.loads(body)["spec"]
        return self.status, {"kind": "TokenReview", "status": self._status(spec) | self.patch}

    def _status(self, spec: Mapping[str, object]) -> dict[str, object]:
        claims = _claims(str(spec["token"]))
        named = claims.get("kubernetes.io") if claims else None
        pod = self.pods.get(named["pod"]["uid"]) if isinstance(named, dict) else None
        audiences = claims.get("aud") if claims else None
        if claims is None or (named is not None and pod is None) or audiences != spec["audiences"]:
            return {"error": "token is not valid", "user": {}}
        extra: dict[str, object] = {"authentication.kubernetes.io/credential-id": ["JTI=1"]}
        if pod is not None:
            extra["authentication.kubernetes.io/pod-name"] = [pod.name]
            extra["authentication.kubernetes.io/pod-uid"] = [pod.uid]
            extra["authentication.kubernetes.io/node-name"] = ["node-1"]
        account = pod or Pod("", "")
        name = f"system:serviceaccount:{account.namespace}:{account.account}"
        user = {"username": name, "uid": account.account_uid, "groups": [], "extra": extra}
        return {"authenticated": True, "user": user, "audiences": audiences}


def _claims(token: str) -> dict[str, object] | None:
    try:
        payload = token.split(".")[1]
        found = json.loads(base64.urlsafe_b64decode(payload + "=="))
    except (ValueError, IndexError):
        return None
    return found if isinstance(found, dict) else None
