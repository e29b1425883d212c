"""Train two networks against each other, with an optimizer each."""

import argparse

import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    generator = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 128))
    critic = nn.Sequential(nn.Linear(128, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1))
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    real, fake = torch.ones(args.batch_size, 1), torch.zeros(args.batch_size, 1)

    for _ in range(args.steps):
        critic_optimizer.zero_grad()
        made = generator(torch.randn(args.batch_size, 32))
        loss = criterion(critic(torch.randn(args.batch_size, 128)), real)
        (loss + criterion(critic(made.detach()), fake)).backward()
        critic_optimizer.step()

        generator_optimizer.zero_grad()
        criterion(critic(made), real).backward()
        generator_optimizer.step()
    print(f"trained {args.steps} steps")


if __name__ == "__main__":
    main()
