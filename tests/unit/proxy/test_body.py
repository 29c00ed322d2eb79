"""Strict JSON: accepted exactly when there is one way to read it."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daypass_core.problem import Refusal
from daypass_proxy import body as body_module
from daypass_proxy.body import MAX_DEPTH, MAX_KEYS, check_media, parse, refuse_lookalikes
from tests.fakes.asgi import make_exchange


class _Refused(Exception):
    pass


def strict_reference(body: bytes) -> dict[str, Any]:
    """Read JSON the slow and obvious way, or raise _Refused."""
    try:
        text = body.decode("utf-8")
        if text.startswith("\ufeff"):
            raise _Refused
        value = json.loads(text, object_pairs_hook=_pairs, parse_constant=_constant)
        json.dumps(value, allow_nan=False)  # 1e400 has become infinity
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # lone surrogates cannot
    except (ValueError, RecursionError):
        raise _Refused from None
    if type(value) is not dict or _depth(value) > MAX_DEPTH or _keys(value) > MAX_KEYS:
        raise _Refused
    return value


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise _Refused
    return dict(pairs)


def _constant(name: str) -> Any:
    raise _Refused


def _depth(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    items = value.values() if isinstance(value, dict) else value
    return 1 + max((_depth(item) for item in items), default=0)


def _keys(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(_keys(item) for item in value.values())
    return sum(_keys(item) for item in value) if isinstance(value, list) else 0


KEYS = st.sampled_from(["model", "Model", "a", "b", "\u00e9", "mod\\u0065l", ""])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
)
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)


@st.composite
def raw_json(draw: st.DrawFn, depth: int = 3) -> str:
    """Write JSON by hand, so that keys repeat and odd tokens occur."""
    kind = draw(st.sampled_from(["object", "array", "scalar", "odd"] if depth else ["scalar"]))
    space = draw(st.sampled_from(["", " ", "\n", "\t"]))
    if kind == "object":
        pairs = draw(st.lists(st.tuples(KEYS, raw_json(depth - 1)), max_size=3))
        return "{" + ",".join(f'{space}"{key}":{space}{value}' for key, value in pairs) + "}"
    if kind == "array":
        return "[" + f",{space}".join(draw(st.lists(raw_json(depth - 1), max_size=3))) + "]"
    if kind == "odd":
        return draw(
            st.sampled_from(
                [
                    *("NaN", "Infinity", "-Infinity", "1e400", "-1e400", "01", "1.", "+1", "1e5"),
                    *(
                        '"\\ud800"',
                        '"\\ud83d\\ude00"',
                        '"\t"',
                        "'a'",
                        '"\\x41"',
                        "[1,]",
                        "tru",
                        "-0",
                    ),
                ]
            )
        )
    return draw(SCALARS.map(lambda value: json.dumps(value)))


@settings(max_examples=600, deadline=None)
@given(
    st.one_of(
        raw_json().map(str.encode),
        DOCUMENTS.map(lambda value: json.dumps(value).encode()),
        DOCUMENTS.map(
            lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        ),
        st.binary(max_size=20),
    )
)
def test_accepts_what_the_strict_reference_accepts(data: bytes) -> None:
    """A body is accepted exactly when the strict reference accepts it, with the same meaning."""
    try:
        expected = strict_reference(data)
    except _Refused:
        with pytest.raises(Refusal) as caught:
            parse(data)
        assert caught.value.problem.status == 400
    else:
        assert parse(data) == expected


@pytest.mark.parametrize(
    "data",
    [
        b'{"model":"a","model":"b"}',
        b'{"model":"a","mod\\u0065l":"b"}',
        b'{"a":{"b":[{"c":1,"c":1}]}}',
        '{"model":"a"}'.encode("utf-16"),
        '{"model":"a"}'.encode("utf-32"),
        b'\xef\xbb\xbf{"model":"a"}',
        b'{"model":"\xff"}',
        b'{"model":"\xed\xa0\x80"}',
        b'{"model":"\xc1\xbf"}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":1e400}',
        b'{"a":"\\ud800"}',
        b'{"a":1}x',
        b'{"a":1}{"a":1}',
        b"",
        b"[]",
        b'"model"',
        b"null",
    ],
)
def test_ambiguous_bodies_are_refused(data: bytes) -> None:
    """Duplicate keys, other encodings, marks and non-numbers are refused (attack row 31)."""
    with pytest.raises(Refusal):
        parse(data)


def test_depth() -> None:
    """Nesting of 64 is read, 65 and a hundred thousand are refused (attack row 17)."""
    assert parse(b'{"a":' * 64 + b"1" + b"}" * 64)
    for depth in (65, 100_000):
        with pytest.raises(Refusal):
            parse(b'{"a":' * depth + b"1" + b"}" * depth)
    with pytest.raises(Refusal):
        parse(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


def test_keys() -> None:
    """Ten thousand keys are read, one more is refused, wherever they are (attack row 17)."""
    many = {str(i): 0 for i in range(MAX_KEYS - 1)}
    assert parse(json.dumps({"a": many}).encode())
    with pytest.raises(Refusal, match="keys"):
        parse(json.dumps({"a": many, "b": 0}).encode())


def test_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of tiny values is refused before it becomes objects; commas in text are none."""
    monkeypatch.setattr(body_module, "MAX_VALUES", 1000)
    with pytest.raises(Refusal, match="values"):
        parse(b'{"a":[' + b"[]," * 1000 + b"[]]}")
    with pytest.raises(Refusal, match="values"):
        parse(json.dumps({"a": ["\\"] * 1001}).encode())
    assert parse(json.dumps({"a": ["\\", ',"\\'] * 400}).encode())
    for text in (',[{"\\', ",\\", '\\",', '",'):
        assert parse(json.dumps({"a": text * 5000, "b": [text]}).encode())


