"""The few changes that a body of OpenAI's API undergoes on its way up.

Place in the flow: `providers.openai` puts in what makes the answer countable (`include_usage`) and
leaves nothing of it behind (`store`), and `reserve.fit` has the limit of output tokens lowered.
The body was checked before, so it is one object, no name stands in it twice, and what it has is
known without looking for it. What it has not is put in front of everything else. What it has is
changed in the outer object, put together anew from its members as they came: every other value
keeps its bytes, and members their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from daypass_proxy.providers import Asked

SLOW_MAX = 4 * 1024 * 1024
"""Largest body in bytes that is put together anew; the event loop stands still for 14 ms then."""
_OLDER, _NEWER = "max_tokens", "max_completion_tokens"

_Members = dict[str, msgspec.Raw]
_OBJECT = msgspec.json.Decoder(_Members)
_NULL = b"null"
_USAGE = b'{"include_usage":true}'


def amended(body: bytes, asked: Asked) -> bytes:
    """Return `body` with the members that it needs; raises ValueError for one that is too large."""
    if asked.left_out:
        body = _put_in(body, [(name, _VALUES[name](_NULL)) for name in asked.left_out])
    if asked.unset:
        members = _members(body)
        for name in asked.unset:
            if name == _NEWER:
                # By its older name alone, and by the highest that was asked for.
                del members[name]
                members[_OLDER] = msgspec.Raw(b"%d" % (asked.max_output_tokens or 1))
            else:
                members[name] = msgspec.Raw(_VALUES[name](bytes(members[name])))
        body = _written(members)
    return body


def lower_output(body: bytes, most: int, limits: Sequence[str], usual: str) -> bytes:
    """Return `body` with none of its `limits` of output tokens above `most`.

    Without any, `usual` is put in. Raises ValueError for a large body that has some.
    """
    if not limits:
        return _put_in(body, [(usual, b"%d" % most)])
    members = _members(body)
    given = [name for name in limits if bytes(members.get(name, _NULL)) != _NULL]
    for name in given or [usual]:
        if not given or int(bytes(members[name])) > most:
            members[name] = msgspec.Raw(b"%d" % most)
    return _written(members)


def _with_usage(before: bytes) -> bytes:
    """Return `stream_options` with the usage asked for."""
    if before == _NULL:
        return _USAGE
    options = _OBJECT.decode(before)
    options["include_usage"] = msgspec.Raw(b"true")
    return _written(options)


_VALUES: dict[str, Callable[[bytes], bytes]] = {
    "stream_options": _with_usage,
    "store": lambda _: b"false",
}


def _put_in(body: bytes, members: Sequence[tuple[str, bytes]]) -> bytes:
    """Return `body`, which has members, with these in front of them."""
    at = body.index(b"{") + 1
    front = b"".join([b'"%b":%b,' % (name.encode(), value) for name, value in members])
    return b"".join((body[:at], front, memoryview(body)[at:]))


def _members(body: bytes) -> _Members:
    if len(body) > SLOW_MAX:
        raise ValueError("body is too large to be put together anew")
    return _OBJECT.decode(body)


def _written(members: _Members) -> bytes:
    pairs = [msgspec.json.encode(name) + b":" + bytes(value) for name, value in members.items()]
    return b"{" + b",".join(pairs) + b"}"
