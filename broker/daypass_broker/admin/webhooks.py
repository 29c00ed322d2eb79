"""`/v1/webhooks/{vendor}`: what sandbox vendors tell us of their sandboxes.

The one route of this listener without a credential: the signature of the body is its proof. Without
a good one nothing is read and nothing is written.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from daypass_broker import revocation, vendor, webhook
from daypass_broker.act import acting
from daypass_broker.admin import problems
from daypass_broker.admin.call import Answer, problem_of, read_body, render
from daypass_broker.services import Services
from daypass_broker.webhook import NotSigned, UnusableSecret
from daypass_core.log import event, get_logger, request_id
from daypass_core.problem import Code, refuse
from daypass_core.secret import SecretUnreadable, read_secret_file

log = get_logger(__name__)

PATH = "/v1/webhooks/{vendor}"


def endpoint(services: Services) -> Callable[[Request], Awaitable[Response]]:
    """Return the ASGI-side function of the route."""

    async def answer(request: Request) -> Response:
        current = services.new_id("req")
        request_id.set(current)
        name = str(request.path_params["vendor"])
        try:
            if name not in services.settings.webhooks:
                raise refuse(Code.INVALID_CREDENTIAL)
            body = await read_body(request)
            effect = await services.threads.run(_receive, services, name, request, body)
            response = render(Answer({"status": effect}))
        except Exception as error:
            effect = None
            response = problems.render(problem_of(error))
        response.headers["request-id"] = current
        known = name if name in services.settings.webhooks else None
        came_of_it = effect or ("refused" if response.status_code < 500 else "failed")
        services.metrics.webhook_answered(known, came_of_it)
        event(log, "webhook", vendor=known, status=response.status_code, effect=effect)
        return response

    return answer


def _receive(services: Services, name: str, request: Request, body: bytes) -> vendor.Effect:
    try:
        # At each use, so that a changed secret is in force.
        secret = read_secret_file(services.settings.webhooks[name])
        said = webhook.read(name, secret, request.headers, body, services.clock.now())
    except NotSigned:
        raise refuse(Code.INVALID_CREDENTIAL) from None
    except (SecretUnreadable, UnusableSecret) as error:
        event(log, "webhook_secret", level=logging.ERROR, vendor=name, cause=str(error))
        raise refuse(Code.INTERNAL_ERROR) from None
    with acting(
        services.engine,
        f"webhook:{name}",
        services.new_id,
        lock=revocation.lock_version,
        request_id=request_id.get(),
    ) as act:
        return vendor.note(act, name, said)
