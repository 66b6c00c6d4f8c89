"""Predicted against measured seconds of random designs of a domain on this machine, in ONNX Runtime with one thread.

    python benchmarks/domain_latency.py examples/vision.yaml [--designs 40] [--calibration 90] [--profile FILE]

The run file's space is one whose requests are answered in passes of one kind: image classifiers, keyword spotters,
speech recognisers, denoisers (an image is its steps times a pass), ranking models. Calibrates for it as a search does
(nodes, and whole models drawn from the space), then draws other designs from it, predicts each before it is measured,
and prints the median error and Kendall's tau of P50 by weight format: at the machine's own speed, in the moments when
no neighbour slowed it, and as the clock had it. The plain rival is the best rate of multiply-adds a second with a cost
per node, fitted to the measured designs themselves.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

from chipwise.blocks.lowering import lower
from chipwise.core.statistics import kendall_tau
from chipwise.hardware.device import MachineProfile
from chipwise.ops import Phase
from chipwise.profile.calibrate import calibrate
from chipwise.profile.exporting import export_for
from chipwise.profile.harness import measure
from chipwise.profile.learning import fit_relative, predict_seconds
from chipwise.run.spec import load_run
from chipwise.space import SearchSpace
from chipwise.space.designs import summary
from chipwise.spec import Design

SEED = 2_026


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_file", type=Path)
    parser.add_argument("--designs", type=int, default=40)
    parser.add_argument("--calibration", type=float, default=90.0, help="seconds")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--profile", type=Path, help="where the calibration is kept; read if it is there")
    asked = parser.parse_args()
    spec = load_run(asked.run_file)
    image, ranking = spec.space.image, spec.space.ranking
    if spec.space.own is None:
        parser.error(f"{asked.run_file}: its requests are not answered in passes of one kind")
    if asked.profile and asked.profile.exists():
        profile = MachineProfile.load(asked.profile)
    else:
        profile = calibrate(
            seconds=asked.calibration,
            images=image is not None,
            ranking=ranking is not None,
            sounds=spec.space.sound is not None,
            own=SearchSpace(spec.space).drawn,
        )
        if asked.profile:
            profile.save(asked.profile)
    print(f"calibrated: {profile.checks['prefill']}; {'; '.join(profile.notes) or 'machine quiet'}")
    space, workload = SearchSpace(spec.space), spec.workload
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number, row in enumerate(space.sample(asked.designs, np.random.default_rng(SEED))):
            arch = space.design(row).arch
            design = Design(arch=arch, weights=("fp32", "int8")[number % 2])
            predicted = arch.passes * predict_seconds(profile, design, Phase.PREFILL, workload)
            found = measure(
                export_for("onnxruntime", design, Path(folder)),
                workload,
                repeats=300,
                prefills=300,
                seconds=0.4,
                attempts=4,
                calibrated=profile.reference_s,
            )
            works = [placed.op.work() for placed in lower(design, workload, Phase.PREFILL)]
            rows.append(
                {
                    "design": summary(design),
                    "weights": design.weights,
                    "predicted_s": predicted,
                    "own_s": found.settled("ttft_p50"),
                    "wall_s": found.percentile("ttft", 0.5),
                    "drift": None if found.own_drift is None else found.own_drift.prefill_slowdown,
                    "clean": found.clean,
                    "flops": arch.passes * sum(work.flops for work in works),
                    "nodes": arch.passes * len(works),
                }
            )
            seconds = f"{rows[-1]['own_s'] * 1e6:8.1f} µs, predicted {predicted * 1e6:8.1f}"
            print(f"{number:3} {seconds}: {summary(design)}", flush=True)
    for kind, title in (("own_s", "at the machine's own speed:"), ("wall_s", "as the clock had it:")):
        print(title)
        for weights in ("fp32", "int8", None):
            _print([row for row in rows if weights in (None, row["weights"])], weights or "both", kind)
    if asked.out:
        asked.out.write_text(json.dumps(rows, indent=1))


def _print(rows: list[dict[str, object]], name: str, kind: str) -> None:
    predicted, measured, flops, nodes = (
        np.array([row[key] for row in rows], float) for key in ("predicted_s", kind, "flops", "nodes")
    )
    error = np.abs(predicted / measured - 1)
    features = np.stack([flops, nodes, np.ones(len(rows))], axis=1)
    rival = features @ fit_relative(features, measured)
    print(
        f"{name}: {len(rows)} designs, {np.mean([bool(row['clean']) for row in rows]):.0%} clean: median error "
        f"{np.median(error):.1%} (P90 {np.quantile(error, 0.9):.1%}), tau {kendall_tau(predicted, measured):.3f}; "
        f"rival (fitted to these rows) {np.median(np.abs(rival / measured - 1)):.1%}, "
        f"tau {kendall_tau(rival, measured):.3f}"
    )


if __name__ == "__main__":
    main()
