"""The seam to one LLM dialect: what a request means, and how our answers look in it.

`forward` asks the Provider of the route to read the request into a `Call`; everything after that
works on the Call alone. Its bytes go up unchanged but for what a provider module says it puts in.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from daypass_core.problem import Problem
from daypass_core.scope import Detail
from daypass_proxy.body.outline import Buffer
from daypass_proxy.body.spool import Spool
from daypass_proxy.exchange import Exchange, HeaderPairs


class Beside(msgspec.Struct, frozen=True):
    """Passes that are billed beside the answer: advice, a compaction.

    Each may read the whole input, and writes up to `output_tokens` (None: as many as the call).
    """

    model: str
    passes: int = 1
    output_tokens: int | None = None


class Asked(msgspec.Struct, frozen=True):
    """What one body asks for; `models` holds every model it may be billed for, its own first.

    `images` and `documents` count blocks, of whatever size.
    The first `writers` of them may write the answer (0: all). `thinking_tokens` is how many tokens
    of thinking may come before any of it (0: none; None: as the model does by itself), by their
    budgets; `thinks_freely`: there is thinking without one, so all of the answer may be. `searches`
    is how many uses of tools with a fee it may have; `loops` how often a writer may read the
    request again, because the provider runs tools in the midst of it, and `found` how many tokens
    these add. `image_bytes` and `document_bytes` are the base64 of these in the body, `unseen`
    says that there are parts whose size it does not tell, `hosted_tools` counts the tools whose
    description the provider adds. `hour_cache`: it may ask for cache writes of an hour. `speed`,
    `service_tier` and `inference_geo` as asked. `choices` answers are written, each of up to
    `max_output_tokens`. `inputs` texts are read, each by itself and as long as the window at most.
    An image is `image_tokens` at most (0: as the estimate takes them to be). `left_out` are members
    that the body has not and needs on its way up, `unset` those that it has with another value;
    `limits` those that limit the output, whatever they say.
    """

    models: tuple[str, ...]
    max_output_tokens: int | None
    stream: bool
    images: int
    documents: int
    writers: int = 0
    thinking_tokens: int | None = None
    thinks_freely: bool = False
    searches: int = 0
    loops: int = 0
    found: int = 0
    image_bytes: int = 0
    document_bytes: int = 0
    unseen: bool = False
    hosted_tools: int = 0
    hour_cache: bool = True
    speed: str | None = None
    service_tier: str | None = None
    inference_geo: str | None = None
    beside: tuple[Beside, ...] = ()
    choices: int = 1
    inputs: int = 1
    image_tokens: int = 0
    left_out: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()


class Check(Protocol):
    """How the bodies of one dialect are checked; raises Refusal (400)."""

    def __call__(self, body: Buffer, detail: Detail, *, max_tokens_needed: bool) -> Asked:
        """Return what the body asks for."""
        ...


class BodyChecker(Protocol):
    """Where a body is checked that would hold the event loop too long."""

    async def check(
        self, sandbox: str, dialect: str, body: Spool, detail: Detail, *, max_tokens_needed: bool
    ) -> Asked:
        """Return what `body` of `sandbox` asks for; raises Refusal (400, 429, 503).

        `dialect` names the check, as in `providers.dialects`.
        """
        ...


class Call(Asked, frozen=True, kw_only=True):
    """One admitted-to-be inference request, already checked against the scope: what, and where to.

    `headers` is everything that goes up except the credential, host and content-length; `model` is
    the first of `models`. `billable` calls pass the ledger. `dialect` is how body and answer are to
    be read; `hides_usage` says that the last figures of the stream were asked for by us, so that
    the client does not get them.
    """

    provider: str
    endpoint: str
    method: str
    upstream_path: bytes
    query: bytes
    headers: HeaderPairs
    body: bytes
    model: str
    billable: bool
    dialect: str
    hides_usage: bool = False


@dataclass(frozen=True, slots=True)
class Rendered:
    """A whole answer in a provider's dialect; `headers` without content-length."""

    status: int
    headers: HeaderPairs
    body: bytes


class Place(NamedTuple):
    """Where a route leads: an endpoint of a provider, both by their names in a scope."""

    provider: str
    endpoint: str


class Provider(Protocol):
    """One LLM dialect."""

    @property
    def name(self) -> str:
        """The `provider` of a scope detail, as in "anthropic"."""
        ...

    @property
    def base(self) -> str:
        """What a client's base URL ends with behind our host, as in "/openai/v1" or ""."""
        ...

    async def read(
        self, exchange: Exchange, endpoint: str, body: bytes | Spool, detail: Detail, sandbox: str
    ) -> Call:
        """Check headers, query and body against `detail`; `sandbox` is whose turn it is to wait.

        Raises Refusal (400, 429, 503), ClientGone.
        """
        ...

    def credential(self, secret_value: str) -> tuple[bytes, bytes]:
        """Return the header that carries the provider key upstream."""
        ...

    def lower_output(self, call: Call, most: int) -> Call:
        """Return `call` asking for at most `most` output tokens, at least one.

        Raises ValueError where that would take too long.
        """
        ...

    def render(self, problem: Problem, request_id: str, endpoint: str = "") -> Rendered:
        """Return the answer that tells the client of `problem`, of `endpoint` where it is known."""
        ...

    def stream_error(self, problem: Problem, request_id: str, endpoint: str) -> bytes:
        """Return the event that ends a stream of this endpoint which had already begun."""
        ...

    def response_headers(self, headers: Iterable[tuple[bytes, bytes]]) -> HeaderPairs:
        """Return the upstream's response headers that a sandbox may see, lower-case."""
        ...
