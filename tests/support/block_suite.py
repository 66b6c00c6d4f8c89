"""BlockSuite: checks that a block's parameter count, operators, torch module and ONNX nodes agree.

Subclass it in a test module, and return the models to try from ``archs``; pytest then runs every check on them::

    class TestMyBlock(BlockSuite):
        def archs(self):
            return arch_specs()
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import numpy as np
import torch
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from chipwise.core.dtypes import Size
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.text.module import Transformer
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.graph import OpGraph
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.walk.lower import lower
from chipwise.model.walk.module import build
from chipwise.model.walk.slicing import cuts
from chipwise.model.walk.weights import weight_shapes
from chipwise.training.supernet.sliced import add_gradients, extract, part_of, with_weights
from chipwise.training.supernet.whole import whole_of
from support.models import arch_specs, check_each

AnyModule = TypeVar("AnyModule", bound=torch.nn.Module)
TOLERANCE = 1e-4
PROMPT, STEPS = 7, 6


class BlockSuite:
    """Checks on ``examples`` random models from :meth:`archs`."""

    examples = 15

    def archs(self) -> st.SearchStrategy[ArchSpec]:
        """The models to test; by default random small models."""
        return arch_specs()

    def _each(self, check: Callable[[ArchSpec], None]) -> None:
        check_each(check, self.archs(), examples=self.examples)

    def test_parameters_agree(self) -> None:
        """Spec and module count the same weights."""
        self._each(check_parameters)

    def test_flops_agree(self) -> None:
        """The operators' FLOPs equal those that torch counts, in prefill and in decode."""
        self._each(check_flops)

    def test_steps_through_the_cache_agree(self) -> None:
        """Token by token through the cache gives the logits of one full pass."""
        self._each(check_cache)

    def test_exported_graphs_agree(self) -> None:
        """The ONNX graph gives the module's logits and has the operators that lowering lists."""
        self._each(check_export)

    def test_slices_agree(self) -> None:
        """A smaller model that uses views of larger weights computes the same as with copies."""
        self._each(check_slice)


def shaken(arch: ArchSpec, *, seed: int) -> Transformer:
    """A random model whose norms, biases and convolutions are not ones and zeros, so that omitting one is detected."""
    model: Transformer = build(arch, seed=seed)
    return shake(model, seed=seed, matrices=False)


