"""Whatever is asked for, by any path, query and headers: what goes up is built from our lists.

The whole path runs, from the route to the request upstream, with a real token; only the provider,
the stores and the clock are fakes. The lists are written out here once more, on purpose.
"""

import asyncio
import string
from dataclasses import replace
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from daypass_proxy.edge import respond
from daypass_proxy.exchange import HeaderPairs
from daypass_proxy.routes import ROUTES, find_route
from daypass_proxy.transport import UpstreamRequest
from tests.fakes.asgi import Wire, make_exchange
from tests.fakes.call import BODY
from tests.fakes.proxy import KEY, Proxy
from tests.fakes.transport import JSON, FakeAnswer, FakeTransport
from tests.support import access_token

TOKEN = access_token(KEY).encode()
REAL = (b"x-api-key", b"sk-ant-real-key")
UP_PATHS = {
    b"/v1/messages": "/v1/messages",
    b"/messages": "/v1/messages",
    b"/v1/messages/count_tokens": "/v1/messages/count_tokens",
}
UP_QUERIES = {b"": "", b"beta=true": "?beta=true"}
UP_NAMES = {b"accept", b"content-type", b"user-agent", b"x-app"}
UP_PREFIXES = (b"anthropic-", b"x-stainless-", b"x-claude-code-")
NEVER_UP = {
    b"anthropic-workspace-id", b"anthropic-user-profile-id", b"anthropic-organization-id",
    b"authorization", b"x-api-key", b"x-goog-api-key", b"api-key", b"cookie", b"host",
    b"proxy-authorization", b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip",
    b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding",
    b"upgrade", b"content-length", b"expect", b"x-upstream-url", b"range", b"if-none-match",
}  # fmt: skip
OURS = {b"accept-encoding": b"identity", REAL[0]: REAL[1]}
SECRETS = (b"sk-ant-foreign", b"dXNlcjpwYXNz", b"a=session", TOKEN)


class _Keys:
    """The keyring: one key, nothing ever refused."""

    pooled = False

    async def header_for(self, *_: object) -> tuple[bytes, bytes]:
        return REAL

    def leaks(self, *_: object) -> bool:
        return False


def ask(
    path: bytes = b"/v1/messages", query: bytes = b"", headers: HeaderPairs = ()
) -> tuple[Wire, list[UpstreamRequest]]:
    """Send one request through the whole path; return the answer and what went up."""

    async def serve() -> tuple[Wire, list[UpstreamRequest]]:
        transport = FakeTransport(FakeAnswer([b"{}"], headers=JSON))
        services = replace(Proxy().services, keyring=cast(Any, _Keys()), transport=transport)
        exchange, wire = make_exchange("POST", path, query, headers, BODY)
        await respond(exchange, services)
        return wire, transport.requests

    return asyncio.run(serve())


HEADERS = ((b"content-type", b"application/json"), (b"authorization", b"Bearer " + TOKEN))
_TOKEN_CHARACTERS = (string.ascii_lowercase + string.digits + "-.!~").encode()
names = st.one_of(
    st.sampled_from(sorted({*NEVER_UP, *UP_NAMES} - {b"authorization", b"content-type"})),
    st.sampled_from([b"anthropic-beta", b"anthropic-version", b"x-stainless-lang", b"accept"]),
    st.lists(st.sampled_from(list(_TOKEN_CHARACTERS)), min_size=1, max_size=12).map(bytes),
    st.sampled_from(UP_PREFIXES).flatmap(
        lambda prefix: st.sampled_from([b"", b"x", b"key", b"workspace-id", b"beta"]).map(
            lambda end: prefix + end
        )
    ),
)
values = st.one_of(
    st.sampled_from([b"", b"close", b"close, anthropic-version", b"x-app", b"a,b", *SECRETS[:3]]),
    st.text(max_size=8).map(lambda text: "".join(filter(str.isprintable, text)).encode()),
)


