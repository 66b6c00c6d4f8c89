"""Shape and formats searched together, or one after the other, in equal CPU time.

    python benchmarks/real/joint_vs_sequential.py run together 0 --work W --out F.csv    # one order, one seed
    python benchmarks/real/joint_vs_sequential.py measure --work W --out F.csv           # times of all, in turns
    python benchmarks/real/joint_vs_sequential.py report --out F.csv

``together`` is the run file as it is: its search chooses among formats with the shape. ``shape-first`` searches in FP32
under the same limits and then packs the winner in each narrow format, as a search would: the best quantiser for single
matrices, and for int4 also learned rounding for a twentieth of the cost of the training; each format is a row.
``format-first`` trains a conventional design (d128, five layers) for a tenth of the budget, packs it in each format,
takes the fastest one that loses at most 1 % of its validation loss, and searches in that format alone. Each order is
charged everything that it does, the measurements that it decides by included; rows of ``shape-first`` share theirs.
``--limits "tpot_p99=<= 0.08 ms" …`` replaces limits of the run file and ``--setting NAME`` names them in the table.
Columns: bits per byte on the whole test text as exported; ``nearest_loss`` and ``packed_loss``: loss in nats a token on
calibration text of the weights rounded to the nearest and as shipped, beside ``fp32_loss``. Rows that are there are
not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import yaml
from expert import DRAWN, measure_rows
from safetensors.numpy import load_file
from single import opened

import resumable_rows
from chipwise import api
from chipwise.core.arrays import AnyArray
from chipwise.deploy.export.onnx import export
from chipwise.deploy.measure.harness import measure_alternately
from chipwise.design.phases.finals import learned_steps
from chipwise.design.phases.measuring import metrics_of
from chipwise.design.report.record import load
from chipwise.design.run.spec import RunSpec, load_run
from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantize import NEAREST, Packing
from chipwise.model.space.designs import design_of, summary
from chipwise.model.walk.calibration import LEARNED, choose, quantiser, restored
from chipwise.training.data.recipe import Recipe
from chipwise.training.data.text import load_corpus
from chipwise.training.data.tokenizer import TokenStore
from chipwise.training.loop.evaluate import calibrated, lessons_of, read
from chipwise.training.loop.learned_rounding import distance_from, learn_steps
from chipwise.training.loop.trainer import train
from chipwise.training.tasks.protocol import TaskData
from exported_quality import exported_bits_per_byte
from provenance import here

ORDERS = ("together", "shape-first", "format-first")
COLUMNS = (
    "setting", "order", "seed", "design", "weights", "bits_per_byte", "fp32_loss", "nearest_loss", "packed_loss",
    "quantiser", "train_cpu_s", "cpu_s", "tpot_p50_s", "tpot_p99_s", "ttft_p99_s", "peak_memory_bytes", "file",
)  # fmt: skip
NARROW = ("int8", "int4")
PACKING_CPU_S = 40.0  # that shape-first keeps of its budget for packing
PILOT = "own-reference"  # of format-first
LEAST_LOSS = 0.01  # that a format of format-first may cost, as a share


def cpu_s() -> float:
    """CPU seconds of this process and of its children that have ended."""
    return sum(os.times()[:4])


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A model in one format."""

    design: Design
    weights: Mapping[str, AnyArray]
    packing: Packing
    method: str
    fp32_loss: float  # nats a token on calibration text
    nearest_loss: float
    loss: float


def packed(design: Design, weights: Mapping[str, AnyArray], *, task: TaskData, steps: float) -> Packed:
    """``design`` packed as a search packs its finalists, after a training of so many steps."""
    data, recipe = task.data(design.arch), Recipe(**task.recipe)
    packing, judge = calibrated(design.arch, weights, data, recipe)
    arch, whole = restored(replace(design, weights="fp32"), weights, NEAREST)
    fp32 = judge(arch, whole)
    if design.weights == "fp32":
        return Packed(
            design=design, weights=weights, packing=packing, method="", fp32_loss=fp32, nearest_loss=fp32, loss=fp32
        )  # fmt: skip
    choice = choose(design, weights, packing, judge)
    found = Packed(
        design=design,
        weights=weights,
        packing=replace(packing, quantiser=quantiser(choice.method)),
        method=choice.method,
        fp32_loss=fp32,
        nearest_loss=choice.losses["nearest"],
        loss=choice.losses[choice.method],
    )
    if design.weights == "int4":
        distance = distance_from(lessons_of(design.arch, weights, data, recipe))
        made = learn_steps(design, weights, found.packing, distance, steps=learned_steps(steps))
        if (loss := judge(made.design.arch, made.weights)) < found.loss:
            found = replace(
                found, design=made.design, weights=made.weights, packing=made.packing, method=LEARNED, loss=loss
            )
    return found


