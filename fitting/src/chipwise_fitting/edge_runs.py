"""Measured runs of one user: a table of prompt and decode speeds on chips that people own, as questions of kernels.

Columns: row_id, device, device_class, variant, runtime, backend, model, quant, prompt_tokens, gen_tokens,
decode_context, prefill_tokens_per_s, decode_tokens_per_s, quality. Rows marked doubtful are left out.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.errors import ChipwiseError, UnknownName
from chipwise.hardware import datasheet
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.facts import Bandwidth, Count
from chipwise.hardware.runtime import runtime_named
from chipwise.hardware.suited import format_in
from chipwise.model.published.read import resolve
from chipwise.predict.kernels import local
from chipwise.predict.kernels.local_engines import (
    engine_class,
    interval_class,
    part_of,
    vector_flops_per_s,
)
from chipwise.predict.served.formats import formats_of
from chipwise.predict.served.lowering import lower_pass
from chipwise.predict.served.plan import Plan
from chipwise.predict.served.setting import PlacedOp, Setting, Step
from chipwise_fitting.stand_ins import stand_in
from chipwise_fitting.table_runs import number, packed_rows

Phase = Literal["decode", "prefill"]
EPOCHS = ("2025",)  # runs from before have terms that no prediction of today's versions has
NEW_TOKENS = 128  # where a row does not say how many were made
PROMPT = 512.0  # tokens, where a row does not say: what llama-bench takes
SHORT_PROMPT = 8.0  # tokens of a prompt that a row calls short and does not count: a sentence
CACHED_PROMPT = 8  # tokens that are read again of a prompt found in the cache: the end of a chat template
ASKED_AGAIN = re.compile(r"median run of (\d+) at prompt")
CACHING = ("llama.cpp", "ollama", "mlx-lm")
"""Servers that keep the last prompt's cache and find the next one in it, as they come."""
NEEDED = ("row_id", "device", "runtime", "model", "quant", "decode_tokens_per_s", "prefill_tokens_per_s")


def matrix_advantage(device: DeviceProfile, part: str) -> float:
    """How much faster the part's matrix units are than its vector units, at 16 or 8 bits; 1 where it has none."""
    vector = vector_flops_per_s(device, part)
    engines = [engine for engine in device.engines if engine.part == part]
    rates = [engine.rate(name) or 0.0 for engine in engines for name in ("fp16", "bf16", "int8")]
    return max(1.0, max(rates, default=0.0) / vector) if part != "npu" else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The kernels of one measured pass, as arrays of one value a kernel.

    ``memory_s`` and ``compute_s`` are what ``local.demands`` says; ``launches`` counts the pieces of long prompts.
    ``ideal_s`` is the pass at the sheet's bandwidth (decoding) or at its vector units' rate (prompts).
    """

    counts: Float64Array
    launches: Float64Array
    memory_s: Float64Array
    compute_s: Float64Array
    terms: tuple[local.Terms, ...]
    ideal_s: float
    layers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured pass: a decode step, or a whole prompt."""

    row_id: str
    phase: Phase
    subset: str
    measured_s: float
    tokens: float  # of the pass: rates are tokens over seconds
    device: DeviceProfile | None = None
    part: str = ""
    stack: str = ""
    model: str = ""
    kernels: Kernels | None = None
    cached: bool = False  # whether the prompt had been read before, and was found in the cache
    problem: str = ""  # why nothing can be predicted

    @property
    def chip(self) -> str:
        """The name of the chip's sheet; empty where nothing can be predicted."""
        return "" if self.device is None else self.device.name.partition(":")[0]

    @property
    def engine(self) -> str:
        """The class of the engine that runs it."""
        assert self.device is not None
        return engine_class(self.device, self.part)

    @property
    def architecture(self) -> str:
        """The part of the chip and the chip's architecture; empty where nothing can be predicted."""
        return "" if self.device is None else f"{self.part}|{self.device.architecture}"

    @property
    def interval_class(self) -> str:
        """The class that its interval is measured on."""
        assert self.device is not None
        return "cached prompt" if self.cached else interval_class(self.device, self.part)

    @property
    def plausible(self) -> bool:
        """Whether the pass is learnt from: it computed what it says, faster than its arithmetic as no prompt is.

        Makers of NPUs publish no rate of their arithmetic, so nothing there is too fast.
        """
        if self.cached:
            return False
        if self.kernels is None or self.device is None or self.phase == "decode" or self.part == "npu":
            return True
        least = float(self.kernels.counts @ self.kernels.compute_s) / (2 * matrix_advantage(self.device, self.part))
        return self.measured_s > least


