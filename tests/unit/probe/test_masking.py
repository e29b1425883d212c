"""No secret of a command is written down, and nothing else of it is touched."""

import json
import os
import random
import stat
import string
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pitstop_probe.masking import MASK, mask_command, mask_source, mask_text
from pitstop_probe.writer import RecordWriter


def words(text: str) -> list[str]:
    return text.split()


SECRET_NAMES = words(
    "password passwd db-password user_passphrase db-pwd secret client-secret token hf-token "
    "auth_token api-key apikey api_key openai-key wandb.api_key logger.wandb.apiKey "
    "aws-access-key-id aws_secret_access_key private-key credentials auth DB_PASSWORD HF_TOKEN "
    "WANDB_API_KEY AZURE_STORAGE_KEY MY_SECRET GITHUB_TOKEN"
)
ORDINARY_NAMES = words(
    "lr batch-size tokenizer max-tokens num_tokens pad-token eos_token cls-token "
    "tokens-per-step author key-frames image-key sort_key monitor password-file token-path "
    "api-key-env passes bypass authors secretary keyboard epochs data.root PATH "
    "CUDA_VISIBLE_DEVICES"
)
ORDINARY_VALUES = words(
    "0.1 gpt2 512 x 3 /data/train runs/a,b s3://bucket/imagenet/train https://host:80/x?y=1 "
    "bert-base-uncased a100-80gb-x8-bf16-run-2024-01-31 550e8400-e29b-41d4-a716-446655440000 "
    "3f2a9c1 TransformerEncoderLayerWithNorm [PAD] </s> sk-learn-random-forest-baseline "
    "hf_transformers /models/0123456789abcdef0123456789abcdef01234567/model.safetensors "
    "user@host git+https://github.com/x/y@0123456789abcdef0123456789abcdef01234567 {'lr':0.1} "
    "C:\\data\\train"
)

# What a shell would hand over in one piece; a value that is an option itself is none.
values = st.text(min_size=1, max_size=40).filter(lambda text: not text.startswith("--"))
letters = string.ascii_letters + string.digits
drawn = st.text(alphabet=letters, min_size=20, max_size=60)


@given(st.sampled_from(SECRET_NAMES), values)
def test_whatever_a_secret_name_holds_is_masked_in_every_form(name: str, value: str) -> None:
    bare = name.replace("-", "_")
    assert mask_command([f"--{name}={value}"]) == [f"--{name}={MASK}"]
    assert mask_command([f"--{name}", value, "x"]) == [f"--{name}", MASK, "x"]
    assert mask_command(["env", f"{bare}={value}", "python"]) == ["env", f"{bare}={MASK}", "python"]
    assert mask_command(["--set", f"+{bare}={value}"]) == ["--set", f"+{bare}={MASK}"]


@given(st.sampled_from(ORDINARY_NAMES), st.sampled_from(ORDINARY_VALUES))
def test_ordinary_arguments_stay_as_they_are(name: str, value: str) -> None:
    command = ["python", "train.py", f"--{name}", value, f"--{name}={value}", f"{name}={value}"]
    command += ["-p", value, value]
    assert mask_command(command) == command


@given(st.lists(st.sampled_from([*ORDINARY_VALUES, *(f"--{name}" for name in ORDINARY_NAMES)])))
def test_any_row_of_ordinary_arguments_stays_as_it_is(command: list[str]) -> None:
    assert mask_command(command) == command


@pytest.mark.parametrize(
    "prefix",
    ["hf_", "ghp_", "gho_", "github_pat_", "sk-", "sk-proj-", "sk-ant-api03-", "glpat-", "xoxb-"],
)
@given(token=drawn)
def test_what_looks_like_a_token_is_masked_wherever_it_stands(prefix: str, token: str) -> None:
    secret = prefix + token
    for argument in (secret, f"--x={secret}", f"login {secret} now", f"https://host/{secret}/x"):
        [masked] = mask_command(["--name", argument])[1:]
        assert token not in masked
        assert MASK in masked


@given(drawn.filter(lambda text: "@" not in text))
def test_user_and_password_of_a_url_are_masked_and_its_host_is_not(password: str) -> None:
    [masked] = mask_command([f"--url=postgres://me:{password}@db.example:5432/runs"])
    assert masked == f"--url=postgres://{MASK}@db.example:5432/runs"


