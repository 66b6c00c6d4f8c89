"""Winners under task floors: measured scores decide, contenders are tried in order, failures list every miss."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from safetensors.numpy import save_file
from toy_run import MEASURED

from chipwise.deploy.export.onnx import random_weights
from chipwise.design.phases import finals as finals_module
from chipwise.design.phases.finals import Finals
from chipwise.design.phases.task_evaluation import SPARE, TaskEvaluation
from chipwise.design.run.spec import run_spec
from chipwise.design.run.trials import Trials, choice_labels
from chipwise.design.strategies.study import Study
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantisers import QUANTISERS
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.walk.calibration import restored
from chipwise.training.data.recipe import Recipe
from chipwise.training.data.tokens import TokenData

SPEC = run_spec(
    {
        "name": "toy",
        "workload": {"prompt_tokens": 8, "new_tokens": 8},
        "space": {
            "d_model": [32, 64, 96, 128, 160],
            "depth": [1, 2],
            "vocab_size": [512],
            "layer": {"heads": [1], "kv_heads": [1], "ffn": ["relu"], "ffn_width": [64]},
            "max_tokens": 64,
        },
        "data": {},
        "tasks": ["mine.csv"],
        "constraints": {"tpot_p99": "<= 1 ms", "accuracy@mine": ">= 85 %"},
    },
    file="toy.yaml",
)
SPACE = SearchSpace(SPEC.space)


class Judge(TaskEvaluation):
    """Knows what everybody reaches, and who was asked."""

    def __init__(self, trials: Trials, truth: list[float | None]) -> None:
        super().__init__(SPEC, {}, trials, None)
        self.truth, self.asked = truth, []

    def evaluate(self, contenders) -> None:
        for item in contenders:
            self.asked.append(item.number)
            value = self.truth[item.number]
            result = {"failed": "lost its finite loss"}
            if value is not None:
                result = {"metric": "accuracy", "value": value, "low": value - 0.01, "high": value + 0.01}
            self._trials.note(item.number, tasks={"mine": result})


class Finishing(Finals):
    """Takes seconds and bits from a table instead of the machine."""

    truth: ClassVar[dict[int, tuple[float, float]]] = {}

    def measure(self, contenders) -> None:
        for item in contenders:
            seconds, bits = self.truth[item.number]
            self._trials.note(item.number, measured={"tpot_p99": seconds, "tpot_p50": seconds / 2})
            self._trials.note(item.number, exported_loss=bits)


def contest(truth: list[float | None], *, seconds: list[float] | None = None):
    study = Study(None, name="toy", directions=["minimize", "minimize"], identity="toy", choices=choice_labels(SPACE))
    trials = Trials(study, SPEC, SPACE)
    predicted = {"tpot_p99": [1e-4, 1e-4, 1e-4]}
    trials.add_reference(SPACE.choices([0] * len(SPACE.genes)), predicted=predicted)
    for row in SPACE.canonical(SPACE.sample(12, __import__("numpy").random.default_rng(0)))[: len(truth) - 1]:
        trials.add(row, predicted=predicted)
    judge = Judge(trials, truth)
    finals = Finishing(trials, SPEC, None, None, MEASURED, tasks=judge)
    finals.truth = {i: ((seconds or [1e-4] * len(truth))[i], 1.0 + i / 10) for i in range(len(truth))}
    return judge, finals, trials.all()


def test_the_best_that_keeps_the_floor_wins_though_another_predicts_text_better() -> None:
    judge, finish, items = contest([0.95, 0.84, 0.86])
    assert finish.decide(items[1:3], items[0]).number == 2
    assert judge.asked == [1, 2, 0]


def test_a_floor_counts_by_its_value_not_by_its_interval() -> None:
    _, finish, items = contest([0.95, 0.85])  # its interval begins at 84 %
    assert finish.decide(items[1:2], items[0]).number == 1


def test_where_no_finalist_keeps_it_the_next_are_tried_in_their_order() -> None:
    judge, finish, items = contest([0.95, 0.8, 0.8, 0.7, 0.9, 0.99])
    assert finish.decide(items[1:3], items[0], items[3:]).number == 4
    assert judge.asked == [1, 2, 0, 3, 4]  # and nobody after the first that keeps it


def test_who_breaks_a_limit_of_the_device_is_not_asked() -> None:
    judge, finish, items = contest([0.95, 0.99, 0.9], seconds=[1e-4, 2e-3, 1e-4])
    assert finish.decide(items[1:3], items[0]).number == 2
    assert judge.asked == [2, 0]


def test_when_nobody_keeps_it_the_nearest_to_the_floor_wins_and_is_marked() -> None:
    """80 % is 6 % short of 85 %, 70 % is 18 %; one whose task could not be evaluated comes last."""
    judge, finish, items = contest([0.95, 0.8, None, *[0.7] * (SPARE + 1)])
    assert finish.decide(items[1:3], items[0], items[3:]).number == 1
    assert not finish.met
    assert len(set(judge.asked)) == 3 + SPARE


def test_nobody_within_the_limits_ends_with_the_nearest_and_what_it_reaches_is_known() -> None:
    judge, finish, items = contest([0.95, 0.99, 0.9], seconds=[1e-4, 2e-3, 3e-3])
    assert finish.decide(items[1:3], items[0]).number == 1
    assert not finish.met
    assert judge.asked == [0, 1]


@pytest.mark.parametrize("kept", [None, b"", b"half of it"])
@pytest.mark.parametrize("began_with", [None, 5])
def test_weights_that_are_lost_are_trained_again_with_the_runs_seed_and_precision(
    tmp_path, monkeypatch, kept, began_with
) -> None:
    """Also where the run's seed was changed after the training had begun."""
    path, asked = tmp_path / "weights-2.safetensors", []
    if kept is not None:
        path.write_bytes(kept)
    (tmp_path / "precision.json").write_text('"bf16"')

    def train(arch, data, weights, **settings):
        asked.append((arch.name, data, weights, settings))
        save_file({"w": np.ones(3, np.float32)}, weights)
        return weights

    monkeypatch.setattr("chipwise.training.loop.trainer.trained_again", train)
    folder = SimpleNamespace(training=lambda arch: tmp_path, path=tmp_path)
    data = SimpleNamespace(
        recipe={"batch_windows": 8},
        data=lambda arch: SimpleNamespace(load=lambda: f"text in {arch.vocab_size} tokens"),
    )
    memory = {} if began_with is None else {"seeds": {"digest": began_with}}
    trials = SimpleNamespace(study=SimpleNamespace(memory=memory))
    finals = Finals(trials, SPEC, folder, data, MEASURED)
    arch = SimpleNamespace(name="a", vocab_size=300, as_trained=lambda: SimpleNamespace(digest="digest"))
    item = SimpleNamespace(
        number=7, design=SimpleNamespace(arch=arch), rungs=[SimpleNamespace(weights="weights-2.safetensors")]
    )
    for _ in range(2):  # the second time they are there
        assert finals._weights(item)["w"].tolist() == [1, 1, 1]
    seed = SPEC.seed if began_with is None else began_with
    settings = {"seed": seed, "precision": "bf16", "recipe": Recipe(batch_windows=8)}
    assert asked == [("a", "text in 300 tokens", path, settings)]