def table_in(folder: Path) -> Path:
    """The table of a folder, or the file itself."""
    return folder / "edge.csv.gz" if folder.is_dir() else folder


def read_runs(path: Path, *, told: bool = True) -> list[Run]:
    """Every phase that was timed of every row that is not doubtful.

    Args:
        path: The table.
        told: Whether what only the row's remarks tell is known: threads, memory, age of the runtime. A question to
            ``chipwise.estimate`` has none of it.

    Raises:
        SpecError: The table cannot be read, or lacks a column.
    """
    rows = (row for row in packed_rows(path, NEEDED) if row.get("quality") != "doubtful")
    return [run for row in rows for run in _runs(row if told else {**row, "device_detail": "", "date": ""})]


def _runs(row: dict[str, str]) -> Iterator[Run]:
    notes = row.get("notes") or ""
    prompt = number(row.get("prompt_tokens")) or (SHORT_PROMPT if "the prompt is short" in notes else PROMPT)
    again = ASKED_AGAIN.search(notes)
    cached = again is not None and int(again[1]) > 1 and row["runtime"].strip().lower() in CACHING
    cached = cached and not _fills_context(row["model"], prompt)
    made = number(row.get("gen_tokens")) or float(NEW_TOKENS)
    past = (number(row.get("decode_context")) or 0.0) + made / 2
    for phase, tokens, step in (
        ("decode", 1.0, (1, round(past))),
        ("prefill", prompt, (CACHED_PROMPT, round(prompt)) if cached else (round(prompt), 0)),
    ):
        rate = number(row.get(f"{phase}_tokens_per_s"))
        if not rate or rate <= 0:
            continue
        run = Run(
            row_id=row["row_id"],
            phase="decode" if phase == "decode" else "prefill",
            subset=row.get("device_class") or row["device"],
            measured_s=tokens / rate,
            tokens=tokens,
            cached=cached and phase == "prefill",
        )
        yield asked(run, row, *step)


def _fills_context(model: str, prompt: float) -> bool:
    """Whether a prompt is as long as the model's context: it is cut, so that its cache does not fit the next one."""
    try:
        return prompt >= resolve(stand_in(model)).max_tokens
    except ChipwiseError:
        return False


def asked(run: Run, row: Mapping[str, str], query_tokens: int, past_tokens: int) -> Run:
    """The run with its kernels, or with the reason why it has none."""
    try:
        variant = row.get("variant") or ""
        device = datasheet.load(f"{row['device']}:{variant}" if variant.startswith("binned-") else row["device"])
        stack = stack_of(row)
        part = part_of_row(row, device, stack)
        if part == "cpu":
            device = as_it_ran(row, device, run.phase)
        kernels = kernels_of(row["model"], row["quant"], device, part, stack, query_tokens, past_tokens)
        epoch = epoch_of(row.get("date") or "")
        if epoch is not None:
            kernels = replace(kernels, terms=tuple(_dated(terms, device, part, epoch) for terms in kernels.terms))
    except ChipwiseError as error:
        return replace(run, problem=str(error))
    return replace(run, device=device, part=part, stack=stack, model=row["model"], kernels=kernels)


def stack_of(row: Mapping[str, str]) -> str:
    """The runtime as ``local.STACKS`` names it.

    Raises:
        UnknownName: It is none of these.
    """
    name = runtime_named(row["runtime"]).name
    if name == "llama.cpp" and row.get("backend") == "vulkan":
        name = "llama.cpp-vulkan"
    if name not in local.STACKS:
        raise UnknownName("runtime", name, local.STACKS)
    return name


def part_of_row(row: Mapping[str, str], device: DeviceProfile, stack: str) -> str:
    """The part of the chip that ran: as the row says, else the runtime's own."""
    listed = {engine.part for engine in device.engines}
    for part, is_it in (
        ("npu", row.get("variant") == "npu"),
        ("cpu", row.get("variant") == "cpu" or row.get("backend") == "cpu"),
        ("gpu", row.get("backend") in ("opencl", "gpu", "metal", "vulkan")),
    ):
        if is_it and part in listed:
            return part
    return part_of(device, stack)


def as_it_ran(row: Mapping[str, str], device: DeviceProfile, phase: Phase) -> DeviceProfile:
    """The processor with as many cores as the run had threads, and memory at the rate that the row tells."""
    told = row.get("device_detail", "")
    threads = re.search(rf"{phase} with (?:the best count \()?(\d+)", told) or re.search(r"\b(\d+) threads", told)
    if threads is not None:
        device = with_threads(device, int(threads[1]))
    if "AVX2" in told:
        device = without_dot_products(device)
    transfers = re.search(r"DDR\d-(\d{4})", told)
    usual = re.search(r"DDR\dX?-(\d+)", device.level("dram").technology)
    if transfers is None or usual is None or transfers[1] == usual[1]:
        return device
    return with_bandwidth(device, device.mem_bandwidth_bytes_per_s * int(transfers[1]) / int(usual[1]))


