"""Expected perplexity of other designs at the latency of Qwen2.5-0.5B on a Jetson Orin.

    python benchmarks/published_result.py --out published-result.csv

arXiv:2602.10377 trains 170 architectures, dense and with experts, for 10 billion tokens each, fits a law of loss and a
roofline to a Jetson Orin, and reports a design with 19.42 % lower perplexity on WikiText-2 at the latency of
Qwen2.5-0.5B. Here the law is that of ``chipwise.training.laws.laws``, no training of which is theirs, and times are
those of
``chipwise.estimate``: one request of 512 tokens in and 128 out, each runtime the device's own. A design may take as
long for the request as Qwen2.5-0.5B does, and its weights a quarter of the device's memory.

What is compared is an expectation. Both models read the same text once, with the same tokenizer and vocabulary
(151,936), and perplexity is e to the loss per token: the change is e^difference - 1, with the interval of the law's
difference. It is not a measurement on WikiText-2, and how good Qwen's own weights are (18 trillion tokens) is not in
it.

Questions on each chip; in all but the last the two models have the same precision:
  as published  16 bits, dense or with experts, 10 billion tokens: what the paper trained on
  experts       the same after 300 billion tokens: parameters that a token does not meet need text to be worth something
  dense         16 bits, feed-forwards as in Qwen, 300 billion tokens: what shape alone is worth
  four bits     dense designs in four bits against Qwen in four bits, 300 billion tokens
  free          experts in four bits against Qwen in 16 bits, 300 billion tokens: NOT like for like

``why`` names what changed in the design, in its time and in the law.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

import chipwise
from chipwise.core.csvfile import write_rows
from chipwise.design.limits import Constraint
from chipwise.design.phases.by_law import FoundByLaw, search_by_law
from chipwise.errors import Infeasible
from chipwise.hardware import datasheet
from chipwise.model.arch.design import Design
from chipwise.model.published.read import resolve
from chipwise.model.space.designs import design_of, summary
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import EXPERTS, LayerSpace, SpaceSpec
from chipwise.training.laws.laws import shipped
from chipwise.training.laws.shapes import Shapes
from provenance import stamp

DEVICES = ("jetson-agx-orin", "apple-m4", "rtx-4090", "snapdragon-8-elite")
REFERENCE, PUBLISHED_TOKENS, TOKENS = "Qwen/Qwen2.5-0.5B", 10e9, 300e9
PROMPT, NEW = 512, 128
WIDTHS = tuple(range(640, 2305, 128))
DENSE = tuple(range(1024, 8193, 1024))
FOUR_BITS = "int4_g32"
MEMORY_SHARE = 0.25  # of the device's memory that weights may take


class EstimatedCosts:
    """Times of a space whose layers are all alike, as ``chipwise.estimate`` predicts them. Use as a function.

    A layer's time does not depend on how many there are, so a few models of one and two layers hold those of all.
    """

    def __init__(self, space: SearchSpace, device: str) -> None:
        self.space, self._device = space, device
        spec = space.spec
        self._end, self._layer, self._pair, self._feed = ({} for _ in range(4))
        shape = (len(spec.weights), len(spec.d_model))
        pairs, kinds, widths = spec.attention_choices(), spec.layer.ffn, spec.layer.ffn_width
        self._base = np.zeros((*shape, 3))
        self._layer = np.zeros((*shape, 3))
        self._pairs = np.zeros((*shape, len(pairs), 3))
        self._feeds = np.zeros((*shape, len(kinds), len(widths), 3))
        for f in range(shape[0]):
            for d in range(shape[1]):
                one, two = (self._costs(f, d, depth=depth) for depth in (1, 2))
                self._layer[f, d] = two - one
                self._base[f, d] = one - self._layer[f, d]
                for p in range(len(pairs)):
                    self._pairs[f, d, p] = self._costs(f, d, pair=p) - one
                for k in range(len(kinds)):
                    for w in range(len(widths)):
                        self._feeds[f, d, k, w] = self._costs(f, d, kind=k, width=w) - one

    def _costs(self, f: int, d: int, *, depth: int = 1, pair: int = 0, kind: int = 0, width: int = 0) -> np.ndarray:
        """TTFT, TPOT and bytes of weights of the model with these indices in the lists of choices."""
        spec = self.space.spec
        heads, kv_heads = spec.attention_choices()[pair]
        layer = {
            "heads": heads,
            "kv_heads": kv_heads,
            "ffn": spec.layer.ffn[kind],
            "ffn_width": spec.layer.ffn_width[width],
        }
        choices = {
            "d_model": spec.d_model[d], "vocab_size": spec.vocab_size[0], "head_size": spec.head_size[0],
            "tie_embeddings": True, "weights": spec.weights[f], "sharing": "none", "layers": [layer] * depth,
        }  # fmt: skip
        return times(design_of(choices, spec=spec), self._device)

    def __call__(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Metrics of rows."""
        index, columns = self.space.index, self.space.columns
        f, d = rows[:, index["weights"]], rows[:, index["d_model"]]
        depth = np.array(self.space.spec.depth)[rows[:, index["depth"]]]
        pair, kind, width = (rows[:, columns[name][0]] for name in ("attention", "ffn", "ffn_width"))
        layer = self._layer[f, d] + self._pairs[f, d, pair] + self._feeds[f, d, kind, width]
        total = self._base[f, d] + depth[:, None] * layer
        return {"tpot_p50": request_s(total) / NEW, "peak_memory": total[:, 2]}


