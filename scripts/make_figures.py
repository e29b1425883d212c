"""Write the figures of README and docs from benchmarks/results; `--check` fails if one is stale.

Two kinds of place in a page. A block between `<!-- figures: NAME -->` and `<!-- /figures -->` is a
table of `TABLES`, written whole. A number right before `<!-- figure: NAME -->` is one of `FIGURES`.
A name that no page uses, or that nothing here knows, is an error: figures do not get lost quietly.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results"
GIB: Final = 2**30

_BLOCK: Final = re.compile(
    r"(?P<open><!-- figures: (?P<name>[\w.-]+) -->\n)(?P<body>.*?)(?P<close><!-- /figures -->)",
    re.DOTALL,
)
_NUMBER: Final = re.compile(r"(?P<value>[\d.,]*\d)(?P<mark><!-- figure: (?P<name>[\w.-]+) -->)")

Json = dict[str, Any]


@cache
def results(name: str) -> Json:
    """A benchmark's result file."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    heads = list(head)
    lines = [heads, ["---"] * len(heads), *(list(row) for row in rows)]
    return "".join(
        "|" + "|".join(f" {cell} " if cell != "---" else cell for cell in line) + "|\n"
        for line in lines
    )


def percent(share: float, digits: int = 1) -> str:
    """A share in percent."""
    return f"{100 * share:.{digits}f}%"


def times(ratio: Mapping[str, float], digits: int = 1) -> str:
    """A ratio with the range of its pairs."""
    return f"{ratio['median']:.{digits}f}x ({ratio['low']:.2f}x to {ratio['high']:.2f}x)"


def reid_step() -> str:
    """Re-identification, baseline against fast."""
    presets = results("reid_step_h200")["presets"]

    def row(name: str) -> list[str]:
        rate = presets[name]["samples_per_s_median"]
        waits = [block["host_waits_for_data"] for block in presets[name]["blocks"]]
        step_ms = 1000 * presets[name]["batch_size"] / rate
        return [f"`{name}`", f"{rate:.0f}", f"{step_ms:.0f} ms", percent(_median(waits))]

    return table(("preset", "samples/s", "step", "data wait"), map(row, ("baseline", "fast")))


def packs() -> str:
    """Samples read from folders and from packs."""

    def row(name: str, preset: dict[str, Any]) -> list[str]:
        taken, size = preset["ms_a_sample"], preset["bytes"]
        ratio = preset["ratio"]["decoded"]
        return [
            name,
            *(f"{taken[kind]:.0f} ms" for kind in ("folders", "encoded", "decoded")),
            f"{ratio['median']:.1f} ({ratio['low']:.1f} to {ratio['high']:.1f})",
            f"{size['decoded'] / size['folders']:.1f}",
        ]

    head = ("a sample of", "folders", "encoded", "decoded", "decoded, times as fast", "as large")
    return table(head, (row(*each) for each in results("packs_epyc_cpu")["presets"].items()))


def deblur_techniques() -> str:
    """Ways of training a deblurring network, each against the plain one, seed by seed."""
    plain = {"order": "shuffle", "crops": "64", "distill": "alone", "perceptual": "never"}
    groups = results("deblur_techniques_epyc_cpu")["groups"]

    def rows() -> Iterator[list[str]]:
        for group, first in plain.items():
            for variant, found in groups.get(group, {"summary": {}})["summary"].items():
                if variant != first:
                    gains = ", ".join(f"{gain:+.3f} dB" for gain in found["over_first_db"])
                    ratios = ", ".join(f"{ratio:.2f}" for ratio in found["processor_ratio"])
                    yield [group, f"{variant} against {first}", gains, ratios or "not measured"]

    return table(("setting", "compared", "PSNR, by seed", "processor time, ratio"), rows())


def reid_quality() -> str:
    """Re-identification, mAP by number of modalities."""
    found = results("reid_quality_h200")
    kinds = ("one", "two", "three", "four")
    rows = [
        [label, *(f"{found[key][f'mAP_{kind}']:.3f}" for kind in kinds)]
        for label, key in (
            ("trained, mean of three seeds", "mean"),
            ("colour histograms", "histogram"),
            ("chance", "random"),
        )
    ]
    return table(("mAP of queries of", "one", "two", "three", "four modalities"), rows)


def bev_step() -> str:
    """Bird's-eye view, presets in turns."""
    groups = results("bev_step_h200")["groups"]

    def row(group: str, member: str, label: str, *, note: str = "") -> list[str]:
        one = groups[group]["members"][member]
        rate = one["samples_per_s_median"]
        ratio = groups[group]["ratio_to_first"].get(member)
        shown = f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"
        return [
            label,
            f"{one['batch_size']}{note}",
            shown if ratio is None else f"{shown}, {times(ratio)}",
            percent(one["share_of_bf16_peak"]),
            percent(one["host_waits_for_data"]),
        ]

    head = ("preset", "batch", "samples/s, against the row above", "of the bf16 rate", "data wait")
    rows = [
        row("equal", "mono_baseline", "`mono_baseline`"),
        row("equal", "mono_speed", "`mono_speed`"),
        row("best", "mono_baseline at 32", "`mono_baseline`", note=", its best"),
        row("best", "mono_speed at 32", "`mono_speed`"),
        row(
            "surround",
            "surround, fp32, reference",
            "`surround` in fp32, uncompiled, reference kernels",
        ),
        row("surround", "surround", "`surround`"),
    ]
    return table(head, rows)


