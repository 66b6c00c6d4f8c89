"""The figures of docs/notes/claims.md, in its order: `python benchmarks/claims.py`, or some topics by name.

Analytic figures are counts and published facts, predicted ones are the fitted cost model's for a device that need not
be here; what was measured is read from files that measuring scripts wrote. Nothing is timed by this script. Topics
about chips, kernels and layers are in `claims_kernels.py`.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import chipwise
from chipwise.core.statistics import kendall_tau
from chipwise.hardware import datasheet
from chipwise.model.arch.arch import ArchSpec, uniform
from chipwise.model.ops.matmul import GroupedMatmul
from chipwise.predict.explain.notes import shared_context
from chipwise.predict.explain.saturation import token_curve
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.plan import Plan
from chipwise.predict.served.request import Request, resolved
from chipwise.predict.served.training_step import training_step
from claims_kernels import (
    A100,
    activations,
    alignment,
    attention_traffic,
    case,
    formats,
    hierarchy,
    intensity,
    moved,
    norm_place,
    online_softmax,
    phases,
    product,
    rows,
    say,
    seconds,
    shares,
    tensor_cores,
    vocabulary,
    weights,
)
from claims_ranking import candidates


def quantisation() -> None:
    """Formats of weights and cache by device."""
    for device, kinds in (
        (A100, ("fp16", "int8", "int4")),
        ("rtx-4090", ("fp16", "fp8", "int4")),
        ("h100-sxm", ("bf16", "fp8")),
    ):
        for dtype in kinds:
            one, many = (chipwise.estimate("llama-3-8b", device=device, weights=dtype, batch=b) for b in (1, 64))
            held = one.memory_bytes["weights"] / 1e9
            say(
                f"llama-3-8b, {device}, {dtype}: GB, TPOT and TTFT in ms, TPOT of 64",
                held,
                one.tpot_s * 1e3,
                one.ttft_s * 1e3,
                many.tpot_s * 1e3,
            )
    for cache in ("fp16", "int8"):
        cost = chipwise.estimate("llama-3-8b", device=A100, kv=cache, batch=16, prompt=8192)
        say(
            f"cache of 16 x 8,192 tokens in {cache}: GB, TPOT in ms",
            cost.memory_bytes["cache"] / 1e9,
            cost.tpot_s * 1e3,
        )
    measured = rows("claims-cpu.csv")
    for dtype in ("fp32", "int8", "int4"):
        runs = [row for row in measured if row["weights"] == dtype]
        tpot, ttft = (min(float(row[name]) for row in runs) * 1e3 for name in ("tpot_p10_s", "ttft_p10_s"))
        peak = min(float(row["peak_memory_bytes"]) for row in runs) / 1e6
        say(f"gpt2 on an AMD EPYC, one thread, {dtype}, measured: TPOT and TTFT of 32 in ms, peak MB", tpot, ttft, peak)


def weight_sharing() -> None:
    """Perplexity of a model whose thirty layers share one layer's weights."""
    arch = chipwise.resolve("smollm2-135m")
    shared = replace(
        arch, layers=tuple(replace(layer, shares=0) if i else layer for i, layer in enumerate(arch.layers))
    )
    for name, each in (("own weights", arch), ("shared", shared)):
        cost = chipwise.estimate(each, device=A100)
        say(
            f"{name}: M parameters, MB of weights, of cache",
            each.parameters() / 1e6,
            cost.memory_bytes["weights"] / 1e6,
            cost.memory_bytes["cache"] / 1e6,
        )
        say("  TPOT in ms, MB through memory a step", cost.tpot_s * 1e3, moved(cost.decode) / 1e6)


def checkpointing() -> None:
    """Memory that training needs, by purpose."""
    say("GB of states, 70e9 parameters at 16 bytes", 70e9 * 16 / 1e9)
    layer = 34 * 4096 * 8192
    say(
        "GB of activations, 80 layers of 8,192, 4,096 tokens: kept, recomputed",
        80 * layer / 1e9,
        (80 * 2 * 4096 * 8192 + layer) / 1e9,
    )
    for model, tp in (("llama-2-70b", 8), ("llama-2-7b", 8)):
        plan = Plan(tp=tp, pp=4 if model == "llama-2-70b" else 1)
        request = Request(
            model=model, deployment=Deployment(device=A100, runtime="torch-compile", tp=plan.tp, pp=plan.pp)
        )
        setting, sheet = resolved(request).setting, datasheet.load(A100)
        kept, again = (training_step(setting, sheet, batch=1, tokens=4096, checkpoint=c) for c in (False, True))
        say(
            f"{model} on {plan.devices} A100: GB a device of activations, kept and recomputed",
            kept.memory_bytes["activations"] / 1e9,
            again.memory_bytes["activations"] / 1e9,
        )
        say(
            "  times less, seconds of a step times more",
            kept.memory_bytes["activations"] / again.memory_bytes["activations"],
            again.step.value / kept.step.value,
        )


