"""Refusals of the admin listener on the wire: RFC 9457 problem+json, rendered in this one place."""

from __future__ import annotations

import json

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from daypass_core.problem import Code, Problem


def render(problem: Problem) -> Response:
    """Write a problem; `title` is the same for each code, `detail` says what it was this time."""
    detail = f"{problem.title}; {problem.hint}" if problem.hint else problem.title
    body: dict[str, object] = {
        "type": f"urn:daypass:problem:{problem.code}",
        "title": problem.code.replace("_", " "),
        "status": problem.status,
        "code": problem.code,
        "detail": detail,
    }
    if problem.field is not None:
        body["field"] = problem.field
    headers = {"cache-control": "no-store"}
    if problem.status == 401:
        headers["www-authenticate"] = "Bearer"
    if problem.retry_after is not None:
        headers["retry-after"] = str(problem.retry_after)
    data = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    return Response(data, problem.status, headers, media_type="application/problem+json")


async def not_found(_request: Request, _error: Exception) -> Response:
    """Answer for a path that is no route; Starlette's would be plain text."""
    return render(Problem.of(Code.NOT_FOUND))


async def method_not_allowed(_request: Request, error: Exception) -> Response:
    """Answer for a route that has no such method, with the methods it has."""
    response = render(Problem.of(Code.METHOD_NOT_ALLOWED))
    if isinstance(error, HTTPException):
        response.headers.update(error.headers or {})
    return response
