"""Whatever comes in: a configuration that can be used, or a ConfigError with its text."""

import random
import string
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pitstop.config.dump import to_yaml
from pitstop.config.keys import every_key, section_classes
from pitstop.config.legacy.convert import import_legacy
from pitstop.config.load import config_from, load_config
from pitstop.config.workloads.kinds import KINDS
from pitstop.errors import ConfigError

ResultT = TypeVar("ResultT")

KEYS = {kind: sorted(every_key(section_classes(KINDS[kind]))) for kind in KINDS}
WORDS = [
    *("auto", "off", "on", "none", "null", "~", "true", "no", "fp16", "bf16", "fixed", "adaptive"),
    *("0", "1", "-1", "2", "7", "64", "256", "1e-4", "0.5", "1.0", "nan", ".inf", "1e999", "3e5"),
    *(
        "20GiB",
        "1B",
        "sgd",
        "step",
        "poly",
        "pk",
        "shuffle",
        "steps",
        "stage1",
        "vrt",
        "[",
        "{",
        "'",
    ),
    *(
        "",
        " ",
        "\u2028",
        "é",
        "\U0001f6d1",
        "a=b",
        "a: b",
        "- x",
        "&a",
        "*a",
        "!t",
        "<<",
        "9" * 400,
    ),
]


def random_value(rng: random.Random, depth: int) -> object:
    shape = rng.random()
    if depth and shape < 0.15:
        return [random_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if depth and shape < 0.3:
        return {rng.choice(WORDS): random_value(rng, depth - 1) for _ in range(rng.randrange(4))}
    native: list[object] = [None, True, 3, -2.5, float("nan"), 2**70, b"x", (1, 2)]
    return rng.choice(native) if shape < 0.5 else rng.choice(WORDS)


def random_tree(rng: random.Random) -> dict[str, object]:
    kind = rng.choice(sorted(KINDS))
    tree: dict[str, object] = {"model": {"kind": kind}, "train": {"steps": 10, "batch_size": 4}}
    for _ in range(rng.randrange(8)):
        path = rng.choice(KEYS[kind]).split(".")
        if rng.random() < 0.2:
            path[rng.randrange(len(path))] = rng.choice(WORDS) or "x"
        inner = tree
        for name in path[:-1]:
            step = inner.setdefault(name, {})
            inner = step if isinstance(step, dict) else {}
        inner[path[-1]] = random_value(rng, 2)
    return tree


def random_text(rng: random.Random) -> bytes:
    if rng.random() < 0.2:
        return rng.randbytes(rng.randrange(200))
    if rng.random() < 0.3:
        letters = string.printable + "é\u2028\x85"
        return "".join(rng.choice(letters) for _ in range(rng.randrange(200))).encode()
    text = yaml.safe_dump(random_tree_of_text(rng)).encode()
    mutated = bytearray(text)
    for _ in range(rng.randrange(6)):
        at = rng.randrange(len(mutated))
        action = rng.randrange(3)
        if action == 0:
            mutated[at] = rng.randrange(256)
        elif action == 1:
            del mutated[at]
        else:
            mutated[at:at] = rng.choice(WORDS).encode()
        if not mutated:
            break
    return bytes(mutated)


def random_tree_of_text(rng: random.Random) -> object:
    def as_text(value: object) -> object:
        if isinstance(value, dict):
            return {str(name): as_text(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [as_text(inner) for inner in value]
        return str(value)

    return as_text(random_tree(rng))


def outcome(attempt: Callable[[], ResultT]) -> ResultT | None:
    """Give the result, or None for a ConfigError that says something printable."""
    try:
        return attempt()
    except ConfigError as error:
        words = str(error)
    assert words.encode()
    return None


def survive(seed: int, folder: Path) -> bool:
    """Throw one random thing at each door; tell whether a configuration came out."""
    rng = random.Random(seed)
    path = folder / "run.yaml"
    path.write_bytes(random_text(rng))
    overrides = [
        f"{rng.choice([*KEYS['vrt'], *WORDS])}={rng.choice(WORDS)}" for _ in range(rng.randrange(3))
    ]
    sound = False
    for attempt in (
        lambda: load_config(path, overrides),
        lambda: config_from(random_tree(rng), overrides),
    ):
        loaded = outcome(attempt)
        if loaded is not None:
            sound = True
            (folder / "again.yaml").write_text(to_yaml(loaded.config), encoding="utf-8")
            assert load_config(folder / "again.yaml").config == loaded.config
    outcome(lambda: import_legacy(path))
    return sound


def test_random_input_gives_a_configuration_or_a_config_error(tmp_path: Path) -> None:
    outcomes = [survive(seed, tmp_path) for seed in range(200)]
    assert any(outcomes), "all were refused: the fuzz no longer reaches the inside"


@pytest.mark.slow
def test_much_random_input_gives_a_configuration_or_a_config_error(tmp_path: Path) -> None:
    outcomes = [survive(seed, tmp_path) for seed in range(1_000, 3_000)]
    assert 20 < sum(outcomes) < 1_990


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
trees = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from([*section_classes(None), "x", "base", ""]), trees))
def test_any_tree_gives_a_configuration_or_a_config_error(tree: dict[str, object]) -> None:
    outcome(lambda: config_from(tree))


@given(st.text())
def test_any_override_gives_a_configuration_or_a_config_error(text: str) -> None:
    sound = {"model": {"kind": "vrt"}, "train": {"steps": 1}}
    text = f"{text}\udc80" if len(text) % 2 else text
    for override in (text, f"train.steps={text}", f"{text}=1"):
        outcome(lambda override=override: config_from(sound, [override]))