def request_s(costs: np.ndarray) -> np.ndarray:
    """Seconds of a whole request, (…): the prompt, then a pass for each further token."""
    return np.asarray(costs[..., 0] + (NEW - 1) * costs[..., 1])


def times(design: Design, device: str) -> np.ndarray:
    """Seconds to the first token, seconds per token, bytes of weights."""
    found = chipwise.estimate(design.arch, device=device, prompt=PROMPT, new=NEW, weights=design.weights)
    arch = design.arch
    stored = arch.parameters() * (0.5625 if design.weights == FOUR_BITS else 2.0)
    return np.array([found.ttft_s, found.tpot_s, stored])


def space_of(
    ffn: tuple[str, ...], ffn_width: tuple[int, ...], weights: tuple[str, ...], vocabulary: int
) -> SearchSpace:
    """Designs of 2 to 40 layers, all alike."""
    return SearchSpace(
        SpaceSpec(
            d_model=WIDTHS, depth=tuple(range(2, 41)), vocab_size=(vocabulary,), head_size=(64,), weights=weights,
            layer=LayerSpace(heads=(8, 12, 16, 24, 32), kv_heads=(1, 2, 4, 8), ffn=ffn, ffn_width=ffn_width),
            layers="alike", max_tokens=2048,
        )
    )  # fmt: skip


def why(reference: Design, found: FoundByLaw, tokens: float, before: np.ndarray, after: np.ndarray) -> str:
    """Changes from the reference design, and the value of each in nats by the law, applied one after another."""
    design = found.design()
    old, new = (Shapes.of(item) for item in (reference, design))
    parts, at = [], old
    for words, names in (
        ("parameters", ("least", "most")),
        ("width", ("width",)),
        ("layers", ("depth",)),
        ("heads and feed-forward", ("ffn_share", "queries_per_kv", "attention_width")),
        ("bits", ("weight_bits",)),
    ):
        changed = replace(at, **{name: getattr(new, name) for name in names})
        worth = float((found.law.nats_per_token(changed, tokens) - found.law.nats_per_token(at, tokens))[0])
        if abs(worth) > 5e-4:
            parts.append(f"{words} {worth:+.3f}")
        at = changed
    a, b = (f"{float(np.ravel(s.least)[0]) / 1e6:.0f}M of {float(np.ravel(s.most)[0]) / 1e6:.0f}M" for s in (old, new))
    archs = (reference.arch, design.arch)
    layers, widths = ([str(count(arch)) for arch in archs] for count in (lambda x: len(x.layers), lambda x: x.d_model))
    return (
        f"parameters in layers that a token meets {a} -> {b}; layers {' -> '.join(layers)}; "
        f"width {' -> '.join(widths)}; nats: {', '.join(parts)}; "
        f"time per token {1e3 * before[1]:.2f} -> {1e3 * after[1]:.2f} ms"
    )


