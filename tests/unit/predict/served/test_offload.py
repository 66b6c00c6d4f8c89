"""A model that card and host share, against pencil arithmetic."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from chipwise import api
from chipwise.errors import InputError, SpecError, Unsupported
from chipwise.predict.served import offload
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.offload import CROSSING_S, Divided, Split, divided, host_of
from chipwise.predict.served.request import Request

TIMES = offload.TokenTimes(card_s=1e-3, host_s=2e-3, crossed_s=3e-3)
PARTS = Divided(depth=4, plain=400.0, experts=800.0, head=100.0, cache=40.0, fixed=10.0)
DENSE = Divided(depth=4, plain=400.0, experts=0.0, head=100.0, cache=40.0, fixed=10.0)


def test_bytes_are_divided_by_layers_and_experts() -> None:
    """Two layers of four: 200 + 400 of weights and 20 of cache; all but three layers' experts: 400 + 200 + 100 + 40."""
    assert sum(PARTS.on_card(Split(layers=2)).values()) == 200 + 400 + 20 + 10
    assert sum(PARTS.on_card(Split(layers=5, cpu_experts=3)).values()) == 400 + 200 + 100 + 40 + 10
    assert PARTS.on_host(Split(layers=5, cpu_experts=3)) == 600
    assert PARTS.on_host(Split(layers=2, cpu_experts=2)) == 700, "half of all layers, experts included, and the head"
    assert PARTS.on_host(Split(layers=5)) == 0


@pytest.mark.parametrize(
    ("parts", "capacity", "split"),
    [
        (PARTS, 1350.0, Split(layers=5)),
        (PARTS, 1349.0, Split(layers=5, cpu_experts=1)),
        (PARTS, 550.0, Split(layers=5, cpu_experts=4)),
        (PARTS, 340.0, Split(layers=3, cpu_experts=4)),
        (DENSE, 449.0, Split(layers=3)),
        (DENSE, 450.0, Split(layers=4)),
        (DENSE, 5.0, Split(layers=0)),
    ],
)
def test_experts_leave_the_card_before_layers_do(parts: Divided, capacity: float, split: Split) -> None:
    assert parts.largest(capacity) == split


ASKED = Request(
    model="qwen3-8b", deployment=Deployment(device="rtx-4070", weights="q8_0"), prompt_tokens=512, new_tokens=16
)


def test_seconds_are_those_of_card_and_host_and_of_what_crosses() -> None:
    card = divided(ASKED, gpu_layers=37, host="core-i7-13700k")
    host = divided(ASKED, gpu_layers=0, host="core-i7-13700k")
    half = divided(ASKED, gpu_layers=18, host="core-i7-13700k")
    alone = api.estimate("qwen3-8b", device="rtx-4070", weights="q8_0", prompt=512, new=16, hypothetical=True)
    assert card.tpot_s == pytest.approx(alone.tpot_s, abs=3e-5)
    assert card.tpot_s < half.tpot_s < host.tpot_s
    quarter = divided(ASKED, gpu_layers=9, host="core-i7-13700k")
    steps = (quarter.tpot_s - half.tpot_s, divided(ASKED, gpu_layers=27, host="core-i7-13700k").tpot_s)
    assert steps[0] == pytest.approx(half.tpot_s - steps[1], rel=1e-6), "every layer costs the same"
    assert CROSSING_S < 1e-4


def test_a_host_with_less_bandwidth_is_slower_and_an_unnamed_one_less_sure() -> None:
    slow, fast = (divided(ASKED, gpu_layers=18, host=each) for each in ("40 GB/s", "80 GB/s"))
    assert 1.5 < slow.tpot_s / fast.tpot_s < 2.0
    named, guessed = (divided(ASKED, gpu_layers=18, host=each) for each in ("core-i7-13700k", None))
    assert guessed.tpot_s == named.tpot_s
    widths = [found.metrics["tpot_p50"].log_halfwidth for found in (named, guessed)]
    assert widths[0] is not None
    assert widths[1] is not None
    assert widths[1] > widths[0] + 0.4
    assert any("the host is assumed" in note for note in guessed.notes)
    assert not any("the host is assumed" in note for note in named.notes)


