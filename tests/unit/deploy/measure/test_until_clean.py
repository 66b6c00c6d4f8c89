"""A session over scripted machines: bad moments are come back to, faults are not."""

from __future__ import annotations

from chipwise.deploy.measure.harness import measure_until_clean
from chipwise.deploy.measure.measurement import Measurement
from chipwise.errors import MeasurementError
from chipwise.model.ops.workload import Workload


def made(lost: float) -> Measurement:
    return Measurement(
        design="",
        name="toy",
        runtime="fake",
        runtime_version="1",
        threads=1,
        workload=Workload(),
        device="toy",
        ttft_s=(1.0,),
        tpot_s=(1.0,),
        cpu_s=1.0,
        peak_memory_bytes=None,
        clean=lost <= 0.04,
        reasons=("busy",) if lost > 0.04 else (),
        environment={"lost": lost},
    )


def test_what_was_not_clean_is_measured_again_after_the_others() -> None:
    order: list[str] = []
    script = {"a": [0.0], "b": [0.5, 0.01], "c": [0.0]}

    def measure(name: str) -> Measurement:
        order.append(name)
        return made(script[name].pop(0))

    found = measure_until_clean(["a", "b", "c"], measure)
    assert order == ["a", "b", "c", "b"]
    assert [item.clean for item in found] == [True, True, True]


def test_repeats_are_bounded_and_the_quietest_counts() -> None:
    script = iter([0.5, 0.2, 0.3, 0.0])
    (found,) = measure_until_clean(["a"], lambda name: made(next(script)), repeats=2)
    assert found.environment["lost"] == 0.2


def test_a_fault_is_kept_with_its_reason_and_not_tried_again() -> None:
    calls: list[str] = []

    def measure(name: str) -> Measurement:
        calls.append(name)
        if name == "bad":
            raise MeasurementError("crashed")
        return made(0.0)

    found = measure_until_clean(["good", "bad", "fine"], measure)
    assert calls == ["good", "bad", "fine"]
    assert str(found[1]) == "crashed"
    assert isinstance(found[0], Measurement)
    assert isinstance(found[2], Measurement)
