"""Public configurations imported, compared with their files key by key, and trained two steps.

    python benchmarks/import_and_train.py CLONES [--work FOLDER] [--output FILE.json]

CLONES holds a git clone (bare or not) of each repository that `tests/data/public_configs.toml`
names, as OWNER+NAME or OWNER+NAME/repo. Every file goes through the commands that a user has:
`pitstop config import`, `config check`, `train`, on a CPU, with generated data.

Keys are compared by readers of their own, which share nothing with the importer: every key of the
file must be accounted for with the file's own value, and a key that was applied or renamed must
have that value in the new configuration, as `config show` prints it.

For training, the data's own facts (folder, size of frames, version) are set to those of the
generated data, and workers to two, for two cores; crop, clip length and depths to those of
configs/deblur/small.yaml (for the other workloads: image size and backbone of the demo). Weights
from elsewhere are left out. All else is as imported.
"""

import argparse
import ast
import io
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

LIST = Path(__file__).parents[1] / "tests/data/public_configs.toml"
PITSTOP = (sys.executable, "-m", "pitstop")
MADE = {
    "deblur": "--train-clips 2 --test-clips 1 --frames 5 --size 48x64",
    "bev": "--scenes 3 --samples 4 --size 225x400",
    "reid": "--people 24 --images 12 --size 96x48",
}
SECRET = ("api_key", "token", "password", "secret")


@dataclass(slots=True, kw_only=True)
class Row:
    """What became of one file."""

    repository: str
    path: str
    commit: str
    outcome: str
    reason: str = ""
    missing: list[str] = field(default_factory=list)
    keys: int = 0
    unknown: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    overrides: list[str] = field(default_factory=list)
    is_sound: bool | None = None
    trained_steps: int | None = None
    failure: str = ""


def main() -> None:
    """Go through the list and write what came of it."""
    parser = argparse.ArgumentParser(description="Import public configurations, train two steps")
    parser.add_argument("clones", type=Path)
    parser.add_argument("--work", type=Path, default=Path(tempfile.mkdtemp()))
    parser.add_argument("--output", type=Path)
    parser.add_argument("--only", default="", help="part of repository/path")
    parser.add_argument("--no-train", action="store_true")
    options = parser.parse_args()
    data = options.work / "data"
    for workload, words in MADE.items():
        if not (data / workload).exists():
            run("data", "make", workload, data / workload, *words.split())
    rows = []
    for entry in tomllib.loads(LIST.read_text())["file"]:
        if options.only not in f"{entry['repository']}/{entry['path']}":
            continue
        rows.append(try_file(entry, options))
        print(json.dumps(asdict(rows[-1]), ensure_ascii=False), flush=True)
    if options.output is not None:
        options.output.write_text(json.dumps(summary(rows), indent=2, ensure_ascii=False) + "\n")


def summary(rows: list[Row]) -> dict[str, Any]:
    """Put counts above the rows."""
    complete = [row for row in rows if row.outcome == "imported" and not row.missing]
    return {
        "benchmark": "import_and_train",
        "python": platform.python_version(),
        "processor": f"{platform.machine()}, {os.cpu_count()} seen",
        "files": len(rows),
        "imported whole": len(complete),
        "imported as parts": sum(row.outcome == "imported" and bool(row.missing) for row in rows),
        "refused": sum(row.outcome == "refused" for row in rows),
        "keys compared": sum(row.keys for row in rows),
        "keys that differ": sum(len(row.differing) for row in rows),
        "sound to config check": sum(bool(row.is_sound) for row in complete),
        "trained two steps": sum(row.trained_steps == 2 for row in complete),
        "rows": [asdict(row) for row in rows],
    }


def try_file(entry: dict[str, Any], options: argparse.Namespace) -> Row:
    """Import one file, compare it, train it."""
    row = Row(
        repository=entry["repository"], path=entry["path"], commit=entry["commit"], outcome=""
    )
    tree = export(entry, options)
    old = tree / entry["path"]
    new = options.work / "new" / f"{tree.name}-{entry['path'].replace('/', '-')}.yaml"
    new.parent.mkdir(exist_ok=True)
    new.unlink(missing_ok=True)
    done = run("config", "import", old, "--output", new, "--json", "-", check=False)
    if done.returncode != 0:
        row.outcome, row.reason = "refused", done.stderr.strip().replace(f"{tree}/", "")
        return row
    account = json.loads(done.stdout)
    row.outcome, row.missing = "imported", account["missing"]
    compare(row, account, old, new)
    if not row.missing and not options.no_train:
        train(row, new, options.work)
    return row


