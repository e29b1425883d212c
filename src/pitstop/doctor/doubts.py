"""Where two measurements of one thing disagree, the finding says so, and less is sure.

Nothing here changes a share: which of the two is right is not known. It warns a reader, and whoever
reads the verdict as data, that a bound rests on a measurement that another one contradicts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from pitstop.doctor.division import gaps_of
from pitstop.doctor.facts import Facts
from pitstop.doctor.loader_facts import loader_facts_of
from pitstop.doctor.thresholds import (
    HOST_WORTH,
    LEAST_CHANGE,
    LOSS_WORTH,
    OPTIMIZER_WORTH,
    WORTH_A_WARNING,
    is_sure,
    may_differ,
)
from pitstop.records.script import HostLines, Kernels, Modules, Work
from pitstop.records.units import count_text, share_text, us_text
from pitstop.records.verdict import Finding

# Two clocks over different steps of one run; if they differ by more, they do not measure the same.
_FACTOR: Final = 2.0
# Device time by marks and by kernels, as shares of the wall clock.
_SHARES_DIFFER: Final = 0.15
# The host's clock and the device's on one step; kernels of profiled steps run a little longer.
_STEPS_DIFFER: Final = 0.2

# Stack samples that show the loss being computed; the probe divides a gap by no fewer.
_FEWEST_ON_LOSS: Final = 5

# As many evaluations as steps, but for some that a warm-up or a pass's end keeps apart.
_AS_MANY: Final = 0.8

# Parts of a step with a rule of their own, and the share from which it reports.
_JUDGED: Final = {
    "data": WORTH_A_WARNING,
    "host": HOST_WORTH,
    "optimizer": OPTIMIZER_WORTH,
    "loss": LOSS_WORTH,
}

_REPORTED_FROM: Final = {
    "DATA001": WORTH_A_WARNING,
    "EVAL001": WORTH_A_WARNING,
    "CKPT001": WORTH_A_WARNING,
    "HOST001": HOST_WORTH,
    "OPT001": OPTIMIZER_WORTH,
    "LOSS001": LOSS_WORTH,
}


def with_doubts(finding: Finding, facts: Facts) -> Finding:
    """Add to a finding what contradicts it."""
    found = [] if finding.bound is None else [*divided_by_few(facts, finding.bound.part)]
    is_divided = bool(found)
    if finding.code == "LOSS001":
        found += _loss_unseen(facts)
    if finding.code == "DATA001":
        found += _workers_disagree(facts)
    if finding.code == "EVAL001":
        found += _evaluates_at_every_step(facts)
    if finding.bound is not None and facts.on_gpu:
        found += _clocks_disagree(facts, finding.bound.part)
        if is_unsampled(facts, Kernels):
            found.append("kernels were not sampled: whether the device waits is not known")
    if not is_divided:
        found += _near_its_limit(finding)
    return replace(finding, doubts=(*finding.doubts, *found)) if found else finding


def _near_its_limit(finding: Finding) -> Iterator[str]:
    """Say that another run of the same program may not report this."""
    bound, least = finding.bound, _REPORTED_FROM.get(finding.code)
    if bound is None or least is None or not may_differ(bound.share, bound.error, least):
        return
    yield (
        f"{share_text(bound.share, bound.error)} is reported from {share_text(least)} and two "
        "standard errors on; another run may not report it"
    )


def divided_by_few(facts: Facts, part: str) -> Iterator[str]:
    """Say between what a part's share lies where few stack samples divided a gap.

    Few are those that leave more open than what two runs of one program differ by.
    """
    share, error = facts.share(part), facts.division_error(part)
    if share is None or error <= LEAST_CHANGE * share:
        return
    gap = min(gaps_of(part, facts.readings.last(HostLines)), key=lambda gap: gap.samples)
    low, high = _interval(share, facts.share_error(part))
    yield (
        f"the time between {gap.before or 'the start of a step'} and {gap.after or 'its end'} was "
        f"divided by {count_text(gap.samples, 'stack sample')}: {part} takes {share_text(low)} to "
        f"{share_text(high)} of the time"
    )


def _loss_unseen(facts: Facts) -> Iterator[str]:
    """Say that the time between forward and backward is called loss for want of stack samples."""
    found = facts.readings.last(HostLines)
    if found is None or not found.samples or gaps_of("loss", found):
        return
    seen = sum(line.samples for line in found.lines if line.part == "loss")
    if seen < _FEWEST_ON_LOSS:
        yield (
            f"{count_text(seen, 'stack sample')} found the loss being computed: the time between "
            "forward and backward may be something else's"
        )


def _evaluates_at_every_step(facts: Facts) -> Iterator[str]:
    """Say that what is called evaluating may be batches of the training.

    A loader is taken for what it did first: of one that evaluated before it trained, every batch
    lies in an evaluation.
    """
    outside = facts.outside.get("evaluation")
    loaders = () if facts.setup is None else facts.setup.loaders
    if outside is None or not loaders or any(loader.trains for loader in loaders):
        return
    if outside.count < _AS_MANY * facts.steps:
        return
    evaluations = count_text(outside.count, "evaluation")
    yield (
        f"{evaluations} in {count_text(facts.steps, 'step')}: where one loader evaluates and "
        "trains, these may be the batches of the training"
    )


def open_parts(facts: Facts, reported: Sequence[Finding]) -> Iterator[tuple[str, float, str]]:
    """Give parts that few stack samples leave open to be too long, though no finding says so.

    Each with the most that its share can be, and why that is open.
    """
    known = {finding.bound.part for finding in reported if finding.bound is not None}
    for part, least in _JUDGED.items():
        cost = facts.waste if part in ("data", "host") else facts.cost
        bound = None if part in known else cost(part)
        if bound is None:
            continue
        _, high = _interval(bound.share, facts.share_error(part))
        if high >= least:
            yield from ((part, high, why) for why in divided_by_few(facts, part))


def _interval(share: float, error: float) -> tuple[float, float]:
    """Two standard errors to either side."""
    return max(0.0, share - 2 * error), min(1.0, share + 2 * error)


def parts_near_limit(facts: Facts) -> Iterator[str]:
    """Name the parts that another run of the same program may report, with their shares."""
    for part, least in _JUDGED.items():
        cost = facts.waste if part in ("data", "host") else facts.cost
        bound, error = cost(part), facts.share_error(part)
        if bound is not None and may_differ(bound.share, error, least):
            yield f"{part} ({share_text(bound.share, error)}, reported from {share_text(least)})"


def is_unsampled(facts: Facts, kind: type[Kernels] | type[Work]) -> bool:
    """Whether somebody's script runs on a GPU and has no readings of a kind.

    What the host does then says nothing of whether the device idles, waits or computes slowly.
    """
    attempts = facts.record.attempts
    attached = bool(attempts and attempts[-1].about.get("attached"))
    watched = facts.setup is not None or attached
    return watched and facts.on_gpu and not facts.readings.all(kind)


def uneven_part(facts: Facts) -> str | None:
    """Say that a part takes twice its threshold, but varies too much to be judged.

    Not on a GPU, where the host's parts may take any share of a step that the device fills.
    """
    for part, limit in _JUDGED.items():
        share = facts.share(part)
        if facts.on_gpu or share is None or share < 2 * limit:
            continue
        if not is_sure(facts, part, share, least=limit):
            took = share_text(share, facts.share_error(part))
            return (
                f"{part} took {took} of the time, but varies too much to judge; measure more steps"
            )
    return None


def _workers_disagree(facts: Facts) -> Iterator[str]:
    """Set the wait for data against the times of those who make the batches."""
    loader, waits = loader_facts_of(facts), facts.parts_us.get("data")
    if loader is None or waits is None or not loader.batches or not loader.busy_us:
        return
    made_us = loader.busy_us / loader.batches * (facts.micro_steps or 1)
    wait_us = facts.mean_us(waits)
    if not loader.workers:
        if not 1 / _FACTOR <= wait_us / made_us <= _FACTOR:
            yield (
                f"the loop waits {us_text(wait_us)} per step, but making a batch in the same "
                "process "
                f"takes {us_text(made_us)} by the loader's timer"
            )
    elif made_us / loader.workers * _FACTOR < facts.step_us and loader.unfinished_share is None:
        yield (
            f"by the loader's timer {loader.workers} workers make a batch every "
            f"{us_text(made_us / loader.workers)}, and a step takes {us_text(facts.step_us)}: "
            "the loop may "
            "wait for something else"
        )


def _clocks_disagree(facts: Facts, part: str) -> Iterator[str]:
    """Set the host's clock, the device's marks and the profiled kernels against each other."""
    device_us, sampled = facts.device_step_us, facts.sampled_wall_us
    host_us = float(sampled.mean()) if len(sampled) else 0.0
    if device_us is not None and abs(device_us - host_us) > _STEPS_DIFFER * max(device_us, host_us):
        yield (
            f"a step takes {us_text(host_us)} by the host's clock and {us_text(device_us)} by "
            "the device's"
        )
    busy_us = [kernels.busy_us for kernels in facts.readings.all(Kernels)]
    if busy_us and min(busy_us) > (1 + _STEPS_DIFFER) * facts.step_us:
        yield (
            f"kernels of a profiled step take {us_text(min(busy_us))}, but a step "
            f"{us_text(facts.step_us)}"
        )
    idle, shown = facts.idle_share(), facts.device_share(part)
    if part == "data" and idle is not None and shown is not None and shown > idle + _SHARES_DIFFER:
        yield (
            f"the device idled {share_text(shown)} of the time by CUDA events, "
            f"{share_text(idle)} by its kernels"
        )


def modules_disagree(facts: Facts) -> str | None:
    """Set the modules of the sampled step against the forward pass that they make up."""
    found, forward = facts.readings.last(Modules), facts.parts_us.get("forward")
    # Parts are on the host's clock, which runs ahead of a device.
    if found is None or forward is None or not found.modules or found.clock == "device":
        return None
    outermost = [module for module in found.modules if module.parent is None]
    sum_us, part_us = sum(module.forward_us for module in outermost), facts.mean_us(forward)
    if not sum_us or part_us / _FACTOR <= sum_us <= part_us * _FACTOR:
        return None
    return f"modules sum to {us_text(sum_us)}, but the forward pass takes {us_text(part_us)}"
