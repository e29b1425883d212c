"""Plans of models as their authors hand them over: files, failures, and steps that need numbers."""

import pytest

from pitstop.plan.dry_run.request import Answer, Request, trace_all, trace_in_child
from pitstop.records.plans.plan import OperationRow, StepTrace

SCRIPT = """
import torch
from torch import nn


class Chooses(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(256, 256)

    def forward(self, x):
        y = self.linear(x)
        return y[y.sum(dim=1) > -1e9]


def chooses():
    return Chooses(), torch.zeros(8, 256)


class Normed(Chooses):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(256)

    def forward(self, x):
        return super().forward(self.norm(x))


def normed():
    return Normed(), torch.zeros(8, 256)


class Drawn(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.levels = [0.1, 0.2, 0.3]

    def forward(self, x):
        return self.linear(x) * self.levels[int(torch.rand(()) * len(self.levels))]


def drawn():
    return Drawn(), torch.zeros(2, 8)


class Fails(nn.Linear):
    def forward(self, x):
        raise TypeError("not here")


class OnHost(nn.Linear):
    def forward(self, x):
        if x.is_cuda:
            raise TypeError("no such kernel")
        return super().forward(x)


def fails():
    return Fails(8, 8), torch.zeros(2, 8)


def on_host():
    return OnHost(8, 8), torch.zeros(2, 8)


def capable():
    class Capable(nn.Linear):
        def forward(self, x):
            assert torch.cuda.get_device_capability(x.device) >= (8, 0)
            about = torch.cuda.get_device_properties(x.device)
            assert about.name and about.total_memory > 2**30 and about.L2_cache_size > 2**20
            return super().forward(x)

    return Capable(8, 8), torch.zeros(2, 8)


class Lists(nn.Module):  # of pictures of different sizes: no side is the batch
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, pictures):
        assert all(picture.shape[0] == 3 for picture in pictures)
        kept = [picture[:, picture.sum(dim=(0, 2)) > -1e9] for picture in pictures]
        return [self.conv(picture[None]).mean() for picture in kept]


def lists():
    return Lists(), ([torch.zeros(3, 16, 16), torch.zeros(3, 8, 32)],)


def mismatched():
    return nn.Sequential(nn.Linear(8, 4), nn.Linear(5, 2)), torch.zeros(2, 8)


def lost():
    raise FileNotFoundError("weights.pt")


class ChoosesThere(Chooses):
    def forward(self, x):
        at = torch.device("cuda:0")
        return super().forward(x.cuda() + torch.zeros(256, device=at)) + torch.ones(256).to("cuda")


def chooses_there():
    return ChoosesThere(), torch.zeros(8, 256)


class Both(Chooses):
    def forward(self, x):
        assert super().forward(x).shape[0] == 3
        return x


def both():
    return Both(), torch.zeros(8, 256)


def leaves():
    raise SystemExit(3)


def three():
    return nn.Linear(8, 8), torch.zeros(2, 8), 3


def frozen():
    return nn.Linear(8, 8).requires_grad_(False), torch.zeros(2, 8)


number = 3
"""
PARSES = """
import argparse
from net import drawn as build

argparse.ArgumentParser().parse_args()
"""
IMPORTS = "import no_such_package\n\n\ndef build():\n    return None\n"
BUILDS = (
    *("net:chooses", "net:normed", "net:drawn", "net:on_host", "net:capable"),
    *("net:mismatched", "net:lost", "net:number", "net:other", "imports:build", "nowhere:build"),
    *("net:chooses_there", "net:both"),
    *("net:leaves", "net:three", "net:frozen", "parses:build"),
    *("net.py:drawn", "./net.py:drawn", "sub/net.py:drawn", "net:fails", "net:lists"),
)


def line_of(text: str) -> int:
    return SCRIPT[: SCRIPT.index(text)].count("\n") + 1


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    folder = tmp_path_factory.mktemp("strangers")
    (folder / "sub").mkdir()
    for name in ("net.py", "sub/net.py"):
        (folder / name).write_text(SCRIPT)
    (folder / "imports.py").write_text(IMPORTS)
    (folder / "parses.py").write_text(PARSES)
    requests = [Request(build=build, folder=str(folder)) for build in BUILDS]
    requests += [Request(build="net:chooses", folder=str(folder), batch_size=n) for n in (1, 64)]
    names = (*BUILDS, "one", "many")
    found = dict(zip(names, trace_all(requests), strict=True))
    # A single request is answered in the child itself, which has a command line of its own.
    found["alone"] = trace_in_child(Request(build="parses:build", folder=str(folder)))
    return found


