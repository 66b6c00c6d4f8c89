"""Opens files stored by earlier versions (``stored/README.md``) and asks the same questions again."""

from __future__ import annotations

import gzip
import shutil
from contextlib import chdir
from pathlib import Path
from typing import Any

import reach
from answers import printed
from pinned import STORED, digest, plain

import chipwise

TEXT = "".join(f"Entry {i}: the square of {i} is {i**2}, and its cube is {i**3}.\n\n" for i in range(1, 401))
HEARD = ("device", "runtime", "threads", "design", "name", "clean", "ttft_p50_s", "tpot_p50_s", "peak_memory_bytes")


def unpacked(name: str, target: Path) -> Path:
    """The compressed sample ``name`` as a file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.decompress((STORED / f"{name}.gz").read_bytes()))
    return target


def run(folder: Path) -> Any:
    """A finished run: its report is written again, its trials and its winner read."""
    shutil.copytree(STORED / "run", folder / "run")
    unpacked("run/study.journal", folder / "run" / "study.journal")
    (folder / "run" / "study.journal.gz").unlink()
    record = chipwise.report(folder / "run")
    winner = reach.read_winner(folder / "run" / "winner")
    assert winner is not None
    return {
        "status": record.status,
        "winner": [record.winner, winner.design.digest, plain(winner.promised)],
        "trials": [
            plain([item.number, item.state, item.quantised_loss, item.parameters, item.measured])
            for item in record.trials
        ],
        "written": sorted(path.name for path in (folder / "run").iterdir() if path.is_file()),
        "schema": record.to_dict()["schema"],
    }


def measurements(folder: Path) -> Any:
    """A store of measurements: its list, and all samples of one measurement."""
    unpacked("measurements.sqlite", folder / "measurements.sqlite")
    listed = printed("measurements")
    whole = [printed("measurements", "show", item["id"]) for item in listed]
    return [[plain({name: item.get(name) for name in HEARD}) for item in listed], digest(whole)]


def kit(folder: Path) -> Any:
    """The results of a kit, imported."""
    found = chipwise.import_measurements(unpacked("kit-results.json", folder / "kit-results.json"))
    return [found.new, plain([dict(row) for row in found.rows()])]


def calibration(folder: Path) -> Any:
    """A calibrated machine: its identity, and its prediction for a model."""
    profile = chipwise.MachineProfile.load(STORED / "run" / "profile.json")
    asked = {"prompt_tokens": 16, "new_tokens": 16, "batch": 1}
    prices = {}
    for weights in ("fp32", "int8"):
        case = reach.calibrated_case(chipwise.resolve(STORED / "toy.yaml"), profile, weights=weights, **asked)
        prices[weights] = plain({name: item.value for name, item in case.estimate.metrics.items()})
    return [profile.digest, prices]


def taught(folder: Path) -> Any:
    """A taught machine, and its predictions for two models."""
    target = folder / "taught" / "shop-box" / "v0001.json"
    target.parent.mkdir(parents=True)
    shutil.copy(STORED / "shop-box.json", target)
    found = (chipwise.estimate(name, device="shop-box") for name in ("gpt2", "Qwen/Qwen3-0.6B"))
    return [
        plain({"from": each.provenance} | {name: item.value for name, item in each.metrics.items()}) for each in found
    ]


def job(folder: Path) -> Any:
    """A folder of jobs: reads the result and runs the job again."""
    shutil.copytree(STORED / "job", folder / "job")
    event = reach.read_jobs(folder / "job")
    path = next((folder / "job" / "jobs").glob("*/12-steps.json"))
    again = reach.run_job(path)["values"]
    return [{name: event[name] for name in ("loss", "steps")}, {name: again[name] for name in ("loss", "steps")}]


def training(folder: Path) -> Any:
    """A finished training that is continued."""
    shutil.copytree(STORED / "trained", folder / "trained")
    (folder / "text").mkdir()
    (folder / "text" / "notes.txt").write_text(TEXT)
    given = {"data": ["text/notes.txt"], "out": "trained", "device": "cpu", "precision": "fp32"}
    found = []
    with chdir(folder):  # the path of a text is part of what a training is
        for steps in (12, 14):
            done = chipwise.train("trained/small.yaml", steps=steps, resume=True, **given)
            found.append([done.test_loss, done.result.loss, done.result.steps, done.result.tokens])
    return found


def question(folder: Path) -> Any:
    """A question in a file: read, answered, and resumed from a stored answer."""
    shutil.copy(STORED / "question.yaml", folder)
    kept = unpacked("plan.json", folder / "plan.json")
    asked = reach.read_question(folder / "question.yaml")
    with chdir(folder):
        found = printed("plan", "question.yaml", "--out", str(kept), "--resume")
    return [plain([asked.model, asked.rate_per_s, asked.classes, asked.limits, asked.class_limits]), found["headline"]]


def loop(folder: Path) -> Any:
    """An agent's loop in a file."""
    return plain(chipwise.agent_loop(STORED / "loop.yaml").to_dict())


def models(folder: Path) -> Any:
    """Models in files: as a spec in both formats, and as a Hugging Face folder of chipwise's own."""
    found = {name: chipwise.resolve(STORED / name) for name in ("toy.yaml", "toy.json", "trained/model")}
    return {name: [arch.digest, arch.parameters()] for name, arch in found.items()}


SAMPLES = {
    "run": run,
    "measurements": measurements,
    "kit": kit,
    "calibration": calibration,
    "taught": taught,
    "job": job,
    "training": training,
    "question": question,
    "loop": loop,
    "models": models,
}
