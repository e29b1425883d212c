"""Optimizers, recompute and compiling on a CUDA device: no waiting, fewer bytes, the same numbers.

Runs under pytest, or alone where there is none: ``python tests/gpu/test_engine_switches_gpu.py``.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from pitstop.config.sections import CompileSection, OptimizerSection
from pitstop.train.model.compiling import (
    CompileMonitor,
    apply_compile,
    records_cuda_graphs,
    require_compiled,
)
from pitstop.train.model.recompute import RecomputeCall, apply_recompute, plain_call
from pitstop.train.optim.build import build_optimizer, optimizer_facts
from pitstop.workloads.bev.model.heads import TopdownHead
from tests.saved_bytes import saved_bytes
from tests.unit.train.tasks import Batch, SquareTask, make_trainer, one_step, weights_of

try:
    import pytest
except ModuleNotFoundError:  # a machine with a GPU and little else
    pytest = None
else:
    pytestmark = [
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        # Of the compiler itself, in torch 2.11.
        pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
        pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning"),
    ]

DIM = 256
KINDS = ("adamw", "adam", "sgd", "adamw_bf16")


class Block(nn.Module):
    """Attention and feed-forward through places; attention drops at random."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.up = nn.Linear(DIM, 4 * DIM)
        self.down = nn.Linear(4 * DIM, DIM)
        self.recompute_attention: RecomputeCall = plain_call
        self.recompute_feed_forward: RecomputeCall = plain_call

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.recompute_attention(self.attend, x)
        return x + self.recompute_feed_forward(self.feed, x)

    def attend(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        scores = functional.dropout((query @ key.transpose(-1, -2)).softmax(-1), 0.1)
        return (scores @ value).transpose(1, 2).flatten(2)

    def feed(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x)))


@contextmanager
def no_syncs() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def build(num_blocks: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(num_blocks))).cuda()


def batch() -> Tensor:
    return torch.randn(4, 256, DIM, generator=torch.Generator().manual_seed(1)).cuda()