def percentiles() -> None:
    """P99 relative to the median, and the speed that a small loss of quality buys; measured on a CPU."""
    found = rows("winner-vs-baseline-*.csv")
    ratios = [float(row["latency_p99_s"]) / float(row["latency_p50_s"]) for row in found]
    say(
        f"P99 over P50 of {len(found)} measurements: least, median, largest",
        min(ratios),
        statistics.median(ratios),
        max(ratios),
    )
    for column in ("bits_per_byte", "latency_p50_s"):
        mean = {
            who: statistics.mean(float(row[column]) for row in found if row["contender"] == who)
            for who in ("winner", "baseline")
        }
        say(f"winner over baseline, {column}", mean["winner"] / mean["baseline"])
    errors = [
        abs(math.log(float(row["predicted_s"]) / float(row["measured_s"])))
        for row in rows("predicted-vs-measured-*.csv")
    ]
    say(
        "predicted against measured: median and worst factor",
        math.exp(statistics.median(errors)),
        math.exp(max(errors)),
    )


def fusion() -> None:
    """Gain from fusing several kernels into one."""
    for runtime in ("torch-eager", "torch-compile", "vllm"):
        cost = chipwise.estimate("llama-3-8b", device=A100, runtime=runtime)
        say(
            f"llama-3-8b, {runtime}: kernels a step, GB of prefill, TPOT and TTFT in ms",
            sum(c.count for c in cost.decode),
            moved(cost.prefill) / 1e9,
            cost.tpot_s * 1e3,
            cost.ttft_s * 1e3,
        )
    for m in (1, 1024):
        apart = seconds(product(m, 4096, 4096)) + 2 * seconds(product(m, 4096, 1024))
        say(f"q, k, v of {m} rows apart over together: seconds", apart / seconds(product(m, 4096, 6144)))
    grouped = GroupedMatmul(tokens=256, groups=64, k=2048, n=1024, weights="bf16", activations="bf16")
    say(
        "64 products of 4 rows over one grouped product: seconds",
        64 * seconds(product(4, 2048, 1024)) / seconds(grouped),
    )


def utilisation() -> None:
    """MFU by phase and batch."""
    for batch, prompt in ((1, 1024), (64, 1024), (256, 256)):
        cost = chipwise.estimate("llama-3-8b", device="h100-sxm", batch=batch, prompt=prompt)
        say(f"llama-3-8b, H100, {batch} streams: MFU of prefill, of decode", cost.mfu["prefill"], cost.mfu["decode"])


def shared_contexts() -> None:
    """Cost of many candidates that share one context."""
    curve = shared_context(case("llama-3-8b"))
    assert curve is not None
    for i, count in enumerate(curve.candidates):
        say(
            f"{count} candidates: ms shared, ms apart, times less",
            curve.shared_s[i] * 1e3,
            curve.separate_s[i] * 1e3,
            curve.saving(i),
        )


def sharding() -> None:
    """A model divided over several cards."""
    for tp in (2, 4, 8):
        cost = chipwise.estimate("llama-2-70b", device=A100, tp=tp)
        say(
            f"llama-2-70b on {tp} A100: TPOT in ms, USD per 1,000 tokens",
            cost.tpot_s * 1e3,
            cost.metrics["usd_per_1k_tokens"].value,
        )
        say("  time by bound", shares(cost.decode))
    say(
        "A100s for 175e9 and 450e9 parameters in fp16, at least",
        math.ceil(175e9 * 2 / 80e9),
        math.ceil(450e9 * 2 / 80e9),
    )


def saturation() -> None:
    """Tokens of a pass at which an A100 is busy."""
    say("ridge of bf16 products in tokens", 312e12 / 2039e9)
    for model in ("bert-large-uncased", "ModernBERT-large", "qwen3-0.6b", "llama-3-8b"):
        curve = token_curve(case(model), most=2048)
        assert curve is not None
        say(f"{model}: tokens", float(curve.saturation or math.nan))


