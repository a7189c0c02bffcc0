"""Scaled dot-product attention, forward and backward, by whichever kernel.

Two products forward (scores, and scores times values) and five backward (the scores anew, then the gradients of scores,
values, queries and keys): sdpa_flop and sdpa_backward_flop of torch.utils.flop_counter, and Dao, "FlashAttention-2", 2023,
section 4.1, which also leaves out what softmax takes. Unlike the former a causal mask counts: pairs above the diagonal have
nothing to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from services.core.work.kinds import Model, Weight, Work
from services.core.work.operator_call import OperatorCall
from services.core.work.tensors import Shape, moved_bytes


@dataclass(frozen=True, slots=True)
class Places:
    """Where an operator's inputs are. query: the first of query, key and value. is_heads_last: [batch, length, heads, size]."""

    query: int
    causal: int
    mask: int | None = None
    gradient: int | None = None
    lengths: int | None = None  # where sequences of several lengths lie behind each other, and shapes do not say which
    is_heads_last: bool = False


LONGEST_PLACE: Final = 2
"""Of the longest query behind the lengths of queries, with those of keys between; that of the longest key follows."""


@dataclass(frozen=True, slots=True)
class _Sizes:
    """batch_heads: of the queries. pairs: of a query and a key that may see each other, of one head."""

    batch_heads: int
    pairs: int
    key_size: int
    value_size: int


def causal_pairs(query_count: int, key_count: int) -> int:
    """Keys up to the query's own place, both counted from the first: the mask of PyTorch's is_causal."""
    whole = min(query_count, key_count)
    return whole * (whole + 1) // 2 + (query_count - whole) * key_count


def _model(places: Places) -> Model:
    def model(call: OperatorCall) -> Work | None:
        query, key, value = (call.tensor(places.query + place) for place in range(3))
        if query is None or key is None or value is None:
            return None
        is_causal = call.flag(places.causal)
        lengths = None if places.lengths is None else call.tensor(places.lengths)
        if lengths is not None:
            count = _sequence_count(call, places, lengths.shape, (query.shape, key.shape), is_causal)
            if count is None:
                return None
            query, key, value = (tensor.shaped((count, tensor.shape[0] // count, *tensor.shape[1:])) for tensor in (query, key, value))
        sizes = _sizes(_by_head(query.shape, places), _by_head(key.shape, places), _by_head(value.shape, places), is_causal)
        if sizes is None:
            return None
        mask = None if places.mask is None else call.tensor(places.mask)
        result = query.shaped((*query.shape[:-1], value.shape[-1]))
        if places.gradient is None:
            flop = 2.0 * sizes.batch_heads * sizes.pairs * (sizes.key_size + sizes.value_size)
            moved = moved_bytes((query, key, value, mask, result))
        else:
            flop = 2.0 * sizes.batch_heads * sizes.pairs * (3 * sizes.key_size + 2 * sizes.value_size)
            # The result and its gradient are read, and a gradient written for each of the three.
            moved = moved_bytes((query, key, value, mask, result, result, query, key, value))
        return Work(Weight.PRODUCT, flop, moved, query.dtype)

    return model


def _sequence_count(call: OperatorCall, places: Places, lengths: Shape, shapes: tuple[Shape, Shape], is_causal: bool | None) -> int | None:
    """Sequences of one length in [length, heads, size] of queries and of keys; None: they may be of several.

    One begins at 0 and ends at its length: those two are the lengths. Of more the longest is recorded, of queries and of keys:
    as many as that together fill the shape only where all are as long. Of a causal one that has been cached in part, which pairs
    are left depends on how its ends are aligned.
    """
    query, key = shapes
    if len(lengths) != 1 or lengths[0] < 2 or len(query) != 3 or len(key) != 3 or (is_causal and query[0] != key[0]):
        return None
    count = lengths[0] - 1
    assert places.lengths is not None
    longest = [call.integer(places.lengths + LONGEST_PLACE + side) for side in range(2)]
    are_alike = all(length is not None and length * count == shape[0] for length, shape in zip(longest, shapes, strict=True))
    return count if count == 1 or are_alike else None


def _by_head(shape: Shape, places: Places) -> Shape:
    """[..., heads, length, size]"""
    return (*shape[:-3], shape[-2], shape[-3], shape[-1]) if places.is_heads_last and len(shape) == 4 else shape


def _sizes(query: Shape, key: Shape, value: Shape, is_causal: bool | None) -> _Sizes | None:
    """None: shapes that do not fit, or whether the mask is causal is not recorded."""
    if not len(query) == len(key) == len(value) == 4 or is_causal is None:
        return None
    if query[-1] != key[-1] or key[-2] != value[-2]:
        return None
    pairs = causal_pairs(query[-2], key[-2]) if is_causal else query[-2] * key[-2]
    return _Sizes(query[0] * query[1], pairs, query[-1], value[-1])


ATTENTION: Final[Mapping[str, Model]] = {
    "aten::scaled_dot_product_attention": _model(Places(query=0, mask=3, causal=5)),
    "aten::_scaled_dot_product_flash_attention": _model(Places(query=0, causal=4)),
    "aten::_scaled_dot_product_efficient_attention": _model(Places(query=0, mask=3, causal=6)),
    "aten::_scaled_dot_product_cudnn_attention": _model(Places(query=0, mask=3, causal=6)),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _model(Places(query=0, mask=5, causal=4)),
    "aten::_flash_attention_forward": _model(Places(query=0, lengths=3, causal=8, is_heads_last=True)),
    "flash_attn::_flash_attn_varlen_forward": _model(Places(query=0, lengths=3, causal=9, is_heads_last=True)),
    "flash_attn::_flash_attn_forward": _model(Places(query=0, causal=5, is_heads_last=True)),
    "aten::_scaled_dot_product_flash_attention_backward": _model(Places(query=1, causal=11, gradient=0, lengths=6)),
    "aten::_scaled_dot_product_efficient_attention_backward": _model(Places(query=1, mask=4, causal=11, gradient=0)),
    "aten::_scaled_dot_product_cudnn_attention_backward": _model(Places(query=1, mask=8, causal=14, gradient=0, lengths=9)),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _model(Places(query=1, mask=8, causal=7, gradient=0)),
    "aten::_flash_attention_backward": _model(Places(query=1, causal=11, gradient=0, lengths=6, is_heads_last=True)),
}
