"""One request to the admin listener, from its credential to its answer.

authenticate → read the body → work, in a thread → render → one log line. Nothing of a stranger is
read beyond the headers, and a stranger is told the same words for every reason (attacks row 42).
What a route does is a plain function from `Call` to `Answer`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import sqlalchemy as sa
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from daypass_broker import audit, credential, db
from daypass_broker.act import Act, acting
from daypass_broker.admin import problems
from daypass_broker.credential import Principal
from daypass_broker.fields import FieldError, Fields, read_json
from daypass_broker.keys import SigningUnavailable
from daypass_broker.services import Services
from daypass_core.log import event, failed, get_logger, request_id
from daypass_core.problem import Code, Problem, Refusal, refuse

log = get_logger(__name__)

MAX_BODY_BYTES = 64 * 1024
MAX_POLICY_BYTES = 256 * 1024
BODY_SECONDS = 10.0
_MAX_ROWS = 1000
_ROWS = 100
# What a known caller may not do or see; a stream of these is somebody trying doors.
_INCIDENTS = (Code.FORBIDDEN, Code.BEYOND_PROFILE, Code.NOT_FOUND)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a route answers; `body` becomes JSON, text of another media type goes as it is."""

    body: object
    status: int = 200
    media_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Call:
    """An authenticated request with its whole body, as the routes see it."""

    request: Request
    services: Services
    principal: Principal
    body: bytes
    request_id: str

    @property
    def id(self) -> str:
        """The `{id}` of the path; raises Refusal for one that no store can hold."""
        found = str(self.request.path_params["id"])
        if "\x00" in found:
            raise refuse(Code.NOT_FOUND)
        return found

    @property
    def now(self) -> int:
        """The store's time in epoch seconds."""
        return int(self.services.clock.now())

    def acting(
        self, lock: Callable[[sa.Connection], object] | None = None
    ) -> AbstractContextManager[Act]:
        """Open the write transaction of what this caller does; see `act.acting`."""
        return acting(
            self.services.engine,
            self.principal.credential,
            self.services.new_id,
            lock=lock,
            request_id=self.request_id,
        )

    def reading(self) -> AbstractContextManager[sa.Connection]:
        """Open a read transaction."""
        return db.read(self.services.engine)

    def require_admin(self) -> None:
        """Raise Refusal for everybody but admins."""
        if not self.principal.is_admin:
            raise refuse(Code.FORBIDDEN, "this is for admins only")

    def json(self) -> object:
        """Return the decoded body; raises FieldError."""
        return read_json(self.body)

    def require_no_body(self) -> None:
        """Refuse a body where none is read: what it asks for would be ignored."""
        if self.body:
            Fields(self.json()).done()

    def query(self) -> Fields:
        """Return the query as fields; raises FieldError for a name given twice."""
        found: dict[str, object] = {}
        for name, value in self.request.query_params.multi_items():
            if name in found:
                raise FieldError(name[:64], "is given twice")
            if "\x00" in value:
                raise FieldError(name[:64], "must not hold NUL")
            found[name] = value
        return Fields(found)

    def tenant(self, query: Fields) -> str | None:
        """Take `tenant` from the query: an orchestrator's own without asking, no other."""
        wanted = query.name("tenant")
        if wanted is not None and not self.principal.may_see(wanted):
            raise refuse(Code.NOT_FOUND, f"tenant: no tenant {wanted}", field="tenant")
        return wanted or self.principal.tenant


Work = Callable[[Call], Answer]


def take_limit(query: Fields) -> int:
    """Take `limit` from a query: 1 to 1000 rows, 100 by default."""
    text = query.text("limit")
    if text is None:
        return _ROWS
    if not re.fullmatch(r"[1-9][0-9]{0,3}", text) or int(text) > _MAX_ROWS:
        raise query.error("limit", f"must be a number from 1 to {_MAX_ROWS}")
    return int(text)


