"""Tables of single operators: the kernel models predict the time of each row, or say why they cannot.

The column ``op`` names the operator; ``OPERATORS`` lists the columns with its sizes. Rows that differ only in sizes are
predicted together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chipwise.core.csvfile import read_rows, whole, write_rows
from chipwise.core.dtypes import DType, format_name, weight_format
from chipwise.core.files import check_output
from chipwise.errors import ChipwiseError, SpecError, UnknownName
from chipwise.hardware import datasheet
from chipwise.hardware.runtime import runtime_named
from chipwise.model.ops.attention import AttentionOp, LatentAttentionOp
from chipwise.model.ops.collective import CollectiveOp
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.matmul import GroupedMatmul, Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.model.ops.op import Op
from chipwise.model.ops.routing import ExpertsOp
from chipwise.model.ops.scan import ScanOp
from chipwise.predict.kernels import KernelTimes, times_of

ANSWERED = ("latency_s", "low_s", "high_s", "compute_s", "memory_s", "launch_s", "bound", "provenance", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of row: the columns of an operator with defaults (None: required), and the operator's constructor."""

    columns: Mapping[str, int | None]
    make: Callable[[Mapping[str, Any], str, str], Op]  # sizes, number format, format of the cache


def _matmul(n: Mapping[str, Any], dtype: str, cache: str) -> Op:
    return Matmul(m=n["m"], n=n["n"], k=n["k"], weights=dtype, activations=_inputs(dtype))


def _grouped(n: Mapping[str, Any], dtype: str, cache: str) -> Op:
    return GroupedMatmul(
        tokens=n["m"], groups=n["groups"], n=n["n"], k=n["k"], weights=dtype, activations=_inputs(dtype)
    )


def _attention(n: Mapping[str, Any], dtype: str, cache: str) -> Op:
    return AttentionOp(
        batch=n["batch"],
        query_tokens=n["query_tokens"],
        past_tokens=n["past_tokens"],
        heads=n["heads"],
        kv_heads=n["kv_heads"],
        head_size=n["head_dim"],
        rope=False,
        window=n["window"] or None,
        activations=dtype,
        cache=cache,
    )


def _latent(n: Mapping[str, Any], dtype: str, cache: str) -> Op:
    return LatentAttentionOp(
        batch=n["batch"],
        query_tokens=n["query_tokens"],
        past_tokens=n["past_tokens"],
        heads=n["heads"],
        kv_rank=n["kv_rank"],
        rope_size=n["rope_size"],
        nope_size=n["nope_size"],
        value_size=n["value_size"],
        absorbed=bool(n["absorbed"]),
        activations=dtype,
        cache=cache,
    )


def _experts(n: Mapping[str, Any], dtype: str, cache: str) -> Op:
    return ExpertsOp(
        tokens=n["tokens"],
        d_model=n["d_model"],
        width=n["width"],
        experts=n["experts"],
        local_experts=np.where(n["local_experts"] > 0, n["local_experts"], n["experts"]),
        topk=n["topk"],
        weights=dtype,
        activations=_inputs(dtype),
    )


def _scan(variant: Any) -> Callable[[Mapping[str, Any], str, str], Op]:
    def make(n: Mapping[str, Any], dtype: str, cache: str) -> Op:
        return ScanOp(
            variant=variant,
            batch=n["batch"],
            query_tokens=n["query_tokens"],
            heads=n["heads"],
            key_size=n["key_size"],
            value_size=n["value_size"],
            groups=n["groups"],
            activations=dtype,
        )

    return make


def _norm(n: Mapping[str, Any], dtype: str, cache: str) -> Op:
    return NormOp(rows=n["rows"], width=n["width"], activations=dtype)


def _embedding(n: Mapping[str, Any], dtype: str, cache: str) -> Op:
    return EmbeddingOp(tokens=n["tokens"], width=n["width"], rows=n["rows"], weights=dtype, activations=dtype)