def error(answer: Answer) -> str:
    assert answer.error is not None
    return answer.error


def test_a_step_that_needs_numbers_is_planned_at_the_batch_as_built(
    answers: dict[str, Answer],
) -> None:
    trace = answers["net:chooses"].require()
    assert trace.batch_size == 8
    assert trace.peak_bytes > answers["one"].require().peak_bytes


def test_its_own_way_to_the_gpu_ends_on_the_processor(answers: dict[str, Answer]) -> None:
    plain, there = (answers[name].require() for name in ("net:chooses", "net:chooses_there"))
    assert there.parameters == plain.parameters
    assert there.saved_bytes >= plain.saved_bytes


def test_what_fails_both_ways_says_both_reasons(answers: dict[str, Answer]) -> None:
    said = error(answers["net:both"])
    assert "AssertionError (on the processor, since aten.nonzero.default cannot be planned" in said


def product(trace: StepTrace) -> OperationRow:
    (found,) = (row for row in trace.operations if row.part == "forward" and row.name == "addmm")
    return found


def test_its_operations_grow_with_the_batch_as_its_memory_does(answers: dict[str, Answer]) -> None:
    one, many = (answers[name].require() for name in ("one", "many"))
    assert product(many).flops == 64 * product(one).flops == 64 * 2 * 256 * 256
    assert sum(row.count for row in many.operations) == sum(row.count for row in one.operations)
    weights = 4 * (256 * 256 + 256)
    assert product(many).num_bytes == weights + 64 * 2 * 4 * 256


def test_a_norm_that_refuses_a_single_sample_gets_two(answers: dict[str, Answer]) -> None:
    trace = answers["net:normed"].require()
    assert trace.batch_size == 8
    assert "real steps of 2 and 3 samples" in trace.notes[0]


def test_a_batch_that_cannot_be_cut_is_run_as_built(answers: dict[str, Answer]) -> None:
    trace = answers["net:lists"].require()
    assert trace.parameters == 3 * 4 * 9 + 4
    assert "a real step of the batch as built" in trace.notes[0]


def test_a_number_that_is_drawn_stays_below_one(answers: dict[str, Answer]) -> None:
    assert answers["net:drawn"].require().parameters == 72


def test_what_fails_on_shapes_alone_is_run_on_the_processor(answers: dict[str, Answer]) -> None:
    trace = answers["net:on_host"].require()
    assert trace.batch_size == 2
    assert "worked out from real steps" in trace.notes[0]
    assert answers["net:capable"].require().notes == ()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        ("net:mismatched", r"a step of net:mismatched failed: RuntimeError: mat1 and mat2"),
        (
            "net:lost",
            f"net:lost failed at net.py:{line_of('weights.pt')}: FileNotFoundError: weights.pt",
        ),
        ("net:fails", f"net:fails failed at net.py:{line_of('not here')}: TypeError: not here"),
        ("net:leaves", f"net:leaves failed at net.py:{line_of('SystemExit')}: SystemExit: 3"),
        ("net:three", "three() gave a tuple of 3; it is to give (model, batch)"),
        ("net:frozen", "net:frozen gave a model of which no parameter wants a gradient"),
        ("net:number", "net:number is of type int, not a function"),
        ("net:other", "there is no function other in net"),
        ("imports:build", "imports failed at imports.py:1: ModuleNotFoundError: No module named"),
        ("nowhere:build", "there is no module nowhere"),
    ],
)
def test_a_failure_of_the_users_code_names_its_line(
    answers: dict[str, Answer], build: str, message: str
) -> None:
    assert message in error(answers[build])


def test_a_module_that_reads_its_command_line_is_given_an_empty_one(
    answers: dict[str, Answer],
) -> None:
    assert answers["parses:build"].require().parameters == 72
    assert answers["alone"].require().parameters == 72


@pytest.mark.parametrize("build", ["net.py:drawn", "./net.py:drawn", "sub/net.py:drawn"])
def test_a_module_may_be_named_by_its_file(answers: dict[str, Answer], build: str) -> None:
    assert answers[build].require().parameters == 72
