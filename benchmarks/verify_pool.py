"""Records a pool of runs with planted harms and harmless changes, and draws error rates from it.

A task that trains in seconds is trained with many seeds by the baseline, by six candidates that are
broken and by four that are not. From this pool comparisons are drawn as `pitstop verify` would make
them, five seeds each, and judged by its own functions: how often is a harm caught, and at which
level; how often does a harmless change pass?

    python benchmarks/verify_pool.py --seeds 12          # records the pool, then draws
    python benchmarks/verify_pool.py --draw-only         # draws again from the recorded pool
"""

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from pitstop.config.dump import to_yaml
from pitstop.config.load import config_from
from pitstop.records.verify.trial import TrialEnd, TrialResult
from pitstop.records.verify.verification import ExactComparison, NumericalComparison
from pitstop.train.run import TrainingRun
from pitstop.verify.claims import changed_settings, claim_of
from pitstop.verify.configs import GRADIENT_STEPS
from pitstop.verify.engine_child import GradientKeeper
from pitstop.verify.engine_trial import EngineTrial
from pitstop.verify.judge import Findings, conclude, needs_statistics
from pitstop.verify.noninferiority import Question, judge_noninferiority
from pitstop.verify.numbers import Gradients, compare_exactly, compare_numerically, read_gradients
from tests.unit.verify.workload import HARMLESS, HARMS, SETTINGS, SIGNAL, SignalTask

RESULT: Final = Path(__file__).parent / "results" / "verify_pool_epyc_cpu.json"
BASE: Final = "baseline"
CHECK_STEPS: Final = 30
SEEDS_OF_A_DRAW: Final = 5
DRAWS: Final = 20
QUESTION: Final = Question(
    metric="psnr", higher_is_better=True, margin=0.3, margin_from="short runs"
)


def variants() -> dict[str, tuple[Any, tuple[str, ...]]]:
    """Every way to train: what is broken, and its settings."""
    harmless = {name: (nullcontext, settings) for name, settings in HARMLESS.items()}
    return {BASE: (nullcontext, ()), **HARMS, **harmless}


def train(name: str, seed: int, folder: Path) -> tuple[TrialResult, list[Gradients]]:
    """Train one variant with one seed in this process."""
    harm, settings = variants()[name]
    own = (f"run.seed={seed}", f"run.work_dir={json.dumps(str(folder))}")
    overrides = (*settings, *own, f"eval.every_steps={CHECK_STEPS}")
    config = config_from(SETTINGS, overrides, kinds={"signal": SIGNAL}).config
    text = to_yaml(config, kinds={"signal": SIGNAL})
    with harm():
        TrainingRun(
            config=config,
            config_yaml=text,
            task=SignalTask(config),
            observers=(GradientKeeper(folder, GRADIENT_STEPS),),
        ).run()
    trial = EngineTrial(label=f"{name}, seed {seed}", config_yaml=text)
    result = trial.read(folder, TrialEnd(status="finished", reason="", wall_s=0.0))
    return result, read_gradients(folder, result.gradient_steps)


def short(result: TrialResult) -> TrialResult:
    """The first steps of a run, as a run of that length would be."""
    losses = {step: loss for step, loss in result.losses.items() if step < CHECK_STEPS}
    points = [point for point in result.metrics["psnr"] if point.step <= CHECK_STEPS]
    values = {**asdict(result), "losses": losses, "metrics": {"psnr": tuple(points)}}
    return TrialResult(**values)