@settings(max_examples=120, deadline=None)
@given(st.lists(st.tuples(names, values), max_size=6))
def test_headers_up_are_of_our_list(more: list[tuple[bytes, bytes]]) -> None:
    """B04, rows 1, 3, 4, 37: of the client's headers only listed ones go up, as they came; no
    credential of a client, nothing hop-by-hop, and our key once."""
    _, sent = ask(headers=(*HEADERS, *more))
    nominated = {
        word.strip().lower()
        for name, value in more
        if name == b"connection"
        for word in value.split(b",")
    }
    for request in sent:
        up = [pair for pair in request.headers if pair not in OURS.items()]
        assert len(request.headers) - len(up) == len(OURS), "ours, each once"
        came = [pair for pair in (*HEADERS, *more) if pair in up]
        assert up == [pair for pair in came if pair[0] not in nominated], "in order, unchanged"
        for name, value in up:
            assert name in UP_NAMES or name.startswith(UP_PREFIXES)
            assert name not in NEVER_UP
            assert name not in nominated
            assert TOKEN not in value
        listed = [
            (name, value)
            for name, value in (*HEADERS, *more)
            if (name in UP_NAMES or name.startswith(UP_PREFIXES))
            and name not in NEVER_UP | nominated
            and (name != b"anthropic-beta" or value)
        ]
        assert up == listed, "none of those is lost"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([b"x-api-key", b"x-goog-api-key", b"api-key", b"cookie",
                              b"proxy-authorization", b"x-auth-token"]), unique=True),
    st.sampled_from(SECRETS),
)  # fmt: skip
def test_no_clients_credential_goes_up(positions: list[bytes], secret: bytes) -> None:
    """B04, rows 1, 2: whatever stands in a credential's place, its bytes are nowhere upstream."""
    wire, sent = ask(headers=(*HEADERS, *((name, secret) for name in positions)))
    for request in sent:
        written = b"\n".join(b": ".join(pair) for pair in request.headers)
        assert not any(each in written or each.decode() in request.url for each in SECRETS)
        assert written.count(REAL[1]) == 1
        assert request.body == BODY
    assert wire.status == 200
    assert len(sent) == 1


_SEPARATORS = [
    b"/",
    b"//",
    b"/./",
    b"/../",
    b"%2f",
    b"%2F",
    b"\\",
    b";",
    b";x=/",
    b"%00",
    b"?",
    b"#",
]
_PIECES = [
    b"v1",
    b"V1",
    b"messages",
    b"%6dessages",
    b"files",
    b"batches",
    b"count_tokens",
    b"..",
    b"",
]
paths = st.one_of(
    st.sampled_from(sorted(ROUTES)),
    st.tuples(st.sampled_from(sorted(ROUTES)), st.sampled_from(_SEPARATORS + _PIECES)).map(
        b"".join
    ),
    st.tuples(st.sampled_from(_SEPARATORS + _PIECES), st.sampled_from(sorted(ROUTES))).map(
        b"".join
    ),
    st.lists(st.sampled_from(_SEPARATORS + _PIECES), max_size=7).map(b"".join),
    st.binary(max_size=24),
)
queries = st.one_of(
    st.sampled_from([b"", b"beta=true", b"beta=false", b"beta=true&", b"model=m", b"key=k"]),
    st.sampled_from([b"beta=true&model=m", b"beta=tru%65", b"BETA=true", b"beta=true&beta=true"]),
    st.binary(max_size=12),
)


@settings(max_examples=150, deadline=None)
@given(path=paths, query=queries)
def test_paths_and_queries_up_are_ours(path: bytes, query: bytes) -> None:
    """B09, B10, rows 9-12, 36: what goes up has one of our paths and queries, and only a path and
    query that are ours byte for byte lead there; tokens come from the broker."""
    wire, sent = ask(path, query, HEADERS)
    if path in UP_PATHS and query in UP_QUERIES:
        (request,) = sent
        assert request.url == f"https://api.anthropic.com{UP_PATHS[path]}{UP_QUERIES[query]}"
        assert wire.status == 200
        return
    assert sent == []
    assert wire.status != 200 or path == b"/v1/oauth/token"


@settings(max_examples=150, deadline=None)
@given(paths)
def test_only_whole_paths_have_a_route(path: bytes) -> None:
    """B09, row 9: a route belongs to its path byte for byte; of models, to plain names alone."""
    model = path.removeprefix(b"/v1/models/").removeprefix(b"/openai/v1/models/")
    parts = "/" if path.startswith(b"/openai/") else ""
    plain = set(model) <= set((string.ascii_letters + string.digits + "._:@-" + parts).encode())
    one_model = model != path and plain and model[:1].isalnum()
    assert (find_route(path) is not None) == (path in ROUTES or one_model)
