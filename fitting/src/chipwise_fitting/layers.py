"""Kernels of a layer that another laboratory timed: reads the files, fits the laboratory's factors, predicts times.

A file's name states device, model and tensor-parallel degree; a row is named after its file and line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.errors import ChipwiseError, SpecError, Unsupported
from chipwise.hardware import datasheet
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.feed_forward import FeedForward, MixtureOfExperts
from chipwise.model.arch.mixers import Attention
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.op import Op
from chipwise.model.published.read import resolve
from chipwise.predict.kernels import analytic
from chipwise.predict.whole_runs.sums import Law, value_of
from chipwise_fitting import laboratory
from chipwise_fitting.laboratory import constants, timed_law
from chipwise_fitting.score import Row
from chipwise_fitting.sums_fit import Fit, at
from chipwise_fitting.table_runs import TableRun, fit_runs, number, packed_rows, write_constants

SOURCE = "casys-kaist/LLMServingSim 5daddb2 (MIT)"
EVERY = 40  # one row in this many of a kernel is fitted, because neighbours hardly differ
DEVICES = {"a6000": "rtx-a6000", "rtx4090": "rtx-4090", "tpu-v6e-1": "tpu-v6e"}
NAME = re.compile(
    r"(?P<device>.+?)-(?P<model>(?P<vendor>meta-llama|microsoft|Qwen|mistralai|google)-.+?)(-bf16)?-tp(?P<tp>\d+)-(?P<sort>[a-z_]+)$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """All rows of one kernel of one file."""

    file: str
    kernel: str
    device: DeviceProfile | None
    model: str
    lines: Sequence[int]
    measured: Float64Array
    law: Law | None = None
    least: Float64Array | None = None  # seconds at the sheet's rates
    problem: str = ""

    @property
    def sort(self) -> str:
        """The heading under which the rows are listed."""
        return f"{self.device.name if self.device else self.file} {self.kernel}"


def read(path: Path) -> list[Timed]:
    """Reads every kernel of every file in a folder, or of one file.

    Raises:
        SpecError: There is no file, or one cannot be read.
    """
    if path.is_dir():
        folder = path / "layers" if (path / "layers").is_dir() else path
        files = [each for each in sorted(folder.glob("*.csv*")) if NAME.match(stem(each))]
    else:
        files = [path]
    if not files:
        raise SpecError("holds no file named DEVICE-MODEL-tpN-layers.csv or -attention.csv", file=str(path))
    return [timed for file in files for timed in _kernels(file)]


def stem(path: Path) -> str:
    """A file's name without its endings."""
    return path.name.removesuffix(".gz").removesuffix(".csv")


def _kernels(path: Path) -> Iterator[Timed]:
    found = NAME.match(stem(path))
    if found is None:
        raise SpecError("is not named DEVICE-MODEL-tpN-layers.csv or -attention.csv", file=str(path))
    rows = packed_rows(path, ())
    vendor = found["vendor"]
    model = f"{vendor}/{found['model'].removeprefix(vendor + '-')}"
    groups: dict[str, list[tuple[int, Mapping[str, str], float]]] = {}
    for line, row in enumerate(rows, start=2):
        seconds = seconds_of(row)
        if seconds is not None:
            groups.setdefault(kernel_of(row), []).append((line, row, seconds))
    for kernel, members in groups.items():
        yield _timed(stem(path), kernel, found["device"], model, int(found["tp"]), members)


def seconds_of(row: Mapping[str, str]) -> float | None:
    """Returns the measured time in seconds; the head of the file names its unit."""
    for name, unit in (("latency(ns)", 1e-9), ("p50_ns", 1e-9), ("time_us", 1e-6)):
        if name in row:
            value = number(row[name])
            return None if value is None else unit * value
    for name in ("time_stats.attn_prefill.median", "time_stats.attn_decode.median"):
        if value := number(row.get(name)):
            return 1e-3 * value
    return None


def kernel_of(row: Mapping[str, str]) -> str:
    """Returns the name of the kernel that a row measures."""
    if name := row.get("layer_name") or row.get("layer"):
        return name
    if "n_decode" in row:
        return "attention, mixed"
    return "attention, prompt" if row.get("is_prefill") == "True" else "attention, decode"


