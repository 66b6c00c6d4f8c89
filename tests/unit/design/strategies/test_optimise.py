"""The general search loop: results are stored, lost trials are repeated, other processes may join."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

import evaluations
import numpy as np
import pytest

from chipwise.core.workers import Event
from chipwise.design.strategies.algorithms import make_strategy
from chipwise.design.strategies.algorithms.random_search import RandomSearch
from chipwise.design.strategies.executors import attempt
from chipwise.design.strategies.optimise import RELEASED, HeartbeatMonitor, optimise, study_of
from chipwise.design.strategies.strategy import Limit
from chipwise.design.strategies.study import Study, Trial
from chipwise.errors import InputError, StudyError

PROBLEM = evaluations.toy_problem()
HERE = Path(__file__).parent


def opened(where, problem=PROBLEM) -> Study:
    return study_of(problem, where)


def test_the_loop_asks_and_tells_as_one_would_by_hand() -> None:
    found = optimise(PROBLEM, evaluations.toy, evaluations=25, strategy="random", seed=3, batch=5)
    strategy = make_strategy("random", PROBLEM, seed=3)
    rows = []
    for _ in range(5):
        rows.append(strategy.ask(5))
        strategy.tell(rows[-1], evaluations.toy_objectives(rows[-1]))
    assert (found.rows == np.vstack(rows)).all()
    assert found.objectives == pytest.approx(evaluations.toy_objectives(found.rows))  # the cost was filled in
    assert found.violations == pytest.approx(evaluations.toy_violations(found.rows))
    assert found.front
    assert found.failed == 0


def test_what_is_returned_may_be_everything() -> None:
    part = optimise(PROBLEM, evaluations.toy, evaluations=12, strategy="random")
    whole = optimise(PROBLEM, evaluations.whole, evaluations=12, strategy="random")
    assert (part.rows == whole.rows).all()
    assert part.objectives == pytest.approx(whole.objectives)


def test_the_front_holds_hard_limits_and_may_break_soft_ones() -> None:
    soft = dataclasses.replace(PROBLEM, limits=(Limit(name="size", free=True, penalty=0.01),))
    hard, loose = (optimise(p, evaluations.whole, evaluations=60, strategy="random") for p in (PROBLEM, soft))
    assert (hard.violations[list(hard.front)] <= 0).all()
    assert len(loose.front) >= 1
    counted = loose.objectives[:, 0] * (1 + 0.01 * np.maximum(loose.violations[:, 0], 0))
    assert counted.argmin() in loose.front  # whether it breaks the soft limit or not
    dear = dataclasses.replace(PROBLEM, limits=(Limit(name="size", free=True, penalty=1e6),))
    kept = optimise(dear, evaluations.whole, evaluations=60, strategy="random")
    held = kept.violations[:, 0] <= 0
    for i in kept.front:  # nothing past the limit is best for the first objective
        assert held[i] or kept.objectives[i, 1] < kept.objectives[held, 1].min()


def test_evaluations_that_raise_or_answer_nonsense_fail_with_their_reason(tmp_path) -> None:
    found = optimise(PROBLEM, evaluations.nonsense, evaluations=40, strategy="random", storage=tmp_path / "s")
    assert len(found.rows) + found.failed == 40
    assert set(found.rows[:, 0]) == {3}
    reasons = {trial.notes["reason"] for trial in opened(tmp_path / "s").trials() if trial.state == "failed"}
    assert any("ValueError: no zero (evaluations.py:" in reason for reason in reasons)
    assert any("not all of them finite" in reason for reason in reasons)
    assert any("returned 3 objectives" in reason for reason in reasons)


def test_a_finite_space_is_exhausted_and_the_loop_ends() -> None:
    problem = evaluations.toy_problem(values=2, variables=2, limit=None)
    found = optimise(problem, evaluations.toy, evaluations=50, strategy="random")
    assert len(found.rows) == 4


def test_a_worker_that_is_killed_gives_its_trial_back(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MARKER", str(tmp_path / "marker"))
    found = optimise(
        PROBLEM, evaluations.dies_once, evaluations=12, strategy="random", workers=2, storage=tmp_path / "s"
    )
    assert len(found.rows) == 12
    assert found.failed == 0
    given_back = [trial for trial in opened(tmp_path / "s").trials() if RELEASED in trial.notes]
    assert [trial.notes["reason"] for trial in given_back] == ["released: its worker died"]
    assert given_back[0].notes["row"] in found.rows.tolist()


def test_a_candidate_that_kills_every_worker_is_given_up(tmp_path) -> None:
    problem = evaluations.toy_problem(values=2, variables=2, limit=None)
    found = optimise(
        problem, evaluations.dies_always, evaluations=4, strategy="random", workers=2, storage=tmp_path / "s"
    )
    assert sorted(found.rows.tolist()) == [[1, 0], [1, 1]]
    assert found.failed == 2
    last = [trial.notes["reason"] for trial in opened(tmp_path / "s", problem).trials() if "reason" in trial.notes]
    assert sum("tried 3 times" in reason for reason in last) == 2


def test_a_worker_that_hangs_is_killed_and_its_trial_given_back(tmp_path, monkeypatch) -> None:
    """An hour passes once the evaluation has begun to hang."""
    marker = tmp_path / "marker"
    monkeypatch.setenv("MARKER", str(marker))
    found = optimise(
        PROBLEM,
        evaluations.hangs_once,
        evaluations=6,
        strategy="random",
        timeout_s=60.0,
        storage=tmp_path / "s",
        clock=lambda: 3600.0 * marker.exists(),
    )
    assert len(found.rows) == 6
    assert sum(RELEASED in trial.notes for trial in opened(tmp_path / "s").trials()) == 1


def test_what_cannot_be_sent_to_a_worker_is_refused() -> None:
    with pytest.raises(InputError, match="define it at the top level"):
        optimise(PROBLEM, lambda row: [1.0], evaluations=4, workers=2)


def test_a_partial_evaluation_travels_with_its_arguments() -> None:
    found = optimise(PROBLEM, functools.partial(evaluations.scaled, 2.0), evaluations=4, strategy="random", workers=2)
    assert found.objectives[:, 0] == pytest.approx(2 * evaluations.toy_objectives(found.rows)[:, 0])
    with pytest.raises(InputError, match="must be JSON values"):
        optimise(PROBLEM, functools.partial(evaluations.scaled, object()), evaluations=4, workers=2)


SCRIPT = """
from chipwise.design.strategies.optimise import optimise; from chipwise.design.strategies.strategy import Goal, Problem