def bev_batches() -> str:
    """Bird's-eye view, batch and precision one at a time."""
    members = results("bev_step_h200")["groups"]["table"]["members"]

    def row(one: Json) -> list[str]:
        rate = one["samples_per_s_median"]
        peak = one["blocks"][0]["peak_above_rest_bytes"] / GIB
        step_ms = 1000 * one["batch_size"] / rate
        return [
            str(one["batch_size"]),
            one["precision"],
            f"{rate:.1f}",
            f"{step_ms:.0f}",
            f"{peak:.1f} GiB",
        ]

    head = ("batch", "precision", "samples/s", "ms a step", "memory of a step")
    return table(head, map(row, members.values()))


def bev_quality() -> str:
    """Bird's-eye view, overlap against constants."""
    found = results("bev_quality_h200")
    spread, blind = found["spread"], found["without_looking"]

    def span(key: str) -> str:
        low, high = spread[key]
        return f"{low:.3f} to {high:.3f}"

    rows = [
        ["the network", span("map_miou_best"), span("iou_best/vehicle")],
        *(
            [label, f"{blind[key]['map_miou']:.3f}", f"{blind[key]['iou/vehicle']:.3f}"]
            for label, key in (
                ("best constant", "constant"),
                ("each cell's own frequency in training", "cell_frequency"),
            )
        ),
    ]
    return table(("", "map classes, mean", "vehicles"), rows)


def deblur_quality() -> str:
    """Deblurring, with and without spikes."""
    rows = results("deblur_quality_h200")["rows"]

    def row(kind: str) -> list[str]:
        of = [each for each in rows if each["kind"] == kind]
        gains = ", ".join(f"+{gain:.2f}" for gain in sorted(each["gain_db"] for each in of))
        return [f"`{kind}`", f"{gains} dB", f"{_median(each['ssim'] for each in of):.2f}"]

    head = ("network", "PSNR over the blurred frame", "SSIM")
    return table(head, map(row, ("vrt_spike", "vrt")))


def vrt_step() -> str:
    """VRT beside its authors' code: four runs, each against the authors' code in the same run."""
    found = results("deblur_vrt_h200")
    runs = {
        "first": found["earlier_run"]["rows"],
        "second": found["second_run"]["rows"],
        "third": found["third_run"]["rows"],
        "fourth": found["rows"],
    }

    def row(run: str, name: str, label: str) -> list[str]:
        one = next(each for each in runs[run] if each["name"] == name)
        low, high = one["ratio_range"]
        ratio = f"{one['times_as_fast_as_first']:.2f}x"
        launches = round(one["launches"], -1)
        return [
            label,
            f"{one['step_ms']:,.0f} ms",
            "1" if low == high == 1 else f"{ratio} ({low:.2f}x to {high:.2f}x)",
            f"{one['peak_gib']:.0f} GiB",
            f"{launches:,}",
        ]

    head = ("variant", "step", "against the authors'", "peak", "launches")
    rows = [
        row("first", "authors, recomputed", "first run: authors' code, recomputing"),
        row("first", "reference, recomputed", "reference kernels, recomputing"),
        row("first", "fused, recomputed", "fused attention, recomputing"),
        row("first", "fused", "fused attention, nothing recomputed"),
        row("second", "authors, recomputed", "second run: authors' code, recomputing"),
        row("second", "reference, recomputed", "reference kernels, recomputing"),
        row("second", "fused", "fused attention, alignment and gate, nothing recomputed"),
        row("third", "authors, recomputed", "third run: authors' code, recomputing"),
        row("third", "reference, recomputed", "reference kernels, recomputing"),
        row("third", "fused", "whole blocks fused too, nothing recomputed"),
        row("third", "fused, graph", "the same, recorded as one CUDA graph"),
        row("fourth", "authors, recomputed", "fourth run: authors' code, recomputing"),
        row("fourth", "reference, recomputed", "reference kernels, recomputing"),
        row("fourth", "fused", "fewer launches, nothing recomputed"),
        row("fourth", "fused, graph", "the same, recorded as one CUDA graph"),
    ]
    return table(head, rows)


