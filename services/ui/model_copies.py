"""Copies of a Bokeh model and all that it leads to, a hundred times as fast as by way of JSON.

Bokeh makes a model from JSON by checking each property and by filling in defaults that hardly anybody reads: half a
millisecond a model, and a figure has a hundred. Here the values have been checked when the first figure was made; a copy
takes them as they are, with models of its own, and leaves defaults to be made when they are asked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
from bokeh.core.has_props import HasProps
from bokeh.core.property.vectorization import Expr, Field, Value
from bokeh.core.property.wrappers import PropertyValueContainer
from bokeh.model import Model
from bokeh.themes import Theme

SCALARS: Final = frozenset({str, int, float, bool, type(None), np.ndarray})
"""Types of most values: there are no models in them."""

MADE_ANEW: Final = frozenset(
    {
        *("_id", "_property_values", "_unstable_default_values", "_unstable_themed_values", "__themed_values__"),
        *("_document", "_temp_document", "_callbacks", "_event_callbacks", "references"),
    }
)
"""Of what a model keeps beside its values."""


@dataclass(frozen=True, slots=True)
class Original:
    """One model. Its fixed values serve any number of copies; the others may be changed in place, or lead to models.

    encoded: what browsers are sent of fixed values and of the theme's, as far as it was needed; for all copies.
    """

    model_class: type[Model]
    state: Mapping[str, Any]
    fixed: Mapping[str, Any]
    other: Mapping[str, Any]
    defaults: Mapping[str, Any]  # made for this model alone: others of its class may have others
    encoded: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Link:
    """To a model, by its place."""

    place: int


@dataclass(frozen=True, slots=True)
class _Parts:
    """A value that is made anew for each copy. is_record: its type takes them one by one."""

    made_type: type
    parts: tuple[Any, ...]
    is_record: bool = False


def originals_of(root: Model) -> tuple[Original, ...]:
    """The root and all that it leads to. Nothing in Python listens to any of them: a callback cannot be copied."""
    find_quickly(root)
    models = [root, *(model for model in root.references() if model is not root)]
    assert not any(model._callbacks or model._event_callbacks for model in models)
    places: dict[str, int] = {model.id: place for place, model in enumerate(models)}
    return tuple(_original(model, places) for model in models)


def _original(model: Model, places: Mapping[str, int]) -> Original:
    values = {name: _described(value, places) for name, value in model._property_values.items()}
    return Original(
        type(model),
        {name: value for name, value in vars(model).items() if name not in MADE_ANEW},
        {name: value for name, value in values.items() if type(value) not in (_Link, _Parts)},
        {name: value for name, value in values.items() if type(value) in (_Link, _Parts)},
        # Containers are made again when somebody asks.
        {
            name: _described(value, places)
            for name, value in model._unstable_default_values.items()
            if not isinstance(value, PropertyValueContainer)
        },
    )


def _described(value: Any, places: Mapping[str, int]) -> Any:
    """The value itself when it is fixed. Arrays are: Bokeh puts others in their place and changes none."""
    if isinstance(value, Model):
        return _Link(places[value.id])
    if isinstance(value, dict):
        return _Parts(type(value), tuple((key, _described(part, places)) for key, part in value.items()))
    if isinstance(value, list | set):
        return _Parts(type(value), tuple(_described(part, places) for part in value))
    if isinstance(value, tuple | Value | Field | Expr):
        fields = value if isinstance(value, tuple) else vars(value).values()
        parts = tuple(_described(part, places) for part in fields)
        return _Parts(type(value), parts, is_record=fields is not value) if any(type(part) in (_Link, _Parts) for part in parts) else value
    return value


def copy_of(originals: Sequence[Original], name: str, theme: Theme) -> Model:
    """The root's copy. Ids begin with the name: models of one document must not share theirs.

    Args:
        theme: of the document to come.
    """
    models = [_bare(original, f"{name}-{place}", theme) for place, original in enumerate(originals)]
    for model, original in zip(models, originals, strict=True):
        for property_name, value in original.other.items():
            model._property_values[property_name] = _made_for(model, property_name, value, models)
        for property_name, value in original.defaults.items():
            model._unstable_default_values[property_name] = _made(value, models)
    find_quickly(models[0])
    return models[0]


def _bare(original: Original, model_id: str, theme: Theme) -> Model:
    """What Bokeh's constructors set, and nothing that they work out."""
    model = object.__new__(original.model_class)
    vars(model).update(
        original.state,
        _id=model_id,
        _property_values=dict(original.fixed),
        _unstable_default_values={},
        _unstable_themed_values={},
        __themed_values__=theme._for_class(original.model_class),
        _document=None,
        _temp_document=None,
        _callbacks={},
        _event_callbacks=defaultdict(list),
        _original=original,
    )
    return model


def _made_for(model: Model, property_name: str, described: Any, models: Sequence[Model]) -> Any:
    value = _made(described, models)
    if isinstance(value, PropertyValueContainer):
        value._register_owner(model, model.lookup(property_name))
    return value


def _made(described: Any, models: Sequence[Model]) -> Any:
    kind = type(described)
    if kind is _Link:
        return models[described.place]
    if kind is not _Parts:
        return described
    if described.is_record:
        return described.made_type(*(_made(part, models) for part in described.parts))
    if issubclass(described.made_type, dict):
        return described.made_type([(key, _made(part, models)) for key, part in described.parts])
    return described.made_type([_made(part, models) for part in described.parts])


def original_of(model: Model) -> Original | None:
    """What the model is a copy of."""
    return vars(model).get("_original")


# ---------------------------------------------------------------- what a model leads to


def find_quickly(root: Model) -> None:
    """Lets the root find the models that it leads to by the values that are set: a default that nobody asked for is no model."""
    vars(root)["references"] = partial(_references, root)


def _references(root: Model) -> set[Model]:
    found = {root}
    waiting: list[Any] = [root]
    while waiting:
        for part in _parts(waiting.pop()):
            if type(part) in SCALARS or (isinstance(part, Model) and part in found):
                continue
            if isinstance(part, Model):
                found.add(part)
            waiting.append(part)
    return found


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, HasProps):
        return (*value._property_values.values(), *value._unstable_default_values.values())
    if isinstance(value, Mapping):
        return (*value.keys(), *value.values())
    if isinstance(value, list | tuple | set):
        return value
    return vars(value).values() if isinstance(value, Value | Field | Expr) else ()
