"""Pinned estimates, plans and explanations, through the public Python API."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import reach
from pinned import digest, plain, texts, totals
from typer.testing import CliRunner

import chipwise
from chipwise.model.kinds.ranking.stem import Scores

LONG = 1500  # characters of JSON from which a list is kept as its digest

LLAMA, QWEN, MIXTRAL = "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-0.6B", "mistralai/Mixtral-8x7B-v0.1"
VLM, WHISPER = "Qwen/Qwen2.5-VL-7B-Instruct", "openai/whisper-large-v3"
DEVICES = [
    "a100-sxm-80gb",
    "h100-sxm",
    "h200-sxm",
    "b200-sxm",
    "l4",
    "l40s",
    "t4",
    "v100-sxm2-32gb",
    "mi300x",
    "mi250x",
    "gaudi2",
    "rtx-4090",
    "rtx-3060",
    "apple-m1",
    "apple-m3-max",
    "apple-m4",
    "raspberry-pi-4",
    "raspberry-pi-5",
    "jetson-agx-orin",
    "snapdragon-8-elite",
    "tpu-v5e",
]
ONE = {"rate": "5/s", "prompt": 500, "new": 100, "limits": {"tpot_p99": "60ms"}, "requests": 100}

QUESTIONS: dict[str, Callable[[], Any]] = {
    "dense": lambda: chipwise.estimate(LLAMA),
    "dense, fp8, four chips": lambda: chipwise.estimate(LLAMA, weights="fp8", batch=16, tp=4, prompt=8000),
    "dense, pipeline": lambda: chipwise.estimate(LLAMA, device="l4", pp=2, batch=8),
    "dense, llama.cpp": lambda: chipwise.estimate(LLAMA, device="apple-m4", weights="q4_k_m"),
    "dense, GeForce": lambda: chipwise.estimate(QWEN, device="rtx-4090", prompt=4000, new=500),
    "dense, AMD": lambda: chipwise.estimate(LLAMA, device="mi300x", batch=32),
    "dense, board computer": lambda: chipwise.estimate(QWEN, device="raspberry-pi-5"),
    "dense, tensorrt": lambda: chipwise.estimate(LLAMA, device="b200-sxm", runtime="trtllm", weights="nvfp4", batch=8),
    "dense, many devices": lambda: chipwise.estimate("gpt2", devices=DEVICES),
    "dense, does not fit": lambda: chipwise.estimate(LLAMA, device="rtx-3060", weights="bf16", hypothetical=True),
    "experts": lambda: chipwise.estimate(MIXTRAL, weights="fp8", batch=32),
    "experts apart": lambda: chipwise.estimate("deepseek-ai/DeepSeek-V3", device="h200-sxm", tp=8, ep=8, batch=64),
    "recurrent layers": lambda: chipwise.estimate("Qwen/Qwen3-Next-80B-A3B-Instruct", device="h200-sxm", tp=2),
    "windows": lambda: chipwise.estimate("google/gemma-3-12b-pt", device="l40s", prompt=16000),
    "encoder": lambda: chipwise.estimate("google-bert/bert-base-uncased", device="l4", prompt=256, new=1, batch=8),
    "vision": lambda: chipwise.estimate("facebook/dinov2-small", device="l4", batch=16),
    "vision and text": lambda: chipwise.estimate(VLM, images=2, image_size=(1280, 720), prompt=100),
    "speech": lambda: chipwise.estimate(WHISPER, device="rtx-4090", new=100),
    "speech, encoder": lambda: chipwise.estimate("facebook/wav2vec2-base-960h", device="l4", audio_s=20.0),
    "ranking": lambda: chipwise.estimate(ranker(), device="l4", batch=4),
    "ranking, candidates": lambda: chipwise.candidates(ranker(), device="h100-sxm", counts=(1, 128, 1024)),
    "diffusion": lambda: chipwise.estimate_pictures("black-forest-labs/FLUX.1-dev", steps=28, batch=4),
    "diffusion, explained": lambda: chipwise.explain_pictures("stable-diffusion-3.5-large"),
    "video": lambda: chipwise.estimate_pictures("Wan-AI/Wan2.1-T2V-14B", device="h100-sxm", frames=81),
    "phone parts": lambda: chipwise.estimate_parts("openai/whisper-small", weights="w8a16"),
    "training": lambda: chipwise.estimate_training(QWEN, batch=8, prompt=2048),
    "training, recomputed": lambda: chipwise.estimate_training(
        LLAMA, device="h100-sxm", tp=4, batch=4, checkpoint=True
    ),
    "loss": lambda: chipwise.quality(LLAMA, tokens="2T"),
    "comparison": lambda: chipwise.compare(["gpt2", QWEN], devices=["l4", "h100-sxm", "apple-m4"], prompt=2000),
    "explained": lambda: chipwise.explain("gpt2", device="l4"),
    "explained, long prompt": lambda: chipwise.explain(LLAMA, device="a100-sxm-80gb", prompt=32000, batch=4),
    "explained, experts": lambda: chipwise.explain(MIXTRAL, device="h100-sxm", weights="fp8", batch=8),
    "explained, training": lambda: chipwise.explain("gpt2", device="a100-sxm-80gb", train=True, batch=12),
    "simulated": lambda: chipwise.simulate(LLAMA, rate="2/s", requests=100),
    "simulated, clients": lambda: chipwise.simulate(QWEN, device="l4", clients=8, think_s=1.0, requests=80, spread=0.5),
    "plan": lambda: chipwise.plan(LLAMA, devices=["h100-sxm", "l40s"], tp=(1, 2), weights=("fp8",), **ONE),
    "plan, pools": lambda: chipwise.plan(LLAMA, devices=["h100-sxm"], tp=(1,), fleets=("together", "apart"), **ONE),
    "plan, drafts": lambda: chipwise.plan(
        LLAMA,
        devices=["l40s"],
        tp=(1,),
        speculation=[{"draft": "meta-llama/Llama-3.2-1B", "drafted": 4, "acceptance": 0.4}],
        **ONE,
    ),
    "agent": lambda: chipwise.agent_loop(
        {
            "budget": "2 s",
            "device": "l4",
            "parts": [
                {"name": "think", "model": QWEN, "prompt": 200, "new": 20},
                {"name": "act", "time": "9 ms"},
            ],
        }
    ),
    "printed estimate": lambda: printed("estimate", "gpt2", "--device", "l4", "--kernels"),
    "printed explanation": lambda: printed("explain", "gpt2", "--device", "l4", "--prompt", "256"),
    "printed comparison": lambda: printed("compare", "gpt2", QWEN, "--device", "l4,l40s"),
}


def printed(*arguments: str) -> Any:
    """What a command prints with ``--json``."""
    done = CliRunner().invoke(reach.app, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def ranker() -> chipwise.ArchSpec:
    """A small ranking model."""
    attention = chipwise.Attention(heads=2, kv_heads=2, head_size=16, rope=False, relative_buckets=51)
    layer = chipwise.Layer(attention=attention, ffn=chipwise.FeedForward(width=128, gated=False, activation="relu"))
    return chipwise.ArchSpec(
        name="ranker",
        stem=reach.RankingStem(items=10_000, history=50, candidates=128),
        head=Scores(),
        d_model=64,
        layers=(layer,) * 2,
        max_tokens=51,
        positions="none",
    )


def shortened(value: Any) -> Any:
    """``value`` with long lists of rows replaced by their length, the sums of their numbers, and a digest."""
    if isinstance(value, dict):
        return {key: shortened(item) for key, item in value.items()}
    if isinstance(value, list) and len(str(value)) > LONG:
        return {"rows": len(value), "numbers": totals(value), "texts": digest(texts(value))}
    return [shortened(item) for item in value] if isinstance(value, list) else value


def answer(name: str) -> Any:
    """The complete answer to one question, as stored in the pins."""
    found = QUESTIONS[name]()
    return shortened(plain(found.to_dict() if hasattr(found, "to_dict") else found))