def written(item: Packed, path: Path) -> Path:
    """The exported file."""
    return path if path.exists() else export(item.design, item.weights, path, packing=item.packing)


def search(own: Path, folder: Path) -> Any:
    """Runs or resumes a search; returns its record."""
    api.search(own, out=folder, resume=(folder / "spec.json").exists())
    return load(folder / "record.json")


def row_of(record: Any, file: Path) -> dict[str, Any]:
    """A winner's row."""
    winner = record.trial(record.winner)
    return {
        "design": winner.summary, "weights": winner.weights, "bits_per_byte": f"{winner.test_loss:.5f}",
        "train_cpu_s": f"{winner.train_cpu_s:.1f}", "file": str(file),
    }  # fmt: skip


def run(order: str, seed: int, given: Mapping[str, Any], work: Path) -> list[dict[str, Any]]:
    """One order; returns rows."""
    import torch

    torch.set_num_threads(1)
    budget_s = 60.0 * float(str(given["budget"]["cpu"]).removesuffix(" min"))
    work.mkdir(parents=True, exist_ok=True)
    own, folder, before_s = work / f"{order}-{seed}.yaml", work / f"{order}-{seed}", 0.0

    def write(formats: Sequence[str], left_s: float) -> RunSpec:
        space = {**given["space"], "weights": list(formats)}
        budget = {**given["budget"], "cpu": f"{left_s:.0f} s", "workers": 1}
        own.write_text(yaml.safe_dump({**given, "space": space, "budget": budget, "seed": seed, "prior": "shipped"}))
        return load_run(own)

    if order == "together":
        write(given["space"]["weights"], budget_s)
        record = search(own, folder)
        quantised = (folder / "winner" / "chipwise.json").read_text()
        return [
            {
                **row_of(record, folder / "winner" / "model.onnx"),
                "quantiser": json.loads(quantised).get("quantiser", ""),
                "cpu_s": f"{sum(record.budget.spent.values()):.1f}",
            }
        ]  # fmt: skip
    begun = cpu_s()
    if order == "format-first":
        form, told = pilot(write(given["space"]["weights"], budget_s), seed, work, 0.1 * budget_s)
        before_s = cpu_s() - begun
        write([form], budget_s - before_s)
        record = search(own, folder)
        spent = before_s + sum(record.budget.spent.values())
        print(told, flush=True)
        return [{**row_of(record, folder / "winner" / "model.onnx"), "cpu_s": f"{spent:.1f}", "quantiser": told}]
    spec = write(["fp32"], budget_s - PACKING_CPU_S)
    record = search(own, folder)
    winner, begun, rows = record.trial(record.winner), cpu_s(), []
    design = design_of(winner.choices, spec=spec.space)
    kept = (folder / "trainings" / design.arch.digest).glob("weights-*.safetensors")
    weights = read(max(kept, key=lambda path: float(path.stem.removeprefix("weights-"))))
    task, items = opened(spec, folder / "corpus"), []
    steps = winner.curve[-1].tokens / task.step_tokens(design.arch)
    for form in ("fp32", *NARROW):
        one = replace(design, weights=form)
        items.append(packed(one, weights, task=task, steps=steps))
        path = written(items[-1], work / f"{order}-{seed}-{form}.onnx")
        rows.append(
            {
                **row_of(record, path), "weights": form, "design": summary(one), "quantiser": items[-1].method,
                "fp32_loss": f"{items[-1].fp32_loss:.5f}", "nearest_loss": f"{items[-1].nearest_loss:.5f}",
                "packed_loss": f"{items[-1].loss:.5f}",
            }
        )  # fmt: skip
    spent = cpu_s() - begun + sum(record.budget.spent.values())
    store = TokenStore(load_corpus(spec.data, base=spec.folder), folder / "corpus", spec.space.vocab_size)
    store.prepare()
    tokens = store.tokens(design.arch.vocab_size)
    for row, item in zip(rows, items, strict=True):  # scoring all formats is of the benchmark
        path = Path(row["file"]).with_suffix(".evaluated.onnx")
        bits = exported_bits_per_byte(item.design, item.weights, tokens, path, split="test", packing=item.packing)
        row |= {"bits_per_byte": f"{bits:.5f}", "cpu_s": f"{spent:.1f}"}
    return rows


