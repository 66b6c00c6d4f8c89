import subprocess
import sys
from types import SimpleNamespace

import psutil

from chipwise.design.run.ledger import Ledger

BURN = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


def test_the_time_of_ended_and_of_living_children_counts_in_its_phase() -> None:
    ledger = Ledger({"before": 2.0})
    ledger.begin("ended")
    subprocess.run([sys.executable, "-c", BURN], check=True)
    ledger.begin("living")
    child = subprocess.Popen(
        [sys.executable, "-c", BURN + "\nprint('done', flush=True)\ninput()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    ledger.begin("idle")
    child.communicate(b"\n")
    spent = ledger.settle()
    assert spent["before"] == 2.0
    assert spent["ended"] >= 0.25
    assert spent["living"] >= 0.25
    assert spent["idle"] < 0.25  # a child that ends is not counted a second time


def test_the_clock_of_a_run_that_was_killed_does_not_go_back(tmp_path, monkeypatch) -> None:
    """What the file holds is newer than what the study remembered at the last change of phase."""
    used = iter([0.0, 5.0, 5.0, 8.0, 8.0, 8.4, 100.0, 100.5])
    monkeypatch.setattr(Ledger, "_used", staticmethod(lambda: next(used)))
    ledger = Ledger({"before": 2.0}, file=tmp_path / "spent.json")
    ledger.begin("training")  # 5 s belonged to no phase
    remembered = ledger.save()
    assert ledger.saved_total_s(at_least_s=1.0) == 5.0  # 2 and 3
    assert ledger.saved_total_s(at_least_s=1.0) == 5.0  # 0.4 s more are not written down yet, nor shown
    again = Ledger(remembered, file=tmp_path / "spent.json")
    assert again.spent == {"before": 2.0, "training": 3.0}
    assert again.total_s == 5.0


def test_a_damaged_ledger_file_leaves_what_the_study_holds(tmp_path) -> None:
    for text in ("", "[]", "{"):
        (tmp_path / "spent.json").write_text(text)
        assert Ledger({"a": 1.0}, file=tmp_path / "spent.json").spent == {"a": 1.0}


def test_this_process_and_its_children_count_by_user_and_system_time(monkeypatch) -> None:
    times = SimpleNamespace(user=1.0, system=2.0, children_user=4.0, children_system=8.0)
    child = SimpleNamespace(
        cpu_times=lambda: SimpleNamespace(user=16.0, system=32.0, children_user=64.0, children_system=128.0)
    )

    def gone():
        raise psutil.NoSuchProcess(1)

    monkeypatch.setattr("chipwise.design.run.ledger.os.times", lambda: times)
    children = [child, SimpleNamespace(cpu_times=gone)]
    process = SimpleNamespace(children=lambda recursive: children if recursive else [])
    monkeypatch.setattr("chipwise.design.run.ledger.psutil.Process", lambda: process)
    assert Ledger._used() == 255.0


def test_the_ledger_is_written_once_so_much_more_was_spent(tmp_path, monkeypatch) -> None:
    used = [0.0]
    monkeypatch.setattr(Ledger, "_used", staticmethod(lambda: used[0]))
    ledger = Ledger({}, file=tmp_path / "spent.json")
    ledger.begin("training")
    used[0] = 2.0
    assert ledger.saved_total_s(at_least_s=2.5) == 0.0
    assert not (tmp_path / "spent.json").exists()
    assert ledger.saved_total_s(at_least_s=2.0) == 2.0
    assert (tmp_path / "spent.json").exists()
