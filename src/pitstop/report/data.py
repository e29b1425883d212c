"""Datasets as text."""

import shlex
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from pitstop.records.units import bytes_text, count_text, seconds_text, share_text
from pitstop.report.terminal_tables import headed, sum_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pitstop.data.check import DataCheck, SplitFound
    from pitstop.data.host_memory import DataStats
    from pitstop.data.pack import PackSummary
    from pitstop.workloads.bev.synthetic.make import MadeWorld
    from pitstop.workloads.deblur.synthetic import MadeClips
    from pitstop.workloads.reid.synthetic.make import MadePeople

# A screenful; the record has them all.
_MOST_PROBLEMS = 20


def made_clips_report(made: "MadeClips") -> Text:
    """Say what was generated, and how to train on it."""
    clips = " and ".join(f"{count} {split}" for split, count in made.clips.items())
    size = f"{made.height}x{made.width}"
    head = f"made {clips} clips of {count_text(made.frames, 'frame')} of {size}"
    spikes = "no spikes"
    if made.spike_height is not None:
        spikes = f"spikes of {made.spike_height}x{made.spike_width}"
    facts = (made.root, spikes, bytes_text(made.size_bytes), f"seed {made.seed}")
    lines = [f"{', '.join(facts)}, in {seconds_text(made.took_s)}"]
    return headed(head, *lines, _next("configs/deblur/small.yaml", f"data.root={made.root}"))


def made_people_report(made: "MadePeople") -> Text:
    """Say who was generated, what is wrong with them on purpose, and how to train on them."""
    people = " and ".join(f"{count:,} {split}" for split, count in made.people.items())
    images = ", ".join(f"{count:,} {name}" for name, count in made.images.items())
    content = f"{images} images, {made.captions:,} captions, {made.queries:,} queries"
    odd = f"{made.look_alikes} look nearly like another"
    # There are people to test on, so nobody has to be held back.
    settings = [f"data.root={made.root}", "data.holdout=0"]
    if made.corrupt:
        odd += f"; broken on purpose: {', '.join(made.corrupt)}"
        settings.append("loader.corrupt=skip")
    facts = (made.root, bytes_text(made.size_bytes), f"seed {made.seed}")
    return headed(
        f"made {people} people of {made.height}x{made.width}",
        content,
        odd,
        f"{', '.join(facts)}, in {seconds_text(made.took_s)}",
        _next("configs/reid/demo.yaml", *settings),
    )


def made_world_report(made: "MadeWorld") -> Text:
    """Say what was generated, and how to train on it."""
    scenes = " and ".join(f"{count:,} {split}" for split, count in made.scenes.items())
    samples = count_text(made.samples, "sample")
    facts = (made.root, made.version, f"{made.boxes:,} boxes", bytes_text(made.size_bytes))
    settings = (f"data.root={made.root}", f"data.version={made.version}")
    return headed(
        f"made {scenes} scenes, {samples} of six {made.height}x{made.width} images",
        f"{', '.join(facts)}, seed {made.seed}, in {seconds_text(made.took_s)}",
        _next("configs/bev/demo.yaml", *settings),
    )


def _next(preset: str, *settings: str) -> str:
    return f"next: pitstop config check {preset} {' '.join(map(shlex.quote, settings))}"


def check_report(check: "DataCheck") -> Text:
    """Say whether a dataset is whole, what is wrong with it, and what it holds."""
    count = len(check.problems)
    verdict = "everything can be read" if not count else count_text(count, "problem")
    lines = [f"  {problem}" for problem in check.problems[:_MOST_PROBLEMS]]
    if count > _MOST_PROBLEMS:
        lines.append(f"  and {count - _MOST_PROBLEMS:,} more; --json PATH writes them all")
    lines += [f"{name}: {_split_text(one, check.workload)}" for name, one in check.splits.items()]
    lines += [f"note: {note}" for note in check.notes]
    how = "every checksum compared" if check.packed else "every image decoded"
    lines.append(f"{how}, in {seconds_text(check.took_s)}")
    if not count and not check.packed:
        lines.append(f"next: pitstop data pack {shlex.quote(check.root)}")
    return headed(f"{check.root}: {verdict}", *lines)


def pack_report(pack: "PackSummary") -> Text:
    """Say what was packed, how large it is, and how to train on it."""
    packed = f"packed {count_text(pack.members, 'file')} into {bytes_text(pack.size_bytes)}"
    fields = ", ".join(f"{name} {bytes_text(size)}" for name, size in pack.field_bytes.items())
    return headed(
        f"{packed} (the files have {bytes_text(pack.source_bytes)})",
        f"{pack.path}: {fields}, in {seconds_text(pack.took_s)}",
        f"next: pitstop train CONFIG {shlex.quote(f'data.root={pack.path}')}",
    )


