"""Recorded passes: one recording a shape, weights as they are now, and a plain way out."""

import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pitstop.config.load import config_from
from pitstop.config.sections import EvalSection
from pitstop.config.workloads.deblur import TilesSection
from pitstop.workloads.deblur import prediction, recorded
from pitstop.workloads.deblur.data.dataset import ClipBatch
from pitstop.workloads.deblur.prediction import WholeFrames
from pitstop.workloads.deblur.recorded import MOST_SHAPES, RecordedForward, Replay, Run
from pitstop.workloads.deblur.task import build_deblur
from tests.unit.workloads.deblur.tiny_vrt import TINY_VRT


class FakeRecorder:
    """Does what a CUDA graph does: nothing while it records, the same again at each replay."""

    device_type = "cpu"

    def __init__(self, *, fails: bool = False) -> None:
        self.recorded = 0
        self.replayed = 0
        self._fails = fails

    def record(self, run: Run, device: torch.device) -> Replay:
        assert device.type == self.device_type
        self.recorded += 1
        if self._fails:
            raise RuntimeError("operation not permitted when stream is capturing\nmore of it")
        assert not torch.is_inference_mode_enabled()
        output = torch.full_like(run(), torch.nan)

        def replay() -> None:
            self.replayed += 1
            with torch.inference_mode(mode=False), torch.no_grad():
                output.copy_(run())

        return Replay(output=output, run=replay)


