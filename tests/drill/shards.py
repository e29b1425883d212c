"""Ranks that divide a model, killed in their saves: nothing that was saved may be lost.

Two ranks train and save every few steps. One of them ends by SIGKILL with some flush of a file or a
folder, in the middle of a save; the other must end, too. The newest whole checkpoint must then be
at least the newest that had its name, and hold, in every bit, what a run left alone has at that
step. The next life goes on from it.
"""

import random
import shutil
import time
from pathlib import Path

from pitstop.config.dump import to_yaml
from pitstop.train.run import TrainingRun
from pitstop.train.state.checkpoint import find_newest_whole, open_checkpoint
from tests.drill.results import Tally
from tests.drill.states import of_checkpoint
from tests.integration.ranks import Doom, die_in_a_save, exit_codes, launch
from tests.integration.test_shards import BlockTask
from tests.unit.train.runs import LINE, line_config

STEPS = 30
_EVERY = 3
_KILLED = -9
# Of one save: three files, the manifest and two folders; two files.
_FLUSHES = (6, 2)


def train(folder: Path, doom: Doom | None, saving: tuple[int, int]) -> None:
    """Train this rank until it is done, or its end comes."""
    if doom is not None:
        die_in_a_save(doom)
    every, keep = saving
    config = line_config(
        folder,
        train__steps=STEPS,
        train__shard="full",
        train__ema=0.9,
        checkpoint__every_steps=every,
        checkpoint__keep_last=keep,
        log__every_steps=STEPS,
    )
    TrainingRun(
        config=config,
        config_yaml=to_yaml(config, kinds={"line": LINE}),
        task=BlockTask(),
        resume="auto",
    ).run()


def break_saves(folder: Path, dice: random.Random, until_s: float) -> Tally:
    """Kill ranks in their saves, at least once and until the time is over."""
    tally = Tally()
    sums = _left_alone(folder / "alone")
    work_dir = folder / "broken"
    while True:
        _break_one(work_dir, dice, tally, sums)
        if time.monotonic() > until_s:
            return tally


def _left_alone(folder: Path) -> dict[int, str]:
    """Run once without a fault, keeping every step; sum up each save."""
    assert _live(folder, None, saving=(1, STEPS)) == [0, 0], _said(folder)
    saves = map(open_checkpoint, (folder / "run" / "checkpoints").glob("save-*"))
    sums = {each.manifest.step: of_checkpoint(each) for each in saves}
    assert len(sums) == STEPS
    shutil.rmtree(folder)
    return sums


def _break_one(work_dir: Path, dice: random.Random, tally: Tally, sums: dict[int, str]) -> None:
    rank = dice.randrange(2)
    # In one of the first saves of this life.
    doom = Doom(rank=rank, how="killed in a save", count=dice.randint(1, 3 * _FLUSHES[rank]))
    saves = work_dir / "run" / "checkpoints"
    before = _newest(saves)
    began_s = time.monotonic()
    codes = _live(work_dir, doom, saving=(_EVERY, 2))
    found, _ = find_newest_whole(saves)
    number = 0 if found is None else int(found.path.name.split("-")[1])
    if codes[rank] == _KILLED:
        troubles = {
            "lost": number < max(before, _newest(saves)),
            "wrong": found is not None and of_checkpoint(found) != sums.get(found.manifest.step),
            "hang": None in codes,
            "not ended": codes[1 - rank] == 0 and (found is None or found.manifest.step < STEPS),
        }
        name = f"SIGKILL in a save, {'first' if rank == 0 else 'second'} rank of two"
        tally.count(name, [what for what, is_so in troubles.items() if is_so], _said(work_dir))
        tally.took(name, time.monotonic() - began_s)
    if codes == [0, 0] or (found is not None and found.manifest.step >= STEPS):
        shutil.rmtree(work_dir)


def _live(folder: Path, doom: Doom | None, *, saving: tuple[int, int]) -> list[int | None]:
    ranks = launch(train, folder, doom, saving, world_size=2, logs=folder / "logs")
    return exit_codes(ranks)


def _newest(saves: Path) -> int:
    """Give the number of the newest save that has its name: from then on it must not be lost."""
    return max((int(path.name.split("-")[1]) for path in saves.glob("save-*")), default=0)


def _said(folder: Path) -> str:
    return "".join(path.read_text()[-1000:] for path in (folder / "logs").glob("stderr-*"))
