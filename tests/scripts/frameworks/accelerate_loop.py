"""Train a plain loop that Accelerate has prepared, with its accumulation and clipping."""

# pyright: reportMissingImports=false

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100, help="updates")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--accumulate", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate)
    inputs = torch.randn(args.steps * args.accumulate * args.batch_size, 256)
    data = TensorDataset(inputs, inputs[:, :10].argmax(dim=1))
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    model, optimizer, loader = accelerator.prepare(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-3),
        DataLoader(data, args.batch_size, shuffle=True),
    )

    updates = 0
    for batch, labels in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(batch), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                updates += 1
            optimizer.step()
            optimizer.zero_grad()
    accelerator.print(f"trained {updates} steps")


if __name__ == "__main__":
    main()
