"""A machine with round numbers, on which costs can be worked out with a pencil."""

from __future__ import annotations

from chipwise.hardware import CheckError, Curve, Machine, MachineProfile, MemoryCost, PassCost, Tail

US = 1e-6
CHECK = CheckError(models=8, mape=0.1, spread=0.1)


def toy_profile(*, s_per_byte: tuple[float, float] = (1e-9, 3e-9)) -> MachineProfile:
    """Each node 1 µs; a streamed byte 1 ns up to 1,024 bytes in all, 3 ns from 4,096; other features 1 ns."""
    unit = 1e-9
    matmul = {"node": US, "in": unit, "out": unit, "products": 0.0}
    terms = {f"matmul.{w}.{shape}": dict(matmul) for w in ("fp32", "int8", "int4") for shape in ("vector", "matrix")}
    for weights in ("fp32", "int8", "int4"):
        terms[f"matmul.{weights}.matrix"]["products"] = unit
    attention = dict.fromkeys(("head", "score", "product", "value", "rotated"), unit) | {"node": US}
    terms |= {"attention.step": attention, "attention.prompt": attention}
    for name in ("norm.rmsnorm", "norm.skip_rmsnorm", "norm.layernorm", "gather"):
        terms[name] = {"node": US, "row": unit, "value": unit}
    for function in ("relu", "gelu", "gelu_tanh", "silu", "mul", "add"):
        terms[f"elementwise.{function}"] = {"node": US, "value": unit}
    curve = Curve(working_set_bytes=(1024.0, 4096.0), s_per_byte=s_per_byte)
    return MachineProfile(
        machine=Machine(name="toy", cpu="toy", cores=1, memory_bytes=10**9),
        runtime="onnxruntime",
        runtime_version="0",
        threads=1,
        created="2026-01-01T00:00:00+00:00",
        terms=terms,
        curves={name: curve for name in terms if name.startswith("matmul")},
        passes={phase: PassCost(call_s=10 * US, per_logit_s=unit, scale=2.0) for phase in ("prefill", "decode")},
        memory=MemoryCost(base_bytes=1e6, per_table_byte=1.0, per_matrix_byte={"fp32": 2.0, "int8": 3.0, "int4": 4.0}),
        tails={"prefill": Tail(ratio=1.5, extra_s=0.0), "decode": Tail(ratio=2.0, extra_s=US)},
        checks={"prefill": CHECK, "decode": CHECK, "memory": CHECK},
        peaks={"fp32": 2e9},
        roofs={"DRAM": 1e9 / 3},
    )
