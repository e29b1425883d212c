"""Values come two steps late, in order, and nothing is lost."""

import torch

from pitstop.train.monitor.deferred import LAG_STEPS, DeferredScalars


def test_values_are_handed_over_after_a_fixed_lag_in_order() -> None:
    reader = DeferredScalars(torch.device("cpu"))
    seen = []
    for step in range(6):
        reader.push(step, {"loss": torch.tensor(float(step))}, {"lr": 0.1 * step})
        seen.append([(at, values["loss"], values["lr"]) for at, values in reader.due(step)])
    assert seen[:LAG_STEPS] == [[]] * LAG_STEPS
    assert seen[LAG_STEPS:] == [[(n, float(n), 0.1 * n)] for n in range(6 - LAG_STEPS)]
    assert [at for at, _ in reader.rest()] == [4, 5]
    assert reader.rest() == []