def ask(device: str, wanted: Sequence[str], report: Callable[[dict], None]) -> None:
    """The ``wanted`` questions on a device; all where it is empty."""
    arch, memory_bytes = resolve(REFERENCE), MEMORY_SHARE * datasheet.load(device).mem_capacity_bytes
    experts = tuple(EXPERTS)
    few = tuple(range(512, 2049, 512))
    either = ("swiglu", *experts)
    for name, ffn, widths, weights, baseline, tokens in (
        ("as published", either, few + DENSE[2:], ("bf16",), "bf16", PUBLISHED_TOKENS),
        ("experts", either, few + DENSE[2:], ("bf16",), "bf16", TOKENS),
        ("dense", ("swiglu",), DENSE, ("bf16",), "bf16", TOKENS),
        ("four bits", ("swiglu",), DENSE, (FOUR_BITS,), FOUR_BITS, TOKENS),
        ("free", experts, few, (FOUR_BITS,), "bf16", TOKENS),
    ):
        if wanted and name not in wanted:
            continue
        begun = time.process_time()
        reference = Design(arch=arch, weights=baseline)
        before = times(reference, device)
        space = space_of(ffn, widths, weights, arch.vocab_size)
        bounds = {"tpot_p50": request_s(before) / NEW, "peak_memory": memory_bytes}
        limits = [
            Constraint(metric=metric, op="<=", limit=float(value), text=f"<= {value:.4g}")
            for metric, value in bounds.items()
        ]
        row = {
            "device": device,
            "question": name,
            "tokens": f"{tokens:.3g}",
            "baseline": f"{REFERENCE} {baseline}",
            "space": f"{space.size():.3g}",
        }
        try:
            found = search_by_law(
                space, EstimatedCosts(space, device), shipped(), tokens=tokens, constraints=limits, seed=0, draws=20_000
            )
        except Infeasible as error:
            report(row | {"why": str(error), "cpu_s": f"{time.process_time() - begun:.1f}"})
            continue
        after = times(found.design(), device)
        change = found.difference(reference)
        low, value, high = (100 * math.expm1(end) for end in (change.low, change.value, change.high))
        report(
            row
            | {
                "design": summary(found.design()),
                "perplexity_change_percent": f"{value:.1f}",
                "low": f"{low:.1f}",
                "high": f"{high:.1f}",
                "request_ms": f"{1e3 * request_s(after):.1f}",
                "limit_ms": f"{1e3 * request_s(before):.1f}",
                "ttft_ms": f"{1e3 * after[0]:.1f}",
                "baseline_ttft_ms": f"{1e3 * before[0]:.1f}",
                "weights_gb": f"{after[2] / 1e9:.2f}",
                "cpu_s": f"{time.process_time() - begun:.1f}",
                "why": why(reference, found, tokens, before, after),
            }
        )


def main() -> None:
    """Asks, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--devices", nargs="*", default=DEVICES)
    parser.add_argument("--questions", nargs="*", default=(), help="such as 'as published'; all by default")
    options = parser.parse_args()
    rows: list[dict] = []

    def report(row: dict) -> None:
        rows.append(row)
        change = "no design within the limits"
        if "design" in row:
            interval = f"[{row['low']}, {row['high']}]"
            change = f"{row['perplexity_change_percent']} % {interval} expected perplexity, {row['design']}"
        print(f"{row['device']}, {row['question']}: {change} ({row['cpu_s']} CPU s)\n    {row['why']}", flush=True)

    for device in options.devices:
        ask(device, options.questions, report)
    columns = dict.fromkeys(name for row in rows for name in row)
    write_rows(options.out, rows, list(columns))
    stamp(options.out)
    shapes = {row["device"]: row["design"] for row in rows if row["question"] == "experts" and "design" in row}
    print(f"{len(set(shapes.values()))} different designs on {len(shapes)} chips")


if __name__ == "__main__":
    main()
