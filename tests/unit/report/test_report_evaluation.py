"""Evaluations as text: the result first, what it rests on, the next command last."""

import math
from typing import Any

from pitstop.records.evaluation import EvaluationRecord, InferenceRecord
from pitstop.report.evaluation import evaluation_report, inference_report

FACTS: dict[str, Any] = {
    "name": "demo",
    "workload": "deblur",
    "checkpoint": "runs/demo/checkpoints/save-000002-step-000000060",
    "step": 60,
    "averaged": True,
    "samples": 3,
    "wall_s": 0.5,
    "samples_per_s": 6.0,
    "ranks": 2,
    "device": "cpu",
    "precision": "bf16",
}
TYPED = ["demo.yaml", "data.root=my clips", "--checkpoint", "runs/demo"]


def test_metrics_come_first_and_the_next_command_last() -> None:
    record = EvaluationRecord(metrics={"psnr": 16.02522, "ssim": 0.8270675}, **FACTS)
    assert evaluation_report(record, TYPED).plain == (
        "psnr 16.025, ssim 0.82707\n"
        "deblur, runs/demo/checkpoints/save-000002-step-000000060 (step 60, averaged weights)\n"
        "3 samples in 500 ms, 6.00 samples/s; cpu, bf16, 2 ranks\n"
        "next: pitstop infer demo.yaml 'data.root=my clips' --checkpoint runs/demo --output FOLDER"
    )


def test_scores_of_many_things_stand_in_rows_and_columns() -> None:
    metrics = {"score": 0.5, "mAP/NIR": 0.25, "r1/NIR": 0.75, "mAP/NIR+CP": 0.5, "r1/NIR+CP": 1.0}
    lines = evaluation_report(EvaluationRecord(metrics=metrics, **FACTS), TYPED).plain.splitlines()
    assert lines[:4] == [
        "score 0.50000",
        "            mAP       r1",
        "NIR     0.25000  0.75000",
        "NIR+CP  0.50000   1.0000",
    ]


def test_files_come_first_and_the_next_command_last() -> None:
    facts = FACTS | {"averaged": False, "step": None, "notes": ("passed over save-3",)}
    record = InferenceRecord(output="frames", files=1200, **facts)
    assert inference_report(record, TYPED).plain == (
        "1,200 files in frames\n"
        "deblur, runs/demo/checkpoints/save-000002-step-000000060 (step not known)\n"
        "3 samples in 500 ms, 6.00 samples/s; cpu, bf16, 2 ranks\n"
        "note: passed over save-3\n"
        "next: pitstop eval demo.yaml 'data.root=my clips' --checkpoint runs/demo"
    )


def test_what_could_not_be_measured_is_no_zero() -> None:
    values = {"psnr": math.inf, "ssim": math.nan, "error": None, "hits": 0.0}
    text = evaluation_report(EvaluationRecord(metrics=values, **FACTS), TYPED).plain
    first = text.splitlines()[0]
    assert first == "psnr inf, ssim not a number, error not a number, hits 0"
    none = evaluation_report(EvaluationRecord(metrics={}, **FACTS), TYPED).plain
    assert none.startswith("no metric could be measured\n")
