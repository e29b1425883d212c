"""Rules on optimizer, loss, recomputation and torch.compile."""

import inspect
from dataclasses import replace

import numpy as np
import pytest

from pitstop.doctor.examine import examine
from pitstop.doctor.rules.compute import (
    graph_breaks,
    loss_bound,
    optimizer_bound,
    recompilation,
    recompute_cost,
)
from pitstop.doctor.rules.remedies import TAKE_FOREACH, TAKE_FUSED
from pitstop.records.host.memory import DeviceMemory
from pitstop.records.script import Modules, ModuleTime
from tests.unit.doctor.records import (
    COMPILED,
    GIB,
    KERNELS,
    ON_CPU,
    OWNERS,
    SETUP,
    facts,
    memory,
    rank,
    run_of,
)

STEP = {"data": 100, "forward": 2_900, "backward": 4_000, "optimizer": 2_000}


def test_the_update_is_optimizer_clip_and_zeroing_together() -> None:
    found = optimizer_bound(facts(STEP | {"clip": 700, "zero_grad": 300}, readings=[ON_CPU]))
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(3_000 / 10_000)
    assert "updated by AdamW(foreach)" in found.evidence
    assert "fused=True" in found.remedy[0]
    assert optimizer_bound(facts(STEP, readings=[ON_CPU])) is None


def test_a_long_zero_grad_in_one_step_makes_no_optimizer_bound() -> None:
    """The error is that of all three parts together, not of the optimizer's own step alone."""
    zeroing = np.full(100, 100.0)
    zeroing[50] = 400_000
    assert optimizer_bound(facts(STEP | {"zero_grad": zeroing}, readings=[ON_CPU])) is None


def test_a_fused_update_is_mentioned_and_not_blamed() -> None:
    fused = replace(ON_CPU, optimizers=("AdamW(fused)",))
    found = optimizer_bound(facts(STEP | {"optimizer": 9_000}, readings=[fused]))
    assert found is not None
    assert found.severity == "info"
    ours = {"optimizer.kind": {"fused": True}}
    found = optimizer_bound(facts(STEP | {"optimizer": 9_000}, applied=ours))
    assert found is not None
    assert found.severity == "info"
    assert "optimizer.fused" in found.remedy[0]


@pytest.mark.parametrize(
    ("kinds", "advice"),
    [
        (("SGD(for-loop)",), ["torch.optim.SGD(..., fused=True)"]),
        (("RMSprop(for-loop)",), ["torch.optim.RMSprop(..., foreach=True)"]),
        (("RMSprop(foreach)",), []),
        (("LBFGS(for-loop)",), ["torch.optim.LBFGS(..., history_size=10)"]),
        (("Muon(for-loop)", "Lion(for-loop)", "AdamW(fused)"), []),
        (("Adam(foreach)", "Adam(foreach)", "Lion(x)"), ["torch.optim.Adam(..., fused=True)"]),
        ((), ["torch.optim.AdamW(..., fused=True)"]),
    ],
)
def test_the_advice_fits_the_optimizers(kinds: tuple[str, ...], advice: list[str]) -> None:
    setup = replace(ON_CPU, optimizers=kinds)
    found = optimizer_bound(facts(STEP | {"optimizer": 9_000}, readings=[setup]))
    assert found is not None
    named = [line.rpartition(": ")[2] for line in found.remedy if "torch.optim" in line]
    assert named == advice
    assert "update less often" in " ".join(found.remedy)


def test_torchs_optimizers_take_what_is_advised() -> None:
    import torch

    for name in TAKE_FUSED:
        assert "fused" in inspect.signature(getattr(torch.optim, name)).parameters
    for name in TAKE_FOREACH:
        assert "foreach" in inspect.signature(getattr(torch.optim, name)).parameters
    assert "history_size" in inspect.signature(torch.optim.LBFGS).parameters


def test_on_a_gpu_the_update_costs_its_time_on_the_device() -> None:
    host_only = STEP | {"optimizer": 9_000}
    device = {"forward": 6_000, "backward": 9_000, "optimizer": 1_000}
    assert optimizer_bound(facts(host_only, device=device)) is None
    slow = facts(STEP, device={"forward": 2_000, "backward": 3_000, "optimizer": 4_000})
    found = optimizer_bound(slow)
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(4_000 / 9_000)
    assert optimizer_bound(facts(host_only, readings=[SETUP, KERNELS])) is None


def test_a_loss_of_a_third_is_more_than_a_loss() -> None:
    parts = STEP | {"loss": 4_500, ("loss", "vgg"): 4_000}
    found = loss_bound(facts(parts, readings=[ON_CPU]))
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(4_500 / 13_500)
    assert any("most of it in vgg" in line for line in found.evidence)
    assert loss_bound(facts(STEP | {"loss": 4_400}, readings=[ON_CPU])) is None


