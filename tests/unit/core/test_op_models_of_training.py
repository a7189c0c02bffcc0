"""Models of optimizers, scatters, mixtures of experts and collectives, against figures worked out by hand and definitions carried out."""

from __future__ import annotations

from typing import Any

import pytest

from kernalyse.services.core.costs.elementwise import ADAM_FLOP, DECAY_FLOP, SGD_FLOP
from kernalyse.services.core.costs.operator import CostClass
from tests.unit.core.test_op_models import Shapes, known, worked
from tests.unit.counting_numbers import Counter

PARAMETERS = [[3, 5], [5]]  # 20 elements
STEPS: Shapes = [[], []]


def typed(dtype: str, count: int = 2) -> str:
    """As execution traces write the type of a list."""
    return f"GenericList[{','.join([f'Tensor({dtype})'] * count)}]"


def adam(decay: str, *, largest: Shapes = (), scale: bool = False) -> tuple[Shapes, list[str], list[str]]:
    shapes = [*[PARAMETERS] * 4, list(largest), STEPS, *[[]] * 9]
    dtypes = [*[typed("float")] * 4, typed("float"), typed("float"), *["Scalar"] * 7, "float" if scale else "", ""]
    return shapes, dtypes, [*[""] * 6, "0.001", "0.9", "0.999", decay, "1e-08", "False", "False", "", ""]


def test_a_step_of_adam_takes_what_its_definition_takes() -> None:
    counter = Counter()
    parameter, gradient, mean, square, weight, beta, correction, rate = counter.numbers(8)
    mean = mean + weight * (gradient - mean)
    square = beta * square + weight * (gradient * gradient)
    parameter = parameter - rate * mean / (square.applied() / correction + 1e-8)
    assert counter.flop == ADAM_FLOP
    _ = parameter - parameter * 1e-5  # the rate times the decay is one number
    assert counter.flop == ADAM_FLOP + DECAY_FLOP


def test_adam_reads_parameters_and_moments_and_writes_them() -> None:
    shapes, dtypes, values = adam("0.")
    work = known("aten::_fused_adam_", shapes, dtypes=dtypes, values=values)
    # 7 numbers for each of 20 elements: 3 read and written, gradients read; and the steps of 2 tensors.
    assert (work.flop, work.bytes, work.weight) == (20 * ADAM_FLOP, 4 * (7 * 20 + 2), CostClass.PASS)
    shapes, dtypes, values = adam("0.01", largest=PARAMETERS, scale=True)
    work = known("aten::_fused_adamw_", shapes, dtypes=dtypes, values=values)
    assert (work.flop, work.bytes) == (20 * (ADAM_FLOP + DECAY_FLOP + 1), 4 * (10 * 20 + 2))


@pytest.mark.parametrize(
    ("decay", "momentum", "nesterov", "first", "flop", "numbers"),
    [
        ("0.", "0.", "False", "False", SGD_FLOP, 3),
        ("0.1", "0.", "False", "False", SGD_FLOP + 2, 3),
        ("0.", "0.9", "False", "True", SGD_FLOP, 4),
        ("0.", "0.9", "False", "False", SGD_FLOP + 3, 5),
        ("0.", "0.9", "True", "False", SGD_FLOP + 5, 5),
    ],
)
def test_sgd_keeps_a_buffer_where_there_is_momentum(decay: str, momentum: str, nesterov: str, first: str, flop: int, numbers: int) -> None:
    shapes = [PARAMETERS, PARAMETERS, PARAMETERS if momentum != "0." else [], *[[]] * 9]
    values = ["", "", "", decay, momentum, "0.1", "0.", nesterov, "False", first, "", ""]
    dtypes = [*[typed("c10::Half")] * 3, *["Scalar"] * 7, "", ""]
    work = known("aten::_fused_sgd_", shapes, dtypes=dtypes, values=values)
    assert (work.flop, work.bytes) == (20 * flop, 2 * 20 * numbers)


def test_of_lists_without_data_types_bytes_are_not_known() -> None:
    shapes, _, values = adam("0.")
    dtypes = [*["TensorList"] * 6, *["Scalar"] * 7, "", ""]
    work = known("aten::_fused_adam_", shapes, dtypes=dtypes, values=values)
    assert (work.flop, work.bytes, work.dtype) == (20 * ADAM_FLOP, None, None)
    assert worked("aten::_fused_adam_", [[]] * 15, dtypes=dtypes, values=values) is None  # more than 30 tensors
    joined = known("aten::cat", [PARAMETERS, []], dtypes=["TensorList", "Scalar"], values=["", "0"])
    assert (joined.flop, joined.bytes) == (0, None)


