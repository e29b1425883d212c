"""Steps on a GPU that is not there, each in a process of its own."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from pitstop.errors import PitstopError
from pitstop.plan import child_process
from pitstop.plan.dry_run import no_gpu
from pitstop.plan.dry_run.request import Answers, Request, Requests, trace_all, trace_in_child
from pitstop.records.plans.plan import StepTrace
from pitstop.records.store import from_json, write_json
from tests.fork_server.client import run_python
from tests.interpreted import needs_triton

ROOT = Path(__file__).parents[3]
MIB = 2**20

SCRIPT = """
import torch
from torch import nn


def build():
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    return model, torch.zeros(16, 64)


class Chooses(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1024, 1024)

    def forward(self, x):
        y = self.linear(x)
        return y[y.sum(dim=1) > -1e9]


def chooses():
    return Chooses(), torch.zeros(4, 1024)


class Judges(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(64, 8)
        self.frozen = [nn.Linear(8, 8).requires_grad_(False)]

    def forward(self, x):
        return self.judged(self.net(x)) + self.judged(self.net(2 * x))

    def judged(self, y):
        return self.frozen[0].to(y.device)(y).square()


def judges():
    return Judges(), torch.zeros(4, 64)


class Spreads(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.register_buffer("edges", torch.eye(64).to_sparse())

    def forward(self, x):
        return (self.edges @ self.linear(x).T).T


def spreads():
    return Spreads(), torch.zeros(4, 64)


def tied():
    model = nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 1000, bias=False))
    model[1].weight = model[0].weight
    return model, torch.zeros(16, dtype=torch.int64)


class Grouped(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 8 * 16)

    def forward(self, x):
        heads = self.linear(x).unflatten(-1, (8, 16)).transpose(1, 2)
        query, key, value = heads.split((4, 2, 2), dim=1)
        attend = nn.functional.scaled_dot_product_attention
        return attend(query, key, value, enable_gqa=True)


def grouped():
    return Grouped(), torch.zeros(2, 32, 64)


class Fused(nn.Module):
    def __init__(self, channels, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        sizes = ((channels, hidden), (channels, hidden), (hidden, channels))
        self.layers = nn.ModuleList(nn.Linear(*size) for size in sizes)

    def forward(self, x):
        from pitstop.kernels.block import Layer, Norm, dispatch

        norm = Norm(self.norm.weight, self.norm.bias, self.norm.eps)
        layers = [Layer(each.weight, each.bias) for each in self.layers]
        return dispatch("auto").feed_forward_add(x, norm, layers, None)


def fused():
    return Fused(96, 192), torch.zeros(1, 6, 64, 64, 96, requires_grad=True)


class Again(nn.Module):
    def __init__(self, way, depth=3):
        super().__init__()
        sizes = ((8, 32), (32, 8))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(*sizes[0]), nn.ReLU(), nn.Linear(*sizes[1]))
            for _ in range(depth)
        )
        self.way = way

    def forward(self, x):
        from functools import partial

        from torch.utils.checkpoint import checkpoint

        call = partial(checkpoint, use_reentrant=self.way == "reentrant")
        if self.way == "nested":
            return call(self.run, x, call)
        return self.run(x, (lambda fn, x: fn(x)) if self.way == "none" else call)

    def run(self, x, call):
        for block in self.blocks:
            x = call(block, x)
        return x


def kept():
    return Again("none"), torch.zeros(4, 8, requires_grad=True)


def again():
    return Again("each"), torch.zeros(4, 8, requires_grad=True)


def reentrant():
    return Again("reentrant"), torch.zeros(4, 8, requires_grad=True)


def nested():
    return Again("nested"), torch.zeros(4, 8, requires_grad=True)


def nothing():
    return None