@pytest.mark.parametrize(
    "secret",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVPmB92K27uhbUJU1p1r",
        "0123456789abcdef0123456789abcdef01234567",
        "0123456789ABCDEF0123456789ABCDEF",
    ],
)
def test_keys_without_a_name_are_masked(secret: str) -> None:
    assert mask_command(["train.py", secret, f"--x={secret}"]) == ["train.py", MASK, f"--x={MASK}"]


def test_long_random_strings_are_masked() -> None:
    draw = random.Random(0)
    strings = ["".join(draw.choices(letters, k=40)) for _ in range(1000)]
    assert sum(mask_command([text]) == [MASK] for text in strings) >= 990


@pytest.mark.parametrize("name", ["revision", "commit", "git-sha", "model.revision", "checksum"])
def test_a_hash_whose_name_says_so_stays(name: str) -> None:
    command = [f"--{name}=0123456789abcdef0123456789abcdef01234567"]
    command += [f"--{name}", "0123456789abcdef0123456789abcdef01234567"]
    assert mask_command(command) == command


def test_secrets_inside_of_longer_texts_are_masked() -> None:
    shell = "cd x; API_KEY=abc python train.py --password 'my own' --lr 0.1"
    assert mask_text(shell) == "cd x; API_KEY=*** python train.py --password '***' --lr 0.1"
    assert mask_text('{"api_key": "abc", "lr": 1}') == '{"api_key": "***", "lr": 1}'
    assert mask_text("https://h/p?token=abc&user=1") == "https://h/p?token=***&user=1"
    assert mask_text("-H 'Authorization: Basic abc'") == "-H 'Authorization: Basic ***'"


def test_of_python_only_what_is_spelled_out_is_masked() -> None:
    assert mask_source("login(token='abc', lr=rate)") == "login(token='***', lr=rate)"
    untouched = "token = tokenizer.next(password=ask(), key=key)"
    assert mask_source(untouched) == untouched


@given(st.text(max_size=200))
def test_masking_never_fails_and_masks_nothing_twice(text: str) -> None:
    once = mask_text(text)
    assert mask_text(once) == once


@pytest.mark.parametrize("piece", ["a.", "a=a", "a ", "://", "eyJ", "--a ", "'"])
def test_long_texts_are_masked_in_time(piece: str) -> None:
    mask_command([piece * 100_000])  # seconds where it grows with the square of the length


def test_a_record_and_its_reason_hold_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--api-key=opensesame", "--lr=0.1"])
    writer = RecordWriter(str(tmp_path / "rank-0.jsonl"))
    writer.close("failed", "ConnectionError: https://me:opensesame@host refused")
    text = (tmp_path / "rank-0.jsonl").read_text(encoding="utf-8")
    assert "opensesame" not in text
    assert json.loads(text.splitlines()[0])["command"] == ["train.py", "--api-key=***", "--lr=0.1"]


SCRIPT = """
import sys, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(int(sys.argv[1])):
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 30])
def test_no_file_of_a_watched_command_holds_its_secrets_or_is_executable(
    steps: int, tmp_path: Path
) -> None:
    script, record = tmp_path / "train.py", tmp_path / "record"
    script.write_text(SCRIPT, encoding="utf-8")
    secrets = ["--password", "opensesame", "HF_TOKEN=opensesame", "https://me:opensesame@host"]
    doctor = [sys.executable, "-m", "pitstop", "doctor", "--record", str(record), "--json", "-"]
    ended = subprocess.run(
        [*doctor, "--", sys.executable, str(script), str(steps), *secrets],
        capture_output=True,
        text=True,
        check=False,
    )
    files = [path for path in record.rglob("*") if path.is_file()]
    assert any(path.name.startswith("rank-0" if steps else "seen-") for path in files)
    for shown in (ended.stdout, ended.stderr, *(path.read_text("utf-8") for path in files)):
        assert "opensesame" not in shown
    umask = os.umask(0)
    os.umask(umask)
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o666 & ~umask}


def test_the_working_directory_is_no_password() -> None:
    assert mask_command(["env", "PWD=/data", "OLDPWD=/"]) == ["env", "PWD=/data", "OLDPWD=/"]