def evaluate(row):
    return [float(row.sum())]

if __name__ == "__main__":
    problem = Problem(cardinalities=[3, 3], goals=(Goal(name="loss"),))
    print(len(optimise(problem, evaluate, evaluations=9, strategy="grid", workers=2).rows))
"""


def test_a_function_of_the_script_itself_can_be_evaluated_in_workers(tmp_path) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "mine.py"], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == "9", done.stderr
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=tmp_path)
    assert "typed into an interactive session" in done.stderr


def test_a_strategy_is_never_told_while_it_is_asked(tmp_path, monkeypatch) -> None:
    """Another search adds trials to the shared study while this one's strategy is thinking in its thread."""
    other, thinking, told_meanwhile = opened(tmp_path / "s"), threading.Event(), []
    counts = {"ask": 0, "tell": 0}

    class Slow(RandomSearch):
        def ask(self, count):
            counts["ask"] += 1
            thinking.set()
            rows = super().ask(count)
            time.sleep(0.3)
            thinking.clear()
            return rows

        def tell(self, rows, objectives, violations=None):
            counts["tell"] += len(rows)
            told_meanwhile.append(thinking.is_set())
            super().tell(rows, objectives, violations)

    class Company(InOrder):
        def poll(self, timeout_s):
            if thinking.is_set():  # a colleague finishes a trial
                row = PROBLEM.draw(1, np.random.default_rng(counts["tell"] + 10 * counts["ask"]))[0]
                values = evaluations.toy_objectives(row[None])[0]
                params = {f"x{i}": int(value) for i, value in enumerate(row)}
                other.add(params, {"row": row.tolist(), "violations": [-1.0]}, tuple(values))
            time.sleep(0.02)
            return super().poll(timeout_s)

    module = sys.modules[optimise.__module__]
    monkeypatch.setattr(module, "make_strategy", lambda name, problem, seed: Slow(problem, seed=seed))
    monkeypatch.setattr(module, "executor", lambda evaluate, workers, **how: Company(evaluate, workers))
    optimise(PROBLEM, evaluations.toy, evaluations=40, workers=2, storage=tmp_path / "s", batch=6, beat_s=0.01)
    assert counts["ask"] > 1
    assert counts["tell"] >= 20
    assert not any(told_meanwhile)


