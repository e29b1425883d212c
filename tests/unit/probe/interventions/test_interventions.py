"""Changes from outside: they take hold, are noted with their line, and leave the rest as it was."""

import copy
import json
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.data import DataLoader, Dataset, IterableDataset

from pitstop_probe.interventions.apply import intervene

if TYPE_CHECKING:
    from pitstop_probe.hooks.patches import Patch

Intervene = Callable[..., None]


@pytest.fixture
def change(tmp_path: Path) -> Iterator[Intervene]:
    """Put interventions in; they are taken off, and torch is as it was."""
    patches: list[Patch] = []
    threads, state = torch.get_num_threads(), torch.get_rng_state()

    def put(*changes: str, loaders: list[str] | None = None, seed: int = 0) -> None:
        wanted = {"changes": changes, "loaders": loaders, "seed": seed}
        patches.extend(intervene(torch, wanted, str(tmp_path)))

    yield put
    for patch in reversed(patches):
        patch.off()
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


def lines(folder: Path) -> list[dict[str, Any]]:
    texts = [path.read_text() for path in folder.glob("sites-*.jsonl")]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def changed(folder: Path) -> dict[str, str]:
    """Changes that took hold, with their file."""
    found = [line for line in lines(folder) if "changed" in line]
    return {line["changed"]: Path(line["place"]).name.partition(":")[0] for line in found}


class Numbers(Dataset[Tensor]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([float(index)])


class Noise(Numbers):
    def __getitem__(self, index: int) -> Tensor:
        return torch.rand(1)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


def order(loader: DataLoader[Tensor]) -> list[float]:
    torch.manual_seed(3)
    return [float(value) for batch in loader for value in batch]


def test_workers_bring_the_same_samples_in_the_same_order(
    change: Intervene, tmp_path: Path
) -> None:
    bare = order(DataLoader(Numbers(), batch_size=4, shuffle=True))
    change("loader.workers=2", "loader.persistent=true", "loader.prefetch=4")
    loader = DataLoader(Numbers(), 4, True)
    assert (loader.num_workers, loader.persistent_workers, loader.prefetch_factor) == (2, True, 4)
    assert order(loader) == bare
    file = Path(__file__).name
    assert changed(tmp_path) == {
        "loader.workers=2": file,
        "loader.persistent=true": file,
        "loader.prefetch=4": file,
    }


def test_what_a_loader_without_workers_refuses_is_not_given_to_it(
    change: Intervene, tmp_path: Path
) -> None:
    change("loader.prefetch=4", "loader.persistent=true")
    assert len(order(DataLoader(Numbers(), batch_size=4))) == 24
    assert changed(tmp_path) == {}


def test_a_stream_gets_no_workers(change: Intervene, tmp_path: Path) -> None:
    change("loader.workers=2")
    assert DataLoader(Stream()).num_workers == 0
    assert changed(tmp_path) == {}


def test_only_the_lines_that_were_named_are_changed(change: Intervene, tmp_path: Path) -> None:
    change("loader.workers=1", loaders=["elsewhere.py:3"])
    assert DataLoader(Numbers()).num_workers == 0
    assert changed(tmp_path) == {}


@pytest.mark.parametrize(("dataset", "draws"), [(Numbers(), False), (Noise(), True)])
def test_a_dataset_that_draws_random_numbers_is_noted(
    change: Intervene, tmp_path: Path, dataset: Numbers, *, draws: bool
) -> None:
    change()
    for _ in DataLoader(dataset, batch_size=4):
        pass
    assert any(line.get("built") == "draws" for line in lines(tmp_path)) == draws


def test_a_wrong_call_of_a_loader_fails_as_ever(change: Intervene) -> None:
    change("loader.workers=1")
    with pytest.raises(TypeError, match="no_such_argument"):
        DataLoader(Numbers(), no_such_argument=1)  # pyright: ignore[reportCallIssue]


class Mine(torch.optim.AdamW):
    """Somebody's own, on top of torch's."""


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, Mine])
def test_an_optimizer_is_built_fused(
    change: Intervene, tmp_path: Path, kind: type[torch.optim.Optimizer]
) -> None:
    change("optimizer=fused")
    model = nn.Linear(3, 1)
    optimizer = kind(model.parameters(), lr=0.1)  # pyright: ignore[reportCallIssue]
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    assert optimizer.param_groups[0]["fused"] is True
    assert changed(tmp_path) == {"optimizer=fused": Path(__file__).name}
    [site] = [line for line in lines(tmp_path) if line.get("built") == "optimizer"]
    assert (site["name"], site["way"]) == (kind.__name__, "fused")


def test_an_optimizer_without_such_an_update_is_left_alone(
    change: Intervene, tmp_path: Path
) -> None:
    change("optimizer=fused")
    torch.optim.RMSprop(nn.Linear(3, 1).parameters())
    assert changed(tmp_path) == {}


class Planted8bit(torch.optim.Optimizer):
    """Stands for a package's class: the same arguments, but for how an update is launched."""

    def __init__(
        self, params: Any, lr: float = 1e-3, weight_decay: float = 1e-2, *, block_size: int = 256
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "block": block_size})


