"""What a record says of trials, findings, what is measured next, and plans of trainings: by pencil."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from toy_run import SPACE, SPEC

from chipwise.design.limits import parse_constraints, parse_objectives
from chipwise.design.phases import findings, law_run, measuring, reference_design, run_record, training_plan
from chipwise.design.phases.measurement_choice import _ends, _tightest, next_of, next_to_measure
from chipwise.design.phases.reference_design import LEAST_TOKENS, TRAINED_FLOPS, most_parameters
from chipwise.design.phases.training_plan import TrainingPlan
from chipwise.design.report import record as rec
from chipwise.design.run.budget_spec import Allowance
from chipwise.design.run.trials import Candidate
from chipwise.design.strategies.study import Trial
from chipwise.errors import MeasurementError, SpecError
from chipwise.model.arch.arch import uniform
from chipwise.predict.cost.model import Predicted, combined
from chipwise.training.laws.laws import published_quality

ROW = SPACE.sample(1, np.random.default_rng(0))[0]
DESIGN = SPACE.design(ROW)
ELSEWHERE = SimpleNamespace(chances=lambda design: {"there": 0.5}, keeps_limits=lambda design: True)


def candidate(number: int = 3, *, state: str = "running", rungs: int = 1, **notes: Any) -> Candidate:
    """A trial with trainings of 1, 3 and 9 s, each better than the last by a half."""
    known = {
        "role": "candidate",
        "choices": {"d_model": 64},
        "predicted": {"tpot_p50": [100e-6, 90e-6, 110e-6], "tpot_p99": [200e-6, 150e-6, 250e-6]},
        "rungs": [
            {"rung": i, "cpu_s": 3.0**i, "tokens": 10 * 3**i, "loss": 4.0 - i / 2, "quantised_loss": 4.25 - i / 2}
            for i in range(rungs)
        ],
        **notes,
    }
    return Candidate(Trial(number=number, state=state, notes=known), design=DESIGN)  # type: ignore[arg-type]


def told(item: Candidate) -> rec.Trial:
    return run_record._trial(SPEC, item, ELSEWHERE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"rungs": 0}, "priced"),
        ({}, "trained"),
        ({"measured": {"tpot_p50": 1e-4}}, "measured"),
        ({"measured": {"tpot_p50": 1e-4}, "state": "failed", "reason": "diverged"}, "failed"),
        ({"state": "failed", "reason": "set aside before training", "rungs": 0}, "pruned"),
        ({"state": "failed", "reason": "set aside before training"}, "failed"),
        ({"state": "failed", "rungs": 0}, "failed"),
    ],
)
def test_states_of_trials(fields: dict[str, Any], state: str) -> None:
    assert told(candidate(**fields)).state == state


def test_a_trial_in_the_record() -> None:
    """The last training, the loss as exported, curves without gaps, chances here and elsewhere."""
    found = told(
        candidate(
            rungs=3, curve=[[1.0, 10, 5.0, 4.5], [None, None, 3.0, None]], exported_loss=2.5, test_loss=2.75,
            unclean_because=["busy", "hot"], clean=False, started="a", ended="b",
        )
    )  # fmt: skip
    assert (found.number, found.rung, found.loss, found.quantised_loss, found.test_loss) == (3, 2, 3.0, 2.5, 2.75)
    assert (found.train_cpu_s, found.reason, found.started, found.ended) == (9.0, "busy; hot", "a", "b")
    assert (found.parameters, found.weights, found.choices) == (
        DESIGN.arch.parameters(),
        DESIGN.weights,
        {"d_model": 64},
    )
    assert [(p.cpu_s, p.tokens, p.train_loss, p.val_loss) for p in found.curve] == [
        (1.0, 10, 5.0, 4.5),
        (0.0, 0, 3.0, None),
    ]
    assert found.predicted["tpot_p50"] == Predicted(value=100e-6, low=90e-6, high=110e-6)
    assert found.feasible  # 200 of 300 µs
    assert found.chances["there"] == 0.5
    assert 0.5 < found.chances["tpot_p99"] <= 1.0
    bare = told(candidate(rungs=0))
    assert (bare.rung, bare.loss, bare.perplexity, bare.train_cpu_s, bare.reason) == (None, None, None, None, None)
    assert told(candidate(measured={"tpot_p99": 301e-6})).feasible is False
    assert told(candidate(measured={"tpot_p99": 1e-4}, measured_bounds={"tpot_p99": [9e-5, 2e-4]})).measured_bounds == {
        "tpot_p99": (9e-5, 2e-4)
    }


def test_scores_on_tasks() -> None:
    task = SimpleNamespace(label="organ")
    good = {"metric": "accuracy", "value": 0.8, "classes": ["a", "b"], "entries": 10}
    fields = set(rec.TaskScore.__dataclass_fields__)
    assert run_record.score_of({"failed": "no"}).failed == "no"
    assert (
        run_record.score_of({name: value for name, value in good.items() if name in fields} | {"odd": 1}).value == 0.8
    )
    spec = SimpleNamespace(tasks=(task,))
    items = [SimpleNamespace(tasks={}), SimpleNamespace(tasks={"organ": good})]
    (found,) = run_record._tasks(spec, items, {})  # type: ignore[arg-type]
    assert (found.name, found.classes, found.bar) == ("organ", ("a", "b"), None)
    bar = {"metric": "accuracy", "value": 0.5, "classes": ["c"]}
    (found,) = run_record._tasks(spec, items[:1], {"organ": bar})  # type: ignore[arg-type]
    assert (found.classes, found.bar.value) == (("c",), 0.5)


def test_notes_of_a_record() -> None:
    loud = [candidate(1, clean=False), candidate(2, clean=True), candidate(4, clean=False), candidate(5)]
    assert run_record._notes(SPEC, loud, None) == ["measured on a busy machine, so not reliable: trials 1, 4"]
    profile = SimpleNamespace(check_errors="x\ny", notes=("z",))
    assert run_record._notes(SPEC, loud[1:2], profile) == ["x", "y", "z"]  # type: ignore[arg-type]
    assert run_record._intervals({"a": (1.0, 0.5, 2.0), "b": (1.0, None, 2.0), "c": (1.0, 0.5, None)}) == {
        "a": (0.5, 2.0)
    }


class Believes:
    """A chooser of two goals: the loss is 10 less the row, the cost is the row; nothing is penalised."""

    pool = np.arange(8)[:, None]
    problem = SimpleNamespace(
        goals=(1, 2),
        expensive_goals=[0],
        free_goals=[1],
        price=lambda rows: (1.0 * rows[:, :1], np.zeros((len(rows), 0))),
    )

    def expected(self, observations: Any, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return 10.0 - rows[:, 0], np.ones(len(rows))

    def penalty_factor(self, rows: np.ndarray) -> np.ndarray:
        return np.ones(len(rows))


def test_points_are_what_is_believed_and_priced() -> None:
    chooser: Any = Believes()
    assert findings._points(chooser, [], np.array([[1], [6]])).tolist() == [[9.0, 1.0], [4.0, 6.0]]
    assert findings._known(math.inf) is None
    assert findings._known(2.0) == 2.0


GOALS = parse_objectives({"bits_per_byte": "minimize", "tpot_p50": "minimize"})
RATES = parse_objectives({"bits_per_byte": "minimize", "throughput": "maximize"})


def front_item(
    number: int, loss: float, *, measured: float | None = None, within: bool | None = None, **fields: Any
) -> Any:
    return SimpleNamespace(
        number=number,
        notes=SimpleNamespace(within=within),
        measured=None if measured is None else {"tpot_p50": measured},
        after=lambda rung: SimpleNamespace(quantised_loss=loss),
        **fields,
    )


def test_ends_of_what_a_candidate_may_be_and_the_tightest_limit() -> None:
    item = front_item(0, 2.0)
    known = {"tpot_p50": (5.0, 4.0, 7.0), "throughput": (5.0, None, 7.0)}
    assert _ends(item, GOALS[1], known, ()) == (4.0, 7.0)
    assert _ends(item, RATES[1], known, ()) == (-5.0, -7.0)
    assert _ends(item, GOALS[0], known, ()) == (2.0, 2.0)
    assert _ends(front_item(0, 2.0, measured=6.0), GOALS[1], known, ()) == (6.0, 6.0)
    soft = parse_constraints({"tpot_p50": {"limit": "<= 3.5 s", "penalty": 0.5}})
    assert _ends(item, GOALS[0], known, soft) == pytest.approx((2 * (1 + 0.5 / 7), 2 * (1 + 0.5)))
    hard = parse_constraints({"tpot_p50": "<= 3 s"})
    assert _tightest(GOALS[1], hard) == 3.0
    assert _tightest(GOALS[0], hard) == math.inf
    assert _tightest(GOALS[1], soft) == math.inf
    assert _tightest(RATES[1], parse_constraints({"throughput": ">= 20 tokens/s"})) == -20.0


def test_the_next_measurement_may_move_the_front_most() -> None:
    """One measured at (3, 5). Of (2, 4 to 9) and (1, 6 to 7) the one that adds the larger area is next."""
    bounds = {0: (5.0, 5.0, 5.0), 1: (6.0, 4.0, 9.0), 2: (6.5, 6.0, 7.0), 3: (9.0, 9.0, 9.5)}
    items = [front_item(0, 3.0, measured=5.0, within=True), front_item(1, 2.0), front_item(2, 1.0), front_item(3, 9.0)]

    def predict(item: Any) -> dict[str, tuple[float, float, float]]:
        return {"tpot_p50": bounds[item.number]}

    # corner: 9 and 9.5, and a hundredth more; (2, 4) adds 7.09 · 5.595 - 6.09 · 4.595, (1, 6) adds 2 · 3.595
    corner = (9.09, 9.595)
    held = (corner[0] - 3) * (corner[1] - 5)
    first = (corner[0] - 2) * (corner[1] - 4) - held
    second = 2 * (corner[1] - 6)
    assert first > second
    assert next_of(items, predict, GOALS, ()).number == 1
    assert next_of([items[0], *items[2:]], predict, GOALS, ()).number == 2
    assert next_of([items[0], items[3]], predict, GOALS, ()) is None
    assert next_of([], predict, GOALS, ()) is None
    assert next_of(items, predict, GOALS[:1], ()) is None
    # one that was measured outside the limits is neither next nor a front
    outside = front_item(4, 0.5, measured=1.0, within=False)
    bounds[4] = (1.0, 1.0, 1.0)
    assert next_of([outside, *items[1:]], predict, GOALS, ()).number in (1, 2)
    limit = parse_constraints({"tpot_p50": "<= 5 s"})
    assert next_of([items[0], *items[2:]], predict, GOALS, limit) is None


def test_of_equal_hopes_the_surest_is_measured() -> None:
    low = np.array([[1.0, 1.0], [1.0, 1.0], [5.0, 5.0]])
    high = np.array([[1.0, 9.0], [1.0, 3.0], [5.0, 5.0]])
    unknown = np.full((3, 2), np.nan)
    none, corner = np.full(2, np.inf), np.array([10.0, 10.0])
    assert next_to_measure(low, high, unknown, none, corner) == 1
    assert next_to_measure(low, high, unknown, np.array([np.inf, 1.0]), corner) is None  # must be below the limit
    known = unknown.copy()
    known[2] = [0.5, 0.5]
    assert next_to_measure(low, high, known, none, corner) is None


class Timed:
    """Two metrics, one of them unknown; drift made everything a quarter slower."""

    encodes, drift, clean, reasons, noise_level, runtime_version = False, None, True, ("why",), 0.5, "1.2"
    workload = SPEC.workload
    energy_j: float | None = None
    environment: dict[str, Any] = {"wall_s": 4.0}  # noqa: RUF012 - replaced as a whole

    def metric(self, name: str) -> float:
        if name == "peak_memory":
            raise MeasurementError("no")
        return 5.0

    def corrected(self, name: str) -> float:
        return self.metric(name) / 1.25

    settled = metric

    def corrected_interval(self, name: str) -> tuple[float, float, float | None]:
        return self.corrected(name), 3.0, None if name.endswith("p99") else 6.0


def test_what_is_noted_of_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "Measurement", Timed)
    found: Any = Timed()
    metrics = measuring.metrics_of(found, Timed.metric)  # type: ignore[arg-type]
    assert "peak_memory" not in metrics
    assert set(metrics.values()) == {5.0}
    bounds = measuring.bounds_of(found, final=False)
    assert bounds["tpot_p50"] == [3.0, 6.0]
    assert bounds["tpot_p99"] == [3.0, None]
    scaled = measuring.bounds_of(found, final=True)
    assert scaled["tpot_p50"] == pytest.approx([3.0 * 1.25, 6.0 * 1.25])
    rates = SPEC.target.rates
    early, final = (measuring.measurement_notes(found, rates, final=last) for last in (False, True))
    assert (early["measured"]["tpot_p50"], final["measured"]["tpot_p50"]) == (4.0, 5.0)
    assert (early["settled"]["tpot_p50"], early["final"], final["final"]) == (5.0, False, True)
    assert (early["loudness"], early["unclean_because"], early["runtime_version"], early["drift"]) == (
        0.5,
        ("why",),
        "1.2",
        None,
    )
    found.clean = False
    assert measuring.measurement_notes(found, rates, final=True)["final"] is False
    heard = measuring.measurement_notes(found, rates, final=False, request=SimpleNamespace(sound_s=2.0, frames=None))
    assert heard["measured_bounds"]["rtf"] == [1.5, 3.0]
    assert heard["measured"]["rtf"] == pytest.approx(4.0 / 2.0)


def test_watts_are_joules_over_all_rounds() -> None:
    found: Any = Timed()
    assert measuring.measured_w(found) is None
    found.energy_j = 30.0
    assert measuring.measured_w(found) == 7.5
    found.environment = {"rounds": [{"wall_s": 4.0}, {"wall_s": 6.0}]}
    assert measuring.measured_w(found) == 3.0
    found.environment = {"rounds": [{"wall_s": 4.0}, {}]}
    assert measuring.measured_w(found) is None


def test_a_training_fills_a_reference_design_with_a_quarter_of_a_token_a_parameter_at_least() -> None:
    tokens = Allowance(unit="tokens", total=1e6, final=1e5, whole=False)
    assert most_parameters(tokens) == 1e5 / LEAST_TOKENS
    cpu = Allowance(unit="cpu", total=1e6, final=90.0, whole=True)
    n = most_parameters(cpu)
    assert 6 * n * (LEAST_TOKENS * n) == pytest.approx(TRAINED_FLOPS * 90.0)  # 6 FLOPs a parameter and token
    assert most_parameters(Allowance(unit="gpu", total=1e6, final=90.0, whole=False)) == math.inf


def arch(width: int = 256) -> Any:
    return uniform(vocab_size=32_000, d_model=width, depth=12, heads=4, ffn_width=1024, max_tokens=512, name="small")


def plan_of(**fields: Any) -> TrainingPlan:
    known = {
        "tokens": 2e9, "steps": 4000, "window_tokens": 512, "batch": 4, "accumulate": 2, "recompute": False,
        "matrix_rate": 0.02, "table_rate": 0.003, "warmup_steps": 100, "decay_share": 0.2, "weight_decay": 0.1,
        "device": "h100-sxm", "devices": 2, "step": Predicted(value=1.0, low=0.5, high=2.0), "mfu": 0.4,
        "memory_bytes": 1e9, "device_hours": Predicted(value=96.0, low=48.0, high=192.0),
        "usd": Predicted(value=1234.4, low=1.0, high=2.0), "loss": published_quality(arch(), tokens=2e9),
    }  # fmt: skip
    return TrainingPlan(**(known | fields))


def test_a_plan_says_hours_days_and_price() -> None:
    plan = plan_of()
    assert "2 x h100-sxm: 96 device hours (2.0 days), $1,234; " in plan.headline()
    assert "price unknown; " in plan_of(usd=None).headline()
    rows = {row["what"]: row for row in plan.rows()}
    assert rows["step_s"] == {"what": "step_s", "value": 1.0, "low": 0.5, "high": 2.0}
    assert rows["loss"]["value"] == plan.loss.loss.value
    assert {row["what"]: row["value"] for row in plan_of(usd=None).rows()}["usd"] is None


@pytest.mark.parametrize(("width", "transferred"), [(64, False), (256, False), (63, True), (257, True)])
def test_notes_of_a_plan(width: int, transferred: bool) -> None:
    shaped = SimpleNamespace(d_model=width)
    price = Predicted(value=1.0)

    def notes(steps: int, usd: Predicted | None, *, built: bool = True) -> list[str]:
        return training_plan._notes(shaped, steps, usd, built=built)  # type: ignore[arg-type]

    assert bool(notes(1000, price)) == transferred
    assert notes(999, price)[-1].startswith("999 steps are few")
    assert any("states no price" in note for note in notes(1000, None))
    assert any("cannot build this model" in note for note in notes(1000, price, built=False))


def test_a_plan_shares_its_steps_over_devices() -> None:
    """2^15 tokens over two devices in windows of 512: 32 sequences each, all at once; an odd share is rounded."""
    plan = training_plan.training_plan(arch(), devices=2, tokens=1e9, step_tokens=2**15)
    assert (plan.window_tokens, plan.batch * plan.accumulate) == (512, 32)
    assert plan.steps == math.ceil(1e9 / 2**15)
    assert plan.batch == 32
    few = training_plan.training_plan(arch(), devices=2, tokens=1e9, step_tokens=100, window_tokens=256)
    assert (few.window_tokens, few.batch, few.accumulate, few.steps) == (256, 1, 1, math.ceil(1e9 / 512))
    many = training_plan.training_plan(arch(), devices=1, tokens=1e9, step_tokens=2**17)
    assert many.batch * many.accumulate == 256
    assert many.batch == training_plan.MOST_LOCAL == 64
    for wrong in ({"step_tokens": 0}, {"window_tokens": -1}, {"tokens": math.inf}, {"devices": 0}):
        with pytest.raises(SpecError, match=f"{next(iter(wrong))}.*must be positive"):
            training_plan.training_plan(arch(), **({"tokens": 1e9} | wrong))


def test_multiples_of_a_prediction_keep_its_interval() -> None:
    def tripled(value: float) -> float:
        return 3 * value

    assert combined(tripled, Predicted(value=2.0, low=1.0, high=4.0)) == Predicted(value=6.0, low=3.0, high=12.0)
    assert combined(tripled, Predicted(value=2.0)) == Predicted(value=6.0)


@pytest.mark.parametrize(
    ("devices", "each", "asks"),
    [(1, 1, False), (8, 8, False), (12, 6, True), (9, 3, True), (64, 8, True), (11, 1, True)],
)
def test_machines_hold_up_to_eight_devices_alike(devices: int, each: int, asks: bool) -> None:
    assert training_plan._per_node(devices) == each
    assert bool(training_plan._nodes(devices)) == asks
    if asks:
        assert f"each of {devices // each} machines" in training_plan._nodes(devices)


def test_families_of_reference_designs_hold_one_proportion() -> None:
    """Depth is the width over the family's ratio; sizes grow; formats, heads and vocabularies are apart."""
    spec = SPACE.spec
    families = law_run._families(spec)
    assert families
    for family in families:
        keys = {
            (c["head_size"], c["layers"][0]["heads"] // c["layers"][0]["kv_heads"], c["weights"], c["vocab_size"])
            for c in family
        }
        assert len(keys) == 1
        ratios = [min(law_run.RATIOS, key=lambda each, c=c: abs(c["d_model"] / c["depth"] - each)) for c in family]
        assert len(set(ratios)) == 1
        assert all(c["depth"] == max(1, round(c["d_model"] / ratios[0])) for c in family)


class Recorded(list):
    """Trials of reference designs by number."""

    study = SimpleNamespace(memory={})  # of a machine whose training steps were not timed

    def all(self) -> list[Any]:
        return list(self)

    def note(self, number: int, **notes: Any) -> None:
        vars(self[number].notes).update(notes)

    def add_reference(self, choices: Any, *, predicted: Any) -> int:
        self.append(reference(len(self), choices["d_model"], choices["family"]))
        assert predicted == {"size": choices["d_model"]}
        return len(self) - 1


def reference(number: int, width: int, family: str = "a", *, alive: bool = True, earlier: bool = False) -> Any:
    notes = SimpleNamespace(choices={"d_model": width, "family": family}, earlier=earlier)
    return SimpleNamespace(number=number, is_reference=True, alive=alive, notes=notes)


def largest(monkeypatch, trials: Recorded, good: set[int], others: Any = None) -> tuple[int | None, list[int]]:
    """Width of the reference design that is found among 9, 8, … 1, and the widths that were asked for."""
    asked: list[int] = []

    def judge(item: Any) -> bool:
        asked.append(item.notes.choices["d_model"])
        return asked[-1] in good

    sizes = [({"d_model": width, "family": "a"}, {"size": width}) for width in range(9, 0, -1)]
    monkeypatch.setattr(reference_design, "_largest_first", lambda spec, target, family, slower: sizes)
    monkeypatch.setattr(reference_design, "design_of", lambda choices, *, spec, name: choices["d_model"])
    spec: Any = SimpleNamespace(space=None, task_settings=SimpleNamespace(family=lambda choices: choices["family"]))
    measurer: Any = SimpleNamespace(within_limits=judge)
    found = reference_design.largest_within(trials, spec, None, "a", measurer=measurer, others=others)  # type: ignore[arg-type]
    return (None if found is None else found.notes.choices["d_model"]), asked


def test_the_largest_reference_design_within_the_limits_is_found_in_four_measurements_or_none(monkeypatch) -> None:
    assert largest(monkeypatch, Recorded(), {9, 8}) == (9, [9])
    assert largest(monkeypatch, Recorded(), {7, 6}) == (7, [9, 8, 7])
    assert largest(monkeypatch, Recorded(), {6}) == (6, [9, 8, 7, 6])
    assert largest(monkeypatch, Recorded(), {5}) == (None, [9, 8, 7, 6])
    elsewhere = SimpleNamespace(keeps_limits=lambda width: width < 8)
    assert largest(monkeypatch, Recorded(), {9, 7}, elsewhere) == (7, [7])
    assert largest(monkeypatch, Recorded(), {9}, SimpleNamespace(keeps_limits=lambda width: False)) == (None, [])


def test_what_was_tried_is_asked_again_and_not_added_twice(monkeypatch) -> None:
    """Those of another family, of earlier limits and candidates do not count; one that failed counts as tried."""
    known = [reference(0, 9), reference(1, 8, alive=False), reference(2, 9, "b"), reference(3, 5, earlier=True)]
    trials = Recorded(known)
    assert largest(monkeypatch, trials, {7}) == (7, [9, 7])
    assert [item.notes.choices["d_model"] for item in trials] == [9, 8, 9, 5, 7]
    assert largest(monkeypatch, trials, {7}) == (7, [9, 7])
    assert len(trials) == 5
    assert largest(monkeypatch, trials, {5}) == (None, [9, 7, 6])  # four of the family by now
    assert known[3].notes.earlier is True


def test_a_reference_design_of_earlier_limits_becomes_one_again(monkeypatch) -> None:
    trials = Recorded([reference(0, 8, earlier=True), reference(1, 9, alive=False, earlier=True)])
    assert largest(monkeypatch, trials, {8}) == (8, [9, 8])
    assert (trials[0].notes.earlier, trials[1].notes.earlier) == (False, True)
    assert len(trials) == 3  # 9 anew: the trial of earlier limits had failed


def test_each_family_has_its_reference_design_where_one_keeps_the_limits(monkeypatch) -> None:
    asked: Any = SimpleNamespace(
        references=lambda space: [{"family": name} for name in ("b", "a", "b", "c")],
        family=lambda choices: choices["family"],
    )
    monkeypatch.setattr(
        reference_design,
        "largest_within",
        lambda trials, spec, target, family, **options: None if family == "a" else f"largest of {family}",
    )
    spec: Any = SimpleNamespace(task_settings=asked, space=None)
    found: Any = reference_design.reference_designs(None, spec, None, measurer=None)  # type: ignore[arg-type]
    assert found == ["largest of b", "largest of c"]


def test_what_a_budget_was_and_what_of_it_was_used(monkeypatch) -> None:
    monkeypatch.setattr(run_record, "charged", lambda items, allowance: 7.0 * len(items))
    known: Any = [candidate(), candidate()]
    memory = {"spent": {"training": 3.0}}
    for whole, device in ((True, "cpu"), (False, "cuda")):
        allowance = SimpleNamespace(whole=whole, total=60.0, unit="tokens")
        spec: Any = SimpleNamespace(allowance=allowance, train=SimpleNamespace(trains_on=device), carbon="350 g/kWh")
        found = run_record._budget(spec, memory, known, {})
        assert found.spent == {"training": 3.0}
        assert found.device == ("cpu" if whole else "gpu")
        if whole:
            assert found.cpu_s == 60.0
            assert found.charged is None
        else:
            assert (found.unit, found.allowed, found.charged) == ("tokens", 60.0, 14.0)
        assert found.footprint is not None
        nothing = run_record._budget(spec, {}, known, {})
        assert (nothing.spent, nothing.footprint) == ({}, None)


def test_what_a_search_by_law_says_of_its_answer() -> None:
    assert run_record._law({}) is None
    held = {"source": "s", "tokens": 1e9, "notes": ["n"], "change": None}
    for plan, line in ((None, None), ({"headline": "8 days"}, "8 days"), ("older", None)):
        found = run_record._law({"law": held} | ({} if plan is None else {"plan": plan}))
        assert found is not None
        assert (found.source, found.tokens, found.plan) == ("s", 1e9, line)


def test_the_target_of_a_run_in_its_record() -> None:
    """Titles: another device by its data sheet, this machine by its processor, each with the runtime."""
    there: Any = SimpleNamespace(
        target=SimpleNamespace(local=False, device="l4", runtime="vllm"), confidence_share=0.9, targets=()
    )
    unopened = run_record._target(there, [], None, None)
    assert (unopened.device, unopened.runtime, unopened.title, unopened.measures, unopened.confidence) == (
        "l4", "vllm", "l4", False, 0.9,
    )  # fmt: skip
    for measures in (True, False):
        opened: Any = SimpleNamespace(title="NVIDIA L4", measures=measures)
        told_of = run_record._target(there, [], None, opened)
        assert (told_of.title, told_of.measures) == ("NVIDIA L4", measures)
    machine = SimpleNamespace(cpu="core", cores=4, instructions=("avx2",))
    profile: Any = SimpleNamespace(machine=machine, runtime_version="1.0")
    for targets, confidence in (((), None), (("l4",), 0.9)):
        here: Any = SimpleNamespace(
            target=SimpleNamespace(local=True, device="local", runtime="onnxruntime", threads=2),
            confidence_share=0.9,
            targets=targets,
        )
        items = [candidate(runtime_version="0.9"), candidate(runtime_version="2.0", measured={"tpot_p50": 1.0})]
        found = run_record._target(here, items, profile, None)
        assert (found.cpu, found.cores, found.threads, found.confidence) == ("core", 4, 2, confidence)
        assert found.runtime_version == "2.0"
        assert run_record._target(here, items[:1], profile, None).runtime_version == "1.0"