SEARCH = """
import sys
sys.path.insert(0, sys.argv[2])
import evaluations
from chipwise.design.strategies.executors import attempt
from chipwise.design.strategies.optimise import optimise
def told(done, wanted):
    print(done, flush=True)
optimise(evaluations.toy_problem(), getattr(evaluations, sys.argv[5]), evaluations=int(sys.argv[3]),
         strategy="evolution", workers=int(sys.argv[4]), storage=sys.argv[1], on_progress=told)
"""


def begin(where, count: int, workers: int, evaluation: str = "sleeping") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SEARCH, str(where), str(HERE), str(count), str(workers), evaluation]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("store", ["journal", "sqlite"])
def test_a_search_that_is_killed_loses_nothing_told_and_goes_on(tmp_path, store) -> None:
    where = tmp_path / "s" if store == "journal" else f"sqlite:///{tmp_path / 's.db'}"
    known: dict[tuple[int, ...], tuple[float, ...]] = {}
    for lines in (3, 5):
        process = begin(where, 1000, 2)  # more than it can do before it is killed
        for _ in range(lines):
            assert process.stdout.readline()
        process.kill()
        process.wait()
        now = {tuple(t.notes["row"]): t.values for t in opened(where).trials() if t.state == "complete"}
        assert len(now) >= len(known) + lines
        assert known.items() <= now.items()
        known = now
    count = len(known) + 20
    found = optimise(PROBLEM, evaluations.toy, evaluations=count, strategy="evolution", storage=where)
    assert len(found.rows) == count
    assert len({tuple(row) for row in found.rows.tolist()}) == count
    assert set(known) <= {tuple(row) for row in found.rows.tolist()}
    left = [trial for trial in opened(where).trials() if trial.state == "running"]
    assert not left


