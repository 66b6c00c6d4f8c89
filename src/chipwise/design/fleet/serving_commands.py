"""Writes the commands that serve an arrangement (vLLM, SGLang, TensorRT-LLM), and Dynamo files for separate pools.

Flags are as documented by the projects: docs.vllm.ai (vllm serve), docs.sglang.ai (server arguments),
nvidia.github.io/TensorRT-LLM (trtllm-serve), docs.nvidia.com/dynamo (DynamoGraphDeployment).
"""

from __future__ import annotations

import json
import os
import shlex
from typing import TYPE_CHECKING

from chipwise.core.fields import MOST
from chipwise.errors import UnknownName
from chipwise.model.published import families
from chipwise.predict.load.policy import Policy

if TYPE_CHECKING:
    from chipwise.design.fleet.arrangements import Arrangement


NARROW = ("fp8", "fp8_block")  # formats to which vLLM and SGLang can quantise a checkpoint while loading it


def served_name(model: str) -> str:
    """The model's name for a serving engine: a folder's path, or a Hugging Face id (with owner for known models).

    Suffixes after a known model's name (``-instruct``, ``-fp8``) are kept, because they name other weights.

    >>> served_name("qwen3-32b"), served_name("llama-3.1-8b-instruct"), served_name("RedHatAI/Qwen3-32B-FP8")
    ('Qwen/Qwen3-32B', 'meta-llama/Llama-3.1-8B-instruct', 'RedHatAI/Qwen3-32B-FP8')
    """
    if os.path.exists(model):
        return os.path.dirname(model) or "." if os.path.basename(model) == "config.json" else model
    typed = model.strip().removeprefix("https://huggingface.co/").rstrip("/")
    try:
        known = families.id_of(typed)
    except UnknownName:
        return typed
    if "/" in typed:
        return known if typed.lower() == known.lower() else typed
    tail = known.rpartition("/")[2]
    more = typed[len(tail) :] if typed.lower().startswith(tail.lower()) else ""
    return known + more