def _timed(
    file: str, kernel: str, device: str, model: str, tp: int, members: Sequence[tuple[int, Mapping[str, str], float]]
) -> Timed:
    lines, rows = [line for line, _, _ in members], [row for _, row, _ in members]
    measured = np.array([seconds for _, _, seconds in members])
    try:
        sheet = datasheet.load(DEVICES.get(device.lower(), device.lower()))
        ops = list(_ops(kernel, resolve(model), tp, rows))
        law = tuple(amount for op in ops for amount in timed_law(op, sheet, theme_of(kernel)))
        least = sum((_least_s(op, sheet) for op in ops), np.zeros(len(rows)))
    except ChipwiseError as error:
        return Timed(
            file=file, kernel=kernel, device=None, model=model, lines=lines, measured=measured, problem=str(error)
        )
    return Timed(
        file=file, kernel=kernel, device=sheet, model=model, lines=lines, measured=measured, law=law, least=least
    )


def theme_of(kernel: str) -> str:
    """Returns the sort of a kernel; laboratories differ by a factor and a constant for each sort."""
    if "norm" in kernel:
        return "norm"
    if kernel.startswith("attention") or kernel in ("act_fn", "embedding", "attn"):
        return kernel
    return "rope" if kernel.startswith("ro") else "products"


def _least_s(op: Op, device: DeviceProfile) -> Float64Array:
    compute_s, memory_s = analytic.limits(op, device)
    least: Float64Array = np.maximum(np.asarray(compute_s, float), np.asarray(memory_s, float))
    return least


def _column(rows: Sequence[Mapping[str, str]], name: str) -> np.ndarray:
    return np.array([max(0, round(float(row.get(name) or 0))) for row in rows])


