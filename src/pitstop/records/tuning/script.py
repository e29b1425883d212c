"""Somebody's script, tuned from outside: what it builds where, and the lines to change."""

from dataclasses import dataclass

from pitstop.records.tuning.study import CodePlace, Tuning


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSite:
    """A line of the script that builds a DataLoader."""

    place: str
    """File and line."""
    name: str
    """Class of the dataset."""
    workers: int
    batch_size: int | None
    is_stream: bool
    """Whether its dataset can only be iterated: each worker would give all of it."""
    trains: bool = False
    """Whether training steps used its batches."""
    draws: bool = False
    """Whether its dataset was seen to draw random numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSite:
    """A line that builds an optimizer."""

    place: str
    name: str
    takes: tuple[str, ...]
    """Ways of updating that its class knows, of ``fused`` and ``foreach``."""
    way: str | None
    """The one that it was built with; None where torch decides."""
    eight_bit: str | None = None
    """Package in the script's environment that has it with a state of 8 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSite:
    """A model whose weights an optimizer trains, at the line that builds the optimizer."""

    place: str
    name: str
    """As that line could call it; its class where it has no name there."""
    class_name: str
    device: str
    convolves: bool
    volumes: bool
    """Whether it has weights of five dimensions, which have another layout."""
    is_float32: bool
    pads: bool = False
    """Whether a compiler pads strides there unless told not to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What the doctor found and no change from outside fixes."""

    code: str
    summary: str
    remedy: str
    places: tuple[str, ...] = ()
    """Lines of the script that the evidence names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptSeen:
    """A script as its first trial showed it; decides what is tried."""

    device: str | None
    threads: int
    autocast: str | None
    is_compiled: bool
    loaders: tuple[LoaderSite, ...] = ()
    optimizers: tuple[OptimizerSite, ...] = ()
    models: tuple[ModelSite, ...] = ()
    own_threads: tuple[str, ...] = ()
    """Lines that set the number of threads."""
    anomaly_detection: tuple[str, ...] = ()
    """Lines that switch it on."""
    environment: tuple[str, ...] = ()
    """Variables that the user has set, of those that a change would set."""
    findings: tuple[Advice, ...] = ()

    @property
    def on_gpu(self) -> bool:
        """Whether its weights are on a CUDA device."""
        return (self.device or "").startswith("cuda")

    @property
    def device_kind(self) -> str:
        """What autocast is told."""
        return "cuda" if self.on_gpu else "cpu"

    @property
    def compile_call(self) -> str:
        """What is called of a model to compile it."""
        if any(site.pads for site in self.models):
            return 'compile(options={"comprehensive_padding": False})'
        return "compile()"

    def models_called(self, class_name: str) -> tuple[str, ...]:
        """Name the models of a class as their script does; not as one of them calls itself."""
        sites = (site for site in self.models if site.class_name == class_name)
        names = (site.name for site in sites if site.name != "self")
        return tuple(dict.fromkeys(names)) or (class_name,)

    @property
    def train_loaders(self) -> tuple[LoaderSite, ...]:
        """Lines that build what training steps get batches from."""
        return tuple(site for site in self.loaders if site.trains)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeChange:
    """One row of the table of gains as what the user writes."""

    text: str
    places: tuple[CodePlace, ...]
    """Where; none for what stands before the command."""
    gain: float
    gain_low: float
    gain_high: float
    loss: str
    """What the loss beside that of the untouched script says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptTuning:
    """A study of a script."""

    command: str
    tuning: Tuning
    seen: ScriptSeen
    changes: tuple[CodeChange, ...]
    advice: tuple[Advice, ...] = ()
    repeat_distance: float | None = None
    """Mean gap of the losses of two runs of the untouched script."""
    seed_distance: float | None = None
    """The same with other seeds: the measure of what a change may do to the loss."""
    diff: str = ""
    """The changes in the source, as a unified diff."""
    not_in_diff: tuple[str, ...] = ()
    """Changes that are left to the person, each with its reason."""
