"""A GAN with a gradient penalty: five steps of the critic for one of the generator."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCHES = 300


def main() -> None:
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32))
    critic = nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-4)
    of_critic = torch.optim.Adam(critic.parameters(), lr=1e-4)
    for number, (real,) in enumerate(DataLoader(TensorDataset(torch.randn(BATCHES * 64, 32)), 64)):
        of_critic.zero_grad()
        fake = generator(torch.randn(64, 16)).detach()
        mixed = (real + fake).div(2).requires_grad_()
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
        loss.backward()
        of_critic.step()
        of_generator.zero_grad()
        if number % 5 == 0:
            other = -critic(generator(torch.randn(64, 16))).mean()
            other.backward()
            of_generator.step()
            print(f"batch {number}, loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