def endpoint(
    services: Services, route: str, by_verb: Mapping[str, Work]
) -> Callable[[Request], Awaitable[Response]]:
    """Return the ASGI-side function of a route; `route` is its path as logged, without ids."""

    async def answer(request: Request) -> Response:
        current = services.new_id("req")
        request_id.set(current)
        started = time.monotonic()
        principal: Principal | None = None
        verb = "GET" if request.method == "HEAD" else request.method
        try:
            principal = await services.threads.run(_authenticate, services, request)
            body = await read_body(request)
            call = Call(request, services, principal, body, current)
            response = render(await services.threads.run(by_verb[verb], call))
        except Exception as error:
            problem = problem_of(error)
            response = problems.render(problem)
            await asyncio.to_thread(_count, services, principal, problem)
        response.headers["request-id"] = current
        seconds = time.monotonic() - started
        services.metrics.admin_answered(verb, route, response.status_code, seconds)
        event(
            log,
            "admin_request",
            method=request.method,
            route=route,
            status=response.status_code,
            credential=principal.credential if principal else None,
            ms=round(seconds * 1000),
        )
        return response

    return answer


def _authenticate(services: Services, request: Request) -> Principal:
    headers = request.headers.getlist("authorization")
    with db.read(services.engine) as conn:
        # Two headers could mean two callers; neither is believed.
        found = credential.authenticate(conn, headers[0] if len(headers) == 1 else None)
    if found is None:
        raise refuse(Code.INVALID_CREDENTIAL)
    return found


async def read_body(request: Request) -> bytes:
    """Read the body, bounded in size and time; raises Refusal."""
    body = bytearray()
    most = MAX_POLICY_BYTES if request.method == "PUT" else MAX_BODY_BYTES
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise refuse(Code.REQUEST_TOO_LARGE, f"body: must be at most {most} bytes")
    except TimeoutError:
        raise refuse(Code.REQUEST_TIMEOUT) from None
    return bytes(body)


def render(answer: Answer) -> Response:
    """Return an answer as it goes on the wire."""
    text = answer.body
    if not isinstance(text, str):
        text = json.dumps(text, ensure_ascii=False, separators=(",", ":"))
    headers = {"cache-control": "no-store", **answer.headers}
    return Response(text.encode(), answer.status, headers, media_type=answer.media_type)


def problem_of(error: Exception) -> Problem:
    """Translate what a route raised; what nobody expected is logged and told to nobody."""
    if isinstance(error, Refusal):
        return error.problem
    if isinstance(error, FieldError):
        return Problem.of(Code.INVALID_REQUEST, str(error), field=error.field)
    if isinstance(error, ClientDisconnect):
        return Problem.of(Code.INVALID_REQUEST, "body: broke off")
    if isinstance(error, SigningUnavailable):
        event(log, "signing_unavailable", level=logging.ERROR)
        return Problem.of(Code.SIGNING_UNAVAILABLE, error.told, retry_after=error.retry_after)
    if isinstance(error, db.StoreInDoubt):
        event(log, "store_in_doubt", level=logging.ERROR, cause=str(error))
        return Problem.of(Code.INTERNAL_ERROR, "outcome is not known: look before trying again")
    if isinstance(error, db.StoreUnavailable):
        event(log, "store_unavailable", level=logging.ERROR, cause=str(error))
        return Problem.of(Code.STORE_UNAVAILABLE)
    failed(log, "admin_request_failed", error)
    return Problem.of(Code.INTERNAL_ERROR)


def _count(services: Services, principal: Principal | None, problem: Problem) -> None:
    """Count a refusal of a known caller; strangers never write."""
    if principal is None or problem.code not in _INCIDENTS:
        return
    try:
        with db.begin(services.engine) as conn:
            kind = f"admin_refused:{problem.code}"
            audit.count(conn, principal.credential, kind, db.now_ms(conn))
    except db.StoreUnavailable:
        event(log, "incident_not_counted", level=logging.WARNING)
