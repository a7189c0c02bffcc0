"""Copies of a Bokeh model and all that it leads to, a hundred times as fast as by way of JSON.

Bokeh makes a model from JSON by checking each property and by filling in defaults that hardly anybody reads: half a
millisecond a model, and a figure has a hundred. Here the values have been checked when the first figure was made; a copy
takes them as they are, with models of its own, and leaves defaults to be made when they are asked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
from bokeh.core.has_props import HasProps
from bokeh.core.property.vectorization import Expr, Field, Value
from bokeh.core.property.wrappers import PropertyValueContainer
from bokeh.model import Model

OWN_STATE: Final = ("_id", "_property_values", "_unstable_default_values", "_unstable_themed_values", "_document", "_temp_document")
CALLBACKS: Final = ("_callbacks", "_event_callbacks")


@dataclass(frozen=True, slots=True)
class _Original:
    """One model. Of its values, fixed ones serve any number of copies; the others may be changed in place, or lead to models."""

    model_class: type[Model]
    model_id: str
    state: Mapping[str, Any]
    fixed: Mapping[str, Any]
    other: Mapping[str, Any]
    defaults: Mapping[str, Any]  # made for this model alone: others of its class may have others


SCALARS: Final = frozenset({str, int, float, bool, type(None), np.ndarray})
"""Types of most values: there are no models in them."""


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


class ModelCopies:
    """Of the root, as it is now. It belongs to no document, and nothing in Python listens to its models."""

    def __init__(self, root: Model) -> None:
        models = root.references()
        assert not any(getattr(model, name) for model in models for name in CALLBACKS), "a callback cannot be copied"
        self._root_id = root.id
        self._originals = [_original(model) for model in models]

    def copy(self, id_prefix: str = "") -> Model:
        """Models of one document must not share their ids, and copies keep those of the root's: a second one needs a prefix."""
        copies = {original.model_id: _bare(original, id_prefix) for original in self._originals}
        for original in self._originals:
            copied = copies[original.model_id]
            for name, value in original.other.items():
                copied._property_values[name] = _copied_value(value, copies, copied, name)
            for name, value in original.defaults.items():
                copied._unstable_default_values[name] = _copied_value(value, copies, copied, name)
        root = copies[self._root_id]
        find_quickly(root)
        return root


def _original(model: Model) -> _Original:
    state = {name: value for name, value in vars(model).items() if name not in (*OWN_STATE, *CALLBACKS)}
    values = model._property_values
    fixed = {name: value for name, value in values.items() if _is_fixed(value)}
    other = {name: value for name, value in values.items() if name not in fixed}
    # Empty containers are made again when somebody asks.
    defaults = {name: value for name, value in model._unstable_default_values.items() if not isinstance(value, PropertyValueContainer)}
    return _Original(type(model), model.id, state, fixed, other, defaults)


def _is_fixed(value: Any) -> bool:
    if isinstance(value, Value | Field | Expr):
        return all(_is_fixed(part) for part in vars(value).values())
    if isinstance(value, tuple):
        return all(_is_fixed(part) for part in value)
    return not isinstance(value, Model | list | dict | set)


def _bare(original: _Original, id_prefix: str) -> Model:
    """Without values that lead anywhere. What Bokeh's constructors set, and nothing that they work out."""
    model = object.__new__(original.model_class)
    vars(model).update(
        original.state,
        _id=f"{id_prefix}{original.model_id}",
        _property_values=dict(original.fixed),
        _unstable_default_values={},
        _unstable_themed_values={},
        _document=None,
        _temp_document=None,
        _callbacks={},
        _event_callbacks=defaultdict(list),
    )
    return model


def _copied_value(value: Any, copies: Mapping[str, Model], owner: Model, name: str) -> Any:
    copied = _copied(value, copies)
    if isinstance(copied, PropertyValueContainer):
        copied._register_owner(owner, owner.lookup(name))
    return copied


def _copied(value: Any, copies: Mapping[str, Model]) -> Any:
    """Arrays are shared: Bokeh puts others in their place and changes none."""
    if isinstance(value, Model):
        return copies[value.id]
    if isinstance(value, list | set | tuple):
        return type(value)(_copied(part, copies) for part in value)
    if isinstance(value, dict):
        return type(value)({_copied(key, copies): _copied(part, copies) for key, part in value.items()})
    if isinstance(value, Value | Field | Expr):
        return replace(value, **{key: _copied(part, copies) for key, part in vars(value).items()})
    return value