def token_batching() -> None:
    """Texts an A100 embeds at a P99 of 25 ms: steps of 32 padded texts against steps of so many tokens, packed."""
    settings: dict[str, Any] = {"device": A100, "prompt": 120, "spread": 1.0, "requests": 1500, "seeds": 1}
    found = {}
    for name, batching, tokens in (
        ("32 padded", "requests", None),
        ("600 tokens", "tokens", 600),
        ("4,096 tokens", "tokens", 4096),
    ):
        low, high = 50.0, 2000.0
        while high / low > 1.02:
            middle = (low * high) ** 0.5
            served = chipwise.simulate(
                "bert-large-uncased", rate=middle, batching=batching, max_tokens=tokens, **settings
            )
            low, high = (middle, high) if served.times["ttft_p99"].value <= 0.025 else (low, middle)
        found[name] = low
        say(f"bert-large-uncased, 120 tokens in the mean, steps of {name}: texts/s at a P99 of 25 ms", low)
    say("packed by tokens over padded by requests", found["4,096 tokens"] / found["32 padded"])


def equal_parameters() -> dict[str, ArchSpec]:
    """154 M parameters in layers, three shapes."""
    base: dict[str, Any] = {"vocab_size": 32_000, "max_tokens": 4096}
    return {
        "48 x 512": uniform(**base, d_model=512, depth=48, heads=8, ffn_width=1408),
        "12 x 1,024": uniform(**base, d_model=1024, depth=12, heads=16, ffn_width=2816),
        "3 x 2,048": uniform(**base, d_model=2048, depth=3, heads=32, ffn_width=5632),
    }


def shape() -> None:
    """Layers of equal parameters and FLOPs but different proportions, on several devices."""
    for device in (
        "h100-sxm",
        A100,
        "rtx-4090",
        "mi300x",
        "tpu-v4",
        "v100-sxm",
        "jetson-orin-nano",
        "epyc-9755",
        "apple-m2",
    ):
        dtype = "bf16" if "bf16" in datasheet.load(device).peak_flops_per_s else "fp16"
        found = [chipwise.estimate(arch, device=device, weights=dtype) for arch in equal_parameters().values()]
        say(f"{device}: TPOT in ms of {' | '.join(equal_parameters())}", *(cost.tpot_s * 1e3 for cost in found))
    low, high = (chipwise.estimate("llama-3-8b", device=A100, batch=b, prompt=256) for b in (1, 256))
    say("llama-3-8b, A100: MFU of 256 streams over 1", high.mfu["decode"] / low.mfu["decode"])


