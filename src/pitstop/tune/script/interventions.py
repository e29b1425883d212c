"""What may be changed in a script from outside, as data.

An intervention says where it applies, which choices it has, what it claims of the arithmetic, and
what the user would write. `pitstop_probe.interventions` makes the change inside the script's
process; names and values are the same there. Those that begin with ``env.`` are variables of the
environment.
"""

from collections.abc import Callable, Mapping, Sequence
from ctypes.util import find_library
from dataclasses import dataclass
from typing import Final

from pitstop.records.tuning.script import ScriptSeen
from pitstop.records.verify.verification import Claim
from pitstop.tune.knobs import OWN, Choice, Knob
from pitstop.tune.search import Side
from pitstop.tune.space import Space

ENVIRONMENT: Final = "env."
EIGHT_BIT: Final = "8bit"
"""Way of an optimizer that keeps its state in 8 bits."""

# Memory is kept instead of being returned after each step and zeroed by the kernel at the next.
_KEEP_MEMORY: Final = (
    f"{ENVIRONMENT}MALLOC_MMAP_MAX_=0",
    f"{ENVIRONMENT}MALLOC_TRIM_THRESHOLD_=68719476736",
)
_HUGE_PAGES: Final = (f"{ENVIRONMENT}THP_MEM_ALLOC_ENABLE=1",)
_EXPANDABLE: Final = (f"{ENVIRONMENT}PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",)

VARIABLES: Final = tuple(
    word.removeprefix(ENVIRONMENT).partition("=")[0]
    for word in (*_KEEP_MEMORY, *_HUGE_PAGES, *_EXPANDABLE, f"{ENVIRONMENT}LD_PRELOAD=")
)
"""Variables that a change may set; one that the user has set is left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """What choices depend on."""

    seen: ScriptSeen
    cores: int
    """Cores that the script may use."""
    is_linux: bool
    has_losses: bool = True
    """Whether losses of the untouched script were seen, to hold those of a changed one against."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervention(Knob[At]):
    """One thing to change from outside."""

    why_not: Callable[[At], str | None]
    """Why it does not apply; None where it does."""


def open_script_space(at: At, allowed: frozenset[Claim]) -> Space:
    """Ask every intervention for its choices; what does not apply is named with its reason."""
    knobs: list[Knob[At]] = []
    choices: list[tuple[Choice, ...]] = []
    left_out: list[str] = []
    for each in INTERVENTIONS:
        why = each.why_not(at)
        offered = () if why else each.choices(at)
        refused = {one: text for one in offered if (text := _refusal(one, at, allowed))}
        left_out += [f"{' '.join(one)}: {text}" for one, text in refused.items()]
        offered = tuple(one for one in offered if one not in refused)
        if why:
            left_out.append(f"{each.name}: {why}")
        if len(offered) > 1:
            knobs.append(each)
            choices.append(offered)
    return Space(knobs=tuple(knobs), choices=tuple(choices), left_out=tuple(left_out))


def _refusal(choice: Choice, at: At, allowed: frozenset[Claim]) -> str | None:
    claim = claim_of_change(choice)
    if claim not in allowed:
        return f"changes the {claim}"
    unseen = claim != "exact" and not at.has_losses
    return "changes the rounding, and no loss was seen to hold it against" if unseen else None


def claim_of_change(choice: Sequence[str]) -> Claim:
    """Say what changes claim together: that of the weakest."""
    names = [word.partition("=")[0] for word in choice]
    is_exact = all(name.startswith(ENVIRONMENT) or name in _EXACT for name in names)
    if f"optimizer={EIGHT_BIT}" in choice:
        return "training"
    return "exact" if is_exact else "rounding"


_EXACT: Final = frozenset(
    {
        "loader.workers",
        "loader.prefetch",
        "loader.persistent",
        "loader.pin",
        "non_blocking",
        "anomaly_detection",
    }
)


def _needs_loader(at: At) -> str | None:
    if not at.seen.train_loaders:
        return "no DataLoader that the script builds feeds its training"
    if all(site.is_stream for site in at.seen.train_loaders):
        return "its dataset is a stream: each worker would give all of it"
    return "there is one core only" if at.cores < 2 else None


