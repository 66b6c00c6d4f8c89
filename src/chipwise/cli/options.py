"""Options that several commands have, with one help text each."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from chipwise.cli import completion, image_size, quality

MODEL = typer.Argument(
    help="A model of `chipwise models`, a config.json or its folder, or a spec file.",
    autocompletion=completion.models,
)
Model = Annotated[str, MODEL]
Device = Annotated[
    str,
    typer.Option(
        help="A device of `chipwise devices` (or a part of it: apple-m3-max:cpu), a YAML file, or `here`.",
        autocompletion=completion.devices,
    ),
]
Memory = Annotated[str | None, typer.Option(help=completion.MEMORY)]
Runtime = Annotated[
    str | None,
    typer.Option(
        autocompletion=completion.runtimes, help="vllm, sglang, trtllm, llama.cpp, … Default: what suits the chip."
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(help="bf16, fp8, nvfp4, int4, q4_k_m, …; own: the checkpoint's. Default: what suits the chip."),
]
Kv = Annotated[str | None, typer.Option(help="KV-cache dtype. Default: same as the activations.")]
Prompt = Annotated[int, typer.Option(help="Prompt tokens of a request.", min=1)]
New = Annotated[int, typer.Option(help="New tokens of a request.", min=1)]
Batch = Annotated[int, typer.Option(help="Requests in flight.", min=1)]
Images = Annotated[int, typer.Option(help=image_size.IMAGES, min=0)]
ImageSize = Annotated[str, typer.Option("--image-size", help=image_size.SIZE)]
Audio = Annotated[float | None, typer.Option(help=image_size.AUDIO)]
Like = Annotated[str | None, typer.Option(help=completion.LIKE)]
Ambient = Annotated[
    str | None, typer.Option(help="Temperature of the surroundings, such as 45C; also predicts times under long load.")
]
Tp = Annotated[int, typer.Option(help="Tensor-parallel degree.", min=1)]
Pp = Annotated[int, typer.Option(help="Pipeline-parallel degree.", min=1)]
Ep = Annotated[int, typer.Option(help="Expert-parallel degree.", min=1)]
Dp = Annotated[int, typer.Option(help="Data-parallel degree: number of replicas of attention.", min=1)]
TrainTokens = Annotated[str | None, typer.Option(help=quality.HELP, callback=quality.check_tokens)]
LearningSeconds = Annotated[
    float | None,
    typer.Option(help="CPU seconds for learned rounding. Default: 60. If given, auto also tries learned.", min=1),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print as JSON, in SI units.")]


class Arrivals(StrEnum):
    """Arrival process of requests."""

    CONSTANT = "constant"
    POISSON = "poisson"
    GAMMA = "gamma"


# Options of `measure` and `kit` that describe a measurement.
Threads = Annotated[int | None, typer.Option(help="Threads of the runtime. Default: the run's own, else 1.", min=1)]
Requests = Annotated[int | None, typer.Option(help="Concurrent requests. Default: the run's own, else 1.", min=1)]
PromptTimed = Annotated[int | None, typer.Option(help="Prompt tokens. Default: the run's own, else 64.", min=1)]
NewTimed = Annotated[int | None, typer.Option(help="New tokens. Default: the run's own, else 64.", min=1)]
WeightsBuilt = Annotated[
    str | None,
    typer.Option(
        help="Weight format, if the model is built here: fp32 (the default), int8, int4, or a format for each layer "
        "and the head ('int4/int8 head:int8')."
    ),
]

Shape = Annotated[
    list[str] | None,
    typer.Option(
        help="ONNX graph or module: an input's shape, as x=1,3,224,224 (repeatable). An open first axis becomes 1."
    ),
]
Value = Annotated[
    list[str] | None,
    typer.Option(help="ONNX graph or module: a value that fills an input, such as sr=16000 (repeat the option)."),
]
Inputs = Annotated[
    Path | None,
    typer.Option(
        help="ONNX graph or module: a .npz file with an array for each input. Default: random data, and ones for masks."
    ),
]
Trials = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="With --runtime tvm: schedules to try for an ONNX graph's kernels; 0 uses TVM's own. Default: 512.",
    ),
]

# Options of `estimate` and `bill` that describe a machine that you own.
Buy = Annotated[
    str | None, typer.Option(help="Purchase price of one machine: '9000 USD', or '8000 EUR @ 1.16' with a rate.")
]
BuyOrList = Annotated[
    str | None, typer.Option(help="Purchase price: '1800 USD', '1600 EUR @ 1.16', or 'list' for the data sheet's.")
]
Carbon = Annotated[
    str | None, typer.Option(help="Carbon intensity of your grid, such as '350 g/kWh', for the search's emissions.")
]
Electricity = Annotated[str | None, typer.Option(help="Electricity tariff: '0.30 USD/kWh', or '0.28 EUR/kWh @ 1.16'.")]

Years = Annotated[float, typer.Option(help="Years over which a machine that you buy is paid off.")]
Use = Annotated[float, typer.Option(help="Share of all hours in which your machine works.")]
OwnPower = Annotated[
    str | None, typer.Option(help="Power draw of your machine, such as 450W. Default: its board power.")
]

# Options of `plan` and `simulate` that describe a load.
OF_MADE_LOADS = ("prompt", "new", "spread", "shared_tokens", "prefixes", "arrivals", "burstiness")
"""Options that cannot be combined with a trace, which defines its requests."""
Rate = Annotated[str | None, typer.Option(help="Rate of requests: 20/s, 90/min, 1200/h.")]
Trace = Annotated[Path | None, typer.Option(help="A log of requests to replay: JSON lines or CSV.")]
MeanPrompt = Annotated[int, typer.Option(help="Mean prompt tokens.", min=1)]
MeanNew = Annotated[int, typer.Option(help="Mean new tokens.", min=1)]
Spread = Annotated[float, typer.Option(help="Coefficient of variation of prompt and new tokens.", min=0)]
SharedTokens = Annotated[int, typer.Option(help="Number of prompt tokens that requests share as a prefix.", min=0)]
Prefixes = Annotated[int, typer.Option(help="Number of different shared prefixes.", min=1)]
Gaps = Annotated[Arrivals, typer.Option(help="Distribution of the gaps between arrivals.")]
Burstiness = Annotated[float, typer.Option(help="With --arrivals gamma: squared coefficient of variation of the gaps.")]
Link = Annotated[str | None, typer.Option(help="Bandwidth from prefill to decode devices, such as 50 GB/s.")]
SlowShare = Annotated[
    str | None, typer.Option(help="Share of time in which other programs (neighbours) slow the machine, such as 5%.")
]
SlowFactor = Annotated[
    float | None, typer.Option(help="Factor on the times of steps while neighbours slow down the machine, such as 1.5.")
]
NetworkP50 = Annotated[
    str | None, typer.Option(help="Median network delay of a request, there and back, such as 20ms.")
]
NetworkP99 = Annotated[str | None, typer.Option(help="P99 of a request's network delay. Default: its median.")]
Page = Annotated[Path | None, typer.Option("--html", help="Also write a page with charts.")]


def disturbances(
    slow_share: str | None, slow_factor: float | None, network_p50: str | None, network_p99: str | None
) -> dict[str, object]:
    """Returns the given options about neighbours and network as arguments of :func:`chipwise.simulate`."""
    given = {
        "slow_share": slow_share, "slow_factor": slow_factor, "network_p50": network_p50, "network_p99": network_p99
    }  # fmt: skip
    return {name: value for name, value in given.items() if value is not None}
