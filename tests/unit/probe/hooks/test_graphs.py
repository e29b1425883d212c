"""CUDA graphs of the script's own, with a stand-in that records what is called meanwhile."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from pitstop_probe.hooks.graphs import Graphs
from pitstop_probe.hooks.torch_hooks import Optimizers, hook_functions
from pitstop_probe.steps.step_tracker import StepTracker
from tests.fakes import ListSink

torch.set_num_threads(1)


class FakeGraph:
    """A graph that holds nothing and plays nothing back."""

    replays = 0

    def capture_begin(self, pool: object = None) -> None:
        del pool

    def capture_end(self) -> None:
        pass

    def replay(self) -> None:
        FakeGraph.replays += 1


class Device:
    """A device's time line that must not be asked for anything while a graph is recorded."""

    same_point_us, span_marks_every = 0, 1

    def __init__(self) -> None:
        self.is_recording = False

    def mark(self) -> object:
        assert not self.is_recording
        return object()

    def passed(self, mark: object) -> bool:
        del mark
        return True

    def elapsed_us(self, start: object, end: object) -> int | None:
        del start, end
        return None

    def release(self, marks: list[object]) -> None:
        pass


class Script:
    """A model, its optimizer, and graphs to record them into."""

    def __init__(self, tracker: StepTracker) -> None:
        self.tracker = tracker
        self.model = nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.device = Device()

    def gradients(self) -> None:
        self.model(torch.ones(2, 4)).sum().backward()

    def step(self) -> None:
        self.gradients()
        self.optimizer.step()

    def recorded(self, *calls: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        self.device.is_recording = True
        self.tracker.is_capturing = lambda: True
        graph.capture_begin()
        for call in calls:
            call()
        graph.capture_end()
        self.device.is_recording = False
        self.tracker.is_capturing = lambda: False
        return graph


@pytest.fixture
def sink() -> ListSink:
    return ListSink()


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, sink: ListSink) -> Iterator[Script]:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    tracker = StepTracker(sink)
    patches = [*hook_functions(tracker, torch), *Optimizers(tracker, torch).patches]
    patches += Graphs(tracker, torch).patches
    yield Script(tracker)
    for patch in reversed(patches):
        patch.off()


def test_a_replay_of_an_update_is_a_step_and_recording_it_is_none(
    script: Script, sink: ListSink
) -> None:
    for _ in range(3):
        script.step()
    script.tracker.use_device(script.device)
    graph = script.recorded(script.step)
    assert script.tracker.steps == 2
    before = FakeGraph.replays
    for _ in range(400):
        graph.replay()
    assert FakeGraph.replays == before + 400
    assert script.tracker.steps == 402
    script.tracker.close()
    assert {step.samples for step in sink.steps if step.index > 2} == {None}


def test_no_loss_is_taken_from_a_graph_that_is_recorded(script: Script) -> None:
    script.step()
    script.recorded(script.gradients)
    assert script.tracker.loss is None
    assert not script.tracker.wants_loss
    script.tracker.wants_loss = True
    script.recorded(script.step)
    assert script.tracker.loss is None
    assert script.tracker.wants_loss


def test_gradients_alone_are_for_the_optimizer_outside(script: Script) -> None:
    graph = script.recorded(script.gradients)
    for _ in range(30):
        graph.replay()
        graph.replay()
        script.optimizer.step()
    assert script.tracker.steps == 29


def test_where_nothing_else_updates_every_replay_of_gradients_is_a_step(script: Script) -> None:
    graph = script.recorded(script.gradients)
    for _ in range(30):
        graph.replay()
    assert script.tracker.steps == 30 - 10 - 1


def test_a_graph_without_gradients_is_no_step(script: Script) -> None:
    graph = script.recorded(lambda: None)
    for _ in range(30):
        graph.replay()
    assert script.tracker.steps == 0


def test_a_border_is_not_passed_by_while_recording_in_steps_that_are_not_sampled(
    script: Script,
) -> None:
    for _ in range(200):
        script.step()
    steps = script.tracker.steps
    script.recorded(script.step)
    assert script.tracker.steps == steps