def modules_that_take(forward_us: int, backward_us: int) -> Modules:
    """One module of the model, in a step of 1 ms forward and 5 ms backward."""
    one = ModuleTime(name="0", kind="Conv2d", forward_us=forward_us, backward_us=backward_us)
    return Modules(step=6, modules=(one,), forward_us=1_000, backward_us=5_000)


def test_a_loop_in_the_loss_costs_its_backward_pass_too() -> None:
    parts = {"forward": 800, "loss": 2_700, "backward": 5_300, "optimizer": 1_200}
    found = loss_bound(facts(parts, readings=[ON_CPU, modules_that_take(810, 80)]))
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(0.27 + 0.53 * (1 - 80 / 5_000))
    assert "its backward pass 52.2%: what no module of the model took of backward" in found.evidence


@pytest.mark.parametrize(
    ("forward_us", "backward_us"),
    [(810, 3_000), (300, 80)],
    ids=["modules take most of backward", "much of forward lies in no module"],
)
def test_a_backward_pass_that_may_be_the_models_is_not_the_losss(
    forward_us: int, backward_us: int
) -> None:
    parts = {"forward": 800, "loss": 2_700, "backward": 5_300, "optimizer": 1_200}
    readings = [ON_CPU, modules_that_take(forward_us, backward_us)]
    assert loss_bound(facts(parts, readings=readings)) is None


def test_recomputation_is_cut_out_of_backward() -> None:
    parts = STEP | {("backward", "recompute"): 1_800}
    found = recompute_cost(facts(parts, readings=[ON_CPU]))
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(1_800 / 9_000)
    assert found.severity == "warning"
    assert recompute_cost(facts(STEP, readings=[ON_CPU])) is None


def test_recomputing_to_fit_is_no_fault() -> None:
    parts = STEP | {("backward", "recompute"): 1_800}
    full = replace(OWNERS, peak_bytes=75 * GIB)
    found = recompute_cost(facts(parts, readings=[SETUP, full]))
    assert found is not None
    assert found.severity == "info"


def test_a_stage_that_runs_again_in_backward_is_recomputed() -> None:
    parts = STEP | {("forward", "stage1"): 2_000, ("backward", "recompute stage1"): 1_800}
    found = recompute_cost(facts(parts, applied={"train.recompute": {"policy": "full"}}))
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(0.2)
    assert "train.recompute" in found.remedy[0]
    other = STEP | {("forward", "stage1"): 2_000, ("backward", "hooks"): 1_800}
    assert recompute_cost(facts(other)) is None


ENGINE = {"train.recompute": {"policy": "full"}}
DEEP = {
    ("forward", "stage1"): 2_000,
    ("backward", "stage1"): 3_000,
    ("backward", "stage1", "recompute"): 1_500,
    ("backward", "stage1", "recompute", "recompute stage1.inner"): 1_200,
    ("backward", "recompute"): 300,
}


def test_what_the_engine_recomputes_inside_its_parts_is_found_and_counted_once() -> None:
    verdict = examine(run_of(rank(STEP | DEEP, applied=ENGINE)))
    [found] = [finding for finding in verdict.findings if finding.code == "RECOMP001"]
    assert found.bound is not None
    assert found.bound.share == pytest.approx(1_800 / 9_000)
    assert found.severity == "warning"


def test_on_a_gpu_recomputing_costs_its_time_on_the_device() -> None:
    device = {"forward": 2_000, "backward": 5_000}
    marks = {path: 3 * us for path, us in DEEP.items() if path[0] == "backward"}
    half = {50: 90 * 9_000}
    slow = facts(STEP | DEEP, device=device | marks, applied=ENGINE, apart={"evaluation": half})
    found = recompute_cost(slow)
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(3 * 1_800 / 9_000 / 2)
    fast = {path: us / 3 for path, us in DEEP.items() if path[0] == "backward"}
    assert recompute_cost(facts(STEP | DEEP, device=device | fast, applied=ENGINE)) is None


def test_what_selective_recomputing_costs_beside_its_share_is_said() -> None:
    said = []
    for policy in ("full", "selective"):
        found = recompute_cost(facts(STEP | DEEP, applied={"train.recompute": {"policy": policy}}))
        assert found is not None
        said.append("not included" in " ".join(found.evidence))
    assert said == [False, True]


def test_on_a_gpu_without_marks_of_it_recomputing_is_not_judged() -> None:
    device = {"forward": 2_000, "backward": 5_000}
    assert recompute_cost(facts(STEP | DEEP, device=device, applied=ENGINE)) is None


@pytest.mark.parametrize(("peak_bytes", "severity"), [(9 * GIB, "warning"), (75 * GIB, "info")])
def test_the_engine_recomputing_to_fit_is_no_fault(peak_bytes: int, severity: str) -> None:
    held = DeviceMemory(
        device="cuda:0",
        total_bytes=80 * GIB,
        allocated_bytes=GIB,
        reserved_bytes=76 * GIB,
        peak_allocated_bytes=peak_bytes,
        peak_reserved_bytes=76 * GIB,
        alloc_retries=0,
        ooms=0,
    )
    reading = memory(0.0, GIB, GIB, devices=(held,))
    found = recompute_cost(facts(STEP | DEEP, applied=ENGINE, readings=[reading]))
    assert found is not None
    assert found.severity == severity


