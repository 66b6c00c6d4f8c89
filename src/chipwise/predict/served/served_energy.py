"""Power, time and energy of models under continuous load, by laws fitted to the power counters of GPU boards.

The time of a step is a sum of amounts of work over rates that were fitted to whole runs of vLLM on H100 and B200
(``predict/whole_runs/sums.py``). It includes the prompts that are processed per step on average. The seconds per token
are this time divided by the number of requests in flight. Power follows from the utilisation of memory and arithmetic,
and energy from power and time.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from chipwise.core.fields import build
from chipwise.core.files import read_text
from chipwise.errors import SpecError, Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.runtime import SERVING
from chipwise.model.arch.feed_forward import MixtureOfExperts
from chipwise.predict.cost.model import Predicted
from chipwise.predict.served.lowering import lower_pass
from chipwise.predict.served.plan import Plan
from chipwise.predict.served.setting import Setting, Step
from chipwise.predict.served.stack_law import Work, link_bytes_per_s, peak_flops_per_s, sequences_held
from chipwise.predict.whole_runs.power_draw import Shares, mean_watts, watts_law
from chipwise.predict.whole_runs.sums import Amount, Constants, Law, named, value_of

DATA = Path(__file__).parent / "data" / "energy.json"
LAWS = ("tokens_s", "tokens_w", "tokens_j", "pictures_s", "pictures_w", "pictures_j")
SORT = "lm-arena-chat"  # the kind of work in the fitted runs that represents plain text requests


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoad:
    """The load of a model on one or several devices: requests in flight, tokens per prompt and answer, kind of work."""

    setting: Setting  # its plan describes one device's share
    device: DeviceProfile
    devices: int
    requests: int
    prompt_tokens: int
    new_tokens: int
    sort: str = "chat"

    @property
    def levels(self) -> tuple[str, ...]:
        """Properties that this run may share with other runs, such as its GPU and its number of devices.

        Fitted rates have a deviation for each of these properties.
        """
        gpu, bits = self.device.name, self.setting.formats.weights
        experts = any(isinstance(layer.ffn, MixtureOfExperts) for layer in self.setting.arch.layers)
        kind = "experts" if experts else "dense"
        return gpu, kind, f"{gpu}|{kind}", f"n{self.devices}", f"{gpu}|n{self.devices}", bits, f"{gpu}|{self.sort}"

    def held(self) -> float:
        """How many of the requests fit in memory at once."""
        asked = np.array([self.requests])
        whole = np.array([max(1, (self.prompt_tokens + self.new_tokens) // 2)])
        return float(sequences_held(self.setting, self.device, asked, whole)[0]) if self.requests > 1 else 1.0


def shared(setting: Setting, devices: int) -> Setting:
    """``setting`` with matrices split over ``devices`` devices, or over fewer if the model does not divide evenly."""
    for tp in (devices, devices // 2, devices // 4, 1):
        if tp >= 1:
            try:
                return replace(setting, plan=Plan(tp=tp))
            except SpecError:
                continue
    return setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenWork:
    """One device's work for one step of all requests, including the prompts that are processed per step on average.

    Fields in seconds assume the data sheet's rates.
    """

    memory_s: float
    cache_s: float
    decode_s: float
    prompt_s: float
    link_s: float
    kernels: float
    collectives: float
    requests: float

    @classmethod
    def of(cls, load: StepLoad) -> TokenWork:
        """The work of an average step under ``load``."""
        requests = load.held()
        batch, ones = np.array([max(1, round(requests))]), np.ones(1, np.int64)
        past = np.array([load.prompt_tokens + load.new_tokens // 2])
        step = Work.of(lower_pass(load.setting, Step(batch=batch, query_tokens=1, past_tokens=past)), 1)
        asked = np.array([load.prompt_tokens])
        prompt = Work.of(lower_pass(load.setting, Step(batch=ones, query_tokens=asked, past_tokens=0 * ones)), 1)
        bandwidth, peak = load.device.mem_bandwidth_bytes_per_s, peak_flops_per_s(load.device)
        each = requests / load.new_tokens  # prompts per step
        return cls(
            memory_s=float(step.weight_bytes[0]) / bandwidth,
            cache_s=float(step.cache_bytes[0]) / bandwidth,
            decode_s=float(step.product_flops[0]) / peak,
            prompt_s=each * float(prompt.product_flops[0] + prompt.attention_flops[0]) / peak,
            link_s=float(step.collective_bytes[0] + each * prompt.collective_bytes[0]) / link_bytes_per_s(load.device),
            kernels=step.kernels,
            collectives=step.collectives,
            requests=requests,
        )

    def shares(self, step_s: float) -> Shares:
        """Utilisation of memory, and of compute (in total and by prompts alone), in a step of ``step_s`` seconds."""
        return Shares(
            memory=(self.memory_s + self.cache_s) / step_s,
            compute=(self.decode_s + self.prompt_s) / step_s,
            attention=self.prompt_s / step_s,
        )


def step_law(load: StepLoad, work: TokenWork) -> Law:
    """The amounts of work in an average step; ``whole_runs/sums.py`` predicts the step's seconds from them."""
    levels = load.levels
    task = f"task {load.sort}"
    law = [
        Amount(work.memory_s, 0, named("weights", levels)),
        Amount(work.decode_s, 0, named("flops.decode", levels)),
        Amount(work.cache_s, 1, named("cache", levels)),
        Amount(work.prompt_s, 2, named("flops.prompt", (*levels, task))),
        Amount(1.0, 3, named("step", (*levels, task))),
        Amount(work.kernels, 4, named("kernel", levels[:3])),
        Amount(work.requests, 5, named("sequence", (*levels[:3], task))),
        Amount(work.requests / load.new_tokens, 6, named("request", (*levels[:3], task, levels[-1]))),
    ]
    if load.devices > 1:
        law.append(Amount(max(work.collectives, 1.0), 7, named("collective", levels[:5])))
        law.append(Amount(work.link_s, 8, named("link", levels[:5])))
    return tuple(law)


