import os
from pathlib import Path

import pytest
from pydantic import model_validator

from pitstop.config.host_limits import HostLimits
from pitstop.config.load import LoadedConfig, config_from, load_config
from pitstop.config.problems import COMMAND_LINE, ConfigProblems, Problem
from pitstop.config.quantities import Count, Positive
from pitstop.config.sections import DataSection, LossSection, LossTerm, ModelSection
from pitstop.config.workloads.by_kind import WorkloadSections
from pitstop.errors import ConfigError

SOUND = "model: {kind: vrt}\ntrain: {steps: 100}\n"
GIB = 2**30


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def load(tmp_path: Path, text: str | bytes, *overrides: str) -> LoadedConfig:
    return load_config(write(tmp_path / "run.yaml", text), overrides)


def problems(tmp_path: Path, text: str | bytes, *overrides: str) -> dict[str, Problem]:
    with pytest.raises(ConfigProblems) as caught:
        load(tmp_path, text, *overrides)
    return {problem.key: problem for problem in caught.value.problems}


def refusal(tmp_path: Path, text: str | bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    return str(caught.value)


EIGHT_MISTAKES = """\
model:
  kind: vrt
num_workers: 3
loader:
  wokers: 4
  workers: 0
  persistent: true
cache:
  budget: -1
train:
  steps: 100
  precision: bf61
  batch_size: 0
optimizer:
  betas: [0.9, 2]
schedule:
  kind: step
"""


def test_eight_mistakes_are_reported_in_one_go(tmp_path: Path) -> None:
    path = write(tmp_path / "run.yaml", EIGHT_MISTAKES)
    with pytest.raises(ConfigProblems) as caught:
        load_config(path)
    assert str(caught.value).splitlines() == [
        f"{path} has 8 problems",
        "  num_workers          unknown key; did you mean loader.workers? (line 3)",
        "  loader.wokers        unknown key; did you mean loader.workers? (line 5)",
        "  loader.persistent    has no effect: loader.workers is 0, so there are no worker "
        "processes (line 7)",
        "  cache.budget         must be a size such as 20GiB, not -1 (line 9)",
        "  train.precision      must be one of fp32, tf32, bf16 or fp16, not bf61; did you mean "
        "bf16? (line 12)",
        "  train.batch_size     must be a whole number of at least 1, not 0 (line 13)",
        "  optimizer.betas      must be 2 numbers of at least 0 and below 1, not [0.9, 2] "
        "(line 15)",
        "  schedule.milestones  is missing: schedule.kind is step",
    ]
    assert len(caught.value.problems) == 8


def test_no_word_of_the_machinery_reaches_the_reader(tmp_path: Path) -> None:
    message = refusal(tmp_path, EIGHT_MISTAKES + "log: 5\nrun: {seed: [], name: {a: b}}\n").lower()
    assert not [
        word for word in ("input", "pydantic", "type=", "valid", "extra") if word in message
    ]


def test_one_problem_is_not_called_problems(tmp_path: Path) -> None:
    assert "has 1 problem\n" in refusal(tmp_path, SOUND + "cache: {budget: lots}\n")


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("loader.wokers", "loader.workers"),
        ("loader.num_workers", "loader.workers"),
        ("workers", "loader.workers"),
        ("train.lr", "optimizer.lr"),
        ("learning_rate", "optimizer.lr"),
        ("train.grad_clip", "train.clip.norm"),
        ("trian", "train"),
        ("optimizer.weight_deacy", "optimizer.weight_decay"),
        ("train.compile.mod", "train.compile.mode"),
        ("data.crop_size", "data.crop"),
        ("loss.charbonier", "loss.charbonnier"),
        ("NUM_WORKERS", "loader.workers"),
    ],
)
def test_an_unknown_key_is_met_with_the_one_that_was_meant(
    tmp_path: Path, key: str, meant: str
) -> None:
    found = problems(tmp_path, SOUND, f"{key}=1")
    assert f"did you mean {meant}?" in found[key].message