def text_finals(quantiser: str, weights: str = "int4") -> tuple[Finals, SimpleNamespace]:
    """Finals with one candidate, whose notes change as they are written, and random text of 40 tokens.

    No budget is left for learned rounding.
    """
    arch = uniform(vocab_size=40, d_model=32, depth=1, heads=2, ffn_width=32, max_tokens=16)
    tokens, sizes = np.random.default_rng(0).integers(1, 40, 9000).astype(np.uint16), np.ones(9, np.int64)
    data = TokenData(
        **{"vocab_size": 40, "train": tokens, "bytes_train": 9000},
        **{"validation": tokens, "validation_bytes": sizes, "test": tokens, "test_bytes": sizes},
    )
    item = SimpleNamespace(
        number=3, design=Design(arch=arch, weights=weights), notes=SimpleNamespace(quantised={}), noted=[]
    )

    class Kept(dict):
        def note(self, number: int, *, quantised: dict) -> None:
            item.noted.append(quantised)
            item.notes.quantised = quantised

    held = SimpleNamespace(recipe={"batch_windows": 4}, data=lambda arch: SimpleNamespace(load=lambda: data))
    return Finals(Kept({3: item}), replace(SPEC, quantiser=quantiser), None, held, MEASURED, left_s=lambda: 0.0), item


def test_a_finalists_quantiser_is_the_one_of_least_loss_and_is_noted() -> None:
    finals, item = text_finals("auto")
    weights = random_weights(item.design.arch, seed=0)
    finals._with_quantiser(item, weights)
    losses = item.notes.quantised["losses"]
    assert list(losses) == ["nearest", "searched", "gptq"]
    assert item.notes.quantised["method"] == min(losses, key=losses.get)
    packing, judge = finals._packing(item, weights)
    assert packing.quantiser is QUANTISERS[item.notes.quantised["method"]]
    assert judge(*restored(item.design, weights, packing)) == pytest.approx(min(losses.values()))


def test_learned_rounding_that_a_stop_interrupted_is_repeated_without_asking_for_budget_again(monkeypatch) -> None:
    """No budget is left: an earlier attempt has used it. Without such an attempt nothing is learned."""
    monkeypatch.setattr(finals_module, "learns", lambda spec, target, design: True)
    for noted, tried in (({}, 0), ({"method": "gptq", "learning": True}, 1)):
        finals, item = text_finals("auto")
        finals._spec = replace(finals._spec, budget=replace(finals._spec.budget, cpu="10 min", final=None))
        assert finals._spec.allowance.whole
        item.notes.quantised, learned = noted, []
        finals._beside_learned = lambda item, choice, judge, learned=learned: learned.append(item) or choice
        finals._with_quantiser(item, random_weights(item.design.arch, seed=0))
        assert len(learned) == tried
        assert "learning" not in item.notes.quantised
        assert ["learning" in each for each in item.noted] == [True] * tried + [False]


def test_a_finalist_without_narrow_weights_is_rounded_to_nearest() -> None:
    finals, item = text_finals("auto", "int8")
    finals._with_quantiser(item, random_weights(item.design.arch, seed=0))
    assert list(item.notes.quantised["losses"]) == ["nearest"]
    assert item.notes.quantised["method"] == "nearest"


def test_the_runs_quantiser_is_taken_and_candidates_of_before_are_rounded_to_nearest() -> None:
    finals, item = text_finals("gptq")
    weights = random_weights(item.design.arch, seed=0)
    assert finals._packing(item, weights)[0].quantiser is QUANTISERS["nearest"]
    finals._with_quantiser(item, weights)
    assert item.noted == [{"method": "gptq"}]
    assert finals._packing(item, weights)[0].quantiser is QUANTISERS["gptq"]
    whole = SimpleNamespace(design=Design(arch=item.design.arch), number=3)
    assert finals._with_quantiser(whole, weights) is whole
    assert len(item.noted) == 1
