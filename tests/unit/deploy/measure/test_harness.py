"""The harness with a runtime that waits, hangs, crashes or returns wrong results on demand."""

from __future__ import annotations

import json

import pytest

from chipwise.deploy.measure import harness
from chipwise.deploy.measure.harness import ask_worker, join, measure, measure_alternately, staying
from chipwise.deploy.measure.measurement import Measurement
from chipwise.deploy.measure.verdict import judge
from chipwise.deploy.runtimes import NEEDS, Needs
from chipwise.errors import MeasurementError, UnknownName
from chipwise.model.ops.workload import Workload

WORKLOAD = Workload(prompt_tokens=4, new_tokens=9)


def fake_model(folder, **facts):
    path = folder / f"{facts.get('fault', 'fine')}.json"
    path.write_text(json.dumps({"vocab_size": 16, "prefill_s": 2e-3, "decode_s": 5e-4, **facts}))
    return path


def quick(path, **settings) -> Measurement:
    return measure(path, WORKLOAD, runtime="fake", seconds=0.05, attempts=1, **settings)


def test_every_sample_is_kept_and_none_is_shorter_than_the_wait(tmp_path) -> None:
    found = quick(fake_model(tmp_path, name="toy", design="abc"))
    assert len(found.tpot_s) >= 200
    assert len(found.ttft_s) >= 30
    assert min(found.ttft_s) >= 2e-3
    assert min(found.tpot_s) >= 5e-4
    assert (found.name, found.design, found.runtime, found.runtime_version) == ("toy", "abc", "fake", "1")
    assert found.peak_memory_bytes > 10e6  # an interpreter with numpy
    assert found.energy_j is None
    assert found.clean == (not found.reasons)


def test_it_survives_json(tmp_path) -> None:
    found = quick(fake_model(tmp_path))
    again = Measurement.from_data(json.loads(json.dumps(found.to_data())))
    assert again == found
    assert again.digest == found.digest


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("crash", "SIGABRT"),
        ("nan", "not finite"),
        ("memory", "out of memory"),
        ("hang", "no answer within 2 s"),
    ],
)
def test_a_fault_is_an_error_that_names_it(fault: str, message: str, tmp_path) -> None:
    patience_s = 2 if fault == "hang" else 300
    with pytest.raises(MeasurementError, match=message):
        quick(fake_model(tmp_path, fault=fault), timeout_s=patience_s, memory_limit_bytes=2_000_000_000)


def test_two_gigabytes_have_more_time_than_two_kilobytes(tmp_path, monkeypatch) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(bytes(1000))
    limits = []

    def refuse(request, *, timeout_s, **settings):
        limits.append(timeout_s)
        raise MeasurementError("enough")

    monkeypatch.setattr(harness, "ask_worker", refuse)
    for size_bytes in (1000, 2_400_000_000):
        with (tmp_path / "model.onnx.data").open("wb") as beside:
            beside.truncate(size_bytes)  # a sparse file
        with pytest.raises(MeasurementError, match="enough"):
            measure(path, WORKLOAD, timeout_s=60.0)
    assert limits == [60.0, 60.0 + 240.0]  # 10 MB/s


def test_a_runtime_that_prints_does_not_spoil_the_reply(tmp_path) -> None:
    assert quick(fake_model(tmp_path, fault="noise")).runtime == "fake"


def test_what_is_no_model_is_refused(tmp_path) -> None:
    with pytest.raises(MeasurementError, match=r"missing\.json"):
        quick(tmp_path / "missing.json")
    with pytest.raises(UnknownName, match="onnxruntime"):
        measure(tmp_path / "m", WORKLOAD, runtime="onnxrutime")


