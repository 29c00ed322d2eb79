"""LiteLLM's custom authentication: the same ES256 token, verified with PyJWT at each request.

Runs inside LiteLLM, in its own environment; what it needs stands in hook.json beside it.
"""

import json
from pathlib import Path

import jwt
from litellm.proxy._types import UserAPIKeyAuth

_TOLD = json.loads(Path(__file__).with_name("hook.json").read_text())
_KEY = Path(_TOLD["public"]).read_text()


async def user_api_key_auth(request: object, api_key: str) -> UserAPIKeyAuth:
    """Let in whoever holds a good token; PyJWT raises for all others."""
    claims = jwt.decode(
        api_key.removeprefix("Bearer "),
        _KEY,
        algorithms=["ES256"],
        issuer=_TOLD["issuer"],
        audience=_TOLD["audience"],
        options={"require": ["exp", "sub"]},
    )
    return UserAPIKeyAuth(api_key=claims["jti"], user_id=claims["sub"])
