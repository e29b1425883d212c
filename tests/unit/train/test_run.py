"""Whole runs on a small task: cadences, resume, non-finite policies, signals, the record."""

import gc
import math
import multiprocessing
import os
import platform
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pitstop.config.dump import to_yaml
from pitstop.config.sections import RunConfig
from pitstop.errors import CheckpointError, ConfigError, DataError, PitstopError
from pitstop.records.host.memory import MemoryReading
from pitstop.records.store import read_run
from pitstop.records.summary import summarise
from pitstop.train.loop import Outcome
from pitstop.train.monitor.deferred import LAG_STEPS
from pitstop.train.observers import Observer, RunStart, Status
from pitstop.train.optim.nonfinite import NotFiniteError
from pitstop.train.run import TrainingRun
from pitstop.train.state.checkpoint import CheckpointWriter, find_newest_whole, open_checkpoint
from pitstop.train.throughput import Throughput
from tests.unit.train.runs import LINE, LineTask, line_config

torch.set_num_threads(1)


class Diary(Observer):
    """Writes down what an observer hears."""

    def __init__(self, *, at_step: Mapping[int, Any] | None = None) -> None:
        self.heard: list[tuple[str, int]] = []
        self.losses: dict[int, float] = {}
        self.warnings: list[str] = []
        self.start: RunStart | None = None
        self.ending: tuple[int, Status, str] | None = None
        self._at_step = dict(at_step or {})

    def started(self, start: RunStart) -> None:
        self.start = start

    def values(self, step: int, values: Mapping[str, float]) -> None:
        self.heard.append(("values", step))
        if "loss" in values:
            self.losses[step] = values["loss"]
        if step in self._at_step:
            self._at_step[step]()

    def memory(self, step: int, reading: MemoryReading, warnings: Sequence[str]) -> None:
        self.heard.append(("memory", step))

    def progress(self, step: int, throughput: Throughput) -> None:
        self.heard.append(("progress", step))

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        self.heard.append(("evaluated", step))

    def saved(self, step: int, path: Path) -> None:
        self.heard.append(("saved", step))

    def warned(self, step: int, kind: str, text: str) -> None:
        self.warnings.append(text)

    def ended(self, step: int, status: Status, reason: str) -> None:
        self.ending = (step, status, reason)

    def steps_of(self, kind: str) -> list[int]:
        return [step for heard, step in self.heard if heard == kind]


def train(
    config: RunConfig, *, task: LineTask | None = None, diary: Diary | None = None, **options: Any
) -> Outcome:
    observers = [] if diary is None else [diary]
    run = TrainingRun(
        config=config,
        config_yaml=to_yaml(config, kinds={"line": LINE}),
        task=task or LineTask(),
        observers=observers,
        **options,
    )
    return run.run()


def final_state(folder: Path) -> dict[str, Any]:
    checkpoint, _ = find_newest_whole(folder / "run" / "checkpoints")
    assert checkpoint is not None
    common = checkpoint.common()
    return {key: value for key, value in common.items() if key != "config"}