def test_operators_on_lists_are_elementwise() -> None:
    added = known("aten::_foreach_add_", [PARAMETERS, PARAMETERS, []], values=["", "", "-0.001"], dtypes=[*[typed("float")] * 2, "Scalar"])
    assert (added.flop, added.bytes) == (20, 4 * 60)
    assert known("aten::_foreach_addcdiv_", [PARAMETERS] * 3, dtypes=[typed("float")] * 3).flop == 40
    root = known("aten::_foreach_sqrt", [PARAMETERS], dtypes=[typed("float")])
    assert (root.flop, root.bytes) == (20, 4 * 40)
    assert worked("aten::_foreach_add_", [PARAMETERS, [[3, 5]]], dtypes=[typed("float"), typed("float", 1)]) is None
    copied = known("aten::_foreach_copy_", [PARAMETERS, PARAMETERS], dtypes=[typed("float"), typed("c10::Half")])
    assert (copied.flop, copied.bytes) == (0, 20 * (4 + 2))
    assert known("aten::cat", [PARAMETERS], dtypes=[typed("float")]).bytes == 2 * 4 * 20


@pytest.mark.parametrize(
    ("name", "shapes", "flop", "elements", "places"),
    [
        ("aten::scatter_", [[9, 4], [], [3, 4], [5, 4]], 0, 12 + 12, 12),
        ("aten::scatter_", [[9, 4], [], [3, 4], []], 0, 12, 12),  # of one number
        ("aten::scatter_add_", [[9, 4], [], [3, 4], [5, 4]], 12, 3 * 12, 12),
        ("aten::index_add_", [[9, 4], [], [3], [3, 4], []], 12, 3 * 12, 3),
        ("aten::index_copy_", [[9, 4], [], [3], [3, 4]], 0, 2 * 12, 3),
    ],
)
def test_scatters_touch_as_many_elements_as_there_are_places(name: str, shapes: Shapes, flop: int, elements: int, places: int) -> None:
    work = known(name, shapes, dtypes=["float", "Scalar", "long int"])
    assert (work.flop, work.bytes) == (flop, 4 * elements + 8 * places)


@pytest.mark.parametrize(("mode", "flop"), [(0, 28), (1, 28 + 8), (2, 0)])
def test_an_embedding_bag_adds_a_row_for_each_place(mode: int, flop: int) -> None:
    values = ["", "", "", "False", str(mode), "False", "", "True", "-1"]
    shapes: Shapes = [[100, 4], [7], [3], [], [], [], [], [], []]
    work = known("aten::_embedding_bag", shapes, dtypes=["float", "long int", "long int"], values=values)
    # 7 rows of 4 read, 2 bags written; places and offsets read, and a bag of each place and sizes written.
    assert (work.flop, work.bytes) == (flop, 4 * (28 + 8) + 8 * 2 * (7 + 3))


@pytest.mark.parametrize(
    ("left", "right", "elements"),
    [
        ([6, 4], [3, 4, 5], 24 + 60 + 30),
        ([2, 4], [3, 4, 5], 8 + 40 + 10),  # two rows meet two matrices at the most
        ([3, 6, 4], [4, 5], 72 + 20 + 30),
        ([6, 4], [4, 5], 24 + 20 + 3 * 30),
    ],
)
def test_a_grouped_product_multiplies_each_row_once(left: list[int], right: list[int], elements: int) -> None:
    work = known("aten::_grouped_mm", [left, right, [3], [], []], dtypes=["c10::BFloat16", "c10::BFloat16", "int"])
    assert work.flop == 2 * left[-2] * 4 * 5
    assert (work.bytes, work.weight) == (2 * elements + 4 * 3, CostClass.PRODUCT)


def test_groups_that_are_a_batch_are_one() -> None:
    assert known("aten::_grouped_mm", [[3, 6, 4], [3, 4, 5]]) == known("aten::bmm", [[3, 6, 4], [3, 4, 5]])
    assert worked("aten::_grouped_mm", [[6, 4], [3, 4, 5], []]) is None


def test_each_row_goes_through_both_matrices_of_its_experts() -> None:
    shapes: Shapes = [[6, 4], [8, 10, 4], [8, 4, 5], [6, 2], [6, 2]]
    work = known("vllm::outplace_fused_experts", shapes, dtypes=["c10::BFloat16"] * 3 + ["float", "int"])
    assert work.flop == 2 * 12 * (10 * 4 + 4 * 5)
    assert work.bytes == 2 * (2 * 24 + 8 * (40 + 20)) + 4 * 12
    packed: Shapes = [[6, 4], [8, 10, 2], [8, 4, 5], [6, 2]]
    assert worked("vllm::outplace_fused_experts", packed) is None


