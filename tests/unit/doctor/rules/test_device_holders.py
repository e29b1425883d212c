"""Who holds device memory at its peak, and what it gains a step."""

from pitstop.doctor.examine import examine
from pitstop.doctor.rules.device_holders import device_holders
from pitstop.records.host.held import HeldMemory
from pitstop.records.host.memory import DeviceMemory, MemoryReading
from tests.unit.doctor.records import GIB, OWNERS, facts, memory, rank, run_of

STEP = {"forward": 1_000_000}
MIB = 1 << 20
HELD = HeldMemory(
    parameters_bytes=70 * MIB,
    gradients_bytes=70 * MIB,
    optimizer_bytes=140 * MIB,
    averaged_bytes=70 * MIB,
)


def reading(at_s: float, allocated_bytes: int = GIB) -> MemoryReading:
    device = DeviceMemory(
        device="cuda:0",
        total_bytes=140 * GIB,
        allocated_bytes=allocated_bytes,
        reserved_bytes=34 * GIB,
        peak_allocated_bytes=33 * GIB,
        peak_reserved_bytes=34 * GIB,
        alloc_retries=0,
        ooms=0,
    )
    return memory(at_s, GIB, GIB, devices=(device,))


def test_activations_hold_the_memory_and_adam_does_not() -> None:
    # The claim was 12 GB of Adam, two fifths of what the card held.
    text = device_holders(facts(STEP, readings=[HELD, reading(0.0)]))
    assert text is not None
    assert text.startswith("device memory at its peak is 33.0 GiB: activations and temporary 32.7")
    assert "optimizer state 140 MiB (0.4%)" in text
    assert "averaged weights 70.0 MiB" in text
    assert "teacher" not in text
    assert "grows" not in text


def test_growth_is_said_by_the_step() -> None:
    # A reading a second, as steps are, and 8 MiB more in each.
    grown = [reading(float(number), GIB + number * 8 * MIB) for number in range(40)]
    text = device_holders(facts(STEP, readings=[HELD, *grown]))
    assert text is not None
    assert "what tensors hold between steps grows by 8.00 MiB a step" in text


def test_a_script_is_answered_from_its_own_readings() -> None:
    text = device_holders(facts(STEP, readings=[OWNERS]))
    assert text is not None
    assert text.startswith("device memory at its peak is 70.0 GiB: activations and temporary 66.0")


def test_nothing_is_said_of_a_run_without_a_device() -> None:
    assert device_holders(facts(STEP, readings=[HELD, memory(0.0, GIB, GIB)])) is None
    assert device_holders(facts(STEP, readings=[reading(0.0)])) is None


def test_the_doctor_says_it() -> None:
    verdict = examine(run_of(rank(STEP, readings=[HELD, reading(0.0)])))
    assert any(note.startswith("device memory at its peak is 33.0 GiB") for note in verdict.notes)
