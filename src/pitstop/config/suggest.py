"""What somebody who wrote an unknown key may have meant."""

import difflib
from collections.abc import Collection
from typing import Final

# Names the field uses for our settings, without underscores and in lower case.
_ALSO_CALLED: Final = {
    "accumgrad": "train.accumulate",
    "accumulationsteps": "train.accumulate",
    "amp": "train.precision",
    "augmentation": "data.augment",
    "autocast": "train.precision",
    "batch": "train.batch_size",
    "bs": "train.batch_size",
    "cachesize": "cache.budget",
    "cachesizegb": "cache.budget",
    "checkpointing": "train.recompute",
    "clipgradnorm": "train.clip.norm",
    "compilemodel": "train.compile.scope",
    "cropsize": "data.crop",
    "dataroot": "data.root",
    "dtype": "train.precision",
    "expdir": "run.work_dir",
    "fp16": "train.precision",
    "gradclip": "train.clip.norm",
    "gradientaccumulationsteps": "train.accumulate",
    "gradientcheckpointing": "train.recompute",
    "gradientclipval": "train.clip.norm",
    "learningrate": "optimizer.lr",
    "logevery": "log.every_steps",
    "lossscale": "train.scaler.start",
    "maxepochs": "train.epochs",
    "maxgradnorm": "train.clip.norm",
    "maxiters": "train.steps",
    "maxsteps": "train.steps",
    "mixedprecision": "train.precision",
    "numepochs": "train.epochs",
    "numinstance": "data.records_per_id",
    "numworkers": "loader.workers",
    "optim": "optimizer",
    "outputdir": "run.work_dir",
    "persistentworkers": "loader.persistent",
    "pinmemory": "loader.pin",
    "prefetchfactor": "loader.prefetch",
    "samplespergpu": "train.batch_size",
    "sched": "schedule",
    "scheduler": "schedule",
    "totalsteps": "train.steps",
    "usecheckpoint": "train.recompute",
    "validation": "eval",
    "wd": "optimizer.weight_decay",
    "workdir": "run.work_dir",
    "workerspergpu": "loader.workers",
}
_LONGEST: Final = 80


def suggest(key: str, known: Collection[str]) -> tuple[str, ...]:
    """Name up to three known keys for an unknown one, the likeliest first."""
    key = key.lower()[:_LONGEST]
    parent, _, leaf = key.rpartition(".")
    called = _ALSO_CALLED.get(leaf.replace("_", "").replace("-", ""), "")
    if called in known:
        return (called,)
    beside = [name for name in known if name.rpartition(".")[0] == parent]
    by_leaf = {name.rpartition(".")[2]: name for name in beside}
    close = difflib.get_close_matches(leaf, by_leaf, n=1, cutoff=0.7)
    if close:
        return (by_leaf[close[0]],)
    same_leaf = [name for name in known if name.rpartition(".")[2] == leaf]
    if same_leaf:
        return tuple(sorted(same_leaf, key=lambda name: name.count("."))[:3])
    others = [name for name in known if not key.startswith(f"{name}.")]
    return tuple(difflib.get_close_matches(key, others, n=1, cutoff=0.7))


def did_you_mean(key: str, known: Collection[str]) -> str:
    """Phrase the suggestion as the end of a message; empty where there is none."""
    found = suggest(key, known)
    if not found:
        return ""
    *most, last = found
    return f"; did you mean {', '.join(most)} or {last}?" if most else f"; did you mean {last}?"