def test_the_engines_backward_pass_of_a_part_is_not_its_forward_pass_again() -> None:
    parts = STEP | {("forward", "stage1"): 2_000, ("backward", "stage1"): 1_800}
    workers = {"loader.workers": {"workers": 0}}
    assert recompute_cost(facts(parts, applied=workers)) is None
    # In a script such a name can only come from a part that is opened a second time.
    assert recompute_cost(facts(parts, readings=[ON_CPU])) is not None


def test_compiling_again_costs_the_time_it_took() -> None:
    again = replace(
        COMPILED,
        recompiles_after_warm_up=6,
        compile_after_warm_up_us=405_000,
        reasons=("size of x at 0: 4 expected, 3 seen",),
    )
    compiles = dict.fromkeys(range(20, 80, 10), 67_500)
    found = recompilation(facts(STEP, readings=[ON_CPU, again], apart={"compile": compiles}))
    assert found is not None
    assert found.bound is not None
    assert found.severity == "critical"
    assert found.bound.share == pytest.approx(405_000 / (90 * 9_000 + 405_000))
    assert "4 expected, 3 seen" in found.evidence[1]
    assert recompilation(facts(STEP, readings=[COMPILED])) is None
    cheap = replace(again, recompiles_after_warm_up=1, compile_after_warm_up_us=1_000)
    assert recompilation(facts(STEP, readings=[cheap])) is None


def test_compiling_apart_counts_once() -> None:
    again = replace(COMPILED, recompiles_after_warm_up=2, compile_after_warm_up_us=90_000)
    found = recompilation(facts(STEP, readings=[again], apart={"compile": {50: 90_000}}))
    assert found is not None
    assert found.bound is not None
    assert found.bound.share == pytest.approx(90_000 / (90 * 9_000 + 90_000))


@pytest.mark.parametrize("apart", [{"evaluation": {50: 400_000, 80: 9_000}}, {"compile": {50: 9}}])
def test_compiling_for_one_evaluation_or_one_step_is_no_series(
    apart: dict[str, dict[int, int]],
) -> None:
    again = replace(COMPILED, recompiles_after_warm_up=3, compile_after_warm_up_us=390_000)
    found = recompilation(facts(STEP, readings=[again], apart=apart))
    assert found is not None
    assert found.severity == "info"
    without_times = replace(again, compile_after_warm_up_us=0)
    found = recompilation(facts(STEP, readings=[without_times]))
    assert found is not None
    assert found.severity == "warning"


def test_the_first_call_of_a_new_graph_belongs_to_compiling() -> None:
    compiles = dict.fromkeys(range(16, 100, 8), 50_000)
    again = replace(COMPILED, recompiles_after_warm_up=11, compile_after_warm_up_us=11 * 50_000)
    forward = np.full(100, 2_900.0)
    forward[list(compiles)] += 5_000
    run = facts(STEP | {"forward": forward}, readings=[ON_CPU, again], apart={"compile": compiles})
    found = recompilation(run)
    assert found is not None
    assert found.bound is not None
    spent = 11 * 55_000
    assert found.bound.share == pytest.approx(spent / (spent + 90 * 9_000))
    assert "those with it take longer" in found.evidence[1]


@pytest.mark.parametrize(("breaks", "severity"), [(0, None), (1, "info"), (5, "warning")])
def test_a_model_cut_to_pieces_is_named(breaks: int, severity: str | None) -> None:
    cut = replace(COMPILED, graph_breaks=breaks, reasons=("call to print",))
    found = graph_breaks(facts(STEP, readings=[cut]))
    assert (None if found is None else (found.severity, found.bound)) == (
        None if severity is None else (severity, None)
    )


def test_breaks_that_our_engine_proved_are_named_too() -> None:
    proof = {"train.compile.scope": {"graphs": 9, "breaks": {"print": 3, "item": 1}}}
    found = graph_breaks(facts(STEP, applied=proof))
    assert found is not None
    assert found.evidence == ("4 breaks, 9 graphs", "print", "item")
    assert graph_breaks(facts(STEP)) is None


def test_the_healthy_verdict_names_the_costliest_part_of_the_model() -> None:
    modules = Modules(
        step=500,
        modules=(
            ModuleTime(name="head", kind="Linear", forward_us=1_000, backward_us=None),
            ModuleTime(name="body", kind="Swin", forward_us=3_000, backward_us=6_000),
        ),
    )
    verdict = examine(run_of(rank({"forward": 4_000, "backward": 6_000}, readings=[modules])))
    assert verdict.message.endswith("backward (60.0%), mostly body (Swin) 90.0%")
