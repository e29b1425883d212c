"""Small trainings on a GPU, each with something that a watcher may break; the argument names it."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

Batch = tuple[torch.Tensor, torch.Tensor]


def data(count: int = 2048) -> TensorDataset:
    return TensorDataset(torch.randn(count, 128), torch.randint(0, 10, (count,)))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 10)).cuda()


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> torch.Tensor:
    features, classes = (part.cuda(non_blocking=True) for part in batch)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(features), classes)
    loss.backward()
    optimizer.step()
    return loss


def workers(method: str) -> float:
    """Loaders with workers, a second one for validation, several epochs."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    loss = torch.zeros(())
    for _ in range(4):
        loader = DataLoader(
            data(), 64, num_workers=2, pin_memory=True, multiprocessing_context=method
        )
        for batch in loader:
            loss = step(model, optimizer, batch)
        with torch.no_grad():
            for features, _ in DataLoader(data(256), 64, num_workers=2):
                model(features.cuda())
    return loss.item()


def graph() -> float:
    """Steps captured in a CUDA graph and replayed."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
    features = torch.randn(64, 128, device="cuda")
    classes = torch.randint(0, 10, (64,), device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(model, optimizer, (features, classes))
    torch.cuda.current_stream().wait_stream(side)
    recorded = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(recorded):
        loss = nn.functional.cross_entropy(model(features), classes)
        loss.backward()
        optimizer.step()
    for _ in range(300):
        features.copy_(torch.randn(64, 128))
        recorded.replay()
    return loss.item()


def scaled() -> float:
    """Mixed precision with a scaler, clipping and accumulation."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    loss = torch.zeros(())
    for _ in range(6):
        for number, (features, classes) in enumerate(DataLoader(data(), 16, shuffle=True)):
            with torch.autocast("cuda", torch.float16):
                loss = nn.functional.cross_entropy(model(features.cuda()), classes.cuda()) / 4
            scaler.scale(loss).backward()
            if number % 4 == 3:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    return loss.item()


def compiled() -> float:
    """A compiled model that uses CUDA graphs by itself."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    fast = torch.compile(model, mode="reduce-overhead")
    loss = torch.zeros(())
    for _ in range(8):
        for features, classes in DataLoader(data(), 64, shuffle=True, drop_last=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(fast(features.cuda()), classes.cuda())
            loss.backward()
            optimizer.step()
    return loss.item()


def no_waits() -> float:
    """Whoever waits for the device is an error here."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(64, 128, device="cuda"), torch.randint(0, 10, (64,), device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    loss = torch.zeros(())
    for _ in range(300):
        loss = step(model, optimizer, batch)
    torch.cuda.set_sync_debug_mode("default")
    return loss.item()


KINDS = {"graph": graph, "scaled": scaled, "compiled": compiled, "no_waits": no_waits}

if __name__ == "__main__":
    torch.manual_seed(0)
    kind, *rest = sys.argv[1:]
    last = workers(*rest) if kind == "workers" else KINDS[kind]()
    print(f"loss {last:.6f}")
