"""``chipwise search``: from a run file to a trained, quantised, exported and measured transformer."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from chipwise import api
from chipwise.api import answers
from chipwise.cli import show
from chipwise.cli.output import json_of


def command(
    spec: Annotated[Path, typer.Argument(help="A run file (YAML); `chipwise init` writes one.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the run. Default: runs/<name>.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the folder's run; limits, budget and seed may have changed.")
    ] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Move the existing run aside and start again.")] = False,
    workers: Annotated[int | None, typer.Option(help="Number of parallel trainings. Default: as in the file.")] = None,
    train_on: Annotated[
        str | None,
        typer.Option(help="Train on local, cuda, cuda:0,1, ray, ray://HOST:PORT or jobs. Default: as in the file."),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(help="Keep trials in postgresql://…, sqlite:///… or another journal. Default: the folder."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON and no progress.")] = False,
) -> None:
    """Search architectures and their quantisation together, under a budget; or shrink the model of start_from.

    Writes a folder with report.html, card.md, trials.csv, the winner as a Hugging Face folder and as model.onnx, and
    the study, so that a stopped search can continue with --resume.

    A run file states the target device, the limits, the search space, the data and the CPU budget:

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

    Candidates train on this machine's cores; train: {on: cuda} (or ray, ray://head:10001, jobs) trains them elsewhere,
    and budget: {gpu: 8 h}, {tokens: 2B} or {usd: 40} count only trainings. With jobs the search writes job files and
    stops with exit code 3 until their results are there (--resume).

    --resume continues a stopped search, also with new limits, another budget or another seed in the file; trainings and
    measurements are kept. If no design keeps the limits, or a busy machine left them unconfirmed, the search ends with
    the closest design and exit code 4; --resume measures again.

    Limits: ttft_p50, ttft_p99, tpot_p50, tpot_p99, tpot_sustained, throughput, peak_memory, parameters, bits_per_byte;
    power, joules_per_token and usd_per_1k_tokens with target: {power: 15 W, price: 0.10 USD/h}; accuracy@TASK. A soft
    limit is {limit: <= 0.2 ms, penalty: 10 %}: at twice the limit, bits per byte count as 10 % more.

    Commented examples: chipwise init --list
    """
    if resume and restart:
        raise typer.BadParameter("choose one of --resume and --restart")
    stop = _Stop()
    stop.listen()
    try:
        folder = answers.run_folder(spec, out)  # reports mistakes in the file before torch is imported
        if resume and not answers.holds_run(folder):
            print(f"{folder} holds no run to resume; starting a new one", file=sys.stderr)
        with contextlib.nullcontext(answers.silent) if as_json else show.live() as observer:
            record = api.search(
                spec,
                out=out,
                resume=resume,
                restart=restart,
                workers=workers,
                train_on=train_on,
                storage=storage,
                on_progress=stop.checked(observer),
            )
    except KeyboardInterrupt:
        print("stopped; finished work is kept, continue with --resume", file=sys.stderr)
        raise typer.Exit(143 if stop.number == signal.SIGTERM else 130) from None
    if as_json:
        json_of(record)
    else:
        show.result(record, folder)
    raise typer.Exit(show.ending(record))


class _Stop:
    """A request to stop the search, sent by a signal.

    The signal raises KeyboardInterrupt at once. If it arrives in a finaliser, Python swallows the exception; then the
    search's next progress event raises it again.
    """

    def __init__(self) -> None:
        self.number: int | None = None

    def listen(self) -> None:
        """Handles SIGTERM, and Ctrl-C unless this process ignores it."""
        signal.signal(signal.SIGTERM, self._handle)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
        usual = sys.unraisablehook
        sys.unraisablehook = lambda told: None if told.exc_type is KeyboardInterrupt else usual(told)

    def _handle(self, number: int, frame: object) -> None:
        self.number = number
        raise KeyboardInterrupt

    def checked(self, observer: answers.Observer) -> answers.Observer:
        """Wraps ``observer`` so that it stops the search after a signal, unless clean-up has already begun."""

        def report(status: answers.Status) -> None:
            undoing = sys.exc_info()[0] is not None
            if self.number is not None and not undoing and threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            observer(status)

        return report
