"""Runtimes: which operators each runtime fuses, how it batches requests, and on which devices it runs.

Fusion is a property of the runtime: the same layer may be nine kernels in one runtime and five in another.
Which chains of operators are fused is taken from each project's documentation and source, in the version named here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from chipwise.core.dtypes import WeightFormat
from chipwise.errors import UnknownName, Unsupported
from chipwise.hardware.datasheet import DeviceProfile

Chain = Literal["qkv", "gate_up", "act_mul", "skip_norm", "rope_cache", "attention", "experts"]
"""Chains that a runtime may fuse. ``qkv``: one matrix product for q, k and v · ``gate_up``: one matrix product for both
FFN inputs · ``act_mul``: activation and gating · ``skip_norm``: residual sum and norm · ``rope_cache``: rotation and
cache write · ``attention``: scores, softmax and values without scores in memory · ``experts``: grouped matrix products
of a mixture's experts. (The PyTorch runtimes stand for the library transformers, version 4, which loops over the active
experts.)"""
Platform = Literal[
    "cuda", "old cuda", "rocm", "old rocm", "xpu", "metal", "cpu", "board", "phone", "tpu", "neuron", "gaudi", "hailo",
    "other",
]  # fmt: skip
"""Hardware platforms that a runtime may support; :func:`platform_of` returns the platform of a device."""
EVERY: frozenset[Chain] = frozenset({"qkv", "gate_up", "act_mul", "skip_norm", "rope_cache", "attention", "experts"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """One serving or inference runtime.

    ``stack`` names the kernel library whose fitted timings apply. ``graphs`` states whether decode steps are captured
    and replayed, so that the host does not launch each kernel. ``mixes`` states whether prompts are processed in
    chunks. These share passes with decode steps if ``prefill_tokens`` is 0; otherwise, prompts have separate passes of
    ``prefill_tokens`` positions. ``python`` states whether the scheduler is written in Python, and
    ``vocabulary_multiple`` is the multiple to which the head's rows are padded.
    """

    name: str
    title: str
    stack: str
    fused: frozenset[Chain]
    graphs: bool = True
    mixes: bool = True
    prefill_tokens: int = 0
    python: bool = True
    dispatch_s: float = 0.0  # host time per kernel if steps are not captured
    vocabulary_multiple: int = 1
    aliases: tuple[str, ...] = ()
    runs_on: frozenset[Platform] = frozenset()
    checked: bool = True  # whether predictions were checked against any run; if not, the widest interval is used
    replayed_as: str = "a captured graph"  # what messages call a captured decode step

    @property
    def served(self) -> bool:
        """Whether host and kernel times were fitted to serving runs of this runtime, not of a similar one."""
        return self.name == self.stack and self.stack in SERVING

    @property
    def local(self) -> bool:
        """Whether the times of the runtime's kernels were fitted to single-user runs on consumer chips."""
        return self.stack not in (*SERVING, CORES)

    def fuses(self, chain: Chain) -> bool:
        """Whether the runtime runs this chain of operators as one kernel."""
        return chain in self.fused


CORES = "cores"  # the stack of ONNX Runtime on CPU cores
SERVING = ("vllm", "sglang", "trtllm")
"""Kernel libraries that were timed on data-centre GPUs while serving many requests at once."""

# Supported hardware as each project's documentation lists it in November 2026: docs.vllm.ai (CUDA 7.0 and newer, ROCm,
# Intel XPU, CPU, and plugins for TPU, Neuron and Gaudi), pytorch.org (and XLA for TPU and Neuron).
_VLLM: frozenset[Platform] = frozenset({"cuda", "rocm", "xpu", "cpu", "tpu", "neuron", "gaudi", "other"})
_TORCH: frozenset[Platform] = frozenset(
    {"cuda", "old cuda", "rocm", "old rocm", "xpu", "metal", "cpu", "board", "tpu", "neuron", "gaudi", "other"}
)

_ON_LLAMA_CPP = ("ollama", "lm-studio", "lmstudio", "koboldcpp", "gpt4all", "jan", "llamafile", "cactus")
"""Programs that use llama.cpp's kernels."""


def _for_one_user(
    name: str, title: str, runs_on: set[Platform], aliases: tuple[str, ...] = (), *, checked: bool = True
) -> Runtime:
    """Makes a single-user runtime with its own fused kernels."""
    return Runtime(
        name=name,
        title=title,
        stack=name,
        fused=frozenset({"attention", "experts"}),
        graphs=False,
        mixes=False,
        python=False,
        aliases=aliases,
        runs_on=frozenset(runs_on),
        checked=checked,
    )