def test_attention_on_the_cpu_counts_as_elsewhere() -> None:
    shapes = [[2, 3, 8, 16], [2, 3, 8, 16], [2, 3, 8, 16], [], [], [8, 8], []]
    values = ("", "", "", "0.", "True", "", "")
    forward = known("aten::_scaled_dot_product_flash_attention_for_cpu", shapes, values=values)
    assert (forward.flop, forward.bytes) == (4 * 2 * 3 * 36 * 16, 4 * (4 * 2 * 3 * 8 * 16 + 8 * 8))
    gradient = [[2, 3, 8, 16], *shapes[:3], [2, 3, 8, 16], [2, 3, 8], [], [], [], []]
    backward = known("aten::_scaled_dot_product_flash_attention_for_cpu_backward", gradient, values=("", *[""] * 6, "True"))
    assert backward.flop == 10 * 2 * 3 * 36 * 16


def test_attention_of_one_sequence_of_packed_ones_is_known() -> None:
    shapes: Shapes = [[8, 3, 16], [8, 3, 16], [8, 3, 16], [2], [2], *[[]] * 4]
    dtypes = ["float"] * 3 + ["int"] * 2
    values = [*[""] * 5, "8", "8", "0.", "True"]
    assert known("aten::_flash_attention_forward", shapes, dtypes=dtypes, values=values).flop == 4 * 3 * 36 * 16
    several: Shapes = [*shapes[:3], [3], [3], *[[]] * 4]
    assert worked("aten::_flash_attention_forward", several, dtypes=dtypes, values=values) is None


def test_attention_of_packed_sequences_is_known_where_all_are_as_long_as_the_longest() -> None:
    shapes: Shapes = [[24, 2, 16], [24, 2, 16], [24, 2, 16], [4], [4], *[[]] * 4]
    dtypes = ["float"] * 3 + ["int"] * 2

    def flop(longest: str) -> float | None:
        work = worked("aten::_flash_attention_forward", shapes, dtypes=dtypes, values=[*[""] * 5, longest, longest, "0.", "True"])
        return None if work is None else work.flop

    assert flop("8") == 3 * 4 * 2 * 36 * 16  # three of eight tokens
    assert flop("9") is None
    assert flop("") is None


def test_values_that_are_put_by_indexes_are_read_and_written() -> None:
    shapes: Shapes = [[100, 64], [], [7, 64], []]
    put = known("aten::index_put_", shapes, dtypes=["float", "", "float", "Scalar"], values=["", "", "", "False"])
    assert (put.flop, put.bytes, put.weight) == (0, 2 * 4 * 7 * 64, CostClass.MOVE)
    added = known("aten::_index_put_impl_", [*shapes, []], dtypes=["float", "", "float"], values=["", "", "", "True", "False"])
    assert (added.flop, added.bytes) == (7 * 64, 3 * 4 * 7 * 64)
    one: Shapes = [[100, 64], [], [], []]
    assert worked("aten::index_put_", one, dtypes=["float", "", "float"], values=["", "", "", "False"]) is None


# ---------------------------------------------------------------- collectives: factors of doc/PERFORMANCE.md of nccl-tests


def recorded(name: str, shapes: Any, dtype: str = "c10::BFloat16", ranks: int = 8) -> float | None:
    values = ["", "", "", "0", name, "[]", "[]", "0", "1", str(ranks)]
    work = worked("record_param_comms", [shapes, *[[]] * 9], dtypes=[dtype, "", "", "Scalar"], values=values)
    return None if work is None else work.bytes


@pytest.mark.parametrize(
    ("name", "share"),
    [("allreduce", 14 / 8), ("_allgather_base", 7), ("_reduce_scatter_base", 7 / 8), ("all_to_all", 7 / 8), ("broadcast", 1), ("send", 1)],
)
def test_a_rank_moves_its_share_of_the_array(name: str, share: float) -> None:
    assert recorded(name, [1000, 16]) == share * 32000
    assert recorded(name, [[1000], [15000]]) == share * 32000


def test_collectives_that_tell_too_little_are_not_known() -> None:
    assert recorded("wait", [1000]) is None
    assert recorded("", [1000]) is None
    assert recorded("allreduce", [[1000]], "TensorList") is None
    assert worked("_c10d_functional::all_reduce", [[1000], [], []]) is None


def test_shapes_tell_how_many_ranks_there_are() -> None:
    gathered = known("c10d::_allgather_base_", [[8, 25], [1, 25], [], [], []])
    assert (gathered.flop, gathered.bytes) == (0, 4 * 7 * 25)
    assert known("c10d::_reduce_scatter_base_", [[25], [8, 25]]).bytes == 4 * 7 * 25
    assert known("_c10d_functional::all_gather_into_tensor", [[25], [], []], values=["", "8", "0"]).bytes == 4 * 7 * 25
    assert known("_c10d_functional::reduce_scatter_tensor", [[200], [], [], []], values=["", "sum", "8", "0"]).bytes == 4 * 7 * 25
    assert known("c10d::_reduce_scatter_base_", [[25], [8, 25]]).flop is None
