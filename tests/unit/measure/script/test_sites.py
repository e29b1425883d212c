"""What interventions noted, read back: half lines and double ones do no harm."""

import json
from pathlib import Path

from pitstop.measure.script.sites import read_sites, with_training
from pitstop.records.script import LoaderSetup, Setup

LOADER = {
    "built": "loader",
    "place": "train.py:3",
    "name": "Pictures",
    "workers": 0,
    "batch_size": 4,
    "is_stream": False,
}
LINES = [
    LOADER,
    {**LOADER, "place": "train.py:9", "batch_size": 8},
    {"built": "draws", "place": "", "name": "Pictures"},
    {"built": "optimizer", "place": "a.py:1", "name": "SGD", "takes": ["fused"], "way": None},
    {"built": "threads", "place": "train.py:2", "value": "1"},
    {"built": "anomaly_detection", "place": "train.py:4", "value": "True"},
    {"built": "anomaly_detection", "place": "train.py:5", "value": "False"},
    {"changed": "optimizer=fused", "place": "a.py:1", "name": "SGD"},
]


def test_every_process_is_read_and_every_line_once(tmp_path: Path) -> None:
    text = "".join(f"{json.dumps(line)}\n" for line in LINES)
    (tmp_path / "sites-1.jsonl").write_text(text)
    (tmp_path / "sites-2.jsonl").write_text(text + 'nonsense\n{"built": "new kind"}\n{"bui')
    sites = read_sites(tmp_path)
    assert [(site.place, site.draws) for site in sites.loaders] == [
        ("train.py:3", True),
        ("train.py:9", True),
    ]
    assert [site.takes for site in sites.optimizers] == [("fused",)]
    assert (sites.own_threads, sites.anomaly_detection) == (("train.py:2",), ("train.py:4",))
    assert [one.change for one in sites.changed] == ["optimizer=fused"]


def test_the_loader_of_the_training_is_known_by_its_dataset_and_batch(tmp_path: Path) -> None:
    (tmp_path / "sites-1.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in LINES))
    trained = LoaderSetup(
        dataset="Pictures", workers=0, prefetch=None, batch_size=8, pinned=False, persistent=False,
        start_method=None, length=3, passes=1, batches=3, trains=True,
    )  # fmt: skip
    setup = Setup(
        device="cpu", device_name=None, models=(), optimizers=(), parameters=1,
        parameter_dtypes={}, autocast=None, tf32=None, scaler=False, compiled=False, wrapper=None,
        recomputes=False, cudnn_benchmark=None, anomaly_detection=False, threads=1,
        samples_per_step=None, total_steps=None, loaders=(trained,),
    )  # fmt: skip
    found = with_training(read_sites(tmp_path).loaders, setup)
    assert {site.place: site.trains for site in found} == {"train.py:3": False, "train.py:9": True}
