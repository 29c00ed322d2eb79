"""docs/reference/headers.md lists exactly what the code passes, drops and sets."""

from daypass_proxy import limits, relay, upstream_request
from daypass_proxy.providers import anthropic
from tests.servers.headers_page import PASSES, SET, STAYS, Rules

UP, DOWN = Rules.of("Up"), Rules.of("Down")


def text(names: object) -> set[str]:
    """Names of the code as the page writes them."""
    return {name.decode() for name in names}  # type: ignore[attr-defined]


def test_what_goes_up_is_on_the_page() -> None:
    """The page names the same headers and prefixes as the code, passed or kept back."""
    prefixes = {f"{prefix}*" for prefix in text(anthropic._UP_PREFIXES)}
    assert UP.names(PASSES) == text(anthropic._UP_EXACT) | prefixes | {"anthropic-beta"}
    assert UP.names(STAYS) == text(anthropic._NOT_UP)
    assert UP.names(SET) == {"host", "content-length", "accept-encoding", "x-api-key"}
    assert UP.names(SET) <= text(upstream_request._OURS)


def test_what_comes_down_is_on_the_page() -> None:
    """The page names the same headers and patterns as the code, passed or kept back."""
    passed = text(anthropic._DOWN_EXACT) | {"anthropic-*", "content-encoding"}
    assert DOWN.names(PASSES) == passed
    prefixes = {f"{prefix}*" for prefix in text(anthropic._LIMIT_PREFIXES)}
    suffixes = {f"anthropic-*{suffix}" for suffix in text(anthropic._LIMIT_SUFFIXES)}
    assert DOWN.names(STAYS) == text(anthropic._NOT_DOWN) | prefixes | suffixes
    stream = text(name for name, _ in relay._STREAM_HEADERS)
    framing = {"date", "content-length", "transfer-encoding", "connection"}
    left = {limits.REMAINING_USD, limits.REMAINING_TOKENS, limits.REMAINING_REQUESTS}
    assert DOWN.names(SET) == stream | framing | text({*left, limits.RESETS_AT})


def test_the_rules_are_those_of_the_code() -> None:
    """Asked about each name of the tables and some others, page and code say the same."""
    names = [name.replace("*", "any") for name, _ in (*UP.rows, *DOWN.rows)]
    names += ["cookie", "authorization", "te", "via", "server", "x-forwarded-for", "x-request-id"]
    pairs = tuple((name.encode(), b"v") for name in dict.fromkeys(names))
    went = text(name for name, _ in anthropic.headers_up(pairs))
    assert went == {name for name in names if UP.verdict(name) == PASSES}
    came = text(name for name, _ in anthropic.Anthropic().response_headers(pairs))
    assert came | {"content-encoding"} == {name for name in names if DOWN.verdict(name) == PASSES}