@functools.cache
def constants() -> dict[str, Constants]:
    """The bundled constants of each law."""
    held = json.loads(read_text(DATA))
    return {name: build(Constants, held[name], file=str(DATA)) for name in LAWS}


def served_power(
    setting: Setting, device: DeviceProfile, *, requests: int, prompt_tokens: int, new_tokens: int
) -> dict[str, Predicted]:
    """Watts of all devices, and joules per new token, at a constant number of requests in flight.

    The energy per token includes the token's share of its request's prompt.

    Args:
        setting: Model, formats and plan; all devices of the plan draw power.
        device: The kind of device.
        requests: Requests in flight over all devices. If not all fit in memory, as many as fit are used.
        prompt_tokens: Prompt tokens per request.
        new_tokens: New tokens per request.

    Raises:
        Unsupported: The laws, which were fitted to vLLM on NVIDIA's data-centre GPUs, do not cover the request.
    """
    held = constants()
    seen = device.vendor in held["tokens_w"].vendors and device.level("dram").technology.startswith("HBM")
    if not seen or setting.runtime.stack not in SERVING or not setting.arch.causal or setting.arch.encoder:
        raise Unsupported("power under load is only known for serving engines on NVIDIA GPUs with HBM")
    plan = setting.plan
    load = StepLoad(
        setting=shared(setting, plan.devices),
        device=device,
        devices=plan.devices,
        requests=requests,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        sort=SORT,
    )
    work = TokenWork.of(load)
    step_s = float(value_of(step_law(load, work), held["tokens_s"].terms()))
    gpu, kind = device.name, load.levels[1]
    levels = (gpu, SORT, f"{gpu}|{SORT}", kind, f"{gpu}|{kind}", f"n{plan.devices}", load.levels[5])
    watts = plan.devices * mean_watts(device, watts_law(device, work.shares(step_s), levels), held["tokens_w"].terms())
    place = f"{gpu}|{SORT}"
    widths = [
        each.halfwidth(each.situation(device=gpu, vendor=device.vendor, place=place, model=""), place)
        for each in (held["tokens_w"], held["tokens_j"])
    ]
    joules = watts * step_s / work.requests
    return {
        "served_power_w": Predicted.around(watts, widths[0]),
        "served_joules_per_token": Predicted.around(joules, widths[1]),
    }