def commands_of(
    model: str, where: Arrangement, replicas: int, policy: Policy, longest: int, *, context: int | None = None
) -> tuple[str, ...]:
    """The command that starts a replica, with a comment if ``replicas`` is above 1; empty if the runtime has no server.

    Args:
        model: The model, as named by the user.
        where: Arrangement of one replica.
        replicas: Number of replicas.
        policy: Scheduling rules.
        longest: Number of token positions (prompt and new tokens) of the longest request.
        context: The model's context length, if limited; engines refuse a greater length.
    """
    length = min(-(-longest // 1024) * 1024, context or MOST)
    name = shlex.quote(served_name(model))
    if where.runtime == "vllm":
        parts = [f"vllm serve {name} --max-model-len {length}", *_vllm(where)]
        parts += [f"--max-num-batched-tokens {policy.most_tokens} --max-num-seqs {policy.most_sequences}"]
        parts += ["--enable-prefix-caching"] * policy.prefix_cache
    elif where.runtime == "sglang":
        parts = [f"python -m sglang.launch_server --model-path {name} --context-length {length}", *_sglang(where)]
        parts += [f"--chunked-prefill-size {policy.most_tokens} --max-running-requests {policy.most_sequences}"]
    elif where.runtime == "trtllm":
        parts = [f"trtllm-serve {name} --max_seq_len {length}", *_trtllm(where)]
        parts += [f"--max_num_tokens {policy.most_tokens} --max_batch_size {policy.most_sequences}"]
        options = _trtllm_options(where)
        if options:
            parts = [f"echo {shlex.quote(json.dumps(options))} > options.yaml;", *parts]
            parts += ["--extra_llm_api_options options.yaml"]
    elif where.runtime.startswith("llama.cpp"):
        parts = [f"llama-server -m {_gguf(model)} -c {length * policy.most_sequences}"]
        parts += [f"-np {policy.most_sequences} -ub {policy.most_tokens}"]
        if where.speculation is not None:
            drafts = where.speculation
            parts += [f"-md {_gguf(drafts.draft)}" if drafts.draft else "--spec-type ngram-simple"]
            parts += [f"--draft-max {drafts.drafted}"]
    else:
        return ()
    note = f"  # start {replicas} of these behind a router" if replicas > 1 else ""
    return (" ".join(parts) + note,)


def _gguf(model: str) -> str:
    return shlex.quote(served_name(model).rstrip("/").rpartition("/")[2].removesuffix(".gguf") + ".gguf")


def _vllm(where: Arrangement) -> list[str]:
    """vLLM's flags for parallelism and drafts; vLLM's expert parallelism always uses all devices of a stage."""
    parts = [f"--tensor-parallel-size {where.deployment.tp}"] * (where.deployment.tp > 1)
    parts += [f"--pipeline-parallel-size {where.deployment.pp}"] * (where.deployment.pp > 1)
    parts += [f"--data-parallel-size {where.deployment.dp}"] * (where.deployment.dp > 1)
    parts += ["--enable-expert-parallel"] * (where.deployment.ep > 1)
    parts += ["--quantization fp8"] * (where.weights in NARROW)
    if where.speculation is not None:
        drafts = where.speculation
        if drafts.draft:
            how: dict[str, object] = {"method": "draft_model", "model": served_name(drafts.draft)}
        else:
            how = {"method": "ngram", "prompt_lookup_max": drafts.drafted}
        how["num_speculative_tokens"] = drafts.drafted
        parts.append(f"--speculative-config {shlex.quote(json.dumps(how))}")
    return parts


def _sglang(where: Arrangement) -> list[str]:
    """SGLang's flags for parallelism and drafts; ``--tp`` counts all devices of a stage."""
    devices = where.deployment.tp * where.deployment.dp
    parts = [f"--tp {devices}"] * (devices > 1)
    parts += [f"--dp {where.deployment.dp} --enable-dp-attention"] * (where.deployment.dp > 1)
    parts += [f"--ep {where.deployment.ep}"] * (where.deployment.ep > 1)
    parts += [f"--pp-size {where.deployment.pp}"] * (where.deployment.pp > 1)
    parts += ["--quantization fp8"] * (where.weights in NARROW)
    if where.speculation is not None:
        drafts = where.speculation
        if drafts.draft:
            name = shlex.quote(served_name(drafts.draft))
            parts += [f"--speculative-algorithm STANDALONE --speculative-draft-model-path {name}"]
            parts += [f"--speculative-num-steps {drafts.drafted} --speculative-eagle-topk 1"]
        else:
            parts += ["--speculative-algorithm NGRAM"]
        parts += [f"--speculative-num-draft-tokens {drafts.drafted + 1}"]
    return parts


def _trtllm(where: Arrangement) -> list[str]:
    devices = where.deployment.tp * where.deployment.dp
    parts = [f"--tp_size {devices}"] * (devices > 1)
    parts += [f"--ep_size {where.deployment.ep}"] * (where.deployment.ep > 1)
    parts += [f"--pp_size {where.deployment.pp}"] * (where.deployment.pp > 1)
    return parts


def _trtllm_options(where: Arrangement) -> dict[str, object]:
    """Options that can be set only in TensorRT-LLM's option file, as JSON (which is valid YAML)."""
    options: dict[str, object] = {"enable_attention_dp": True} if where.deployment.dp > 1 else {}
    if where.speculation is not None:
        drafts = where.speculation
        how = {"decoding_type": "NGram"}
        if drafts.draft:
            how = {"decoding_type": "DraftTarget", "speculative_model": served_name(drafts.draft)}
        options["speculative_config"] = {**how, "max_draft_len": drafts.drafted}
    return options


DYNAMO = {"vllm": "Vllm", "sglang": "Sglang", "trtllm": "TRTLLM"}
"""Name of each runtime's workers in NVIDIA Dynamo."""


def dynamo_yaml(model: str, reading: tuple[Arrangement, int], writing: tuple[Arrangement, int]) -> str:
    """A Dynamo deployment of prefill and decode workers, as YAML; empty if Dynamo does not support the runtime.

    Args:
        model: The model.
        reading: Arrangement and number of the prefill workers.
        writing: Arrangement and number of the decode workers.
    """
    runtime = reading[0].runtime
    if runtime not in DYNAMO:
        return ""
    name = served_name(model)
    lines = [
        "apiVersion: nvidia.com/v1alpha1",
        "kind: DynamoGraphDeployment",
        "metadata: {name: chipwise-plan}",
        "spec:",
        "  services:",
        "    Frontend: {componentType: frontend, replicas: 1}",
    ]
    for role, (where, count) in (("prefill", reading), ("decode", writing)):
        if runtime == "vllm":
            arguments = ["--model", name, *_words(_vllm(where)), *["--is-prefill-worker"] * (role == "prefill")]
        else:
            flags = _sglang(where) if runtime == "sglang" else _trtllm(where)
            arguments = ["--model-path", name, *_words(flags), "--disaggregation-mode", role]
        lines += [
            f"    {DYNAMO[runtime]}{role.title()}Worker:",
            "      componentType: worker",
            f"      subComponentType: {role}",
            f"      replicas: {count}  # {where.device}",
            f"      resources: {{limits: {{gpu: '{where.devices}'}}}}",
            "      extraPodSpec:",
            "        mainContainer:",
            f"          command: [python3, -m, dynamo.{runtime}]",
            f"          args: {json.dumps(arguments)}",
        ]
    return "\n".join(lines) + "\n"


def _words(parts: list[str]) -> list[str]:
    return [word for part in parts for word in shlex.split(part)]
