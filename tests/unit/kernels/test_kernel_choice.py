from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from pitstop.errors import ConfigError
from pitstop.kernels import deform_conv, fallback, flow_warp, window_attention

OPERATIONS = (deform_conv, flow_warp, window_attention)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_word_that_names_no_version_is_refused_with_the_choices(operation: ModuleType) -> None:
    with pytest.raises(ConfigError, match="auto, reference, fused"):
        operation.dispatch("fast")


def test_auto_runs_the_reference_on_a_cpu_and_says_nothing() -> None:
    image, flow = torch.randn(1, 2, 4, 5), torch.randn(1, 2, 4, 5)
    got = flow_warp.dispatch("auto").bilinear(image, flow, padding="border")
    assert torch.equal(got, flow_warp.bilinear_reference(image, flow, padding="border"))
    operands = (torch.randn(1, 2, 4, 5), torch.randn(1, 18, 4, 5), torch.rand(1, 9, 4, 5))
    weight, bias = torch.randn(3, 2, 3, 3), torch.randn(3)
    got = deform_conv.dispatch("auto")(*operands, weight, bias=bias)
    assert torch.equal(got, deform_conv.deform_conv_reference(*operands, weight, bias=bias))


def test_what_was_asked_for_and_cannot_run_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "_said", set())
    image, flow = torch.randn(1, 2, 4, 5), torch.randn(1, 2, 4, 5)
    version = flow_warp.dispatch("fused")
    with pytest.warns(RuntimeWarning, match="'fused', but flow warping runs in plain PyTorch"):
        got = version.bilinear(image, flow)
    assert torch.equal(got, flow_warp.bilinear_reference(image, flow))
    # A second warning would be an error here.
    version.nearest4(image, flow)


@pytest.mark.parametrize(
    ("kernels", "obstacle", "runs"),
    [
        ("auto", None, True),
        ("auto", "why", False),
        ("fused", None, True),
        ("reference", None, False),
    ],
)
def test_a_fused_version_runs_where_it_is_wanted_and_can(
    kernels: fallback.Kernels, obstacle: str | None, *, runs: bool
) -> None:
    assert fallback.runs_fused(kernels, operation="it", obstacle=obstacle) is runs


def test_what_keeps_a_fused_version_from_running_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "_HAS_TRITON", True)
    assert fallback.obstacle_on(torch.zeros(1)) == "its inputs are on cpu, not on a CUDA device"
    monkeypatch.setattr(fallback, "_HAS_TRITON", False)
    assert fallback.obstacle_on(torch.zeros(1)) == "Triton is not installed"
    weight = torch.zeros(4, 2, 3, 3)
    assert (
        deform_conv.obstacle_of(torch.zeros(1, 4, 2, 2), weight) == "its weight has several groups"
    )


@pytest.fixture
def matmul() -> Iterator[object]:
    """What torch says about products, put back afterwards."""
    settings = torch.backends.cuda.matmul
    yield settings
    settings.allow_tf32 = False


@pytest.mark.parametrize(
    ("name", "value", "want"),
    [
        ("allow_tf32", True, "tf32"),
        ("allow_tf32", False, "tf32x3"),
        ("fp32_precision", "tf32", "tf32"),
        ("fp32_precision", "ieee", "tf32x3"),
    ],
)
def test_float32_is_multiplied_as_torch_multiplies_it(
    matmul: object, name: str, value: object, want: str
) -> None:
    setattr(matmul, name, value)
    assert fallback.product_precision(torch.float32) == want
    assert fallback.product_precision(torch.bfloat16) == "ieee"
    assert fallback.product_precision(torch.float16) == "ieee"


@pytest.mark.parametrize(("word", "want"), [("highest", "tf32x3"), ("high", "tf32")])
def test_the_word_for_all_products_counts_too(matmul: object, word: str, want: str) -> None:
    assert matmul is torch.backends.cuda.matmul
    torch.set_float32_matmul_precision(word)
    assert fallback.product_precision(torch.float32) == want