@functools.lru_cache(maxsize=4096)
def kernels_of(
    model: str, quant: str, device: DeviceProfile, part: str, stack: str, query_tokens: int, past_tokens: int
) -> Kernels:
    """The kernels of one pass.

    Raises:
        UnknownName: The model or the format is not known.
        Unsupported: The device lists no arithmetic rate.
    """
    arch = resolve(stand_in(model)).without_towers()
    mixture = any(hasattr(layer.ffn, "experts") for layer in arch.layers)
    setting = Setting(
        arch=arch,
        plan=Plan(),
        formats=formats_of(format_in(runtime_named(stack), quant), wide="fp16", mixture=mixture),
        runtime=runtime_named("llama.cpp"),
    )
    parts = lower_pass(setting, Step(batch=1, query_tokens=query_tokens, past_tokens=past_tokens))
    counts = np.array([each.count for each in parts], float)
    memory_s, compute_s, pieces = np.array([local.demands(each.op, device, part, stack) for each in parts], float).T
    return Kernels(
        counts=counts,
        launches=counts * pieces,
        memory_s=memory_s,
        compute_s=compute_s,
        terms=tuple(_terms(each, device, part, stack) for each in parts),
        ideal_s=_ideal_s(parts, device, part, few=query_tokens <= local.FEW_ROWS),
        layers=len(arch.layers),
    )


def _ideal_s(parts: Sequence[PlacedOp], device: DeviceProfile, part: str, *, few: bool) -> float:
    works = [(each.count, each.op.work()) for each in parts]
    if few:
        return sum(count * float(work.bytes) for count, work in works) / device.mem_bandwidth_bytes_per_s
    return sum(count * float(work.flops) for count, work in works) / vector_flops_per_s(device, part)


def _terms(each: PlacedOp, device: DeviceProfile, part: str, stack: str) -> local.Terms:
    few = bool(local.rows_of(each.op) <= local.FEW_ROWS)
    return local.terms_of(device, part, stack, each.op, few=few)


def epoch_of(date: str) -> str | None:
    """The first of ``EPOCHS`` that a run is from before; None where it is of today, or of some time until then."""
    years = re.findall(r"20\d\d", date)
    return next((epoch for epoch in EPOCHS if years and max(years) < epoch), None)


def _dated(terms: local.Terms, device: DeviceProfile, part: str, epoch: str) -> local.Terms:
    """With a term for versions from before ``epoch``."""
    kind = engine_class(device, part)
    phase = terms.flops[0][0].partition("|")[0]
    content = next(name.rpartition("|")[2] for name, _ in terms.bytes if name.startswith(f"bytes|{kind}|"))
    old = [f"|{kind}|before {epoch}", f"|{kind}, {content}|before {epoch}"]
    return replace(
        terms,
        bytes=(*terms.bytes, *((f"bytes{each}", 1.0) for each in old)),
        flops=(*terms.flops, *((f"{phase}{each}", 1.0) for each in old)),
    )


def with_threads(device: DeviceProfile, threads: int) -> DeviceProfile:
    """The chip with so many of its CPU cores, the fastest first; with all where there are no more."""
    left, engines = float(threads), []
    for engine in device.engines:
        if engine.part == "cpu" and engine.units is not None:
            used = min(left, engine.units.number)
            left -= used
            if used == 0:
                continue
            engine = replace(engine, units=Count(value=str(int(used)), source=engine.units.source))
        engines.append(engine)
    return replace(device, name=f"{device.name}:{threads} threads", engines=tuple(engines))


def without_dot_products(device: DeviceProfile) -> DeviceProfile:
    """The chip for a program that was built without its instructions for products of int8."""
    engines = tuple(
        replace(each, fma_per_clock={k: v for k, v in each.fma_per_clock.items() if k != "int8"})
        for each in device.engines
    )
    return replace(device, name=f"{device.name}:no int8", engines=engines)


def with_bandwidth(device: DeviceProfile, bytes_per_s: float) -> DeviceProfile:
    """The chip with memory of another rate."""
    fact = Bandwidth(value=f"{bytes_per_s / 1e9:.6g} GB/s", source="as the run's row says")
    levels = tuple(replace(each, bandwidth=fact) if each.name == "dram" else each for each in device.memory)
    return replace(device, name=f"{device.name}:{bytes_per_s / 1e9:.4g} GB/s", memory=levels)
