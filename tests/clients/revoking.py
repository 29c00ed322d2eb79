"""Revocations that the proxy has seen before anything goes on: `revoke`.

A call that is under way in that moment is cut: asked for twice, or broken off, as its client would
be by chance.
"""

from tests.servers.stack import Stack, call
from tests.support import eventually


def revoke(stack: Stack, scope: str, ident: str) -> None:
    """Revoke as an administrator does, and wait until the proxy knows of it.

    Who holds what was revoked is a client. So a token of our own is revoked next: when that one is
    refused, everything before it is.
    """
    last = stack.sandbox()
    headers = {"authorization": f"Bearer {stack.access_token(last)}"}
    for order in ({"scope": scope, "ident": ident}, {"scope": "sandbox", "ident": last["id"]}):
        assert stack.admin("POST", "/v1/revocations", order | {"reason": "test"}).status == 201

    def refused() -> bool:
        return call(stack.proxy_url, "GET", "/v1/self", headers=headers).status == 401

    eventually(refused, timeout=20)
