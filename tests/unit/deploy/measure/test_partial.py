"""A stopped calibration resumes; measurements of another machine, version or day are ignored."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
from test_own_calibration import DESIGNS, HOW, made

from chipwise.deploy.calibrate import calibrate as calibration
from chipwise.deploy.calibrate import node_rates, partial
from chipwise.deploy.calibrate.kinds import CALIBRATED
from chipwise.deploy.calibrate.microbench import Case
from chipwise.deploy.calibrate.partial import OLDEST_S, Partial
from chipwise.errors import StorageError

CASES = [Case(kind="norm.rmsnorm", count=count, rows=1, k=16) for count in (4, 8, 12)]


def opened(path, *, runtime="onnxruntime", threads=1, clock=lambda: 1e9):
    return Partial(path, runtime=runtime, threads=threads, clock=clock)


def test_what_is_kept_is_found_again_and_removed_at_the_end(tmp_path) -> None:
    path = tmp_path / "new" / "kept.jsonl"
    first = opened(path)
    assert first.get("a") is None
    first.put("a", 1.5)
    first.put("b", {"c": [1, 2]})
    again = opened(path, clock=lambda: 1e9 + 60)
    assert (again.get("a"), again.get("b")) == (1.5, {"c": [1, 2]})
    again.put("d", 3)
    assert opened(path).get("d") == 3
    again.remove()
    assert not path.exists()


@pytest.mark.parametrize(
    "other", [{"runtime": "fake"}, {"threads": 2}, {"clock": lambda: 1e9 + OLDEST_S + 1}, {"clock": lambda: 1e9 - 1}]
)
def test_what_is_of_something_else_or_too_old_is_ignored_and_replaced(tmp_path, other) -> None:
    opened(tmp_path / "p").put("a", 1.0)
    later = opened(tmp_path / "p", **other)
    assert later.get("a") is None
    later.put("b", 2.0)
    assert (opened(tmp_path / "p", **other).get("a"), opened(tmp_path / "p", **other).get("b")) == (None, 2.0)


@pytest.mark.parametrize("changed", ["_versions", "detect"])
def test_another_version_or_machine_begins_anew(tmp_path, monkeypatch, changed) -> None:
    opened(tmp_path / "p").put("a", 1.0)
    monkeypatch.setattr(partial, changed, lambda: {"chipwise": "another"})
    assert opened(tmp_path / "p").get("a") is None


@pytest.mark.parametrize("text", ["", "\n", "{", "[1]\n", '{"schema": 1}\n', "\x00\xff"])
def test_a_damaged_file_holds_nothing(tmp_path, text) -> None:
    (tmp_path / "p").write_text(text)
    kept = opened(tmp_path / "p")
    kept.put("a", 1.0)
    assert opened(tmp_path / "p").get("a") == 1.0


def test_a_line_that_was_cut_off_costs_only_itself(tmp_path) -> None:
    kept = opened(tmp_path / "p")
    kept.put("a", 1.0)
    kept.put("b", 2.0)
    (tmp_path / "p").write_text((tmp_path / "p").read_text()[:-4])
    again = opened(tmp_path / "p")
    assert (again.get("a"), again.get("b")) == (1.0, None)
    again.put("c", 3.0)
    assert (opened(tmp_path / "p").get("a"), opened(tmp_path / "p").get("c")) == (1.0, 3.0)


def test_a_full_disk_is_said_and_what_was_kept_stays(tmp_path, monkeypatch) -> None:
    kept = opened(tmp_path / "p")
    kept.put("a", 1.0)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(tmp_path), "open", full)
    with pytest.raises(StorageError, match="full"):
        kept.put("b", 2.0)
    monkeypatch.undo()
    assert opened(tmp_path / "p").get("a") == 1.0


def test_models_that_were_measured_are_not_measured_again(tmp_path, monkeypatch) -> None:
    """Ctrl-C comes while the third model is measured."""
    measured = []

    def measure(wanted, number, folder, timed, **_):
        if len(measured) == 2:
            measured.append(None)
            raise KeyboardInterrupt
        measured.append(number)
        return calibration.Sample(design=wanted, measured=made(1e-3, 1.0))

    monkeypatch.setattr(calibration, "_measured", measure)
    path = tmp_path / "p"
    with pytest.raises(KeyboardInterrupt):
        calibration.measure_models(DESIGNS, CALIBRATED["images"], **HOW, partial=opened(path))
    samples = calibration.measure_models(DESIGNS, CALIBRATED["images"], **HOW, partial=opened(path))
    assert measured == [0, 1, None, *range(2, len(DESIGNS))]
    assert [sample.design for sample in samples] == list(DESIGNS)
    assert samples == calibration.measure_models(DESIGNS, CALIBRATED["images"], **HOW, partial=opened(path))


def test_nodes_that_were_timed_are_not_timed_again(tmp_path, monkeypatch) -> None:
    timed = []

    class Pool(contextlib.AbstractContextManager):
        def __init__(self, *_, **__) -> None:
            self.jobs = []

        def submit(self, case) -> int:
            self.jobs.append(case)
            return len(self.jobs) - 1

        def events(self):
            for job, case in enumerate(self.jobs):
                timed.append(case["count"])
                if len(timed) == 4:  # in the second of three rounds
                    raise KeyboardInterrupt
                yield SimpleNamespace(kind="result", job=job, data=1e-6 * case["count"])

        def __exit__(self, *_) -> None: ...

    monkeypatch.setattr(node_rates, "WorkerPool", Pool)
    how = {"threads": 1, "on_progress": lambda step, share: shares.append(share)}
    shares: list[float] = []
    with pytest.raises(KeyboardInterrupt):
        node_rates.time_cases(CASES, **how, partial=opened(tmp_path / "p"))
    found = node_rates.time_cases(CASES, **how, partial=opened(tmp_path / "p"))
    assert [seconds for _, seconds in found] == pytest.approx([4e-6, 8e-6, 12e-6])
    assert len(timed) == 3 + 1 + 6  # the first round once, the other two after the stop
    assert shares[-1] == 1.0
