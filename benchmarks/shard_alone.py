"""What `train.shard=full` costs a rank that is alone, against none: a step on one GPU.

    torchrun --nproc-per-node=1 benchmarks/shard_alone.py --output FILE.json [--seconds 45]

`configs/reid/fast.yaml` on blank batches of 32, built by the engine as `pitstop train` builds it
under torchrun, once with each setting, nothing compiled. The two take turns, and which goes first
changes from pair to pair; blocks are timed from an idle device to an idle device, and the host is
never more than two steps ahead, as in the engine's loop. The ratio is divided over plain, with the
95 % interval of its mean over pairs (Student's t on logarithms). It is to be 1.05 at most.

A divided rank alone once took 1.9 to 2.3 times as long, so the engine leaves it whole and says so:
what it said is in the result. `--smoke` tries it all with a small network on a CPU.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, Final

import torch

from pitstop.config.load import load_config
from pitstop.measure.host.garbage import long_lived_frozen
from pitstop.train.optim.schedule import Schedule
from pitstop.train.ranks import Ranks, join_ranks, leave_ranks
from pitstop.train.setup import build_trainer
from pitstop.workloads.catalogue import build_task
from plan_accuracy import CONFIGS, REID
from progress import say, write
from step_runs import TOTAL_STEPS, Stepper

WAYS: Final = ("none", "full")
LARGEST_RATIO: Final = 1.05
FEWEST_PAIRS: Final = 3
STUDENTS_T: Final = {2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""Of 95 %, by degrees of freedom; from ten on, that of ten."""
T_OF_MORE: Final = 2.228


def build(shard: str, ranks: Ranks, device: torch.device, *, smoke: bool) -> tuple[Stepper, Any]:
    """Build a step; also give what the engine says of it."""
    name, sizes = ("demo", ()) if smoke else ("fast", ("train.batch_size=32",))
    overrides = (*REID, *sizes, "train.compile.scope=off", f"train.shard={shard}")
    config = load_config(CONFIGS / "reid" / f"{name}.yaml", overrides).config
    task: Any = build_task(config)
    setup = build_trainer(config, task, ranks, device)
    trainer = setup.trainer
    stepper = Stepper(
        name=shard,
        config=config,
        trainer=trainer,
        schedule=Schedule(trainer.optimizer, config.schedule, total_steps=TOTAL_STEPS),
        source=repeat(task.blank_batch(config.train.batch_size)),
    )
    said = [message for message in setup.messages if message and "train.shard" in message]
    divided = setup.applied.get("train.shard")
    return stepper, {"said": said, "divided": divided}


def interval(ratios: Sequence[float]) -> dict[str, float]:
    """Mean of ratios, and its 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.mean(logs)
    half = STUDENTS_T.get(len(logs) - 1, T_OF_MORE) * statistics.stdev(logs) / math.sqrt(len(logs))
    return {"ratio": math.exp(mean), "low": math.exp(mean - half), "high": math.exp(mean + half)}


def main() -> None:
    """Measure pairs until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=45, help="Begin no pair after that.")
    parser.add_argument("--block-s", type=float, default=1.5, help="Length of a block.")
    parser.add_argument("--smoke", action="store_true", help="A small network on a CPU.")
    options = parser.parse_args()
    began = time.perf_counter()
    ranks = join_ranks()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    told, steppers = {}, []
    for way in WAYS:
        one, told[way] = build(way, ranks, device, smoke=options.smoke)
        steppers.append(one)
    report: dict[str, Any] = {
        "what": "a step of re-identification, train.shard=full against none, one rank",
        "hardware": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "torch": torch.__version__,
        "ranks": ranks.world_size,
        "group": torch.distributed.is_initialized(),
        "largest_ratio": LARGEST_RATIO,
        "engine": told,
        "pairs": [],
    }
    with long_lived_frozen():
        for one in steppers:
            one.first_steps_s, _ = one.run(3)
        step_s = steppers[0].run(3)[0] / 3
        steps = max(3, round(options.block_s / step_s))
        pairs: list[dict[str, float]] = report["pairs"]
        while len(pairs) < FEWEST_PAIRS or time.perf_counter() - began < options.seconds:
            turns = steppers if len(pairs) % 2 == 0 else steppers[::-1]
            pair = {one.name: one.run(steps)[0] / steps * 1e3 for one in turns}
            pairs.append({name: pair[name] for name in WAYS})
            ratios = [one["full"] / one["none"] for one in pairs]
            if len(pairs) >= FEWEST_PAIRS:
                report |= {"steps_of_a_block": steps, **interval(ratios)}
            write(report, options.output)
            say(f"{pairs[-1]} ms, ratio {ratios[-1]:.4f}")
    say(json.dumps({key: report[key] for key in ("ratio", "low", "high", "engine")}))
    leave_ranks()


if __name__ == "__main__":
    main()