def test_a_key_of_several_sections_is_suggested_with_each(tmp_path: Path) -> None:
    message = problems(tmp_path, SOUND, "train.every_steps=5")["train.every_steps"].message
    assert message.endswith(
        "did you mean eval.every_steps, checkpoint.every_steps or log.every_steps?"
    )


def test_nothing_is_suggested_for_gibberish(tmp_path: Path) -> None:
    assert problems(tmp_path, SOUND, "qqqqzzz=1")["qqqqzzz"].message == "unknown key"


def test_a_key_of_another_workload_is_unknown(tmp_path: Path) -> None:
    assert "data.records_per_id" in problems(tmp_path, SOUND + "data: {records_per_id: 4}\n")


def test_a_dotted_key_in_a_file_is_told_to_nest(tmp_path: Path) -> None:
    found = problems(tmp_path, SOUND + "loader.workers: 4\n")
    assert "write `loader:` and under it `workers:`" in found["loader.workers"].message


def test_the_guides_keys_lead_to_the_importer(tmp_path: Path) -> None:
    assert "pitstop config import" in refusal(tmp_path, "DATA: {K: 1}\nTRAIN: {EPOCHS: 2}\n")


def test_numbers_and_switches_are_read_as_people_write_them(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "model: {kind: vrt}\n"
        "train: {steps: 3e2, compile: {scope: off}}\n"
        "optimizer: {lr: 1e-4}\n"
        "loader: {pin: off, persistent: no, drop_last: yes, tune: off, workers: 0.8}\n"
        "run: {name: 007, deterministic: on}\n",
    ).config
    assert config.train.steps == 300
    assert config.train.compile.scope == "off"
    assert config.optimizer.lr == 1e-4
    assert (config.loader.pin, config.loader.persistent, config.loader.drop_last) == (
        False,
        False,
        True,
    )
    assert (config.loader.tune, config.loader.workers) == ("off", 0.8)
    assert (config.run.name, config.run.deterministic) == ("007", True)


def test_an_empty_section_says_nothing(tmp_path: Path) -> None:
    loaded = load(tmp_path, SOUND + "loader:\ncache: null\noptimizer: {}\n")
    assert loaded.config == load(tmp_path, SOUND).config


def test_an_empty_group_inside_a_section_says_nothing(tmp_path: Path) -> None:
    text = "model: {kind: vrt}\ntrain:\n  steps: 100\n  clip:\n  scaler:\n"
    assert load(tmp_path, text).config == load(tmp_path, SOUND).config


def test_null_for_a_setting_that_needs_a_value_is_a_problem(tmp_path: Path) -> None:
    found = problems(tmp_path, SOUND, "optimizer.lr=null")
    assert found["optimizer.lr"].message == "must be a number above 0, not null"


def test_a_key_set_twice_is_a_mistake(tmp_path: Path) -> None:
    found = problems(tmp_path, "model: {kind: vrt}\ntrain:\n  steps: 1\n  steps: 2\n")
    assert found["train.steps"].message == "is set twice, first on line 3"
    origin = found["train.steps"].origin
    assert origin is not None
    assert origin.line == 4


def test_a_missing_or_unknown_kind_names_the_choices(tmp_path: Path) -> None:
    missing = problems(tmp_path, "train: {steps: 1}\n")["model.kind"]
    assert missing.message.startswith("is missing; choose one of clip_reid, lss_swin_mono")
    unknown = problems(tmp_path, "model: {kind: vrt_spik}\ntrain: {steps: 1}\n")["model.kind"]
    assert unknown.message.endswith("not vrt_spik; did you mean vrt_spike?")


def test_mistakes_elsewhere_are_found_though_the_kind_is_wrong(tmp_path: Path) -> None:
    text = "model: {kind: what}\ntrain: {steps: 1, scaler: {start: 8}}\nloader: {wokers: 1}\n"
    assert problems(tmp_path, text).keys() == {"model.kind", "train.scaler", "loader.wokers"}


