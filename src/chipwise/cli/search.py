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
from chipwise.cli import options, show
from chipwise.cli.output import json_of, print_table, put, refuse, say, stoppable
from chipwise.core import units
from chipwise.core.layout import Column, Table


def command(
    context: typer.Context,
    spec: Annotated[Path | None, typer.Argument(help="A run file (YAML); `chipwise init` writes one.")] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="Instead of a run file: a Python file that builds and trains networks (`init convnet`)."),
    ] = None,
    latency: Annotated[
        str | None, typer.Option(help="With --model: limit on the time of a pass on this machine, such as '<= 60 us'.")
    ] = None,
    parameters: Annotated[
        str | None, typer.Option(help="With --model: limit on the parameters, such as '<= 100k'.")
    ] = None,
    cpu: Annotated[str, typer.Option(help="With --model: CPU time of the whole search.")] = "10 min",
    seed: Annotated[int, typer.Option(help="With --model: random seed.", min=0)] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder of the run. Default: runs/<name>.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the folder's run; limits, budget and seed may have changed.")
    ] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Move the existing run aside and start again.")] = False,
    workers: Annotated[
        int | None, typer.Option(help="Number of parallel training runs. Default: as in the file.")
    ] = None,
    train_on: Annotated[
        str | None,
        typer.Option(help="Train on local, cuda, cuda:0,1, ray, ray://HOST:PORT or jobs. Default: as in the file."),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(help="Where to keep trials: postgresql://…, sqlite:///… or a journal. Default: the run's folder."),
    ] = None,
    carbon: options.Carbon = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON and no progress.")] = False,
) -> None:
    """Search architectures and their quantisation together, within a budget; or shrink a model (start_from).

    Writes a folder with report.html, card.md, trials.csv, the winner as a Hugging Face folder and as model.onnx, and
    the search's state, so that --resume can continue a stopped search.

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
    and budget: {gpu: 8 h}, {tokens: 2B} or {usd: 40} count only training. With jobs the search writes job files and
    stops with exit code 3 until their results are there (--resume).

    --resume continues a stopped search, also with new limits, another budget or another seed in the file; finished
    training runs and measurements are kept. If no design meets the limits, or the machine was too busy to confirm that
    one does, the search ends with the closest design and exit code 4; --resume measures again.

    Limits: ttft_p50, ttft_p99, tpot_p50, tpot_p99, tpot_sustained, throughput, peak_memory, parameters, bits_per_byte;
    power, joules_per_token and usd_per_1k_tokens, which need target: {power: 15 W, price: 0.10 USD/h}; accuracy@TASK.
    A soft limit is {limit: <= 0.2 ms, penalty: 10 %}: at twice the limit, bits per byte count as 10 % more.

    Commented examples: chipwise init --list

    Networks of your own, such as convolutional ones: a Python file lists choices, and builds and trains the networks.
    To continue a stopped search, run the same command again.

    \b
      chipwise init convnet && chipwise search --model convnet.py --latency "<= 60 us" --cpu "5 min"
    """
    if resume and restart:
        raise typer.BadParameter("choose one of --resume and --restart")
    if model is not None and spec is not None:
        raise typer.BadParameter("give either a run file, or --model and a Python file")
    if model is not None:
        refuse(context, "resume", "restart", "train_on", "storage", "carbon", why="has no effect with --model")
        _own_module(model, latency, parameters, cpu, out, workers or 1, seed, as_json)
        return
    if spec is None:
        raise typer.BadParameter("give a run file, or --model and a Python file")
    refuse(
        context,
        "latency",
        "parameters",
        "cpu",
        "seed",
        why="needs --model; with a run file, state it in the file",
    )
    stop = _Stop()
    stop.listen()
    with stoppable("finished work is kept, continue with --resume", stop.code):
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
                carbon=carbon,
                on_progress=stop.checked(observer),
            )
    if as_json:
        json_of(record)
    else:
        show.result(record, folder)
    raise typer.Exit(show.ending(record))


def _own_module(
    model: Path,
    latency: str | None,
    parameters: str | None,
    cpu: str,
    out: Path | None,
    workers: int,
    seed: int,
    as_json: bool,
) -> None:
    how = "finished training runs are kept; run the same command again to continue"
    with stoppable(how), show.bar("search", quiet=as_json) as advance:
        found = api.search_module(
            model,
            latency=latency,
            parameters=parameters,
            cpu=cpu,
            out=out,
            workers=workers,
            seed=seed,
            on_progress=lambda phase, done, wanted: advance(phase, done / wanted),
        )
    if as_json:
        json_of(found)
        return
    table = Table(title=model.stem, columns=[Column(), Column(head="predicted", right=True), Column(head="measured")])
    for name, kind, title in (("ttft_p50", "time", "time of a pass, P50"), ("parameters", "count", "parameters")):
        cost = found.promised[name]
        table.add(title, units.interval(cost.value, cost.low, cost.high, kind), units.show(found.measured[name], kind))
    table.add("time of a pass, P99", "", units.show(found.measured["ttft_p99"], "time"))
    table.add("validation loss", "", units.number(found.loss))
    if found.test is not None:
        table.add("test", "", units.number(found.test))
    print_table(table)
    say(", ".join(f"{name}: {value}" for name, value in found.choices.items()))
    say(
        f"{found.priced} networks timed, {found.trained} trained for {found.short_s:.0f} CPU-s, the winner for "
        f"{found.final_s:.0f} CPU-s; times are the processor time of one thread in ONNX Runtime"
    )
    put(f"winner: {found.folder}")


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

    def code(self) -> int:
        """The exit code of a stopped search."""
        return 143 if self.number == signal.SIGTERM else 130

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
