"""One arrangement under load, by the public function: what more of something does, and bad input."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

import chipwise
from chipwise.design.fleet.arrangements import Arrangement
from chipwise.design.fleet.serving_commands import commands_of, dynamo_yaml
from chipwise.errors import DoesNotFit, SpecError
from chipwise.predict.load.policy import Policy, Speculation
from chipwise.predict.served.deployment import Deployment

MODEL = "Qwen/Qwen3-0.6B"
FEW = {"device": "l4", "requests": 150, "seeds": 1, "prompt": 300, "new": 60}


def test_one_client_meets_what_the_estimate_says() -> None:
    found = chipwise.simulate(MODEL, clients=1, **(FEW | {"requests": 5}))
    estimate = chipwise.estimate(MODEL, device="l4", prompt=300, new=60)
    assert found.times["ttft_mean"].value == pytest.approx(estimate.ttft_s, rel=0.01)
    assert found.times["tpot_mean"].value == pytest.approx(estimate.tpot_s, rel=0.01)


def test_two_replicas_serve_more_and_cost_twice_as_much() -> None:
    one, two = (chipwise.simulate(MODEL, rate=10, replicas=n, **FEW) for n in (1, 2))
    assert two.saturation_per_s == pytest.approx(2 * one.saturation_per_s)
    assert two.usd_per_h == pytest.approx(2 * one.usd_per_h)
    assert two.times["tpot_p99"].value < one.times["tpot_p99"].value


def test_more_than_can_be_served_is_said() -> None:
    found = chipwise.simulate(MODEL, rate=5000, **FEW)
    assert "exceed the" in found.notes[0]
    assert found.times["ttft_p99"].value > found.times["ttft_p50"].value


def test_speculation_pays_where_drafts_are_accepted() -> None:
    settings = FEW | {"rate": 0.5, "requests": 30}
    plain = chipwise.simulate(MODEL, **settings).times["tpot_mean"].value
    good, bad = (
        chipwise.simulate(MODEL, drafted=4, acceptance=share, **settings).times["tpot_mean"].value
        for share in (0.9, 0.0)
    )
    assert good < 0.5 * plain
    assert bad >= plain


def test_prefill_apart_keeps_prompts_out_of_decoding() -> None:
    settings = FEW | {"rate": 8, "prompt": 4000, "requests": 120}
    mixed = chipwise.simulate(MODEL, replicas=2, **settings)
    apart = chipwise.simulate(MODEL, decode_device="l4", link="50 GB/s", **settings)
    assert apart.times["tpot_p99"].value < mixed.times["tpot_p99"].value
    assert apart.bottleneck.startswith("prefill")
    assert "--is-prefill-worker" in apart.deployment
    assert not mixed.deployment


def test_shared_beginnings_are_read_once() -> None:
    apart, shared = (
        chipwise.simulate(MODEL, rate=2, shared_tokens=tokens, **(FEW | {"prompt": 2000})) for tokens in (0, 1900)
    )
    assert shared.times["ttft_p50"].value < 0.6 * apart.times["ttft_p50"].value


def test_packing_an_encoders_steps_by_tokens_serves_more_at_equal_p99() -> None:
    """Texts of very different lengths: padded to the longest, most of what is computed is padding."""
    settings = {"device": "a100-sxm-80gb", "prompt": 120, "spread": 1.0, "requests": 1500, "seeds": 1}
    model = "google-bert/bert-large-uncased"
    padded = chipwise.simulate(model, rate=700, batching="requests", **settings)
    packed = chipwise.simulate(model, rate=1400, batching="tokens", max_tokens=600, **settings)
    assert packed.times["ttft_p99"].value <= padded.times["ttft_p99"].value


def write_trace(tmp_path: Path, rows: list[dict[str, object]]) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


GOOD = {"arrival_s": 0.0, "prompt_tokens": 100, "new_tokens": 10}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"arrival_s": 1.0, "prompt_tokens": 100}, "request 2: lacks new_tokens"),
        ({"prompt_tokens": 100, "new_tokens": 1}, "request 2: lacks arrival_s"),
        (GOOD | {"arrival_s": -1.0}, "request 2: arrives at a negative time, -1 s"),
        (GOOD | {"arrival_s": "soon"}, "request 2: arrival_s must be a number, not 'soon'"),
        (GOOD | {"prompt_tokens": 0}, "request 2: has a prompt of 0 tokens"),
        (GOOD | {"new_tokens": 2.5}, "request 2: new_tokens must be a whole number"),
        (GOOD | {"prompt_tokens": 10**6}, r"request 2: has 1,000,000 \+ 10 tokens, but the model's context is"),
    ],
)
def test_what_is_wrong_in_a_trace_is_named(tmp_path: Path, row: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        chipwise.simulate(MODEL, device="l4", trace=write_trace(tmp_path, [GOOD, row]))


def test_traces_of_other_tools_are_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("Timestamp,Request tokens,Response tokens\n0,100,10\n1,200,20\n")
    found = chipwise.simulate(MODEL, device="l4", trace=path)
    assert found.requests == 2
    path.write_text("")
    with pytest.raises(SpecError, match="holds no requests"):
        chipwise.simulate(MODEL, device="l4", trace=path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "set exactly one of rate, clients and trace"),
        ({"rate": 1, "clients": 1}, "set exactly one of rate, clients and trace"),
        ({"rate": "soon"}, "rate: must be a rate"),
        ({"rate": 1, "requests": 10**9}, "requests: must be from 1 to 2,000,000"),
        ({"rate": 1, "prompt": 10**6}, r"exceed the context of"),
        ({"rate": 1, "burstiness": -1.0}, "burstiness"),
        ({"rate": 1, "drafted": 100}, "drafted: must be from 1 to 64"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        chipwise.simulate(MODEL, device="l4", **arguments)


def test_a_model_that_does_not_fit_says_what_would() -> None:
    with pytest.raises(DoesNotFit, match="would fit"):
        chipwise.simulate("meta-llama/Llama-3.1-70B-Instruct", device="l4", rate=1)


def test_progress_is_told_and_memory_is_bounded() -> None:
    told: list[tuple[int, int]] = []
    chipwise.simulate(
        MODEL, device="l4", rate=1e5, requests=60_000, prompt=10, new=1, seeds=1,
        on_progress=lambda done, total: told.append((done, total)),
    )  # fmt: skip
    assert told[-1] == (180_000, 180_000)
    assert len(told) > 6
    assert all(a <= b for (a, _), (b, _) in itertools.pairwise(told))


def test_commands_serve_the_arrangement() -> None:
    where = Arrangement(deployment=Deployment(device="l40s", runtime="vllm", weights="fp8", tp=2))
    (line,) = commands_of("org/m", where, 3, Policy(), 1750)
    assert line.startswith("vllm serve org/m --max-model-len 2048 --tensor-parallel-size 2 --quantization fp8")
    assert "start 3 of these behind a router" in line
    for runtime, start in (("sglang", "python -m sglang"), ("trtllm", "trtllm-serve")):
        other = Arrangement(deployment=Deployment(device="l40s", runtime=runtime, weights="bf16"))
        assert commands_of("org/m", other, 1, Policy(), 100)[0].startswith(start)
    import yaml

    held = yaml.safe_load(dynamo_yaml("org/m", (where, 2), (where, 1)))
    services = held["spec"]["services"]
    assert services["VllmPrefillWorker"]["replicas"] == 2
    assert "--is-prefill-worker" in services["VllmPrefillWorker"]["extraPodSpec"]["mainContainer"]["args"]
    assert np.isclose(services["VllmDecodeWorker"]["replicas"], 1)


@pytest.mark.parametrize(
    ("named", "served"),
    [
        ("qwen3-32b", "Qwen/Qwen3-32B"),
        ("qwen/qwen3-32b", "Qwen/Qwen3-32B"),
        ("Qwen/Qwen3-32B", "Qwen/Qwen3-32B"),
        ("https://huggingface.co/Qwen/Qwen3-32B", "Qwen/Qwen3-32B"),
        ("llama-3.1-8b-instruct", "meta-llama/Llama-3.1-8B-instruct"),  # other weights than the base model's
        ("RedHatAI/Qwen3-32B-FP8-dynamic", "RedHatAI/Qwen3-32B-FP8-dynamic"),
        ("org/of-my-own", "org/of-my-own"),
    ],
)
def test_engines_get_the_id_that_they_can_load(named: str, served: str) -> None:
    """Hugging Face ids are found in any case; a nickname is none."""
    starts = {
        "vllm": f"vllm serve {served} ", "sglang": f"python -m sglang.launch_server --model-path {served} ",
        "trtllm": f"trtllm-serve {served} ", "llama.cpp": f"llama-server -m {served.rpartition('/')[2]}.gguf ",
    }  # fmt: skip
    for runtime, start in starts.items():
        where = Arrangement(deployment=Deployment(device="l40s", runtime=runtime, weights="bf16"))
        assert commands_of(named, where, 1, Policy(), 100)[0].startswith(start)
    deployed = dynamo_yaml(
        named,
        (where := Arrangement(deployment=Deployment(device="l40s", runtime="vllm", weights="bf16")), 1),
        (where, 1),
    )
    assert f'"--model", "{served}"' in deployed


def test_no_engine_is_asked_for_more_positions_than_the_model_has() -> None:
    """BERT has 512; requests of 200 tokens would round up to 1,024, which vLLM refuses."""
    found = chipwise.simulate("bert-large-uncased", device="l4", rate=2, prompt=200, requests=50, seeds=1)
    assert found.commands[0].startswith("vllm serve google-bert/bert-large-uncased --max-model-len 512 ")


def test_a_folder_is_served_by_its_path_and_drafts_by_their_id(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    drafts = Speculation(drafted=4, acceptance=0.7, draft="qwen3-0.6b")
    for runtime in ("vllm", "sglang", "trtllm"):
        where = Arrangement(deployment=Deployment(device="l40s", runtime=runtime, weights="bf16"), speculation=drafts)
        for named in (tmp_path, tmp_path / "config.json"):
            line = commands_of(str(named), where, 1, Policy(), 100)[0]
            assert f" {tmp_path} " in line
            assert "Qwen/Qwen3-0.6B" in line


def test_what_a_name_was_taken_for_is_said() -> None:
    """One of eight chips that are rented together costs all eight: 55.04 dollars an hour."""
    found = chipwise.simulate(MODEL, rate=1, **(FEW | {"device": "p5.48xlarge", "requests": 50}))
    assert "p5.48xlarge: 8 x h100-sxm, rented together, $55.04/h" in found.notes
    assert found.usd_per_h == pytest.approx(55.04)


def test_a_deployment_and_a_load_as_values_are_the_same_question_as_in_words() -> None:
    in_words = chipwise.simulate(MODEL, rate=4, **FEW)
    deployment = chipwise.Deployment(device="l4")
    load = chipwise.OfferedLoad(rate=4, requests=150, seeds=1, prompt=300, new=60)
    assert chipwise.simulate(MODEL, deployment, load).to_dict() == in_words.to_dict()
    (drawn,) = load.loads(chipwise.resolve(MODEL))
    assert chipwise.simulate(MODEL, deployment, drawn).requests == 150


@pytest.mark.parametrize(("name", "value"), [("tp", 1), ("device", "l4"), ("rate", 4), ("prompt", 1024), ("seed", 0)])
def test_what_a_value_states_is_refused_beside_it(name: str, value: object) -> None:
    deployment, load = chipwise.Deployment(device="l4"), chipwise.OfferedLoad(rate=4)
    with pytest.raises(SpecError, match=f"{name}: is already set in the (deployment|load)"):
        chipwise.simulate(MODEL, deployment, load, **{name: value})