def test_a_rule_is_silent_where_what_it_hangs_on_is_wrong(tmp_path: Path) -> None:
    text = "model: {kind: vrt}\ntrain: {steps: 1, precision: fp61, scaler: {start: 8}}\n"
    assert problems(tmp_path, text).keys() == {"train.precision"}


# Overrides


def test_overrides_are_laid_over_the_file_in_order(tmp_path: Path) -> None:
    overrides = (
        "train.steps=5",
        "train.steps=7",
        "optimizer.betas=[0.8, 0.9]",
        "cache.budget=1GiB",
    )
    config = load(tmp_path, SOUND, *overrides).config
    assert (config.train.steps, config.cache.budget) == (7, GIB)
    assert config.optimizer.betas == (0.8, 0.9)


def test_an_override_can_set_a_group_and_keep_its_neighbours(tmp_path: Path) -> None:
    text = SOUND + "optimizer: {lr: 0.5, weight_decay: 0.25}\n"
    config = load(tmp_path, text, "optimizer={lr: 0.125}").config
    assert (config.optimizer.lr, config.optimizer.weight_decay) == (0.125, 0.25)


def test_an_override_can_take_a_setting_back(tmp_path: Path) -> None:
    assert load(tmp_path, SOUND, "train.steps=null", "train.epochs=3").config.train.steps is None


@pytest.mark.parametrize("override", ["train.steps", "=5", "train..steps=5", ".=1", "", "a" * 500])
def test_a_malformed_override_is_told_how_to_look(tmp_path: Path, override: str) -> None:
    [problem] = problems(tmp_path, SOUND, override).values()
    assert "must look like key=value" in problem.message


def test_a_wrong_override_is_placed_on_the_command_line(tmp_path: Path) -> None:
    found = problems(tmp_path, SOUND, "train.steps=many", "loader.workers=[", "base=x.yaml")
    assert found.keys() == {"train.steps", "loader.workers", "base"}
    assert {p.origin.source for p in found.values() if p.origin} == {COMMAND_LINE}


def test_an_override_can_reach_through_a_single_value_only_into_an_error(tmp_path: Path) -> None:
    assert "train.steps" in problems(tmp_path, SOUND, "train.steps.more=1")


# Bases


def test_a_file_is_laid_over_its_base_group_by_group(tmp_path: Path) -> None:
    (tmp_path / "bases").mkdir()
    write(tmp_path / "bases/low.yaml", "train: {steps: 1, accumulate: 3}\noptimizer: {lr: 0.5}\n")
    write(tmp_path / "bases/base.yaml", "base: low.yaml\nmodel: {kind: vrt}\ntrain: {steps: 2}\n")
    config = load(tmp_path, "base: bases/base.yaml\noptimizer: {lr: 0.25}\ntrain:\n").config
    assert (config.train.steps, config.train.accumulate, config.optimizer.lr) == (2, 3, 0.25)


