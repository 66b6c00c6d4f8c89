"""Chooses a mix of formats for a GGUF file's matrices that changes the model least within time and memory limits.

1. A Hugging Face folder is converted to an FP16 GGUF file; a GGUF file is used as it is.
2. One forward and one backward pass on calibration text give the loss (divergence) of each format in each matrix.
3. Each format is timed for each matrix shape in llama.cpp's kernels, or predicted from another chip's data sheet.
4. The mix with the least total loss within the limits is chosen exactly; its prefill may be at most 5 % slower than
   that of the best stock mix (one of llama.cpp's own) within the same limits.
5. The chosen mix and the stock mix are written and measured: divergence on held-out text, and the times of a decode
   step and of a prefill in llama.cpp. The better file is the result.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from chipwise.core.digest import digest
from chipwise.core.files import check_output
from chipwise.deploy.export import gguf
from chipwise.deploy.export.gguf_mix import fallback
from chipwise.deploy.export.gguf_read import GgufFile, read_arch
from chipwise.deploy.export.hf import require_folder, stream_pretrained
from chipwise.deploy.kits.kits import sha256_of
from chipwise.deploy.runtimes.ggml import TYPES, ggml
from chipwise.design.limits import parse_constraints
from chipwise.design.quantize.answers import Kept, undamaged
from chipwise.design.quantize.gguf_page import StageSeconds, origin_of, write_pages
from chipwise.design.quantize.gguf_run import FORMATS, LOSSES, GgufRun, OnProgress, QuantisedGguf
from chipwise.design.quantize.windows import text_files
from chipwise.errors import ChipwiseError, SpecError, StorageError, UnknownName, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.walk.weights import weight_shapes


def quantize_gguf(
    source: Path,
    data: Sequence[str | Path],
    *,
    tpot: str | None,
    memory: str | None,
    context: int | None,
    weights: str | None,
    device: str | None,
    dry_run: bool,
    out: Path | None,
    seed: int,
    resume: bool,
    on_progress: OnProgress,
) -> QuantisedGguf:
    """Implements :func:`chipwise.quantize` for GGUF files and folders."""
    limits = _limits(tpot, memory)
    if weights is not None and limits:
        raise SpecError(
            "a single format has a fixed size and time; leave out either the limit or the format", field="format"
        )
    texts = text_files(data)
    kind = None if weights is None else _format(weights)
    ggml()  # fails early if llama.cpp is not installed
    target = out or Path(
        f"{source.stem if source.is_file() else source.resolve().name}.{(weights or 'mix').lower()}.gguf"
    )
    check_output(target, source=source)
    folder, spent = target.with_name(f"{target.name}.state"), StageSeconds(on_progress)
    if source.is_dir():
        require_folder(source)
    elif not source.is_file():
        raise SpecError("there is no such file or folder", file=str(source))
    arch = stream_pretrained(source)[0] if source.is_dir() else read_arch(GgufFile.open(source))
    if context is not None and context > arch.max_tokens:
        raise SpecError(f"the model reads at most {arch.max_tokens:,} tokens", field="context")
    if kind is not None:
        _require_blocks(arch, kind)
    stored = sorted(source.glob("*.safetensors")) if source.is_dir() else [source]
    identity = digest([[sha256_of(file) for file in (*stored, *texts)], seed])
    kept = Kept(folder, identity, resume=resume)
    try:
        with undamaged(folder):
            file = GgufFile.open(as_gguf(source, folder, spent) if source.is_dir() else source)
            run = GgufRun(file, texts, kept, device=device, context=context, seed=seed, on_progress=spent)
            found = run.answer(target, limits, kind, dry_run=dry_run)
    except ChipwiseError as error:
        known = (folder / LOSSES / "begin.json").exists() or isinstance(error, StorageError)
        if not known:  # remove the state, which holds nothing that a later run could use
            shutil.rmtree(folder, ignore_errors=True)
        raise
    spent.stop()
    found = replace(found, source=str(source), origin=origin_of(source, file), cpu_s=spent.found)
    if not dry_run:
        write_pages(found, target)
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _limits(tpot: str | None, memory: str | None) -> dict[str, float]:
    made = {}
    for name, metric, text, what in (
        ("tpot", "tpot_p50", tpot, "time"),
        ("memory", "peak_memory", memory, "size"),
    ):
        if text is None:
            continue
        try:
            (item,) = parse_constraints({metric: text})
        except SpecError as error:
            raise SpecError(error.message, field=name) from None
        if item.op != "<=":
            raise SpecError(f"must be an upper limit such as '<= …', not {item.text!r}", field=name)
        made[what] = item.limit
    return made


def _format(name: str) -> str:
    known = {each.lower(): each for each in FORMATS}
    if name.lower() not in known:
        raise UnknownName("GGUF format", name, known)
    return known[name.lower()]


def _require_blocks(arch: ArchSpec, kind: str) -> None:
    """Checks that a format can store every matrix, before anything is computed.

    Raises:
        Unsupported: A matrix's width is not a multiple of the format's block size; the message names a format that
            fits.
    """
    for name, shape in weight_shapes(arch).items():
        if len(shape) == 2 and not TYPES[kind].fits(shape[1]):
            raise Unsupported(
                f"format: {kind.lower()} stores blocks of {TYPES[kind].block} values, but rows of {name} have "
                f"{shape[1]} "
                f"values; use a format with smaller blocks such as {fallback(kind, shape[1]).lower()}, or leave "
                "--format out for a mix"
            )


def as_gguf(folder: Path, state: Path, on_progress: OnProgress = lambda stage, done, total: None) -> Path:
    """Converts a Hugging Face folder to a GGUF file in FP16; memory is needed only for the largest matrix."""
    made = state / "original.gguf"
    if not made.exists():
        arch, weights = stream_pretrained(folder)
        design, told = Design(arch=arch, weights="fp16"), partial(on_progress, "writing the original")
        gguf.export(design, weights, made, tokenizer=folder / "tokenizer.json", resumable=True, on_tensor=told)
    return made