def _onnx_runtime(name: str, title: str, runs_on: set[Platform], aliases: tuple[str, ...], *, checked: bool) -> Runtime:
    fused: frozenset[Chain] = frozenset({"qkv", "skip_norm", "rope_cache", "attention", "experts"})
    alone = _for_one_user(name, title, runs_on, aliases, checked=checked)
    return replace(alone, stack="vllm", fused=fused, dispatch_s=1e-6)


RUNTIMES: Mapping[str, Runtime] = {
    runtime.name: runtime
    for runtime in (
        # vLLM and SGLang pad the vocabulary: DEFAULT_VOCAB_PADDING_SIZE in layers/vocab_parallel_embedding.py
        Runtime(name="vllm", title="vLLM", stack="vllm", fused=EVERY, vocabulary_multiple=64, runs_on=_VLLM),
        Runtime(
            name="sglang",
            title="SGLang",
            stack="sglang",
            fused=EVERY,
            prefill_tokens=8192,  # default of --chunked-prefill-size; --enable-mixed-chunk is off
            vocabulary_multiple=64,
            runs_on=frozenset({"cuda", "rocm", "cpu", "tpu", "other"}),
        ),
        Runtime(
            name="trtllm",
            title="TensorRT-LLM",
            stack="trtllm",
            fused=EVERY,
            python=False,
            aliases=("tensorrt-llm", "tensorrt_llm", "tensorrtllm", "trt-llm", "trt"),
            runs_on=frozenset({"cuda", "other"}),
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
            runs_on=_TORCH,
        ),
        Runtime(
            name="torch-compile",
            title="PyTorch, torch.compile",
            stack="vllm",
            fused=frozenset({"act_mul", "skip_norm", "rope_cache", "attention"}),
            mixes=False,
            aliases=("torch-compiled", "compile", "inductor"),
            runs_on=_TORCH,
        ),
        _for_one_user(
            "llama.cpp",
            "llama.cpp",
            {"cuda", "old cuda", "rocm", "old rocm", "xpu", "metal", "cpu", "board", "phone", "other"},
            ("llamacpp", "llama-cpp", "gguf", *_ON_LLAMA_CPP),
        ),
        _for_one_user(
            "llama.cpp-vulkan",
            "llama.cpp, Vulkan",
            {"cuda", "old cuda", "rocm", "old rocm", "xpu", "phone"},
            ("vulkan",),
        ),
        _for_one_user("mlx", "MLX", {"metal"}, ("mlx-lm",)),
        _for_one_user("exllamav2", "ExLlamaV2", {"cuda"}, ("exllama", "exl2")),
        _for_one_user("genie", "Qualcomm Genie", {"phone"}, ("qnn", "qnn_context_binary")),
        _for_one_user("geniex", "Qualcomm GenieX", {"phone"}, ("geniex_qairt", "geniex-qairt", "qairt")),
        _for_one_user(
            "geniex-llama.cpp",
            "Qualcomm GenieX, llama.cpp",
            {"phone"},
            ("geniex_llamacpp", "geniex-llamacpp", "geniex-llama-cpp"),
        ),
        _onnx_runtime(
            "onnxruntime",
            "ONNX Runtime",
            {"cuda", "old cuda", "rocm", "xpu", "metal", "cpu", "board", "phone", "hailo", "other"},
            ("ort", "onnx", "onnxruntime-cuda"),
            checked=True,
        ),
        _onnx_runtime(
            "onnxruntime-directml",
            "ONNX Runtime, DirectML",
            {"cuda", "old cuda", "rocm", "xpu"},
            ("directml", "dml", "windows-ml"),
            checked=False,
        ),
        _onnx_runtime(
            "onnxruntime-web",
            "ONNX Runtime Web",
            {"cuda", "old cuda", "rocm", "xpu", "metal"},
            ("ort-web", "transformers.js", "webgpu"),
            checked=False,
        ),
        _for_one_user("ik-llama.cpp", "ik_llama.cpp", {"cpu", "board", "cuda", "metal"}, ("ik_llama.cpp", "ik-llama")),
        _for_one_user("mlx-vlm", "MLX-VLM", {"metal"}),
        _for_one_user("vllm-mlx", "vllm-mlx", {"metal"}),
        _for_one_user("awq", "AutoAWQ, TinyChat", {"cuda"}, ("autoawq", "tinychat", "llm-awq")),
        _for_one_user(
            "mlc",
            "MLC LLM",
            {"cuda", "rocm", "xpu", "metal", "phone"},
            ("mlc-llm", "web-llm", "webllm"),
        ),
        _for_one_user("litert-lm", "LiteRT-LM", {"phone", "metal", "board"}, ("litert", "tflite", "mediapipe")),
        _for_one_user("coreml", "Core ML", {"metal"}, ("core-ml", "core-ai", "coreml-llm", "coremltools", "ane")),
        _for_one_user("executorch", "ExecuTorch", {"phone", "metal", "board", "cpu"}, checked=False),
        _for_one_user("rkllm", "RKLLM", {"board"}, ("rknn", "rknn-llm"), checked=False),
        _for_one_user("t-mac", "T-MAC", {"cpu", "board", "phone", "metal", "cuda"}, ("tmac",), checked=False),
        _for_one_user("ipex-llm", "IPEX-LLM", {"xpu", "cpu"}, ("ipex",), checked=False),
        Runtime(
            name="deepspeed",
            title="DeepSpeed",
            stack="vllm",
            fused=frozenset({"qkv", "act_mul", "skip_norm", "rope_cache", "attention", "experts"}),
            graphs=False,
            mixes=False,
            dispatch_s=5e-6,
            aliases=("deepspeed-mii", "optimum-habana"),
            runs_on=frozenset({"cuda", "rocm", "gaudi", "xpu"}),
        ),
        replace(
            _for_one_user("openvino", "OpenVINO", {"xpu", "cpu", "board", "other"}),
            fused=frozenset({"act_mul", "skip_norm", "rope_cache", "attention", "experts"}),
        ),
    )
}


