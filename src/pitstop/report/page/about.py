"""What the run was: settings with their proof, what was seen in use, machine and versions."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pitstop.doctor.readings import Applied, EngineWarning
from pitstop.records.engine import EngineSetup
from pitstop.records.host.machine import Machine
from pitstop.records.host.memory import HostLoad, MemoryReading
from pitstop.records.script import Compiled, Ended, Kernels, Setup, Source, Work
from pitstop.records.units import (
    NOT_MEASURED,
    bytes_text,
    count_text,
    digits,
    moment_text,
    rate_text,
    seconds_text,
    share_text,
    us_text,
)
from pitstop.report.logs import log_headline, log_rows
from pitstop.report.machine import ceiling_rows, headline
from pitstop.report.page.blocks import (
    Block,
    Message,
    Section,
    Table,
    named_columns,
    section_of,
    text_cell,
    text_columns,
)
from pitstop.report.page.run import RunView

Pairs = Iterable[tuple[str, str]]

_MOST_ROWS: Final = 120
_CONFIGS: Final = (".yaml", ".yml")


def settings_section(view: RunView) -> Section | None:
    """What was asked for and what really happened."""
    blocks = (*_applied(view), *_seen(view), *_work(view), *_log_settings(view), *_warnings(view))
    return section_of("settings", "Settings, with proof", blocks)


def _pairs(caption: str, pairs: Pairs, *, headings: tuple[str, str], note: str | None) -> Table:
    rows = [(text_cell(name), text_cell(value)) for name, value in pairs]
    return Table(
        caption=caption,
        columns=text_columns(*headings),
        rows=tuple(rows[:_MOST_ROWS]),
        note=note,
        left_out=max(0, len(rows) - _MOST_ROWS),
    )


def _applied(view: RunView) -> Iterable[Block]:
    applied = {one.setting: one.proof for one in view.readings("applied", Applied)}
    if applied:
        yield _pairs(
            "Settings that were applied",
            ((name, _proof(proof)) for name, proof in applied.items()),
            headings=("setting", "what it really did"),
            note="Recorded by the run itself when it took effect.",
        )


def _proof(proof: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {_word(value)}" for name, value in proof.items())


def _word(value: Any) -> str:
    """A value of a proof as a reader would say it."""
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    return digits(value) if isinstance(value, float) else str(value)


def _seen(view: RunView) -> Iterable[Block]:
    setups = view.readings("setup", Setup)
    if setups:
        yield _pairs(
            "What the script was seen to use",
            _setup_pairs(setups[-1]),
            headings=("what", "seen"),
            note="As seen in its steps, not as its settings claim.",
        )
    compiled = view.readings("compiled", Compiled)
    if compiled:
        last = compiled[-1]
        yield Message(
            text=f"torch.compile: {count_text(last.graphs, 'graph')}, "
            f"{count_text(last.graph_breaks, 'graph break')}, "
            f"{count_text(last.recompiles_after_warm_up, 'recompilation')} after warm-up, "
            f"{us_text(last.compile_us)} spent compiling; measured."
        )


def _setup_pairs(setup: Setup) -> Pairs:
    yield "device", setup.device_name or setup.device or "not known"
    yield "model", ", ".join(setup.models) or "not known"
    trained = setup.parameters
    yield "trained parameters", "not known" if trained is None else f"{trained:,}"
    formats = ", ".join(f"{name} {count:,}" for name, count in setup.parameter_dtypes.items())
    yield "their formats", formats or "not known"
    yield "optimizer", ", ".join(setup.optimizers) or "not known"
    yield "autocast", setup.autocast or "off"
    yield "gradient scaler", "yes" if setup.scaler else "no"
    yield "TF32 products", _word(setup.tf32)
    yield "torch.compile at work", _word(setup.compiled)
    yield "wrapper", setup.wrapper or "none"
    yield "recomputes activations", _word(setup.recomputes)
    yield "torch threads", str(setup.threads)
    each = setup.samples_per_step
    yield "samples a step on this rank", "not known" if each is None else digits(each)


def _work(view: RunView) -> Iterable[Block]:
    rows: list[tuple[str, str]] = []
    work, kernels = view.readings("work", Work), view.readings("kernels", Kernels)
    facts = view.facts
    if work:
        one = work[-1]
        rows.append(("arithmetic of a step", rate_text(one.flops, "FLOP")))
        if facts is not None and facts.step_us:
            rate = one.flops / (facts.step_us / 1e6)
            rows.append(("arithmetic rate, over the mean step", rate_text(rate, "FLOP/s")))
        rows.append(("bytes that operations touch", bytes_text(one.bytes_moved)))
        rows.append(("operations", f"{one.operations:,}, {one.left_out:,} of unknown cost"))
    if kernels:
        last = kernels[-1]
        share = last.busy_us / last.wall_us if last.wall_us else None
        rows.append(("kernels of a step", f"{last.launches:,}"))
        rows.append(("device busy in a profiled step", share_text(share)))
        rows.append(("waits for the device", f"{last.sync_calls:,} in a profiled step"))
    if rows:
        yield _pairs(
            "Work of a step", rows, headings=("what", "counted or measured"),
            note="Counted in steps that are left out of all other numbers.",
        )  # fmt: skip


def _log_settings(view: RunView) -> Iterable[Block]:
    if view.log is not None and view.log.settings:
        yield _pairs(
            "Settings that the log prints",
            view.log.settings.items(),
            headings=("setting", "as printed"),
            note="Printed by the run; nothing proves that they took effect.",
        )


def _warnings(view: RunView) -> Iterable[Block]:
    warnings = view.readings("warning", EngineWarning)
    if warnings:
        yield _pairs(
            "Warnings of the run",
            ((f"step {one.step:,}, {one.about}", one.text) for one in warnings),
            headings=("where", "what"),
            note="Written by the run while it went on.",
        )


def log_section(view: RunView) -> Section | None:
    """What a foreign log says, each number with its formula, and what it does not say."""
    if view.log is None:
        return None
    log = view.log.summary
    numbers = _pairs(
        "The log's own numbers", log_rows(log), headings=("what", "value and where it comes from"),
        note=f"Format as defined by {log.defined_by}.",
    )  # fmt: skip
    windows = view.rank.windows
    disagreements = () if windows is None else windows.log.disagreements
    blocks: list[Block] = [numbers]
    if disagreements:
        blocks.append(
            _pairs(
                "Printed numbers that are not what their names say",
                ((one.code, one.message) for one in disagreements),
                headings=("what", "how it shows"),
                note="From the log itself.",
            )
        )
    # By its name alone: a page is handed on, and where the log lay is in the footer.
    lead = log_headline(replace(log, source=view.name))
    return Section(key="log", title="What the log says", lead=lead, blocks=tuple(blocks))


def origin_of(view: RunView) -> Iterable[str]:
    """What a reader asks first: which script, which commit, where, on what, when."""
    attempts = view.rank.attempts
    if view.log is not None or not attempts:
        return
    last = attempts[-1]
    sources = view.readings("source", Source)
    script = sources[-1].script if sources else None
    if script is None:
        script = next((Path(one).name for one in last.command if one.endswith(".py")), None)
    commit = sources[-1].commit if sources else None
    setups = view.readings("setup", Setup)
    device = (setups[-1].device_name or setups[-1].device) if setups else None
    engine = view.readings("engine", EngineSetup)
    if engine:
        config = next((Path(one).name for one in last.command if one.endswith(_CONFIGS)), "")
        script, device = f"pitstop train {config}".strip(), engine[-1].device
    began = None if last.started_unix_s is None else moment_text(last.started_unix_s)
    named_commit = None if commit is None else f"commit {commit[:12]}"
    host = None if last.host is None else f"host {last.host}"
    yield from (text for text in (script, named_commit, host, device, began) if text)


def machine_section(view: RunView) -> Section | None:
    """The machine and the versions, as far as the record tells."""
    rows = list(_machine_pairs(view))
    machines = view.readings("machine", Machine)
    blocks: list[Block] = []
    if rows:
        blocks.append(
            _pairs("As the run recorded it", rows, headings=("what", "recorded"), note=None)
        )
    if machines:
        blocks.append(Message(text=headline(machines[-1])))
        ceilings = ceiling_rows(machines[-1])
        blocks.append(
            Table(
                caption="Measured ceilings of the machine",
                columns=(*named_columns("what", "rate"), *text_columns("how")),
                rows=tuple(tuple(map(text_cell, row)) for row in ceilings[:_MOST_ROWS]),
            )
        )
    return section_of("machine", "Machine and versions", blocks)


def _machine_pairs(view: RunView) -> Pairs:
    attempts = view.rank.attempts
    if attempts and view.log is None:
        last = attempts[-1]
        yield "Python", last.python or "not recorded"
        yield "torch", last.torch or "not recorded"
        yield "ranks", f"{last.world_size:,}"
        yield "attempts", f"{len(attempts):,}"
        if last.started_unix_s is not None:
            yield "last attempt began", moment_text(last.started_unix_s)
        if last.command:
            yield "command", " ".join(last.command)
    loads, memories = view.readings("load", HostLoad), view.readings("memory", MemoryReading)
    if loads:
        cores = loads[-1].usable_cores
        yield "usable cores", NOT_MEASURED if cores is None else digits(cores)
    if memories:
        yield "memory of the host", bytes_text(memories[-1].host_total_bytes)
    ended = view.readings("ended", Ended)
    if ended:
        yield "the command", f"{_ended_text(ended[-1])} after {seconds_text(ended[-1].wall_s)}"


def _ended_text(ended: Ended) -> str:
    if ended.stopped_by_us:
        return "was ended by pitstop once enough was measured,"
    return f"was ended by {ended.signal}" if ended.signal else f"ended with code {ended.exit_code}"