def transfer() -> None:
    """Whether devices rank architectures in the same order, and whether FLOPs predict the order."""
    specs = [
        uniform(vocab_size=32_000, max_tokens=4096, d_model=width, depth=depth, heads=width // 64, ffn_width=4 * width)
        for width in (256, 512, 1024, 2048)
        for depth in (2, 4, 8, 16, 32)
    ]
    flops, tpot = [], {}
    for device in (A100, "h100-sxm", "rtx-4090", "jetson-orin-nano", "snapdragon-8-gen-3", "apple-m2"):
        dtype = "bf16" if "bf16" in datasheet.load(device).peak_flops_per_s else "fp16"
        costs = [chipwise.estimate(arch, device=device, weights=dtype) for arch in specs]
        flops = [float(sum(op.work.flops * op.count for op in cost.decode)) for cost in costs]
        tpot[device] = [cost.tpot_s for cost in costs]
        say(
            f"{device}: tau of TPOT with FLOPs, with the A100's TPOT",
            kendall_tau(flops, tpot[device]),
            kendall_tau(tpot[A100], tpot[device]),
        )
    for row in rows("multi-device.csv")[:2]:
        say(
            f"winner of a search for {row['search']}: worst share of a limit on five devices",
            float(row["winner_worst_share"]),
        )


def cache_heads() -> None:
    """Multi-head and grouped-query attention at long context."""
    for model in ("llama-2-7b", "llama-3-8b"):
        for prompt in (1024, 32_768):
            cost = chipwise.estimate(model, device=A100, prompt=prompt)
            say(
                f"{model}, {prompt} tokens: TPOT in ms, GB of cache",
                cost.tpot_s * 1e3,
                cost.memory_bytes["cache"] / 1e9,
            )


def price() -> None:
    """US dollars per 1,000 new tokens at list prices."""
    for model, device, tp in (
        ("llama-3-8b", A100, 1),
        ("llama-3-8b", "h100-sxm", 1),
        ("llama-3-8b", "l4", 1),
        ("llama-2-70b", A100, 2),
        ("smollm2-135m", A100, 1),
    ):
        found = [
            chipwise.estimate(model, device=device, batch=b, tp=tp).metrics["usd_per_1k_tokens"].value for b in (1, 64)
        ]
        say(f"{model} on {tp} x {device}: USD per 1,000 tokens, 1 and 64 in flight", *found)
    one = chipwise.estimate("llama-2-70b", device=A100, tp=2).metrics["usd_per_1k_tokens"].value
    full = chipwise.estimate("llama-2-70b", device=A100, tp=2, batch=64).metrics["usd_per_1k_tokens"].value
    say("tokens of llama-2-70b on two A100 for 0.43 USD: one stream, 64", 430 / one, 430 / full)


def power() -> None:
    """Price of energy."""
    month = 150 * 24 * 30 / 1000
    say("kWh a month of 150 W, USD at 0.15 a kWh", month, month * 0.15)
    say("devices for 200,000 USD", 200_000 / (month * 0.15))
    cost = chipwise.estimate("llama-3-8b", device=A100)
    say("llama-3-8b, A100: J a token, one stream", cost.metrics["joules_per_token"].value)


def phone() -> None:
    """50 ms, 1.2 GB, 2 W on a phone."""
    say("GB that 76.8 GB/s streams in 50 ms", 76.8 * 0.05)
    say("mJ of 2 W in 50 ms, of 1.8 W in 35 ms", 2 * 50.0, 1.8 * 35)
    for depth, width in ((6, 256), (12, 1024)):
        arch = uniform(
            vocab_size=32_000,
            d_model=width,
            depth=depth,
            heads=width // 64,
            ffn_width=4 * width,
            gated=False,
            activation="gelu",
        )
        for dtype in ("fp16", "int8"):
            cost = chipwise.estimate(
                arch, device="snapdragon-8-gen-3", weights=dtype, prompt=256, new=64, runtime="llama.cpp"
            )
            say(
                f"{depth} x {width}, {dtype}: M parameters, TPOT and TTFT of 256 in ms, MB",
                arch.parameters() / 1e6,
                cost.tpot_s * 1e3,
                cost.ttft_s * 1e3,
                cost.peak_memory_bytes / 1e6,
            )
        if cost.notes:
            say("  energy", cost.notes[0].split(",")[0])


def strategies() -> None:
    """Search algorithms on HW-GPT-Bench s: share of the true hypervolume after 500 evaluations."""
    found: dict[str, list[float]] = {}
    for row in rows("search-hwgpt-s.csv"):
        if row["problem"] == "s2" and row["evaluations"] == "500":
            found.setdefault(row["strategy"], []).append(float(row["score"]))
    for name, scores in found.items():
        say(f"{name}, {len(scores)} seeds: mean, worst", statistics.mean(scores), min(scores))


def search_size() -> None:
    """Number of architectures in a space, and the cost of searches."""
    layer = 3 * 2 * 5 * 3  # heads, KV heads, activations, widths: layers may all differ
    total = sum(layer**depth for depth in range(6, 13))
    say("12 layers of 90 choices each: designs", float(total))
    say("GPU hours of 800 GPUs for 28 days, of 450 for 7", 800 * 28 * 24, 450 * 7 * 24)


TOPICS: dict[str, Callable[[], None]] = {
    "hierarchy": hierarchy, "weights": weights, "phases": phases, "intensity": intensity, "tensor-cores": tensor_cores,
    "formats": formats, "attention-traffic": attention_traffic, "online-softmax": online_softmax,
    "alignment": alignment, "vocabulary": vocabulary, "norm-place": norm_place, "activations": activations,
    "quantisation": quantisation, "cache-heads": cache_heads, "weight-sharing": weight_sharing,
    "checkpointing": checkpointing, "percentiles": percentiles, "fusion": fusion, "utilisation": utilisation,
    "shared-context": shared_contexts, "sharding": sharding, "saturation": saturation,
    "token-batching": token_batching, "shape": shape,
    "transfer": transfer, "price": price, "power": power, "phone": phone, "candidates": candidates,
    "search-size": search_size, "strategies": strategies,
}  # fmt: skip


def main() -> int:
    """Prints each topic's figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("topics", nargs="*", choices=[*TOPICS, []], help="all unless given")
    for name in parser.parse_args().topics or TOPICS:
        print(name)
        TOPICS[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
