"""``chipwise search``: from a budget file to a trained, quantised, exported and measured transformer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def command(
    spec: Annotated[Path, typer.Argument(help="The search's YAML file, such as examples/clinic.yaml.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/<name> unless given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that the folder holds.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Put that run aside and begin anew.")] = False,
    workers: Annotated[int | None, typer.Option(help="Trainings side by side; the file's number unless given.")] = None,
    storage: Annotated[
        str | None,
        typer.Option(help="Keep trials in postgresql://…, sqlite:///… or another journal; in the folder unless given."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON and no progress.")] = False,
) -> None:
    """Search architectures and their quantisation under a budget, on real measurements; or cut the model of start_from.

    Leaves a folder with report.html, card.md, trials.csv, the winner as a Hugging Face folder and model.onnx, and the
    study, so that a stopped search goes on with --resume.

    A file says where a model must run, what it may take, what may be chosen, on which text, for how much CPU time:

    \b
      name: notes
      target: {device: local, runtime: onnxruntime}
      workload: {prompt_tokens: 64, new_tokens: 64}
      constraints: {tpot_p99: <= 0.2 ms, peak_memory: <= 80 MB, throughput: ">= 10 ktokens/s"}
      objectives: {bits_per_byte: minimize, tpot_p50: minimize}
      space:
        d_model: [64, 128, 192]
        depth: [1, 2, 3]
        vocab_size: [1024, 4096]
        weights: [int8, int4]
        layer: {heads: [2, 4], kv_heads: [1, 2], ffn: [gelu, swiglu], ffn_width: [128, 256, 512]}
      data: {source: files, paths: ["notes/*.txt"]}
      budget: {cpu: 16 min, final: 100 s}

    Limits: ttft_p50, ttft_p99, tpot_p50, tpot_p99, tpot_sustained, throughput, peak_memory, parameters, bits_per_byte;
    power, joules_per_token and usd_per_1k_tokens with target: {power: 15 W, price: 0.10 USD/h}; accuracy@TASK. One that
    may be broken at a price is {limit: <= 0.2 ms, penalty: 10 %}: at twice the limit bits per byte count as 10 % more.

    Ready ones lie in examples/: clinic, clinic-task (a floor on accuracy), own-text, shrink-encoder, smoke.
    """
    from chipwise import api
    from chipwise.cli import show

    if resume and restart:
        raise typer.BadParameter("choose one of --resume and --restart")
    try:
        if as_json:
            show.json_of(api.search(spec, out=out, resume=resume, restart=restart, workers=workers, storage=storage))
            return
        with show.live() as observer:
            record = api.search(
                spec,
                out=out,
                resume=resume,
                restart=restart,
                workers=workers,
                storage=storage,
                observer=observer,
            )
    except KeyboardInterrupt:
        print("stopped; what was finished is kept, go on with --resume", file=sys.stderr)
        raise typer.Exit(130) from None
    show.result(record, api.run_folder(spec, out))
