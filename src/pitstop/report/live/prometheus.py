"""A live view as Prometheus reads it: text, a line a number. What is not measured is not there."""

from collections.abc import Iterator, Mapping

from pitstop.report.live.view import LiveView, RankView

_HELP: Mapping[str, str] = {
    "pitstop_up": "1 while the run is alive, 0 when it is over.",
    "pitstop_step": "Steps done, of the rank that is furthest behind.",
    "pitstop_steps_total": "Steps the run will have, where the record says so.",
    "pitstop_samples_per_second": "Samples of all ranks on the wall clock, pauses included.",
    "pitstop_step_seconds": "Median wall clock of a step, by rank.",
    "pitstop_share": "Share of the step by part, by rank; parts and unaccounted are the whole.",
    "pitstop_loss": "The latest loss.",
    "pitstop_device_peak_bytes": "Most that the allocator took from the fullest device.",
    "pitstop_host_memory_bytes": "Host memory of the training process and its descendants.",
    "pitstop_bound_speedup": "Times as fast the run gets at most by fixing a finding.",
}

Sample = tuple[str, Mapping[str, str], float]


def metrics_text(view: LiveView) -> str:
    """Give all numbers of a view, each metric under its help."""
    found: dict[str, list[str]] = {}
    for name, labels, value in _samples(view):
        found.setdefault(name, []).append(
            f"{name}{_labels({'run': view.name, **labels})} {value!r}"
        )
    lines = [
        line
        for name, values in found.items()
        for line in (f"# HELP {name} {_HELP[name]}", f"# TYPE {name} gauge", *values)
    ]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _samples(view: LiveView) -> Iterator[Sample]:
    whole = {
        "pitstop_up": float(not view.is_over),
        "pitstop_step": view.step,
        "pitstop_steps_total": view.total_steps,
        "pitstop_samples_per_second": view.samples_per_s,
        "pitstop_loss": None if view.loss is None else view.loss.value,
        "pitstop_device_peak_bytes": view.memory and view.memory.device_peak_bytes,
        "pitstop_host_memory_bytes": view.memory and view.memory.tree_bytes,
    }
    for name, value in whole.items():
        if value is not None:
            yield name, {}, float(value)
    for rank in view.ranks:
        yield from _of_rank(rank)
    for finding in () if view.verdict is None else view.verdict.findings:
        if finding.bound is not None and finding.bound.speedup is not None:
            yield "pitstop_bound_speedup", {"finding": finding.code}, finding.bound.speedup


def _of_rank(rank: RankView) -> Iterator[Sample]:
    number = str(rank.rank)
    if rank.step_s is not None:
        yield "pitstop_step_seconds", {"rank": number}, rank.step_s
    for part in rank.parts:
        yield "pitstop_share", {"rank": number, "part": part.name}, part.share
