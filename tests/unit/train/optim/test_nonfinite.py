"""The policy: an overflow under a loss scale is no trouble, a long row of them is."""

import pytest

from pitstop.train.optim.nonfinite import MOST_IN_A_ROW, Action, NonFinitePolicy, Policy


@pytest.mark.parametrize(
    ("policy", "scaled", "bad_loss", "action"),
    [
        ("skip", False, False, "warn"),
        ("skip", True, False, "nothing"),
        ("skip", True, True, "warn"),
        ("stop", False, True, "stop"),
        ("stop", True, False, "nothing"),
        ("stop", True, True, "stop"),
        ("rollback", False, False, "rollback"),
        ("rollback", True, True, "rollback"),
    ],
)
def test_each_policy_acts_as_it_is_called(
    policy: Policy, scaled: bool, bad_loss: bool, action: Action
) -> None:
    judge = NonFinitePolicy(policy=policy, scaled=scaled)
    assert judge.judge(found_inf=False, bad_loss=False) == "nothing"
    assert judge.judge(found_inf=True, bad_loss=bad_loss) == action


def test_a_long_row_of_overflows_stops_whatever_the_policy() -> None:
    judge = NonFinitePolicy(policy="skip", scaled=True)
    actions = [judge.judge(found_inf=True, bad_loss=False) for _ in range(MOST_IN_A_ROW)]
    assert actions == ["nothing"] * (MOST_IN_A_ROW - 1) + ["stop"]
    assert "20 steps in a row" in str(judge.error(7, bad_loss=False))


def test_one_good_step_ends_the_row() -> None:
    judge = NonFinitePolicy(policy="skip", scaled=True)
    for _ in range(MOST_IN_A_ROW * 2):
        assert judge.judge(found_inf=True, bad_loss=False) == "nothing"
        assert judge.judge(found_inf=False, bad_loss=False) == "nothing"
    assert judge.left_out == MOST_IN_A_ROW * 2
