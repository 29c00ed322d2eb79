"""The admin listener: what people and orchestrators may ask the broker.

This file is its table of contents; each noun has a file of its own beside it. `openapi.json` tells
the same to clients, and a test keeps the two together.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from daypass_broker import health
from daypass_broker.admin import (
    credentials,
    keys,
    policies,
    problems,
    reports,
    revocations,
    rules,
    sandboxes,
    tenants,
    tokens,
    webhooks,
)
from daypass_broker.admin.call import Work, endpoint
from daypass_broker.services import Services

# (method, path, what answers); every one of them asks for a credential first.
ROUTES: tuple[tuple[str, str, Work], ...] = (
    ("POST", "/v1/sandboxes", sandboxes.create),
    ("GET", "/v1/sandboxes", sandboxes.search),
    ("GET", "/v1/sandboxes/{id}", sandboxes.get),
    ("PATCH", "/v1/sandboxes/{id}", sandboxes.limit),
    ("DELETE", "/v1/sandboxes/{id}", sandboxes.end),
    ("POST", "/v1/sandboxes/{id}/activate", sandboxes.activate),
    ("POST", "/v1/sandboxes/{id}/heartbeat", sandboxes.beat),
    ("POST", "/v1/sandboxes/{id}/restore", sandboxes.restore),
    ("POST", "/v1/sandboxes/{id}/launch", sandboxes.replace_launch),
    ("POST", "/v1/rules", rules.create),
    ("GET", "/v1/rules", rules.search),
    ("GET", "/v1/rules/{id}", rules.get),
    ("PATCH", "/v1/rules/{id}", rules.change),
    ("DELETE", "/v1/rules/{id}", rules.remove),
    ("GET", "/v1/rule-templates", rules.templates),
    ("POST", "/v1/revocations", revocations.create),
    ("GET", "/v1/revocations", revocations.search),
    ("POST", "/v1/oauth/revoke", tokens.revoke),
    ("POST", "/v1/oauth/introspect", tokens.introspect),
    ("PUT", "/v1/policy", policies.put),
    ("GET", "/v1/policy", policies.get),
    ("GET", "/v1/tenants", tenants.search),
    ("POST", "/v1/tenants/{id}/restore", tenants.restore),
    ("POST", "/v1/credentials", credentials.create),
    ("GET", "/v1/credentials", credentials.search),
    ("DELETE", "/v1/credentials/{id}", credentials.revoke),
    ("GET", "/v1/keys", keys.search),
    ("POST", "/v1/keys/rotate", keys.rotate),
    ("GET", "/v1/usage", reports.usage),
    ("GET", "/v1/audit", reports.audit),
    ("GET", "/v1/incidents", reports.incidents),
)


def openapi() -> bytes:
    """Return the OpenAPI document of this listener."""
    return resources.files("daypass_broker").joinpath("openapi.json").read_bytes()


def admin_app(services: Services) -> Starlette:
    """Return what answers on the admin listener."""
    document = openapi()

    async def api(_: Request) -> Response:
        return Response(document, media_type="application/json")

    app = Starlette(
        routes=[
            *_routes(services),
            Route(webhooks.PATH, webhooks.endpoint(services), methods=["POST"]),
            Route("/v1/openapi.json", api, methods=["GET"]),
            *health.routes(services.engine, services.ending),
        ],
        exception_handlers={404: problems.not_found, 405: problems.method_not_allowed},
    )
    # A redirect would be built from the Host header, which anybody may choose.
    app.router.redirect_slashes = False
    return app


def _routes(services: Services) -> Iterator[Route]:
    """Yield one route a path, so that a 405 names all its methods."""
    by_path: dict[str, dict[str, Work]] = {}
    for verb, path, work in ROUTES:
        by_path.setdefault(path, {})[verb] = work
    for path, by_verb in by_path.items():
        yield Route(path, endpoint(services, path, by_verb), methods=list(by_verb))
