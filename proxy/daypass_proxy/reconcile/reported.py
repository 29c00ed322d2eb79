"""The provider's side: Anthropic's usage report of Messages, read page by page.

`GET /v1/organizations/usage_report/messages` of the Admin API, in buckets of a day, by model. It
takes an Admin API key and nothing else. A page that is not exactly understood is an error: a figure
that is left out must not count as nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from urllib.parse import urlencode

import msgspec

from daypass_proxy.reconcile import Day, Kind, Reported, Unreadable, used

PATH = "/v1/organizations/usage_report/messages"
PAGE_DAYS = 31
"""The most buckets of a day that a page may hold."""
TRIES = 5
RETRY_MOST = 60.0
"""Seconds; a longer retry-after is not waited for in full."""
NO_MODEL = "(no model)"
"""Usage that the provider attributes to none."""

_AGAIN = frozenset({429, 500, 502, 503, 504, 529})
_ADVICE = {
    401: "the admin key is not valid; an Admin API key (sk-ant-admin…) is needed, no API key",
    403: "the admin key may not read usage reports",
    404: "there is no usage report here; the upstream must be Anthropic's own API",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Whole days of UTC, `until` not included; only of some workspaces or keys, where named."""

    since: date
    until: date
    workspaces: Sequence[str] = ()
    api_keys: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """An answer of the report's endpoint; `retry_after` in seconds, where it says so."""

    status: int
    body: bytes
    retry_after: float | None = None


Ask = Callable[[str], Awaitable[Page]]
"""Asks for a target (path and query); raises Unreadable when nobody can answer now."""


class _Writes(msgspec.Struct):
    ephemeral_5m_input_tokens: int
    ephemeral_1h_input_tokens: int


class _Tools(msgspec.Struct):
    web_search_requests: int


class _Result(msgspec.Struct):
    uncached_input_tokens: int
    cache_creation: _Writes
    cache_read_input_tokens: int
    output_tokens: int
    server_tool_use: _Tools
    model: str | None

    def figures(self) -> dict[Kind, int]:
        return {
            Kind.INPUT: self.uncached_input_tokens,
            Kind.CACHE_WRITE_5M: self.cache_creation.ephemeral_5m_input_tokens,
            Kind.CACHE_WRITE_1H: self.cache_creation.ephemeral_1h_input_tokens,
            Kind.CACHE_READ: self.cache_read_input_tokens,
            Kind.OUTPUT: self.output_tokens,
            Kind.WEB_SEARCH: self.server_tool_use.web_search_requests,
        }


class _Bucket(msgspec.Struct):
    starting_at: datetime
    ending_at: datetime
    results: list[_Result]


class _Report(msgspec.Struct):
    data: list[_Bucket]
    has_more: bool
    next_page: str | None


async def read(
    ask: Ask, wanted: Wanted, name: Callable[[str], str], sleep: Callable[[float], Awaitable[None]]
) -> Reported:
    """Return what the provider counted, models called as `name` says; raises Unreadable."""
    total: dict[Day, Counter[Kind]] = defaultdict(Counter)
    page: str | None = None
    seen: set[str] = set()
    while True:
        report = _parsed(await _page(ask, target(wanted, page), sleep))
        for bucket in report.data:
            day = _day(bucket, wanted)
            for result in bucket.results:
                model = NO_MODEL if result.model is None else name(result.model)
                total[Day(day, model)].update(result.figures())
        if not report.has_more:
            return Reported(used(total))
        page = report.next_page
        if page is None or page in seen:
            raise Unreadable("the usage report has more pages, but does not say where")
        seen.add(page)


def target(wanted: Wanted, page: str | None) -> str:
    """Return path and query of one page."""
    query = [
        ("starting_at", f"{wanted.since}T00:00:00Z"),
        ("ending_at", f"{wanted.until}T00:00:00Z"),
        ("bucket_width", "1d"),
        ("group_by[]", "model"),
        ("limit", str(PAGE_DAYS)),
        *(("workspace_ids[]", each) for each in wanted.workspaces),
        *(("api_key_ids[]", each) for each in wanted.api_keys),
    ]
    if page is not None:
        query.append(("page", page))
    return f"{PATH}?{urlencode(query)}"


async def _page(ask: Ask, where: str, sleep: Callable[[float], Awaitable[None]]) -> bytes:
    """Return one page's body, asked for again while the provider is busy."""
    for attempt in range(TRIES):
        page = await ask(where)
        if page.status == 200:
            return page.body
        if page.status not in _AGAIN:
            break
        if attempt < TRIES - 1:
            wait = 2.0**attempt if page.retry_after is None else page.retry_after
            await sleep(min(wait, RETRY_MOST))
    advice = _ADVICE.get(page.status)
    if advice is None:
        advice = f"still so after {TRIES} tries" if page.status in _AGAIN else _words(page.body)
    raise Unreadable(f"the usage report was answered with {page.status}: {advice}")


class _Said(msgspec.Struct):
    message: str


class _Error(msgspec.Struct):
    error: _Said


def _words(body: bytes) -> str:
    """Return what the provider says is wrong, short and printable."""
    try:
        said = msgspec.json.decode(body, type=_Error).error.message
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "without a reason"
    return ascii(said[:200]).strip("'\"")


def _parsed(body: bytes) -> _Report:
    try:
        return msgspec.json.decode(body, type=_Report)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # The text of msgspec names the place and the types, never a value.
        raise Unreadable(f"the usage report is not in the form that is known: {error}") from None


def _day(bucket: _Bucket, wanted: Wanted) -> date:
    starts, ends = bucket.starting_at, bucket.ending_at
    if starts.tzinfo is None or ends.tzinfo is None or (ends - starts).total_seconds() != 86_400:
        raise Unreadable("the usage report has a bucket that is no day of UTC")
    day = starts.astimezone(UTC)
    if (day.hour, day.minute, day.second) != (0, 0, 0):
        raise Unreadable("the usage report has a bucket that is no day of UTC")
    if not wanted.since <= day.date() < wanted.until:
        raise Unreadable("the usage report has a day that was not asked for")
    return day.date()
