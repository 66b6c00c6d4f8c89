"""Plain vision transformers among graphs: the sizes of their configurations, and PyTorch's law for the same model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import chipwise
from chipwise.design.models.graph_files import GraphQuestion
from chipwise.predict.graphs.image_transformers import plain_transformer
from chipwise.predict.whole_runs.vision import VisionTransformer

torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
SIZES = {"hidden_size": 96, "num_attention_heads": 3, "image_size": 64, "patch_size": 16}


def logits_of(kind: str, **config: object) -> Any:
    """A transformers model that returns logits or states alone."""
    torch.manual_seed(0)
    family = kind.removesuffix("ForImageClassification").removesuffix("Model")
    inner = getattr(transformers, kind)(getattr(transformers, f"{family}Config")(**config)).eval()

    class Alone(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            return self.inner(x)[0]

    return Alone()


@pytest.mark.parametrize(
    ("kind", "config", "batch", "expected"),
    [
        ("ViTForImageClassification", {"num_hidden_layers": 3, "intermediate_size": 200, "num_labels": 10}, 2,
         {"depth": 3, "mlp_hidden": 200, "classes": 10}),
        ("ViTForImageClassification",
         {"num_hidden_layers": 1, "intermediate_size": 96, "num_labels": 10, "attn_implementation": "eager"}, 1,
         {"depth": 1, "mlp_hidden": 96, "classes": 10}),
        ("Dinov2Model", {"num_hidden_layers": 2, "mlp_ratio": 4, "use_swiglu_ffn": True}, 1,
         {"depth": 2, "mlp_hidden": 256, "classes": 0, "gated": True}),
    ],
)  # fmt: skip
def test_the_sizes_are_those_of_the_configuration(
    kind: str, config: dict[str, object], batch: int, expected: dict[str, int]
) -> None:
    graph = GraphQuestion(model=logits_of(kind, **SIZES | config), inputs=(torch.ones(batch, 3, 64, 64),)).read()
    stated = {"image_size": 64, "patch": 16, "width": 96, "heads": 3, "prefix_tokens": 1}
    assert plain_transformer(graph) == (VisionTransformer(**stated, **expected), batch)


@pytest.mark.parametrize("runtime", ["torch", "torch-eager", "torch-compile"])
def test_a_module_is_priced_as_the_named_model_in_pytorch(tmp_path: Path, runtime: str) -> None:
    module = logits_of("ViTForImageClassification", **SIZES, num_hidden_layers=2, intermediate_size=384)
    module.inner.config.architectures = ["ViTForImageClassification"]
    module.inner.config.save_pretrained(tmp_path)
    named = chipwise.estimate(tmp_path, device="rtx-4090", runtime=runtime, weights="fp32").metrics["ttft_p50"]
    found = chipwise.estimate(module, inputs=(torch.ones(1, 3, 64, 64),), device="rtx-4090", runtime=runtime)
    seconds = found.metrics["latency_s"]
    assert (seconds.value, seconds.low, seconds.high) == pytest.approx((named.value, named.low, named.high))
    explained = chipwise.explain(module, inputs=(torch.ones(1, 3, 64, 64),), device="rtx-4090", runtime=runtime)
    assert sum(each.seconds for each in explained.operators) <= seconds.value * (1 + 1e-9)


def test_other_models_and_runtimes_keep_the_law_by_class() -> None:
    module, x = logits_of("ViTForImageClassification", **SIZES, num_hidden_layers=2), torch.ones(1, 3, 64, 64)
    usual = chipwise.estimate(module, inputs=(x,), device="rtx-4090")
    assert usual.runtime == "onnxruntime"
    assert usual.provenance == "predicted (law by class of operator)"
    small = {
        "image_size": 64,
        "patch_size": 4,
        "embed_dim": 24,
        "depths": [1, 1],
        "num_heads": [3, 3],
        "window_size": 4,
    }
    one = torch.nn.Conv2d(3, 3, 1, groups=3)  # a first product of depth 1
    assert chipwise.estimate(one, inputs=(x,), device="rtx-4090", runtime="torch-eager").latency_s > 0
    swin = logits_of("SwinForImageClassification", **small)
    assert plain_transformer(GraphQuestion(model=swin, inputs=(x,)).read()) is None
    by_class = chipwise.estimate(swin, inputs=(x,), device="rtx-4090", runtime="torch-eager")
    assert by_class.provenance == "predicted (law by class of operator)"


def test_a_model_that_ends_in_attention_is_no_plain_transformer() -> None:
    class Attended(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.cut = torch.nn.Conv2d(3, 32, 16, stride=16)
            self.into = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(3))

        def forward(self, x: Any) -> Any:
            q, k, v = (part(self.cut(x).flatten(2).transpose(1, 2)) for part in self.into)
            return (q @ k.transpose(1, 2)).softmax(-1) @ v

    x = torch.ones(1, 3, 64, 64)
    assert plain_transformer(GraphQuestion(model=Attended(), inputs=(x,)).read()) is None
