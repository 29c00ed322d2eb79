"""Bounds of what is relayed, by answers with which nothing else is wrong."""

import json
import zlib

import pytest

from daypass_core.problem import Refusal
from daypass_proxy import relay as relay_module
from daypass_proxy.meter import StreamMeter
from tests.fakes.call import MODEL
from tests.fakes.relayed import Run
from tests.fakes.transport import JSON
from tests.servers.wire import message_json


async def test_a_good_answer_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 16: an answer that reads well but is larger than any message is not collected."""
    answer = json.dumps(message_json(MODEL)).encode()
    monkeypatch.setattr(relay_module, "WHOLE_MAX", len(answer))
    run = await Run(answer, headers=JSON).relay()
    assert run.client.body == answer
    monkeypatch.setattr(relay_module, "WHOLE_MAX", len(answer) - 1)
    with pytest.raises(Refusal):
        await Run(answer, headers=JSON).relay()


def test_a_small_bomb() -> None:
    """Row 16: four megabytes of nothing out of four kilobytes are given up on."""
    packer = zlib.compressobj(wbits=31)
    bomb = packer.compress(bytes(4 * 1024 * 1024)) + packer.flush()
    assert len(bomb) < 8 * 1024
    meter = StreamMeter("gzip")
    meter.feed(bomb)
    assert meter.unreadable
