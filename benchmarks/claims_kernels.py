"""Figures of docs/notes/claims.md about chips, kernels and layers; `benchmarks/claims.py` prints them."""

from __future__ import annotations

import csv
import importlib.util
import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import chipwise
from chipwise.hardware import datasheet
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.ops.attention import AttentionOp, flash_attention_io, standard_attention_io
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.matmul import Matmul
from chipwise.model.published import families
from chipwise.predict.cost.model import CostEstimate, OpCost
from chipwise.predict.explain.pricers import DataSheetPricer
from chipwise.predict.explain.question import Case, CostQuestion
from chipwise.predict.kernels import times_of
from chipwise.predict.kernels.unfused import unfused_times
from chipwise.predict.served.deployment import Deployment

HERE = Path(__file__).parent
A100 = "a100-sxm-80gb"


def say(what: str, *values: object) -> None:
    """One printed line: a name and its figures."""
    shown = [f"{value:,.4g}" if isinstance(value, float) else str(value) for value in values]
    print(f"  {what}:", ", ".join(shown))


def product(m: int, k: int, n: int, dtype: str = "bf16") -> Matmul:
    """A matrix product in one format."""
    return Matmul(m=m, k=k, n=n, weights=dtype, activations=dtype)


def seconds(op: Any, device: str = A100) -> float:
    """Predicted seconds of one kernel."""
    return float(np.max(times_of(op, datasheet.load(device)).latency_s))


def moved(costs: tuple[OpCost, ...], *kinds: str) -> float:
    """Bytes that a pass moves, in total or by some kinds of kernels."""
    return float(sum(cost.work.bytes * cost.count for cost in costs if not kinds or cost.kind in kinds))


def shares(costs: tuple[OpCost, ...]) -> dict[str, str]:
    """Per cent of a pass's kernel time by what bounds it."""
    total = sum(cost.latency_s for cost in costs)
    found: dict[str, float] = {}
    for cost in costs:
        found[cost.bound.value] = found.get(cost.bound.value, 0.0) + 100 * cost.latency_s / total
    return {name: f"{share:.1f} %" for name, share in sorted(found.items())}


def rows(pattern: str) -> list[dict[str, str]]:
    """Rows of a CSV file in this folder, as written by a measuring script."""
    with next(HERE.glob(pattern)).open() as file:
        return list(csv.DictReader(file))


def case(model: str, device: str = A100) -> Case:
    """A bundled model on a device, as `chipwise explain` sees it."""
    pricer = DataSheetPricer(device=device)
    question = CostQuestion(arch=chipwise.resolve(model), deployment=Deployment(weights="bf16", device=device))
    answer = pricer.price([question])[0]
    if not isinstance(answer, CostEstimate):
        raise answer
    return Case(question=question, estimate=answer, pricer=pricer)


def hierarchy() -> None:
    """Levels of an A100's memory."""
    clock, units = 1.41e9, 108
    say("one clock in ns", 1e9 / clock)
    size = {"registers": units * 256 * 1024, "l1": units * 192 * 1024, "l2": 40 * 2**20, "dram": 80e9}
    rate = {"l1": units * 128 * clock, "l2": 5120 * clock, "dram": 2039e9, "host": 32e9}
    say("capacity in MB", {name: round(value / 1e6, 1) for name, value in size.items()})
    say("bandwidth in TB/s", {name: round(value / 1e12, 3) for name, value in rate.items()})
    names = list(rate)
    for near, far in itertools.pairwise(names):
        say(f"bandwidth of {near} over {far}", rate[near] / rate[far])
    say("ns of 20, 200 and 400 clocks", *(clocks * 1e9 / clock for clocks in (20, 200, 400)))


def weights() -> None:
    """Seconds to read 70 B parameters in 16 bits once."""
    say("GB of 70e9 parameters in fp16", 70e9 * 2 / 1e9)
    say("ms to stream them at 2 TB/s", 70e9 * 2 / 2e12 * 1e3)
    say("ms of computing one token at 312 TFLOP/s", 2 * 70e9 / 312e12 * 1e3)
    one = chipwise.estimate("llama-2-70b", device=A100, tp=2)
    say("two A100: TPOT in ms, MBU of decode", one.tpot_s * 1e3, one.mbu["decode"])


