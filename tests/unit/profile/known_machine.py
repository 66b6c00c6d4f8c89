"""Machines whose truth is known: what a profile believes, and a device that is otherwise."""

from __future__ import annotations

from dataclasses import replace

from chipwise.hardware import CheckError, Curve, Machine, MachineProfile, MemoryCost, PassCost, Tail
from chipwise.ops import Phase

CHECK = CheckError(models=12, mape=0.1, spread=0.1)


def machine() -> MachineProfile:
    """About a CPU core's rates."""
    terms = {
        f"matmul.{weights}.{shape}": {"node": 2e-6, "in": 1e-10, "out": 2e-10, "products": products}
        for weights in ("fp32", "int8", "int4")
        for shape, products in (("vector", 0.0), ("matrix", 2e-11))
    }
    attention = {"node": 4e-6, "head": 2e-7, "score": 1e-10, "product": 5e-11, "value": 1e-10, "rotated": 2e-10}
    terms |= {"attention.step": attention, "attention.prompt": dict(attention)}
    for name in ("norm.rmsnorm", "norm.skip_rmsnorm", "norm.layernorm", "gather"):
        terms[name] = {"node": 1e-6, "row": 1e-8, "value": 2e-10}
    for function in ("relu", "gelu", "gelu_tanh", "silu", "mul", "add"):
        terms[f"elementwise.{function}"] = {"node": 1e-6, "value": 3e-10}
    curve = Curve(working_set_bytes=(1e6, 3.2e7), s_per_byte=(1.5e-11, 4e-11))
    return MachineProfile(
        machine=Machine(name="known", cpu="known", cores=1, memory_bytes=10**10, l2_bytes=10**6, l3_bytes=3 * 10**7),
        runtime="fake",
        runtime_version="1",
        threads=1,
        created="2026-01-01T00:00:00+00:00",
        terms=terms,
        curves={name: curve for name in terms if name.startswith("matmul")},
        passes={phase.value: PassCost(call_s=1e-5, per_logit_s=2e-10, scale=1.0) for phase in Phase},
        memory=MemoryCost(base_bytes=6e7, per_table_byte=1.0, per_matrix_byte={"fp32": 1.0, "int8": 1.0, "int4": 1.0}),
        tails={phase.value: Tail(ratio=1.2, extra_s=0.0) for phase in Phase},
        checks={"prefill": CHECK, "decode": CHECK, "memory": CHECK},
        roofs={"private caches": 8e10, "shared cache": 5e10, "DRAM": 2e10},
        peaks={"fp32": 1e11, "int8": 4e11},
    )


def other(profile: MachineProfile, **factors: float) -> MachineProfile:
    """The same machine with rates of some kinds of nodes multiplied, such as ``attention=1.5`` or ``int8=0.8``."""
    terms = {
        model: {name: rate * _factor(model, factors) for name, rate in rates.items()}
        for model, rates in profile.terms.items()
    }
    curves = {
        name: replace(curve, s_per_byte=tuple(rate * _factor(name, factors) for rate in curve.s_per_byte))
        for name, curve in profile.curves.items()
    }
    return replace(profile, terms=terms, curves=curves)


def _factor(model: str, factors: dict[str, float]) -> float:
    found = [factor for name, factor in factors.items() if name in model.split(".")]
    return found[0] if found else 1.0
