"""The routes: which handler answers a path, byte for byte, and what is said where none does.

Asked by `edge`. The bare origin speaks Anthropic's API; OpenAI's is below `/openai/v1`, and that of
every upstream of the settings below its own name. A path that is nobody's is answered in the shape
of the client that asks for it, with the base URL it should have.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

from daypass_proxy import me, openai_models
from daypass_proxy.exchange import Exchange
from daypass_proxy.forward import forward
from daypass_proxy.infer import infer
from daypass_proxy.providers import Place, anthropic, openai
from daypass_proxy.services import Services
from daypass_proxy.token import pass_token_request

Handler = Callable[[Exchange, Services], Awaitable[None]]
Route = Mapping[str, Handler]
"""The handlers of a path by method."""


@dataclass(frozen=True, slots=True)
class Inference:
    """The handler of an inference call; it writes a closing line of its own."""

    place: Place

    def __call__(self, exchange: Exchange, services: Services) -> Awaitable[None]:
        """Serve one call."""
        return forward(exchange, self.place, services)


@dataclass(frozen=True, slots=True)
class ListModels:
    """The handler of the list of models of a provider, in the shape of OpenAI's API."""

    provider: str

    def __call__(self, exchange: Exchange, services: Services) -> Awaitable[None]:
        """Serve one request."""
        return openai_models.list_models(exchange, services, self.provider)


@dataclass(frozen=True, slots=True)
class ShowModel:
    """The handler of one model of a provider, in the shape of OpenAI's API."""

    provider: str
    model: str

    def __call__(self, exchange: Exchange, services: Services) -> Awaitable[None]:
        """Serve one request."""
        return openai_models.show_model(exchange, services, self.provider, self.model)


@lru_cache(maxsize=64)
def _openai_routes(name: str) -> Mapping[bytes, Route]:
    """Return the routes of a provider of this name that speaks OpenAI's API."""
    places = openai.routes(name).items()
    inference: dict[bytes, Route] = {path: {"POST": Inference(place)} for path, place in places}
    return {**inference, f"/{name}/v1/models".encode(): {"GET": ListModels(name)}}


ROUTES: Mapping[bytes, Route] = {
    **{
        path: {"POST": Inference(Place("anthropic", end))} for path, end in anthropic.ROUTES.items()
    },
    b"/v1/models": {"GET": me.list_models},
    **_openai_routes("openai"),
    b"/v1/infer": {"POST": infer},
    b"/v1/self": {"GET": me.describe_self},
    b"/v1/oauth/token": {"POST": pass_token_request},
    b"/api/hello": {"HEAD": me.hello, "GET": me.hello},
    b"/livez": {"GET": me.live, "HEAD": me.live},
    b"/readyz": {"GET": me.ready, "HEAD": me.ready},
}
# Those that say by themselves, or by being nothing much, how they ended.
_TOLD: tuple[Handler, ...] = (me.live, me.ready, infer)
_ONE_MODEL: Route = {"GET": me.show_model}
# What clients of OpenAI's API ask for, with and without the /v1 of their base URL (case B91).
_OPENAI_PATHS = tuple(
    prefix + path
    for prefix in (b"/v1", b"")
    for path in (b"/chat/", b"/completions", b"/responses", b"/embeddings")
)


def find_route(raw_path: bytes, upstreams: Collection[str] = ()) -> Route | None:
    """Return the handlers of a path by method, None for a path that is not ours.

    `upstreams` are the names of those in the settings.
    """
    route = ROUTES.get(raw_path)
    if route is not None:
        return route
    if raw_path.startswith(me.MODELS_PREFIX):
        found = me.MODEL_ID.fullmatch(raw_path, len(me.MODELS_PREFIX))
        return _ONE_MODEL if found else None
    name, rest = _prefix(raw_path, upstreams)
    if not name:
        return None
    if rest.startswith(b"v1/models/"):
        found = openai_models.MODEL_ID.fullmatch(rest, len(b"v1/models/"))
        return {"GET": ShowModel(name, found[0].decode("ascii"))} if found else None
    return _openai_routes(name).get(raw_path)


def is_call(method: str, raw_path: bytes, upstreams: Collection[str] = ()) -> bool:
    """Say whether this is asked of a provider, and not of us alone."""
    handler = (find_route(raw_path, upstreams) or {}).get(method)
    return isinstance(handler, Inference) or handler is infer


def is_told(handler: Handler | None) -> bool:
    """Say whether a request that this handler served needs no closing line."""
    return isinstance(handler, Inference) or handler in _TOLD


def route_name(raw_path: bytes, upstreams: Collection[str] = ()) -> str:
    """Return the path of a route of ours; whatever else is asked for has one name together."""
    route = find_route(raw_path, upstreams)
    if route is None:
        return "unknown"
    if route is _ONE_MODEL:
        return "/v1/models/{id}"
    handler = route.get("GET")
    if isinstance(handler, ShowModel):
        return f"/{handler.provider}/v1/models/{{id}}"
    return raw_path.decode("ascii")


def speaker(raw_path: bytes, upstreams: Collection[str] = ()) -> str:
    """Return the provider in whose shape the client of this path expects to be refused."""
    name, rest = _prefix(raw_path, upstreams)
    if name:
        return "anthropic" if rest.removeprefix(b"v1/").startswith(b"messages") else name
    return "openai" if raw_path.startswith(_OPENAI_PATHS) else "anthropic"


def hint(exchange: Exchange, upstreams: Collection[str] = ()) -> str:
    """Help with the base URLs people get wrong (cases B46, B91)."""
    origin = exchange.origin
    path = exchange.raw_path
    name, rest = _prefix(path, upstreams)
    if name:
        return _hint_below(origin, name, rest)
    if path.startswith((b"/v1/v1/", b"//v1/")):
        return f"the base URL must end with the host, as in {origin}, without /v1"
    if path.startswith((b"/messages/", b"/models")):
        return f"this client needs the base URL {origin}/v1"
    if path.startswith(_OPENAI_PATHS):
        return (
            f"this is the Anthropic Messages API; OpenAI's API has the base URL {origin}/openai/v1"
        )
    return ""


def _hint_below(origin: str, name: str, rest: bytes) -> str:
    """Help a client that came as far as the prefix of a provider."""
    base = f"{origin}/{name}/v1"
    if rest.removeprefix(b"v1/").startswith(b"messages"):
        return f"this is OpenAI's API; the Anthropic Messages API has the base URL {origin}"
    if rest.startswith(b"v1/v1/"):
        return f"the base URL must be {base}, with /v1 once"
    if not rest.startswith(b"v1/"):
        return f"the base URL must be {base}"
    served = ", ".join(each.path for each in openai.ENDPOINTS.values())
    return f"below {base} there are {served} and /models"


def _prefix(raw_path: bytes, upstreams: Collection[str]) -> tuple[str, bytes]:
    """Return whose prefix a path has, and what is behind it; ("", path) for the bare origin's."""
    first, slash, rest = raw_path[1:].partition(b"/")
    name = first.decode("latin-1")
    if slash and raw_path.startswith(b"/") and (name == openai.NAME or name in upstreams):
        return name, rest
    return "", raw_path
