"""Official OpenAI clients that carry a day pass instead of a key.

    from daypass.openai import client
    answer = client().responses.create(model=…, input=…)

The client is the official one, unchanged: it asks for its key before each request, and its
transport renews once where a token ended before its time, which the client itself takes for the
end. `upstream=` names a server of one's own that the proxy serves beside OpenAI.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from typing import TYPE_CHECKING, Any

from daypass._errors import DaypassError, NotInstalled, in_both_families
from daypass._http import may_renew
from daypass._token import TokenProvider

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI  # type: ignore[import-not-found,unused-ignore]

OPENAI = "openai"
_NEEDED = 3  # the first major on httpx2


def base_url(provider: TokenProvider, upstream: str = OPENAI) -> str:
    """The base URL of an OpenAI client at the proxy: `https://HOST/openai/v1`."""
    return f"{provider.base_url}/{upstream}/v1"


def client(
    *, provider: TokenProvider | None = None, upstream: str = OPENAI, **options: Any
) -> OpenAI:
    """An `openai.OpenAI` on a day pass; `options` go to its constructor.

    With an `http_client` of your own a token that ended early is an error instead of a renewal.
    An OPENAI_API_KEY in the environment is not used. Raises `SettingsError` when the sandbox has
    no launch credential, and `NotInstalled` without the `openai` package.
    """
    official = _official()
    held = _Held(provider or TokenProvider(), official.OpenAIError)
    settled = {"base_url": base_url(held.provider, upstream), "api_key": held.token, **options}
    if "http_client" not in settled:
        settled["http_client"] = official.DefaultHttpxClient(auth=_renewing(held))
    made: OpenAI = official.OpenAI(**settled)
    return made


def async_client(
    *, provider: TokenProvider | None = None, upstream: str = OPENAI, **options: Any
) -> AsyncOpenAI:
    """An `openai.AsyncOpenAI` on a day pass; otherwise as `client`.

    Renewals run in a thread, so they never hold the loop.
    """
    official = _official()
    held = _Held(provider or TokenProvider(), official.OpenAIError)

    async def key() -> str:
        return await asyncio.to_thread(held.token)

    settled = {"base_url": base_url(held.provider, upstream), "api_key": key, **options}
    if "http_client" not in settled:
        settled["http_client"] = official.DefaultAsyncHttpxClient(auth=_renewing(held))
    made: AsyncOpenAI = official.AsyncOpenAI(**settled)
    return made


class _Held:
    """The provider, with errors that the official client lets through."""

    def __init__(self, provider: TokenProvider, family: type[Exception]) -> None:
        self.provider = provider
        self._family = family

    def token(self, rejected: str | None = None) -> str:
        try:
            return self.provider.token(rejected=rejected)
        except DaypassError as error:
            raise in_both_families(error, self._family) from error.__cause__


def _renewing(held: _Held) -> Any:
    """An `httpx2.Auth` that answers the first 401 of a call with one forced renewal."""
    import httpx2  # type: ignore[import-not-found,unused-ignore]

    class Renewing(httpx2.Auth):  # type: ignore[misc,unused-ignore]
        def sync_auth_flow(self, request: Any) -> Generator[Any, Any, None]:
            response = yield request
            if _may_renew(response):
                response.read()
                yield _again(request, held.token(_sent(request)))

        async def async_auth_flow(self, request: Any) -> AsyncGenerator[Any, Any]:
            response = yield request
            if _may_renew(response):
                await response.aread()
                yield _again(request, await asyncio.to_thread(held.token, _sent(request)))

    return Renewing()


def _may_renew(response: Any) -> bool:
    said = response.headers
    return may_renew(response.status_code, said.get("x-should-retry"), said.get("www-authenticate"))


def _sent(request: Any) -> str:
    return str(request.headers.get("authorization", "")).removeprefix("Bearer ")


def _again(request: Any, token: str) -> Any:
    request.headers["authorization"] = f"Bearer {token}"
    return request


def _official() -> Any:
    missing = NotInstalled(
        f"the openai package ({_NEEDED}.0 or newer) is not installed",
        hint=f"run: pip install 'openai>={_NEEDED}'",
    )
    try:
        import openai
    except ImportError:
        raise missing from None
    if int(openai.__version__.partition(".")[0]) < _NEEDED:
        raise missing
    return openai
