"""POST /v1/infer: {"prompt": …} in, {"completion": …} out, the plain form people write by hand.

It is one call of the token's default model, the first one that its scope names exactly, through the
Messages API or chat completions: `forward` serves it with the same checks, holds and bills. An
error that the model's provider answers, and every refusal behind the first checks, passes as it is.
"""

from __future__ import annotations

from typing import Any

import msgspec

from daypass_core.claims import Claims
from daypass_core.problem import Code, refuse
from daypass_proxy.body.strict import check_media, is_quick, parse
from daypass_proxy.exchange import Exchange, Message
from daypass_proxy.forward import forward
from daypass_proxy.providers import Place
from daypass_proxy.services import Services

MAX_BYTES = 1024 * 1024
USUAL_TOKENS = 1_024
"""What an answer may have where the request does not say it."""
_KEYS = frozenset({"prompt", "max_tokens"})
_DIGITS = 32
_QUOTES = 64
"""Of two names and a text there are 6; more are names that come again, if not backslashes."""
_FRAMING = frozenset({b"content-length", b"content-type"})
_JSON = (b"content-type", b"application/json")


class _Plain(msgspec.Struct, forbid_unknown_fields=True):
    """A request, when nothing else is in it."""

    prompt: str
    max_tokens: msgspec.Raw = msgspec.Raw()


class _Block(msgspec.Struct):
    type: str = ""
    text: str = ""


class _Words(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Words


_plain = msgspec.json.Decoder(_Plain)


class _Answer(msgspec.Struct):
    """A message of Anthropic's API, or a completion of OpenAI's."""

    content: list[_Block] | None = None
    choices: list[_Choice] | None = None

    @property
    def text(self) -> str | None:
        """What the model said; None for what is no answer of one, such as an error under a 200."""
        if self.choices:
            return self.choices[0].message.content or ""
        if self.content is None:
            return None
        return "".join([block.text for block in self.content if block.type == "text"])


async def infer(exchange: Exchange, services: Services) -> None:
    """Serve one request."""
    claims = await services.authenticator.authenticate(exchange)
    if exchange.raw_query:
        raise refuse(Code.INVALID_REQUEST, "no query is accepted here")
    exchange.head.once(check_media)
    place, model = _default(claims, services)
    with services.body_room.enter(claims.sandbox, exchange.body_size(MAX_BYTES)):
        prompt, most = _read(await exchange.read_body(MAX_BYTES))
    cap = claims.scope.for_provider(place.provider)
    if most is None:
        most = min(USUAL_TOKENS, (cap.max_output_tokens if cap else None) or USUAL_TOKENS)
    body = {
        "model": model,
        "max_tokens": most,
        "messages": [{"role": "user", "content": prompt}],
    }
    if place.provider == "openai":
        # Its newer models do not know the other name.
        body["max_completion_tokens"] = body.pop("max_tokens")
    inside = _Inside()
    inner = exchange.within(msgspec.json.encode(body), _JSON, inside.receive)
    await forward(inner, place, services, claims)
    await inside.pass_on(exchange, model)


def _default(claims: Claims, services: Services) -> tuple[Place, str]:
    """Return the first model that the scope names exactly, and where it is; raises Refusal."""
    for detail in claims.scope.details:
        endpoint = "messages" if detail.provider == "anthropic" else "chat_completions"
        if detail.provider in services.providers and detail.allows_endpoint(endpoint):
            for model in detail.models:
                if not model.endswith("*"):
                    return Place(detail.provider, endpoint), model
    raise refuse(
        Code.INVALID_REQUEST,
        "this token has no default model",
        hint="its scope names none exactly, only patterns; name one first in the profile, or call"
        " the provider's own API",
    )


def _read(body: bytes) -> tuple[str, int | None]:
    """Return the prompt and the limit of a request; raises Refusal."""
    if not is_quick(body) and not _is_plain(body):
        # What else may be in so many bytes would hold the event loop for long.
        raise refuse(Code.INVALID_REQUEST, "request body may hold a prompt and max_tokens alone")
    document: dict[str, Any] = parse(body)
    for name in document:
        if name not in _KEYS:
            raise refuse(
                Code.INVALID_REQUEST,
                f"only {' and '.join(sorted(_KEYS))} are read here",
                field=name,
            )
    prompt, most = document.get("prompt"), document.get("max_tokens")
    if not isinstance(prompt, str) or not prompt:
        raise refuse(Code.INVALID_REQUEST, "prompt must be a text", field="prompt")
    if most is not None and type(most) is not int:
        raise refuse(Code.INVALID_REQUEST, "max_tokens must be a whole number", field="max_tokens")
    return prompt, most


def _is_plain(body: bytes) -> bool:
    """Say whether a large body holds nothing but what is read here; found out at its first word."""
    try:
        limit = bytes(_plain.decode(body).max_tokens)
    except (msgspec.DecodeError, RecursionError):
        return False
    return len(limit) <= _DIGITS and body.count(b'"') - body.count(b'\\"') <= _QUOTES


class _Inside:
    """Takes the answer of the inner exchange."""

    def __init__(self) -> None:
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._body = bytearray()

    async def receive(self, message: Message) -> None:
        """Take one ASGI message."""
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], list(message["headers"])
        else:
            self._body += message.get("body", b"")

    async def pass_on(self, exchange: Exchange, model: str) -> None:
        """Answer with the completion, or with what came in its place."""
        if not self._status:
            return  # the client is gone
        body, headers = bytes(self._body), self._headers
        if self._status == 200:
            try:
                text = msgspec.json.decode(body, type=_Answer).text
            except msgspec.DecodeError:
                text = None
            if text is None:
                raise refuse(Code.UPSTREAM_BROKEN)
            body = msgspec.json.encode({"completion": text, "model": model})
        kept = [pair for pair in headers if pair[0] not in _FRAMING]
        await exchange.respond(self._status, [_JSON, *kept], body)
