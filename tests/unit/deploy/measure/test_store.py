"""The store: what goes in comes out, twice is once, many writers lose nothing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from chipwise.deploy.measure.drift import Drift
from chipwise.deploy.measure.measurement import Measurement
from chipwise.deploy.measure.store import MeasurementStore
from chipwise.errors import SpecError, StorageError, UnknownName
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.design import Design
from chipwise.model.ops.workload import Workload

DESIGN = Design(arch=uniform(vocab_size=256, d_model=64, depth=1, heads=1, ffn_width=64), weights="int8")


def measurement(number: int = 0, *, device: str = "toy", runtime: str = "fake") -> Measurement:
    return Measurement(
        design=DESIGN.digest,
        name="toy",
        runtime=runtime,
        runtime_version="1",
        threads=1,
        workload=Workload(),
        device=device,
        ttft_s=(1e-3, 2e-3),
        tpot_s=(1e-4 + 1e-9 * number, 2e-4),
        cpu_s=0.1,
        peak_memory_bytes=10**7,
        clean=True,
        drift=Drift(prefill_slowdown=1.1, decode_slowdown=1.2, log_halfwidth=0.05),
    )


@pytest.fixture
def store(tmp_path) -> MeasurementStore:
    return MeasurementStore(tmp_path / "deep" / "store.sqlite")


def test_an_empty_store_is_empty_and_makes_no_file(store) -> None:
    assert store.entries() == []
    assert not store.path.exists()


def test_what_goes_in_comes_out_once(store) -> None:
    first = store.add(measurement(), design=DESIGN, source="test")
    assert store.add(measurement(), source="again") == first
    (kept,) = store.entries()
    assert (kept.measurement, kept.design, kept.source) == (measurement(), DESIGN, "test")
    assert store.get(first[:6]) == kept


def test_a_design_whose_layers_differ_in_format_comes_out(store) -> None:
    arch = uniform(vocab_size=256, d_model=64, depth=2, heads=1, ffn_width=64)
    design = Design(arch=arch, weights="int4/int8 head:int8")
    store.add(measurement(), design=design, source="test")
    assert store.entries()[0].design == design


def test_one_device_and_runtime(store) -> None:
    for number, (device, runtime) in enumerate([("a", "x"), ("a", "y"), ("b", "x")]):
        store.add(measurement(number, device=device, runtime=runtime), source="test")
    assert [item.measurement.runtime for item in store.entries(device="a")] == ["x", "y"]
    assert [item.measurement.device for item in store.entries(runtime="x", threads=1)] == ["a", "b"]
    assert store.entries(threads=2) == []


def test_a_colleagues_measurements(store, tmp_path) -> None:
    theirs = MeasurementStore(tmp_path / "theirs.sqlite")
    for number in range(3):
        theirs.add(measurement(number, device="phone"), design=DESIGN, source="measure")
    assert theirs.export(tmp_path / "phone.jsonl") == 3
    store.add(measurement(0, device="phone"), design=DESIGN, source="measure")
    assert store.import_(tmp_path / "phone.jsonl") == 2
    assert store.import_(tmp_path / "phone.jsonl") == 0
    assert {item.id for item in store.entries()} == {item.id for item in theirs.entries()}


@pytest.mark.parametrize("text", ["{", '{"schema": "other"}', '{"schema": "chipwise.stored_measurement/1"}'])
def test_a_broken_file_adds_nothing(text: str, store, tmp_path) -> None:
    good = json.dumps(MeasurementStore(tmp_path / "a").entries() or {})
    path = tmp_path / "broken.jsonl"
    path.write_text(f"{text}\n{good}\n")
    with pytest.raises(SpecError, match=r"broken\.jsonl.*line 1"):
        store.import_(path)
    assert store.entries() == []


def test_deleting(store) -> None:
    ids = [store.add(measurement(number), source="test") for number in range(3)]
    assert store.delete(ids[:2]) == 2
    assert [item.id for item in store.entries()] == ids[2:]
    with pytest.raises(UnknownName):
        store.delete([ids[2], "nothing"])
    assert len(store.entries()) == 1


def test_a_file_that_is_no_store_is_said_so(tmp_path) -> None:
    path = tmp_path / "store.sqlite"
    path.write_text("not a database, whatever its name says" * 100)
    with pytest.raises(StorageError, match=r"store\.sqlite"):
        MeasurementStore(path).entries()


WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from test_store import MeasurementStore, measurement
for number in range(20):
    MeasurementStore(sys.argv[2]).add(measurement(1000 * int(sys.argv[3]) + number), source="writer")
"""


def test_concurrent_writers_lose_nothing(store, request) -> None:
    here = str(request.path.parent)
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, here, str(store.path), str(writer)]) for writer in range(4)
    ]
    assert [writer.wait(timeout=300) for writer in writers] == [0] * 4
    assert len(store.entries()) == 80
