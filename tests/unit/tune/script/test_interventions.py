"""What is tried on a script: only what applies to it, and each as a line that one can write."""

from dataclasses import replace

import pytest

from pitstop.records.tuning.script import LoaderSite, ModelSite, OptimizerSite, ScriptSeen
from pitstop.records.verify.verification import Claim
from pitstop.tune.script.interventions import (
    At,
    claim_of_change,
    line_for,
    open_script_space,
)

LOADER = LoaderSite(
    place="train.py:3", name="Pictures", workers=0, batch_size=4, is_stream=False, trains=True
)
SCRIPT = ScriptSeen(
    device="cpu",
    threads=2,
    autocast=None,
    is_compiled=False,
    loaders=(LOADER,),
    optimizers=(
        OptimizerSite(place="train.py:5", name="AdamW", takes=("fused", "foreach"), way=None),
    ),
    models=(
        ModelSite(
            place="train.py:5",
            name="model",
            class_name="Net",
            device="cpu",
            convolves=True,
            volumes=False,
            is_float32=True,
        ),
    ),
)
ALL: frozenset[Claim] = frozenset({"exact", "rounding"})
EXACT: frozenset[Claim] = frozenset({"exact"})


def tried(seen: ScriptSeen, *, cores: int = 2) -> set[str]:
    space = open_script_space(At(seen=seen, cores=cores, is_linux=True), ALL)
    return {word for choices in space.choices for choice in choices for word in choice}


def names(words: set[str]) -> set[str]:
    return {word.partition("=")[0] for word in words}


def test_without_a_gpu_nothing_of_cuda_is_tried() -> None:
    found = names(tried(SCRIPT))
    assert {"loader.workers", "optimizer", "autocast", "threads", "compile"} <= found
    assert not found & {"tf32", "cudnn_benchmark", "loader.pin", "non_blocking"}
    on_gpu = names(tried(replace(SCRIPT, device="cuda:0")))
    assert {"tf32", "cudnn_benchmark", "loader.pin", "non_blocking"} <= on_gpu
    assert "threads" not in on_gpu


@pytest.mark.parametrize(
    "loaders",
    [(), (replace(LOADER, trains=False),), (replace(LOADER, is_stream=True),)],
    ids=["none", "of an evaluation", "of a stream"],
)
def test_workers_need_a_loader_that_trains(loaders: tuple[LoaderSite, ...]) -> None:
    assert not any(
        name.startswith("loader.") for name in names(tried(replace(SCRIPT, loaders=loaders)))
    )


def test_workers_need_a_second_core() -> None:
    assert "loader.workers" not in names(tried(SCRIPT, cores=1))
    counts = {word for word in tried(SCRIPT, cores=8) if word.startswith("loader.workers")}
    assert counts == {f"loader.workers={n}" for n in (1, 2, 4, 7, 8)}


def test_what_the_script_has_already_is_not_tried() -> None:
    assert "autocast" not in names(tried(replace(SCRIPT, autocast="bfloat16")))
    assert "compile" not in names(tried(replace(SCRIPT, is_compiled=True)))
    used = replace(SCRIPT.optimizers[0], way="fused")
    assert "optimizer" not in names(tried(replace(SCRIPT, optimizers=(used,))))
    given = replace(SCRIPT, environment=("MALLOC_MMAP_MAX_",))
    assert "env.MALLOC_MMAP_MAX_" not in names(tried(given))


def test_what_is_not_tried_is_named_with_its_reason() -> None:
    space = open_script_space(At(seen=SCRIPT, cores=2, is_linux=True), EXACT)
    assert "TF32: it trains without a GPU" in space.left_out
    assert "autocast=bf16: changes the rounding" in space.left_out
    assert all(
        claim_of_change(choice) == "exact" for choices in space.choices for choice in choices
    )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_choice_can_be_written_down(device: str) -> None:
    seen = replace(SCRIPT, device=device, anomaly_detection=("train.py:1",))
    space = open_script_space(At(seen=seen, cores=4, is_linux=True), ALL)
    for choices in space.choices:
        for choice in choices:
            assert (line_for(choice, seen, name="model") != "") == bool(choice)


def test_8_bits_need_a_gpu_a_package_and_leave_to_change_what_is_learned() -> None:
    small = replace(SCRIPT.optimizers[0], eight_bit="bitsandbytes")
    seen = replace(SCRIPT, device="cuda:0", optimizers=(small,))
    training: frozenset[Claim] = frozenset({*ALL, "training"})

    def offered(script: ScriptSeen, allowed: frozenset[Claim]) -> bool:
        space = open_script_space(At(seen=script, cores=2, is_linux=True), allowed)
        return any("optimizer=8bit" in choice for choices in space.choices for choice in choices)

    assert offered(seen, training)
    assert not offered(seen, ALL)
    assert not offered(replace(seen, device="cpu"), training)
    assert not offered(replace(seen, optimizers=SCRIPT.optimizers), training)
    line = line_for(("optimizer=8bit",), seen, name="AdamW")
    assert line == "build AdamW8bit of bitsandbytes.optim instead of AdamW"


def test_lines_say_what_to_write() -> None:
    workers = ("loader.workers=2", "loader.persistent=true")
    assert line_for(workers, SCRIPT, name="DataLoader") == (
        "give DataLoader num_workers=2, persistent_workers=True"
    )
    assert line_for(("optimizer=fused",), SCRIPT, name="AdamW") == "give AdamW fused=True"
    assert line_for(("env.A=1", "env.B=2"), SCRIPT, name="") == "A=1 B=2 before the command"


def test_without_a_loss_only_what_keeps_every_bit_is_tried() -> None:
    at = At(seen=SCRIPT, cores=2, is_linux=True, has_losses=False)
    space = open_script_space(at, ALL)
    tried_words = [choice for choices in space.choices for choice in choices]
    assert all(claim_of_change(choice) == "exact" for choice in tried_words)
    reason = "changes the rounding, and no loss was seen to hold it against"
    assert f"autocast=bf16: {reason}" in space.left_out


def test_a_model_is_named_as_its_script_calls_it() -> None:
    assert SCRIPT.models_called("Net") == ("model",)
    assert SCRIPT.models_called("DataLoader") == ("DataLoader",)