def gradients(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    torch.manual_seed(3)
    model.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        output = model(inputs)
    output.float().square().mean().backward()
    return [param.grad.clone() for param in model.parameters() if param.grad is not None]


def test_updates_and_skipped_updates_never_wait() -> None:
    for kind in KINDS:
        model, inputs = build(1), batch()
        optimizer = build_optimizer(model, OptimizerSection.model_validate({"kind": kind}))
        facts = optimizer_facts(optimizer)
        assert facts.takes_found_inf, facts
        assert facts.fused == (kind != "adamw_bf16"), facts
        flag = torch.ones((), device="cuda")
        gradients(model, inputs)
        before = [param.detach().clone() for param in model.parameters()]
        with no_syncs():
            optimizer.found_inf = flag  # type: ignore[attr-defined]
            optimizer.step()
        torch.testing.assert_close(list(model.parameters()), before, rtol=0, atol=0)
        with no_syncs():
            optimizer.found_inf = torch.zeros_like(flag)  # type: ignore[attr-defined]
            optimizer.step()
        assert not torch.equal(next(model.parameters()), before[0])
        assert optimizer_facts(optimizer).state_bytes == facts.predicted_state_bytes


def test_bf16_averages_follow_full_ones() -> None:
    ours, theirs = build(1), build(1)
    half = build_optimizer(ours, OptimizerSection(kind="adamw_bf16", lr=1e-3))
    full = build_optimizer(theirs, OptimizerSection(lr=1e-3))
    start = nn.utils.parameters_to_vector(ours.parameters()).detach().clone()
    for step in range(100):
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            dice = torch.Generator("cuda").manual_seed(step)
            a.grad = torch.randn(a.shape, device="cuda", generator=dice)
            b.grad = a.grad.clone()
        half.step()
        full.step()
    end, wanted = (nn.utils.parameters_to_vector(m.parameters()) for m in (ours, theirs))
    assert (end - wanted).norm() / (wanted - start).norm() < 0.02


def test_recompute_lowers_the_peak_without_waiting_and_gives_the_same_gradients() -> None:
    model, inputs = build(), batch()
    expected = gradients(model, inputs)
    peaks, held = {}, {}
    for policy in ("none", "full", "attention", "ffn", "selective"):
        apply_recompute(model, policy)
        with no_syncs():
            found = gradients(model, inputs)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
        torch.cuda.reset_peak_memory_stats()
        start = torch.cuda.memory_allocated()
        gradients(model, inputs)
        peaks[policy] = torch.cuda.max_memory_allocated() - start
        held[policy] = saved_bytes(lambda: model(inputs), ignoring=[inputs, *model.parameters()])
    for policy in ("full", "attention", "ffn", "selective"):
        assert peaks[policy] < peaks["none"], (policy, peaks)
        assert held[policy] < held["none"], (policy, held)
    sys.stdout.write(f"peak bytes {peaks}\nheld bytes {held}\n")


def test_compiling_is_proven_and_goes_with_recompute() -> None:
    for scope in ("regions", "whole"):
        for policy in ("none", "full", "selective"):
            torch.compiler.reset()
            model, inputs = build(2).eval(), batch()
            apply_recompute(model, policy)
            section = CompileSection.model_validate({"scope": scope})
            apply_compile(model, section, list(model))
            with CompileMonitor() as monitor:
                gradients(model, inputs)
            proof = monitor.proof()
            sys.stdout.write(f"{scope} {policy} {proof}\n")
            assert proof.graphs >= 1, proof
            assert proof.frames_left_eager == 0, proof
            assert proof.breaks == {}, proof
            assert proof.compile_s, proof


def mean_gradients(
    head: nn.Module, ground: Tensor, dtype: torch.dtype
) -> dict[str, tuple[Tensor, float]]:
    """Gradients of the mean square of what a head says, with their norm."""
    head.zero_grad(set_to_none=True)
    with torch.autocast(ground.device.type, dtype=dtype, enabled=dtype != torch.float32):
        said = head(ground)
    said.float().square().mean().backward()
    found = {name: weight.grad for name, weight in head.named_parameters()}
    return {name: (each, float(each.norm())) for name, each in found.items() if each is not None}


def test_a_compiled_head_of_a_large_odd_grid_has_the_gradients_of_an_uncompiled_one() -> None:
    """With padded strides torch 2.11 gives wrong ones at this shape, and the right loss."""
    torch.compiler.reset()
    torch.manual_seed(0)
    head = TopdownHead(64, 14).cuda()
    ground = torch.randn(32, 64, 98, 100, device="cuda")
    wanted = mean_gradients(head, ground, torch.float32)
    uncompiled = mean_gradients(head, ground, torch.bfloat16)
    apply_compile(head, CompileSection(scope="whole"), ())
    compiled = mean_gradients(head, ground, torch.bfloat16)
    for name, (exact, norm) in wanted.items():
        rounding, error = (
            float((each[name][0] - exact).norm()) / norm for each in (uncompiled, compiled)
        )
        assert error <= 2 * rounding + 0.01, (name, error, rounding)


class Perceptron(nn.Module):
    """Two layers; in a class of our own, for the compiler skips torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(3, 8)
        self.last = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.hidden(x)))


class PerceptronTask(SquareTask):
    def build_model(self) -> nn.Module:
        return Perceptron()


def trained(mode: str, accumulate: int, device: str = "cuda") -> list[Tensor]:
    """Weights after some steps of a model compiled in a mode."""
    torch.compiler.reset()
    task = PerceptronTask(weighted=False)
    trainer = make_trainer(task, accumulate=accumulate, device=device)
    section = CompileSection.model_validate({"scope": "whole", "mode": mode})
    apply_compile(trainer.model, section, ())
    trainer.records_graphs = records_cuda_graphs(section)
    dice = torch.Generator().manual_seed(5)
    with CompileMonitor() as monitor:
        for _ in range(6):
            micro: list[Batch] = [
                (torch.randn(16, 3, generator=dice), torch.ones(16)) for _ in range(accumulate)
            ]
            one_step(trainer, micro)
    require_compiled(section, monitor.proof())
    sys.stdout.write(f"{mode} x{accumulate} {monitor.proof()}\n")
    return weights_of(trainer)


def test_cuda_graphs_end_with_the_same_weights_also_over_several_micro_batches() -> None:
    for accumulate in (1, 3):
        wanted, found = (trained(mode, accumulate) for mode in ("default", "reduce-overhead"))
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            sys.stdout.write(f"{name}: ok\n")