def test_what_does_not_fit_names_the_division() -> None:
    found = api.estimate("qwen3-32b", device="rtx-4070", hypothetical=True)
    assert "of 64 layers on the card, the rest on its host" in found.does_not_fit
    auto = api.estimate("qwen3-32b", device="rtx-4070", gpu_layers="auto")
    assert not auto.does_not_fit
    assert auto.peak_memory_bytes <= 12 * 2**30
    assert "fit" in api.estimate("qwen3-32b", device="rtx-4070", gpu_layers=64).does_not_fit


PUBLISHED = (
    ("google/gemma-3-12b-it", {"gpu_layers": 44}, 26.1),
    ("Qwen/Qwen3-14B", {"gpu_layers": 32}, 16.9),
    ("microsoft/phi-4", {"gpu_layers": 32}, 16.7),
    ("openai/gpt-oss-20b", {"cpu_experts": 12}, 36.4),
    ("mistral-small-24b", {"gpu_layers": 16}, 5.2),
    ("deepseek-ai/DeepSeek-V2-Lite", {"cpu_experts": 16}, 49.6),
    ("google/gemma-2-9b-it", {"gpu_layers": 36}, 23.7),
    ("Qwen/Qwen2.5-14B", {"gpu_layers": 42}, 20.8),
    ("Qwen/Qwen3-30B-A3B", {"cpu_experts": 36}, 36.7),
)  # tokens/s in llama.cpp, Q4_K_M (gpt-oss: MXFP4), RTX 2080 and i9-10900X: AlexsJones/llmfit #755, #774, #775, #778


@pytest.mark.parametrize(("model", "split", "measured"), PUBLISHED)
def test_published_runs_lie_inside_the_interval(model: str, split: dict[str, int], measured: float) -> None:
    weights = None if "oss" in model else "q4_k_m"
    asked = Request(
        model=model,
        deployment=Deployment(device="rtx-2080", runtime="llama.cpp", weights=weights),
        prompt_tokens=64,
        new_tokens=256,
    )
    rate = divided(asked, host="core-i9-10940x", **split).metrics["decode_tokens_per_s"]
    assert rate.low is not None
    assert rate.high is not None
    assert rate.low <= measured <= rate.high
    assert 0.9 < rate.value / measured < 1.6


def test_models_that_card_and_host_share_are_listed_with_what_the_card_holds() -> None:
    alone = {each.name for each in api.models_on("rtx-4070", "Qwen/Qwen3-")}
    shared = {each.name: each for each in api.models_on("rtx-4070", "Qwen/Qwen3-", host="core-i7-13700k")}
    assert {name for name, each in shared.items() if not each.on_card} == alone
    assert "of 64 layers on the card" in shared["Qwen/Qwen3-32B"].on_card
    assert "except the experts of" in shared["Qwen/Qwen3-30B-A3B"].on_card
    one = divided(
        Request(model="Qwen/Qwen3-32B", deployment=Deployment(device="rtx-4070"), prompt_tokens=512),
        host="core-i7-13700k",
    )
    assert shared["Qwen/Qwen3-32B"].decode_tokens_per_s == pytest.approx(1 / one.tpot_s)


def test_a_host_holds_what_it_keeps() -> None:
    """DeepSeek-R1 in four bits is some 400 GB, more than the 192 GB of a desktop's board."""
    found = divided(
        Request(
            model="deepseek-ai/DeepSeek-R1",
            deployment=Deployment(device="rtx-4090", runtime="llama.cpp", weights="q4_k_m"),
        )
    )
    assert "has 192 GB (core-i7-13700k)" in found.does_not_fit


def test_what_cannot_be_divided_is_refused() -> None:
    for device, runtime in (("apple-m4-max", None), ("h100-sxm", "vllm"), ("core-i7-13700k", None)):
        with pytest.raises(Unsupported, match="one GPU that has its own memory"):
            api.estimate("qwen3-8b", device=device, runtime=runtime, gpu_layers=4)
    with pytest.raises(SpecError, match="from 0 to 37"):
        api.estimate("qwen3-8b", device="rtx-4070", gpu_layers=99)
    with pytest.raises(InputError, match="--host must be a processor"):
        host_of("rtx-4070")


def timed(*kernels: tuple[str, str, float], ttft_s: float = 0.0) -> Any:
    """An estimate of so many seconds for each kernel of the prompt."""
    costs = tuple(SimpleNamespace(place=place, kind=kind, latency_s=seconds) for place, kind, seconds in kernels)
    return SimpleNamespace(prefill=costs, ttft_s=ttft_s)