def ends_itself():
    import os
    import signal

    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of the fork server: each would import torch for longer than it runs."""

    @contextmanager
    def child(command: list[str]) -> Iterator[SimpleNamespace]:
        done = run_python(*command[1:])
        yield SimpleNamespace(
            communicate=lambda **_: (done.stdout, done.stderr), returncode=done.returncode
        )

    monkeypatch.setattr(child_process, "_child", child)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "planned_net.py").write_text(SCRIPT)
    return tmp_path


def rounded(size: int) -> int:
    return -(-size // 512) * 512


def test_a_small_network_is_counted_to_the_byte(folder: Path) -> None:
    request = Request(build="planned_net:build", folder=str(folder), batch_size=1024)
    trace = trace_in_child(request).require()
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    weights = sum(rounded(parameter.nbytes) for parameter in model.parameters())
    assert trace.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert trace.owners["parameters"] == weights
    # Two averages of each weight; the counter of steps takes a block of its own.
    assert trace.owners["optimizer state"] == 2 * weights + 4 * 512
    assert trace.owners["batch"] == 1024 * 64 * 4
    # Backward needs what ReLU gave and nothing else: what went in belongs to the batch.
    assert trace.saved_bytes == pytest.approx(1024 * 256 * 4, abs=8 * 512)
    assert trace.peak_bytes == sum(trace.owners.values())
    assert trace.reserved_bytes >= trace.peak_bytes
    products = sum(one.flops * one.count for one in trace.operations)
    # Forward, and backward to weights; the first layer's input needs no gradient.
    assert products == 2 * 1024 * (64 * 256 * 2 + 256 * 8 * 3)


def test_tables_of_methods_are_copied_whole() -> None:
    # A base class and what it adds: at most so many entries, with two for how each is let go of.
    include = Path(torch.__file__).parent / "include"
    hooks = include / "ATen" / "detail"
    of_hooks = [hooks / "CUDAHooksInterface.h", hooks / "AcceleratorHooksInterface.h"]
    of_guards = [include / "c10/core/impl/DeviceGuardImplInterface.h"]
    method = re.compile(r"^\s*virtual ", re.MULTILINE)
    for headers in (of_hooks, of_guards):
        virtual = sum(len(method.findall(header.read_text())) for header in headers)
        assert 20 < virtual + 2 <= no_gpu.METHODS


def test_what_needs_numbers_is_named_and_run_for_real(folder: Path) -> None:
    request = Request(build="planned_net:chooses", folder=str(folder), batch_size=512)
    trace = trace_in_child(request).require()
    assert "aten.nonzero.default cannot be planned" in trace.notes[0]
    assert "real steps of 1 and 2 samples" in trace.notes[0]
    assert trace.batch_size == 512
    # Two results of 1024 numbers a sample at least, of which backward needs none but the choice.
    assert trace.peak_bytes > trace.fixed_bytes + 512 * 1024 * 4


def test_a_model_with_sparse_tensors_is_run_for_real(folder: Path) -> None:
    trace = trace_in_child(Request(build="planned_net:spreads", folder=str(folder))).require()
    # A build of torch with CUDA does not name the operation: it asks for a driver in it.
    assert re.match("(aten::empty_strided|an operation) cannot be planned: it", trace.notes[0])
    assert "real steps of 1 and 2 samples" in trace.notes[0]
    assert trace.parameters == 64 * 64 + 64


def test_a_network_may_be_sent_to_its_device_again_and_again(folder: Path) -> None:
    """As a frozen feature network does that judges several micro-batches of one step."""
    trace = trace_in_child(Request(build="planned_net:judges", folder=str(folder))).require()
    assert trace.parameters == 64 * 8 + 8


def test_weights_that_two_modules_share_are_there_once(folder: Path) -> None:
    trace = trace_in_child(Request(build="planned_net:tied", folder=str(folder))).require()
    assert trace.parameters == 1000 * 64
    assert trace.owners["parameters"] == rounded(1000 * 64 * 4)
    assert trace.gradient_bytes == 1000 * 64 * 4


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_heads_may_share_keys(folder: Path, precision: str) -> None:
    request = Request(build="planned_net:grouped", folder=str(folder), precision=precision)
    trace = trace_in_child(request).require()
    assert trace.parameters == 64 * 128 + 128


@needs_triton
def test_buffers_inside_a_fused_kernel_are_counted(folder: Path) -> None:
    request = Request(build="planned_net:fused", folder=str(folder), precision="bf16")
    trace = trace_in_child(request).require()
    assert trace.peak_operation == "feed_forward_add_backward"
    # As kernels/block.py takes them, in bf16: the gradient of the branch, of both hidden layers,
    # and of what was normed; what was normed and what was gated with eight columns for the bias.
    tokens, channels, hidden = 6 * 64 * 64, 96, 192
    inside = 2 * tokens * (2 * channels + 2 * hidden + (channels + 8) + (hidden + 8))
    # The gradients of the result and of the stream, in fp32; sums of the norm's take the rest.
    stream = 4 * tokens * channels
    assert trace.owners["temporary"] == pytest.approx(inside + 2 * stream, abs=2 * MIB)


@needs_triton
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_a_fused_kernel_may_ask_how_large_the_gpu_s_shared_memory_is(
    folder: Path, precision: str
) -> None:
    request = Request(build="planned_net:fused", folder=str(folder), precision=precision)
    trace = trace_in_child(request).require()
    assert "feed_forward_add_backward" in trace.fused_operations
    assert trace.notes == ()


@pytest.mark.parametrize(
    ("way", "run_again"),
    [
        ("kept", 0),
        # Of a block the first product and ReLU: all that backward needs is there before the second.
        ("again", 3 * 2),
        # Torch's older way does not stop there.
        ("reentrant", 3 * 3),
        # The outer one runs two blocks whole and stops where the third is called; each block then
        # runs again for itself.
        ("nested", 2 * 3 + 3 * 2),
    ],
)
def test_operations_that_run_again_are_counted(folder: Path, way: str, run_again: int) -> None:
    kept, trace = (
        answer.require()
        for answer in trace_all(
            [Request(build=f"planned_net:{name}", folder=str(folder)) for name in ("kept", way)]
        )
    )
    assert trace.recomputed_operations == run_again
    assert operations_in(trace) - operations_in(kept) == run_again


def operations_in(trace: StepTrace) -> int:
    return sum(one.count for one in trace.operations)


def test_a_function_that_gives_no_model_is_refused(folder: Path) -> None:
    answer = trace_in_child(Request(build="planned_net:nothing", folder=str(folder)))
    with pytest.raises(PitstopError, match=r"nothing\(\) gave NoneType; it is to give"):
        answer.require()
    missing = trace_in_child(Request(build="planned_net:other", folder=str(folder)))
    with pytest.raises(PitstopError, match="there is no function other in planned_net"):
        missing.require()


def trace_of(config: str, *overrides: str) -> StepTrace:
    return trace_of_all((config, overrides))[0]


def trace_of_all(*asked: tuple[str, tuple[str, ...]]) -> list[StepTrace]:
    requests = [
        Request(config=str(ROOT / "configs" / config), overrides=overrides)
        for config, overrides in asked
    ]
    return [answer.require() for answer in trace_all(requests)]


@pytest.mark.slow
def test_an_optimizer_that_draws_on_the_device_is_traced() -> None:
    trace = trace_of("reid/demo.yaml", "optimizer.kind=adamw_bf16")
    state = trace.owners["optimizer state"]
    # Two averages of two bytes beside weights of four; and a counter for each of them.
    assert trace.owners["parameters"] <= state < 1.05 * trace.owners["parameters"]


@pytest.mark.slow
def test_recomputation_keeps_less_and_computes_more() -> None:
    demo = ("data.crop=64", "train.precision=bf16")
    kept, selective, again = trace_of_all(
        ("deblur/demo.yaml", (*demo, "train.recompute=none")),
        ("deblur/demo.yaml", (*demo, "train.recompute=selective")),
        ("deblur/demo.yaml", (*demo, "train.recompute=full")),
    )
    assert again.saved_bytes < selective.saved_bytes < 0.7 * kept.saved_bytes
    assert 0 < selective.recomputed_operations < again.recomputed_operations
    assert operations_in(again) - operations_in(kept) == again.recomputed_operations > 0
    assert {"attend_volume", "deform_conv", "gate"} <= set(kept.fused_operations)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["attention", "ffn"])
def test_what_a_policy_runs_again_is_what_it_adds(policy: str) -> None:
    demo = ("data.crop=64", "train.precision=bf16")
    kept, again, thrice = trace_of_all(
        ("deblur/demo.yaml", (*demo, "train.recompute=none")),
        ("deblur/demo.yaml", (*demo, f"train.recompute={policy}")),
        ("deblur/demo.yaml", (*demo, f"train.recompute={policy}", "train.accumulate=3")),
    )
    assert kept.recomputed_operations == 0
    assert operations_in(again) - operations_in(kept) == again.recomputed_operations > 0
    # Of one micro-batch, whatever the number of them.
    assert thrice.recomputed_operations == again.recomputed_operations


@pytest.mark.slow
def test_activations_grow_with_the_batch_and_weights_do_not() -> None:
    four, eight = trace_of_all(
        ("reid/demo.yaml", ("train.batch_size=16",)),
        ("reid/demo.yaml", ("train.batch_size=32",)),
    )
    assert four.fixed_bytes == eight.fixed_bytes
    assert eight.saved_bytes == pytest.approx(2 * four.saved_bytes, rel=0.1)


@pytest.mark.slow
def test_with_accumulation_gradients_are_there_while_activations_are_made() -> None:
    once, thrice = trace_of_all(
        ("reid/demo.yaml", ("train.accumulate=1",)), ("reid/demo.yaml", ("train.accumulate=3",))
    )
    assert thrice.owners["gradients"] >= thrice.gradient_bytes > once.owners.get("gradients", 0)
    assert thrice.peak_bytes > once.peak_bytes
    # One micro-batch is run, whatever the number of them.
    assert sum(one.flops * one.count for one in thrice.operations) == sum(
        one.flops * one.count for one in once.operations
    )


LONG_WAY_CHILD = """
from pitstop.plan.dry_run import child, short_ways