def vrt_memory() -> str:
    """VRT by fused kernels, within caps of memory and by batch."""

    def row(one: Json) -> list[str]:
        cap = "all" if one["cap_gb"] is None else f"{one['cap_gb']} GB"
        recomputed = one.get("recomputed") or {}
        said = ", ".join(f"{name} {count}" for name, count in recomputed.items()) or "nothing"
        if one["outcome"] != "ran":
            return [cap, str(one["batch"]), said, one["outcome"], "", ""]
        return [
            *(cap, str(one["batch"]), said.replace("_", "-")),
            f"{one['peak_reserved_gib']:.1f} GiB",
            f"{one['step_ms']:,.0f} ms",
            f"{one['samples_per_s']:.2f}",
        ]

    head = ("memory", "batch", "recomputed", "reserved at the peak", "step", "clips/s")
    return table(head, map(row, results("deblur_memory_h200")["rows"]))


def cache_memory() -> str:
    """The shared cache, memory above the same run without one."""
    found = results("shared_cache_epyc_cpu")["memory"]
    none = found["runs"]["none"]["peak_tree_pss_mib"]

    def row(label: str, run: str, ratio: str) -> list[str]:
        above = found["runs"][run]["peak_tree_pss_mib"] - none
        return [label, f"{above:,.0f} MiB", f"{found[ratio]:.2f}x"]

    rows = [
        row("shared cache", "shared", "shared_over_budget"),
        row("an LRU of that budget in every process", "per process", "per_process_over_budget"),
    ]
    return table(("", "above no cache", "of the budget"), rows)


def cache_cost() -> str:
    """The shared cache, quickest blocks."""
    cost = results("shared_cache_epyc_cpu")["cost"]
    kinds = {
        "a hit, without the bytes": "hit_us",
        "the same 256 x 256 crop again": "same_crop_us",
        "a random crop of a random item": "random_crop_us",
        "the same, in a part of the cache that the process has not touched before": (
            "first_visit_crop_us"
        ),
        "clone of the item, then crop; the clone is freed at once": "clone_then_crop_us",
        "a crop in a batch of eight, stacked": "batch_of_crops_us",
        "a clone in a batch of eight, whose crops are stacked": "batch_of_clones_us",
    }
    policies = ("keep", "lru", "epoch")

    def cell(policy: str, key: str) -> str:
        us = cost[policy][key]["min"]
        return f"{us:,.1f} us" if us < 10 else f"{us:,.0f} us"

    rows = [[label, *(cell(policy, key) for policy in policies)] for label, key in kinds.items()]
    return table(("", *(f"`{policy}`" for policy in policies)), rows)


def reid_ranking() -> str:
    """Exact ranking against the common loops."""
    found = results("reid_ranking_epyc_cpu")

    def cell(of: str, key: str) -> str:
        ratio = found[of]["ratios"][key]
        return f"{ratio['median']:.3g}x ({', '.join(f'{each:.3g}' for each in ratio['all'])})"

    def row(label: str, of: str, loop: str) -> list[str]:
        learned = f"{of}, mAP {found[of]['mAP']:.2g}"
        clocks = (f"{loop} / ours, wall clock", f"{loop} / ours, processor time")
        return [label, learned, *(cell(of, clock) for clock in clocks)]

    loop = (
        "the common loop: rows sorted, then masks, running sums and a Python list for each query "
        f"(on the first {found['list_queries']} queries, ours on the same)"
    )
    arrays = "the same loop with the list replaced by array division"
    rows = [
        row(loop, "learned", "list"),
        row(arrays, "learned", "arrays"),
        row(arrays, "noise", "arrays"),
    ]
    return table(("against", "features", "wall clock", "processor time"), rows)


def verify_rates() -> str:
    """Planted harms and harmless changes: how often each outcome, and at which level."""
    pool = results("verify_pool_epyc_cpu")
    draws = pool["drawn"]["draws"]

    def counted(found: Mapping[str, int]) -> str:
        return ", ".join(f"{name} {count}" for name, count in sorted(found.items()))

    def row(name: str) -> list[str]:
        rates = pool["drawn"]["rates"][name]
        return [
            name,
            pool["claims"][name],
            counted(rates["outcome"]),
            ", ".join(sorted(rates["level"])),
            counted(rates["statistical alone"]),
        ]

    head = ("change", "claim", f"outcomes of {draws}", "decided at", "the metric alone")
    return table(head, map(row, pool["drawn"]["rates"]))


def verify_ratios() -> str:
    """The largest distance over that of another seed, smallest and largest over the seeds."""
    pool = results("verify_pool_epyc_cpu")

    def largest(run: Json) -> float:
        ratios = [run["numerical"]["loss_ratio"], *run["numerical"]["gradient_ratios"]]
        return max(float("inf") if one is None else one for one in ratios)

    def row(name: str) -> list[str]:
        found = [largest(run) for run in pool["runs"][name]]
        return [name, *(f"{pick(found):.3f}" for pick in (min, max))]

    rounding = [name for name, claim in pool["claims"].items() if claim == "rounding"]
    return table(("change", "smallest", "largest"), map(row, rounding))


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _drill(part: str, state: str = "drill_epyc_cpu") -> Json:
    return results(state)["parts"][part]