@pytest.mark.parametrize(
    ("tokens", "split", "seconds"),
    [
        # half of the layers and of their experts are sent, 600 of 1200: once for a micro-batch, twice for two
        (offload.UBATCH, Split(layers=2), 7.0 + 600 / (offload.PAGED_SHARE * 100)),
        (offload.UBATCH + 1, Split(layers=2), 7.0 + 2 * 600 / (offload.PAGED_SHARE * 100)),
        # the head on the card or on the host is never sent; the experts of one layer are, 200
        (offload.UBATCH, Split(layers=4), 7.0),
        (offload.UBATCH, Split(layers=5), 7.0),
        (offload.UBATCH, Split(layers=5, cpu_experts=1), 7.0 + 200 / (offload.PAGED_SHARE * 100)),
        (offload.LEAST_SENT, Split(layers=0), 7.0 + 1200 / (offload.PAGED_SHARE * 100)),
        # a short prompt is computed where the weights are: 1, 2 and 4 s on the card, 10, 20 and 40 on the host
        (offload.LEAST_SENT - 1, Split(layers=5), 1.0 + 2.0 + 4.0),
        (offload.LEAST_SENT - 1, Split(layers=4), 1.0 + 2.0 + 40.0),
        (offload.LEAST_SENT - 1, Split(layers=2), (1.0 + 10.0 + 2.0 + 20.0) / 2 + 40.0),
        (offload.LEAST_SENT - 1, Split(layers=5, cpu_experts=3), 1.0 + 2.0 / 4 + 20.0 * 3 / 4 + 4.0),
        (offload.LEAST_SENT - 1, Split(layers=0), 70.0),
    ],
)
def test_seconds_of_a_prompt_by_hand(tokens: int, split: Split, seconds: float) -> None:
    """A link of 100 bytes a second; a long prompt runs on the card, to which the host's weights are sent."""
    card = timed(("layers.up", "matmul", 1.0), ("layers.moe", "experts", 2.0), ("head", "matmul", 4.0), ttft_s=7.0)
    other = timed(("layers.up", "matmul", 10.0), ("layers.moe", "experts", 20.0), ("head", "matmul", 40.0))
    device: Any = SimpleNamespace(link=lambda name: SimpleNamespace(bandwidth=SimpleNamespace(number=100.0)))
    assert offload._prompt_s(tokens, PARTS, split, card, other, device) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("parts", "split", "crossings", "words"),
    [
        (PARTS, Split(layers=5), 1, "all layers on the card"),
        (PARTS, Split(layers=4), 2, "all layers on the card"),
        (PARTS, Split(layers=5, cpu_experts=3), 7, "all layers on the card except the experts of 3"),
        (PARTS, Split(layers=2, cpu_experts=3), 4, "2 of 4 layers on the card except the experts of 1"),
        (PARTS, Split(layers=2, cpu_experts=2), 2, "2 of 4 layers on the card"),
        (PARTS, Split(layers=0), 0, "0 of 4 layers on the card"),
        (DENSE, Split(layers=5, cpu_experts=3), 1, "all layers on the card"),
        (DENSE, Split(layers=3), 2, "3 of 4 layers on the card"),
    ],
)
def test_what_crosses_for_a_token_and_how_a_division_is_said(
    parts: Divided, split: Split, crossings: int, words: str
) -> None:
    """The answer comes back once, once more where layers change sides, twice for each layer whose experts are apart."""
    assert offload._crossings(parts, split) == crossings
    assert offload.said(split, parts).partition(", the rest")[0] == words


def test_what_is_said_of_the_host() -> None:
    notes = list(offload._notes(PARTS, Split(layers=2), host_of("60 GB/s"), TIMES, named="60 GB/s"))
    assert notes[0] == "llama.cpp -ngl 2; a token takes 1 ms on the card, 2 ms on the host, 3 ms between them"
    assert "keeps 700 B" in notes[1]
    assert len(notes) == 2
    guessed = list(offload._notes(PARTS, Split(layers=5, cpu_experts=1), host_of(None), TIMES, named=None))
    assert guessed[0].startswith("llama.cpp -ngl 5 --n-cpu-moe 1; ")
    assert len(guessed) == 3