def phases() -> None:
    """What bounds prefill and decode."""
    pair = chipwise.estimate("llama-2-70b", device=A100, tp=2)
    say("llama-2-70b, two A100, prefill", shares(pair.prefill), "MFU", pair.mfu["prefill"])
    say("the same, decode", shares(pair.decode), "MFU", pair.mfu["decode"])
    say("ridge of an A100 in bf16, FLOP/byte", 312e12 / 2039e9)
    for prompt in (16, 1024):
        short = chipwise.estimate("llama-3-8b", device=A100, prompt=prompt)
        say(f"llama-3-8b, A100, prefill of {prompt} tokens", shares(short.prefill))
    for batch in (1, 64, 256):
        many = chipwise.estimate("llama-3-8b", device=A100, batch=batch, prompt=256)
        say(f"llama-3-8b, A100, decode of {batch} streams", shares(many.decode))


def intensity() -> None:
    """FLOPs a byte of products."""
    for m, k, n in ((4096, 4096, 4096), (1, 4096, 4096), (1024, 1024, 1024)):
        op = product(m, k, n)
        work = op.work()
        took = seconds(op)
        say(
            f"{m}x{k}x{n}: FLOP/byte, us, share of peak",
            work.flops / work.bytes,
            took * 1e6,
            work.flops / took / 312e12,
        )


def tensor_cores() -> None:
    """Peaks of an A100's two engines, and the shares that matrix products reach."""
    rate = 108 * 4 * 2 * 1.41e9 / 1e12
    say("4 a unit, 64 FMA a clock: TFLOP/s", rate * 64)
    say("4 a unit, 256 FMA a clock: TFLOP/s", rate * 256)
    say("tensor bf16 over CUDA fp32, over CUDA fp16", 312 / 19.5, 312 / 78)
    for name in ("v100-sxm", A100, "h100-sxm"):
        sheet = datasheet.load(name)
        say(f"{name}: fp16 over fp32", sheet.peak("fp16") / sheet.peak("fp32"))
    cuda, tensor = (product(4096, 4096, 4096, dtype) for dtype in ("fp32", "bf16"))
    say("4096x4096x4096, fp32 over bf16: predicted seconds", seconds(cuda) / seconds(tensor))
    cuda, tensor = (product(1, 4096, 4096, dtype) for dtype in ("fp32", "bf16"))
    say("1x4096x4096, fp32 over bf16: bytes", cuda.work().bytes / tensor.work().bytes)


def formats() -> None:
    """Dense rates of an A100 from units and clock, beside the data sheet."""
    sheet = datasheet.load(A100)
    for dtype, fma in {"fp32": 64, "tf32": 512, "bf16": 1024, "fp16": 1024, "int8": 2048, "int4": 4096}.items():
        say(f"{dtype}: T/s counted, published", 108 * fma * 2 * 1.41e9 / 1e12, sheet.peak(dtype) / 1e12)
    import torch

    say(f"torch {torch.__version__.split('+')[0]} multiplies fp32 by default in", torch.get_float32_matmul_precision())
    int4 = [name for name in ("h100-sxm", "b200-sxm") if "int4" in datasheet.load(name).peak_flops_per_s]
    say("H100 and B200 data sheets that list int4", int4)


def attention_traffic() -> None:
    """Attention with its scores in memory and without."""
    for size in (64, 128):
        for tokens in (1024, 4096, 16384):
            standard = standard_attention_io(tokens=tokens, head_size=size)
            flash = flash_attention_io(tokens=tokens, head_size=size, sram_values=98_304)
            say(f"head {size}, {tokens} tokens, 192 KiB of fp16: traffic, times less", standard / flash)
    sheet = datasheet.load(A100)
    for tokens in (1024, 4096, 16384):
        op = AttentionOp(
            batch=1, query_tokens=tokens, past_tokens=0, heads=32, kv_heads=32, head_size=128, rope=False,
            activations="bf16", cache="bf16",
        )  # fmt: skip
        slow = float(np.max(unfused_times(op, sheet).latency_s))
        say(f"32 heads of 128, {tokens} tokens: seconds, times less", slow / seconds(op))
        say("  bytes that stay, times less", (4 * tokens * 128 + tokens**2) / (4 * tokens * 128))


