"""What a kernel does, by its name: libraries and torch name theirs after it."""

import functools
import re
from typing import List, Pattern, Tuple

PRODUCTS = ("matrix products", "attention", "convolutions")
"""Classes whose time is arithmetic; that of the others is mostly memory traffic."""


def _names(words: str) -> Pattern[str]:
    return re.compile(words, re.IGNORECASE)


# The first that fits counts: what a kernel is for stands before how it goes through its data.
# A compiler's own kernels name everything that was fused into them; how they begin says more.
_CLASSES: List[Tuple[str, Pattern[str]]] = [
    ("communication", _names(r"^nccl|nccl(Dev)?Kernel|nvshmem|cross_device_reduce")),
    ("attention", _names(r"^triton_tem\w*attention")),
    ("convolutions", _names(r"^triton_tem\w*convolution")),
    ("matrix products", _names(r"^triton_tem|^triton_mm")),
    ("element-wise", _names(r"^triton_poi")),
    ("normalisation", _names(r"^triton_(red|per)\w*(norm|var_mean)")),
    ("softmax", _names(r"^triton_(red|per)\w*softmax")),
    ("reductions", _names(r"^triton_(red|per)")),
    ("attention", _names(r"flash|fmha|attention|sdpa|mem_?eff")),
    ("optimizer", _names(r"multi_tensor_apply|fused_?adam|fused_?sgd|adagrad_kernel|lamb(?!da)")),
    (
        "normalisation",
        _names(
            r"(layer|batch|group|instance|rms)_?norm|bn_(fw|bw)|RowwiseMoments|GammaBeta|"
            r"ComputeInternalGradients|ComputeFusedParams|cuComputeGradInput|ComputeBackwardFused"
        ),
    ),
    ("softmax", _names(r"soft_?max")),
    (
        "copies and layout",
        _names(r"nchwToNhwc|nhwcToNchw|convertTensor|im2col|col2im|vol2col|col2vol|transpose"),
    ),
    (
        "convolutions",
        _names(r"conv(?!ert)|winograd|implicit|wgrad|dgrad|fprop|fft\dd_|cudnn_infer|cudnn.*cgemm"),
    ),
    ("matrix products", _names(r"gemm|gemv|cutlass|xmma|nvjet|cublas|splitK|mma_|dot_kernel")),
    ("reductions", _names(r"reduce|cub::|scan|cumsum|sort|topk|arg(max|min)|histogram|nll_loss")),
    (
        "copies and layout",
        _names(
            r"^Mem(cpy|set)|copy|CatArray|index|gather|scatter|embedding|permut|FillFunctor|"
            r"roll_cuda|_pad\d|padding|flip_kernel|masked_fill|triu|tril"
        ),
    ),
    ("element-wise", _names(r"elementwise|vectorized|unrolled|pointwise|dropout|distribution")),
]

_TENSOR_CORE = _names(
    r"s\d+816|s1688|s884|h1688|hmma|xmma|tensorop|wgmma|nvjet|bf16|tf32|f16f16|flash|fmha|16816|"
    r"sm90|sm80_xmma"
)


# A step may launch tens of thousands of kernels by a few hundred names. Sought anew for each, the
# classes of 165,000 took 20 s, in which a training stands still; names of templates are long.
@functools.lru_cache(maxsize=4096)
def class_of(kernel: str) -> str:
    """Name the class of a kernel; ``other`` where its name tells nothing."""
    for name, pattern in _CLASSES:
        if pattern.search(kernel):
            return name
    return "other"


@functools.lru_cache(maxsize=4096)
def is_on_tensor_cores(kernel: str) -> bool:
    """Whether the name of a product tells of tensor cores."""
    return _TENSOR_CORE.search(kernel) is not None
