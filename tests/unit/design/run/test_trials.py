"""What is recorded of a trial: it survives its storage, and what is known best is what counts."""

from __future__ import annotations

import json
from dataclasses import fields

import numpy as np
import pytest

from chipwise.design.run.progress import Status
from chipwise.design.run.spec import run_spec
from chipwise.design.run.trials import Candidate, TrainedRung, TrialNotes, Trials, choice_labels, value_label
from chipwise.design.strategies.study import Study, Trial
from chipwise.model.space.designs import design_of
from chipwise.model.space.search_space import SearchSpace

SPEC = run_spec(
    {
        "name": "toy",
        "workload": {"prompt_tokens": 8, "new_tokens": 8},
        "space": {
            "d_model": [32, 64],
            "depth": [1, 2],
            "vocab_size": [512],
            "layer": {"heads": [2], "kv_heads": [1, 2], "ffn_width": [64]},
            "max_tokens": 64,
        },
        "data": {},
    },
    file="toy.yaml",
)
SPACE = SearchSpace(SPEC.space)
RESULT = {
    "rung": 0,
    "cpu_s": 1.5,
    "tokens": 10,
    "loss": 2.0,
    "quantised_loss": 2.1,
    "curve": [[1, 2]],
}
PROMISE = {"tpot_p50": [1e-3, 9e-4, 2e-3], "peak_memory": [5e6, 4e6, 6e6]}


@pytest.fixture
def trials() -> Trials:
    study = Study(None, name="toy", directions=["minimize"], identity="a", choices=choice_labels(SPACE))
    return Trials(study, SPEC, SPACE)


def test_notes_survive_their_storage() -> None:
    notes = TrialNotes(
        role="candidate",
        choices={"d_model": 32},
        predicted=PROMISE,
        row=(0, 1),
        rungs=(TrainedRung.from_plain(RESULT),),
        curve=((1.0, None), (2.0, 3.0)),
        unclean_because=("a", "b"),
        promoted=2,
        clean=False,
        measured={"tpot_p50": 1.0},
    )
    stored = json.loads(json.dumps(notes.to_plain()))
    assert TrialNotes.from_plain(stored) == notes
    assert TrialNotes.from_plain({**stored, "of_a_later_version": 1}) == notes
    unset = {item.name for item in fields(TrialNotes)} - stored.keys()
    assert {"final", "tasks", "within", "settled"} <= unset  # what is as usual is not stored
    assert {"clean", "promoted", "measured", "rungs"} <= stored.keys()
    bare = TrialNotes(role="baseline", choices={}, predicted={})
    assert bare.to_plain() == {"role": "baseline", "choices": {}, "predicted": {}, "row": None}
    assert TrialNotes.from_plain(bare.to_plain()) == bare


def candidate(*, state: str = "running", **notes: object) -> Candidate:
    plain = {"role": "candidate", "choices": {}, "predicted": PROMISE, **notes}
    return Candidate(Trial(number=3, state=state, notes=plain), design=None)  # type: ignore[arg-type]


def test_what_was_measured_counts_before_what_is_believed_before_what_was_promised() -> None:
    promised = candidate()
    assert promised.costs == {"tpot_p50": 1e-3, "peak_memory": 5e6}
    believed = candidate(believed_now={"tpot_p50": [2e-3, 1e-3, 3e-3]})
    assert believed.costs == {"tpot_p50": 2e-3, "peak_memory": 5e6}
    measured = candidate(believed_now={"tpot_p50": [2e-3, 1e-3, 3e-3]}, measured={"tpot_p50": 4e-3})
    assert measured.costs == {"tpot_p50": 4e-3, "peak_memory": 5e6}
    assert (promised.measured, measured.measured) == (None, {"tpot_p50": 4e-3})


def test_what_was_reached_on_tasks_is_known_and_what_failed_is_not() -> None:
    tasks = {"mine": {"metric": "accuracy", "value": 0.7}, "other": {"metric": "spearman", "failed": "no memory"}}
    found = candidate(tasks=tasks)
    assert found.reached == {"accuracy@mine": 0.7}
    assert found.known == {"tpot_p50": 1e-3, "peak_memory": 5e6, "accuracy@mine": 0.7}


def test_quality_is_that_of_the_longest_training_in_the_deployed_format() -> None:
    later = {**RESULT, "rung": 2, "quantised_loss": 1.8, "loss": 1.7}
    found = candidate(rungs=[RESULT, later])
    assert (found.quality, candidate().quality) == (1.8, None)
    assert found.after(0) == TrainedRung.from_plain(RESULT)
    assert found.after(1) is None
    assert found.after(2) == found.rungs[-1]


