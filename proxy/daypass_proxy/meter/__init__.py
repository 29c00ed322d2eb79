"""The meter: what a call used, read from the provider's own words as they pass.

Place in the flow: `relay` feeds it every byte that it relays. Of a stream of events only the few
that carry usage are parsed; all others are skipped bytewise, and how the bytes are cut into chunks
makes no difference (case B27). A whole JSON answer is parsed once. Each dialect has its own.
"""

from functools import lru_cache

from daypass_proxy.meter.base import JsonMeter, Meter
from daypass_proxy.meter.openai_chat import ChatMeter, EmbeddingsMeter, WholeMeter
from daypass_proxy.meter.openai_responses import ResponseMeter, ResponsesMeter
from daypass_proxy.meter.stream import StreamMeter
from daypass_proxy.transport.inflate import UnknownCoding

__all__ = ["EVENT_STREAM", "JsonMeter", "Meter", "StreamMeter", "media_type", "meter_for"]

EVENT_STREAM = "text/event-stream"
_METERS: dict[str, tuple[type[Meter], type[Meter] | None]] = {
    "anthropic": (JsonMeter, StreamMeter),
    "openai_chat": (WholeMeter, ChatMeter),
    "openai_responses": (ResponseMeter, ResponsesMeter),
    "openai_embeddings": (EmbeddingsMeter, None),
}
"""What reads the whole answers of each dialect, and what its streams."""


@lru_cache(maxsize=64)
def media_type(content_type: str) -> str:
    """Return the type of a content-type header, lower-case and without parameters."""
    return content_type.partition(";")[0].strip().lower()


def meter_for(media: str, coding: str, *, billable: bool, dialect: str = "anthropic") -> Meter:
    """Return the meter for an answer of this media type and content-encoding.

    Raises UnknownCoding for an answer that we could not look into.
    """
    whole, stream = _METERS[dialect]
    if media == "application/json":
        return whole(coding)
    if media != EVENT_STREAM or stream is None:
        raise UnknownCoding("answer is neither JSON nor a stream of events")
    return stream(coding) if billable else Meter(coding)