def test_of_several_bases_the_later_one_lies_on_top(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", SOUND)
    write(tmp_path / "b.yaml", "train: {steps: 7}\n")
    assert load(tmp_path, "base: [a.yaml, b.yaml]\n").config.train.steps == 7
    assert load(tmp_path, "base: [b.yaml, a.yaml]\n").config.train.steps == 100


def test_a_mistake_in_a_base_is_placed_there(tmp_path: Path) -> None:
    base = write(tmp_path / "base.yaml", SOUND + "loader:\n  wokers: 3\n")
    problem = problems(tmp_path, "base: base.yaml\n")["loader.wokers"]
    assert problem.origin is not None
    assert (problem.origin.source, problem.origin.line) == (str(base), 4)
    assert f"({base}, line 4)" in refusal(tmp_path, "base: base.yaml\n")


def test_a_missing_base_is_named_without_blaming_what_it_would_have_set(tmp_path: Path) -> None:
    found = problems(tmp_path, "base: gone.yaml\nloader: {wokers: 1}\n")
    assert found.keys() == {"base", "loader.wokers"}
    assert "there is no file" in found["base"].message
    assert "gone.yaml" in found["base"].message


def test_bases_that_lead_in_a_circle_are_named(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", "base: b.yaml\n")
    write(tmp_path / "b.yaml", "base: a.yaml\n")
    with pytest.raises(
        ConfigProblems, match=r"leads back to itself: a\.yaml -> b\.yaml -> a\.yaml"
    ):
        load_config(tmp_path / "a.yaml")


def test_a_chain_of_bases_has_an_end(tmp_path: Path) -> None:
    for number in range(30):
        write(tmp_path / f"{number}.yaml", f"base: {number + 1}.yaml\n")
    with pytest.raises(ConfigProblems, match="more than 10 deep"):
        load_config(tmp_path / "0.yaml")


def test_a_web_of_bases_has_an_end(tmp_path: Path) -> None:
    for number in range(9):
        write(tmp_path / f"{number}.yaml", f"base: [{number + 1}.yaml, {number + 1}.yaml]\n")
    write(tmp_path / "9.yaml", SOUND)
    with pytest.raises(ConfigProblems, match="50 files"):
        load_config(tmp_path / "0.yaml")


@pytest.mark.parametrize("base", ["{a: b}", "[[a]]", "[null]"])
def test_a_base_that_is_no_path_is_a_mistake(tmp_path: Path, base: str) -> None:
    message = problems(tmp_path, f"base: {base}\n{SOUND}")["base"].message
    assert message.startswith("must be a path or a list of paths")


# Strange files


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- a\n- b\n", "must be settings such as `train:`"),
        ("hello\n", "must be settings such as `train:`"),
        ("a: [1\n", "is not readable as YAML"),
        ("a: b: c\n", "is not readable as YAML"),
        ("\tx: 1\n", "is not readable as YAML"),
        ("a: 1\n--- \nb: 2\n", "is not readable as YAML"),
        ("a: *nowhere\n", "is not readable as YAML"),
        ("a: &x [*x]\n", "more than"),
        ("[" * 5000, "nested deeper"),
        ("{a: " * 5000, "nested deeper"),
        ("- " * 5000, "nested deeper"),
        ("{" * 3000, "nested deeper"),
        ("".join(f"a{n}: 1\n" for n in range(21_000)), "more than 20000 values"),
        ("a: !!python/object/apply:os.system [ls]\n", "tags are not read"),
        ("a: !mine 3\n", "tags are not read"),
        ("train: !!set {steps}\n", "tags are not read"),
        ("x: &x {steps: 1}\ntrain: {<<: *x}\n", "merge keys are not read"),
        ("? [a, b]\n: c\n", "has a key that is not a name"),
        ("? {a: b}\n: c\n", "has a key that is not a name"),
        ("'': 3\n", "has a key that is not a name"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"a: \x00\n", "is not readable as YAML"),
        ("a: \x07\n", "is not readable as YAML"),
        ("train: {steps: .nan}\n", "train.steps  must be a whole number"),
        ("optimizer: {lr: nan}\n", "must be a number above 0, not nan"),
        ("optimizer: {lr: 1e999}\n", "must be a number above 0"),
        ("train: {steps: 1e99999999999}\n", "must be a whole number"),
        (f"train: {{steps: {'9' * 5000}}}\n", "must be a whole number"),
        ("optimizer: {lr: 2026-01-01}\n", "must be a number above 0, not 2026-01-01"),
        ("train: 5\n", "must be a group of settings, not 5"),
        ("train: [a]\n", "must be a group of settings"),
        ("train: {clip: 5}\n", "must be a group of settings, not 5"),
        ("1: 2\ntrue: false\nnull: 1\n", "unknown key"),
        ("", "model.kind"),
        ("# nothing\n", "model.kind"),
        ("null\n", "model.kind"),
        ("%YAML 9.9\n---\na: 1\n", "is not readable as YAML"),
    ],
)
def test_a_strange_file_is_refused_in_words(tmp_path: Path, text: str | bytes, words: str) -> None:
    assert words in refusal(tmp_path, text)