def _needs_gpu(at: At) -> str | None:
    return None if at.seen.on_gpu else "it trains without a GPU"


def _needs_pinning(at: At) -> str | None:
    return _needs_gpu(at) or _needs_loader(at)


def _needs_way(at: At) -> str | None:
    if not at.seen.optimizers:
        return "it builds no optimizer of torch's"
    if not any(site.takes or site.eight_bit for site in at.seen.optimizers):
        return f"{at.seen.optimizers[0].name} has neither a fused nor a foreach update"
    return None


def _needs_model(at: At) -> str | None:
    return None if at.seen.models else "no model of an optimizer of torch's was found"


def _needs_float32(at: At) -> str | None:
    if at.seen.autocast is not None:
        return f"it uses autocast ({at.seen.autocast}) already"
    if not all(site.is_float32 for site in at.seen.models):
        return "its weights are not in float32"
    return _needs_model(at)


def _needs_pictures(at: At) -> str | None:
    if any(site.volumes for site in at.seen.models):
        return "it convolves volumes, which have another layout"
    has_convolutions = any(site.convolves for site in at.seen.models)
    return _needs_model(at) or (None if has_convolutions else "its model does not convolve")


def _needs_no_compile(at: At) -> str | None:
    return "it is compiled already" if at.seen.is_compiled else _needs_model(at)


def _needs_cpu(at: At) -> str | None:
    if at.seen.on_gpu:
        return "it trains on a GPU"
    return "there is one core only" if at.cores < 2 else None


def _needs_linux(at: At) -> str | None:
    return None if at.is_linux else "it is a matter of Linux"


def _needs_anomaly(at: At) -> str | None:
    return None if at.seen.anomaly_detection else "the script does not switch it on"