def _ops(kernel: str, arch: ArchSpec, tp: int, rows: Sequence[Mapping[str, str]]) -> Iterator[Op]:
    """Yields the operators of a kernel, with sizes as arrays of one value per row.

    Raises:
        Unsupported: The kernel has no operator.
    """
    mixer = arch.layers[0].attention
    if not isinstance(mixer, Attention):
        raise Unsupported(f"{arch.name} has no grouped-query attention in its first layer")
    heads, kv_heads, size = max(1, mixer.heads // tp), max(1, mixer.kv_heads // tp), mixer.head_size
    if kernel.startswith("attention"):
        yield from _attention(kernel, rows, heads, kv_heads, size)
        return
    tokens = _column(rows, "input" if "input" in rows[0] else "tokens" if "tokens" in rows[0] else "sequences")
    tokens, width = np.maximum(tokens, 1), arch.d_model
    ffn = arch.layers[0].ffn
    hidden = ffn.expert.width if isinstance(ffn, MixtureOfExperts) else ffn.width if isinstance(ffn, FeedForward) else 0
    q, kv = heads * size, kv_heads * size
    products = {
        "q_proj": (width, q),
        "k_proj": (width, kv),
        "v_proj": (width, kv),
        "qkv_proj": (width, q + 2 * kv),
        "o_proj": (q, width),
        "gate_proj": (width, hidden // tp),
        "up_proj": (width, hidden // tp),
        "gate_up_proj": (width, 2 * hidden // tp),
        "down_proj": (hidden // tp, width),
        "lm_head": (width, arch.vocab_size // tp),
        "expert.w1": (width, hidden),
        "expert.w3": (width, hidden),
        "expert.w2": (hidden, width),
    }
    if kernel in products:
        k, n = products[kernel]
        yield Matmul(m=tokens, k=k, n=n, weights="bf16", activations="bf16")
    elif "norm" in kernel:
        yield NormOp(rows=tokens, width=width, activations="bf16")
    elif kernel == "act_fn":
        yield Elementwise(function="silu_mul", elements=tokens * (hidden // tp), activations="bf16")
    elif kernel in ("rope", "rotary_emb"):
        yield Elementwise(function="rope", elements=tokens * (q + kv), activations="bf16")
    elif kernel == "embedding":
        yield EmbeddingOp(tokens=tokens, width=width, rows=arch.vocab_size, weights="bf16", activations="bf16")
    elif kernel == "attn":
        yield from _attended(np.ones_like(tokens), tokens, 0 * tokens, heads, kv_heads, size)
    else:
        raise Unsupported(f"no operator is known for {kernel}")


def _attention(
    kernel: str, rows: Sequence[Mapping[str, str]], heads: int, kv_heads: int, size: int
) -> Iterator[AttentionOp]:
    if kernel == "attention, mixed":
        chunk, decoded = _column(rows, "prefill_chunk"), _column(rows, "n_decode")
        yield from _attended(
            np.ones_like(chunk), np.maximum(chunk, 1), _column(rows, "kv_prefill"), heads, kv_heads, size
        )
        one = np.ones_like(decoded)
        yield from _attended(np.maximum(decoded, 1), one, _column(rows, "kv_decode"), heads, kv_heads, size)
        return
    batch, past = np.maximum(_column(rows, "batch_size"), 1), _column(rows, "kv_cache_size")
    chunk = _column(rows, "prefill_chunk_size")
    if kernel == "attention, prompt":
        yield from _attended(batch, np.maximum(chunk, 1), past, heads, kv_heads, size)
    else:
        yield from _attended(batch, np.ones_like(batch), np.maximum(past, 1), heads, kv_heads, size)


def _attended(
    batch: np.ndarray, query: np.ndarray, past: np.ndarray, heads: int, kv_heads: int, size: int
) -> Iterator[AttentionOp]:
    yield AttentionOp(
        batch=batch,
        query_tokens=query,
        past_tokens=past,
        heads=heads,
        kv_heads=kv_heads,
        head_size=size,
        rope=False,
        activations="bf16",
        cache="bf16",
    )


def prior(name: str) -> tuple[float, float]:
    """Returns the starting value of a term and the standard deviation of its prior around that value."""
    kind, *levels = name.split("|")
    return (0.0, 0.5 if kind == "factor" else 1.5) if not levels else (0.0, 0.3 if kind == "factor" else 1.0)


def _run(timed: Timed, i: int) -> TableRun:
    assert timed.device is not None
    assert timed.law is not None
    device = timed.device
    return TableRun(
        row_id=f"{timed.file}:{timed.lines[i]}",
        subset=timed.sort,
        measured=float(timed.measured[i]),
        model=timed.model,
        device=device.name,
        family=device.family,
        vendor=device.vendor,
        place=f"{device.name}|{timed.law[0].terms[1][0]}",
        law=at(timed.law, i),
    )


def fit(tables: Path, out: Path, *, progress: Callable[[str], None]) -> str:
    """Fits the law's terms to the files and writes ``layers.json``."""
    timed = [each for each in read(tables) if each.law]
    runs = [_run(each, i) for each in timed for i in range(0, len(each.lines), EVERY)]
    progress(f"{len(runs)} rows of {len(timed)} kernels")
    found = fit_runs(runs, Fit(prior=prior, noise=0.1), source=SOURCE, kinds=("model", "device", "vendor"))
    write_constants(found, out / laboratory.DATA.name)
    constants.cache_clear()
    return f"layers: {len(runs)} rows"


def rows(truth: Path, leave_out: str) -> dict[str, list[Row]]:
    """Predicts every row of the files."""
    held, found = constants(), []
    for timed in read(truth):
        if timed.law is None or timed.device is None or timed.least is None:
            found += [
                Row(
                    row_id=f"{timed.file}:{line}",
                    subset=timed.sort,
                    truth=float(truth_s),
                    predicted=None,
                    problem=timed.problem,
                )
                for line, truth_s in zip(timed.lines, timed.measured, strict=True)
            ]
            continue
        device = timed.device
        kind = "device" if leave_out == "family" else leave_out
        own = {"model": timed.model, "device": device.name, "vendor": device.vendor}.get(kind, "")
        fold = None if leave_out == "none" else f"{kind}:{own}"
        middle = np.broadcast_to(value_of(timed.law, held.terms(fold)), len(timed.lines))
        place = f"{device.name}|{timed.law[0].terms[1][0]}"
        situation = held.situation(
            device=device.name, vendor=device.vendor, place=place, model=timed.model, leave_out=kind
        )
        factor = math.exp(held.halfwidth(situation, place))
        rival = timed.least * float(np.median(timed.measured / timed.least))
        found += [
            Row(
                row_id=f"{timed.file}:{line}",
                subset=timed.sort,
                truth=float(truth_s),
                predicted=float(m),
                low=float(m) / factor,
                high=float(m) * factor,
                rival=float(r),
            )
            for line, truth_s, m, r in zip(timed.lines, timed.measured, middle, rival, strict=True)
        ]
    return {"latency_s": found}