def _elementwise(function: Any) -> Callable[[Mapping[str, Any], str, str], Op]:
    return lambda n, dtype, cache: Elementwise(function=function, elements=n["elements"], activations=dtype)


def _collective(collective: Any) -> Callable[[Mapping[str, Any], str, str], Op]:
    return lambda n, dtype, cache: CollectiveOp(
        collective=collective, payload_bytes=n["payload_bytes"], devices=n["devices"], activations=dtype
    )


_ATTENTION = {"batch": 1, "query_tokens": 1, "past_tokens": 0, "heads": None, "kv_heads": None, "head_dim": None}
_LATENT = {"kv_rank": 512, "rope_size": 64, "nope_size": 128, "value_size": 128, "absorbed": 1}
_SCAN = {"batch": 1, "query_tokens": 1, "heads": None, "key_size": None, "value_size": None, "groups": 1}
_EXPERTS = {"tokens": None, "d_model": None, "width": None, "experts": None, "local_experts": 0, "topk": None}
OPERATORS: dict[str, Kind] = {
    "matmul": Kind(columns={"m": None, "n": None, "k": None}, make=_matmul),
    "grouped_matmul": Kind(columns={"m": None, "n": None, "k": None, "groups": None}, make=_grouped),
    "attention": Kind(columns={**_ATTENTION, "window": 0}, make=_attention),
    "latent_attention": Kind(
        columns={**{k: v for k, v in _ATTENTION.items() if k not in ("kv_heads", "head_dim")}, **_LATENT}, make=_latent
    ),
    "experts": Kind(columns=_EXPERTS, make=_experts),
    "mamba2": Kind(columns=_SCAN, make=_scan("mamba2")),
    "gated_delta": Kind(columns=_SCAN, make=_scan("gated_delta")),
    "norm": Kind(columns={"rows": None, "width": None}, make=_norm),
    "embedding": Kind(columns={"tokens": None, "width": None, "rows": None}, make=_embedding),
    **{name: Kind(columns={"elements": None}, make=_elementwise(name)) for name in ("silu_mul", "gelu", "add", "mul")},
    **{
        name: Kind(columns={"payload_bytes": None, "devices": None}, make=_collective(name))
        for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
    },
}
ALIASES = {"gemm": "matmul", "grouped_gemm": "grouped_matmul", "moe": "experts", "mla": "latent_attention"}
RENAMED = {
    "num_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_size": "head_dim",
    "window_size": "window",
    "kv_cache_dtype": "kv_dtype",
    "system": "device",
    "backend": "runtime",
    "hidden_size": "d_model",
    "inter_size": "width",
    "num_experts": "experts",
    "num_tokens": "tokens",
}
SIZES = tuple(dict.fromkeys(name for kind in OPERATORS.values() for name in kind.columns))
ASKED = ("row_id", "op", "device", "runtime", "dtype", "kv_dtype", *SIZES)


def ops_file(path: Path, out: Path, *, fold: str | None = None) -> tuple[int, int]:
    """Reads the CSV file ``path``, adds predictions and writes ``out``; returns the numbers of all and of failed rows.

    Unknown columns are copied after the known ones.

    Raises:
        SpecError: The file cannot be read as a table, or lacks a column.
        StorageError: ``out`` cannot be written.
    """
    check_output(out, source=path)
    rows = read_rows(path, required=("op", "device"), without=ANSWERED, optional=(*ASKED, *RENAMED))
    own = [name for name in rows[0] if name not in (*ASKED, *RENAMED)]
    answers = price_rows(rows, fold=fold)
    columns = [name for name in ASKED if any(name in row for row in answers)]
    write_rows(out, answers, (*columns, *own, *ANSWERED))
    return len(rows), sum(1 for row in answers if row["error"])