def _counted(part: str) -> str:
    """A part of the drill: each fault, how often it was tried and survived, what went wrong."""
    found = _drill(part)
    rows = []
    for name, tried in found["tried"].items():
        wrong = {
            trouble.removeprefix(f"{name}: "): count
            for trouble, count in found["troubles"].items()
            if trouble.startswith(f"{name}: ")
        }
        said = ", ".join(f"{trouble} ({count})" for trouble, count in wrong.items())
        rows.append([name, str(tried), str(found["survived"][name]), said or "nothing"])
    return table(("fault", "tried", "survived", "went wrong"), rows)


def shards_equal() -> str:
    """How far a divided model ends from a whole one, what rounding comes to, what a rank holds."""
    pairs = (
        *("float64 divided", "float64 nudged"),
        *("float32 divided", "float32 nudged", "float32 small buckets"),
    )

    def apart(found: Json) -> str:
        values = (found.get("whole"), found.get("tensor"))
        return " / ".join("-" if value is None else f"{value:.1e}" for value in values)

    def row(name: str, found: Json) -> list[str]:
        held = found["held"]
        share = found["applied"]["held_bytes"] / found["applied"]["parameters_bytes"]
        return [
            name,
            *(apart(found[pair]) if pair in found else "" for pair in pairs),
            f"{share:.0%}",
            f"{held['planned_optimizer_bytes']:,} / {held['optimizer_bytes']:,}",
        ]

    head = (
        *("preset, 50 steps", "float64: divided", "DDP, a rounding away"),
        *("float32: divided", "DDP, a rounding away", "DDP, other buckets", "weights held"),
        "optimizer state, bytes planned / measured",
    )
    runs = results("shards_epyc_cpu")["runs"]
    return table(head, (row(name, found) for name, found in sorted(runs.items())))


def shards_memory() -> str:
    """What one of several ranks is planned to hold at a step's peak, and what it held."""

    def peaks(found: Json) -> list[str]:
        measured = found["measured"]
        unseen = max(0, measured["grown_by_allocator_bytes"] - measured["grown_bytes"])
        planned, held = sum(found["planned"].values()), measured["peak_bytes"] + unseen
        off = round(planned / held - 1, 3) + 0.0
        return [f"{planned / 1e6:.2f} / {held / 1e6:.2f} MB", f"{off:+.1%}"]

    def row(name: str, runs: Json, ranks: str) -> list[str]:
        ways = (peaks(runs[f"{way}, {ranks}"]) for way in ("none", "full"))
        return [f"{name}, {ranks}", *chain.from_iterable(ways)]

    head = ("preset", "whole: planned / measured", "off", "divided: planned / measured", "off")
    runs = results("shard_memory_cpu")["runs"]
    return table(
        head,
        (row(name, runs[name], ranks) for name in sorted(runs) for ranks in ("2 ranks", "4 ranks")),
    )


def shards_growth() -> str:
    """How far a rounding at the start, or the division, has led after some steps."""
    runs = results("shards_growth_cpu")["runs"]

    def row(name: str, count: str, found: Json) -> list[str]:
        ones = [found[key]["whole"] for key in found if key.startswith("one ")]
        others = f"{min(ones):.1e} to {max(ones):.1e}"
        return [name, count, *(f"{found[way]['whole']:.1e}" for way in ("divided", "all")), others]

    head = ("preset", "steps", "divided", "DDP, all weights nudged", "DDP, one number nudged")
    return table(
        head,
        (row(name, count, found) for name in sorted(runs)
         for count, found in runs[name]["after"].items()),
    )  # fmt: skip


def drill_soak() -> str:
    """What a training and the watching of it hold over time."""

    def grown(found: Json, what: str) -> list[str]:
        first, last = (found[f"{what}_{when}_bytes"] / 2**20 for when in ("first", "last"))
        return [
            f"{first:.1f} to {last:.1f} MiB",
            f"{found[f'{what}_bytes_per_hour'] / 1e6:+.1f} MB",
        ]

    def row(name: str, found: Json) -> list[str]:
        counts = [f"{found[f'{what}_grown']:+d}" for what in ("handles", "threads")]
        ran = f"{found['seconds'] / 60:.0f} min"
        command, _, more = name.partition(" ")
        said = f"`{command}` {more}".strip()
        return [said, ran, *grown(found, "held"), *grown(found, "pss"), *counts]

    head = (
        *("process", "ran", "own memory after settling", "an hour, fitted"),
        *("PSS after settling", "an hour, fitted", "handles", "threads"),
    )
    latest = _drill("soak")["latest"]
    return table(head, (row(name, each) for name, each in latest.items() if name != "device"))


def drill_summary() -> str:
    """What was tried and lost, at the present state of the code and at earlier ones."""
    states = ("drill_epyc_cpu", "drill_before_epyc_cpu")
    columns = [_drill_column(_drill("kills", each), _drill("hostile inputs", each))
               for each in states]  # fmt: skip
    rows = ([name, *(column[name] for column in columns)] for name in columns[0])
    return table(("", "this state of the code", "earlier states"), rows)


