"""Train a tiny language model, built from its configuration, with the Hugging Face Trainer."""

# pyright: reportMissingImports=false

import argparse
import tempfile

# Before torch, as many scripts have it: it asks whether there is a torch before anyone imports it.
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

# isort: split
import torch
from torch import Tensor
from torch.utils.data import Dataset


class Tokens(Dataset[dict[str, Tensor]]):
    """Random token sequences."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(0, 128, (count, 32), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    config = GPT2Config(vocab_size=128, n_positions=32, n_embd=64, n_layer=2, n_head=2)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=GPT2LMHeadModel(config),
            args=TrainingArguments(
                output_dir=folder,
                max_steps=args.steps,
                per_device_train_batch_size=args.batch_size,
                logging_steps=50,
                save_strategy="no",
                report_to=[],
                use_cpu=True,
                disable_tqdm=True,
            ),
            train_dataset=Tokens(args.steps * args.batch_size),
        )
        trainer.train()
    print(f"trained {trainer.state.global_step} steps")


if __name__ == "__main__":
    main()
