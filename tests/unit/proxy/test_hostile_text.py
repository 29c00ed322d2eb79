"""Text of a client at its largest: no check of it takes time beyond its length (attack row 17)."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from daypass_core.problem import Refusal
from daypass_core.verify import unverified_key_id
from daypass_proxy import me, token, upstream
from daypass_proxy.authenticate import pick_credential
from daypass_proxy.body.strict import check_media, parse
from daypass_proxy.guard_head import check_head
from daypass_proxy.meter import StreamMeter
from daypass_proxy.providers.anthropic import headers_up
from daypass_proxy.providers.anthropic_body import BodyCheck
from daypass_proxy.routes import find_route, hint
from tests.fakes.anthropic import PLAIN, detail, user
from tests.fakes.asgi import make_exchange

HEADER = 30_000
BODY = 32 * 1024 * 1024
HEADER_SECONDS = 0.2
BODY_SECONDS = 1.6


@contextmanager
def cpu_bound(seconds: float) -> Iterator[None]:
    """Fail after so many seconds of CPU time, in the middle of what takes longer."""

    def late(signum: int, frame: object) -> None:
        raise AssertionError(f"more than {seconds} s of CPU time")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        with suppress(Refusal):
            yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def filled(piece: str, size: int, *, end: str = "") -> str:
    """Return text of `size` characters, `end` last."""
    return (piece * (size // len(piece)))[: size - len(end)] + end


HEADER_TEXTS = {
    piece: filled(piece, HEADER, end="!").encode("utf-8")
    for piece in (
        *("eyJ", "eyJa.", "eyJa.a", "a", "a.", " ", "application/json ", 'charset="', ";", ","),
        *("a,", "/", "%41", "a=&", "limit=", "oauth-2025-04-20,", "_", "-", "\u00e9", "\x00"),
    )
}


def header_checks(text: bytes) -> dict[str, Callable[[], object]]:
    """Every check of a header, the target or the query."""
    key = (b"authorization", b"Bearer x"), (b"x-api-key", text)
    media = (b"content-type", b"application/json" + text)
    asked = make_exchange("GET", b"/messages" + text, text, [(b"host", text), media])[0]
    return {
        "guard": lambda: check_head(
            b"GET", "1.1", b"/" + text, ((b"host", b"a"), (b"x", text), (b"expect", text)), 10**9
        ),
        "host": lambda: check_head(b"GET", "1.1", b"/", ((b"host", text),), 10**9),
        "credential": lambda: pick_credential(make_exchange(headers=key)[0].head),
        "key id": lambda: unverified_key_id(text.decode("latin-1")),
        "media": lambda: check_media(asked.head),
        "media of a token request": lambda: token._media(asked),
        "route": lambda: find_route(b"/v1/models/" + text),
        "hint": lambda: hint(asked),
        "query": lambda: me._page(asked),
        "beta and connection": lambda: headers_up(
            ((b"connection", text), (b"anthropic-beta", text), (b"x-app", text))
        ),
    }


@pytest.mark.parametrize("check", header_checks(b""))
@pytest.mark.parametrize("piece", HEADER_TEXTS)
def test_checks_of_headers(piece: str, check: str) -> None:
    """A header as large as the guard lets through is judged in no time."""
    judge = header_checks(HEADER_TEXTS[piece])[check]
    with cpu_bound(HEADER_SECONDS):
        judge()


BODY_TEXTS = ["a", "A", " ", "\u2100", "\u0130", "\ufb03", "_12345678", "a.", "a/", "eyJa."]


def body_places(text: str) -> dict[str, dict[str, Any]]:
    """Every place of a body whose text is more than looked up."""
    fetch = {"type": "web_fetch_20260318", "max_uses": 1, "allowed_domains": [text]}
    return {
        "name of a field": {text: 1},
        "model": {"model": text},
        "fallback": {"fallbacks": [{"model": text}]},
        "tool": {"tools": [{"type": text}]},
        "domain": {"tools": [fetch]},
        "block": user({"type": text}),
        "source": user({"type": "image", "source": {"type": text}}),
        "url": user({"type": "image", "source": {"type": "url", "url": "https://" + text}}),
        "server": {"mcp_servers": [{"url": text}]},
        "value": {"speed": text, "service_tier": text},
    }


@pytest.mark.parametrize("place", body_places(""))
@pytest.mark.parametrize("piece", BODY_TEXTS)
def test_checks_of_a_body(piece: str, place: str) -> None:
    """A text as large as a body is judged in the time that reading it takes."""
    scope = detail("url_sources", "web_fetch", "mcp_servers", domains=("docs.test",))
    changes = body_places(filled(piece, BODY // 8))[place]
    with cpu_bound(BODY_SECONDS / 4):
        BodyCheck(scope).run({**PLAIN, **changes}, max_tokens_needed=True)


@pytest.mark.parametrize("place", body_places(""))
def test_marks_out_of_order(place: str) -> None:
    """Unicode's normal form takes quadratic time to sort marks, so nothing long is normalized."""
    scope = detail("url_sources", "web_fetch", "mcp_servers", domains=("docs.test",))
    changes = body_places("\u0301\u0316" * 65_536)[place]
    with cpu_bound(HEADER_SECONDS):
        BodyCheck(scope).run({**PLAIN, **changes}, max_tokens_needed=True)


@pytest.mark.parametrize(
    ("before", "piece", "after"),
    [
        ('{"a":[', "9" * 4200 + ",", "1]}"),
        ('{"a" :[', "9" * 4200 + ",", '1],"b":":::"}'),
        ('{"a" :[', "1." + "9" * 100 + ",", '1],"b":":::"}'),
        ('{"a":"', '\\",', '"}'),
        ('{"a" :"', "\\u0041", '","b":":::"}'),
        ('{"a":', "[", "}"),
        ('{"a":', " ", "1}"),
        ('{"a":', "9", "}"),
    ],
)
def test_parsing_a_body(before: str, piece: str, after: str) -> None:
    """A body of the largest size is read in the time that its bytes take."""
    body = (before + piece * ((BODY - 100) // len(piece)) + after).encode()
    with cpu_bound(BODY_SECONDS):
        parse(body)


@pytest.mark.parametrize("piece", ["your ", "you have reached ", "credit ", "a", " ", "\u00e9"])
def test_what_a_provider_says(piece: str) -> None:
    """An error message of the largest size, which may echo the client, is judged in no time."""
    message = filled(piece, upstream.ERROR_BODY_MAX // 2)
    body = b'{"error":{"type":"invalid_request_error","message":"' + message.encode() + b'"}}'
    with cpu_bound(HEADER_SECONDS):
        assert not upstream._is_our_account(400, body)


@pytest.mark.parametrize("piece", [b"data: x\n", b"data:", b"\r", b'"delta": {', b"event: a\n"])
def test_what_a_stream_says(piece: bytes) -> None:
    """A quarter of a megabyte of stream that never comes to an event is metered in no time."""
    meter = StreamMeter()
    with cpu_bound(1.0):
        for _ in range(256):
            meter.feed((piece * 1024)[:1024])
        meter.end()