def export(entry: dict[str, Any], options: argparse.Namespace) -> Path:
    """Put the files around one, as of its commit, into a folder."""
    name = entry["repository"].replace("/", "+")
    folder = options.work / "trees" / f"{name}@{entry['commit'][:10]}"
    if not folder.exists():
        clone = options.clones / name
        clone = clone / "repo" if (clone / "repo").exists() else clone
        command = ("git", "-C", clone, "archive", entry["commit"], entry["path"].split("/")[0])
        packed = subprocess.run(command, capture_output=True, check=True).stdout
        folder.mkdir(parents=True)
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
    return folder


def run(*words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command of pitstop."""
    command = [*PITSTOP, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return done


# The comparison ---------------------------------------------------------------------------------


def compare(row: Row, account: dict[str, Any], old: Path, new: Path) -> None:
    """Hold every key of the file against the account and against the new configuration."""
    theirs = dict(flat(read_independently(old)))
    ours = dict(flat(yaml.safe_load(new.read_text())))
    accounts = {entry["old_key"]: entry for entry in account["accounts"]}
    row.keys = len(theirs)
    row.unknown = [key for key, entry in accounts.items() if entry["status"] == "unknown"]
    row.differing = [f"{key}: not accounted for" for key in theirs.keys() - accounts.keys()]
    row.differing += [f"{key}: not in the file" for key in accounts.keys() - theirs.keys()]
    for key in sorted(theirs.keys() & accounts.keys()):
        entry, value = accounts[key], theirs[key]
        if not key.lower().endswith(SECRET) and not is_shown(value, entry["old_value"]):
            row.differing.append(f"{key}: {value} was read as {entry['old_value']}")
        is_taken = entry["status"] in {"applied", "renamed"} and entry["key"] in ours
        if is_taken and not is_same(value, ours[entry["key"]]):
            row.differing.append(f"{key}: {value} became {ours[entry['key']]}")
    for key, expected in worked_out(theirs).items():
        if key in ours and not is_same(expected, ours[key]):
            row.differing.append(f"{key} is {ours[key]}; worked out from the file: {expected}")


def worked_out(theirs: dict[str, Any]) -> dict[str, Any]:
    """Work out settings whose value had to change, from the file alone."""
    found = options_worked_out(theirs) if "gpu_ids" in theirs else {}
    if {"num_ids_per_batch", "instances_per_id"} <= theirs.keys():
        found["train.batch_size"] = theirs["num_ids_per_batch"] * theirs["instances_per_id"]
    if "base_learning_rate" in theirs:
        base, head = theirs["base_learning_rate"], theirs.get("head_learning_rate", 3e-3)
        found["optimizer.lr_multipliers.classifier"] = float(f"{head / base:.9g}")
        factor = theirs["mer_learning_rate"] / base
        found["optimizer.lr_multipliers.adapter"] = float(f"{factor:.9g}")
    if "LOSS.CHARBONNIER.DELTA" in theirs:
        found["loss.charbonnier.eps"] = float(f"{theirs['LOSS.CHARBONNIER.DELTA'] ** 2:.9g}")
    for step in theirs.get("train_pipeline", []):
        if "img_scale" in step:
            found["data.image_size"] = step["img_scale"][::-1]
    halves = {key.split(".")[0] for key in theirs} & {"fp16", "bf16"}
    return found | ({"train.precision": halves.pop()} if halves else {})


def options_worked_out(theirs: dict[str, Any]) -> dict[str, Any]:
    """Work out what changes in an option file of KAIR."""
    train = "datasets.train"
    factor = theirs["train.G_scheduler_eta_min"] / theirs["train.G_optimizer_lr"]
    is_half = theirs.get("train.amp.enable") and theirs["train.amp.dtype"] == "bfloat16"
    return {
        "train.batch_size": theirs[f"{train}.dataloader_batch_size"] // len(theirs["gpu_ids"]),
        "schedule.end_factor": float(f"{factor:.9g}"),
        "model.heads": theirs["netG.num_heads"][0],
        "data.root": theirs[f"{train}.dataroot_gt"].rpartition("/")[0],
        "train.precision": "bf16" if is_half else "fp32",
        "data.voxel_bins": theirs.get("netG.in_chans", 3) - 3,
    }


def flat(values: dict[str, Any], prefix: str = "") -> Any:
    """Give values under joined names."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def is_shown(value: Any, shown: str) -> bool:
    """Tell whether a shortened text shows a value; groups in lists have no text."""
    if isinstance(value, dict) or (isinstance(value, list) and "a group of settings" in shown):
        return True
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) == float(shown)
    if isinstance(value, list) and "..." in shown:
        return True
    value = "null" if value is None else value
    bare, said = (re.sub(r"['\"\s]", "", str(text)).lower() for text in (value, shown))
    return said == bare if len(bare) < 40 else said[:20] == bare[:20]


