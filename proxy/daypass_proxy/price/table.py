"""The price table: the prices of all models, our overlay first, then the file we ship.

Place in the flow: made at the start of the proxy; `estimate.quote` asks it for the prices in force
at a call's time, `forward` for all the names of what a scope allows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from daypass_core.scope import Detail
from daypass_proxy.price.file import PriceError, read_shelves
from daypass_proxy.price.names import other_names, undated
from daypass_proxy.price.price import Price
from daypass_proxy.price.shelf import Model, Shelf

_REMEMBERED = 1024


class PriceTable:
    """Prices by provider, model and time: the overlay first, then the table we ship."""

    def __init__(self, layers: Iterable[Mapping[str, Shelf]]) -> None:
        self._layers = tuple(layers)
        # Asked for every call, of few different ones.
        self._names = lru_cache(maxsize=_REMEMBERED)(self._all_names)
        self._models = lru_cache(maxsize=_REMEMBERED)(self._find_models)

    @classmethod
    def load(
        cls,
        overlay: Path | None = None,
        own: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    ) -> PriceTable:
        """Read the shipped table, the overlay, and the entries of `own` upstreams by their name.

        Raises PriceError for an overlay that is missing, not JSON, or wrong in any field.
        """
        shipped = resources.files("daypass_proxy").joinpath("prices.json").read_bytes()
        layers = [read_shelves(shipped, "prices.json")]
        if own:
            content = json.dumps({"providers": own}).encode()
            layers.insert(0, read_shelves(content, "prices of upstreams"))
        if overlay is not None:
            try:
                content = overlay.read_bytes()
            except OSError as error:
                raise PriceError(f"{overlay}: cannot be read: {error.strerror}") from error
            layers.insert(0, read_shelves(content, str(overlay)))
        return cls(layers)

    def find(self, provider: str, model: str, now: float) -> Price | None:
        """Return the price of a model as it is named in a request at `now`, epoch seconds.

        None when it has none. In each layer a whole id wins over a prefix or pattern, the first
        matching entry counts, and a name is looked for under the model's other names too.
        """
        for each in self._models(provider, model):
            price = each.at(now)
            if price is not None:
                return price
        return None

    def at(self, provider: str, now: float) -> Prices:
        """Return the prices of a provider at `now`, epoch seconds."""
        return Prices(self, provider, now)

    def models(self, provider: str) -> tuple[str, ...]:
        """Return the ids of the models that have a price, overlay first, each once."""
        shelves = (layer[provider] for layer in self._layers if provider in layer)
        return tuple(dict.fromkeys(name for shelf in shelves for name in shelf.models))

    def names(self, detail: Detail) -> Detail:
        """Return `detail` with every exact model under all its names (B40).

        Its own come first, in order. A model that the table does not know keeps its one name.
        """
        return self._names(detail)

    @staticmethod
    def line_to_add(provider: str, model: str) -> str:
        """Return the overlay file that would price `model`: JSON with the figures left to fill."""
        entry = {
            "model": model[:128],
            "context_window": 200_000,
            "input": "USD per million input tokens, such as 3.00",
            "output": "USD per million output tokens, such as 15.00",
        }
        return json.dumps({"providers": {provider: [entry]}})

    def _find_models(self, provider: str, name: str) -> tuple[Model, ...]:
        """Return what the layers have of the model called `name`, the first layer's first."""
        shelves = [layer[provider] for layer in self._layers if provider in layer]
        known = [shelf.find(name) for shelf in shelves]
        # A contract rate for an alias is one for the dated id: the ids that layers below list.
        others = [each for model in known if model is not None for each in model.ids]
        found = []
        for shelf, model in zip(shelves, known, strict=True):
            if model is None:
                names = [undated(name), *others] if others else []
                hits = (shelf.by_id(each) for each in names if each is not None)
                model = next((hit for hit in hits if hit is not None), None)
            if model is not None:
                found.append(model)
        return tuple(found)

    def _all_names(self, detail: Detail) -> Detail:
        names = dict.fromkeys(detail.models)
        for name in detail.models:
            if not name.endswith("*"):
                for model in self._models(detail.provider, name):
                    names |= dict.fromkeys(other_names(name, model.ids))
        return replace(detail, models=tuple(names))


class Prices(msgspec.Struct, frozen=True):
    """The prices of one provider at one time."""

    table: PriceTable
    provider: str
    now: float

    def find(self, model: str) -> Price | None:
        """Return the price of a model as it is named in a request."""
        return self.table.find(self.provider, model, self.now)

    def every(self) -> tuple[Price, ...]:
        """Return the prices of all models."""
        found = (self.find(name) for name in self.table.models(self.provider))
        return tuple(price for price in found if price is not None)