@pytest.fixture
def planted_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a package with 8-bit optimizers before all others."""
    package = tmp_path / "site" / "torchao"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    optim = types.ModuleType("torchao.optim")
    vars(optim).update(Adam8bit=Planted8bit, AdamW8bit=Planted8bit)
    monkeypatch.syspath_prepend(str(package.parent))
    for name in [each for each in sys.modules if each.partition(".")[0] == "torchao"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torchao.optim", optim)


@pytest.mark.usefixtures("planted_package")
def test_an_optimizer_is_built_in_8_bits_by_a_package_that_is_there(
    change: Intervene, tmp_path: Path
) -> None:
    change("optimizer=8bit")
    model = nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1, fused=True)
    assert type(optimizer) is Planted8bit
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert optimizer.param_groups[0]["params"][0] is model.weight
    assert changed(tmp_path) == {"optimizer=8bit": Path(__file__).name}


@pytest.mark.usefixtures("planted_package")
@pytest.mark.parametrize(
    "build",
    [
        lambda weights: Mine(weights, lr=0.1),
        lambda weights: torch.optim.SGD(weights, lr=0.1),
        lambda weights: torch.optim.AdamW(weights, maximize=True),
    ],
    ids=["somebody's own class", "another optimizer", "an argument that the package does not have"],
)
def test_what_has_no_8_bit_form_is_left_alone(
    change: Intervene, tmp_path: Path, build: Callable[[Any], torch.optim.Optimizer]
) -> None:
    change("optimizer=8bit")
    optimizer = build(nn.Linear(3, 1).parameters())
    assert type(optimizer) is not Planted8bit
    assert changed(tmp_path) == {}


@pytest.mark.usefixtures("planted_package")
def test_a_package_with_8_bit_optimizers_is_noted(change: Intervene, tmp_path: Path) -> None:
    change()
    torch.optim.AdamW(nn.Linear(3, 1).parameters())
    torch.optim.SGD(nn.Linear(3, 1).parameters())
    found = [line for line in lines(tmp_path) if line.get("built") == "optimizer"]
    assert [line["eight_bit"] for line in found] == ["torchao", None]


def test_the_real_package_builds_its_own_class(change: Intervene, tmp_path: Path) -> None:
    optim = pytest.importorskip("torchao.optim")
    change("optimizer=8bit")
    optimizer = torch.optim.Adam(nn.Linear(64, 64).parameters(), betas=(0.8, 0.9))
    assert type(optimizer) is optim.Adam8bit
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.9)
    assert set(changed(tmp_path)) == {"optimizer=8bit"}


class Seen(nn.Module):
    """Keeps the format that it computes in."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(2, 2, 1)
        self.dtype: torch.dtype | None = None
        self.is_channels_last = False

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        self.is_channels_last = x.is_contiguous(memory_format=torch.channels_last)
        y = self.inner(x)
        self.dtype = y.dtype
        return {"y": y}


def test_autocast_computes_in_bf16_and_gives_float32(change: Intervene, tmp_path: Path) -> None:
    change("autocast=bf16")
    model = Seen()
    torch.optim.SGD(model.parameters(), lr=0.1)
    given = model(torch.ones(1, 2, 4, 4))["y"]
    assert (model.dtype, given.dtype) == (torch.bfloat16, torch.float32)
    assert changed(tmp_path) == {"autocast=bf16": Path(__file__).name}
    # A copy, as of an average of weights, computes with its own.
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.inner.weight.zero_()
        twin.inner.bias.zero_()  # pyright: ignore[reportOptionalMemberAccess]
        assert not twin(torch.ones(1, 2, 4, 4))["y"].any()


def test_channels_last_reaches_weights_and_inputs(change: Intervene, tmp_path: Path) -> None:
    change("channels_last=true")
    model = Seen()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2, 4, 4))
    assert model.is_channels_last
    assert model.inner.weight.is_contiguous(memory_format=torch.channels_last)
    assert optimizer.param_groups[0]["params"][0] is model.inner.weight
    assert model.dtype == torch.float32
    assert changed(tmp_path) == {"channels_last=true": Path(__file__).name}


def test_the_whole_model_is_found_by_the_name_that_the_script_has_for_it(
    change: Intervene, tmp_path: Path
) -> None:
    change("compile=models")
    net = nn.Sequential(Seen(), nn.Identity())
    torch.optim.SGD(net.parameters(), lr=0.1)
    assert net._compiled_call_impl is not None  # pyright: ignore[reportPrivateUsage]
    [site] = [line for line in lines(tmp_path) if line.get("built") == "model"]
    assert (site["name"], site["class"], site["convolves"]) == ("net", "Sequential", True)


NONE_GIVEN = "no options, which a method of the model's own might not take"


class CompileWitness(nn.Linear):
    """Keeps what it is to be compiled with."""

    options: object = "not compiled"

    def reset_parameters(self) -> None:
        """Random numbers cannot be drawn on a GPU that is not there."""

    def compile(self, **given: object) -> None:
        self.options = given.get("options", NONE_GIVEN)


