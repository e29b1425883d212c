"""How growth is told from what comes and goes."""

from tests.drill.soak import Sample, growth


def samples(handles: list[int]) -> list[Sample]:
    return [
        Sample(at_s=5.0 * index, pss_bytes=100, handles=count, threads=count)
        for index, count in enumerate(handles)
    ]


def test_a_save_under_way_is_no_leak() -> None:
    found = growth(samples([20, 20, 20, 21, 20, 20, 20, 23, 20, 22, 21, 23]))
    assert (found["handles_grown"], found["threads_grown"]) == (0, 0)


def test_a_handle_never_given_back_is_a_leak() -> None:
    found = growth(samples([20, 20, 20, 21, 20, 20, 20, 21, 22, 21, 21, 22]))
    assert found["handles_grown"] == 1
    assert found["threads_grown"] == 1


def test_memory_is_fitted_by_a_line() -> None:
    rising = [
        Sample(at_s=10.0 * index, pss_bytes=1000 + 20 * index, handles=1, threads=1)
        for index in range(30)
    ]
    assert growth(rising)["pss_bytes_per_hour"] == 2 * 3600
