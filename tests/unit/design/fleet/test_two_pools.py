"""Fleets of two pools: as cheap as any that holds, what they promise, and how they are served."""

from __future__ import annotations

import math

import numpy as np
import pytest
import yaml
from by_force import cheapest_by_force

from chipwise.design.fleet import arrangements, two_pools
from chipwise.design.fleet.answer import planned
from chipwise.design.fleet.arrangements import Arrangement, arrangements_of, devices_of
from chipwise.design.fleet.finding import Finder
from chipwise.design.fleet.holding import fewest_of, limits_of
from chipwise.design.fleet.question import FleetQuestion, question_from
from chipwise.design.fleet.serving_commands import commands_of, dynamo_yaml
from chipwise.design.fleet.two_pools import TwoPools
from chipwise.errors import Infeasible, SpecError
from chipwise.predict.load.load import RequestClass
from chipwise.predict.load.policy import Policy, Speculation
from chipwise.predict.served.deployment import Deployment

MODEL = "Qwen/Qwen3-0.6B"
LINK = 25e9


def asked(**fields: object) -> FleetQuestion:
    settings: dict[str, object] = {
        "model": MODEL, "rate_per_s": 20.0, "devices": ("l4", "a10"), "tp": (1,), "weights": ("bf16",),
        "runtimes": ("vllm",), "requests": 60, "most_devices": 5, "link_bytes_per_s": LINK,
        "limits": {"ttft_p99": 0.5, "tpot_p95": 0.02},
    }  # fmt: skip
    return FleetQuestion(**(settings | fields))


def test_the_plan_is_the_cheapest_of_one_and_of_two_pools() -> None:
    """Against every fleet of up to four devices."""
    rng = np.random.default_rng(11)
    kinds, held = set(), 0
    for case in range(20):
        question = asked(
            rate_per_s=float(2 ** rng.uniform(4, 7)),
            classes=(RequestClass(prompt_tokens=int(2 ** rng.uniform(8, 11)), new_tokens=int(2 ** rng.uniform(2, 6))),),
            limits={"ttft_p99": float(2 ** rng.uniform(-4, -1)), "tpot_p95": float(2 ** rng.uniform(-7.5, -5.5))},
            devices=tuple(rng.choice(("l4", "a10", "l40s", "rtx-4090"), 2, replace=False).tolist()),
            prices={"rtx-4090": 0.4 / 3600},
            most_devices=4,
            fleets=("together", "apart"),
            seed=case,
        )
        best = Finder(question).found()
        forced = cheapest_by_force(question, most_replicas=4)
        assert (not best) == (forced is None), case
        if forced is not None:
            held += 1
            kinds.add(forced.kind)
            assert best[0].usd_per_s == pytest.approx(forced.usd_per_s), case
    assert held >= 10
    assert len(kinds) >= 2  # fleets of two pools win some


def test_two_pools_promise_what_their_replay_says_and_cost_what_their_devices_do() -> None:
    question = asked(fleets=("apart",))
    found = planned(question).best
    assert found.kind == "apart"
    assert found.second is not None
    assert found.second.share == 1
    devices = found.rows()[0]["devices"]
    assert devices == found.devices + found.second.devices
    tokens = 20.0 * 3600 * np.array([1024, 128]) / 1e6
    prices = np.array([found.usd_per_million_input_tokens, found.usd_per_million_output_tokens])
    assert tokens @ prices == pytest.approx(found.usd_per_h)
    assert found.times["ttft_p99"].high is not None
    assert found.times["ttft_p99"].value <= 0.5
    services = yaml.safe_load(found.deployment)["spec"]["services"]
    assert services["VllmPrefillWorker"]["replicas"] == found.replicas
    assert services["VllmDecodeWorker"]["replicas"] == found.second.replicas
    assert not found.commands


