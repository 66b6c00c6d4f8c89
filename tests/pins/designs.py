"""Twenty designs of each kind of model that chipwise builds: what is derived from each of them, as digests.

The designs are stored (``drawn.json``), half of them drawn by the conformance suites' strategies, half from the spaces
of the example run files, so that neither a version of hypothesis nor an example decides what is compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import reach
import torch
from pinned import digest, plain, read

from chipwise import ArchSpec, ChipwiseError, Design, Phase, Workload, resolve

KINDS = ("text", "encoder", "image", "denoiser", "transcripts", "keyword", "question", "ranking")
PARTS = (*KINDS, "published", "spaces")
COUNT = 20
OF_SPACES = {
    "text": ("smoke", "series"),
    "image": ("vision",),
    "denoiser": ("diffusion",),
    "transcripts": ("transcripts",),
    "keyword": ("speech",),
    "question": ("multimodal",),
    "ranking": ("ranking",),
}
PUBLISHED = (
    "openai-community/gpt2",
    "google-bert/bert-base-uncased",
    "facebook/dinov2-small",
    "openai/clip-vit-base-patch32",
    "google/siglip-base-patch16-224",
    "google/vit-base-patch16-224",
    "microsoft/swin-tiny-patch4-window7-224",
    "facebook/wav2vec2-base-960h",
    "openai/whisper-tiny",
    "mistralai/Mixtral-8x7B-v0.1",
    "Qwen/Qwen2.5-VL-7B-Instruct",
    "deepseek-ai/DeepSeek-V3",
)
DRAWS, DRAW_SEED = 20, 5


def drawn(kind: str) -> list[dict[str, Any]]:
    """New designs of a kind, as they are stored. Used to make pins alone."""
    spaces = OF_SPACES.get(kind, ())
    each = COUNT // 2 // len(spaces) if spaces else 0
    archs = reach.from_suites(kind, COUNT - each * len(spaces))
    formats = ("fp32", "int8", "int4", "int8")
    designs = [Design(arch=arch, weights=formats[i % len(formats)]) for i, arch in enumerate(archs)]
    for name in spaces:
        designs += reach.space_of(read("spaces")[name]).drawn(each, 11)
    return [{"arch": reach.to_data(item.arch), "weights": item.weights} for item in designs]


def stored(kind: str) -> Iterator[Design]:
    """The stored designs of a kind."""
    for item in read("drawn")[kind]:
        yield Design(arch=reach.from_data(item["arch"]), weights=item["weights"])


def weights_of(arch: ArchSpec) -> reach.Weights:
    """Weights that depend on names and shapes alone; norms, biases and tables are nowhere 0 or 1."""
    found = {}
    for name, shape in reach.weight_shapes(arch).items():
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
        values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
        if len(shape) > 1:
            found[name] = values / np.float32(np.sqrt(np.prod(shape[1:])))
        else:
            found[name] = values * np.float32(0.3) + np.float32(name.endswith("weight"))
    return found


def derived(design: Design) -> dict[str, Any]:
    """Pinned properties of designs: names, operators, graphs, results and files."""
    arch, weights = design.arch, weights_of(design.arch)
    found: dict[str, Any] = {"design": design.digest, "parameters": arch.parameters()}
    found["weights"] = digest([[name, list(shape)] for name, shape in reach.weight_shapes(arch).items()])
    found |= lowered(design)
    found |= {f"onnx {name}": graph(replace(design, weights=name), weights) for name in ("fp32", "int8")}
    if design.weights not in ("fp32", "int8"):
        found["onnx own"] = graph(design, weights)
    found["random weights"] = digest(
        {name: digest(v.tobytes()) for name, v in reach.random_weights(arch, seed=0).items()}
    )
    module = reach.module(arch, weights)
    found["state"] = digest([[name, list(value.shape)] for name, value in module.state_dict().items()])
    with torch.no_grad():
        given = module(*reach.inputs(arch, np.random.default_rng(3)))
    found["outputs"] = some(given[0] if isinstance(given, tuple) else given)
    first = reach.fresh(arch, seed=0)
    found["first"] = None if first is None else size(first)
    found["gguf"] = digest(reach.gguf_tensors(design, weights))
    files = reach.huggingface(arch, weights)
    if isinstance(files, dict):
        found["config"] = digest(json.loads(files["config.json"]))
        found["files"] = digest([sorted(files), digest(files["model.safetensors"])])
    return found


def lowered(design: Design) -> dict[str, Any]:
    """Digests of the operators of both passes, for one request and for three."""
    found = {}
    for phase in Phase:
        try:
            both = [reach.operators(design, Workload(prompt_tokens=7, new_tokens=5, batch=n), phase) for n in (1, 3)]
        except ChipwiseError as error:
            found[phase.value] = type(error).__name__
            continue
        found[phase.value] = [len(both[0]), digest(both)]
    return found


def graph(design: Design, weights: reach.Weights) -> list[str]:
    """Digests of an ONNX file: of its nodes, ends and tensors, and of all bytes, with the metadata."""
    model = reach.graph_of(design, weights)
    made = model.graph
    parts = [
        [item.SerializeToString(deterministic=True) for item in each] for each in (made.node, made.input, made.output)
    ]
    tensors = {item.name: digest(item.SerializeToString(deterministic=True)) for item in made.initializer}
    return [digest([[digest(item) for item in each] for each in parts] + [tensors]), digest(model.SerializeToString())]


def some(values: torch.Tensor) -> list[Any]:
    """The shape, mean size and first values of an output."""
    flat = values.double().flatten()
    picked = flat[:: max(1, len(flat) // 6)][:6]
    return [list(values.shape), round(float(flat.abs().mean()), 5), [round(float(value), 5) for value in picked]]


def size(module: torch.nn.Module) -> float:
    """The sum of a module's absolute parameters."""
    return float(f"{sum(float(value.detach().double().abs().sum()) for value in module.parameters()):.6g}")


def published(name: str) -> dict[str, Any]:
    """Pinned properties of a published model without its weights."""
    design = Design(arch=resolve(name))
    found: dict[str, Any] = {"design": design.digest, "parameters": design.arch.parameters()}
    try:
        found["weights"] = digest([[key, list(shape)] for key, shape in reach.weight_shapes(design.arch).items()])
    except ChipwiseError as error:
        found["weights"] = type(error).__name__
    return found | lowered(design)


def spaces() -> dict[str, Any]:
    """The size of each stored space and the digests of designs drawn from it."""
    found = {}
    for name, fields in read("spaces").items():
        space = reach.space_of(fields)
        designs = space.drawn(DRAWS, DRAW_SEED)
        rows = space.sample(DRAWS, np.random.default_rng(DRAW_SEED))
        found[name] = [str(space.size()), digest([item.digest for item in designs]), digest(plain(rows.tolist()))]
    return found


def found(kind: str) -> dict[str, Any]:
    """Pinned properties of all designs of a kind, and of the published models and spaces."""
    if kind == "published":
        return {name: published(name) for name in PUBLISHED}
    return spaces() if kind == "spaces" else {str(i): derived(design) for i, design in enumerate(stored(kind))}


def versions() -> dict[str, str]:
    """Versions on which the bytes of files depend."""
    return {"onnx": onnx.__version__}
