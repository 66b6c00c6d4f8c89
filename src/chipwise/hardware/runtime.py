"""What a runtime does with a model: which chains of operators it runs as one kernel, how it batches, what it keeps.

Fusion is a property of the runtime, not of the model: the same layer is nine kernels in one and five in another.
Which chains are fused is taken from each project's own documentation and source, as of the version named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from chipwise.core.errors import UnknownName

Chain = Literal["qkv", "gate_up", "act_mul", "skip_norm", "rope_cache", "attention", "experts"]
"""``qkv``: one product for q, k and v · ``gate_up``: one for both FFN inputs · ``act_mul``: activation and gating ·
``skip_norm``: residual sum and norm · ``rope_cache``: rotation and cache write · ``attention``: scores, softmax and
values without the scores in memory · ``experts``: the products of a mixture's experts, grouped (transformers 4, which
PyTorch runs here, loops over the experts that are met: modeling_mixtral.py)."""
EVERY: frozenset[Chain] = frozenset({"qkv", "gate_up", "act_mul", "skip_norm", "rope_cache", "attention", "experts"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """One serving or inference runtime.

    ``stack`` names whose kernels it runs, for kernel models that were fitted to several. ``graphs`` says whether decode
    steps are captured and replayed, so that the host is not asked for every kernel. ``mixes`` says whether prompts are
    taken in, in chunks, while other requests decode. ``prefill_tokens`` says how many positions of waiting prompts one
    pass takes where prompts have passes of their own; 0 where they ride along with decode steps. ``python`` says
    whether its scheduler is written in Python, ``vocabulary_multiple`` what it pads the head's rows to.
    """

    name: str
    title: str
    stack: Literal["vllm", "sglang", "trtllm"]
    fused: frozenset[Chain]
    graphs: bool = True
    mixes: bool = True
    prefill_tokens: int = 0
    python: bool = True
    dispatch_s: float = 0.0  # host time per kernel where nothing is captured
    vocabulary_multiple: int = 1
    aliases: tuple[str, ...] = ()

    def fuses(self, chain: Chain) -> bool:
        """Whether the chain is one kernel."""
        return chain in self.fused


RUNTIMES: Mapping[str, Runtime] = {
    runtime.name: runtime
    for runtime in (
        # Both pad the vocabulary: DEFAULT_VOCAB_PADDING_SIZE in layers/vocab_parallel_embedding.py
        Runtime(name="vllm", title="vLLM", stack="vllm", fused=EVERY, vocabulary_multiple=64),
        Runtime(
            name="sglang",
            title="SGLang",
            stack="sglang",
            fused=EVERY,
            prefill_tokens=8192,  # --chunked-prefill-size as it is set by itself; --enable-mixed-chunk is off
            vocabulary_multiple=64,
        ),
        Runtime(
            name="trtllm",
            title="TensorRT-LLM",
            stack="trtllm",
            fused=EVERY,
            python=False,
            aliases=("tensorrt-llm", "tensorrt_llm", "tensorrtllm", "trt-llm", "trt"),
        ),
        Runtime(
            name="torch-eager",
            title="PyTorch, eager",
            stack="vllm",
            fused=frozenset({"attention"}),
            graphs=False,
            mixes=False,
            dispatch_s=5e-6,
            aliases=("torch", "pytorch", "eager", "transformers"),
        ),
        Runtime(
            name="torch-compile",
            title="PyTorch, torch.compile",
            stack="vllm",
            fused=frozenset({"act_mul", "skip_norm", "rope_cache", "attention"}),
            mixes=False,
            aliases=("torch-compiled", "compile", "inductor"),
        ),
        Runtime(
            name="llama.cpp",
            title="llama.cpp",
            stack="vllm",
            fused=frozenset({"attention", "experts"}),
            mixes=False,
            python=False,
            aliases=("llamacpp", "llama-cpp", "gguf"),
        ),
        Runtime(
            name="onnxruntime",
            title="ONNX Runtime",
            stack="vllm",
            fused=frozenset({"qkv", "skip_norm", "rope_cache", "attention", "experts"}),
            graphs=False,
            mixes=False,
            python=False,
            dispatch_s=1e-6,
            aliases=("ort", "onnx"),
        ),
        Runtime(
            name="openvino",
            title="OpenVINO",
            stack="vllm",
            fused=frozenset({"act_mul", "skip_norm", "rope_cache", "attention", "experts"}),
            graphs=False,
            mixes=False,
            python=False,
            dispatch_s=1e-6,
        ),
    )
}


def runtime_named(name: str) -> Runtime:
    """The runtime called ``name``, in any case, by its name or an alias.

    Raises:
        UnknownName: There is none.
    """
    key = name.strip().lower()
    for runtime in RUNTIMES.values():
        if key == runtime.name or key in runtime.aliases:
            return runtime
    raise UnknownName("runtime", name, RUNTIMES)
