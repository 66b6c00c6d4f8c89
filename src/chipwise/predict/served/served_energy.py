"""Power, time and energy of models under continuous load, by laws fitted to the boards' own power counters.

Seconds per token are those of a step divided by its requests, including their share of prompts; the step's time is a
sum of amounts of work over rates fitted to whole runs of vLLM on H100 and B200 (``predict/whole_runs/sums.py``). Power
follows from the resulting utilisation of memory and arithmetic, energy from both.
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
    """The load of a model on several devices: requests in flight, tokens per prompt and answer, kind of work."""

    setting: Setting  # its plan describes one device's share
    device: DeviceProfile
    devices: int
    requests: int
    prompt_tokens: int
    new_tokens: int
    sort: str = "chat"

    @property
    def levels(self) -> tuple[str, ...]:
        """Names of the deviations that apply to a run's terms."""
        gpu, bits = self.device.name, self.setting.formats.weights
        experts = any(isinstance(layer.ffn, MixtureOfExperts) for layer in self.setting.arch.layers)
        kind = "experts" if experts else "dense"
        return gpu, kind, f"{gpu}|{kind}", f"n{self.devices}", f"{gpu}|n{self.devices}", bits, f"{gpu}|{self.sort}"

    def held(self) -> float:
        """Number of requests that fit in memory at once."""
        asked = np.array([self.requests])
        whole = np.array([max(1, (self.prompt_tokens + self.new_tokens) // 2)])
        return float(sequences_held(self.setting, self.device, asked, whole)[0]) if self.requests > 1 else 1.0


def shared(setting: Setting, devices: int) -> Setting:
    """``setting`` with products split over the largest number of ``devices`` that divides the model."""
    for tp in (devices, devices // 2, devices // 4, 1):
        if tp >= 1:
            try:
                return replace(setting, plan=Plan(tp=tp))
            except SpecError:
                continue
    return setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenWork:
    """One device's work for one step of all requests, including its share of prompts, in seconds at full rates."""

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
        """The work of a load's average step."""
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
        """Shares of a step of ``step_s`` seconds that memory, compute and attention take."""
        return Shares(
            memory=(self.memory_s + self.cache_s) / step_s,
            compute=(self.decode_s + self.prompt_s) / step_s,
            attention=self.prompt_s / step_s,
        )


def step_law(load: StepLoad, work: TokenWork) -> Law:
    """The summands of the seconds of an average step of all requests."""
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
    """Watts of all devices, and joules of a new token, at a constant number of requests in flight.

    Prompts are processed between steps, so the energy per token includes its share of a prompt.

    Args:
        setting: Model, formats and plan; all devices of the plan draw power.
        device: The kind of device.
        requests: Requests in flight over all devices; reduced to those that fit in memory.
        prompt_tokens: Prompt tokens per request.
        new_tokens: New tokens per request.

    Raises:
        Unsupported: The case is not covered; the laws were fitted to vLLM on NVIDIA's data-centre GPUs.
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
