"""Strict JSON: accepted exactly when there is one way to read it."""

import json
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daypass_core.problem import Refusal
from daypass_proxy.body import strict
from daypass_proxy.body.spool import SPOOL_ABOVE
from daypass_proxy.body.strict import (
    FEW_COLONS,
    FEW_COMMAS,
    FEW_CONTAINERS,
    MAX_DEPTH,
    MAX_KEYS,
    MEDIUM,
    SMALL,
    check_media,
    is_quick,
    parse,
)
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


STYLES: list[dict[str, Any]] = [
    {"separators": (",", ":"), "ensure_ascii": False},
    {"separators": (",", ":")},
    {},
    {"ensure_ascii": False},
    {"indent": 1},
    {"separators": (" , ", " : ")},
]


@st.composite
def with_a_duplicate(draw: st.DrawFn) -> bytes:
    """Write a document in which one object, at any depth, has one of its keys twice."""
    inner = draw(DOCUMENTS)
    key = draw(st.text(max_size=4))
    twin = draw(
        st.sampled_from([json.dumps(key), escaped(key), json.dumps(key, ensure_ascii=False)])
    )
    mark = "\u2603mark"
    document: Any = {key: inner, mark: draw(DOCUMENTS)}
    for _ in range(draw(st.integers(0, 4))):
        document = draw(
            st.sampled_from([{"x": document, "y": 1}, [1, document], {"m": [document]}])
        )
    text = json.dumps({"model": "m", "b": document}, **draw(st.sampled_from(STYLES)))
    written = json.dumps(mark) if json.dumps(mark) in text else f'"{mark}"'
    return text.replace(written, twin).encode("utf-8", "surrogatepass")


def escaped(key: str) -> str:
    """Spell every letter of a key with \\u."""
    units = key.encode("utf-16-be", "surrogatepass")
    pairs = [units[i : i + 2].hex() for i in range(0, len(units), 2)]
    return '"' + "".join(f"\\u{pair}" for pair in pairs) + '"'


@settings(max_examples=120, deadline=None)
@given(with_a_duplicate(), st.booleans())
def test_a_duplicate_anywhere_is_refused(data: bytes, in_a_worker: bool) -> None:
    """Row 31: a key that occurs twice in its object, in whatever spelling or depth, is refused."""
    with pytest.raises(Refusal, match="repeats"), as_found(data, in_a_worker) as body:
        parse(body)


@settings(max_examples=120, deadline=None)
@given(
    st.dictionaries(st.text(max_size=4), DOCUMENTS, max_size=4),
    st.sampled_from(STYLES),
    st.booleans(),
)
def test_what_is_accepted_means_the_same_to_others(
    document: dict[str, Any], style: dict[str, Any], in_a_worker: bool
) -> None:
    """Row 31: an accepted body decodes to the same in three readers, here and in a worker."""
    data = json.dumps(document, **style).encode()
    with as_found(data, in_a_worker) as body:
        ours = parse(body)
    strict = strict_reference(data)
    assert ours == strict == msgspec.json.decode(data)
    assert repr(ours) == repr(strict)  # 1 and 1.0 and true are equal, and are not the same


@settings(max_examples=200, deadline=None)
@given(raw_json().map(str.encode))
def test_a_worker_judges_as_the_service_does(data: bytes) -> None:
    """A body in mapped memory is accepted exactly when the same bytes are."""
    outcomes = []
    for in_a_worker in (False, True):
        with as_found(data or b" ", in_a_worker) as body:
            try:
                outcomes.append(repr(parse(body)))
            except Refusal as refusal:
                outcomes.append(refusal.problem.title)
    assert outcomes[0] == outcomes[1]


@contextmanager
def as_found(data: bytes, in_a_worker: bool) -> Iterator[bytes | mmap.mmap]:
    """Give a body as it is found in the service or, mapped, in a worker."""
    if not in_a_worker:
        yield data
        return
    with mmap.mmap(-1, len(data)) as mapping:
        mapping.write(data)
        yield mapping