def test_aliases_of_aliases_do_not_explode(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert "more than 20000 values" in refusal(tmp_path, "\n".join(lines))


def test_a_plain_alias_works(tmp_path: Path) -> None:
    text = "model: {kind: vrt}\ntrain: {steps: &n 50}\nlog: {every_steps: *n}\n"
    assert load(tmp_path, text).config.log.every_steps == 50


def test_a_byte_order_mark_is_no_trouble(tmp_path: Path) -> None:
    assert load(tmp_path, b"\xef\xbb\xbf" + SOUND.encode()).config.train.steps == 100


def test_a_long_value_and_a_long_key_are_shortened(tmp_path: Path) -> None:
    message = refusal(tmp_path, f"{SOUND}{'k' * 90}: 1\noptimizer: {{lr: {'v' * 5000}}}\n")
    assert max(map(len, message.splitlines())) < 250


def test_letters_no_terminal_should_see_are_escaped(tmp_path: Path) -> None:
    message = refusal(tmp_path, SOUND + 'optimizer: {lr: "\\e[31mred\\n"}\n"\\e[31m": 1\n')
    assert "\x1b" not in message
    assert "\\x1b[31mred\\n" in message


def test_a_folder_a_missing_file_and_a_huge_one_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        load_config(tmp_path)
    with pytest.raises(ConfigError, match="there is no file"):
        load_config(tmp_path / "gone.yaml")
    with pytest.raises(ConfigError, match="there is no file"):
        load_config("a\0b")
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        load(tmp_path, "#" * (2 << 20))


def test_a_path_that_cannot_be_opened_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ConfigError):
        load_config(tmp_path / "loop")
    with pytest.raises(ConfigError):
        load_config("x" * 5000)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_a_file_without_permission_is_a_config_error(tmp_path: Path) -> None:
    path = write(tmp_path / "run.yaml", SOUND)
    path.chmod(0)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="there is no file"):
        load_config(tmp_path / "pipe")


# The host


def test_a_cache_over_half_of_the_memory_is_warned_of() -> None:
    host = HostLimits(cores=8, memory_bytes=16 * GIB)
    settings = {"model": {"kind": "vrt"}, "train": {"steps": 1}}
    [warning] = config_from(settings, ["cache.budget=12GiB"], host=host).warnings
    assert warning.key == "cache.budget"
    assert warning.message == "is 12GiB, 75.0% of the 16.0 GiB this process may use"
    assert not config_from(settings, ["cache.budget=8GiB"], host=host).warnings
    both = config_from(settings, ["cache.budget=6GiB", "loader.prefetch_bytes=4GiB"], host=host)
    assert [warning.key for warning in both.warnings] == ["loader.prefetch_bytes"]


def test_more_workers_than_cores_are_warned_of() -> None:
    host = HostLimits(cores=4, memory_bytes=16 * GIB)
    settings = {"model": {"kind": "vrt"}, "train": {"steps": 1}}
    loaded = config_from(settings, ["loader.workers=5", "loader.eval_workers=6"], host=host)
    assert [warning.key for warning in loaded.warnings] == ["loader.workers", "loader.eval_workers"]
    for workers in ("4", "auto", "1.0"):
        assert not config_from(settings, [f"loader.workers={workers}"], host=host).warnings


# Workloads from outside


class ToyData(DataSection):
    items: Count = 10


class ToyModel(ModelSection):
    width: Count
    scale: Positive = 1.0


class ToyLoss(LossSection):
    l2: LossTerm = LossTerm()


TOY = {"toy": WorkloadSections(name="toy", data=ToyData, model=ToyModel, loss=ToyLoss)}


def test_a_workload_from_outside_brings_its_own_sections() -> None:
    settings = {"model": {"kind": "toy", "width": 3}, "train": {"steps": 1}}
    config = config_from(settings, ["model.scale=1e-2"], kinds=TOY).config
    assert isinstance(config.model, ToyModel)
    assert (config.model.width, config.model.scale) == (3, 0.01)


