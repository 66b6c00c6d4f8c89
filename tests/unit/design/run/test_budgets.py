"""Budgets of a run file: one unit each, by pencil; contradictions with the trainer; identities of older runs."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.core.files import parse_yaml
from chipwise.design.phases.halving import plan_rungs
from chipwise.design.phases.trainings import charged
from chipwise.design.run.budget_spec import Allowance, BudgetSpec, allowance
from chipwise.design.run.spec import run_spec
from chipwise.errors import SpecError
from chipwise.training.trainers.train_spec import TrainSpec

RUN = """
name: toy
workload: {prompt_tokens: 8, new_tokens: 8}
space: {d_model: [32], depth: [1], vocab_size: [512], layer: {heads: [2], kv_heads: [1], ffn: [relu], ffn_width: [64]}}
data: {}
"""


def spec(text: str = ""):
    return run_spec(parse_yaml(RUN + text, name="toy.yaml"), file="toy.yaml")


def test_a_budget_in_each_unit_by_pencil() -> None:
    """40 dollars at 2.5 an hour are 16 hours; without ``final`` one design is trained for about 70 % of the budget."""
    priced = TrainSpec(on="ray", price="2.5 USD/h")
    assert allowance(BudgetSpec(cpu="16 min", final="3 min"), TrainSpec()) == Allowance(
        unit="cpu", total=960, final=180, whole=True
    )
    on_gpu = allowance(BudgetSpec(gpu="8 h", final="30 min"), TrainSpec(on="cuda"))
    assert on_gpu == Allowance(unit="gpu", total=28_800, final=1_800, whole=False)
    counted = allowance(BudgetSpec(tokens="2B"), TrainSpec(on="jobs"))
    assert counted == Allowance(unit="tokens", total=2e9, final=1.4e9, whole=False, alone=True)
    paid = allowance(BudgetSpec(usd=40), priced)
    assert (paid.unit, paid.total, paid.whole) == ("cpu", pytest.approx(57_600), False)
    assert allowance(BudgetSpec(usd="40k"), priced).total == pytest.approx(57_600_000)
    assert allowance(BudgetSpec(usd="$40"), priced) == allowance(BudgetSpec(usd="40 USD"), priced) == paid
    on_gpus = allowance(BudgetSpec(usd=40), TrainSpec(on="jobs", device="cuda", price="2.5 USD/h"))
    assert on_gpus.unit == "gpu"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("budget: {gpu: 8 h}", "budget.gpu: train.on: local trains on CPU cores and cannot account for GPU seconds"),
        ("budget: {cpu: 1 h}\ntrain: {on: cuda}", "budget.cpu: .*cuda trains on GPUs .*give gpu or tokens or usd"),
        ("budget: {gpu: 1 h}\ntrain: {on: ray}", "give cpu or tokens or usd instead; or train"),
        ("budget: {cpu: 1 h}\ntrain: {on: jobs, device: cuda}", "cannot account for CPU seconds"),
        ("budget: {usd: 40}", "train.price: a budget in dollars needs the device's price"),
        ("budget: {cpu: 1 h, tokens: 2B}", "budget.tokens: cpu and tokens are separate budgets"),
        ("budget: {tokens: 2}", "budget.tokens: 2 is too little"),
        ("budget: {gpu: 8}", "budget.gpu: 8 has no unit"),
        ("budget: {tokens: 2M, final: 3M}", "budget.final: one final training run exceeds the whole budget"),
        ("train: {on: rays}", "train.on: unknown trainer 'rays'; did you mean 'ray'"),
        (f"train: {{on: {'x' * 9_000}}}", "train.on: unknown trainer 'x{58}…;"),
        ("train: {on: 'cuda:a'}", "train.on: 'cuda:a' names no GPUs"),
        ("train: {on: 'cuda:1,1'}", "names a GPU twice"),
        ("train: {on: 'ray:head'}", "is not an address; write ray or ray://head:10001"),
        ("train: {on: 'jobs:/tmp'}", "jobs takes nothing after its name"),
        ("train: {on: local, device: cuda}", "train.device: local trains on cpu"),
        ("train: {on: ray, price: -1 USD/h}", "train.price: must be positive"),
        ("train: {at: ray}", "train.at: unknown field"),
        ("train: jobs\nquality: supernet", "quality.method: the supernet is trained on this machine"),
    ],
)
def test_contradictions_are_one_clear_line(text, said) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        spec(text)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("toy.yaml: ")
    assert len(str(caught.value)) < 300


def test_where_a_run_trains_changes_no_identity() -> None:
    """A run may go on with another trainer; other budgets are other runs."""
    plain = spec("budget: {tokens: 2M}").identity
    for train in ("train: ray", "train: {on: jobs, device: cuda}", "train: {on: 'ray://head:10001'}"):
        assert spec(f"budget: {{tokens: 2M}}\n{train}").identity == plain
    assert spec("budget: {tokens: 3M}").identity != plain
    assert spec("budget: {cpu: 20 min}").identity == spec().identity != plain
    assert spec("train: {precision: fp32}").identity != spec().identity


def test_dollars_beside_tokens_end_what_is_too_dear() -> None:
    """At 3.6 USD/h a second costs 0.001; 1 M tokens took 500 s (half a dollar), so the other half pays for 1 M more."""
    both = allowance(BudgetSpec(tokens="5M", usd=1), TrainSpec(on="ray", price="3.6 USD/h"))
    assert (both.unit, both.total) == ("tokens", 5e6)
    assert both.left(seconds=0.0, tokens=0) == 5e6
    assert both.left(seconds=500.0, tokens=1_000_000) == pytest.approx(1e6)
    assert both.left(seconds=5.0, tokens=4_000_000) == 1e6  # the tokens end first
    assert both.left(seconds=1_500.0, tokens=1_000_000) < 0
    with pytest.raises(SpecError, match="a budget in dollars needs the device's price"):
        spec("budget: {tokens: 5M, usd: 1}")
    with pytest.raises(SpecError, match=r"budget.usd: .*0"):
        spec("budget: {tokens: 5M, usd: 0}\ntrain: {on: ray, price: 2 USD/h}")


def test_a_field_called_on_is_text_in_yaml() -> None:
    assert parse_yaml("train: {on: local, off: 1}\ntied: yes", name="a") == {
        "train": {"on": "local", "off": 1},
        "tied": True,
    }
    data = parse_yaml(RUN, name="a")
    assert run_spec({**data, "train": {True: "jobs"}}, file="a").train.on == "jobs"  # as other readers have it


@given(total=st.floats(3e5, 1e9), share=st.floats(0.05, 0.5))
def test_a_plan_in_tokens_keeps_its_budget(total, share) -> None:
    allowed = Allowance(unit="tokens", total=total, final=total * share, whole=False)
    rungs = plan_rungs(allowed, total)
    spent = rungs[0].budget * rungs[0].count
    spent += sum(above.count * (above.budget - below.budget) for below, above in itertools.pairwise(rungs))
    assert spent <= total * (1 + 1e-9)
    assert rungs[-1].budget == allowed.final
    assert len(rungs) == 1 or rungs[0].budget >= allowed.shortest


def test_a_shared_training_is_charged_once() -> None:
    """Two trials of one architecture share a training of 300 tokens; a third had 100, then 200 in all."""

    def trial(arch: str, *tokens: int):
        rungs = [SimpleNamespace(cpu_s=0.5 * many, tokens=many) for many in tokens]
        trained = SimpleNamespace(as_trained=lambda: SimpleNamespace(digest=arch))
        return SimpleNamespace(design=SimpleNamespace(arch=trained), rungs=rungs)

    trials = [trial("a", 300), trial("a", 300), trial("b", 100, 200), trial("c")]
    in_tokens = Allowance(unit="tokens", total=1e6, final=1e5, whole=False)
    assert charged(trials, in_tokens) == 500
    assert charged(trials, Allowance(unit="gpu", total=1e6, final=1e5, whole=False)) == 250


def test_cpu_seconds_are_of_budgets_in_cpu_time_alone() -> None:
    budget = BudgetSpec(cpu="16 min", final="2 min")
    assert (budget.cpu_s, budget.final_s) == (960, 120)
    budget.require_cpu("anything")
    for other in (BudgetSpec(gpu="8 h"), BudgetSpec(tokens="2B"), BudgetSpec(usd=40)):
        for read in (lambda: other.cpu_s, lambda: other.final_s, lambda: other.require_cpu("this")):  # noqa: B023
            with pytest.raises(SpecError, match=f"budget.{other.unit}: this needs a budget of CPU time"):
                read()


def test_amounts_are_shown_with_what_they_count() -> None:
    def shown(unit: str, amount: float) -> str:
        return Allowance(unit=unit, total=1.0, final=1.0, whole=False).show(amount)

    assert shown("tokens", 3e6) == "3 M tokens"
    assert shown("cpu", 99.6) == "100 s of CPU time"
    assert shown("gpu", 30.0) == "30 s of GPU time"
