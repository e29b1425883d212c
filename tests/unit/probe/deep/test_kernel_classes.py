"""Kernels are told by the names that libraries, torch and its compiler give them."""

import pytest

from pitstop_probe.deep import kernel_classes
from pitstop_probe.deep.kernel_classes import class_of, is_on_tensor_cores
from pitstop_probe.deep.kernel_profile import Profiled, kernel_totals, profiled

NAMES = {
    "matrix products": [
        "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNN",
        "nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NTN",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1",
        "sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x16_stage4_warpsize2x2x1",
        "ampere_sgemm_128x64_tn",
        "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_nt",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn>",
        "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>",
        "void gemmk1_kernel<int, float, 256, 5, false, false, false, false>",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>",
        "triton_tem_fused_mm_3",
    ],
    "attention": [
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>",
        "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x64x64",
        "triton_tem_fused_flex_attention_0",
    ],
    "convolutions": [
        "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x32",
        "sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc",
        "void cudnn::cnn::wgrad2d_grouped_direct_kernel<float, float, int, float>",
        "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>",
        "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, false, false>",
        "void at::native::conv_depthwise2d_forward_kernel<3, float, int>",
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688fprop_optimized_tf32_128x64>",
        "triton_tem_fused_convolution_2",
    ],
    "copies and layout": [
        "Memcpy HtoD (Pinned -> Device)",
        "Memcpy DtoD (Device -> Device)",
        "Memset (Device)",
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<"
        "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}>>",
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(...)>",
        "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda>",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 4, 64>",
        "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelData)0>",
        "void cudnn::ops::nhwcToNchwKernel<__nv_bfloat16, __nv_bfloat16, float, true, false>",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, 1>",
        "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<...>>",
        "void at::native::vectorized_gather_kernel<16, long>",
        "void at::native::im2col_kernel<float>",
    ],
    "normalisation": [
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>",
        "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<float>",
        "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel_vectorized<float>",
        "void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>",
        "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>",
        "void at::native::batch_norm_transform_input_kernel<float, float, float, true, int>",
        "void at::native::(anonymous namespace)::RowwiseMomentsCUDAKernel<float>",
        "triton_per_fused_native_layer_norm_0",
        "triton_red_fused_native_group_norm_5",
    ],
    "reductions": [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, "
        "at::native::MeanOps<float, float, float, float>, unsigned int, float, 4>>",
        "void cub::DeviceScanKernel<cub::DeviceScanPolicy<long>::Policy600, long*>",
        "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>",
        "triton_red_fused_sum_7",
        "triton_per_fused_mean_1",
    ],
    "softmax": [
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false, false>",
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, float, float>",
        "triton_per_fused__softmax_2",
    ],
    "communication": [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclWorkElem)",
    ],
    "optimizer": [
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<"
        "at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>, "
        "at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4>>",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<"
        "TensorListMetadata<2>, UnaryOpFunctor<float, 2, 1, 1>>",
    ],
    "element-wise": [
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
        "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<"
        "at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor>>>",
        "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(...)>",
        "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float, 1, 4>",
        "triton_poi_fused__to_copy_add_gelu_3",
        "triton_poi_fused_convolution_relu_1",
    ],
    "other": ["void at::native::(anonymous namespace)::grid_sampler_2d_kernel<float, int>"],
}


@pytest.mark.parametrize(
    ("name", "expected"), [(name, kind) for kind, names in NAMES.items() for name in names]
)
def test_a_kernel_is_known_by_its_name(name: str, expected: str) -> None:
    assert class_of(name) == expected


def test_tensor_cores_are_told_from_the_rest() -> None:
    assert is_on_tensor_cores("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNN")
    assert not is_on_tensor_cores("ampere_sgemm_128x64_tn")


def test_classes_add_up_to_the_devices_time() -> None:
    names = [name for names in NAMES.values() for name in names]
    events = [Profiled(name, True, 10_000 * n, 5_000 + n) for n, name in enumerate(names)]
    totals = kernel_totals([*events, Profiled("aten::mm", False, 0, 9)], 2)
    whole_us = sum(event.took for event in events) / 2000
    assert sum(totals["classes"].values()) == pytest.approx(whole_us)
    products = sum(totals["classes"][name] for name in ("matrix products", "attention"))
    assert totals["matmul_us"] == pytest.approx(products + totals["classes"]["convolutions"])


class Event:
    """As torch's profiler gives them."""

    def __init__(self, name: str, device: str, *, own: int = 0, linked: int = 0) -> None:
        self._name, self._device, self._own, self._linked = name, device, own, linked

    def name(self) -> str:
        return self._name

    def device_type(self) -> str:
        return f"DeviceType.{self._device}"

    def start_ns(self) -> int:
        return 0

    def duration_ns(self) -> int:
        return 1000

    def correlation_id(self) -> int:
        return self._own

    def linked_correlation_id(self) -> int:
        return self._linked


def test_a_kernel_is_led_back_to_the_operation_that_launched_it() -> None:
    events = [
        Event("ampere_sgemm_128x64_tn", "CUDA", own=900, linked=7),
        Event("aten::addmm", "CPU", own=7),
        Event("cudaLaunchKernel", "CPU", own=900, linked=7),
        Event("Optimizer.step#AdamW.step", "CUDA", linked=8),
    ]
    top = kernel_totals(profiled(events), 1)["top"]
    assert [(each["name"], each["operation"]) for each in top] == [
        ("ampere_sgemm_128x64_tn", "aten::addmm")
    ]


class CountingPattern:
    """Fits nothing, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def search(self, _: str) -> None:
        self.asked += 1


def test_a_kernel_that_runs_often_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of templates are long, and a step may launch tens of thousands of kernels."""
    pattern = CountingPattern()
    monkeypatch.setattr(kernel_classes, "_CLASSES", [("counted", pattern)])
    events = [Profiled(f"never seen {n % 7}", True, 10 * n, 5) for n in range(700)]
    assert kernel_totals(events, 1)["classes"] == {"other": pytest.approx(3.5)}
    assert pattern.asked == 7
