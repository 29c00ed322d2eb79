"""What must hold for any bytes at all: one function for each thing that a stranger's bytes reach.

A target returns for every input that is handled as promised, be it taken or refused, and raises
for one that is not. `fuzz.py` drives them by coverage, `test_fuzz` over the corpus.
"""

import itertools
import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from daypass_core.claims import access_payload
from daypass_core.problem import Refusal
from daypass_core.scope import Detail
from daypass_core.verify import TokenRefused, unverified_key_id, verify_access
from daypass_proxy.body.strict import parse
from daypass_proxy.guard_head import check_head
from daypass_proxy.meter import Meter, StreamMeter
from daypass_proxy.providers.anthropic_body import BodyCheck
from tests.support import AUDIENCE, ISSUER, NOW, access_token, public_keys, sign, signing_key

KEY = signing_key("fuzz")
KEYS = public_keys(KEY)
GOOD = access_token(KEY)
CAP = 1000
DETAIL = Detail(
    "anthropic", ("messages",), ("claude-sonnet-*",), ("web_fetch", "url_source"), ("a.test",), CAP
)
_MOST_CUTS = 8
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")


def body(data: bytes) -> None:
    """A body that is taken means the same to a plain strict reader, duplicates looked for."""
    try:
        taken = parse(data)
    except Refusal:
        return
    assert _same(taken, _read_strictly(data)), "another reader reads it differently"


def fields(data: bytes) -> None:
    """What is let through of a body asks for nothing that the scope does not name."""
    try:
        document = parse(data)
        check = BodyCheck(DETAIL)
        check.run(document, max_tokens_needed=True)
    except Refusal:
        return
    named = [document["model"], *(each["model"] for each in document.get("fallbacks") or [])]
    tools = document.get("tools") or []
    named += [each["model"] for each in tools if str(each.get("type")).startswith("advisor")]
    assert set(named) <= set(check.models)
    assert all(DETAIL.allows_model(model) for model in check.models)
    assert type(document["max_tokens"]) is int
    assert 1 <= document["max_tokens"] <= CAP
    assert document.get("thread") is None


def stream(data: bytes) -> None:
    """A stream is metered alike however it is cut; the first bytes say where."""
    count = data[0] % _MOST_CUTS if data else 0
    cuts, text = data[1 : 1 + count], data[1 + count :]
    edges = sorted({0, len(text), *(cut * len(text) // 256 for cut in cuts)})
    assert _metered(text, itertools.pairwise(edges)) == _metered(text, [(0, len(text))])


def token(data: bytes) -> None:
    """No text but the one good token passes, and its key id is looked up without a crash."""
    text = data.decode("latin-1")
    key_id = unverified_key_id(text)
    try:
        verify_access(text, KEYS, issuer=ISSUER, audience=AUDIENCE, now=NOW)
    except TokenRefused:
        assert text != GOOD
        return
    assert text == GOOD
    assert key_id == KEY.kid


def claims(data: bytes) -> None:
    """A payload that is signed by us says exactly what is read from it, or is refused."""
    try:
        read = verify_access(sign(KEY, data), KEYS, issuer=ISSUER, audience=AUDIENCE, now=NOW)
    except TokenRefused:
        return
    assert access_payload(read) == json.loads(data), "read and signed differ"


def head(data: bytes) -> None:
    """A head that is taken has one Host, one framing, a plain target and plain headers."""
    first, *lines = data.split(b"\n")
    method, _, target = first.partition(b" ")
    # llhttp takes only tokens for names, and blanks off the front of a value.
    parts = [line.partition(b":") for line in lines]
    pairs = tuple(
        (name, value.lstrip(b" \t")) for name, _, value in parts if _TOKEN.fullmatch(name)
    )
    try:
        taken, found = check_head(method, "1.1", target, pairs, 32 * 1024)
    except Refusal:
        return
    assert taken == tuple((name, value.rstrip(b" \t")) for name, value in pairs)
    names = [name for name, _ in taken]
    assert names.count(b"host") == 1
    assert found[b"host"]
    assert names.count(b"content-length") + names.count(b"transfer-encoding") <= 1
    assert found.get(b"content-length", b"0").isdigit()
    assert target.startswith(b"/")
    assert not set(target) & set(b" #\r\n\0\x7f")
    assert not {b"trailer", b"upgrade"} & set(names)
    for name, value in taken:
        assert b"_" not in name
        value.decode("utf-8")
        assert not set(value) & {*range(9), *range(10, 32), 127}


TARGETS: dict[str, Callable[[bytes], None]] = {
    "body": body,
    "fields": fields,
    "stream": stream,
    "token": token,
    "claims": claims,
    "head": head,
}


def _read_strictly(data: bytes) -> Any:
    return json.loads(data.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({key for key, _ in pairs}) == len(pairs), "a repeated key was taken"
    return dict(pairs)


def _no_constant(name: str) -> NoReturn:
    raise AssertionError(f"{name} was taken")


def _same(one: Any, other: Any) -> bool:
    """Compare without recursion's limit mattering: bodies nest 64 deep at most."""
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and list(one) == list(other)
            and all(_same(one[key], other[key]) for key in one)
        )
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and bool(one == other)


def _metered(text: bytes, pieces: Any) -> tuple[Any, ...]:
    meter = StreamMeter()
    for start, end in pieces:
        meter.feed(text[start:end])
    before = _told(meter)
    meter.end()
    return before, _told(meter)


def _told(meter: Meter) -> tuple[Any, ...]:
    return (
        meter.usage, meter.deltas, meter.text_bytes, meter.finished, meter.final, meter.failed,
        meter.unreadable, meter.output_seen,
    )  # fmt: skip
