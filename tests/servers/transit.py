"""A transit engine on a real OpenBao, and a broker's login for it."""

from demo.services.openbao import SELF_PATHS, OpenBao

POLICY = {
    "transit/keys/daypass-*": ["create", "read", "update"],
    "transit/keys/daypass-+/rotate": ["update"],
    "transit/sign/daypass-*": ["update"],
}
"""Wider than deploy/vault/broker.hcl: every test has key names of its own."""


def enable(bao: OpenBao) -> None:
    """Mount the engine, and make the policy `broker` of what a broker needs on it."""
    bao.request("POST", "sys/mounts/transit", {"type": "transit"})
    rules = {**POLICY, **{path: [capability] for path, capability in SELF_PATHS.items()}}
    policy = "\n".join(
        f'path "{path}" {{ capabilities = [{", ".join(map(repr, words))}] }}'.replace("'", '"')
        for path, words in rules.items()
    )
    bao.request("PUT", "sys/policies/acl/broker", {"policy": policy})


def token(bao: OpenBao) -> str:
    """A token with that policy and no other."""
    asked = {"policies": ["broker"], "no_default_policy": True, "ttl": "1h", "renewable": True}
    answer = bao.request("POST", "auth/token/create-orphan", asked)
    return str(answer["auth"]["client_token"])
