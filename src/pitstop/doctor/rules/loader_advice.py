"""How batches could be made beside the step, on this script and this machine."""

from typing import Final

from pitstop.doctor.facts import Facts
from pitstop.doctor.loader_facts import usable_cores, workers_of
from pitstop.doctor.rules.fitting import has_no_loader
from pitstop.doctor.rules.machine import contention, host_is_full

VECTORISE: Final = (
    "step many environments at once and give the model their observations as one batch: "
    "gymnasium.make_vec(..., num_envs=N, vectorization_mode='async')"
)

_OFF_THE_THREAD: Final = (
    "make batches outside the training thread: a DataLoader with workers, or a prefetching thread"
)


def more_workers(facts: Facts) -> str:
    """Advise loader workers where cores are free for them; else say who has the cores."""
    taken = cores_taken(facts)
    if taken is not None:
        return f"no core is free for loader workers ({taken}): run where some are free"
    if has_no_loader(facts):
        return _OFF_THE_THREAD
    enough = enough_workers(facts)
    if facts.is_engine_run:
        value = "raise loader.workers" if enough is None else f"loader.workers: {enough}"
        return f"prepare batches in parallel with the step: {value}"
    number = "N" if enough is None else enough
    code = f"DataLoader(..., num_workers={number}, persistent_workers=True)"
    return f"prepare batches in parallel with the step: {code}"


def if_it_loads(facts: Facts) -> str:
    """Advise for lines of the training thread that may make the next batch."""
    advice = (
        _OFF_THE_THREAD
        if has_no_loader(facts)
        else "put that into a Dataset, which DataLoader(..., num_workers=N, "
        "persistent_workers=True) reads beside the step"
    )
    taken = cores_taken(facts)
    return f"if it makes the next batch: {advice}" + (
        "" if taken is None else f"; no core is free for that now: {taken}"
    )


def enough_workers(facts: Facts) -> int | None:
    """Workers that leave a core to the training process; None where cores were not counted."""
    cores = usable_cores(facts)
    return None if cores is None else max(1, int(cores) - 1)


def cores_taken(facts: Facts) -> str | None:
    """Say who keeps every core of the host busy; None where some are free, or nothing was read.

    Workers of the job's own are no reason: more of them is judged by their number.
    """
    others = contention(facts)
    if others is not None or workers_of(facts) or not host_is_full(facts):
        return others
    return "this job's own threads keep all of them busy"