def pilot(spec: RunSpec, seed: int, work: Path, budget_s: float) -> tuple[str, str]:
    """The format of ``format-first``, and what was found about each."""
    kept = work / f"pilot-{seed}.json"
    if kept.exists():
        form, told = json.loads(kept.read_text())
        return str(form), str(told)
    design = design_of(DRAWN[PILOT], spec=replace(spec.space, head_size=(DRAWN[PILOT]["head_size"],)), name=PILOT)
    task = opened(spec, work / "corpus")
    result = train(
        design.arch, task.data(design.arch).load(), cpu_budget_s=budget_s, seed=seed, folder=work / f"pilot-{seed}",
        recipe=Recipe(**task.recipe),
    )  # fmt: skip
    weights = load_file(result.weights)
    names = ("fp32", *NARROW)
    items = [packed(replace(design, weights=form), weights, task=task, steps=result.steps) for form in names]
    paths = [written(item, work / f"pilot-{seed}-{form}.onnx") for item, form in zip(items, names, strict=True)]
    found = measure_alternately(paths, spec.workload, runtime=spec.target.runtime, threads=spec.target.threads)
    seconds = [metrics_of(one)["tpot_p50"] for one in found]
    good = [i for i, item in enumerate(items) if item.loss <= (1 + LEAST_LOSS) * items[0].loss]
    best = names[min(good, key=seconds.__getitem__)]
    told = f"{best} of " + ", ".join(
        f"{name} {1e6 * one:.0f} µs {item.loss / items[0].loss - 1:+.2%}"
        for name, one, item in zip(names, seconds, items, strict=True)
    )
    kept.write_text(json.dumps([best, told]))
    return best, told


def report(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints the mean of each order and format over seeds."""
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        form = row["weights"] if row["order"] == "shape-first" else "chosen"
        groups.setdefault((row["setting"], row["order"], form), []).append(row)
    for name, group in groups.items():
        bits = [float(row["bits_per_byte"]) for row in group]
        spread = f" ± {statistics.stdev(bits):.4f}" if len(bits) > 1 else ""
        text = f"{' '.join(name)}: {statistics.mean(bits):.4f}{spread} bits per byte over {len(bits)} seeds"
        if all(row["tpot_p50_s"] for row in group):
            text += f", {1e6 * statistics.mean(float(row['tpot_p50_s']) for row in group):.1f} µs a token"
            text += f" (P99 {1e6 * statistics.mean(float(row['tpot_p99_s']) for row in group):.1f})"
        print(text)


def main() -> None:
    """Runs, measures or reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "measure", "report"])
    parser.add_argument("rest", nargs="*", help=f"run: {', '.join(ORDERS)}, and a seed")
    parser.add_argument("--spec", type=Path, default=Path("examples/clinic.yaml"))
    parser.add_argument("--limits", nargs="*", default=[], help='such as "tpot_p99=<= 0.08 ms"')
    parser.add_argument("--setting", default="clinic")
    parser.add_argument("--work", type=Path, default=Path("runs/joint"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    given = yaml.safe_load(options.spec.read_text())
    given["constraints"] |= dict(limit.split("=", 1) for limit in options.limits)
    rows = resumable_rows.read(options.out)
    if options.what == "run":
        order, seed = options.rest
        if order not in ORDERS:
            parser.error(f"{order}: one of {', '.join(ORDERS)}")
        key = {"setting": options.setting, "order": order, "seed": seed}
        if any(all(row[name] == value for name, value in key.items()) for row in rows):
            return
        new = run(order, int(seed), given, (options.work / options.setting).resolve())
        for row in new:
            row["file"] = os.path.relpath(row["file"], options.work)
        made = [*resumable_rows.read(options.out), *({**key, **row, **here()} for row in new)]
        resumable_rows.write(options.out, made, COLUMNS)
        print(json.dumps(new), flush=True)
    if options.what == "measure":
        measure_rows(rows, [options.work / row["file"] for row in rows], load_run(options.spec))
        resumable_rows.write(options.out, rows, COLUMNS)
    if options.what in ("measure", "report"):
        report(rows)


if __name__ == "__main__":
    main()
