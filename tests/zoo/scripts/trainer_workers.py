"""The Hugging Face Trainer with loader workers, two epochs."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Texts(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 480

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        source = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, 500, (64,), generator=source)
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=500, n_layer=2, n_head=2, n_embd=64, n_positions=64)
    )
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder,
            per_device_train_batch_size=8,
            num_train_epochs=2,
            logging_steps=10,
            save_strategy="no",
            report_to=[],
            dataloader_num_workers=2,
            disable_tqdm=True,
        )
        Trainer(model=model, args=settings, train_dataset=Texts()).train()


if __name__ == "__main__":
    main()