def price_rows(rows: Sequence[Mapping[str, str]], *, fold: str | None = None) -> list[dict[str, Any]]:
    """Returns the rows in order with their predictions; ``error`` says why a row has none, and is empty otherwise."""
    answers: list[dict[str, Any]] = [
        {**{RENAMED.get(name, name): text for name, text in row.items()}, "error": ""} for row in rows
    ]
    groups: dict[tuple[str, ...], list[tuple[int, list[int]]]] = {}
    for i, row in enumerate(answers):
        try:
            key, sizes = _parsed(row)
        except ChipwiseError as error:
            row["error"] = " ".join(str(error).split())
            continue
        groups.setdefault(key, []).append((i, sizes))
    for (name, device, runtime, dtype, cache, _), members in groups.items():
        kind = OPERATORS[name]
        table = np.array([sizes for _, sizes in members], dtype=np.float64)
        columns = {column: table[:, j] for j, column in enumerate(kind.columns)}
        try:
            op = kind.make(_constants(columns), dtype, cache)
            times = times_of(op, datasheet.load(device), stack=runtime_named(runtime).stack, fold=fold)
        except ChipwiseError as error:
            for i, _ in members:
                answers[i]["error"] = " ".join(str(error).split())
            continue
        for j, (i, _) in enumerate(members):
            answers[i] |= _answer(times, j)
    return answers


def _constants(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Returns sizes as integer arrays; the window, and whether latents are absorbed, stay single numbers."""
    single = {"window", "absorbed"}
    return {name: int(values[0]) if name in single else values.astype(np.int64) for name, values in columns.items()}


def _parsed(row: Mapping[str, str]) -> tuple[tuple[str, ...], list[int]]:
    name = row["op"].strip().lower()
    name = ALIASES.get(name, name)
    if name not in OPERATORS:
        raise UnknownName("operator", row["op"], [*OPERATORS, *ALIASES])
    device = datasheet.load(row["device"])
    runtime = runtime_named(row.get("runtime") or "vllm")
    dtype = format_name(row.get("dtype") or "bf16")
    if name in ("matmul", "grouped_matmul", "experts", "embedding"):
        weight_format(dtype)
    else:
        dtype = DType.named(dtype).value
    cache = DType.named(row.get("kv_dtype") or dtype).value if "attention" in name else ""
    sizes = []
    for column, default in OPERATORS[name].columns.items():
        value = whole(row, column, default=default)
        least = 0 if default == 0 or column == "absorbed" else 1
        if not least <= value <= 10**12:
            raise SpecError(f"must be a size from {least} to 10^12, not {value}", field=column)
        sizes.append(value)
    _check(dict(zip(OPERATORS[name].columns, sizes, strict=True)))
    single = [str(sizes[i]) for i, column in enumerate(OPERATORS[name].columns) if column in ("window", "absorbed")]
    return (name, device.name, runtime.name, dtype, cache, ",".join(single)), sizes


def _check(sizes: Mapping[str, int]) -> None:
    """Checks that sizes fit together.

    Raises:
        SpecError: Key heads do not divide the heads, or a token needs more experts than there are.
    """
    if "kv_heads" in sizes and sizes["heads"] % sizes["kv_heads"]:
        raise SpecError(f"{sizes['kv_heads']} do not divide {sizes['heads']} heads", field="kv_heads")
    for name in {"topk", "local_experts"} & sizes.keys():
        if sizes[name] > sizes["experts"]:
            raise SpecError(f"is {sizes[name]}, more than {sizes['experts']} experts", field=name)


def _inputs(dtype: str) -> str:
    return dtype if dtype in ("fp32", "fp16", "bf16", "fp8", "fp8_block", "nvfp4", "int8") else "bf16"


def _answer(times: KernelTimes, j: int) -> dict[str, Any]:
    limits = {"compute": times.compute_s[j], "memory": times.memory_s[j], "launch": times.launch_s[j]}
    return {
        "latency_s": f"{times.latency_s[j]:.6g}",
        "low_s": f"{times.low_s[j]:.6g}",
        "high_s": f"{times.high_s[j]:.6g}",
        **{f"{name}_s": f"{value:.6g}" for name, value in limits.items()},
        "bound": max(limits, key=lambda name: limits[name]),
        "provenance": f"predicted ({times.situation} device)",
    }
