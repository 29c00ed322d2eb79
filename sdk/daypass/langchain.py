"""`ChatAnthropic` of LangChain on a day pass.

    from daypass.langchain import ChatAnthropic
    model = ChatAnthropic(model="claude-sonnet-4-6")

The stock class gives its client an empty key where there is none, which ends every call before it
is sent. This one is the same class with the credentials of `daypass.anthropic`; everything else,
tools, streams and structured output, is LangChain's. `ChatOpenAI` needs no class of ours:
`ChatOpenAI(base_url=daypass.openai.base_url(provider), api_key=provider.token)`.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from daypass._errors import NotInstalled
from daypass._token import TokenProvider
from daypass.anthropic import renewing

__all__ = ["ChatAnthropic"]

if TYPE_CHECKING:
    ChatAnthropic: type[Any]
    """A chat model; arguments as LangChain's, and `provider`, a `TokenProvider`."""


def __getattr__(name: str) -> Any:
    """Make the class when it is first asked for: LangChain is the user's to install."""
    if name != "ChatAnthropic":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = globals()[name] = _class()
    return made


def _class() -> type[Any]:
    try:
        from langchain_anthropic import (  # type: ignore[import-not-found,unused-ignore]
            ChatAnthropic as Stock,
        )
        from pydantic import PrivateAttr  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise NotInstalled(
            "the langchain-anthropic package is not installed",
            hint="run: pip install 'langchain-anthropic>=1.7'",
        ) from None

    class ChatAnthropic(Stock):  # type: ignore[misc,unused-ignore]
        """LangChain's chat model of Anthropic, on a day pass."""

        _given: dict[str, Any] = PrivateAttr()

        def __init__(self, *, provider: TokenProvider | None = None, **options: Any) -> None:
            url = options.pop("base_url", None) or options.pop("anthropic_api_url", None)
            _, given = renewing(provider, url)
            super().__init__(base_url=given["base_url"], **options)
            self._given = given

        @cached_property
        def _client_params(self) -> dict[str, Any]:
            # What both of its clients are made of; an empty `api_key` in it is what breaks them.
            params = {**super()._client_params, **self._given}
            del params["api_key"]
            return params

    ChatAnthropic.__module__, ChatAnthropic.__qualname__ = __name__, "ChatAnthropic"
    return ChatAnthropic
