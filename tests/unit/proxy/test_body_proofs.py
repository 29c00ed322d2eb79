"""Strict JSON by short cuts: what spares a small body a walk, and that nothing slips through."""

import pytest

from daypass_core.problem import Refusal
from daypass_proxy.body import strict
from daypass_proxy.body.strict import MAX_DEPTH, parse


def test_a_plain_body_is_proved_by_writing_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that is just what we would write repeats no name, long integers included."""
    plain = '{"a":"b: c","é":[1,1.5,null,{"x:":"\\n"}]}'.encode()
    long = b'{"a":"b: c","n":' + b"9" * 40 + b"}"
    assert parse(long)["n"] == 10**40 - 1
    for doubled in (plain.replace("é".encode(), b"a"), long.replace(b'"n"', b'"a"')):
        with pytest.raises(Refusal, match="repeats"):
            parse(doubled)
    monkeypatch.setattr(strict, "_colons_within", None)
    assert parse(plain)["a"] == "b: c"


def test_a_body_full_of_colons_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large plain body with many colons in its texts none is counted; a lost name shows."""
    texts = ",".join(f'"{n}":"{"code: " * 20}"' for n in range(1000)).encode()
    plain = b'{"first":1,"texts":{' + texts + b"}}"
    doubled = plain.replace(b'"998":', b'"999":')
    spelled = plain.replace(b"code:", rb"code\u003a", 1)
    for body in (doubled, doubled.replace(b"code:", rb"code\u003a", 1), doubled + b" "):
        with pytest.raises(Refusal, match="repeats"):
            parse(body)
    assert parse(spelled) == parse(plain + b"\n")
    monkeypatch.setattr(strict, "spells_colons", None)
    assert parse(plain)["first"] == 1


@pytest.mark.parametrize("brackets", [MAX_DEPTH - 1, MAX_DEPTH, 4 * MAX_DEPTH])
def test_many_brackets_beside_each_other_are_not_depth(brackets: int) -> None:
    """A body of few brackets is not walked for its depth, one of more is; both may be flat."""
    flat = b'{"a":[' + b",".join([b"[]"] * brackets) + b"]}"
    assert len(parse(flat)["a"]) == brackets
    with pytest.raises(Refusal, match="deeper"):
        parse(b'{"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}")