def assert_equal_trees(one: Any, other: Any) -> None:
    if isinstance(one, Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal_trees(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_equal_trees(left, right)
    else:
        assert one == other


def test_every_cadence_is_kept_and_timed_apart(tmp_path: Path) -> None:
    diary = Diary()
    config = line_config(
        tmp_path,
        train__steps=12,
        log__every_steps=3,
        log__norm_every_steps=5,
        log__progress_every_steps=4,
        log__memory_every_steps=6,
        eval__every_steps=5,
        checkpoint__every_steps=6,
    )
    outcome = train(config, diary=diary)

    assert (outcome.status, outcome.step) == ("finished", 12)
    assert diary.steps_of("values") == [2, 4, 5, 8, 9, 11]  # every third, and norms every fifth
    assert diary.steps_of("progress") == [4, 8, 12]
    assert diary.steps_of("memory") == [0, 5, 11]
    assert diary.steps_of("evaluated") == [5, 10, 12]
    assert diary.steps_of("saved") == [6, 12]

    record = read_run(tmp_path / "run").first
    summary = summarise(record)
    assert record.is_finished
    assert summary.steps == 12
    counts = Counter(event.name for event in record.events)
    assert counts == {
        "log": 6,
        "loader": 4,
        "progress": 3,
        "memory": 3,
        "evaluation": 3,
        "checkpoint": 2,
    }
    assert record.scalars["grad_norm"].step.tolist() == [4, 9]
    assert record.scalars["eval/error"].step.tolist() == [5, 10, 12]
    parts = sum(span.host_self_us for span in summary.spans)
    assert parts + summary.unaccounted.total_us == summary.wall.total_us
    paths = {span.path for span in summary.spans}
    assert {("forward", "first"), ("forward", "last"), ("backward",), ("check",)} <= paths


@pytest.mark.parametrize("stop_at", [4, 8])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"train__accumulate": 2, "train__ema": 0.9},
        {"train__precision": "fp16", "train__scaler__start": 1024, "train__clip__kind": "adaptive"},
        {"loader__workers": 2, "optimizer__kind": "sgd"},
    ],
    ids=["plain", "accumulate", "fp16", "workers"],
)
def test_a_resumed_run_ends_with_the_same_bits(
    tmp_path: Path, settings: dict[str, object], stop_at: int
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(line_config(whole, **settings))
    train(line_config(cut, **settings, train__steps=stop_at))
    diary = Diary()
    outcome = train(line_config(cut, **settings), diary=diary, resume="auto")

    assert outcome.step == 12
    assert diary.start is not None
    assert diary.start.first_step == stop_at
    assert any("going on from" in message for message in diary.start.messages)
    assert_equal_trees(final_state(whole), final_state(cut))
    record = read_run(cut / "run").first
    assert len(record.attempts) == 2
    assert record.scalars["loss"].step.tolist() == list(range(12))


def test_without_restoring_the_random_state_the_bits_would_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pitstop.train.world_size.restore_random_state", lambda state: ())
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(line_config(whole))
    train(line_config(cut, train__steps=4))
    train(line_config(cut), resume="auto")
    with pytest.raises(AssertionError):
        assert_equal_trees(final_state(whole), final_state(cut))


# Sample 5 of epoch 1 is poisoned; 22 samples in batches of 4 make 5 steps an epoch.
POISON = frozenset({(1, index) for index in range(22)})


def test_skipping_leaves_the_poisoned_steps_out_and_says_so(tmp_path: Path) -> None:
    diary = Diary()
    outcome = train(
        line_config(tmp_path, train__on_nan="skip"), task=LineTask(poison=POISON), diary=diary
    )
    assert outcome.status == "finished"
    assert len(diary.warnings) == 5
    assert "step 5" in diary.warnings[0]
    assert all(torch.isfinite(value).all() for value in final_state(tmp_path)["model"].values())


def test_stopping_ends_the_run_and_names_the_step(tmp_path: Path) -> None:
    diary = Diary()
    with pytest.raises(NotFiniteError, match="not finite at step 5"):
        train(
            line_config(tmp_path, train__on_nan="stop"), task=LineTask(poison=POISON), diary=diary
        )
    assert diary.ending is not None
    assert diary.ending[1] == "failed"
    record = read_run(tmp_path / "run").first
    assert record.ending is not None
    assert record.ending.status == "failed"
    assert "NotFiniteError" in record.ending.reason
    assert summarise(record).steps == 5 + 1 + LAG_STEPS


def test_rolling_back_restores_the_last_good_weights(tmp_path: Path) -> None:
    poison = frozenset({(1, index) for index in (3,)})
    diary = Diary()
    train(
        line_config(tmp_path, train__on_nan="rollback", checkpoint__every_steps=3),
        task=LineTask(poison=poison),
        diary=diary,
    )
    [warning] = diary.warnings
    assert "weights rolled back to those of step" in warning
    assert all(torch.isfinite(value).all() for value in final_state(tmp_path)["model"].values())


def test_rolling_back_for_ever_is_a_stop(tmp_path: Path) -> None:
    with pytest.raises(NotFiniteError):
        train(
            line_config(tmp_path, train__on_nan="rollback", train__steps=40),
            task=LineTask(poison=frozenset({(e, i) for e in range(1, 9) for i in range(22)})),
        )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_leaves_with_a_clear_line(tmp_path: Path, number: int) -> None:
    diary = Diary(at_step={3: lambda: os.kill(os.getpid(), number)})
    before = signal.getsignal(number)
    seldom = {"checkpoint__every_steps": 1000}  # saving would hear of the signal sooner
    outcome = train(line_config(tmp_path, train__steps=500, **seldom), diary=diary)
    assert outcome.status == "interrupted"
    assert signal.Signals(number).name in outcome.reason
    assert signal.getsignal(number) is before
    # Heard in step 5, two steps after step 3.
    assert outcome.step == 3 + LAG_STEPS + 1
    assert final_state(tmp_path)["step"] == outcome.step

    whole = tmp_path / "whole"
    steps = outcome.step + 3
    train(line_config(whole, train__steps=steps, **seldom))
    train(line_config(tmp_path, train__steps=steps, **seldom), resume="auto")
    assert_equal_trees(final_state(whole), final_state(tmp_path))


def send(number: int, *processes: int) -> None:
    for pid in processes:
        os.kill(pid, number)


def finish_checkpoints() -> None:
    """Wait for what is written beside the training."""
    for thread in threading.enumerate():
        if thread.name == "checkpoint-writer":
            thread.join()


def workers() -> list[int]:
    return [child.pid for child in multiprocessing.active_children() if child.pid is not None]


def test_a_signal_to_the_whole_group_is_no_reason_to_lose_the_run(tmp_path: Path) -> None:
    diary = Diary(at_step={3: lambda: send(signal.SIGTERM, *workers(), os.getpid())})
    with_workers = {"loader__workers": 2, "loader__tune": "off", "checkpoint__every_steps": 1000}
    outcome = train(line_config(tmp_path, train__steps=500, **with_workers), diary=diary)
    assert (outcome.status, outcome.reason) == ("interrupted", "SIGTERM")
    assert final_state(tmp_path)["step"] == outcome.step
    assert workers() == []


@pytest.mark.usefixtures("nothing_frozen")
def test_a_collection_does_not_visit_what_workers_share(tmp_path: Path) -> None:
    kept: list[int] = []
    diary = Diary(at_step={3: lambda: kept.append(gc.get_freeze_count())})
    train(line_config(tmp_path), diary=diary)
    assert kept[0] > 10_000  # every class and function that was there when the loop began
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("nothing_frozen")
def test_what_the_caller_keeps_from_collections_stays_kept(tmp_path: Path) -> None:
    gc.freeze()
    train(line_config(tmp_path))
    assert gc.get_freeze_count() > 10_000


@pytest.mark.parametrize("while_writing", [False, True])
def test_a_deleted_folder_ends_the_run_with_its_state_saved(
    while_writing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a checkpoint is being written as the folder goes: that save fails."""
    began, deleted = threading.Event(), threading.Event()
    save = torch.save

    def save_late(*args: Any) -> None:
        began.set()
        assert deleted.wait(60)
        save(*args)

    def delete() -> None:
        if while_writing:
            assert began.wait(60)
        else:
            finish_checkpoints()
        shutil.rmtree(tmp_path / "run")
        deleted.set()

    if while_writing:
        monkeypatch.setattr(torch, "save", save_late)
    diary = Diary(at_step={5: delete})
    with pytest.raises(PitstopError, match="was deleted while the run went on") as caught:
        train(line_config(tmp_path), diary=diary)
    assert "the state of step 8 was saved there anew" in str(caught.value)
    assert final_state(tmp_path)["step"] == 8
    assert diary.ending is not None
    assert diary.ending[1] == "failed"


def test_a_folder_in_place_of_the_deleted_one_is_not_written_to(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def replace_folder() -> None:
        finish_checkpoints()
        folder.rename(tmp_path / "moved")
        folder.mkdir()

    with pytest.raises(PitstopError, match="another folder than the one this run began in"):
        train(line_config(tmp_path), diary=Diary(at_step={5: replace_folder}))
    assert list(folder.iterdir()) == []


def test_workers_killed_together_with_the_run_do_not_cost_it(tmp_path: Path) -> None:
    def kill() -> None:
        send(signal.SIGKILL, *workers())
        send(signal.SIGTERM, os.getpid())

    # Two steps at most are read ahead: the run is told of its end where it waits for a batch.
    diary = Diary(at_step={3: kill})
    with_workers = {"loader__workers": 2, "loader__tune": "off", "checkpoint__every_steps": 1000}
    outcome = train(line_config(tmp_path, train__steps=500, **with_workers), diary=diary)
    assert (outcome.status, outcome.reason) == ("interrupted", "SIGTERM")
    steps = outcome.step + 3
    whole = tmp_path / "whole"
    train(line_config(whole, train__steps=steps, **with_workers))
    train(line_config(tmp_path, train__steps=steps, **with_workers), resume="auto")
    assert_equal_trees(final_state(whole), final_state(tmp_path))


def test_a_killed_worker_is_one_sentence_wherever_the_step_is(tmp_path: Path) -> None:
    diary = Diary(at_step={3: lambda: send(signal.SIGKILL, *workers())})
    with pytest.raises(DataError, match="a data worker was killed by SIGKILL"):
        train(
            line_config(tmp_path, train__steps=500, loader__workers=2, loader__tune="off"),
            diary=diary,
        )
    assert diary.ending is not None
    assert diary.ending[1] == "failed"


def test_a_second_signal_passed_on_by_a_launcher_does_not_cut_the_save_short(
    tmp_path: Path,
) -> None:
    diary = Diary(at_step={3: lambda: send(signal.SIGTERM, os.getpid(), os.getpid())})
    outcome = train(line_config(tmp_path, train__steps=500), diary=diary)
    assert outcome.status == "interrupted"
    assert final_state(tmp_path)["step"] == outcome.step


def test_a_broken_evaluation_does_not_cost_the_training_before_it(tmp_path: Path) -> None:
    class BrokenTask(LineTask):
        def metrics(self) -> Any:
            raise ConfigError("no metrics today")

    with pytest.raises(ConfigError, match="no metrics today"):
        train(line_config(tmp_path), task=BrokenTask())
    assert final_state(tmp_path)["step"] == 12


def test_a_folder_that_cannot_be_written_to_is_told_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where the run's folder should be")
    with pytest.raises(PitstopError, match="free space on the disk or make it writable"):
        train(line_config(tmp_path))


def test_a_new_run_does_not_write_over_an_old_one(tmp_path: Path) -> None:
    train(line_config(tmp_path))
    with pytest.raises(ConfigError, match="holds a run already"):
        train(line_config(tmp_path))


def damage_all(folder: Path) -> None:
    for path in (folder / "run" / "checkpoints").glob("save-*/common.pt"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")


def test_a_run_whose_every_save_is_damaged_does_not_begin_anew_by_itself(tmp_path: Path) -> None:
    train(line_config(tmp_path))
    damage_all(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"no checkpoint of .* can be used: .* --resume never"
    ):
        train(line_config(tmp_path, train__steps=20), resume="auto")


def test_beginning_anew_keeps_what_was_saved_aside(tmp_path: Path) -> None:
    train(line_config(tmp_path))
    before = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    for number in (1, 2):
        diary = Diary()
        train(line_config(tmp_path), resume="never", diary=diary)
        assert diary.start is not None
        assert diary.start.first_step == 0
        aside = tmp_path / "run" / f"checkpoints-{number}"
        assert f"earlier checkpoints are now in {aside}" in diary.start.messages
        assert sorted(path.name for path in aside.iterdir()) == before


def test_resuming_a_finished_run_writes_nothing(tmp_path: Path) -> None:
    train(line_config(tmp_path))
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    diary = Diary()
    outcome = train(line_config(tmp_path), resume="auto", diary=diary)
    assert (outcome.status, outcome.step) == ("finished", 12)
    assert diary.ending is not None
    assert "all its steps are done" in diary.ending[2]
    assert {path: path.read_bytes() for path in files} == before
    assert [path for path in (tmp_path / "run").rglob("*") if path.is_file()] == files


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    codes: list[int] = []

    def start_another() -> None:
        """In a process of its own, as a person's second start is."""
        child = os.fork()
        if child == 0:
            try:
                train(line_config(tmp_path), resume="auto")
            except ConfigError as error:
                said = f"in use by process {os.getppid()} on {platform.node()}"
                os._exit(7 if said in str(error) else 8)
            finally:
                os._exit(9)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    train(line_config(tmp_path), diary=Diary(at_step={5: start_another}))
    assert codes == [7]
    # Its end lets go of the folder.
    train(line_config(tmp_path, train__steps=14), resume="auto")


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    class WiderTask(LineTask):
        def build_model(self) -> torch.nn.Module:
            return torch.nn.Sequential(*[torch.nn.Linear(3, 3) for _ in range(5)])

    train(line_config(tmp_path))
    with pytest.raises(CheckpointError, match="does not fit this configuration"):
        train(line_config(tmp_path, train__steps=20), task=WiderTask(), resume="auto")


@pytest.mark.parametrize("part", ["loader", "random"])
def test_a_state_that_lacks_a_part_is_refused_in_one_sentence(tmp_path: Path, part: str) -> None:
    train(line_config(tmp_path))
    newest, _ = find_newest_whole(tmp_path / "run" / "checkpoints")
    assert newest is not None
    own = newest.of_rank(0)
    del own[part]
    with CheckpointWriter(tmp_path / "forged", keep_last=1) as writer:
        writer.save(newest.common(), own, step=12, epoch=0)
    [forged] = (tmp_path / "forged").glob("save-*")
    with pytest.raises(CheckpointError, match=f"does not fit this configuration.*{part}"):
        train(line_config(tmp_path / "other", train__steps=20), resume=forged)


def test_a_state_with_an_endless_number_is_refused_in_one_sentence(tmp_path: Path) -> None:
    train(line_config(tmp_path))
    newest, _ = find_newest_whole(tmp_path / "run" / "checkpoints")
    assert newest is not None
    own = newest.of_rank(0)
    own["random"]["numpy"]["position"] = math.inf
    with CheckpointWriter(tmp_path / "forged", keep_last=1) as writer:
        writer.save(newest.common(), own, step=12, epoch=0)
    [forged] = (tmp_path / "forged").glob("save-*")
    with pytest.raises(CheckpointError, match=r"does not fit this configuration.*infinity"):
        train(line_config(tmp_path / "other", train__steps=20), resume=forged)


def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    train(line_config(tmp_path))
    with pytest.raises(CheckpointError, match="saved by AdamW, but the optimizer is SGD"):
        train(line_config(tmp_path, train__steps=20, optimizer__kind="sgd"), resume="auto")


def test_a_cache_that_nothing_would_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cache\.budget has no effect: .* workload line do not"):
        train(line_config(tmp_path, cache__budget="1MiB"))


def test_resuming_with_nothing_saved_begins_at_the_beginning(tmp_path: Path) -> None:
    diary = Diary()
    train(line_config(tmp_path), diary=diary, resume="auto")
    assert diary.start is not None
    assert diary.start.first_step == 0


def test_a_teacher_is_loaded_from_its_checkpoint(tmp_path: Path) -> None:
    train(line_config(tmp_path / "teacher"))
    teacher, _ = find_newest_whole(tmp_path / "teacher" / "run" / "checkpoints")
    assert teacher is not None
    config = line_config(tmp_path / "student", train__distill__teacher=teacher.path)
    train(config)
    record = read_run(tmp_path / "student" / "run").first
    assert len(record.scalars["loss/distill"].value) == 12
    alone = line_config(tmp_path / "alone")
    train(alone)
    left, right = (final_state(tmp_path / name)["model"] for name in ("student", "alone"))
    assert not torch.equal(left["0.weight"], right["0.weight"])


def test_the_best_checkpoint_is_kept_and_an_unknown_metric_refused(tmp_path: Path) -> None:
    config = line_config(
        tmp_path, checkpoint__best_of="error", checkpoint__keep_last=1, eval__every_steps=4
    )
    train(config)
    assert 1 <= len(list((tmp_path / "run" / "checkpoints").glob("save-*"))) <= 2
    with pytest.raises(ConfigError, match="line measures error"):
        train(line_config(tmp_path / "b", checkpoint__best_of="psnr", eval__every_steps=4))


def test_a_checkpoint_carries_the_metrics_of_its_own_weights_only(tmp_path: Path) -> None:
    train(line_config(tmp_path, train__steps=9, eval__every_steps=3, checkpoint__every_steps=2))
    saves = sorted((tmp_path / "run" / "checkpoints").glob("save-*"))
    steps = {open_checkpoint(path).manifest.step: open_checkpoint(path).manifest for path in saves}
    assert {step: bool(manifest.metrics) for step, manifest in steps.items()} == {
        6: True,
        8: False,
        9: True,
    }


def test_what_was_applied_is_in_the_record(tmp_path: Path) -> None:
    train(line_config(tmp_path, train__recompute="full"))
    record = read_run(tmp_path / "run").first
    applied = {
        r.values["setting"]: r.values["proof"] for r in record.readings if r.kind == "applied"
    }
    assert applied["optimizer.kind"]["state_bytes"] > 0
    assert applied["train.recompute"]["places"]
    assert applied["loader.workers"]["workers"] == 0


def test_epochs_are_counted_in_passes_over_the_data(tmp_path: Path) -> None:
    outcome = train(line_config(tmp_path, train__steps=None, train__epochs=3, train__accumulate=2))
    assert outcome.step == 3 * 5 // 2