short_ways.ShortWays.run = lambda self, func, args, kwargs, long_way: long_way()
child.main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "overrides"),
    [
        ("deblur/demo.yaml", ("data.crop=64", "train.recompute=full", "train.precision=bf16")),
        ("bev/demo.yaml", ()),
        ("reid/demo.yaml", ("model.kernels=reference",)),
    ],
)
def test_short_ways_change_nothing_in_a_trace(
    tmp_path: Path, config: str, overrides: tuple[str, ...]
) -> None:
    """By torch's own way alone, each in a process of its own; together in forks of one."""
    base = Request(config=str(ROOT / "configs" / config), overrides=overrides)
    requests = [base, replace(base, part="evaluation")]
    script = tmp_path / "long_way_child.py"
    script.write_text(LONG_WAY_CHILD)
    expected = []
    for request in requests:
        asked, answered = tmp_path / "asked.json", tmp_path / "answered.json"
        write_json(Requests(requests=(request,)), asked)
        run_python(str(script), str(asked), str(answered))
        expected += from_json(answered.read_text(), Answers).answers
        answered.unlink()
    assert expected[0].require().peak_bytes > 0
    assert trace_all(requests) == expected


def test_a_dry_run_that_ends_its_process_ends_no_other(folder: Path) -> None:
    builds = ("build", "ends_itself", "nothing", "tied")
    requests = [Request(build=f"planned_net:{name}", folder=str(folder)) for name in builds]
    built, ended, nothing, tied = trace_all(requests)
    assert built == trace_in_child(requests[0])
    assert tied.require().peak_bytes > 0
    assert ended.error == (
        "the dry run was ended by SIGKILL, as where memory runs out: it said nothing"
    )
    assert "(model, batch)" in (nothing.error or "")


