import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pitstop.cli.config import app
from pitstop.config.load import load_config
from pitstop.errors import ConfigError
from pitstop.workloads.deblur.synthetic import make_clips

REID = Path(__file__).parents[2] / "data/configs/guide_reid.yaml"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(
        "model: {kind: vrt, depths: [2, 2, 2, 2, 2, 2, 2, 2], indep_reconsts: [], "
        "embed_dims: [8, 8, 8, 8, 8, 8, 8, 8], heads: 2, window: [2, 4, 4], deformable_groups: 2}\n"
        "data: {crop: 32, clip_len: 2}\n"
        "train: {steps: 100}\n"
    )
    return path


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made") / "clips"
    make_clips(root, clips={"train": 1, "test": 1}, frames=3, size=(48, 64), seed=0)
    return root


def test_a_sound_configuration_is_called_so(sound: Path, clips: Path) -> None:
    result = run("check", sound, f"data.root={clips}")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{sound} is sound: vrt, 100 steps")
    assert "tried: the model and its optimizer were built" in result.stdout
    assert result.stdout.rstrip().endswith(f"next: pitstop train {sound}")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("data.split=nights",), "nights"),
        (("data.clip_len=9",), "the clips in"),
        (("model.weights=gone.pth",), "no checkpoint at gone.pth"),
        (("eval.every_steps=50", "checkpoint.best_of=fame"), "best_of is fame, but deblur"),
        (("model.kind=vrt_spike", "data.spike_height=250", "data.spike_width=400"), "spike"),
    ],
)
def test_check_finds_what_only_building_the_run_shows(
    sound: Path, clips: Path, settings: tuple[str, ...], words: str
) -> None:
    result = run("check", sound, f"data.root={clips}", *settings)
    assert result.exit_code == 1
    assert words in result.stderr


def test_check_names_a_thing_that_stops_both_datasets_once(sound: Path, tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    result = run("check", sound, f"data.root={tmp_path}", "model.weights=gone.pth")
    assert result.exit_code == 1
    assert f"{sound} has 3 problems" in result.stderr


def test_check_finds_every_mistake_and_leaves_with_1(sound: Path) -> None:
    result = run("check", sound, "loader.wokers=1", "cache.budget=-1")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert f"{sound} has 2 problems" in result.stderr
    assert "did you mean loader.workers?" in result.stderr


def test_check_warns_of_what_this_host_cannot_give(sound: Path, clips: Path) -> None:
    result = run("check", sound, f"data.root={clips}", "loader.workers=4000")
    assert result.exit_code == 0
    assert "loader.workers  is 4000, more than" in result.stdout


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ((), "data.root  is not set; name the folder of the dataset"),
        (("data.root=gone",), "data.root  is gone, which is not there"),
        (("cache.budget=900TiB",), "cache.budget  is 900TiB, more than the"),
        (("schedule.warmup_steps=100",), "schedule.warmup_steps  is 100 of 100 steps"),
        (("loss.perceptual.weight=0.1",), "loss.perceptual.weights  is not set while"),
        (
            ("loss.perceptual.weight=0.1", "loss.perceptual.weights=gone.pth"),
            "loss.perceptual.weights  is gone.pth, which is not there",
        ),
    ],
)
def test_check_finds_what_a_run_would_stumble_over(
    sound: Path, tmp_path: Path, settings: tuple[str, ...], words: str
) -> None:
    has_data = [f"data.root={tmp_path}"] if settings and settings[0] != "data.root=gone" else []
    result = run("check", sound, *has_data, *settings)
    assert result.exit_code == 1
    assert words in result.stderr


def test_a_missing_file_is_left_to_the_caller(tmp_path: Path) -> None:
    result = run("check", tmp_path / "gone.yaml")
    assert isinstance(result.exception, ConfigError)


def test_show_prints_what_loads_to_the_same_configuration(sound: Path, tmp_path: Path) -> None:
    result = run("show", sound, "train.precision=bf16")
    (tmp_path / "shown.yaml").write_text(result.stdout)
    shown = load_config(tmp_path / "shown.yaml").config
    assert shown == load_config(sound, ["train.precision=bf16"]).config


def test_import_prints_the_configuration_alone_on_stdout(tmp_path: Path) -> None:
    result = run("import", REID)
    assert result.exit_code == 0
    (tmp_path / "new.yaml").write_text(result.stdout)
    assert load_config(tmp_path / "new.yaml").config.model.kind == "clip_reid"
    assert "18 keys of the reid guide: 2 applied, 9 renamed" in result.stderr
    assert "SOLVER.FANCY_TRICK" in result.stderr


def test_import_writes_a_file_and_prints_the_account(tmp_path: Path) -> None:
    new, account = tmp_path / "new.yaml", tmp_path / "account.json"
    result = run("import", REID, "--output", new, "--json", account)
    assert result.exit_code == 0
    assert load_config(new).config.train.batch_size == 8
    assert result.stdout.rstrip().endswith(f"wrote {new}; next: pitstop config check {new}")
    assert len(json.loads(account.read_text())["accounts"]) == 18


def test_import_gives_json_alone_on_stdout() -> None:
    account = json.loads(run("import", REID, "--json", "-").stdout)
    assert account["guide"] == "reid"


def test_import_does_not_overwrite(sound: Path) -> None:
    before = sound.read_text()
    result = run("import", REID, "--output", sound)
    assert isinstance(result.exception, ConfigError)
    assert sound.read_text() == before


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "import pitstop.cli.config\n"
        "heavy = {'torch', 'pydantic', 'yaml', 'numpy'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_check_and_show_write_their_record(sound: Path, tmp_path: Path) -> None:
    path = tmp_path / "check.json"
    assert run("check", sound, "loader.wokers=1", "--json", path).exit_code == 1
    found = json.loads(path.read_text())
    assert found["is_sound"] is False
    assert [problem["key"] for problem in found["problems"]] == ["loader.wokers"]
    shown = json.loads(run("show", sound, "run.seed=7", "--json", "-").stdout)
    assert shown["run"]["seed"] == 7
