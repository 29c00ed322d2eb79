"""The meter: what a call used, read from the provider's own words as they pass.

Place in the flow: `relay` feeds it every byte that it relays. Of a stream (Anthropic's server-sent
events) only the few events that carry usage are parsed; all others are skipped bytewise, so how the
bytes are cut into chunks makes no difference (case B27). A whole JSON answer is parsed once.
"""

from daypass_proxy.meter.base import JsonMeter, Meter
from daypass_proxy.meter.stream import StreamMeter

__all__ = ["JsonMeter", "Meter", "StreamMeter", "is_event_stream", "meter_for"]


def meter_for(content_type: str, coding: str, *, billable: bool) -> Meter:
    """Return the meter for an answer with these headers; raises UnknownCoding."""
    if not billable:
        return Meter(coding)
    if is_event_stream(content_type):
        return StreamMeter(coding)
    return JsonMeter(coding)


def is_event_stream(content_type: str) -> bool:
    """Say whether the media type is that of server-sent events."""
    return content_type.partition(";")[0].strip().lower() == "text/event-stream"
