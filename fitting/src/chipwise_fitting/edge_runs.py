"""Reads measured runs with one user: prompt and decode speeds on chips that people own, with the kernels of each run.

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
EPOCHS = ("2025",)  # runs from before these years have extra terms, which predictions for today's versions lack
NEW_TOKENS = 128  # generated tokens, if a row does not state them
PROMPT = 512.0  # prompt tokens, if a row does not state them: the default of llama-bench
SHORT_PROMPT = 8.0  # tokens of a prompt that a row calls short without their number: a sentence
CACHED_PROMPT = 8  # tokens that are read again if a prompt is in the cache: the end of a chat template
ASKED_AGAIN = re.compile(r"median run of (\d+) at prompt")
CACHING = ("llama.cpp", "ollama", "mlx-lm")
"""Servers that by default keep the last prompt's cache and reuse it for the next prompt."""
NEEDED = ("row_id", "device", "runtime", "model", "quant", "decode_tokens_per_s", "prefill_tokens_per_s")


def matrix_advantage(device: DeviceProfile, part: str) -> float:
    """Rate of the matrix units (16 or 8 bits) over that of the vector units of a CPU or GPU; 1 without matrix units."""
    vector = vector_flops_per_s(device, part)
    engines = [engine for engine in device.engines if engine.part == part]
    rates = [engine.rate(name) or 0.0 for engine in engines for name in ("fp16", "bf16", "int8")]
    return max(1.0, max(rates, default=0.0) / vector) if part != "npu" else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The kernels of one measured pass, as arrays with one value per kernel.

    ``memory_s`` and ``compute_s`` come from ``local.demands``. ``launches`` counts launches: a kernel is launched once
    for each piece of a long prompt. ``ideal_s`` is the time of the pass at the bandwidth in the data sheet (decoding),
    or at the rate of the vector units (prompts).
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
    tokens: float  # tokens of the pass: rates are tokens over seconds
    device: DeviceProfile | None = None
    part: str = ""
    stack: str = ""
    model: str = ""
    kernels: Kernels | None = None
    cached: bool = False  # whether the prompt was found in the cache of an earlier run
    problem: str = ""  # why the run cannot be predicted

    @property
    def chip(self) -> str:
        """The name of the chip's data sheet; empty if the run cannot be predicted."""
        return "" if self.device is None else self.device.name.partition(":")[0]

    @property
    def engine(self) -> str:
        """The class of the processor on which the run was measured, such as ``nvidia gpu`` or ``x86 cpu``."""
        assert self.device is not None
        return engine_class(self.device, self.part)

    @property
    def architecture(self) -> str:
        """Part of the chip (CPU, GPU or NPU) and the chip's architecture; empty if the run cannot be predicted."""
        return "" if self.device is None else f"{self.part}|{self.device.architecture}"

    @property
    def interval_class(self) -> str:
        """The class of runs from which the run's interval is computed."""
        assert self.device is not None
        return "cached prompt" if self.cached else interval_class(self.device, self.part)

    @property
    def plausible(self) -> bool:
        """Whether fits may learn from the run: it was not cached, and no prompt was faster than its arithmetic allows.

        Makers of NPUs publish no rate of arithmetic, so no run on an NPU counts as too fast.
        """
        if self.cached:
            return False
        if self.kernels is None or self.device is None or self.phase == "decode" or self.part == "npu":
            return True
        least = float(self.kernels.counts @ self.kernels.compute_s) / (2 * matrix_advantage(self.device, self.part))
        return self.measured_s > least


def table_in(folder: Path) -> Path:
    """Returns the path of the table in a folder, or the file itself."""
    return folder / "edge.csv.gz" if folder.is_dir() else folder


def read_runs(path: Path, *, told: bool = True) -> list[Run]:
    """Reads a run for each timed phase of each row that is not marked doubtful.

    Args:
        path: The table.
        told: Whether to use facts that only the row's remarks state: threads, memory, age of the runtime. A call of
            ``chipwise.estimate`` states none of these.

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
    """Whether a prompt is as long as the model's context, so that it is cut and its cache cannot be reused."""
    try:
        return prompt >= resolve(stand_in(model)).max_tokens
    except ChipwiseError:
        return False


def asked(run: Run, row: Mapping[str, str], query_tokens: int, past_tokens: int) -> Run:
    """Returns the run with its kernels, or with the reason why it has none."""
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
    """Returns the name of the row's runtime in ``local.STACKS``.

    Raises:
        UnknownName: The runtime is not in ``local.STACKS``.
    """
    name = runtime_named(row["runtime"]).name
    if name == "llama.cpp" and row.get("backend") == "vulkan":
        name = "llama.cpp-vulkan"
    if name not in local.STACKS:
        raise UnknownName("runtime", name, local.STACKS)
    return name


def part_of_row(row: Mapping[str, str], device: DeviceProfile, stack: str) -> str:
    """Returns whether CPU, GPU or NPU ran the model: the part that the row states, else the runtime's usual one."""
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
    """Returns the processor with as many cores as the run had threads, and with memory of the speed in the row."""
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
    """Returns the kernels of one pass.

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
    """Returns the first of ``EPOCHS`` that is later than a run's date; None for newer runs or an unknown date."""
    years = re.findall(r"20\d\d", date)
    return next((epoch for epoch in EPOCHS if years and max(years) < epoch), None)


def _dated(terms: local.Terms, device: DeviceProfile, part: str, epoch: str) -> local.Terms:
    """Returns ``terms`` with additional terms for versions from before ``epoch``."""
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
    """Returns the chip with only this many of its CPU cores, the fastest first, or with all if it has fewer."""
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
    """Returns the chip as seen by a program that was built without the chip's int8 product instructions."""
    engines = tuple(
        replace(each, fma_per_clock={k: v for k, v in each.fma_per_clock.items() if k != "int8"})
        for each in device.engines
    )
    return replace(device, name=f"{device.name}:no int8", engines=engines)


def with_bandwidth(device: DeviceProfile, bytes_per_s: float) -> DeviceProfile:
    """Returns the chip with memory of a different bandwidth."""
    fact = Bandwidth(value=f"{bytes_per_s / 1e9:.6g} GB/s", source="as the run's row says")
    levels = tuple(replace(each, bandwidth=fact) if each.name == "dram" else each for each in device.memory)
    return replace(device, name=f"{device.name}:{bytes_per_s / 1e9:.4g} GB/s", memory=levels)