class Scaling(nn.Module):
    """A parameter, a buffer, and something that it makes once for each size and may drop."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("scale", torch.tensor(1.0))
        self.store: dict[int, Tensor] = {}
        self.calls = 0


def scaling() -> Scaling:
    with torch.inference_mode(mode=False):
        return Scaling().eval()


def forward(model: nn.Module, batch: ClipBatch) -> Tensor:
    assert isinstance(model, Scaling)
    model.calls += 1
    width = batch.blur.shape[-1]
    if width not in model.store:
        model.store[width] = torch.arange(float(width))
    result = batch.blur.float() * model.weight * model.scale + model.store[width]
    return result if batch.spikes is None else result + batch.spikes.float().sum()


def batch_of(width: int = 8, *, seed: int = 0, spikes: bool = False) -> ClipBatch:
    generator = torch.Generator().manual_seed(seed)
    blur = torch.randint(0, 256, (1, 2, 3, 4, width), generator=generator).byte()
    planes = torch.randint(0, 2, (1, 2, 5, 4, width), generator=generator).byte()
    return ClipBatch(
        blur=blur,
        sharp=blur,
        spikes=planes if spikes else None,
        clip=torch.zeros(1).long(),
        fresh=torch.ones(1, 2, dtype=torch.bool),
    )


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def exactly(model: Scaling, batch: ClipBatch) -> Tensor:
    return forward(model, batch).clone()


def test_a_shape_is_recorded_once_and_replayed_from_then_on() -> None:
    model, recorder = scaling(), FakeRecorder()
    passes = RecordedForward(forward, recorder)
    for width in (8, 8, 16, 8, 16, 16, 8):
        batch = batch_of(width, seed=model.calls)
        assert torch.equal(passes.of(model)(batch), exactly(model, batch))
    assert recorder.recorded == 2
    assert recorder.replayed == passes.replayed == 5
    assert passes.ran == 7


def test_an_output_is_not_written_over_by_the_next_batch() -> None:
    model = scaling()
    restore = RecordedForward(forward, FakeRecorder()).of(model)
    batches = [batch_of(seed=seed) for seed in range(4)]
    outputs = [restore(batch) for batch in batches]
    for batch, output in zip(batches, outputs, strict=True):
        assert torch.equal(output, exactly(model, batch))


def test_spikes_are_part_of_the_input_and_of_the_shape() -> None:
    model, recorder = scaling(), FakeRecorder()
    restore = RecordedForward(forward, recorder).of(model)
    for seed in range(3):
        for spikes in (False, True):
            batch = batch_of(seed=seed, spikes=spikes)
            assert torch.equal(restore(batch), exactly(model, batch))
    assert recorder.recorded == 2


def test_weights_that_are_updated_in_place_are_seen() -> None:
    model, recorder = scaling(), FakeRecorder()
    passes = RecordedForward(forward, recorder)
    for seed in range(4):
        batch = batch_of(seed=seed)
        assert torch.equal(passes.of(model)(batch), exactly(model, batch))
        with torch.inference_mode(mode=False), torch.no_grad():
            model.weight.add_(1.5)
            model.scale.mul_(2)
    assert recorder.recorded == 1


def test_weights_that_move_and_another_model_are_recorded_anew() -> None:
    recorder = FakeRecorder()
    passes = RecordedForward(forward, recorder)

    def run(model: Scaling) -> None:
        for seed in range(2):
            batch = batch_of(seed=seed)
            assert torch.equal(passes.of(model)(batch), exactly(model, batch))

    first = scaling()
    run(first)
    assert recorder.recorded == 1
    first.weight.data = torch.tensor(7.0)
    run(first)
    assert recorder.recorded == 2
    run(scaling())
    assert recorder.recorded == 3


def test_few_shapes_are_kept_and_what_they_read_with_them() -> None:
    """A model may empty its stores; a recording goes on reading what lay there."""
    model = scaling()
    passes = RecordedForward(forward, FakeRecorder())
    restore = passes.of(model)
    widths = (8, 16, 24)
    for width in widths:
        restore(batch_of(width))
        restore(batch_of(width))
    stored = [weakref.ref(model.store[width]) for width in widths]
    model.store.clear()
    assert [ref() is not None for ref in stored] == [False, True, True]
    assert MOST_SHAPES == 2
    passes.forget()
    assert [ref() for ref in stored] == [None] * 3


def autocast_forward(model: nn.Module, batch: ClipBatch) -> Tensor:
    assert isinstance(model, nn.Linear)
    return model(batch.blur.float())


def test_a_recording_does_not_read_what_autocast_has_stored() -> None:
    """Autocast keeps casts of weights until its outermost context ends, and a recording longer."""
    passes = RecordedForward(autocast_forward, FakeRecorder())
    # In inference mode it keeps none.
    with torch.inference_mode(mode=False), torch.no_grad():
        model = nn.Linear(8, 8).eval()
        for seed in range(3):
            batch = batch_of(seed=seed)
            with torch.autocast("cpu", torch.bfloat16):
                stored = autocast_forward(model, batch)
                model.weight.add_(1)
                assert torch.equal(stored, autocast_forward(model, batch))
                found = passes.of(model)(batch)
            with torch.autocast("cpu", torch.bfloat16):
                assert torch.equal(found, autocast_forward(model, batch))
    assert passes.replayed == 2


def test_another_type_to_compute_in_is_another_recording() -> None:
    with torch.inference_mode(mode=False):
        model = nn.Linear(8, 8).eval()
    recorder = FakeRecorder()
    passes = RecordedForward(autocast_forward, recorder)
    for _ in range(2):
        for enabled in (True, False):
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                found = passes.of(model)(batch_of())
                assert found.dtype == (torch.bfloat16 if enabled else torch.float32)
    assert recorder.recorded == 2


def test_where_recording_fails_batches_run_plainly_and_it_is_said_once() -> None:
    model, recorder = scaling(), FakeRecorder(fails=True)
    passes = RecordedForward(forward, recorder)
    restore = passes.of(model)
    restore(batch_of())
    with pytest.warns(RuntimeWarning, match="run slower: operation not permitted when stream is"):
        found = restore(batch_of(seed=1))
    assert torch.equal(found, exactly(model, batch_of(seed=1)))
    for width in (8, 8, 16, 16):
        batch = batch_of(width)
        assert torch.equal(restore(batch), exactly(model, batch))
        assert torch.equal(passes.of(model)(batch), exactly(model, batch))
    assert recorder.recorded == 1
    assert passes.replayed == 0


def training(model: Scaling) -> None:
    model.train()


def hooked(model: Scaling) -> None:
    model.register_forward_hook(lambda *_: None)


@pytest.mark.parametrize("change", [training, hooked])
def test_a_model_that_trains_or_is_watched_is_not_recorded(
    change: Callable[[Scaling], None],
) -> None:
    model, recorder = scaling(), FakeRecorder()
    change(model)
    passes = RecordedForward(forward, recorder)
    for seed in range(3):
        batch = batch_of(seed=seed)
        assert torch.equal(passes.of(model)(batch), exactly(model, batch))
    assert recorder.recorded == 0


def test_a_pass_that_no_host_holds_up_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of()
    for most, times in ((batch.blur.numel() - 1, 0), (batch.blur.numel(), 1)):
        monkeypatch.setattr(recorded, "MOST_NUMBERS", most)
        model, recorder = scaling(), FakeRecorder()
        restore = RecordedForward(forward, recorder).of(model)
        for _ in range(3):
            assert torch.equal(restore(batch), exactly(model, batch))
        assert recorder.recorded == times


def test_a_pass_with_gradients_is_not_recorded() -> None:
    recorder = FakeRecorder()
    with torch.inference_mode(mode=False):
        model = scaling()
        restore = RecordedForward(forward, recorder).of(model)
        for _ in range(3):
            restore(batch_of()).sum().backward()
    assert model.weight.grad is not None
    assert recorder.recorded == 0


def test_a_cpu_is_left_alone() -> None:
    model = scaling()
    passes = RecordedForward(forward)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(3):
            passes.of(model)(batch_of(seed=seed))
    assert (passes.replayed, passes.ran) == (0, 3)


def test_memory_of_recordings_is_given_back_where_a_plain_pass_runs_out_of_it() -> None:
    model, recorder = scaling(), FakeRecorder()
    left = [0]

    def scarce(model: nn.Module, batch: ClipBatch) -> Tensor:
        if left[0]:
            left[0] -= 1
            raise torch.OutOfMemoryError("full")
        return forward(model, batch)

    passes = RecordedForward(scarce, recorder)
    restore = passes.of(model)
    for _ in range(2):
        restore(batch_of(8))
    left[0] = 1
    assert torch.equal(restore(batch_of(16)), exactly(model, batch_of(16)))
    assert recorder.recorded == 1
    for _ in range(2):
        restore(batch_of(8))
    assert recorder.recorded == 2, "it had been forgotten"
    left[0] = 2
    with pytest.raises(torch.OutOfMemoryError):
        restore(batch_of(24))


def test_recordings_made_in_an_evaluation_serve_outside_of_inference_mode() -> None:
    model, recorder = scaling(), FakeRecorder()
    passes = RecordedForward(forward, recorder)
    for seed in range(2):
        passes.of(model)(batch_of(seed=seed))
    with torch.inference_mode(mode=False), torch.no_grad():
        batch = batch_of(seed=3)
        assert torch.equal(passes.of(model)(batch), exactly(model, batch))
    assert recorder.recorded == 1


TINY: dict[str, Any] = {
    "model": TINY_VRT,
    "data": {"crop": 16, "clip_len": 2},
    "train": {"steps": 1},
}


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> FakeRecorder:
    recorder = FakeRecorder()
    monkeypatch.setattr(
        prediction, "RecordedForward", lambda forward: RecordedForward(forward, recorder)
    )
    return recorder


def test_tiles_of_frames_are_one_recording_and_join_as_without(fake_gpu: FakeRecorder) -> None:
    config = config_from(TINY, ["eval.tile=16", "eval.tile_overlap=8"]).config
    with torch.inference_mode(mode=False):
        task = build_deblur(config)
        model = task.build_model().eval()
    batch = replace(batch_of(), blur=torch.randint(0, 256, (1, 2, 3, 24, 32)).byte())
    batch = replace(batch, sharp=batch.blur)
    found = task.predict(model, batch)
    assert (fake_gpu.recorded, fake_gpu.replayed) == (1, 5)
    task.predict(model, batch)
    assert (fake_gpu.recorded, fake_gpu.replayed) == (1, 11)
    fake_gpu.device_type = "none"
    assert torch.equal(found, task.predict(model, batch))


def test_a_training_step_gives_the_memory_of_recordings_back(fake_gpu: FakeRecorder) -> None:
    with torch.inference_mode(mode=False):
        task = build_deblur(config_from(TINY, []).config)
        model = task.build_model().eval()
    blur = torch.randint(0, 256, (1, 2, 3, 16, 16)).byte()
    batch = replace(batch_of(), blur=blur, sharp=blur)
    for _ in range(2):
        task.predict(model, batch)
    assert fake_gpu.recorded == 1
    task.forward(model.train(), batch)
    for _ in range(2):
        task.predict(model.eval(), batch)
    assert fake_gpu.recorded == 2


def test_notes_say_how_many_passes_were_replayed(fake_gpu: FakeRecorder) -> None:
    frames = WholeFrames(
        forward,
        lambda batch, _: batch,
        tiles=TilesSection(),
        evaluation=EvalSection(tile=8, tile_overlap=0),
    )
    batch = replace(batch_of(), blur=torch.zeros(1, 2, 3, 16, 24).byte())
    frames(scaling(), replace(batch, sharp=batch.blur))
    assert frames.notes == ("5 of 6 passes replayed as CUDA graphs",)
    assert fake_gpu.replayed == 5