_PARTS: Mapping[str, str] = {
    "gpu": "gpu|cuda|metal|mps|rocm|hip|rocwmma|sycl|opencl|vulkan|radv|amdvlk|webgpu",
    "cpu": "cpu|kleidiai|blas|neon|avx2|avx512",
    "npu": "npu|hexagon|htp|ane",
}
"""For each part of a chip: the back ends that run on it, as a pattern."""
_BACK_END = re.compile(rf"[\s/:+_,(-]+({'|'.join(_PARTS.values())})\)?$")
"""Pattern of a back end after a runtime's name, as in ``llama.cpp-rocm`` or ``ollama (Metal)``."""


def part_named(name: str) -> str | None:
    """The part of a chip that a runtime's name implies: ``gpu`` for ``llama.cpp-opencl``; None without a back end."""
    found = _BACK_END.search(name.strip().lower())
    return None if found is None else next(part for part, ends in _PARTS.items() if found[1] in ends.split("|"))


def runtime_named(name: str) -> Runtime:
    """The runtime with this name or alias, ignoring case; a back end or a remark in brackets may follow.

    Raises:
        UnknownName: There is no such runtime.
        Unsupported: chipwise knows the runtime but does not model it; the message names the nearest modelled runtime.
    """
    key = name.strip().lower()
    for each in (key, key.partition("(")[0].rstrip(), _BACK_END.sub("", key)):
        for runtime in RUNTIMES.values():
            if each == runtime.name or each in runtime.aliases:
                vulkan = runtime.name == "llama.cpp" and "vulkan" in key
                return RUNTIMES["llama.cpp-vulkan"] if vulkan else runtime
    if key in INSTEAD:
        near = INSTEAD[key]
        raise Unsupported(f"chipwise does not model the runtime {name}; use the most similar one: --runtime {near}")
    raise UnknownName("runtime", name, RUNTIMES)


INSTEAD: Mapping[str, str] = {
    name: near
    for near, names in {
        "vllm": (
            "tgi text-generation-inference lmdeploy aphrodite ray-serve xinference jetstream maxtext "
            "neuronx-distributed sambaflow"
        ),
        "trtllm": "tensorrt triton nim fastertransformer",
        "torch-compile": "ctranslate2 tensorflow jax keras",
        "torch-eager": "candle accelerate bitsandbytes",
        "llama.cpp": "mistral.rs powerinfer bitnet.cpp ktransformers mnn ncnn",
        "onnxruntime": "paddle hailort",
        "onnxruntime-directml": "winml",
        "litert-lm": "nnapi",
        "genie": "snpe",
    }.items()
    for name in names.split()
}
"""Well-known runtimes that chipwise does not model, each with the most similar modelled runtime."""


_OLD_CUDA = frozenset({"kepler", "maxwell", "pascal", "jetson"})  # families with compute capability below or near 7.0
_BOARDS = frozenset({"Raspberry Pi", "Rockchip", "SiFive"})
_PHONES = frozenset({"Qualcomm", "MediaTek", "Samsung", "Google"})
ON_CORES: frozenset[Platform] = frozenset({"cpu", "board", "phone"})
"""Platforms on which ONNX Runtime runs on the CPU cores by default."""
_REPLAYED_AS: Mapping[Platform, str] = {
    "cuda": "a captured CUDA graph",
    "old cuda": "a captured CUDA graph",
    "rocm": "a captured HIP graph",
    "old rocm": "a captured HIP graph",
    "metal": "a Metal command buffer",
    "tpu": "a compiled XLA program",
    "neuron": "a compiled program",
    "gaudi": "a captured HPU graph",
}


