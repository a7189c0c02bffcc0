"""Layers that names of kernels tell: every pattern has a name of a library that shows it, and names that tell nothing stay so."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kernalyse.services.analyzer.analysis.traces.layers import PATTERNS, infer_category, infer_layer, trace_layers

SHARED = Path(__file__).parents[5] / "shared" / "data" / "expected"

EXAMPLES = {
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "communication kernels",
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)": "communication kernels",
    "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char>(__nv_bfloat16 const*)": "copy kernels",
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>(Flash_fwd_params)": "attention kernels",
    "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext": "attention kernels",
    "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)": "position embedding kernels",
    "void moe::dev::routing::routingIndicesOffsetsKernel<int>(int)": "mixture of experts kernels",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float)": "normalization kernels",
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(cudnnTensorStruct)": "normalization kernels",
    "void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(c10::BFloat16*)": "normalization kernels",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>(float*)": "softmax kernels",
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, float, float>(float*)": "softmax kernels",
    "void cunn_ClassNLLCriterion_updateOutput_kernel<float, float>(float*)": "loss kernels",
    "cudnn_infer_volta_scudnn_128x64_relu_xregs_large_nn_v1": "convolution kernels",
    "void wgrad_alg0_engine<float, 128, 5, 5, 3, 3, 3, false, 512>(int)": "convolution kernels",
    "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw": "convolution kernels",
    "igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt64x64x64": "convolution kernels",
    "void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false, true, true>(int)": "convolution kernels",
    "volta_sgemm_128x32_nt": "matmul kernels",
    "nvjet_tst_144x128_64x6_2x1_v_bz_bias_TNN": "matmul kernels",
    "Cijk_Ailk_Bjlk_BBS_BH_MT32x32x64_MI16x16x16x1_SN_1LDSB0": "matmul kernels",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8>(int)": "matmul kernels",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, float>(cublasLt::cublasSplitKParams<float>)": "matmul kernels",
    "void at::native::(anonymous namespace)::max_pool_forward_nchw<float, float>(int)": "pooling kernels",
    "void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>(int)": "quantization kernels",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata<4>>":
        "optimizer kernels",
    "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int, 1, 4, bool>(int)":
        "random number kernels",
    "void cub::DeviceRadixSortOnesweepKernel<float, int>(int)": "sort kernels",
    "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, -2, true>(int)":
        "indexing kernels",
    "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*)": "indexing kernels",
    "void vector_fft<512u, EPT<8u>, 64u, float>(kernel_arguments_t<unsigned int>)": "fft kernels",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<at::native::(anonymous namespace)::OpaqueType<2u>>":
        "copy kernels",
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<at::native::direct_copy_kernel_cuda(int)>>": "copy kernels",
    "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(int)": "copy kernels",
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul>>": "copy kernels",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float>>>": "reduction kernels",
    "triton_red_fused_add_mean_pow_3": "reduction kernels",
    "triton_poi_fused_add_bitwise_and_bitwise_not_bitwise_or_ge_lt_mul_sub_0": "elementwise kernels",
    "triton_poi_fused_native_layer_norm_2": "normalization kernels",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>": "elementwise kernels",
    "SubTensorOpWithScalar1d": "elementwise kernels",
    "aten::addmm": "matmul kernels",
    "aten::sum": "reduction kernels",
    "aten::clamp_min": "elementwise kernels",
    "aten::uniform_": "random number kernels",
}  # fmt: skip

UNTOLD = ("saxpy(float *, float *, float)", "main_loop", "step_particles(Particle *, int)", "", "kernel", "lambda_17", "_Z6kernelv")


def guesses(names: list[str]) -> list[str | None]:
    return pl.DataFrame({"name": names}).select(infer_layer(pl.col("name"))).to_series().to_list()


def test_names_of_libraries_tell_their_layer() -> None:
    assert dict(zip(EXAMPLES, guesses(list(EXAMPLES)), strict=True)) == EXAMPLES


def test_every_layer_and_pattern_has_an_example() -> None:
    assert set(EXAMPLES.values()) == {layer for layer, _pattern in PATTERNS}
    for _layer, pattern in PATTERNS:
        assert any(re.search(pattern, name) for name in EXAMPLES), pattern


def test_other_names_tell_nothing() -> None:
    assert guesses(list(UNTOLD)) == [None] * len(UNTOLD)


@pytest.mark.parametrize("path", sorted(SHARED.glob("*_*.json")) or [SHARED / "none.json"], ids=lambda path: path.stem)
def test_most_time_of_real_traces_would_find_a_layer(path: Path) -> None:
    if not path.exists():
        pytest.skip(f"{SHARED} is not there: the traces and their answers are not part of the project")
    kernels: dict[str, Any] = json.loads(path.read_text()).get("kernels", {})
    if set(kernels) <= {"saxpy(double *, double *, double *, double, int)"}:
        pytest.skip("it has no kernels of libraries")
    times_ns = {name: kernel["sum_ns"] for name, kernel in kernels.items()}
    told_ns = sum(times_ns[name] for name, guess in zip(times_ns, guesses(list(times_ns)), strict=True) if guess is not None)
    assert told_ns >= 0.95 * sum(times_ns.values())


def frames(launches: list[tuple[int, int, int | None]]) -> tuple[pl.LazyFrame, pl.LazyFrame, pl.LazyFrame]:
    """Launches by name, duration and range: a range named as a guess would be, around one that is not."""
    names = ["attention kernels", "block", "volta_sgemm_64x64_nn", "fmhaKernel", "own"]
    return (
        pl.LazyFrame(
            [(name, duration_ns, row, "range" if row is not None else None) for name, duration_ns, row in launches],
            schema={"name_index": pl.Int32, "duration_ns": pl.Int64, "range_index": pl.Int32, "layer_source": pl.String},
            orient="row",
        ),
        pl.LazyFrame(
            {"range_index": [0, 1], "name_index": [1, 0], "parent_range_index": [None, 0], "depth": [0, 1]},
            schema={"range_index": pl.Int32, "name_index": pl.Int32, "parent_range_index": pl.Int32, "depth": pl.Int32},
        ),
        pl.LazyFrame({"name_index": range(5), "name": names}, schema={"name_index": pl.Int32, "name": pl.String}),
    )


def layers(launches: list[tuple[int, int, int | None]], depth: int | None = None) -> list[tuple[Any, ...]]:
    found = trace_layers(*frames(launches), depth).collect()
    return found.select("layer", "call_count", "launch_count", "duration_sum_ns", "source").rows()


def test_only_kernels_without_a_range_are_guessed_and_apart_from_ranges() -> None:
    launches = [(2, 100, 0), (3, 50, 1), (3, 7, None), (2, 30, None), (2, 5, None), (4, 1, None)]
    assert layers(launches) == [
        ("block", 1, 1, 100, "range"),
        ("attention kernels", 1, 1, 50, "range"),
        ("matmul kernels", 0, 2, 35, "guessed"),
        ("attention kernels", 0, 1, 7, "guessed"),
        (None, 0, 1, 1, None),
    ]
    assert layers(launches, depth=0) == [
        ("block", 1, 2, 150, "range"),
        ("matmul kernels", 0, 2, 35, "guessed"),
        ("attention kernels", 0, 1, 7, "guessed"),
        (None, 0, 1, 1, None),
    ]


def test_without_any_range_all_is_guessed_or_nothing_is() -> None:
    assert layers([(4, 9, None)]) == [(None, 0, 1, 9, None)]
    assert layers([(3, 9, None)]) == [("attention kernels", 0, 1, 9, "guessed")]
    assert layers([]) == []
    assert layers([(3, 9, 1)]) == [("attention kernels", 1, 1, 9, "range")]


def test_kernels_of_traces_have_the_category_that_their_names_tell() -> None:
    names = pl.DataFrame({"name": ["gemm", "attention_fwd", "softmax", "mine"]})
    assert names.select(infer_category(pl.col("name"))).to_series().to_list() == ["matmul", "attention", "softmax", None]
