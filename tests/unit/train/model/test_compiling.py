"""torch.compile: what was compiled is counted, and a switch that compiles nothing is an error."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch._inductor import config as compiler
from torch._inductor import list_mode_options

from pitstop.config.sections import CompileSection
from pitstop.errors import ConfigError
from pitstop.train.model.compiling import (
    CompileMonitor,
    CompileProof,
    apply_compile,
    records_cuda_graphs,
    require_compiled,
)
from pitstop.train.model.part_spans import part_spans
from pitstop.train.model.recompute import apply_recompute
from pitstop_probe import Clock
from tests.fakes import ListSink
from tests.saved_bytes import saved_bytes

# The compiler's own code warns about things that are not ours to change.
pytestmark = pytest.mark.filterwarnings("default")

DIM = 8


@pytest.fixture(autouse=True)
def _clean_compiler() -> Iterator[None]:
    torch.set_num_threads(1)
    torch._dynamo.reset()
    limit = torch._dynamo.config.recompile_limit
    yield
    torch._dynamo.config.recompile_limit = limit
    torch._dynamo.reset()


class Block(nn.Module):
    def __init__(self, factor: int = 2) -> None:
        super().__init__()
        self.linear = nn.Linear(DIM, DIM)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x)) * self.factor


class BrokenBlock(Block):
    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        torch._dynamo.graph_break()
        return x * 2


class Model(nn.Module):
    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x * 3


class Products(Model):
    """Nothing for which a compiler of C++ is started, which takes half a minute."""

    def __init__(self) -> None:
        super().__init__([nn.Linear(DIM, DIM, bias=False)])

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks[0](x)


def build(num_blocks: int = 3, kind: type[Block] = Block) -> Model:
    torch.manual_seed(0)
    return Model([kind() for _ in range(num_blocks)])


def run(model: nn.Module, size: int = 4) -> Tensor:
    """One step; inputs want a gradient so that all blocks meet inputs of one kind."""
    inputs = torch.linspace(-1, 1, size * DIM).reshape(size, DIM).requires_grad_()
    output = model(inputs)
    output.sum().backward()
    return output.detach()


def compiled(model: Model, backend: str = "aot_eager", **settings: Any) -> CompileProof:
    section = CompileSection(**settings)
    apply_compile(model, section, list(model.blocks), backend=backend)
    with CompileMonitor() as monitor:
        run(model)
    return monitor.proof()


@pytest.mark.parametrize("scope", ["regions", "whole"])
def test_compiling_is_seen_gives_the_same_and_keeps_names(scope: str) -> None:
    model = build()
    expected, names = run(model), list(model.state_dict())
    proof = compiled(model, scope=scope)
    assert proof.graphs == 1
    assert (proof.frames_left_eager, proof.breaks, proof.recompiles) == (0, {}, 0)
    assert proof.compile_s is not None
    assert proof.compile_s > 0
    torch.testing.assert_close(run(model), expected)
    assert list(model.state_dict()) == names


def test_alike_regions_share_one_graph_and_the_whole_is_more_than_its_regions() -> None:
    """A region's graph has no `x * 3`, the whole model's has."""

    class Ops:
        def __init__(self) -> None:
            self.sizes: list[int] = []

        def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
            self.sizes.append(sum(node.op == "call_function" for node in graph.graph.nodes))
            return graph.forward

    sizes = {}
    for scope in ("regions", "whole"):
        torch._dynamo.reset()
        model, backend = build(), Ops()
        section = CompileSection.model_validate({"scope": scope})
        apply_compile(model, section, list(model.blocks), backend=backend)  # type: ignore[arg-type]
        run(model)
        sizes[scope] = backend.sizes
    assert sizes["regions"] == [4]
    assert sizes["whole"] == [3 * 4 + 1]


def test_off_compiles_nothing_and_is_no_error() -> None:
    proof = compiled(build(), scope="off")
    assert proof.graphs == 0
    require_compiled(CompileSection(), proof)


def test_a_switch_that_compiled_nothing_is_an_error() -> None:
    section = CompileSection(scope="regions")
    model = build()
    apply_compile(model, section, list(model.blocks), backend="aot_eager")
    with CompileMonitor() as monitor:
        run(nn.Sequential(nn.Linear(DIM, DIM)))
    with pytest.raises(ConfigError, match="scope is regions, but nothing was compiled"):
        require_compiled(section, monitor.proof())
    require_compiled(section, compiled(build(), scope="regions"))


def test_a_mode_that_recorded_no_cuda_graph_is_an_error() -> None:
    section = CompileSection(scope="whole", mode="reduce-overhead")
    assert records_cuda_graphs(section)
    assert not records_cuda_graphs(CompileSection(scope="whole"))
    proof = compiled(Products(), backend="inductor", scope="whole", mode="reduce-overhead")
    assert proof.graphs == 1
    with pytest.raises(ConfigError, match="but no CUDA graph was recorded"):
        require_compiled(section, proof)
    require_compiled(section, replace(proof, recorded_inputs=2))


def test_compiling_without_regions_is_an_error() -> None:
    with pytest.raises(ConfigError, match="names none"):
        apply_compile(build(), CompileSection(scope="regions"), [])


def test_graph_breaks_are_counted_with_their_reason() -> None:
    compiled(build(1, BrokenBlock), scope="regions")
    torch._dynamo.reset()
    proof = compiled(build(1, BrokenBlock), scope="regions")
    [(reason, count)] = proof.breaks.items()
    assert "graph_break()" in reason
    assert "\n" not in reason
    assert count == 1
    assert proof.graphs == 2


def test_recompiles_are_counted_with_their_reason() -> None:
    model = build(num_blocks=1)
    compiled(model, scope="regions")
    with CompileMonitor() as monitor:
        run(model, size=4)
        assert monitor.proof().recompiles == 0
        run(model, size=6)
    proof = monitor.proof()
    assert proof.recompiles == 1
    assert proof.graphs == 1
    assert any("size mismatch" in reason for reason in proof.recompile_reasons)


def test_what_was_compiled_before_or_after_does_not_count() -> None:
    compiled(build(2, BrokenBlock), scope="regions")
    with CompileMonitor() as monitor:
        pass
    before = monitor.proof()
    assert (before.graphs, before.breaks, before.recompile_reasons) == (0, {}, ())
    torch._dynamo.reset_code_caches()
    compiled(build(), scope="regions")
    after = monitor.proof()
    assert after.compile_s == before.compile_s


def test_many_different_regions_are_all_compiled() -> None:
    """By itself torch stops after eight and runs the others uncompiled without a word."""
    model = Model([Block(factor) for factor in range(10, 22)])
    proof = compiled(model, backend="eager", scope="regions")
    assert proof.graphs == 12
    assert proof.frames_left_eager == 0


def test_a_region_left_uncompiled_is_seen() -> None:
    model = Model([Block(factor) for factor in range(10, 22)])
    apply_compile(model, CompileSection(scope="regions"), list(model.blocks), backend="eager")
    torch._dynamo.config.recompile_limit = 8
    with CompileMonitor() as monitor:
        run(model)
    assert monitor.proof().graphs == 8
    assert monitor.proof().frames_left_eager == 1


@pytest.mark.parametrize("scope", ["regions", "whole"])
def test_the_mode_reaches_the_compiler(scope: str) -> None:
    class Witness(Block):
        def compile(self, **settings: Any) -> None:
            seen.append(settings)

    class WitnessModel(Model):
        def compile(self, **settings: Any) -> None:
            seen.append(settings)

    seen: list[dict[str, Any]] = []
    model = WitnessModel([Witness(), Witness()])
    section = CompileSection.model_validate({"scope": scope, "mode": "max-autotune"})
    apply_compile(model, section, list(model.blocks))
    assert len(seen) == (2 if scope == "regions" else 1)
    for settings in seen:
        assert "mode" not in settings  # torch refuses both
        assert settings["options"].items() >= list_mode_options("max-autotune").items()


def test_neither_forward_nor_backward_is_compiled_with_padded_strides() -> None:
    seen: list[tuple[bool, bool]] = []

    def look(_graph: object) -> None:
        seen.append((compiler.comprehensive_padding, compiler.disable_padding_cpu))

    # Else a compiler for CPUs never pads, whatever it is told.
    with compiler.patch(disable_padding_cpu=False, post_grad_custom_post_pass=look):
        compiled(Products(), backend="inductor", scope="whole")
    assert seen == [(False, False)] * 2


@pytest.mark.parametrize(
    ("scope", "policy"),
    [
        ("regions", "selective"),
        ("whole", "full"),
        pytest.param("regions", "full", marks=pytest.mark.slow),
        pytest.param("whole", "selective", marks=pytest.mark.slow),
    ],
)
def test_recompute_goes_together_with_compiling(scope: str, policy: Any) -> None:
    plain, model = build(), build()
    inputs = torch.ones(64, DIM)
    held = saved_bytes(lambda: plain(inputs), ignoring=[inputs, *plain.parameters()])
    run(plain)
    expected = [param.grad for param in plain.parameters()]
    apply_recompute(model, policy, units=list(model.blocks))
    proof = compiled(model, scope=scope)
    assert proof.graphs >= 1
    assert proof.breaks == {}
    torch.testing.assert_close([param.grad for param in model.parameters()], expected)
    kept = saved_bytes(lambda: model(inputs), ignoring=[inputs, *model.parameters()])
    assert kept < held


@pytest.mark.parametrize("policy", ["full", "selective"])
@pytest.mark.parametrize("scope", ["regions", "whole"])
def test_a_clock_cuts_no_compiled_recompute(scope: str, policy: Any) -> None:
    """Nor does it see it: the compiler has made it one with backward."""
    proofs, sink = [], ListSink()
    for clock in (None, Clock(sink)):
        torch._dynamo.reset()
        model = build()
        apply_recompute(model, policy, units=list(model.blocks))
        with timed_step(clock):
            proofs.append(compiled(model, scope=scope))
    plain, timed = proofs
    assert (timed.graphs, timed.breaks, timed.frames_left_eager) == (plain.graphs, {}, 0)
    [step] = sink.steps
    assert [span.path for span in step.host_us] == [("backward",)]


def test_a_clock_sees_what_is_recomputed_around_compiled_regions() -> None:
    sink = ListSink()
    model = build()
    outer = Model([nn.Sequential(*model.blocks)])
    apply_recompute(outer, ("blocks.0",))
    apply_compile(outer, CompileSection(scope="regions"), list(model.blocks), backend="aot_eager")
    with timed_step(Clock(sink)), CompileMonitor() as monitor:
        run(outer)
    assert (monitor.proof().breaks, monitor.proof().frames_left_eager) == ({}, 0)
    [step] = sink.steps
    assert ("backward", "recompute") in [span.path for span in step.host_us]


@contextmanager
def timed_step(clock: Clock | None) -> Iterator[None]:
    if clock is None:
        yield
        return
    with part_spans({}, clock):
        clock.begin_step()
        with clock.span("backward"):
            yield
        clock.close()


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["regions", "whole"])
def test_the_real_compiler_gives_the_same_numbers(scope: str) -> None:
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("no C++ compiler (g++ or clang++) here: real compiling on a CPU is not tested")
    model = build()
    expected = run(model)
    proof = compiled(model, backend="inductor", scope=scope)
    assert proof.graphs == 1
    assert proof.breaks == {}
    torch.testing.assert_close(run(model), expected)
