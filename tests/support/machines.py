"""Machine profiles with known rates: round numbers, typical rates of a CPU core, and variations of both."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from chipwise.hardware.detect import Machine
from chipwise.hardware.device import CheckError, Curve, MachineProfile, MemoryCost, PassCost, Tail
from chipwise.model.ops.workload import Phase

US = 1e-6
WEIGHTS = ("fp32", "int8", "int4")
NORMS = ("norm.rmsnorm", "norm.skip_rmsnorm", "norm.layernorm", "gather")
FUNCTIONS = ("relu", "gelu", "gelu_tanh", "silu", "mul", "add", "sin", "split", "transpose", "pad")


def round_machine(*, s_per_byte: tuple[float, float] = (1e-9, 3e-9)) -> MachineProfile:
    """A machine on which a node costs 1 µs, a streamed byte 1 ns (3 ns above 4,096 bytes), any other feature 1 ns."""
    unit = 1e-9
    attention = dict.fromkeys(("head", "score", "product", "value", "rotated"), unit) | {"node": US}
    check = CheckError(models=8, mape=0.1, spread=0.1)
    terms = _terms(
        matmul={"node": US, "in": unit, "out": unit, "products": unit},
        attention=attention,
        rows={"node": US, "row": unit, "value": unit},
        elementwise={"node": US, "value": unit},
    )
    return MachineProfile(
        machine=Machine(name="toy", cpu="toy", cores=1, memory_bytes=10**9),
        runtime="onnxruntime",
        runtime_version="0",
        threads=1,
        created="2026-01-01T00:00:00+00:00",
        terms=terms,
        curves=_curves(terms, Curve(working_set_bytes=(1024.0, 4096.0), s_per_byte=s_per_byte)),
        passes={phase.value: PassCost(call_s=10 * US, per_logit_s=unit, scale=2.0) for phase in Phase},
        memory=MemoryCost(base_bytes=1e6, per_table_byte=1.0, per_matrix_byte={"fp32": 2.0, "int8": 3.0, "int4": 4.0}),
        tails={"prefill": Tail(ratio=1.5, extra_s=0.0), "decode": Tail(ratio=2.0, extra_s=US)},
        checks={"prefill": check, "decode": check, "memory": check},
        peaks={"fp32": 2e9},
        roofs={"DRAM": 1e9 / 3},
    )


def core_like() -> MachineProfile:
    """A machine with the typical rates of a CPU core."""
    check = CheckError(models=12, mape=0.1, spread=0.1)
    terms = _terms(
        matmul={"node": 2 * US, "in": 1e-10, "out": 2e-10, "products": 2e-11},
        attention={"node": 4 * US, "head": 2e-7, "score": 1e-10, "product": 5e-11, "value": 1e-10, "rotated": 2e-10},
        rows={"node": US, "row": 1e-8, "value": 2e-10},
        elementwise={"node": US, "value": 3e-10},
    )
    return MachineProfile(
        machine=Machine(name="known", cpu="known", cores=1, memory_bytes=10**10, l2_bytes=10**6, l3_bytes=3 * 10**7),
        runtime="fake",
        runtime_version="1",
        threads=1,
        created="2026-01-01T00:00:00+00:00",
        terms=terms,
        curves=_curves(terms, Curve(working_set_bytes=(1e6, 3.2e7), s_per_byte=(1.5e-11, 4e-11))),
        passes={phase.value: PassCost(call_s=10 * US, per_logit_s=2e-10, scale=1.0) for phase in Phase},
        memory=MemoryCost(base_bytes=6e7, per_table_byte=1.0, per_matrix_byte=dict.fromkeys(WEIGHTS, 1.0)),
        tails={phase.value: Tail(ratio=1.2, extra_s=0.0) for phase in Phase},
        checks={"prefill": check, "decode": check, "memory": check},
        roofs={"private caches": 8e10, "shared cache": 5e10, "DRAM": 2e10},
        peaks={"fp32": 1e11, "int8": 4e11},
    )


def other(profile: MachineProfile, **factors: float) -> MachineProfile:
    """Copy of the machine with rates of some kinds of nodes multiplied, such as ``attention=1.5`` or ``int8=0.8``."""

    def factor(model: str, _: str) -> float:
        return next((value for name, value in factors.items() if name in model.split(".")), 1.0)

    return _scaled(profile, factor)


def shaken(profile: MachineProfile, generator: random.Random, *, off: float) -> MachineProfile:
    """Copy of the machine with each rate multiplied by a random factor up to ``exp(±off)``."""
    return _scaled(profile, lambda model, feature: math.exp(generator.uniform(-off, off)))


def _scaled(profile: MachineProfile, factor: Callable[[str, str], float]) -> MachineProfile:
    """Multiplies every rate and curve (feature ``byte``) by ``factor(kind of node, feature)``."""
    terms = {
        model: {name: rate * factor(model, name) for name, rate in rates.items()}
        for model, rates in profile.terms.items()
    }
    curves = {}
    for model, curve in profile.curves.items():
        times = factor(model, "byte")
        curves[model] = replace(curve, s_per_byte=tuple(rate * times for rate in curve.s_per_byte))
    return replace(profile, terms=terms, curves=curves)


def _terms(
    *,
    matmul: Mapping[str, float],
    attention: Mapping[str, float],
    rows: Mapping[str, float],
    elementwise: Mapping[str, float],
) -> dict[str, dict[str, float]]:
    """Rates of all kinds of nodes; products of one row cost nothing extra."""
    terms: dict[str, dict[str, float]] = {}
    for weights in WEIGHTS:
        terms[f"matmul.{weights}.vector"] = {**matmul, "products": 0.0}
        terms[f"matmul.{weights}.matrix"] = dict(matmul)
    terms |= {f"attention.{shape}": dict(attention) for shape in ("step", "prompt", "full")}
    terms |= {name: dict(rows) for name in NORMS}
    terms["conv"] = {"node": elementwise["node"], "value": elementwise["value"], "tap": elementwise["value"]}
    return terms | {f"elementwise.{function}": dict(elementwise) for function in FUNCTIONS}


def _curves(terms: Mapping[str, object], curve: Curve) -> dict[str, Curve]:
    return {name: curve for name in terms if name.startswith("matmul")}