def test_a_process_that_stays_measures_several_models_and_knows_the_memory_of_its_first(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(NEEDS, "fake", Needs(module="json", extra="", models_per_start=2))
    with staying("fake", 1) as ask:
        found = [quick(fake_model(tmp_path, name=name), ask=ask) for name in "abc"]
        with pytest.raises(MeasurementError, match=r"nan\.json: the model's logits are not finite"):
            quick(fake_model(tmp_path, fault="nan"), ask=ask)  # the second of its process
        found.append(quick(fake_model(tmp_path, name="d"), ask=ask))
        with pytest.raises(MeasurementError, match="SIGABRT"):
            quick(fake_model(tmp_path, fault="crash"), ask=ask)
        found.append(quick(fake_model(tmp_path, name="e"), ask=ask))
    assert [each.name for each in found] == list("abcde")
    assert [each.peak_memory_bytes is not None for each in found] == [True, False, True, True, True]
    assert len({tuple(each.environment["cpus"]) for each in found}) == 1
    assert min(min(each.tpot_s) for each in found) >= 5e-4


def test_other_runtimes_have_a_process_for_each_model() -> None:
    with staying("fake", 1) as ask:
        assert ask is ask_worker


def test_two_models_in_turns(tmp_path) -> None:
    slow, fast = fake_model(tmp_path, fault="none"), fake_model(tmp_path, decode_s=1e-4)
    settings = {"runtime": "fake", "seconds": 0.05, "attempts": 1}
    first, second = measure_alternately([slow, fast], WORKLOAD, rounds=2, **settings)
    assert len(first.tpot_s) >= 400
    assert first.metric("tpot_p50") > second.metric("tpot_p50")


def test_joined_parts_keep_all_samples_and_all_doubts(tmp_path) -> None:
    part = quick(fake_model(tmp_path)).to_data()
    del part["schema"]
    quiet = Measurement.from_data({"schema": "chipwise.measurement/1", **part, "clean": True, "reasons": []})
    busy = Measurement.from_data({"schema": "chipwise.measurement/1", **part, "clean": False, "reasons": ["busy"]})
    both = join([quiet, busy])
    assert len(both.tpot_s) == 2 * len(quiet.tpot_s)
    assert (both.clean, both.reasons) == (False, ("busy",))


def test_a_doubt_of_several_rounds_is_said_once_with_the_loudest_numbers(tmp_path) -> None:
    part = quick(fake_model(tmp_path)).to_data()

    def lost(share: float) -> Measurement:
        said = judge({"lost": share, "others": 0.5})
        changes = {"clean": said.clean, "reasons": list(said.reasons), "environment": {"lost": share}}
        return Measurement.from_data({**part, **changes})

    both = join([lost(0.75), lost(0.81), lost(0.2)])
    assert both.reasons == judge({"lost": 0.81, "others": 0.5}).reasons
    assert [each["lost"] for each in both.environment["rounds"]] == [0.75, 0.81, 0.2]


def test_a_model_that_fails_in_turns_does_not_take_the_others_with_it(tmp_path) -> None:
    good, bad = fake_model(tmp_path), fake_model(tmp_path, fault="crash")
    found = measure_alternately([good, bad], WORKLOAD, rounds=2, runtime="fake", seconds=0.05, attempts=1)
    assert len(found[0].tpot_s) >= 400
    assert "SIGABRT" in str(found[1])


def test_models_that_were_not_clean_are_measured_again_in_further_rounds(tmp_path, monkeypatch) -> None:
    """Two rounds: the first model is noisy once, the second always; three further rounds at most."""
    part = quick(fake_model(tmp_path)).to_data()
    noise = {"a": [0.5, 0.0, 0.0], "b": [0.9, 0.5, 0.7, 0.6, 0.8]}
    order: list[str] = []

    def scripted(model: str, workload: Workload, **_: object) -> Measurement:
        order.append(model)
        lost = noise[model].pop(0)
        clean = lost == 0.0
        changes = {"clean": clean, "reasons": [] if clean else ["busy"], "environment": {"lost": lost}}
        return Measurement.from_data({**part, **changes})

    monkeypatch.setattr(harness, "measure", scripted)
    first, second = measure_alternately(["a", "b"], WORKLOAD, rounds=2, extra_rounds=3)
    assert order == ["a", "b", "b", "a", "a", "b", "b", "b"]
    assert first.clean
    assert first.noise_level == 0.0
    assert not second.clean
    assert [r["lost"] for r in second.environment["rounds"]] == [0.5, 0.6]  # the quietest two