@pytest.mark.parametrize(
    ("device", "version", "expected"),
    [
        ("cpu", "2.11.0", NONE_GIVEN),
        ("cuda", "2.11.0+cu130", {"comprehensive_padding": False}),
        ("cuda", "2.4.1", {"comprehensive_padding": False}),
        ("cuda", "2.14a0", {"comprehensive_padding": False}),
        ("cuda", "2.3.1", NONE_GIVEN),
    ],
)
def test_strides_are_not_padded_where_gradients_can_become_wrong(
    change: Intervene,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    version: str,
    expected: object,
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    change("compile=models")
    with FakeTensorMode():
        model = CompileWitness(2, 1, device=device)
        torch.optim.SGD(model.parameters(), lr=0.1)
    assert model.options == expected
    [site] = [line for line in lines(tmp_path) if line.get("built") == "model"]
    assert site["pads"] is (expected is not NONE_GIVEN)


class Odd(nn.Linear):
    """Cannot be looked into."""

    def modules(self, remove_duplicate: bool = True) -> Iterator[nn.Module]:
        raise AttributeError("planted")


def test_a_model_that_cannot_be_looked_into_does_not_end_the_script(
    change: Intervene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change("compile=models")
    model = Odd(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert optimizer.param_groups[0]["params"][0] is model.weight
    assert changed(tmp_path) == {}
    assert "planted" in capsys.readouterr().err


def test_a_script_that_sets_threads_later_does_not_undo_the_change(
    change: Intervene, tmp_path: Path
) -> None:
    change("threads=1")
    torch.set_num_threads(2)
    assert torch.get_num_threads() == 1
    assert set(changed(tmp_path)) == {"threads=1"}


class Threads(Dataset[int]):
    """Gives the threads of the process that loads it."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return torch.get_num_threads()


def test_a_worker_keeps_its_one_thread(change: Intervene, tmp_path: Path) -> None:
    change("threads=2")
    found = [int(each) for batch in DataLoader(Threads(), num_workers=1) for each in batch]
    assert found == [1, 1]
    names = {line["name"] for line in lines(tmp_path) if "changed" in line}
    assert "torch.set_num_threads" not in names


def test_threads_of_the_scripts_own_are_noted(change: Intervene, tmp_path: Path) -> None:
    change()
    torch.set_num_threads(1)
    [site] = [line for line in lines(tmp_path) if line.get("built") == "threads"]
    assert (Path(site["place"]).name.partition(":")[0], site["value"]) == (
        Path(__file__).name,
        "1",
    )


def test_anomaly_detection_stays_off_and_its_line_is_noted(
    change: Intervene, tmp_path: Path
) -> None:
    change("anomaly_detection=false")
    with torch.autograd.set_detect_anomaly(True):
        assert not torch.is_anomaly_enabled()
    assert changed(tmp_path) == {"anomaly_detection=false": Path(__file__).name}


class Pinned(Tensor):
    """Says that its memory is pinned, and keeps how it was copied."""

    copied: list[Any] = []  # noqa: RUF012 - of the class, as copies make new ones

    def is_pinned(self, device: Any = None) -> bool:
        return True

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") == "to":
            cls.copied.append((args[1:], dict(kwargs or {})))
        return super().__torch_function__(func, types, args, kwargs or {})


def test_copies_from_pinned_memory_do_not_wait_unless_the_script_says_so(
    change: Intervene, tmp_path: Path
) -> None:
    change("non_blocking=true")
    Pinned.copied.clear()
    pinned = torch.ones(2).as_subclass(Pinned)
    pinned.to("cpu")
    pinned.to("cpu", torch.float64, False)
    torch.ones(2).to("cpu")
    assert [(len(args), kwargs) for args, kwargs in Pinned.copied] == [
        (1, {"non_blocking": True}),
        (3, {}),
    ]
    assert changed(tmp_path) == {"non_blocking=true": Path(__file__).name}


def test_number_formats_and_cudnn_are_switched(
    change: Intervene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    before = torch.get_float32_matmul_precision()
    change("tf32=true", "cudnn_benchmark=true")
    try:
        assert torch.backends.cudnn.benchmark
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
    assert set(changed(tmp_path)) == {"tf32=true", "cudnn_benchmark=true"}


def test_seeds_are_known_and_shifted(change: Intervene) -> None:
    change()
    first = torch.rand(1)
    change()
    assert torch.equal(torch.rand(1), first)
    torch.manual_seed(7)
    seven = torch.rand(1)
    change(seed=1)
    torch.manual_seed(6)
    assert torch.equal(torch.rand(1), seven)


def test_nothing_wanted_changes_nothing(change: Intervene, tmp_path: Path) -> None:
    change()
    loader = DataLoader(Numbers(), batch_size=4)
    optimizer = torch.optim.AdamW(nn.Linear(1, 1).parameters())
    assert loader.num_workers == 0
    assert optimizer.defaults["fused"] is None
    assert changed(tmp_path) == {}