def stats_report(stats: "DataStats") -> RenderableType:
    """Say whether a run's data fit the host, with the sum written out."""
    share = share_text(stats.total_bytes / stats.host_limit_bytes)
    total, limit = bytes_text(stats.total_bytes), bytes_text(stats.host_limit_bytes)
    verdict = "fits" if stats.fits else "does not fit"
    head = f"{verdict}: data take up to {total} of the {limit} this host grants ({share})"
    return Group(
        Text(head, "bold"), sum_table(_stats_rows(stats)), *map(Text, _stats_closing(stats))
    )


def _stats_rows(stats: "DataStats") -> "Iterator[tuple[str, str, str]]":
    plan = stats.loader
    read = f"largest of {count_text(stats.samples_read, 'sample')} read, of {stats.samples:,}"
    yield "one sample", bytes_text(stats.sample_bytes), read
    yield "one batch", bytes_text(stats.batch_bytes), count_text(plan.batch_size, "sample")
    yield "batches waiting", bytes_text(stats.waiting_bytes), _waiting_text(stats)
    yield "batches in use", bytes_text(stats.in_use_bytes), "one a rank"
    pinned = "no copies: nothing is pinned (loader.pin, and a GPU to copy to)"
    if plan.pinned:
        pinned = "rounded up to powers of two by torch, and one more a rank while it is copied"
    yield "pinned copies", bytes_text(stats.pinned_bytes), pinned
    yield "cache", bytes_text(stats.cache_bytes), _cache_text(stats)
    yield "together", bytes_text(stats.total_bytes), "the processes themselves are not counted"


def _waiting_text(stats: "DataStats") -> str:
    plan = stats.loader
    if not plan.workers:
        return "none: loader.workers is 0"
    workers = f"{count_text(plan.ranks, 'rank')} x {count_text(plan.workers, 'worker')}"
    text = f"{workers} x {plan.prefetch} ahead = {stats.waiting_batches:,} batches"
    if plan.prefetch_bytes is not None:
        text += f", no more than loader.prefetch_bytes {bytes_text(plan.prefetch_bytes)}"
    return text


def _cache_text(stats: "DataStats") -> str:
    budget = stats.loader.cache_budget_bytes
    if budget == 0:
        return "none: cache.budget is 0"
    text = f"cache.budget {bytes_text(budget)}, once for the host, not for each process"
    if stats.decoded_bytes is not None:
        share = share_text(min(1.0, budget / stats.decoded_bytes) if stats.decoded_bytes else 1.0)
        text += f"; it holds {share} of the {bytes_text(stats.decoded_bytes)} of decoded frames"
    return text


def _stats_closing(stats: "DataStats") -> "Iterator[str]":
    if stats.assumed:
        yield (
            f"assumed: {' '.join(stats.assumed)}, all else as by default; a configuration instead "
            "of the dataset gives the sum of its run"
        )
    if not stats.shm_fits:
        yield (
            f"batches waiting do not fit /dev/shm, which has {bytes_text(stats.shm_free_bytes)} "
            "free: workers would die with a bus error; enlarge it, or lower loader.prefetch"
        )
    if not stats.fits:
        parts = {
            "cache.budget": stats.cache_bytes,
            "loader.prefetch or loader.workers": stats.waiting_bytes + stats.pinned_bytes,
            "train.batch_size": stats.in_use_bytes,
        }
        yield f"next: lower {max(parts, key=lambda name: parts[name])}, the largest part"
    elif stats.samples_damaged:
        damaged = count_text(stats.samples_damaged, "sample")
        yield f"{damaged} tried could not be read; next: pitstop data check names all of them"
    elif stats.shm_fits and stats.assumed:
        yield f"next: pitstop data check {shlex.quote(stats.config)}"
    elif stats.shm_fits:
        yield f"next: pitstop train {shlex.quote(stats.config)}"


def _split_text(split: "SplitFound", workload: str) -> str:
    files = ", ".join(f"{count:,} {kind}" for kind, count in split.files.items())
    if workload == "reid":
        holds = "1 person" if split.sequences == 1 else f"{split.sequences:,} people"
    else:
        holds = count_text(split.sequences, "scene" if workload == "bev" else "clip")
    return f"{holds}, {files}, {bytes_text(split.size_bytes)}"
