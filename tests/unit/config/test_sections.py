import subprocess
import sys

import pytest
from pydantic import ValidationError

from pitstop.config.keys import every_key, field_docs, section_classes
from pitstop.config.load import config_from
from pitstop.config.sections import LoaderSection
from pitstop.config.workloads.kinds import KINDS

CANONICAL = {
    "run": "name work_dir seed deterministic",
    "data": "root split",
    "loader": "workers prefetch prefetch_bytes eval_workers eval_prefetch pin persistent "
    "drop_last start_method corrupt tune",
    "cache": "budget policy",
    "model": "kind kernels",
    "train": "batch_size accumulate steps epochs precision recompute compile.scope compile.mode "
    "clip.kind clip.norm on_nan ema crop_schedule distill.teacher",
    "optimizer": "kind lr betas weight_decay lr_scaling",
    "schedule": "kind warmup_steps",
    "eval": "every_steps batch_size tile",
    "checkpoint": "every_steps keep_last best_of",
    "log": "every_steps norm_every_steps progress_every_steps memory_every_steps tensorboard",
}


def test_every_canonical_key_exists() -> None:
    wanted = {f"{section}.{name}" for section, names in CANONICAL.items() for name in names.split()}
    assert wanted <= every_key(section_classes(None)).keys()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_setting_says_what_it_means_and_what_it_takes(kind: str) -> None:
    for key in every_key(section_classes(KINDS[kind])).values():
        assert key.section is not None or len(key.description) > 10, key.name
        assert key.description.endswith(".") or key.section is not None, key.name
        assert "a value of another type" not in key.expectation, key.name


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_loss_term_has_a_weight_and_a_cadence(kind: str) -> None:
    keys = every_key(section_classes(KINDS[kind]))
    terms = [name for name in keys if name.startswith("loss.") and name.count(".") == 1]
    assert terms
    assert all({f"{term}.weight", f"{term}.every_steps"} <= keys.keys() for term in terms)


def test_a_text_under_a_field_is_inherited() -> None:
    deblur = KINDS["vrt"].data
    assert field_docs(deblur)["root"].startswith("Folder of the dataset")
    assert field_docs(deblur)["crop"].startswith("Side in pixels")


def test_sections_are_frozen() -> None:
    section = LoaderSection()
    with pytest.raises(ValidationError):
        section.pin = False


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_configuration_can_be_hashed_and_compared(kind: str) -> None:
    settings = {"model": {"kind": kind}, "train": {"steps": 1, "batch_size": 4}}
    one, two = config_from(settings).config, config_from(settings).config
    assert one == two
    assert hash(one) == hash(two)


def test_reading_configurations_needs_neither_torch_nor_rich() -> None:
    code = (
        "import sys, pitstop.config.load, pitstop.config.legacy.convert, pitstop.config.dump\n"
        "heavy = {'torch', 'rich', 'jinja2', 'numpy', 'typer', 'psutil'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