def _drill_column(kills: Json, hostile: Json) -> dict[str, str]:
    group_s = kills["times_s"]["SIGTERM, group"]
    killed = sum(count for name, count in kills["tried"].items() if name.startswith("SIGKILL"))
    group = f"{kills['survived']['SIGTERM, group']} of {kills['tried']['SIGTERM, group']}"
    median_s, longest_s = _median(kills["recovery_s"]), max(kills["recovery_s"])
    return {
        "SIGKILLs of trainer, worker or process group": str(killed),
        "checkpoints lost": _trouble(kills, "lost"),
        "checkpoints that differ in a bit from those of a run left alone": _trouble(kills, "wrong"),
        "hangs over 30 s": _trouble(kills, "hang"),
        "processes left behind": _trouble(kills, "orphan"),
        "from a fault to the next step of the next life": (
            f"median {median_s:.1f} s, longest {longest_s:.1f} s"
        ),
        "SIGTERM to the group: saved within 10 s": f"{group}, longest {max(group_s):.1f} s",
        "hostile inputs": f"{sum(hostile['tried'].values()):,}",
        "of these: tracebacks": _trouble(hostile, "traceback"),
        "of these: hangs": _trouble(hostile, "hang"),
        "of these: most memory": f"{hostile['peak_bytes'] / GIB:.2f} GiB",
    }


def nodes() -> str:
    """Two nodes in two network namespaces: what was done to them, and what came of it."""
    found = results("nodes_epyc_cpu")
    alone, cut = found["two nodes, left alone"], found["cable pulled for 20 s"]
    slurm = found["slurm"]
    elastic, apart = (
        found["a node leaves and another joins"],
        found["records apart, checkpoints together"],
    )
    named = sum(len(sentences) for sentences in cut["sentences"])
    epochs = elastic["epochs"].values()
    in_order = all(each["exactly the first so many of the epoch's order"] for each in epochs)
    twice = sum(each["twice"] for each in epochs)
    error_s = max(error for error in apart["clock errors s"] if error is not None)
    return table(
        ("what was done", "what came of it"),
        (
            (f"the first recipe above, {alone['steps']} steps", _equal(alone)),
            (
                f"the recipe for Slurm ({slurm['version']}), {slurm['steps']} steps, told in "
                "mid-training that its time is over",
                f"queued again {slurm['queued again']} time; lives began at steps "
                f"{', '.join(map(str, slurm['began at steps']))}; {_equal(slurm)}",
            ),
            (
                f"the cable pulled for 20 s, `run.rank_timeout_s` {cut['rank_timeout_s']:g}",
                f"all {cut['ranks']} ranks gone after {cut['all ranks gone after s']:.1f} s, "
                f"{named} of them with the sentence; started again at step {cut['went on from']} "
                f"(last save before the cut: {cut['saved before the cut']}); {_equal(cut)}",
            ),
            (
                f"a node killed in mid-epoch, later another joins: "
                f"{', then '.join(elastic['ranks step by step'])}",
                f"samples of {len(epochs)} epochs: {twice} twice, "
                + ("exactly those of the epoch's order" if in_order else "not those of the order")
                + f" ({', '.join(str(each['samples']) for each in list(epochs)[:3])}, ... of 1000)",
            ),
            (
                "each node with a folder of its own, nothing shared",
                "refused before the first step: "
                f'"{found["nodes without a common folder"].partition(":")[0]}"',
            ),
            (
                "records on each node, `checkpoint.dir` shared, `cache.budget` 32 MiB, "
                "`loader.workers` 2",
                f"ranks {', '.join(map(str, apart['ranks that speak for a cache']))} have a cache "
                f"for their host; {apart['workers of each rank'][0]} worker a rank; gathered, "
                f"{len(apart['ranks read as one run'])} ranks are judged as one run; clocks "
                f"compared within {1e3 * error_s:.1f} ms",
            ),
        ),
    )


def _equal(found: Json) -> str:
    return "equal" if found["bit-equal to one host"] else "not equal"


def _trouble(part: Json, kind: str) -> str:
    """Count troubles of a kind in a part of the drill."""
    counts = part["troubles"].items()
    return str(sum(count for name, count in counts if name.rpartition(": ")[2] == kind))


def _signed(share: float | None, digits: int = 1) -> str:
    return "" if share is None else f"{100 * share:+.{digits}f} %"


