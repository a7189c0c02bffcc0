"""A page's Bokeh document, served without asking every model for the hundreds of values that nobody has set.

Bokeh looks at each property of each model, set or not, to find what a document consists of and again to send it. A page has
hundreds of models with up to a hundred properties each, of which ten are set.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any, Final

import numpy as np
from bokeh import __version__ as bokeh_version
from bokeh.core.has_props import is_DataModel
from bokeh.core.property.vectorization import Expr, Field, Value
from bokeh.core.property.wrappers import PropertyValueContainer
from bokeh.core.serialization import Buffer, Serialized, Serializer
from bokeh.document import Document
from bokeh.model import Model
from bokeh.util.serialization import make_id

from kernalyse.services.ui.model_copies import find_quickly, original_of

NO_BYTES: Final = Buffer(make_id(), b"").to_base64()


def fill(document: Document, roots: Mapping[str, Model]) -> None:
    """Makes them the document's roots, by their names. What it holds and what browsers are sent is what Bokeh would make of it."""
    document.to_json = partial(_to_json, document)  # type: ignore[method-assign]
    with document.models.freeze():
        for name, model in roots.items():
            model.name = name
            find_quickly(model)
            document.add_root(model)


class _SetValues(Serializer):
    """The same as Bokeh's, by the values that are set; an array without rows is no message of its own."""

    def _encode(self, obj: Any) -> Any:
        return self._encode_model(obj) if isinstance(obj, Model) else super()._encode(obj)

    def _encode_model(self, model: Model) -> Any:
        self.add_ref(model, model.ref)
        themed: Mapping[str, Any] = model.themed_values() or {}
        defaults = (name for name, value in model._unstable_default_values.items() if not isinstance(value, PropertyValueContainer))
        are_set = {*model._property_values, *themed, *defaults}
        known, unchanged = _known_of(model, themed)
        attributes = {}
        for name in model.properties(_with_props=True):
            if name not in are_set:
                continue
            if name in unchanged and name in known:
                attributes[name] = known[name]
            elif (descriptor := model.lookup(name)).serialized:
                # Bokeh would ask whether a reference to a column is a colour. It takes anything for one while HoloViews draws in another
                # thread, which does so without checks, and what is encoded here is kept for all pages.
                own = model._property_values.get(name)
                attributes[name] = self.encode(own if isinstance(own, Value | Field | Expr) else descriptor.get_value(model))
                if name in unchanged:
                    known[name] = attributes[name]
        representation = {"type": "object", "name": model.__qualified_model__, "id": model.id}
        return {**representation, "attributes": attributes} if attributes else representation

    def _encode_bytes(self, obj: bytes | memoryview) -> Any:
        return super()._encode_bytes(obj) if len(obj) else {"type": "bytes", "data": NO_BYTES}


def _known_of(model: Model, themed: Mapping[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """What has been encoded for a page before, and the names of values that are what they were then."""
    original, values = original_of(model), model._property_values
    if original is None:
        return {}, set()
    unchanged = {name for name, value in original.fixed.items() if values.get(name) is value and type(value) is not np.ndarray}
    unchanged.update(name for name in themed if name not in values)
    return original.encoded, unchanged


@cache
def _definitions(_class_count: int) -> Any:
    """Of the models that browsers do not know of themselves; made again when there are further classes."""
    return Serializer().encode([model for model in Model.model_class_reverse_map.values() if is_DataModel(model)])


def _to_json(document: Document, *, deferred: bool = True) -> Any:
    serializer = _SetValues(deferred=deferred)
    content = {
        "version": bokeh_version,
        "title": document.title,
        "defs": _definitions(len(Model.model_class_reverse_map)),
        "config": serializer.encode(document.config),
        "roots": serializer.encode(document.roots),
    }
    if document.callbacks.js_event_callbacks:
        content["callbacks"] = serializer.encode(document.callbacks.js_event_callbacks)
    document.models.flush_synced()
    return Serialized(content, serializer.buffers) if deferred else content