def test_few_pairs_are_tried_since_those_of_the_lowest_bound_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the pairs may be tried: the answer is the best of all."""
    question = asked(devices=("l4", "a10", "l40s"), tp=(1, 2), fleets=("together", "apart"))
    finder = Finder(question)
    pools = TwoPools(finder.holding, finder.candidates, limits_of(question))
    best = pools.found()
    monkeypatch.setattr(two_pools, "MOST_PAIRS", len(pools.pairs()) // 3)
    found = pools.found()
    assert best is not None
    assert found is not None
    assert found.usd_per_s == best.usd_per_s


def test_a_question_with_too_many_arrangements_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    question = asked(devices=("l4", "a10"), tp=(1, 2, 4), weights=("bf16", "fp8"))  # 2 x 3 x 2
    assert len(arrangements_of(question, devices_of(question))) == 12
    monkeypatch.setattr(arrangements, "MOST_ARRANGEMENTS", 11)
    with pytest.raises(SpecError, match="12 arrangements are allowed, but at most 11"):
        Finder(question)


def test_pairs_run_one_runtime_and_one_format_and_drafts_only_write() -> None:
    drafts = (Speculation(drafted=2, acceptance=0.5),)
    question = asked(weights=("bf16", "fp8"), devices=("l40s", "l4"), speculation=drafts, fleets=("apart",))
    finder = Finder(question)
    pairs = TwoPools(finder.holding, finder.candidates, {}).pairs()
    assert pairs
    assert all(pair.first.arrangement.weights == pair.second.arrangement.weights for pair in pairs)
    assert all(pair.first.arrangement.speculation is None for pair in pairs)
    assert any(pair.second.arrangement.speculation is not None for pair in pairs)
    assert all(math.isfinite(pair.bound) for pair in pairs)


def test_a_limit_that_no_two_pools_meet_is_named() -> None:
    with pytest.raises(Infeasible, match="ttft_p99"):
        planned(asked(fleets=("apart",), limits={"ttft_p99": 1e-4}))


def test_the_fewest_is_the_border_wherever_it_is() -> None:
    for border in range(1, 60):
        calls: list[int] = []

        def holds(number: int, border: int = border, calls: list[int] = calls) -> bool:
            calls.append(number)
            return number >= border

        assert fewest_of(holds, least=1, most=59) == border
        assert len(calls) <= 20
    assert fewest_of(lambda number: False, least=1, most=9) is None
    assert fewest_of(lambda number: True, least=3, most=2) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"fleets": "together,apart,all"}, "fleets: unknown kind of fleet"),
        ({"fleets": []}, "fleets: must name at least one"),
        ({"dp": [0]}, "dp: must be degrees from 1"),
        ({"link": "fast"}, "link"),
        ({"speculation": [{"drafted": 0, "acceptance": 0.5}]}, "drafted: must be from 1 to 64"),
        ({"speculation": [{"drafted": 3, "acceptance": 1.5}]}, "acceptance: must be from 0 to 1"),
    ],
)
def test_mistakes_in_fleets_are_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        question_from({"model": MODEL, "rate": 1, **fields})


def test_each_stack_says_experts_copies_and_drafts_in_its_own_words() -> None:
    wide = {"device": "h100-sxm", "weights": "fp8", "tp": 2, "dp": 4, "ep": 8}
    drafts = Speculation(drafted=4, acceptance=0.7, draft="org/small")
    lines = {
        runtime: commands_of(
            "org/m", Arrangement(deployment=Deployment(runtime=runtime, **wide), speculation=drafts), 1, Policy(), 4000
        )[0]
        for runtime in ("vllm", "sglang", "trtllm")
    }
    assert "--tensor-parallel-size 2 --data-parallel-size 4 --enable-expert-parallel" in lines["vllm"]
    assert '"num_speculative_tokens": 4' in lines["vllm"]
    assert "--tp 8 --dp 4 --enable-dp-attention --ep 8" in lines["sglang"]
    assert "--speculative-num-draft-tokens 5" in lines["sglang"]
    assert "--tp_size 8 --ep_size 8" in lines["trtllm"]
    assert '"enable_attention_dp": true' in lines["trtllm"]
    copied = Arrangement(
        deployment=Deployment(device="l4", runtime="vllm", weights="bf16"),
        speculation=Speculation(drafted=3, acceptance=0.4),
    )
    assert '"method": "ngram"' in commands_of("org/m", copied, 1, Policy(), 4000)[0]
    for runtime in ("sglang", "trtllm"):
        where = Arrangement(deployment=Deployment(runtime=runtime, device="l4", weights="bf16", tp=2))
        services = yaml.safe_load(dynamo_yaml("org/m", (where, 1), (where, 2)))["spec"]["services"]
        roles = [
            each["extraPodSpec"]["mainContainer"]["args"][-1] for name, each in services.items() if "Worker" in name
        ]
        assert roles == ["prefill", "decode"]
    assert not dynamo_yaml(
        "m", (Arrangement(deployment=Deployment(device="a", runtime="mlx", weights="int4")), 1), (copied, 1)
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"classes": (RequestClass(prompt_tokens=60_000),)}, r"prompt: 60,000 \+ 128 tokens exceed the context"),
        (
            {"speculation": (Speculation(drafted=2, acceptance=0.5, draft="gpt2"),)},
            r"draft: gpt2 has a vocabulary of 50,257 tokens",
        ),
        ({"model": "bert-base-uncased", "fleets": ("apart",)}, "fleets: .* does not generate text"),
    ],
)
def test_what_cannot_be_asked_of_a_model_is_said_once(fields: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        planned(asked(**fields))
