"""Train VRT by its authors' own file, in fp32 with recomputation, on random clips.

    python authors_vrt.py CHECKOUT --steps 60

CHECKOUT is a folder with the authors' ``models/network_vrt.py``. Seven scales, half as deep as
published; six frames of 64 x 64.
"""

import argparse
import sys
import time

import torch

WARM_UP = 5


def network(checkout: str, *, small: bool) -> torch.nn.Module:
    """Build the authors' network, recomputing attention and feed-forward parts."""
    sys.path.insert(0, checkout)
    from models.network_vrt import VRT  # pyright: ignore[reportMissingImports]

    width = (12, 12) if small else (96, 120)
    return VRT(
        upscale=1,
        img_size=[6, 64, 64],
        window_size=[6, 8, 8],
        depths=[2 if small else 4] * 7 + [2] * 6,
        indep_reconsts=[11, 12],
        embed_dims=[width[0]] * 7 + [width[1]] * 6,
        num_heads=[6] * 13,
        pa_frames=2,
        deformable_groups=4 if small else 16,
        use_checkpoint_attn=True,
        use_checkpoint_ffn=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkout")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False
    model = network(args.checkout, small=args.device == "cpu").to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-4)
    started, loss = time.perf_counter(), torch.zeros(())
    for step in range(args.steps):
        sharp = torch.rand(1, 6, 3, 64, 64, device=args.device)
        blurred = sharp + 0.1 * torch.randn_like(sharp)
        optimizer.zero_grad()
        loss = torch.sqrt((model(blurred) - sharp).square() + 1e-9).mean()
        loss.backward()
        optimizer.step()
        if step == WARM_UP:
            loss.item()
            started = time.perf_counter()
    final, seconds = loss.item(), time.perf_counter() - started
    rate = (args.steps - WARM_UP - 1) / max(seconds, 1e-9)
    print(f"loss {final:.6f}, {seconds:.3f} s after warm-up, {rate:.3f} samples/s")


if __name__ == "__main__":
    main()