PREPARED = """
import gc, sys
from pitstop.plan.dry_run.child import prepare_forks
from pitstop.plan.dry_run.request import Request
assert "transformers" not in sys.modules
gc.unfreeze()  # what the fork server froze
prepare_forks(Request(config=sys.argv[1]))
print("transformers" in sys.modules, gc.get_freeze_count() > len(sys.modules))
"""


def test_what_forks_need_is_imported_once_before_them(tmp_path: Path) -> None:
    script = tmp_path / "prepares.py"
    script.write_text(PREPARED)
    said = run_python(str(script), str(ROOT / "configs" / "bev" / "demo.yaml"))
    assert said.stdout.split() == ["True", "True"]


def test_a_model_that_cannot_be_built_leaves_the_others_their_answers(tmp_path: Path) -> None:
    demo = str(ROOT / "configs" / "deblur" / "demo.yaml")
    missing = Request(config=str(tmp_path / "none.yaml"))
    none, built = trace_all([missing, Request(config=demo)])
    assert "none.yaml" in (none.error or "")
    assert built.require().peak_bytes > 0


@pytest.mark.slow
def test_every_workload_can_be_planned_without_its_data() -> None:
    for trace in trace_of_all(
        ("bev/demo.yaml", ()), ("deblur/demo.yaml", ()), ("reid/demo.yaml", ())
    ):
        assert trace.owners["activations"] > 0
        assert trace.owners["optimizer state"] >= 2 * trace.owners["parameters"]
        assert any("dataset is not here" in note for note in trace.notes)


@pytest.mark.slow
def test_the_account_of_a_real_step_agrees_with_that_on_shapes(folder: Path) -> None:
    """Independent of faking: the same network, really run on the processor."""
    import sys

    from pitstop.plan.dry_run.user_model import trace_on_processor

    sys.path.insert(0, str(folder))
    try:
        request = Request(build="planned_net:build", folder=str(folder), batch_size=1024)
        real = trace_on_processor(request, 1024)
    finally:
        sys.path.remove(str(folder))
    fake = trace_in_child(request).require()
    assert real.saved_bytes == fake.saved_bytes
    assert real.owners["parameters"] == fake.owners["parameters"]
    # On the processor the batch is where it is needed already, so nothing is copied.
    assert real.peak_bytes + fake.owners["batch"] == fake.peak_bytes