def test_a_workload_from_outside_is_checked_like_our_own() -> None:
    settings = {
        "model": {"kind": "toy", "widht": 3},
        "loss": {"l2": {"weight": 0, "every_steps": 2}},
    }
    with pytest.raises(ConfigProblems) as caught:
        config_from(settings, kinds=TOY)
    messages = {problem.key: problem.message for problem in caught.value.problems}
    assert messages["model.widht"] == "unknown key; did you mean model.width?"
    assert messages["model.width"] == "is missing; it must be a whole number of at least 1"


class PickyModel(ModelSection):
    low: Count = 1
    high: Count = 2
    extras: dict[str, Count] | None = None

    @model_validator(mode="after")
    def in_order(self) -> "PickyModel":
        if self.low > self.high:
            raise ValueError("must have low below high")
        return self


def test_a_check_a_section_from_outside_makes_itself_is_reported_in_its_words() -> None:
    kinds = {"picky": WorkloadSections(name="picky", data=ToyData, model=PickyModel, loss=ToyLoss)}
    settings = {"model": {"kind": "picky", "low": 3}, "train": {"steps": 1}}
    with pytest.raises(ConfigProblems) as caught:
        config_from(settings, kinds=kinds)
    [problem] = [problem for problem in caught.value.problems if problem.key == "model"]
    assert problem.message == "must have low below high"
    with pytest.raises(
        ConfigProblems, match=r"model\.extras  must be a value of another type or null"
    ):
        config_from({**settings, "model": {"kind": "picky", "extras": 3}}, kinds=kinds)


def test_a_flood_of_mistakes_is_cut_short_in_words_and_kept_whole_in_data() -> None:
    with pytest.raises(ConfigProblems, match="and 12 more") as caught:
        config_from({f"key{number}": 1 for number in range(60)})
    assert len(caught.value.problems) == 62


@pytest.mark.parametrize("bound", ["[5, 1, 1]", "[0, 1, 0]", "[0, 1, 1e-9]", "[0, 1]"])
def test_a_range_that_covers_nothing_or_too_much_is_refused(bound: str) -> None:
    settings = {"model": {"kind": "lss_swin_mono"}, "train": {"steps": 1}}
    with pytest.raises(ConfigProblems, match="start, stop and step with start below stop"):
        config_from(settings, [f"model.depth={bound}"])


def test_an_epoch_set_twice_in_two_spellings_is_refused() -> None:
    settings = {"model": {"kind": "vrt"}, "train": {"epochs": 9}}
    with pytest.raises(ConfigProblems, match="must be a mapping of epoch to pixels"):
        config_from(settings, ["train.crop_schedule={1: 64, 01: 128}"])


def test_a_size_from_code_may_be_a_plain_number_of_bytes() -> None:
    settings = {"model": {"kind": "vrt"}, "train": {"steps": 1}, "cache": {"budget": 4096}}
    assert config_from(settings).config.cache.budget == 4096


@pytest.mark.parametrize(
    "place", ["run: {name: %s}", "cache: {budget: %s}", "optimizer: {betas: [%s, 1]}"]
)
def test_half_a_letter_is_named_and_no_encoding_fails(place: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(place % r'"\ud83d"' + "\n")
    with pytest.raises(ConfigError, match="lone surrogate"):
        load_config(path)


def test_a_preset_is_found_by_its_name_also_without_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = load_config("configs/deblur/demo.yaml").config
    assert shipped.run.name == "deblur-demo"
    own = Path("configs/deblur/demo.yaml")
    own.parent.mkdir(parents=True)
    preset = Path(__file__).parents[3] / "configs/reid/demo.yaml"
    own.write_text(f"base: {preset}\nrun: {{name: mine}}\n")
    with pytest.raises(ConfigError, match="there is no file configs"):
        load_config("configs/deblur/none.yaml")
    assert load_config(own).config.run.name == "mine", "a file that is here goes first"
