"""Tests that run int8 and int4 graphs, on an imitated processor without VNNI.

    nice python benchmarks/older_processor.py --out older-processor.csv
    nice python benchmarks/older_processor.py --full-range --out older-processor.csv    # a control: most must fail

Needs ``qemu-x86_64`` (Debian's package qemu-user), which is 20 to 50 times slower than the processor it runs on. TESTS
are those of the suite that open such a graph and compare what it answers;
``tests/unit/deploy/export/test_int8_everywhere.py`` starts qemu itself, wherever the suite runs. Tests that time such
a graph until the figure holds are left out: in qemu they would never end, and time means nothing there.

A row for each file, written when its last test has ended; files that --out holds already are not run again. Columns:
file, tests (the functions), processor (imitated), largest (int8 weight that is exported), passed, failed, skipped,
not_run (when the limit came; all four count parameters one by one), seconds (imitated: how long it takes to try again,
nothing else), failures (their names).
"""

from __future__ import annotations

import argparse
import os
import re
import site
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import onnxruntime  # noqa: F401  (the rows name its version)
import torch  # noqa: F401

from chipwise.model.blocks import quantize
from resumable_rows import add, read

COLUMNS = ("file", "tests", "processor", "largest", "passed", "failed", "skipped", "not_run", "seconds", "failures")
ROOT = Path(__file__).resolve().parents[1]
TESTS = {
    "tests/unit/deploy/export/test_hf_listener.py": ("test_states_and_logits_are_those_of_transformers",),
    "tests/unit/deploy/export/test_image_encoders.py": ("test_states_and_vectors_are_those_of_transformers",),
    "tests/unit/deploy/export/test_hf_deit.py": ("test_logits_are_those_of_transformers",),
    "tests/unit/deploy/export/test_hf_vision.py": (
        "test_any_other_classifier_brings_its_modelling_file",
        "test_a_model_of_questions_brings_its_modelling_file",
        "test_random_weights_are_a_fresh_models",
    ),
    "tests/unit/deploy/export/test_encoders.py": ("test_quantised_encoders_point_the_same_way",),
    "tests/unit/deploy/export/test_onnx_export.py": (
        "test_quantised_logits_stay_close",
        "test_logits_of_mixed_formats_are_those_of_torch_with_these_matrices_rounded",
        "test_weights_in_a_second_file_give_the_same_logits",
    ),
    "tests/unit/deploy/measure/test_backends.py": (
        "TestOnnxRuntimeInt4::test_logits_are_those_of_torch",
        "TestOnnxRuntimeInt4::test_decoding_is_prefilling_token_by_token",
        "TestOnnxRuntimeInt4::test_sequences_of_a_batch_do_not_see_each_other",
    ),
    "tests/unit/deploy/measure/test_kits.py": ("test_the_script_computes_what_the_harness_computes",),
    "tests/unit/training/tasks/test_selective_precision.py": ("test_single_matrices_are_exported_in_their_formats",),
    "tests/unit/model/blocks/test_transcribers.py": ("TestTranscribers::test_exported_graphs_agree",),
    "tests/unit/model/blocks/test_ranking_models.py": ("TestRankingModels::test_exported_graphs_agree",),
}
LARGEST, FULL_RANGE = "LARGEST_INT8_WEIGHT", 127
ENDED = re.compile(r"^\S+?\.py::(?P<test>\S.*?) (?P<how>PASSED|FAILED|SKIPPED|ERROR)\b", re.MULTILINE)
SELECTED = re.compile(r"\bcollected (\d+) items?")


def main() -> None:
    """Runs the tests of each file and adds its row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processor", default="Haswell", help="as qemu-x86_64 -cpu help lists them")
    parser.add_argument("--full-range", action="store_true", help="int8 weights in -127 … 127, as once exported")
    parser.add_argument("--only", default="", help="files whose name contains this")
    parser.add_argument("--limit-s", type=float, default=3600, help="longest time of a file")
    parser.add_argument("--out", type=Path, required=True, help="CSV file")
    args = parser.parse_args()
    rows = read(args.out)
    largest = FULL_RANGE if args.full_range else quantize.MOST_INT8
    facts = {"processor": args.processor, "largest": str(largest)}
    done = [(row["file"], row["processor"], row["largest"]) for row in rows]
    for file, names in TESTS.items():
        if args.only in file and (file, *facts.values()) not in done:
            row = {"file": file, "tests": " ".join(names), **facts}
            add(rows, {**row, **tried(file, names, args.processor, largest, args.limit_s)}, args.out, COLUMNS)


def pytest_configure() -> None:
    """In qemu, where this script is a plugin of pytest: sets the largest weight."""
    quantize.MOST_INT8 = int(os.environ[LARGEST])


def tried(file: str, names: tuple[str, ...], processor: str, largest: int, limit_s: float) -> dict[str, str]:
    """Results of the tests ``names`` of one file on the imitated processor."""
    python = Path(sys.executable).resolve()  # qemu does not find a virtual environment by its link
    chosen = [f"{file}::{name}" for name in names]
    command = ["qemu-x86_64", "-cpu", processor, str(python), "-m", "pytest", "-vv", "-p", "no:xdist"]
    command += ["-p", Path(__file__).stem, *chosen]
    paths = [*map(str, (ROOT / "src", ROOT / "fitting" / "src", ROOT / "benchmarks")), *site.getsitepackages()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", LARGEST: str(largest)}
    begun = time.monotonic()
    with tempfile.TemporaryFile("w+") as log:
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.DEVNULL, check=False, timeout=limit_s
            )
        log.seek(0)
        text = log.read()
    seconds = time.monotonic() - begun
    ended = defaultdict(list)
    for found in ENDED.finditer(text):
        ended[found["how"]].append(found["test"])
    collected = SELECTED.search(text)
    if collected is None:
        raise SystemExit(f"{file}: pytest did not begin:\n{text[-2000:]}")
    failed = ended["FAILED"] + ended["ERROR"]
    counts = {"passed": len(ended["PASSED"]), "failed": len(failed), "skipped": len(ended["SKIPPED"])}
    counts["not_run"] = int(collected[1]) - sum(counts.values())
    return {name: str(count) for name, count in counts.items()} | {
        "seconds": f"{seconds:.0f}",
        "failures": " ".join(failed),
    }


if __name__ == "__main__":
    main()