def test_trials_stored_when_losses_were_called_bits_per_byte_are_read() -> None:
    old = {"rung": 0, "cpu_s": 1.0, "tokens": 8, "bits_per_byte": 2.0, "quantised_bits_per_byte": 2.1}
    notes = {"role": "candidate", "choices": {}, "predicted": {}, "rungs": [old], "exported_bits_per_byte": 2.2}
    found = TrialNotes.from_plain({**notes, "test_bits_per_byte": 2.3})
    assert (found.rungs[0].loss, found.rungs[0].quantised_loss) == (2.0, 2.1)
    assert (found.exported_loss, found.test_loss) == (2.2, 2.3)


@pytest.mark.parametrize(
    ("state", "alive"), [("running", True), ("complete", True), ("failed", False), ("pruned", False)]
)
def test_a_trial_that_failed_or_was_set_aside_is_not_alive(state: str, alive: bool) -> None:
    assert candidate(state=state).alive is alive


def test_a_trial_begins_with_its_choices_and_promise_and_ends_with_its_reason(trials: Trials) -> None:
    row = SPACE.sample(1, np.random.default_rng(0))[0]
    number = trials.add(row, predicted=PROMISE)
    found = trials[number]
    assert found.row == tuple(row.tolist())
    assert (found.is_reference, found.notes.started[10]) == (False, "T")
    assert found.design == design_of(SPACE.choices(row), spec=SPEC.space, name="toy")
    reference = trials.add_reference(SPACE.choices(row), predicted={})
    assert (trials[reference].is_reference, trials[reference].row) == (True, None)
    assert trials[reference].design.arch.name.startswith("baseline")
    assert trials[reference].format_of is None
    trials.fail(number, "no memory")
    assert (trials[number].alive, trials[number].notes.reason) == (False, "no memory")
    assert trials[number].notes.ended is not None
    assert [(item.number, item.alive) for item in trials.all()] == [(number, False), (reference, True)]


def test_a_training_that_is_recorded_twice_is_kept_once(trials: Trials) -> None:
    number = trials.add(SPACE.sample(1, np.random.default_rng(0))[0], predicted={})
    trials.trained(number, RESULT)
    trials.trained(number, {**RESULT, "rung": 1, "cpu_s": 4.0})
    trials.trained(number, {**RESULT, "rung": 1, "cpu_s": 5.0, "unknown": 1, "curve": [[5, 6]]})
    assert [(item.rung, item.cpu_s) for item in trials[number].rungs] == [(0, 1.5), (1, 5.0)]
    assert trials[number].notes.curve == ((5, 6),)


def test_a_promise_is_never_rewritten_and_fields_have_names(trials: Trials) -> None:
    number = trials.add(SPACE.sample(1, np.random.default_rng(0))[0], predicted=PROMISE)
    for wrong in ({"predicted": {}}, {"mesured": {}}):
        with pytest.raises(TypeError, match=next(iter(wrong))):
            trials.note(number, **wrong)
    trials.note(number, within=True, unclean_because=("a",))
    assert trials[number].notes.predicted == PROMISE
    assert (trials[number].notes.within, trials[number].notes.unclean_because) == (True, ("a",))


def test_labels_are_for_people() -> None:
    assert (value_label((4, 2)), value_label("relu"), value_label(64)) == ("4/2", "relu", "64")
    labels = choice_labels(SPACE)
    assert [len(labels[gene.label]) for gene in SPACE.genes] == [len(gene.values) for gene in SPACE.genes]
    assert any(values == ("2/1", "2/2") for values in labels.values())


def test_the_wait_that_is_left_is_shared_by_workers_and_never_negative() -> None:
    assert Status(budget=100.0, spent=40.0, workers=3).left_s == pytest.approx(20.0)
    assert Status(budget=100.0, spent=140.0, workers=2).left_s == 0.0
    assert Status().left_s == 0.0


def test_the_loss_is_of_the_exported_graph_where_there_is_one() -> None:
    def found(**notes: object) -> Candidate:
        plain = {"role": "candidate", "choices": {}, "predicted": {}, "rungs": [], **notes}
        return Candidate(Trial(number=0, state="running", notes=plain), design=None)  # type: ignore[arg-type]

    assert found().loss is None
    assert found(rungs=[RESULT]).loss == found(rungs=[RESULT]).quality == RESULT["quantised_loss"]
    exported = found(rungs=[RESULT], exported_loss=1.9)
    assert (exported.loss, exported.quality) == (1.9, RESULT["quantised_loss"])


def test_the_p99s_of_a_busy_machine_are_not_learnt(trials) -> None:
    """What was noted by older versions, without a verdict, still counts."""
    values = {"tpot_p50": 1.0, "tpot_p99": 9.0, "peak_memory": 5.0}
    rows = np.unique(SPACE.sample(20, np.random.default_rng(0)), axis=0)[:3]
    for row, clean in zip(rows, (True, False, None), strict=True):
        trials.note(trials.add(row, predicted=PROMISE), measured=values, settled=values, clean=clean)
    quiet, busy, unknown = (found for _, found in trials.measured())
    assert quiet == unknown == values
    assert busy == {"tpot_p50": 1.0, "peak_memory": 5.0}
