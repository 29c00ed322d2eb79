"""The head of a request, checked, and what was found out from it alone.

A client that keeps its connection repeats its head byte for byte, except for the length of the
body. `guard` hands out the same Head for such requests, so a result that depends on nothing but
the head is worked out once for a connection. Whatever depends on the time, on revocations or on
the body is found out anew for each request and never kept here.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from daypass_core.problem import Code, refuse

HeaderPairs = tuple[tuple[bytes, bytes], ...]
"""Header fields as they came, names in lower case."""

_Found = TypeVar("_Found")


class Head:
    """Headers that never change; the one of `guard` holds all but content-length."""

    __slots__ = ("__weakref__", "_fields", "_found", "headers")

    def __init__(self, headers: HeaderPairs) -> None:
        self.headers = headers
        # By name, the last of each; asked before the pairs, which tell what was sent twice.
        self._fields = dict(headers)
        self._found: dict[Callable[[Head], Any], Any] = {}

    def values(self, name: bytes) -> list[bytes]:
        """Return every value of the header `name` (lower-case), in order."""
        return [value for key, value in self.headers if key == name]

    def header(self, name: bytes) -> bytes | None:
        """Return the single value of `name`; raises Refusal invalid_request when it came twice."""
        value = self._fields.get(name)
        if (
            value is not None
            and len(self._fields) != len(self.headers)
            and len(self.values(name)) > 1
        ):
            raise refuse(
                Code.INVALID_REQUEST,
                f"header {name.decode('latin-1')} was sent more than once; send it once",
            )
        return value

    def once(self, find: Callable[["Head"], _Found]) -> _Found:
        """Return `find(self)`, worked out the first time; a refusal is raised each time anew.

        `find` has to be a function of the head alone: no clock, no store, no other request.
        """
        try:
            found: _Found = self._found[find]
        except KeyError:
            found = self._found[find] = find(self)
        return found