def _workers(at: At) -> tuple[Choice, ...]:
    """Own first, then upwards and downwards; new workers live as long as their loader."""
    own = max(site.workers for site in at.seen.train_loaders)
    counts = sorted({0, 1, 2, at.cores // 2, at.cores - 1, at.cores, own})
    kept = () if own else ("loader.persistent=true",)
    return tuple(
        OWN if count == own else (f"loader.workers={count}", *(kept if count else ()))
        for count in counts
    )


def _prefetch(_: At) -> tuple[Choice, ...]:
    return (OWN, ("loader.prefetch=4",), ("loader.prefetch=8",))


def _lives(at: At) -> tuple[Choice, ...]:
    has_workers = any(site.workers for site in at.seen.train_loaders)
    return (OWN, ("loader.persistent=true",)) if has_workers else ()


def _ways(at: At) -> tuple[Choice, ...]:
    """Fused where there is such a thing: foreach is a way to launch less on a GPU."""
    known = dict.fromkeys(way for site in at.seen.optimizers for way in site.takes)
    if not at.seen.on_gpu and "fused" in known:
        known = {"fused": None}
    used = {site.way for site in at.seen.optimizers}
    ways = [way for way in known if way not in used]
    if at.seen.on_gpu and any(site.eight_bit for site in at.seen.optimizers):
        ways.append(EIGHT_BIT)
    return (OWN, *((f"optimizer={way}",) for way in ways))


def _threads(at: At) -> tuple[Choice, ...]:
    counts = sorted({1, at.cores // 2, at.cores, at.seen.threads})
    return tuple(OWN if n == at.seen.threads else (f"threads={n}",) for n in counts)


def _allocators(at: At) -> tuple[Choice, ...]:
    libraries = [found for name in ("tcmalloc", "jemalloc") if (found := find_library(name))]
    preloaded = [(f"{ENVIRONMENT}LD_PRELOAD={found}",) for found in libraries]
    offered: list[Choice] = [_KEEP_MEMORY, _HUGE_PAGES, *preloaded]
    taken = set(at.seen.environment)
    names = {one: {w.removeprefix(ENVIRONMENT).partition("=")[0] for w in one} for one in offered}
    return (OWN, *(one for one in offered if not names[one] & taken))


def _switch(*choice: str) -> Callable[[At], tuple[Choice, ...]]:
    return lambda _: (OWN, choice)


def _tried(
    name: str,
    why_not: Callable[[At], str | None],
    choices: Callable[[At], tuple[Choice, ...]],
    *asked_by: str,
    side: Side = "step",
    ordered: bool = False,
) -> Intervention:
    return Intervention(
        name=name, why_not=why_not, choices=choices, asked_by=asked_by, side=side, ordered=ordered
    )


INTERVENTIONS: Final[tuple[Intervention, ...]] = (
    _tried("workers", _needs_loader, _workers, "DATA001", "DATA004", side="run", ordered=True),
    _tried("prefetch", _needs_loader, _prefetch, "DATA001", side="run", ordered=True),
    _tried("worker lives", _needs_loader, _lives, "DATA002", side="run"),
    _tried(
        "pinned memory", _needs_pinning, _switch("loader.pin=true", "non_blocking=true"), "COPY001"
    ),
    _tried("threads", _needs_cpu, _threads, ordered=True),
    _tried("anomaly detection", _needs_anomaly, _switch("anomaly_detection=false")),
    _tried("optimizer", _needs_way, _ways, "OPT001", "LAUNCH001"),
    _tried("autocast", _needs_float32, _switch("autocast=bf16"), "PREC001", "TENSOR001"),
    _tried("TF32", _needs_gpu, _switch("tf32=true"), "PREC001"),
    _tried("cuDNN benchmark", _needs_gpu, _switch("cudnn_benchmark=true")),
    _tried("channels last", _needs_pictures, _switch("channels_last=true")),
    _tried("host allocator", _needs_linux, _allocators),
    _tried("device allocator", _needs_gpu, _switch(*_EXPANDABLE), "MEM003"),
    _tried("compile", _needs_no_compile, _switch("compile=models"), "LAUNCH001", "TRAFFIC001"),
)
"""What is tried, the cheap before the dear where the doctor promises alike."""

_ARGUMENTS: Final[Mapping[str, str]] = {
    "loader.workers": "num_workers={value}",
    "loader.prefetch": "prefetch_factor={value}",
    "loader.persistent": "persistent_workers=True",
    "loader.pin": "pin_memory=True",
}
_LINES: Final[Mapping[str, str]] = {
    "optimizer": "give {name} {value}=True",
    "autocast": 'wherever {name} is called, do it inside torch.autocast("{device}", '
    "dtype=torch.bfloat16), and take its result .float()",
    "tf32": 'torch.set_float32_matmul_precision("high")',
    "cudnn_benchmark": "torch.backends.cudnn.benchmark = True",
    "channels_last": "{name}.to(memory_format=torch.channels_last), and each of its inputs",
    "threads": "torch.set_num_threads({value})",
    "compile": "before this line: {name}.{compile_call}",
    "anomaly_detection": "leave out anomaly detection",
    "non_blocking": ".to(device, non_blocking=True)",
}


def line_for(choice: Sequence[str], seen: ScriptSeen, *, name: str) -> str:
    """Say what the user writes in the place of a change.

    Args:
        choice: The change.
        seen: The script, as it was seen.
        name: What was changed, as noted there.
    """
    words = [word.partition("=")[::2] for word in choice]
    variables = [word.removeprefix(ENVIRONMENT) for word in choice if word.startswith(ENVIRONMENT)]
    if variables:
        return f"{' '.join(variables)} before the command"
    if f"optimizer={EIGHT_BIT}" in choice:
        package = next((site.eight_bit for site in seen.optimizers if site.eight_bit), "torchao")
        return f"build {name}8bit of {package}.optim instead of {name}"
    given = [_ARGUMENTS[key].format(value=value) for key, value in words if key in _ARGUMENTS]
    lines = [f"give DataLoader {', '.join(given)}"] if given else []
    lines += [
        _LINES[key].format(
            value=value, name=name, device=seen.device_kind, compile_call=seen.compile_call
        )
        for key, value in words
        if key in _LINES
    ]
    return "; ".join(lines)