def record(seeds: int, first_seed: int) -> dict[str, Any]:
    """Train every variant with every seed; keep what the levels say of each."""
    chosen = range(first_seed, first_seed + seeds)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in variants()}
    with tempfile.TemporaryDirectory() as name:
        kept = {
            seed: _train_in(BASE, seed, Path(name) / f"base-{seed}")
            for seed in (*chosen, chosen.stop)
        }
        for variant in variants():
            for seed in chosen:
                folder = Path(name) / f"{variant}-{seed}".replace(" ", "-")
                run = kept[seed] if variant == BASE else _train_in(variant, seed, folder)
                runs[variant].append(_entry(kept[seed], run, kept[seed + 1]))
                psnr = runs[variant][-1]["psnr"]
                print(f"{variant}, seed {seed}: psnr {psnr:.3f}", flush=True)
    return {
        "hardware": f"2-core AMD EPYC, torch {torch.__version__.partition('+')[0]}",
        "steps": SETTINGS["train"]["steps"],
        "check_steps": CHECK_STEPS,
        "first_seed": first_seed,
        "claims": {name: _claim(name) for name in variants()},
        "runs": runs,
    }


def _train_in(variant: str, seed: int, folder: Path) -> tuple[TrialResult, list[Gradients]]:
    folder.mkdir()
    return train(variant, seed, folder)


def _claim(name: str) -> str:
    base, changed = (
        config_from(SETTINGS, settings, kinds={"signal": SIGNAL}).config
        for settings in ((), variants()[name][1])
    )
    return claim_of(changed_settings(base, changed))


def _entry(base: Any, candidate: Any, other: Any) -> dict[str, Any]:
    exact = compare_exactly(short(base[0]), short(candidate[0]))
    numerical = compare_numerically(
        short(base[0]), short(candidate[0]), short(other[0]), (base[1], candidate[1], other[1])
    )
    return {
        "psnr": candidate[0].final("psnr"),
        "exact": asdict(exact),
        "numerical": asdict(numerical),
    }


def draw(pool: Mapping[str, Any], draws: int = DRAWS) -> dict[str, Any]:
    """Draw comparisons from the pool and judge each as `pitstop verify` would."""
    rng = np.random.default_rng(0)
    return {
        name: _rates([_outcome(pool, name, rng) for _ in range(draws)])
        for name in pool["runs"]
        if name != BASE
    }


def _outcome(pool: Mapping[str, Any], name: str, rng: np.random.Generator) -> dict[str, str]:
    """One comparison of five seeds; the first of them is that of the short runs."""
    seeds = rng.choice(len(pool["runs"][name]), SEEDS_OF_A_DRAW, replace=False).tolist()
    entry = pool["runs"][name][seeds[0]]
    exact = ExactComparison(**entry["exact"])
    claim = pool["claims"][name]
    findings = Findings(
        base=BASE,
        candidate=name,
        claim=claim,
        exact=exact,
        # Who claims equal bits is judged by them alone.
        numerical=None if claim == "exact" else _numerical(entry["numerical"]),
    )
    values = [[pool["runs"][side][seed]["psnr"] for seed in seeds] for side in (BASE, name)]
    test = judge_noninferiority(QUESTION, *values)
    if needs_statistics(findings):
        findings = replace(findings, statistical=test)
    verdict = conclude(findings)
    agreeing = [one.level for one in verdict.levels if one.outcome == verdict.outcome]
    return {
        "outcome": verdict.outcome,
        "level": " and ".join(agreeing),
        "statistical alone": test.outcome,
    }


def _numerical(values: Mapping[str, Any]) -> NumericalComparison:
    ratios = tuple(float("inf") if one is None else one for one in values["gradient_ratios"])
    return NumericalComparison(**{**values, "gradient_ratios": ratios})


def _rates(found: list[dict[str, str]]) -> dict[str, Any]:
    return {key: dict(Counter(one[key] for one in found)) for key in found[0]}


def main() -> None:
    """Record and draw, or draw alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--draw-only", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    pool = (
        json.loads(RESULT.read_text())
        if options.draw_only
        else record(options.seeds, options.first_seed)
    )
    pool["drawn"] = {"draws": DRAWS, "seeds": SEEDS_OF_A_DRAW, "rates": draw(pool)}
    # Infinities, of gradients of another shape, become null: JSON has none.
    text = json.dumps(json.loads(json.dumps(pool), parse_constant=lambda _: None), indent=1)
    RESULT.write_text(text + "\n", encoding="utf-8")
    print(json.dumps(pool["drawn"], indent=1))


if __name__ == "__main__":
    main()
