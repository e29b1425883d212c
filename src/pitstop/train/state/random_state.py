"""The global random generators of this process, as values that can be saved and put back.

Data never draw from them (a sample is a function of seed, epoch and index). What is left is
dropout, stochastic depth and whatever a model's own code draws.
"""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def capture_random_state() -> dict[str, Any]:
    """Copy the state of every global generator into tensors and plain numbers."""
    version, words, gauss = random.getstate()
    kind, key, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002 - it is the global one that models draw from
    assert kind == "MT19937", f"numpy's global generator is {kind}, which cannot be saved"
    return {
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "numpy": {
            "key": torch.from_numpy(np.asarray(key, dtype=np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached_gauss": float(cached),
        },
        "torch": torch.get_rng_state(),
        # The present device only: a rank computes on one, and asking for the others would make
        # the state depend on how many are visible.
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
    }


def restore_random_state(state: Mapping[str, Any]) -> tuple[str, ...]:
    """Put captured states back.

    Returns:
        The generators that stay as they are, since only one of the two runs has them: ``cuda``
        where a run moves between CPU and GPU.
    """
    python, numpy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    np.random.set_state(  # noqa: NPY002 - see above
        (
            "MT19937",
            numpy["key"].numpy().astype(np.uint32),
            numpy["position"],
            numpy["has_gauss"],
            numpy["cached_gauss"],
        )
    )
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    elif state["cuda"] is not None or torch.cuda.is_initialized():
        return ("cuda",)
    return ()