def shake(model: AnyModule, *, seed: int, by: float = 0.3, matrices: bool = True) -> AnyModule:
    """Puts ``model`` in evaluation mode and adds normal noise of deviation ``by`` to its parameters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if matrices or parameter.ndim != 2:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=by)
    return model.eval()


def random_tokens(arch: ArchSpec, *, length: int, batch: int = 1, seed: int = 0) -> torch.Tensor:
    """Random tokens, (batch, length)."""
    return torch.randint(0, arch.vocab_size, (batch, length), generator=torch.Generator().manual_seed(seed))


def check_parameters(arch: ArchSpec) -> None:
    """Asserts that the module of ``arch`` has the parameters, names and shapes of its spec."""
    check_weights(Transformer, arch)


def check_weights(module: Callable[[ArchSpec], torch.nn.Module], arch: ArchSpec) -> None:
    """Asserts that ``module`` of ``arch`` has the parameters, names and shapes of its spec."""
    with torch.device("meta"):
        model = module(arch)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert shapes == weight_shapes(arch)
    assert arch.parameters() == sum(parameter.numel() for parameter in model.parameters())


def check_flops(arch: ArchSpec, *, prompt: int = PROMPT, past: int = 5, batch: int = 2) -> None:
    """Asserts that lowering counts the matrix products and attention that torch runs.

    Torch multiplies every query with every key, but lowering counts only the keys that the mask allows, so its count is
    repeated here without a mask. In decode without windows there is no difference.
    """
    design = Design(arch=arch)
    model = shaken(arch, seed=0)
    so_far = None
    for phase, workload, tokens in (
        (Phase.PREFILL, Workload(prompt_tokens=past, new_tokens=1, batch=batch), past),
        (Phase.DECODE, Workload(prompt_tokens=past, new_tokens=1, batch=batch), 1),
        (Phase.PREFILL, Workload(prompt_tokens=prompt, new_tokens=1, batch=batch), prompt),
    ):
        graph = lower(design, workload, phase, logits="all")
        before = so_far if phase is Phase.DECODE else None
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            _, so_far = model(random_tokens(arch, length=tokens, batch=batch), before)
        assert dense_flops(graph) == counter.get_total_flops()
        assert lower(design, workload, phase).work().flops <= graph.work().flops


def dense_flops(graph: OpGraph) -> Size:
    """FLOPs of the matrix products and of attention in ``graph``, counted as if nothing were masked."""
    total: Size = 0
    for placed in graph:
        if isinstance(op := placed.op, Matmul):
            total += 2 * op.m * op.k * op.n
        elif isinstance(op, AttentionOp):
            seen = op.query_tokens * (op.past_tokens + op.query_tokens)
            total += 4 * op.batch * op.heads * op.head_size * seen
    return total


def check_cache(arch: ArchSpec, *, tolerance: float = TOLERANCE) -> None:
    """Asserts that a prompt, then tokens one by one, then three at once give the logits of one full pass."""
    model = shaken(arch, seed=0)
    tokens = random_tokens(arch, length=PROMPT + STEPS, batch=2)
    with torch.no_grad():
        expected = model(tokens)[0]
        past, parts, start = None, [], 0
        for length in (PROMPT, *(1,) * (STEPS - 3), 3):
            logits, past = model(tokens[:, start : start + length], past)
            parts.append(logits)
            start += length
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, atol=tolerance, rtol=tolerance)


def check_slice(arch: ArchSpec, *, tolerance: float = TOLERANCE) -> None:
    """Asserts that a model on views of larger weights computes the same as with extracted weights.

    Also checks that a step's gradients reach exactly the part of the larger model that the smaller one uses.
    """
    larger = wider(arch)
    whole = whole_of([arch, larger])
    weights = {name: value.detach().requires_grad_() for name, value in shaken(whole, seed=0).named_parameters()}
    alone = Transformer(arch)
    alone.load_state_dict(extract(arch, whole, weights))
    tokens = random_tokens(arch, length=PROMPT, batch=2)
    expected = alone(tokens)[0]
    given = with_weights(arch, part_of(arch, whole, weights), lambda model: model(tokens)[0])
    torch.testing.assert_close(given, expected, atol=tolerance, rtol=tolerance)
    expected.pow(2).mean().backward()
    given.pow(2).mean().backward()
    gradients = {name: torch.zeros_like(w) if w.grad is None else w.grad for name, w in weights.items()}
    for name, cut in cuts(arch, whole).items():
        assert tuple(cut.of(weights).shape) == weight_shapes(arch)[name]
    wanted = {name: torch.zeros_like(w) for name, w in weights.items()}
    add_gradients(arch, whole, dict(alone.named_parameters()), wanted)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, wanted[name], atol=tolerance, rtol=tolerance)


def wider(arch: ArchSpec) -> ArchSpec:
    """A model of the same kind in which every size is larger."""
    layers = tuple(
        replace(
            layer,
            shares=None,
            attention=layer.attention and _wider_attention(layer.attention),
            ffn=layer.ffn and replace(layer.ffn, width=layer.ffn.width + 12),
        )
        for layer in (*arch.layers, *arch.layers)
    )
    return replace(
        arch.of_vocabulary(arch.vocab_size + 5), d_model=arch.d_model + 8, max_tokens=arch.max_tokens + 1, layers=layers
    )


def _wider_attention(block: Attention) -> Attention:
    return replace(
        block, heads=2 * (block.heads + block.kv_heads), kv_heads=2 * block.kv_heads, head_size=block.head_size + 6
    )


def check_export(arch: ArchSpec, *, tolerance: float = TOLERANCE) -> None:
    """Asserts that the exported graph gives the module's logits, in prefill and step by step.

    Also checks that it has one node for each matrix product and each attention that lowering lists, in the same places.
    """
    import onnx

    from chipwise.deploy.export.onnx import export
    from chipwise.deploy.runtimes.onnxruntime import OnnxRuntimeSession

    model = shaken(arch, seed=0)
    tokens = random_tokens(arch, length=PROMPT + STEPS)
    with torch.no_grad():
        expected = model(tokens)[0].numpy()
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    with TemporaryDirectory() as folder:
        path = export(Design(arch=arch), weights, Path(folder) / "model.onnx")
        session = OnnxRuntimeSession(path, capacity=PROMPT + STEPS)
        steps = (tokens[:, step : step + 1].numpy() for step in range(PROMPT, PROMPT + STEPS))
        logits = [session.prefill(tokens[:, :PROMPT].numpy()).copy(), *(session.decode(t).copy() for t in steps)]
        nodes = onnx.load(path).graph.node
    given = np.stack([row.reshape(-1) for row in logits])
    np.testing.assert_allclose(given, expected[0, PROMPT - 1 :], atol=tolerance, rtol=tolerance)
    graph = lower(Design(arch=arch), Workload(prompt_tokens=PROMPT, new_tokens=STEPS), Phase.DECODE)
    for kind, operators in ((Matmul, {"MatMul", "FusedMatMul"}), (AttentionOp, {"GroupQueryAttention"})):
        listed = sum(isinstance(placed.op, kind) for placed in graph)
        assert listed == sum(node.op_type in operators for node in nodes)