@pytest.mark.parametrize(
    ("body", "quick"),
    [
        (b"[" * SMALL, True),
        (b"[" * (SMALL + 1), False),
        ((b"[{" * FEW_CONTAINERS)[:FEW_CONTAINERS].ljust(MEDIUM, b","), True),
        ((b"[{" * FEW_CONTAINERS)[: FEW_CONTAINERS + 1].ljust(MEDIUM, b","), False),
        (b":" * MEDIUM, True),
        (b":" * FEW_COLONS + b"x" * MEDIUM, True),
        (b":" * (FEW_COLONS + 1) + b"x" * MEDIUM, False),
        (b"1," * FEW_COMMAS + b"x" * MEDIUM, True),
        (b"1," * (FEW_COMMAS + 1) + b"x" * MEDIUM, False),
        ((b"[{" * FEW_CONTAINERS)[: FEW_CONTAINERS + 1] + b"x" * MEDIUM, False),
        (b'"' + b"x" * (SPOOL_ABOVE - 2) + b'"', True),
        (b'"' + b"x" * (SPOOL_ABOVE - 1) + b'"', False),
    ],
)
def test_what_is_checked_at_once_is_bounded(body: bytes, quick: bool) -> None:
    """Row 17: the loop checks 64 KiB of anything, and more only with few containers or values."""
    assert is_quick(body) is quick


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
    """A hundred thousand keys are read, one more is refused, wherever they are (attack row 17)."""
    many = {str(i): 0 for i in range(MAX_KEYS - 1)}
    assert parse(json.dumps({"a": many}).encode())
    with pytest.raises(Refusal, match="keys"):
        parse(json.dumps({"a": many, "b": 0}).encode())


@pytest.mark.parametrize("large", [False, True])
def test_values(monkeypatch: pytest.MonkeyPatch, large: bool) -> None:
    """A flood of tiny values is refused, a large one unmade; commas in text are none (row 17)."""
    monkeypatch.setattr(strict, "MAX_VALUES", 1000)
    if large:
        monkeypatch.setattr(strict, "SPOOL_ABOVE", 0)
        monkeypatch.setattr(strict, "_check_shape", len)  # objects below hold texts alone
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
    """Bodies as clients write them are proved without looking for the ends of strings."""
    monkeypatch.setattr(strict, "members", None)
    content = "h\u00e9: \n\U0001f600 ::"
    document = {"model": "m", "messages": [{"role": "user", "content": content, "a:b": 1}]}
    for style in STYLES:
        assert parse(json.dumps(document, **style).encode()) == document


@pytest.mark.parametrize("in_a_worker", [False, True])
@pytest.mark.parametrize("colon", [":", "\\u003a", "\\u003A"])
@pytest.mark.parametrize("before", [0, *range(256 * 1024 - 20, 256 * 1024)])
def test_colons_in_strings_hide_no_duplicate(colon: str, before: int, in_a_worker: bool) -> None:
    """Row 31: however a colon in a string is spelled, it stands for no lost name."""
    fill = "x" * before
    doubled = f'{{"f":"{fill}","a":1,"a":"{colon}"}}'.encode()
    with as_found(doubled, in_a_worker) as body, pytest.raises(Refusal, match="repeats"):
        parse(body)
    with as_found(doubled.replace(b'"a":1', b'"b":1'), in_a_worker) as body:
        assert parse(body)["a"] == ":"


@pytest.mark.parametrize(
    "value",
    [b"application/json", b"application/json; charset=utf-8", b'Application/JSON;charset="UTF-8"'],
)
def test_media_type(value: bytes) -> None:
    """JSON in UTF-8 is the only body there is."""
    check_media(make_exchange(headers=[(b"content-type", value)])[0].head)


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
        check_media(make_exchange(headers=headers)[0].head)
    assert caught.value.problem.status == 400


@pytest.mark.parametrize("style", STYLES[:3])
@pytest.mark.parametrize("size", [10, SMALL + 10, SPOOL_ABOVE + 10])
@pytest.mark.parametrize("in_a_worker", [False, True])
def test_one_duplicate_in_a_body_of_any_size(
    style: dict[str, Any], size: int, in_a_worker: bool
) -> None:
    """Row 31: each of the ways to prove that no key was lost knows when one was."""
    once = {"a": "x" * size, "b": [{"c": 1, "D": 2}]}
    data = json.dumps(once, **style).encode()
    with as_found(data, in_a_worker) as body:
        assert parse(body) == once
    with (
        as_found(data.replace(b'"D"', b'"c"'), in_a_worker) as body,
        pytest.raises(Refusal, match="repeats"),
    ):
        parse(body)
