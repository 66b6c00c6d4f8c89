"""The commands that serve an arrangement in vLLM, SGLang and TensorRT-LLM; a deployment of prefill and decode apart.

Flags are those of the projects' documentation: docs.vllm.ai (vllm serve), docs.sglang.ai (server arguments),
nvidia.github.io/TensorRT-LLM (trtllm-serve), docs.nvidia.com/dynamo (DynamoGraphDeployment).
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from chipwise.replay.policy import Policy

if TYPE_CHECKING:
    from chipwise.planning.evaluating import Arrangement


def commands_of(model: str, where: Arrangement, replicas: int, policy: Policy, longest: int) -> tuple[str, ...]:
    """One command a replica (behind a router, where there are several); none for runtimes without a server here."""
    length = -(-longest // 1024) * 1024
    name = shlex.quote(model)
    narrow = where.weights in ("fp8", "fp8_block")
    if where.runtime == "vllm":
        parts = [f"vllm serve {name} --max-model-len {length}"]
        parts += [f"--tensor-parallel-size {where.tp}"] * (where.tp > 1)
        parts += [f"--pipeline-parallel-size {where.pp}"] * (where.pp > 1)
        parts += ["--quantization fp8"] * narrow
        parts += [f"--max-num-batched-tokens {policy.most_tokens} --max-num-seqs {policy.most_sequences}"]
        parts += ["--enable-prefix-caching"] * policy.prefix_cache
    elif where.runtime == "sglang":
        parts = [f"python -m sglang.launch_server --model-path {name} --context-length {length}"]
        parts += [f"--tp {where.tp}"] * (where.tp > 1)
        parts += [f"--pp-size {where.pp}"] * (where.pp > 1)
        parts += ["--quantization fp8"] * narrow
        parts += [f"--chunked-prefill-size {policy.most_tokens} --max-running-requests {policy.most_sequences}"]
    elif where.runtime == "trtllm":
        parts = [f"trtllm-serve {name} --max_seq_len {length}"]
        parts += [f"--tp_size {where.tp}"] * (where.tp > 1)
        parts += [f"--pp_size {where.pp}"] * (where.pp > 1)
        parts += [f"--max_num_tokens {policy.most_tokens} --max_batch_size {policy.most_sequences}"]
    elif where.runtime.startswith("llama.cpp"):
        parts = [
            f"llama-server -m {shlex.quote(model.rpartition('/')[2] + '.gguf')} -c {length * policy.most_sequences}"
        ]
        parts += [f"-np {policy.most_sequences} -ub {policy.most_tokens}"]
    else:
        return ()
    note = f"  # {replicas} of them, behind a router" if replicas > 1 else ""
    return (" ".join(parts) + note,)


def dynamo_yaml(model: str, reading: tuple[Arrangement, int], writing: tuple[Arrangement, int]) -> str:
    """A deployment of prefill and decode workers in NVIDIA Dynamo, as YAML.

    Args:
        model: The model.
        reading: The arrangement of the prefill workers, and how many there are.
        writing: The same of the decode workers.
    """
    lines = [
        "apiVersion: nvidia.com/v1alpha1",
        "kind: DynamoGraphDeployment",
        "metadata: {name: chipwise-plan}",
        "spec:",
        "  services:",
        "    Frontend: {componentType: frontend, replicas: 1}",
    ]
    for name, (where, count), flag in (
        ("VllmPrefillWorker", reading, "--is-prefill-worker"),
        ("VllmDecodeWorker", writing, ""),
    ):
        arguments = ["--model", model, "--tensor-parallel-size", str(where.tp), *([flag] if flag else [])]
        lines += [
            f"    {name}:",
            "      componentType: worker",
            f"      replicas: {count}  # {where.device}",
            f"      resources: {{limits: {{gpu: '{where.devices}'}}}}",
            f"      extraPodSpec: {{mainContainer: {{command: [python3, -m, dynamo.vllm], args: {arguments!r}}}}}",
        ]
    return "\n".join(lines) + "\n"
