"""OpenAI's API, at OpenAI and at whatever else speaks it: reads requests into Calls.

What goes up is built here from allow-lists: paths are our constants, headers are picked by name,
and no credential, cookie, organisation or project of the client is among them. A body goes up as
it came, but for what makes a stream countable and keeps answers from being stored (`openai_edit`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from msgspec.structs import asdict, replace

from daypass_core.problem import Code, Problem, refuse
from daypass_core.scope import Detail
from daypass_proxy.body.spool import Spool
from daypass_proxy.body.strict import check_media, is_quick
from daypass_proxy.exchange import Exchange, HeaderPairs
from daypass_proxy.head import Head
from daypass_proxy.providers import Asked, BodyChecker, Call, Check, Place, Rendered
from daypass_proxy.providers import openai_answers as answers
from daypass_proxy.providers.known_names import STRICT, Headers
from daypass_proxy.providers.openai_chat import check_chat
from daypass_proxy.providers.openai_edit import amended, lower_output
from daypass_proxy.providers.openai_embeddings import check_embeddings
from daypass_proxy.providers.openai_responses import check_responses
from daypass_proxy.providers.slowly import check_slowly

NAME = "openai"


class Endpoint(NamedTuple):
    """How one endpoint is served; `path` stands behind the base URL, as clients have it."""

    path: str
    dialect: str
    check: Check
    limit: str
    """The member that limits the output where the body has none; empty where nothing is written."""


ENDPOINTS: Mapping[str, Endpoint] = {
    "chat_completions": Endpoint(
        "/chat/completions", "openai_chat", check_chat, "max_completion_tokens"
    ),
    "responses": Endpoint("/responses", "openai_responses", check_responses, "max_output_tokens"),
    "embeddings": Endpoint("/embeddings", "openai_embeddings", check_embeddings, ""),
}
_MAX_TOKENS = "max_tokens"
_UP_EXACT = frozenset({b"accept", b"content-type", b"user-agent", b"openai-beta"})
_UP_PREFIX = b"x-stainless-"
_HEADERS = Headers(NAME, b"openai-", b"openai-beta", ())


def routes(name: str) -> dict[bytes, Place]:
    """Return the paths that lead to the endpoints of a provider of this name."""
    return {
        f"/{name}/v1{each.path}".encode(): Place(name, endpoint)
        for endpoint, each in ENDPOINTS.items()
    }


class OpenAI:
    """The Provider for api.openai.com and, by another name, for what speaks like it."""

    def __init__(self, name: str = NAME, elsewhere: BodyChecker | None = None) -> None:
        """`elsewhere` checks the bodies that take long; without it a thread does."""
        self.name = name
        self.base = f"/{name}/v1"
        self._elsewhere = elsewhere
        # Servers of one's own know the older name, OpenAI's newer models only the newer one.
        self._chat_limit = ENDPOINTS["chat_completions"].limit if name == NAME else _MAX_TOKENS

    async def read(
        self, exchange: Exchange, endpoint: str, body: bytes | Spool, detail: Detail, sandbox: str
    ) -> Call:
        """Return the Call that `body` asks for; raises Refusal (400, 429, 503), ClientGone."""
        if exchange.raw_query:
            raise refuse(Code.INVALID_REQUEST, "no query is accepted here")
        exchange.head.once(check_media)
        headers = exchange.head.once(_up)
        if detail.body == STRICT:
            _HEADERS.refuse_unknown(headers)
        served = ENDPOINTS[endpoint]
        if isinstance(body, bytes) and is_quick(body):
            asked = served.check(body, detail, max_tokens_needed=False)
        else:
            body, asked = await check_slowly(
                exchange,
                body,
                detail,
                sandbox,
                dialect=served.dialect,
                check=served.check,
                elsewhere=self._elsewhere,
            )
        body, asked = self._complete(body, asked, detail, endpoint)
        return Call(
            **asdict(asked),
            provider=self.name,
            endpoint=endpoint,
            method="POST",
            upstream_path=served.path.encode(),
            query=b"",
            headers=headers,
            body=body,
            model=asked.models[0],
            billable=True,
            dialect=served.dialect,
            hides_usage=asked.stream and "stream_options" in asked.left_out + asked.unset,
        )

    def _complete(
        self, body: bytes, asked: Asked, detail: Detail, endpoint: str
    ) -> tuple[bytes, Asked]:
        """Put into the body what it needs: the scope's cap, too, where it sets no limit itself."""
        try:
            body = amended(body, asked)
            cap = detail.max_output_tokens
            if cap is not None and asked.max_output_tokens is None:
                usual = self._limit(endpoint)
                body = lower_output(body, cap, asked.limits, usual)
                asked = replace(asked, max_output_tokens=cap, limits=(*asked.limits, usual))
        except ValueError:
            needed = " and ".join(asked.unset) or self._limit(endpoint)
            raise refuse(
                Code.INVALID_REQUEST,
                f"request body is too large to be completed; set {needed} in it as the"
                " documentation says",
            ) from None
        return body, asked

    def _limit(self, endpoint: str) -> str:
        return self._chat_limit if endpoint == "chat_completions" else ENDPOINTS[endpoint].limit

    def credential(self, secret_value: str) -> tuple[bytes, bytes]:
        """Return the header that carries the provider key upstream."""
        return b"authorization", b"Bearer " + secret_value.encode("ascii")

    def lower_output(self, call: Call, most: int) -> Call:
        """Return `call` with at most `most` output tokens in all its answers; raises ValueError."""
        each = most // call.choices
        if each < 1:
            raise ValueError("not a token is left for each answer")
        usual = self._limit(call.endpoint)
        body = lower_output(call.body, each, call.limits, usual)
        return replace(call, body=body, max_output_tokens=each, limits=(*call.limits, usual))

    def render(self, problem: Problem, request_id: str, endpoint: str = "") -> Rendered:
        """Return the API-shaped error for `problem`."""
        return answers.render(problem, request_id, endpoint)

    def stream_error(self, problem: Problem, request_id: str, endpoint: str) -> bytes:
        """Return the event that ends a stream with `problem`."""
        return answers.stream_error(problem, endpoint)

    def response_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> HeaderPairs:
        """Return what of an upstream's headers a sandbox may see."""
        return answers.response_headers(headers)


def _up(head: Head) -> HeaderPairs:
    """Return the client's headers that go upstream, in order.

    Names that a Connection header nominates are hop-by-hop and stay (attack row 3).
    """
    nominated = {
        token.strip().lower() for value in head.values(b"connection") for token in value.split(b",")
    }
    return tuple(pair for pair in head.headers if _goes_up(pair[0]) and pair[0] not in nominated)


@lru_cache(maxsize=256)
def _goes_up(name: bytes) -> bool:
    return name in _UP_EXACT or name.startswith(_UP_PREFIX)