@pytest.mark.parametrize("more", [b"", b' ,"b":":::"'])
def test_long_integers(more: bytes) -> None:
    """An integer no client writes is refused before it is made; in a text it is no integer."""
    digits = b"7" * 4000
    with pytest.raises(Refusal):
        parse(b'{"a":' + digits + more + b"}")
    assert parse(b'{"a":"' + digits + b'"' + more + b"}")["a"] == digits.decode()
    assert parse(b'{"a":' + digits[:128] + more + b"}")["a"] == int(digits[:128])
    with pytest.raises(Refusal, match="repeats"):
        parse(b'{"a":"' + digits + b'","a":1' + more + b"}")


def test_common_encoders_take_the_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compact bodies, as the official SDKs write them, are proved without a second reading."""
    monkeypatch.setattr(body_module, "_read_again", None)
    document = {"model": "m", "messages": [{"role": "user", "content": "h\u00e9\n\U0001f600"}]}
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    assert parse(text.encode()) == document


@pytest.mark.parametrize("key", ["Model", "MODEL", "\uff4dodel", " model", "max_tokens\u00a0"])
def test_lookalike_keys(key: str) -> None:
    """A key that folds to a known one but is not it is refused, naming the known one (row 31)."""
    with pytest.raises(Refusal) as caught:
        refuse_lookalikes({key: 1}, {"model", "max_tokens"})
    assert caught.value.problem.field in ("model", "max_tokens")
    refuse_lookalikes({"model": 1, "other": 2}, {"model"})


@pytest.mark.parametrize(
    "value",
    [b"application/json", b"application/json; charset=utf-8", b'Application/JSON;charset="UTF-8"'],
)
def test_media_type(value: bytes) -> None:
    """JSON in UTF-8 is the only body there is."""
    check_media(make_exchange(headers=[(b"content-type", value)])[0])


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"content-type", b"text/plain")],
        [(b"content-type", b"application/json; charset=utf-16")],
        [(b"content-type", b"application/jsonx")],
        [(b"content-type", b"application/json"), (b"content-type", b"application/json")],
        [(b"content-type", b"application/json"), (b"content-encoding", b"gzip")],
        [(b"content-type", b"application/json"), (b"content-encoding", b"zstd, br")],
    ],
)
def test_other_media_are_refused(headers: list[tuple[bytes, bytes]]) -> None:
    """Compressed, undeclared, doubly declared or other bodies are 400 (attack row 16)."""
    with pytest.raises(Refusal) as caught:
        check_media(make_exchange(headers=headers)[0])
    assert caught.value.problem.status == 400
