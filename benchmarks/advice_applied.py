"""Advice, applied and measured: is what `chipwise explain` promises on this machine what happens?

Ten models, five of them deliberately bad. The first three pieces of advice for each are applied one by one; the changed
model is exported and measured in turns with the unchanged one. One row a piece of advice; the last lines say how often
the sign was right and the median error of the predicted ratio.

    OMP_NUM_THREADS=1 python benchmarks/advice_applied.py [--models N] [--rounds N] [--profile FILE] [--out FILE.csv]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from chipwise.core.csvfile import write_rows
from chipwise.core.errors import MeasurementError
from chipwise.explaining.advice import Advice
from chipwise.explaining.cases import calibrated_case
from chipwise.explaining.gains import advise
from chipwise.explaining.question import Case, Question
from chipwise.hardware.device import MachineProfile
from chipwise.ops import Workload
from chipwise.profile.calibrate import calibrate
from chipwise.profile.exporting import export_for
from chipwise.profile.harness import measure_alternately
from chipwise.profile.measurement import Measurement
from chipwise.spec import ArchSpec, Design, uniform

COLUMNS = ("model", "advice", "metric", "predicted_ratio", "low", "high", "measured_ratio", "verdict", "clean")
EACH = 3  # pieces of advice a model
RUNTIME, THREADS = "onnxruntime", 1
SHORT, LONG = Workload(prompt_tokens=64, new_tokens=64), Workload(prompt_tokens=960, new_tokens=64)


def models() -> list[tuple[str, ArchSpec, str, Workload]]:
    """Name, model, weight format, workload: a bad one and a usual one in turns, so that a short run sees both."""
    bad = [
        (
            "misaligned",
            uniform(vocab_size=8009, d_model=392, depth=8, heads=4, head_size=96, ffn_width=1037),
            "int8",
            SHORT,
        ),
        ("too deep", uniform(vocab_size=4096, d_model=192, depth=48, heads=3, ffn_width=512), "int8", SHORT),
        (
            "multi-head, long context",
            uniform(vocab_size=4096, d_model=512, depth=8, heads=16, ffn_width=1408),
            "int8",
            LONG,
        ),
        ("wrong precision", uniform(vocab_size=8192, d_model=512, depth=10, heads=8, ffn_width=1408), "fp32", SHORT),
        (
            "huge vocabulary",
            uniform(vocab_size=65_536, d_model=320, depth=6, heads=5, ffn_width=896, tie_embeddings=False),
            "fp32",
            SHORT,
        ),
    ]
    usual = [
        ("small", uniform(vocab_size=8192, d_model=256, depth=8, heads=4, ffn_width=704), "fp32", SHORT),
        (
            "grouped",
            uniform(vocab_size=16_384, d_model=256, depth=24, heads=4, kv_heads=2, ffn_width=704, tie_embeddings=False),
            "int8",
            SHORT,
        ),
        ("wide", uniform(vocab_size=16_384, d_model=768, depth=6, heads=12, kv_heads=4, ffn_width=2048), "fp32", SHORT),
        (
            "plain FFN",
            uniform(vocab_size=8192, d_model=384, depth=8, heads=6, ffn_width=1536, gated=False),
            "fp32",
            SHORT,
        ),
        (
            "long context",
            uniform(vocab_size=8192, d_model=384, depth=8, heads=6, kv_heads=2, ffn_width=1024),
            "fp32",
            LONG,
        ),
    ]
    both = [model for pair in zip(bad, usual, strict=True) for model in pair]
    return [
        (name, replace(arch, name=name, max_tokens=workload.total_tokens), weights, workload)
        for name, arch, weights, workload in both
    ]


def design_of(question: Question) -> Design:
    """The question's model as it is exported."""
    return Design(arch=question.arch, weights=question.weights)


def value_of(found: Measurement, metric: str) -> float:
    """The measured median of a metric."""
    if metric == "peak_memory":
        return float(found.peak_memory_bytes or 0)
    return found.percentile("tpot" if metric == "tpot" else "ttft", 0.5)


def applied(case: Case, advice: list[Advice], workload: Workload, *, rounds: int) -> list[dict[str, object]]:
    """One row a piece of advice."""
    with tempfile.TemporaryDirectory() as room:
        designs = [design_of(case.question), *(design_of(each.proposal.changed) for each in advice)]
        files = [export_for(RUNTIME, design, Path(room) / str(i)) for i, design in enumerate(designs)]
        found = measure_alternately(
            files, workload, rounds=rounds, runtime=RUNTIME, threads=THREADS, attempts=2, seconds=0.8, prefills=10
        )
    base = found[0]
    if isinstance(base, MeasurementError):
        raise base
    rows = []
    for each, measured in zip(advice, found[1:], strict=True):
        gain = each.headline
        row: dict[str, object] = {
            "model": case.arch.name,
            "advice": each.proposal.title,
            "metric": gain.metric,
            "predicted_ratio": f"{gain.ratio.value:.4g}",
            "low": f"{gain.ratio.low:.4g}",
            "high": f"{gain.ratio.high:.4g}",
        }
        if isinstance(measured, MeasurementError):
            rows.append(row | {"measured_ratio": "", "verdict": f"failed: {measured}", "clean": ""})
            continue
        ratio = value_of(base, gain.metric) / value_of(measured, gain.metric)
        right = "sign right" if (ratio > 1) == (gain.ratio.value > 1) else "sign wrong"
        clean = base.clean and measured.clean
        rows.append(row | {"measured_ratio": f"{ratio:.4g}", "verdict": right, "clean": clean})
    return rows


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--profile", type=Path, help="a machine profile; this machine is calibrated unless given")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".csv"))
    wanted = parser.parse_args()
    started = time.monotonic()
    profile = MachineProfile.load(wanted.profile) if wanted.profile else calibrate(runtime=RUNTIME, threads=THREADS)
    rows: list[dict[str, object]] = []
    for name, arch, weights, workload in models()[: wanted.models]:
        case = calibrated_case(
            arch, profile, weights=weights, prompt_tokens=workload.prompt_tokens, new_tokens=workload.new_tokens
        )
        advice = advise(case)[:EACH]
        rows += applied(case, advice, workload, rounds=wanted.rounds)
        write_rows(wanted.out, rows, COLUMNS)
        for row in rows[-len(advice) :] if advice else []:
            print(f"{name}: {row['advice']}: {row['predicted_ratio']} predicted, {row['measured_ratio']} measured")
    known = [row for row in rows if row["measured_ratio"]]
    right = sum(row["verdict"] == "sign right" for row in known)
    errors = [abs(float(str(r["predicted_ratio"])) / float(str(r["measured_ratio"])) - 1) for r in known]
    print(f"sign right: {right} of {len(rows)}; median error {statistics.median(errors):.1%}; {wanted.out}")
    quiet, took_s = sum(bool(row["clean"]) for row in known), time.monotonic() - started
    print(f"{quiet} of {len(known)} on a quiet machine; {took_s:.0f} s")
    sys.exit(0 if rows else 1)


if __name__ == "__main__":
    main()