def platform_of(device: DeviceProfile) -> Platform:
    """The platform that a runtime must support to run on ``device``; ``other`` for unknown vendors."""
    if device.kind == "cpu":
        return "cpu"
    if device.kind == "tpu":
        return "tpu"
    match device.vendor:
        case "NVIDIA":
            return "old cuda" if device.family in _OLD_CUDA else "cuda"
        case "AMD":
            return "old rocm" if device.family == "gcn" else "rocm"
        case "Apple":
            return "metal"
        case "AWS":
            return "neuron"
        case "Hailo":
            return "hailo"
        case "Intel":
            return "gaudi" if device.kind == "accelerator" else "xpu"
        case vendor if vendor in _BOARDS:
            return "board"
        case vendor if vendor in _PHONES:
            return "phone"
    return "other"


def runtimes_for(device: DeviceProfile) -> list[str]:
    """Names of the runtimes that support ``device``; the default runtime comes first."""
    default, platform = default_runtime(device), platform_of(device)
    return [default, *(r.name for r in RUNTIMES.values() if platform in r.runs_on and r.name != default)]


_READER_OF = {"int8_own": "onnxruntime", "int4_own": "onnxruntime"}
_OF_ONNX = frozenset({"int8", "int4"})
_OF_CHECKPOINTS = _OF_ONNX | {"w8a8", "int4_g32", "int4_g128", "fp8", "fp8_block", "nvfp4"}


_GEFORCE = ("GeForce", "TITAN")  # words in the titles of NVIDIA's consumer cards


def default_runtime(
    device: DeviceProfile, weights: WeightFormat | None = None, *, images: bool = False, one_user: bool = True
) -> str:
    """The default runtime: vLLM on server chips, ONNX Runtime on Hailo's chips, llama.cpp on consumer chips.

    A weight format of GGUF, MLX or chipwise's ONNX files implies the runtime that reads such files, if this runtime
    supports the device. On consumer GPUs in CUDA or ROCm, formats of server checkpoints (fp8, int4, …) imply vLLM; on
    CPU cores, ``int8`` and ``int4`` imply ONNX Runtime. Image models (``images``) run in compiled PyTorch on GPUs, and
    on other chips in ONNX Runtime if possible. On a GeForce, the default is llama.cpp for ``one_user``, but vLLM for
    servers, such as those of a fleet.
    """
    platform = platform_of(device)
    if images:
        compiled = device.kind == "gpu" and platform in RUNTIMES["torch-compile"].runs_on
        for name in (*(["torch-compile"] if compiled else []), "onnxruntime", "torch-compile", "vllm"):
            if platform in RUNTIMES[name].runs_on:
                return name
    if weights is not None and weights.head is not None:
        reader = "mlx" if weights.name.startswith("mlx") else _READER_OF.get(weights.name, "llama.cpp")
        if platform in RUNTIMES[reader].runs_on:
            return reader
    if platform == "hailo":
        return "onnxruntime"
    own = platform in ("metal", "cpu", "board", "phone", "old cuda", "old rocm", "xpu") or device.kind == "soc"
    own = own or device.family in ("rdna", "gcn") or (one_user and any(word in device.title for word in _GEFORCE))
    servers = device.name == "max-1550" or platform == "other"
    if servers or not own:
        return "vllm"
    if weights is not None and weights.name in _OF_CHECKPOINTS:
        if platform in ("cuda", "rocm"):
            return "vllm"
        if platform in ON_CORES and weights.name in _OF_ONNX:
            return "onnxruntime"
    return "llama.cpp"


def on_device(runtime: Runtime, device: DeviceProfile) -> Runtime:
    """A copy of ``runtime`` with the properties that it has on ``device``.

    Raises:
        Unsupported: The runtime does not run on ``device``; the message names runtimes that do.
    """
    platform = platform_of(device)
    if platform not in runtime.runs_on:
        known = ", ".join(runtimes_for(device))
        raise Unsupported(f"{runtime.title} does not run on {device.name} ({device.title}); runtimes that do: {known}")
    stack = CORES if runtime.name == "onnxruntime" and platform in ON_CORES else runtime.stack
    return replace(runtime, stack=stack, replayed_as=_REPLAYED_AS.get(platform, "one compute graph"))
