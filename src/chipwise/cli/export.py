"""``chipwise export``: writes a model for other programs: llama.cpp, ONNX Runtime, OpenVINO, ExecuTorch, LiteRT, …"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chipwise import api
from chipwise.cli import options, show, stages
from chipwise.cli.output import print_table, put, say, say_notes
from chipwise.core import units
from chipwise.core.layout import Column, Table
from chipwise.errors import MissingExtra, Unreachable, Unsupported


def command(
    model: Annotated[
        str,
        typer.Argument(help="A run's or a winner's folder, a Hugging Face folder with weights, or a .gguf file."),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="gguf (llama.cpp, Ollama), onnx (ONNX Runtime), openvino, executorch, litert, coreml, "
            "transformers.js, hf (transformers) or compressed-tensors (vLLM); or several, separated by commas.",
        ),
    ],
    weights: Annotated[
        str | None,
        typer.Option(
            help="fp32, fp16, bf16, int8, fp8 or int4 (not every file type supports all); GGUF also q8_0, q4_0; or one "
            "for each layer and the head ('int4/int8 head:int8'). Default: a winner's own format, else fp16 for "
            "gguf, int4 for compressed-tensors, fp32 for others."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write: new, empty, or an earlier export; with several formats, a subfolder is written for "
            "each. Default: NAME-TO, or RUN/export-TO for a run."
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Run the files and compare their outputs with torch's.")
    ] = True,
    method: Annotated[
        str,
        typer.Option(
            help="How to round: nearest, searched, gptq, learned (ONNX), or auto (lowest loss on calibration data)."
        ),
    ] = "auto",
    data: Annotated[
        list[str] | None,
        typer.Option(help="Calibration data: text files, a source, or a run file. Default: a winner's own data."),
    ] = None,
    group: Annotated[int, typer.Option(help="Values that share a scale in int4 (not GGUF): 16, 32, 64 or 128.")] = 32,
    symmetric: Annotated[
        bool, typer.Option("--symmetric/--asymmetric", help="Whether all int4 groups have the same zero point (ONNX).")
    ] = True,
    cpu_seconds: options.LearningSeconds = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written and verified as JSON.")] = False,
) -> None:
    """Write a model as GGUF, ONNX or a Hugging Face folder, and check that the outputs stay the same.

    Example: chipwise export smollm2 --to gguf --weights q4_0 writes smollm2-gguf/model.gguf with its tokenizer; then:
    llama-cli -m smollm2-gguf/model.gguf -p "The capital of France is"

    Prints sizes, the format of each part, how far the runtime's outputs differ from torch's, and what was not verified;
    manifest.json contains the same facts. With several formats, those that cannot be written are reported, and the
    others are written. GGUF files are checked with llama.cpp from the package xllamacpp (pip install 'chipwise[all]').
    The tools of ExecuTorch, LiteRT and Core ML each need a separate Python environment; if it is missing, an error says
    how to make it.
    """
    kinds = [kind.strip() for kind in to.split(",") if kind.strip()]
    written, refused = [], {}
    for kind in kinds or [to]:
        try:
            learns = method == "learned" or cpu_seconds is not None
            with show.waiting(f"exporting {kind}", quiet=as_json or learns):
                found = api.export(
                    model,
                    to=kind,
                    weights=weights,
                    out=out / kind if out is not None and len(kinds) > 1 else out,
                    verify=verify,
                    method=method,
                    data=data,
                    group=group,
                    symmetric=symmetric,
                    cpu_seconds=cpu_seconds,
                    on_progress=stages.silent if as_json else stages.Progress(),
                )
        except (Unsupported, MissingExtra, Unreachable) as error:
            if len(kinds) == 1:
                raise
            refused[kind] = str(error)
            continue
        written.append(found)
        if not as_json:
            printed(found)
    if as_json:
        several = {"written": [found.to_dict() for found in written], "refused": refused}
        show.json_of(several if len(kinds) > 1 else written[0].to_dict())
    else:
        for kind, why in refused.items():
            say(f"not written as {kind}: {why}")
    if refused:
        raise typer.Exit(1)


def printed(found: api.Exported) -> None:
    """Prints what was written, what was verified, and what was not verified."""
    heads = ("part", "layers", "format", "parameters", "size")
    right = ("parameters", "size")
    table = Table(title=found.headline(), columns=[Column(head=head, right=head in right) for head in heads])
    for part in found.groups:
        size = units.show(part.bytes, "bytes")
        table.add(part.part, part.layers or "–", part.format, f"{part.parameters:,}", size)
    print_table(table)
    for name, stored in found.files.items():
        put(f"{found.folder / name}: {units.show(stored, 'bytes')}")
    if found.quantiser is not None:
        say(f"rounded by: {found.quantiser.text()}")
    for check in found.verified:
        say(f"verified: {check.text()}")
    for what in found.unverified:
        say(f"not verified: {what}")
    if found.sample:
        say(f"llama.cpp writes: {found.sample!r}")
    say_notes(found.notes)
    put(f"run it: {found.run}")