def plan_summary() -> str:
    """Plans: what errors come to, beforehand and after the fact."""
    found = results("plan")
    columns = [found["summary"], found["after_the_fact"]["summary"]]

    def row(name: str, limit: str, cell: Callable[[Json], str]) -> list[str]:
        return [name, limit, *map(cell, columns)]

    def mean(key: str) -> Callable[[Json], str]:
        return lambda column: f"{100 * column[key]['mean_absolute']:.1f} %"

    def largest(key: str) -> Callable[[Json], str]:
        return lambda column: _signed(max(column[key]["lowest"], column[key]["highest"], key=abs))

    rows = [
        row("peak memory, mean absolute error", "10 %", mean("peak_blind")),
        row(
            "peak memory, furthest below", "-3 %", lambda one: _signed(one["peak_blind"]["lowest"])
        ),
        row("peak memory, mean, calibrated by a neighbour", "5 %", mean("peak_calibrated")),
        row(
            "verdicts right, of those not within 5 % of the border",
            "all",
            lambda one: "{} of {}".format(*one["verdicts_right"]),
        ),
        row("step time, mean absolute error", "", mean("step_blind")),
        row("step time of neighbours, mean absolute error", "", mean("step_calibrated")),
        row("step time of neighbours, largest error", "15 %", largest("step_calibrated")),
        row("order of step times, Kendall's tau", "0.8", lambda one: f"{one['step_tau']:.2f}"),
    ]
    return table(("", "wanted", "blind", "after the fact"), rows)


def plan_trial(trial: str) -> list[Json]:
    """Rows of a later list of plans: with what was measured where that is known."""
    if (RESULTS / f"plan_{trial}.json").exists():
        return results(f"plan_{trial}")["rows"]
    return [
        {
            **{key: one[key] for key in ("name", "cap_gib", "neighbour", "measured_before")},
            "planned_peak_gib": one["peak_gib"],
            "planned_step_ms": one["step_ms"],
            "verdict": one["fit"],
            "outcome": "not run",
            "measured": {},
        }
        for one in results(f"plan_predicted_{trial}_h200")["rows"]
    ]


OTHER_WAYS = {
    "without the driver": "calibrated_step_error_unwatched",
    "by a profile": "calibrated_step_error_by_kernels",
}
"""To plan a step by a neighbour: heads, and what the errors are called."""


def plan_trial_steps(trial: str, others: Mapping[str, str] | None = None) -> str:
    """Plans: step time of each case of a later list.

    Args:
        trial: Name of the list.
        others: Heads of other ways to plan by a neighbour, and what their errors are called.
    """
    ways = others or {}

    def row(one: Json) -> list[str]:
        measured = one["measured"].get("step_ms")
        return [
            one["name"] + (" *" if one.get("measured_before") else ""),
            f"{one['planned_step_ms']:.0f}",
            "" if measured is None else f"{measured:.0f}",
            _signed(one.get("step_error"), 0),
            one.get("neighbour") or "",
            _signed(one.get("calibrated_step_error"), 0),
            *(_signed(one.get(key), 0) for key in ways.values()),
        ]

    head = ("case", "planned, ms", "measured, ms", "error", "neighbour", "error by it", *ways)
    return table(head, map(row, plan_trial(trial)))


def plan_trial_summary(trial: str) -> str:
    """Plans: what the errors of a later list come to, and those of other ways to calibrate."""
    found = results(f"plan_{trial}")
    ways = {
        "as planned, without a base": "step_error",
        "by a neighbour": "calibrated_step_error",
        "by a neighbour, without the driver": "calibrated_step_error_unwatched",
        "by a neighbour, by a profile": "calibrated_step_error_by_kernels",
    }

    def row(name: str, key: str) -> list[str]:
        errors = [one[key] for one in found["rows"] if key in one]
        return [
            name,
            str(len(errors)),
            f"{100 * sum(map(abs, errors)) / len(errors):.1f} %",
            _signed(max(errors, key=abs), 0),
            str(sum(abs(error) > 0.15 for error in errors)),
        ]

    head = ("step times", "steps", "mean absolute error", "largest", "beyond 15 %")
    return table(head, (row(name, key) for name, key in ways.items()))


def plan_host() -> str:
    """Plans: host memory of jobs on a processor."""

    def row(one: Json) -> list[str]:
        sizes = (one[key] / 2**20 for key in ("measured_bytes", "planned_bytes"))
        return [one["name"], *(f"{size:,.0f} MiB" for size in sizes), _signed(one["error"])]

    head = ("setting", "measured", "planned", "error")
    return table(head, map(row, results("plan_host_epyc_cpu")["rows"]))


def plan_peaks(cases: Iterable[Json]) -> str:
    """Plans: peak memory of each case."""

    def row(one: Json) -> list[str]:
        measured = one["measured"].get("peak_gib")
        return [
            one["name"],
            f"{one['planned_peak_gib']:.2f}",
            "" if measured is None else f"{measured:.2f}",
            _signed(one.get("peak_error"), 2),
            _signed(one.get("calibrated_peak_error"), 2),
            f"{one['cap_gib']} GiB",
            one["verdict"],
            one["outcome"],
        ]

    head = ("case", "planned", "measured", "error", "calibrated", "cap", "verdict", "outcome")
    return table(head, map(row, cases))


