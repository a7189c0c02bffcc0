"""A page's Bokeh document, served without asking every model for the hundreds of values that nobody has set.

Bokeh looks at each property of each model, set or not, to find what a document consists of and again to send it. A page has
hundreds of models with up to a hundred properties each, of which ten are set.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from bokeh import __version__ as bokeh_version
from bokeh.core.has_props import is_DataModel
from bokeh.core.property.wrappers import PropertyValueContainer
from bokeh.core.serialization import Buffer, Serialized, Serializer
from bokeh.document import Document
from bokeh.model import Model
from bokeh.util.serialization import make_id

from services.ui.model_copies import find_quickly

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
        defaults = (name for name, value in model._unstable_default_values.items() if not isinstance(value, PropertyValueContainer))
        are_set = {*model._property_values, *(model.themed_values() or ()), *defaults}
        attributes = {}
        for name in model.properties(_with_props=True):
            if name in are_set and (descriptor := model.lookup(name)).serialized:
                attributes[name] = self.encode(descriptor.get_value(model))
        representation = {"type": "object", "name": model.__qualified_model__, "id": model.id}
        return {**representation, "attributes": attributes} if attributes else representation

    def _encode_bytes(self, obj: bytes | memoryview) -> Any:
        return super()._encode_bytes(obj) if len(obj) else {"type": "bytes", "data": NO_BYTES}


def _to_json(document: Document, *, deferred: bool = True) -> Any:
    serializer = _SetValues(deferred=deferred)
    data_models = [model for model in Model.model_class_reverse_map.values() if is_DataModel(model)]
    content = {
        "version": bokeh_version,
        "title": document.title,
        "defs": serializer.encode(data_models),
        "config": serializer.encode(document.config),
        "roots": serializer.encode(document.roots),
    }
    if document.callbacks.js_event_callbacks:
        content["callbacks"] = serializer.encode(document.callbacks.js_event_callbacks)
    document.models.flush_synced()
    return Serialized(content, serializer.buffers) if deferred else content
