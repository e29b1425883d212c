from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from pitstop.errors import ConfigError
from pitstop.kernels.windows import (
    FORMULAS,
    attend_windows,
    attend_windows_fused,
    attend_windows_reference,
    dispatch,
)
from tests.interpreted import (
    assert_cases_hold_under_the_interpreter,
    needs_triton,
    said_by_the_compiler,
)

torch.set_num_threads(1)

HERE = Path(__file__).parent


@pytest.mark.slow
@needs_triton
def test_fused_attention_in_windows_keeps_its_claims_under_the_interpreter() -> None:
    assert_cases_hold_under_the_interpreter(HERE / "windows_cases.py")


@pytest.mark.slow
@needs_triton
def test_the_compiler_takes_the_kernels_for_a_device_that_is_not_here() -> None:
    said = said_by_the_compiler(HERE / "windows_compiled.py")
    assert said.count("compiled") == 8
    assert said.count(" 0 products") == 2, "float32 alone goes without matrix units"


def token_by_token(qkv: Tensor, bias: Tensor, mask: Tensor | None, *, scale: float) -> Tensor:
    num_windows, tokens, _, heads, channels = qkv.shape
    out = torch.zeros(num_windows, tokens, heads, channels, dtype=torch.float64)
    wide = qkv.double()
    for window in range(num_windows):
        for head in range(heads):
            for token in range(tokens):
                scores = (wide[window, :, 1, head] * wide[window, token, 0, head]).sum(1) * scale
                scores += bias[head, token]
                if mask is not None:
                    scores += mask[window % len(mask), token]
                powers = scores.exp()
                rows = wide[window, :, 2, head]
                out[window, token, head] = (rows * (powers / powers.sum())[:, None]).sum(0)
    return out


@given(
    num_windows=st.integers(1, 5),
    tokens=st.integers(1, 6),
    heads=st.integers(1, 3),
    channels=st.integers(1, 5),
    places=st.integers(0, 3),
)
@example(num_windows=5, tokens=3, heads=2, channels=4, places=2)
@settings(max_examples=25, deadline=None)
def test_the_reference_does_what_its_words_say_token_by_token(
    num_windows: int, tokens: int, heads: int, channels: int, places: int
) -> None:
    generator = torch.Generator().manual_seed(num_windows + 10 * tokens)
    qkv = torch.randn(num_windows, tokens, 3, heads, channels, generator=generator)
    bias = torch.randn(heads, tokens, tokens, generator=generator)
    mask = torch.randn(places, tokens, tokens, generator=generator) if places else None
    got = attend_windows_reference(qkv, bias, mask, scale=0.7)
    want = token_by_token(qkv, bias, mask, scale=0.7)
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_reference_answers_in_the_type_of_the_projections(dtype: torch.dtype) -> None:
    qkv, bias = torch.randn(2, 4, 3, 2, 8), torch.randn(2, 4, 4)
    out = attend_windows_reference(qkv.to(dtype), bias, scale=0.5)
    assert (out.dtype, out.shape) == (dtype, (2, 4, 2, 8))
    want = token_by_token(qkv.to(dtype), bias, None, scale=0.5)
    torch.testing.assert_close(out.double(), want, rtol=5e-2, atol=5e-2)


def test_scores_are_weighed_in_float32_whatever_the_projections_are() -> None:
    # The difference of the two scores is lost where their sum with the bias is a half.
    qkv = torch.zeros(1, 2, 3, 1, 1, dtype=torch.bfloat16)
    qkv[0, 1, 2] = 1.0
    bias = torch.tensor([256.0, 257.0]).expand(1, 2, 2)
    out = attend_windows_reference(qkv, bias, scale=1.0)
    want = torch.sigmoid(torch.tensor(1.0)).bfloat16()
    assert out.flatten().tolist() == [want.item()] * 2


def test_auto_runs_the_reference_on_a_cpu() -> None:
    qkv, bias, mask = torch.randn(4, 9, 3, 2, 8), torch.randn(2, 9, 9), torch.randn(2, 9, 9)
    assert dispatch("auto") is attend_windows
    want = attend_windows_reference(qkv, bias, mask, scale=0.3)
    assert torch.equal(attend_windows(qkv, bias, mask, scale=0.3), want)


def test_each_word_names_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dispatch("reference") is attend_windows_reference
    with pytest.raises(ConfigError, match="auto, reference, fused"):
        dispatch("fast")  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr("pitstop.kernels.has_triton", lambda: True)
    assert dispatch("fused") is attend_windows_fused
    monkeypatch.setattr("pitstop.kernels.has_triton", lambda: False)
    with pytest.raises(ConfigError, match="needs Triton"):
        dispatch("fused")


def test_formulas_count_what_is_read_and_written_once() -> None:
    sizes = {"num_windows": 20, "num_tokens": 49, "heads": 3, "channels": 32}
    qkv = torch.empty(20, 49, 3, 3, 32, dtype=torch.bfloat16, device="meta")
    out = torch.empty(20, 49, 3, 32, dtype=torch.bfloat16, device="meta")
    forward, backward = FORMULAS["attend_windows"], FORMULAS["attend_windows_backward"]
    moved = {"itemsize": 2, "added_bytes": 100}
    assert forward.num_bytes(**sizes, **moved) == qkv.nbytes + out.nbytes + 100
    assert backward.num_bytes(**sizes, **moved) == 2 * qkv.nbytes + out.nbytes + 100
    product = 2 * 20 * 3 * 49 * 49 * 32
    assert (forward.flops(**sizes), backward.flops(**sizes)) == (2 * product, 5 * product)