def plan_steps() -> str:
    """Plans: step time of each case, beforehand and after the fact."""
    found = results("plan")
    later = {one["name"]: one for one in found["after_the_fact"]["rows"]}

    def row(one: Json) -> list[str]:
        again = later[one["name"]]
        return [
            one["name"],
            f"{one['measured']['step_ms']:.0f}",
            f"{one['planned_step_ms']:.0f}",
            _signed(one["step_error"], 0),
            _signed(one.get("calibrated_step_error"), 0),
            f"{again['planned_step_ms']:.0f}",
            _signed(again["step_error"], 0),
            _signed(again.get("calibrated_step_error"), 0),
        ]

    head = ("case", "measured", "planned", "error", "by a neighbour")
    head += ("planned after the fact", "error", "by a neighbour")
    return table(head, map(row, (one for one in found["rows"] if "step_error" in one)))


def plan_left_out() -> str:
    """Plans: steps by constants that were fitted without them."""

    def row(one: Json) -> list[str]:
        return [
            one["name"],
            f"{one['measured_ms']:.0f}",
            f"{one['planned_ms']:.0f}",
            _signed(one["error"], 0),
            one.get("neighbour", ""),
            _signed(one.get("neighbour_error"), 0),
        ]

    head = ("step", "measured, ms", "planned, ms", "error", "neighbour", "error by it")
    return table(head, map(row, results("plan_steps")["rows"]))


def plan_table(network: str) -> str:
    """The guides' table of batch, recomputation and optimizer, as planned."""
    cells = results("plan_table")["networks"][network]["cells"]
    shown = {(one["recompute"], one["optimizer"], one["batch_size"]): one for one in cells}
    names = {"full": "recomputed", "none": "nothing recomputed"}
    kinds = {"adamw": "AdamW", "adamw8bit": "8-bit AdamW"}
    rows = [
        [
            names[way],
            kinds[kind],
            *(f"{shown[way, kind, size]['peak_gib']:.2f}" for size in (1, 2, 3)),
        ]
        for way in names
        for kind in kinds
    ]
    return table(("", "optimizer", "batch 1", "batch 2", "batch 3"), rows)


def plan_table_measured() -> str:
    """The cells of the guides' table that were measured on a network, beside the plan's."""
    cells = results("plan_table")["networks"]["crop 128, reference"]["cells"]

    def measured(cell: Json) -> Json | None:
        wanted = {"train.recompute": cell["recompute"], "crop": 128, "outcome": "ran"}
        wanted |= {} if cell["batch_size"] == 1 else {"train.batch_size": cell["batch_size"]}
        wanted |= {} if cell["optimizer"] == "adamw" else {"optimizer.kind": cell["optimizer"]}
        found = (
            one
            for one in results("engine_advice_h200")["rows"]
            if {key: one[key] for key in one if "." in key or key in {"crop", "outcome"}} == wanted
        )
        return next(found, None)

    def row(cell: Json, seen: Json) -> list[str]:
        peak = seen["peak_allocated_gib"]
        return [
            "recomputed" if cell["recompute"] == "full" else "nothing recomputed",
            "AdamW" if cell["optimizer"] == "adamw" else "8-bit AdamW",
            str(cell["batch_size"]),
            f"{cell['peak_gib']:.2f}",
            f"{peak:.2f}",
            _signed(cell["peak_gib"] / peak - 1),
            f"{seen['step_ms']:,.0f} ms",
        ]

    pairs = ((cell, measured(cell)) for cell in cells)
    head = ("", "optimizer", "batch", "planned, GiB", "measured, GiB", "error", "measured step")
    return table(head, (row(cell, seen) for cell, seen in pairs if seen is not None))


def demo_verdict() -> str:
    """What the demo's script was told, what was predicted and what was gained."""
    printed = results("demo_gain_epyc_cpu")["printed"]
    fix = next(place for place, line in enumerate(printed) if line.startswith("2. "))
    measured = next(place for place, line in enumerate(printed) if line.startswith("3. "))
    command, *told = (line.removeprefix("   ") for line in printed[1:fix])
    gained = (line.removeprefix("3. ").removeprefix("   ") for line in printed[measured:])
    return "\n".join(["```", f"$ {command}", *told, *gained, "```", ""])


def demo_runs() -> str:
    """Ten times the demo's script, half of them beside a busy neighbour."""

    def row(number: int, one: Json) -> list[str]:
        pairs = one["pairs"]
        return [
            str(number),
            "on every core" if one["neighbour"] else "none of ours",
            f"up to {one['predicted']:.1f}x",
            f"{one['gain']:.1f}x",
            f"{min(pairs):.1f}x to {max(pairs):.1f}x",
        ]

    head = ("run", "neighbour", "predicted", "measured gain", "range of three pairs")
    runs = results("demo_gain_epyc_cpu")["runs"]
    return table(head, (row(number, one) for number, one in enumerate(runs, 1)))


