"""Lowering max_tokens: the one change of a body, and everything else byte for byte as it came."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daypass_proxy.providers import anthropic_lower
from daypass_proxy.providers.anthropic import Anthropic
from daypass_proxy.providers.anthropic_lower import lower_output
from tests.fakes.call import make_call

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


BODY = (
    b' {"temperature": 1.10, "max_tokens" : 64000,\n"system":"caf\\u00e9 \xc3\xa9 \\/",'
    b' "messages": [ {"role":"user", "content": "1e2 \\ud83d\\ude00"} ], "top_p":1E-1 } '
)


def test_only_the_digits_change() -> None:
    """Where the name stands once, every other byte of the body stays."""
    assert lower_output(BODY, 1500) == BODY.replace(b"64000", b"1500")
    assert lower_output(b'{"max_tokens":9}', 1) == b'{"max_tokens":1}'


def test_other_values_keep_their_bytes() -> None:
    """Where it stands elsewhere too, numbers, escapes, inner blanks and the order of members stay.

    What only looks like it, in text or in the input of a tool, is not touched.
    """
    more = BODY.replace(b'"top_p"', b'"x": [ {"max_tokens":\t7} ], "y":"\\"max_tokens" ,"top_p"')
    assert lower_output(more, 1500) == (
        b'{"temperature":1.10,"max_tokens":1500,"system":"caf\\u00e9 \xc3\xa9 \\/",'
        b'"messages":[ {"role":"user", "content": "1e2 \\ud83d\\ude00"} ],'
        b'"x":[ {"max_tokens":\t7} ],"y":"\\"max_tokens","top_p":1E-1}'
    )


def test_large_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large body is lowered in passing, or not at all: nobody else waits for it."""
    monkeypatch.setattr(anthropic_lower, "SLOW_MAX", 100)
    body = b'{"max_tokens":9,"x":"' + b"x" * 100
    assert lower_output(body + b'"}', 5) == body.replace(b":9", b":5") + b'"}'
    for end in (b'","y":{"max_tokens":7}}', b'","\\u0079":{"z":7}}'):
        with pytest.raises(ValueError, match="too large"):
            lower_output(body + end, 5)


def test_other_models_are_lowered_too() -> None:
    """Each model that may write the answer instead is bound by the same; one below stays."""
    body = (
        b'{"model":"a","max_tokens":9000,"fallbacks":[{"model":"b","max_tokens":8000},'
        b'{"model":"c", "max_tokens":10},{"model":"d","max_tokens":null},{"model":"e"}]}'
    )
    assert json.loads(lower_output(body, 100)) == {
        "model": "a",
        "max_tokens": 100,
        "fallbacks": [
            {"model": "b", "max_tokens": 100},
            {"model": "c", "max_tokens": 10},
            {"model": "d", "max_tokens": None},
            {"model": "e"},
        ],
    }
    kept = b'[ {"model":"b"} ]'
    assert kept in lower_output(b'{"max_tokens":2,"fallbacks":%b}' % kept, 1)
    assert b'"fallbacks":null' in lower_output(b'{"max_tokens":2,"fallbacks":null}', 1)


def test_what_others_write_beside_is_not_touched() -> None:
    """An advisor's own limit is held for by itself."""
    body = b'{"max_tokens":9,"tools":[{"type":"advisor_20260301","max_tokens":4000}]}'
    assert lower_output(body, 5) == body.replace(b":9", b":5")


def test_escaped_name() -> None:
    """A name that is spelled with escapes is the same name, and one further in is another."""
    body = b'{"x":{"max_tokens":9},"max\\u005ftokens":9}'
    assert json.loads(lower_output(body, 5)) == {"x": {"max_tokens": 9}, "max_tokens": 5}
    assert json.loads(lower_output(body[:-2] + b"4}", 5))["max_tokens"] == 4


def test_call() -> None:
    """The call says what its body says."""
    call = Anthropic().lower_output(make_call(max_output_tokens=100), 7)
    assert call.max_output_tokens == json.loads(call.body)["max_tokens"] == 7
    assert call.headers == make_call().headers


@given(
    members=st.dictionaries(st.text().filter(lambda name: name != "fallbacks"), JSON),
    limit=st.integers(1, 10**6),
    most=st.integers(1, 10**6),
    indent=st.sampled_from([None, 1]),
)
def test_any_body(members: dict[str, object], limit: int, most: int, indent: int | None) -> None:
    """Whatever stands beside it: the same document with a lower limit."""
    document = members | {"max_tokens": limit}
    lowered = lower_output(json.dumps(document, indent=indent).encode(), most)
    assert json.loads(lowered) == document | {"max_tokens": min(limit, most)}
    assert list(json.loads(lowered)) == list(document)
