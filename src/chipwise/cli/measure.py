"""``chipwise measure``: TTFT, TPOT and memory of any model on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from chipwise import api
from chipwise.api import answers
from chipwise.cli import measured, options, output, show
from chipwise.core import units
from chipwise.errors import ChipwiseError

OF_THIS_MACHINE = ("sustained", "shape", "value", "inputs", "profile", "trials")
NOT_COMPILED = ("batch", "prompt", "new", "weights", "sustained", "ambient", "remote", "listen", "adb", "profile")


def command(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            help="A winner's folder, a Hugging Face folder or config.json, a spec, a known name, an exported "
            "file (.onnx, .gguf, .pte, .tflite), a PyTorch module as package.module:build."
        ),
    ],
    runtime: Annotated[
        str | None, typer.Option(help="Runtime to measure in. Default: that of an exported file, else onnxruntime.")
    ] = None,
    threads: options.Threads = None,
    batch: options.Requests = None,
    prompt: options.PromptTimed = None,
    new: options.NewTimed = None,
    weights: options.WeightsBuilt = None,
    sustained: Annotated[
        str | None, typer.Option(help="Run without a pause for this long (such as 10m) and fit how speed decays.")
    ] = None,
    ambient: Annotated[
        str | None, typer.Option(help="With --sustained: temperature of the surroundings, such as 25C.")
    ] = None,
    remote: Annotated[
        str | None, typer.Option(help="Measure over ssh on user@host, which needs Python, numpy and the runtime.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            help="Serve a page at HOST:PORT, such as 0.0.0.0:8000, and measure in every browser that opens it, such "
            "as a phone's. Ctrl-C ends it."
        ),
    ] = None,
    adb: Annotated[
        str | None,
        typer.Option(
            metavar="PROGRAM",
            help="Measure a decoder on an Android phone connected by cable, with this llama-bench (built for Android).",
        ),
    ] = None,
    serial: Annotated[str | None, typer.Option(help="With --adb: the phone, if several are connected.")] = None,
    shape: options.Shape = None,
    value: options.Value = None,
    inputs: options.Inputs = None,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Also show an ONNX graph's operators by time, and its time without fusion."),
    ] = False,
    trials: options.Trials = None,
    keep: Annotated[bool, typer.Option("--keep/--no-keep", help="Save the result to the measurement store.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the measurement with all samples as JSON.")] = False,
) -> None:
    """Measure a model on this machine: latency percentiles, memory, MFU, MBU, energy, and how reliable they are.

    Models without weights (specs, configs, known names) get random weights. The prediction of this machine's profile
    (chipwise calibrate) is shown too. Results are saved; list them with: chipwise measurements.

    Any other ONNX graph or PyTorch module: chipwise measure model.onnx --shape x=1,3,48,320 --profile

    Compiled and tuned by TVM: chipwise measure model.onnx --runtime tvm --trials 512

    On a phone connected by cable: chipwise measure model.gguf --adb ./llama-bench
    """
    if adb is None:
        output.refuse(context, "serial", why="selects a phone for --adb; give --adb PROGRAM as well")
    if runtime == "tvm":
        output.refuse(context, *NOT_COMPILED, why="does not apply to --runtime tvm")
        _compiled(model, trials, threads, shape, value, inputs, keep=keep, as_json=as_json)
        return
    output.refuse(context, "trials", why="only applies with --runtime tvm")
    if adb is not None:
        if runtime not in (None, "llama.cpp"):
            raise typer.BadParameter(f"--adb works only with --runtime llama.cpp, not {runtime}")
        output.refuse(context, "batch", "remote", "listen", *OF_THIS_MACHINE, why="does not apply with --adb")
        found = api.measure_phone(
            model, program=adb, serial=serial, threads=threads, prompt=prompt, new=new, weights=weights, keep=keep,
            on_progress=_round,
        )  # fmt: skip
        show.json_of(found) if as_json else measured.measurement_table(found)
        return
    if listen is not None:
        if runtime not in (None, "browser", "wllama"):
            raise typer.BadParameter(f"--listen works only with --runtime browser or wllama, not {runtime}")
        output.refuse(context, "remote", *OF_THIS_MACHINE, why="does not apply with --listen")
        api.measure_pages(
            model, listen=listen, runtime=runtime, threads=threads, batch=batch, prompt=prompt, new=new,
            weights=weights, keep=keep, on_open=_opened, on_result=_as_json if as_json else _shown,
        )  # fmt: skip
        return
    seconds = None if sustained is None else units.parse_field(sustained, "duration", "--sustained")
    with show.waiting("measuring", quiet=as_json):
        outcome = api.measure(
            model,
            runtime=runtime,
            threads=threads,
            batch=batch,
            prompt=prompt,
            new=new,
            weights=weights,
            sustained_s=seconds,
            ambient_c=None if ambient is None else units.parse_field(ambient, "temperature", "--ambient"),
            remote=remote,
            keep=keep,
            shapes=answers.parse_shapes(shape) if shape else None,
            values=answers.parse_values(value) if value else None,
            inputs=inputs,
            profile=profile,
        )
    if as_json:
        show.json_of(outcome)
        return
    predicted = {} if outcome.predicted is None else outcome.predicted.metrics
    promised = outcome.promised or {name: (item.value, item.low, item.high) for name, item in predicted.items()}
    measured.measurement_table(outcome.measurement, promised=promised, limits=outcome.limits, used=outcome.used)
    if outcome.profile:
        measured.profile_table(outcome.profile)
    if outcome.fusions is not None:
        measured.fusions_table(outcome.fusions)
    output.say_notes(outcome.notes)
    if outcome.sustained is not None:
        measured.sustained_lines(outcome.sustained, kept=outcome.thermal_kept)


def _compiled(
    model: str,
    trials: int | None,
    threads: int | None,
    shape: list[str] | None,
    value: list[str] | None,
    inputs: Path | None,
    *,
    keep: bool,
    as_json: bool,
) -> None:
    """Measures a graph in TVM, with a progress bar while it tunes."""
    with output.progress_bar("tuning", quiet=as_json) as advance:
        found = api.measure_compiled(
            model,
            trials=answers.USUAL_TRIALS if trials is None else trials,
            threads=threads or 1,
            shapes=answers.parse_shapes(shape) if shape else None,
            values=answers.parse_values(value) if value else None,
            inputs=inputs,
            keep=keep,
            on_progress=advance,
        )
    if as_json:
        show.json_of(found)
        return
    measured.measurement_table(found.measurement)
    if found.race is not None:
        measured.race_line(found.race, found.trials)


def _opened(address: str, code: str) -> None:
    """Prints the address at which other devices open the measuring page."""
    sys.stderr.write(f"\n{code}\n" if code else "")
    output.notices.print(f"open this address in a browser (#NAME after it names the device); Ctrl-C ends: {address}")


def _round(stage: str, done: int, total: int) -> None:
    """Says what a phone is doing."""
    output.notices.print(f"round {min(done + 1, total)} of {total}: {stage}")


def _shown(machine: str, found: api.Measurement | ChipwiseError) -> None:
    """Prints the measurement that another machine's browser sent, or why it sent none."""
    if isinstance(found, ChipwiseError):
        output.notices.print(f"{machine}: {found}")
        return
    measured.measurement_table(found)
    clock = units.show(found.environment["clock_step_s"], "time")
    output.say(f"browser: {found.environment['browser']}; clock in steps of {clock}; WebGPU (not used): "
               f"{found.environment['webgpu']}")  # fmt: skip


def _as_json(machine: str, found: api.Measurement | ChipwiseError) -> None:
    """Prints another machine's measurement, or the error, as JSON."""
    _shown(machine, found) if isinstance(found, ChipwiseError) else show.json_of(found)
