"""daypass: agents get a day pass, never the key.

What an agent image installs. Nothing beyond the standard library is imported, and the access
token is opaque here: nothing in this package reads inside it.

    from daypass.anthropic import client          # an official client that renews by itself
    from daypass.openai import client             # the same for OpenAI's API
    from daypass import LLMProxyClient            # prompt in, completion out
    from daypass import TokenProvider             # the token alone, for any other client
    from daypass import delegate                  # a narrower token for a sub-agent
    from daypass import Broker                    # for orchestrators: create, end, revoke

Public names are loaded on first use, so `import daypass` costs next to nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take it for True; importing typing costs 15 ms
if TYPE_CHECKING:
    from daypass._delegate import Child, delegate
    from daypass._errors import (
        DaypassError,
        NotInstalled,
        NotRevoked,
        NotVerified,
        Refused,
        Revoked,
        ServiceFailed,
        SettingsError,
        Unavailable,
        Unreachable,
    )
    from daypass._infer import LLMProxyClient
    from daypass._token import AccessToken, TokenProvider
    from daypass.async_broker import AsyncBroker
    from daypass.broker import Broker, Sandbox

__version__ = "0.1.0"

__all__ = [
    "AccessToken",
    "AsyncBroker",
    "Broker",
    "Child",
    "DaypassError",
    "LLMProxyClient",
    "NotInstalled",
    "NotRevoked",
    "NotVerified",
    "Refused",
    "Revoked",
    "Sandbox",
    "ServiceFailed",
    "SettingsError",
    "TokenProvider",
    "Unavailable",
    "Unreachable",
    "__version__",
    "delegate",
]

_HOME = {
    "AccessToken": "daypass._token",
    "TokenProvider": "daypass._token",
    "LLMProxyClient": "daypass._infer",
    "AsyncBroker": "daypass.async_broker",
    "Broker": "daypass.broker",
    "Child": "daypass._delegate",
    "delegate": "daypass._delegate",
    "Sandbox": "daypass.broker",
}


def __getattr__(name: str) -> object:
    """Load a public name from the module that defines it (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module 'daypass' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(_HOME.get(name, "daypass._errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})