def online_softmax() -> None:
    """The error of blocks that are not rescaled."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    path = HERE.parent / "tests" / "unit" / "model" / "nn" / "test_online_softmax.py"
    found = importlib.util.spec_from_file_location("online_softmax", path)
    assert found is not None
    assert found.loader is not None
    test = importlib.util.module_from_spec(found)
    found.loader.exec_module(test)
    q, k, v = test.inputs(1, 2, 64, 16)
    truth = scaled_dot_product_attention(q, k, v)
    answers = {
        "rescaled": test.blockwise(q, k, v, block=16),
        "not rescaled": test.blockwise(q, k, v, block=16, rescale=False),
        "log-sum of maxima": test.often_sketched(q, k, v, block=16),
    }
    for name, answer in answers.items():
        say(f"{name}: largest error", float(torch.max(torch.abs(answer - truth))))


def alignment() -> None:
    """Widths on and off the tile."""
    widths = [chipwise.resolve(name).d_model for name in families.names()]
    aligned = [sum(width % multiple == 0 for width in widths) for multiple in (128, 64)]
    say("bundled models, of them a multiple of 128, of 64", len(widths), *aligned)
    for width in (2048, 4096, 5120, 6144, 8192):
        op = product(4096, width, width)
        tiles = math.ceil(4096 / 128) * math.ceil(width / 256)
        filled = tiles / 108 / math.ceil(tiles / 108)
        took = seconds(op)
        say(f"{width}: share of peak, of the last wave's units", op.work().flops / took / 312e12, filled)
    for width in (4095, 4097, 4160):
        pad = math.ceil(width / 128) * 128 / width
        say(f"{width} over 4096: seconds", seconds(product(4096, width, width)) / seconds(product(4096, 4096, 4096)))
        say("  width after padding to 128", pad)


def vocabulary() -> None:
    """GPT-2's 50,257 columns and 50,304."""
    op, padded = product(12_288, 768, 50_257), product(12_288, 768, 50_304)
    say("head of 12,288 rows, 50,257 over 50,304 columns: seconds", seconds(op) / seconds(padded))
    say("work of padding", 50_304 / 50_257 - 1)
    say("50,257 in bf16 is 16-byte aligned", 50_257 * 2 % 16 == 0)


def norm_place() -> None:
    """Norms before or after blocks."""
    arch = chipwise.resolve("llama-2-7b")
    for runtime in ("vllm", "torch-eager"):
        pre, post = (
            chipwise.estimate(replace(arch, norm_place=place), device=A100, runtime=runtime, prompt=2048)
            for place in ("pre", "post")
        )
        say(f"{runtime}: bytes of prefill, pre over post", moved(pre.prefill) / moved(post.prefill))
        say("  seconds of prefill and decode, pre over post", pre.ttft_s / post.ttft_s, pre.tpot_s / post.tpot_s)
        say(
            "  share of norms in a prefill's bytes, in a step's",
            *(moved(c, "norm") / moved(c) for c in (pre.prefill, pre.decode)),
        )


def activations() -> None:
    """Cost of an activation and its gate."""
    for kind, flops in (("relu", 1), ("silu", 5), ("gelu", 8)):
        say(f"{kind}: share of the FLOPs of an FFN of width 4,096", flops / (2 * 2 * 4096 + flops))
    ops = {kind: Elementwise(function=kind, elements=4096 * 11_008, activations="bf16") for kind in ("relu", "gelu")}
    say("gelu over relu on 4,096 x 11,008 values, A100: seconds", seconds(ops["gelu"]) / seconds(ops["relu"]))
    base: dict[str, Any] = {"vocab_size": 32_000, "d_model": 4096, "depth": 32, "heads": 32, "max_tokens": 4096}
    plain = uniform(**base, ffn_width=16_384, activation="gelu", gated=False)
    same = uniform(**base, ffn_width=16_384, activation="gelu", gated=True)
    usual = uniform(**base, ffn_width=11_008, activation="gelu", gated=True)
    want = [chipwise.estimate(arch, device=A100, weights="bf16") for arch in (plain, same, usual)]
    sizes = ((16_384, False), (16_384, True), (11_008, True))
    per_layer = [FeedForward(width=width, gated=gate).parameters(4096) for width, gate in sizes]
    say("gated FFN at the same width: parameters and FLOPs", per_layer[1] / per_layer[0])
    say("gated FFN at two thirds of the width, in multiples of 128", per_layer[2] / per_layer[0])
    say("TTFT over the plain FFN's: same width, two thirds", *(cost.ttft_s / want[0].ttft_s for cost in want[1:]))
    say("TPOT over the plain FFN's: same width, two thirds", *(cost.tpot_s / want[0].tpot_s for cost in want[1:]))