def is_same(there: Any, here: Any) -> bool:
    """Compare numbers as numbers, paths without dot and slash around them, the rest as text."""
    if isinstance(there, list):
        ours: list[Any] = here if isinstance(here, list) else [here] * len(there)
        return len(there) == len(ours) and all(map(is_same, there, ours))
    try:
        return float(there) == float(here)
    except (TypeError, ValueError):
        return str(there).removeprefix("./").rstrip("/").lower() == str(here).lower()


def read_independently(path: Path) -> dict[str, Any]:
    """Read a file without the importer."""
    text = path.read_text()
    if path.suffix == ".json":
        found: dict[str, Any] = json.loads(
            re.sub(r'("(?:\\.|[^"\\])*")|//[^\n]*', lambda hit: hit[1] or "", text)
        )
        return found
    if path.suffix != ".py":
        # As YAML 1.2 would: 1e-3 is a number.
        return yaml.safe_load(re.sub(r"(?<=: )(\d+)(e-?\d+)", r"\1.0\2", text))
    tree = ast.parse(text)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return fields_of(classes[0]) if classes else module_values(path, tree)


def fields_of(node: ast.ClassDef) -> dict[str, Any]:
    """Read the defaults of a class."""
    found = {}
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.value:
            value: ast.expr = line.value
            if isinstance(value, ast.Call):
                [inner] = [word.value for word in value.keywords]
                value = inner.body if isinstance(inner, ast.Lambda) else inner
            found[line.target.id] = ast.literal_eval(value)
    return found


def module_values(path: Path, tree: ast.Module) -> dict[str, Any]:
    """Read assignments over those of the files below, as mmcv lays them over each other."""
    own: dict[str, Any] = {}
    for line in tree.body:
        if not isinstance(line, ast.Assign):
            continue
        target = line.targets[0]
        if isinstance(target, ast.Name):
            own[target.id] = value_of(line.value, own)
        else:
            parts = list(ast.walk(target))
            owner = next(part.id for part in parts if isinstance(part, ast.Name))
            names = [str(part.value) for part in parts if isinstance(part, ast.Constant)]
            place: dict[str, Any] = own
            for name in [owner, *reversed(names)][:-1]:
                place = place[name]
            place[names[0]] = value_of(line.value, own)
    bases = own.pop("_base_", [])
    below: dict[str, Any] = {}
    for base in [bases] if isinstance(bases, str) else bases:
        inner = path.parent / base
        below |= module_values(inner, ast.parse(inner.read_text()))
    return laid_over(below, own)


def value_of(node: ast.expr, known: dict[str, Any]) -> Any:
    """Read a literal, a name or dict(...)."""
    match node:
        case ast.Call(func=ast.Name(id="dict"), keywords=words):
            made: dict[str, Any] = {}
            for word in words:
                inner = value_of(word.value, known)
                made |= {word.arg: inner} if word.arg else inner
            return made
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return {value_of(key, known): value_of(value, known) for key, value in pairs if key}
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [value_of(part, known) for part in parts]
        case ast.Name(id=name):
            return known[name]
        case _:
            return ast.literal_eval(node)


def laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merge groups, the upper one wins."""
    made = dict(below)
    for name, value in above.items():
        if not isinstance(value, dict):
            made[name] = value
            continue
        inner = {key: part for key, part in value.items() if key != "_delete_"}
        old: Any = made.get(name)
        kept: dict[str, Any] = old if isinstance(old, dict) and inner == value else {}
        made[name] = laid_over(kept, inner)
    return made


# The training -----------------------------------------------------------------------------------


def train(row: Row, new: Path, work: Path) -> None:
    """Check and train a whole configuration for two steps."""
    config = yaml.safe_load(new.read_text())
    if config.get("loss", {}).get("perceptual"):
        new = without_weights_from_elsewhere(config, new)
    runs = Path(tempfile.mkdtemp(dir=work))
    overrides = overrides_for(config, work / "data")
    row.overrides = [text.replace(f"{work}/", "") for text in overrides]
    arguments = [new, *overrides, f"run.work_dir={runs}"]
    checked = run("config", "check", *arguments, check=False)
    row.is_sound = checked.returncode == 0
    if not row.is_sound:
        row.failure = checked.stderr.strip().replace(f"{work}/", "")
        return
    done = run("train", *arguments, check=False)
    if done.returncode == 0:
        ended = re.findall(r"finished at step (\d+)", done.stdout + done.stderr)
        row.trained_steps = int(ended[-1]) if ended else None
    else:
        row.failure = done.stderr.strip().replace(f"{work}/", "")[-600:]


def without_weights_from_elsewhere(config: dict[str, Any], new: Path) -> Path:
    """Leave out what needs files that are not generated, and what has no effect on small crops."""
    for name in ("spikes", "voxel_dir"):
        config["data"].pop(name, None)
    for part in ("spike", "fusion"):
        config["model"].get(part, {}).pop("chunk", None)
    config["loss"]["perceptual"] = {"weight": 0}
    kept = new.with_suffix(".kept.yaml")
    kept.write_text(yaml.safe_dump(config))
    return kept


def overrides_for(config: dict[str, Any], data: Path) -> list[str]:
    """Say what differs from the imported file."""
    kind = config["model"]["kind"]
    workload = "deblur" if "vrt" in kind else "bev" if "lss" in kind else "reid"
    overrides = [f"data.root={data / workload}", "train.steps=2", "loader.workers=2"]
    if "epochs" in config["train"]:
        overrides.append("train.epochs=null")
    if config.get("schedule", {}).get("warmup_steps", 0) > 1:
        overrides.append("schedule.warmup_steps=1")
    return overrides + {"deblur": _deblur, "bev": _bev, "reid": _reid}[workload](config)


def _deblur(config: dict[str, Any]) -> list[str]:
    widths = config["model"]["embed_dims"]
    overrides = [
        "data.crop=32",
        "data.clip_len=4",
        "model.depths=[2,4,4,4,4,4,2,2,2]",
        f"model.embed_dims={widths[:7] + widths[-2:]}".replace(" ", ""),
        "model.indep_reconsts=[8]",
    ]
    if "png" not in config["data"]["image_types"]:
        overrides.append("data.image_types=[png]")
    if config["data"].get("eval_split") == "val":
        overrides.append("data.eval_split=test")
    if "eval_crop" in config["data"]:
        overrides.append("data.eval_crop=32")
    if config["model"]["kind"] == "vrt_spike":
        overrides += ["data.spike_height=24", "data.spike_width=32"]
    return overrides


def _bev(_: dict[str, Any]) -> list[str]:
    names = ("data.version=v1.0-mini", "data.split=mini_train", "data.eval_split=mini_val")
    return [*names, "data.image_size=[64,176]", "model.backbone=swin_nano"]


def _reid(config: dict[str, Any]) -> list[str]:
    left_out = ["model.weights=null", "data.tokenizer=null"]
    if config["model"].get("freeze_backbone"):
        left_out.append("model.freeze_backbone=false")  # random weights would stay random
    return [*left_out, "model.backbone=tiny", "data.image_size=[64,32]", "loader.corrupt=skip"]


if __name__ == "__main__":
    main()