TABLES: Final[dict[str, Callable[[], str]]] = {
    "bev-batches": bev_batches,
    "bev-quality": bev_quality,
    "bev-step": bev_step,
    "cache-cost": cache_cost,
    "cache-memory": cache_memory,
    "deblur-quality": deblur_quality,
    "demo-runs": demo_runs,
    "demo-verdict": demo_verdict,
    "drill-faults": lambda: _counted("faults"),
    "drill-hostile": lambda: _counted("hostile inputs"),
    "drill-kills": lambda: _counted("kills"),
    "drill-ranks": lambda: _counted("ranks"),
    "drill-shards": lambda: _counted("shards"),
    "drill-soak": drill_soak,
    "drill-summary": drill_summary,
    "nodes": nodes,
    "plan-host": plan_host,
    "plan-left-out": plan_left_out,
    "plan-peaks": lambda: plan_peaks(results("plan")["rows"]),
    "plan-second-peaks": lambda: plan_peaks(plan_trial("second")),
    "plan-second-steps": lambda: plan_trial_steps("second"),
    "plan-third-summary": lambda: plan_trial_summary("third"),
    "plan-third-steps": lambda: plan_trial_steps("third", OTHER_WAYS),
    "plan-fourth-summary": lambda: plan_trial_summary("fourth"),
    "plan-fourth-steps": lambda: plan_trial_steps("fourth", OTHER_WAYS),
    "plan-steps": plan_steps,
    "plan-summary": plan_summary,
    "plan-table-fused": lambda: plan_table("crop 256, fused"),
    "plan-table-measured": plan_table_measured,
    "deblur-techniques": deblur_techniques,
    "packs": packs,
    "plan-table-reference": lambda: plan_table("crop 128, reference"),
    "reid-quality": reid_quality,
    "reid-ranking": reid_ranking,
    "reid-step": reid_step,
    "shards-equal": shards_equal,
    "shards-growth": shards_growth,
    "shards-memory": shards_memory,
    "verify-rates": verify_rates,
    "verify-ratios": verify_ratios,
    "vrt-memory": vrt_memory,
    "vrt-step": vrt_step,
}


def _vrt() -> Json:
    rows = results("deblur_vrt_h200")["rows"]
    return next(row for row in rows if row["name"] == "fused, graph")


def _logs(part: str, pick: Callable[[Iterable[float]], float]) -> float:
    return pick(each["best"] for each in results("log_readers_epyc_cpu")[part].values())


FIGURES: Final[dict[str, Callable[[], str]]] = {
    "demo.least-gain": lambda: f"{results('demo_gain_epyc_cpu')['least_gain']:.1f}",
    "logs.dense-slowest": lambda: f"{_logs('dense', min):.1f}",
    "logs.dense-fastest": lambda: f"{_logs('dense', max):.1f}",
    "logs.skipped-slowest": lambda: f"{_logs('skipped', min):.0f}",
    "logs.skipped-fastest": lambda: f"{_logs('skipped', max):.0f}",
    "reid.ratio": lambda: f"{results('reid_step_h200')['ratio']['median']:.1f}",
    "reid.ratio-low": lambda: f"{results('reid_step_h200')['ratio']['low']:.1f}",
    "reid.ratio-high": lambda: f"{results('reid_step_h200')['ratio']['high']:.1f}",
    "reid.tflops": lambda: f"{results('reid_step_h200')['fast_flop_per_s'] / 1e12:.0f}",
    "reid.share": lambda: f"{100 * results('reid_step_h200')['fast_share_of_peak']:.0f}",
    "vrt.ratio": lambda: f"{_vrt()['times_as_fast_as_first']:.1f}",
}


def _ratio(name: str, group: str, member: str) -> str:
    return f"{results(name)['groups'][group]['ratio_to_first'][member]['median']:.1f}"


def written(text: str, used: set[str]) -> str:
    """A page with its figures as the results have them."""

    def block(found: re.Match[str]) -> str:
        used.add(found["name"])
        return found["open"] + TABLES[found["name"]]() + found["close"]

    def number(found: re.Match[str]) -> str:
        used.add(found["name"])
        return FIGURES[found["name"]]() + found["mark"]

    return _NUMBER.sub(number, _BLOCK.sub(block, text))


def main() -> int:
    """Write the pages, or say which are stale."""
    pages = [*ROOT.glob("README*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
    used: set[str] = set()
    stale: list[str] = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        new = written(text, used)
        if new != text:
            stale.append(str(page.relative_to(ROOT)))
            if "--check" not in sys.argv:
                page.write_text(new, encoding="utf-8")
    unused = sorted({*TABLES, *FIGURES} - used)
    if unused:
        print(f"no page shows: {', '.join(unused)}")
    if stale and "--check" in sys.argv:
        print(f"figures differ from benchmarks/results; run `make fix`: {', '.join(stale)}")
    return 1 if unused or (stale and "--check" in sys.argv) else 0


if __name__ == "__main__":
    sys.exit(main())