def test_two_searches_share_a_study(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MEETING", str(tmp_path))
    (tmp_path / "go").touch()
    processes = [begin(tmp_path / "s", 40, 2, "in_company") for _ in range(2)]
    for process in processes:
        process.communicate(timeout=300)
        assert process.returncode == 0
    done = [trial for trial in opened(tmp_path / "s").trials() if trial.state == "complete"]
    owners = {trial.notes["owner"] for trial in done}
    assert len(owners) == 2
    assert 40 <= len(done) <= 44  # each may have had as many on their way as it has workers


def test_what_another_search_has_taken_meanwhile_is_left_to_it(tmp_path) -> None:
    problem, seen = evaluations.toy_problem(values=2, variables=2, limit=None), []
    taken = np.array([[1, 1]])

    def while_another_works(row):
        if not seen:
            values = tuple(evaluations.toy_objectives(taken)[0])
            study = opened(tmp_path / "s", problem)
            study.add({"x0": 1, "x1": 1}, {"row": [1, 1], "owner": "elsewhere 1 2.0", "violations": []}, values)
        seen.append(row.tolist())
        return evaluations.toy(row)

    found = optimise(problem, while_another_works, evaluations=4, strategy="grid", storage=tmp_path / "s")
    assert sorted(seen) == [[0, 0], [0, 1], [1, 0]]
    assert sorted(found.rows.tolist()) == [[0, 0], [0, 1], [1, 0], [1, 1]]


def test_a_study_of_another_problem_is_refused(tmp_path) -> None:
    optimise(PROBLEM, evaluations.toy, evaluations=2, strategy="random", storage=tmp_path / "s")
    other = evaluations.toy_problem(values=3)
    with pytest.raises(StudyError, match="another spec"):
        optimise(other, evaluations.toy, evaluations=2, strategy="random", storage=tmp_path / "s")


def test_silence_is_judged_by_beats_and_a_clock_that_never_goes_back() -> None:
    now = [0.0]
    watch = HeartbeatMonitor(10.0, lambda: now[0])
    trial = lambda beat: Trial(0, "running", {"owner": "elsewhere 1 2.0", "beat": beat})  # noqa: E731
    assert not watch.is_silent(trial(0))
    now[0] = 9.0
    assert not watch.is_silent(trial(1))  # it beats
    now[0] = 18.0
    assert not watch.is_silent(trial(1))
    now[0] = 19.5
    assert watch.is_silent(trial(1))


def test_what_a_silent_machine_left_is_tried_again(tmp_path) -> None:
    study = opened(tmp_path / "s")
    row = [3, 0, 0, 0, 0, 0]
    left = study.start(
        {f"x{i}": value for i, value in enumerate(row)}, {"row": row, "owner": "elsewhere 1 2.0", "beat": 4}
    )
    found = optimise(
        PROBLEM, evaluations.toy, evaluations=8, strategy="random", storage=tmp_path / "s", beat_s=0.05, grace_s=0.3
    )
    assert row in found.rows.tolist()
    assert study.trial(left).state == "failed"
    assert not study.finish(left, (1.0, 2.0))


def test_a_result_that_comes_after_its_trial_was_given_back_is_kept(tmp_path) -> None:
    where, seen = tmp_path / "s", []

    def slow(row):
        if not seen:  # while the first is evaluated, another machine takes this one for dead
            seen.append(row.tolist())
            study = opened(where)
            study.fail(study.trials()[0].number, "released: its heartbeats stopped", **{RELEASED: True})
        return evaluations.toy(row)

    found = optimise(PROBLEM, slow, evaluations=6, strategy="random", storage=where)
    first, *_, last = opened(where).trials()
    assert first.state == "failed"
    late = [trial for trial in opened(where).trials() if trial.notes.get("late") == first.number]
    assert [trial.notes["row"] for trial in late] == seen
    assert seen[0] in found.rows.tolist()
    assert len(found.rows) == 6
    assert last.state == "complete"


def test_a_clock_that_jumps_changes_nothing(monkeypatch, tmp_path) -> None:
    straight = optimise(PROBLEM, evaluations.toy, evaluations=15, strategy="evolution", seed=1)
    jumps = iter(range(10**6))
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + (-1) ** next(jumps) * 86_400 * 365)
    jumped = optimise(
        PROBLEM,
        evaluations.toy,
        evaluations=15,
        strategy="evolution",
        seed=1,
        storage=tmp_path / "s",
        beat_s=0.01,
        grace_s=0.1,
    )
    assert (jumped.rows == straight.rows).all()
    assert not any(trial.state == "failed" for trial in opened(tmp_path / "s").trials())


class InOrder:
    """Workers in simulated time: all evaluations take equally long, so they end in the order in which they began."""

    def __init__(self, evaluate, workers: int) -> None:
        self._evaluate, self._workers, self._running = evaluate, workers, deque()

    @property
    def idle(self) -> int:
        return self._workers - len(self._running)

    def submit(self, trial: int, row) -> None:
        self._running.append((trial, row))

    def poll(self, timeout_s: float) -> list[Event]:
        if not self._running:
            return []
        trial, row = self._running.popleft()
        kind, value = attempt(self._evaluate, row)
        return [Event(job=trial, kind=kind, data=value)]

    def close(self) -> None: ...


def test_four_workers_find_as_much_as_one(monkeypatch) -> None:
    from chipwise.design.strategies.pareto import hypervolume

    module = sys.modules[optimise.__module__]
    monkeypatch.setattr(module, "executor", lambda evaluate, workers, **how: InOrder(evaluate, workers))
    volume = {}
    for workers in (1, 4):
        found = optimise(PROBLEM, evaluations.toy, evaluations=72, workers=workers, batch=8)
        volume[workers] = hypervolume(found.objectives[list(found.front)], [11.0, 20.0])
    assert volume[4] >= 0.99 * volume[1]
