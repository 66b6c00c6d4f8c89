"""Rates from whole models alone, against a machine whose rates we chose; and once for real, small."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from chipwise.deploy.calibrate.calibrate import calibrate
from chipwise.deploy.calibrate.learning import predict_seconds
from chipwise.deploy.calibrate.model_rates import KNOTS_BYTES, best_rates, fit_model_rates
from chipwise.deploy.calibrate.random_models import export_nearest, random_classifiers, random_designs, variants
from chipwise.deploy.export.exporters import export_openvino
from chipwise.deploy.runtimes import missing
from chipwise.errors import Unsupported
from chipwise.hardware.detect import Machine
from chipwise.hardware.device import Curve, MachineProfile, MemoryCost, PassCost, Tail
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.ends import Tokens
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.walk.lower import lower
from chipwise.predict.cost.pricing import combine, total_price

FORMATS = ("fp32", "int8", "int4")


def chosen_machine() -> MachineProfile:
    """1 µs a node, 5 µs a call, 1 ns a logit, 10 ps a product; streaming a byte takes 10 ps, from 4 MB on 20 ps."""
    terms = {}
    for weights in FORMATS:
        terms[f"matmul.{weights}.vector"] = {"node": 1e-6, "out": 1e-10}
        terms[f"matmul.{weights}.matrix"] = {"node": 1e-6, "out": 1e-10, "products": 1e-11}
    terms["attention.step"] = {"node": 1e-6, "head": 2e-6}
    terms["attention.prompt"] = {"node": 1e-6, "query": 1e-6}
    for name in ("full", "biased"):
        terms[f"attention.{name}"] = {"node": 1e-6, "query": 1e-8, "score": 1e-10}
    terms["conv.image"] = {"node": 1e-6, "products": 2e-11}
    kinds = ("pool", "norm.rmsnorm", "norm.skip_rmsnorm", "norm.layernorm", "gather", "conv")
    kinds += tuple(
        f"elementwise.{name}"
        for name in ("relu", "gelu", "gelu_tanh", "silu", "mul", "add", "transpose", "pad", "split", "concat")
    )
    terms |= {kind: {"node": 1e-6, "value": 1e-10} for kind in kinds}
    curve = Curve(working_set_bytes=KNOTS_BYTES, s_per_byte=(1e-11, *[2e-11] * (len(KNOTS_BYTES) - 1)))
    still = PassCost(call_s=5e-6, per_logit_s=1e-9, scale=1.0)
    return MachineProfile(
        machine=Machine(name="chosen", cpu="chosen", cores=1, memory_bytes=10**9),
        runtime="chosen",
        runtime_version="0",
        threads=1,
        created="2026-01-01T00:00:00+00:00",
        terms=terms,
        curves={f"matmul.{weights}.vector": curve for weights in FORMATS},
        passes={phase.value: still for phase in Phase},
        memory=MemoryCost(base_bytes=0.0, per_table_byte=1.0, per_matrix_byte={}),
        tails={phase.value: Tail(ratio=1.0, extra_s=0.0) for phase in Phase},
        checks={},
    )


@dataclass(frozen=True)
class Timed:
    """A design as the chosen machine runs it."""

    design: Design
    workload: Workload
    peak_memory_bytes: float | None = None

    def seconds(self, phase: Phase, share: float) -> float:
        machine = chosen_machine()
        price = total_price((placed.op for placed in lower(self.design, self.workload, phase)), machine)
        return float(combine(price, machine, phase, logits=self.design.arch.outputs))


def test_a_machine_with_known_rates_is_found_again_from_whole_models() -> None:
    """Models that were not fitted, under a prompt that was not measured, are predicted within 3 %."""
    workloads = [Workload(prompt_tokens=prompt, new_tokens=64) for prompt in (64, 24, 128)]
    seen = [Timed(design, workloads[i // 3 % 3]) for i, design in enumerate(random_designs(60, seed=0))]
    rates = fit_model_rates(seen)
    found = replace(chosen_machine(), terms=rates.terms, curves=rates.curves, passes=rates.passes)
    assert rates.terms["elementwise.mul"]["node"] == pytest.approx(1e-6, rel=0.1)
    unseen = Workload(prompt_tokens=80, new_tokens=32)
    for design in random_designs(20, seed=1):
        for phase in Phase:
            truth = Timed(design, unseen).seconds(phase, 0.5)
            assert predict_seconds(found, design, phase, unseen) == pytest.approx(truth, rel=0.03)


def test_rates_of_image_classifiers_are_found_again_too() -> None:
    image = Workload(prompt_tokens=1, new_tokens=1)
    rates = fit_model_rates([Timed(design, image) for design in random_classifiers(60, seed=0)])
    found = replace(chosen_machine(), terms=rates.terms, curves=rates.curves, passes=rates.passes)
    for design in random_classifiers(20, seed=1):
        truth = Timed(design, image).seconds(Phase.PREFILL, 0.5)
        assert predict_seconds(found, design, Phase.PREFILL, image) == pytest.approx(truth, rel=0.03)


def test_formats_that_were_not_measured_have_no_rates() -> None:
    seen = [
        Timed(replace(design, weights="fp32"), Workload(prompt_tokens=64, new_tokens=64))
        for design in random_designs(36, seed=0)
    ]
    assert not [kind for kind in fit_model_rates(seen).terms if "int" in kind]


def test_plainer_variants_keep_widths_heads_and_depth() -> None:
    design = random_designs(2, seed=3)[1]  # the second is int8
    first, *plainer = variants(design)
    assert first == design
    for variant in plainer:
        for old, new in zip(design.arch.layers, variant.arch.layers, strict=True):
            assert (old.attention.heads, old.ffn.width) == (new.attention.heads, new.ffn.width)


@pytest.mark.skipif(missing("llama.cpp") is not None, reason=f"llama.cpp: {missing('llama.cpp')}")
def test_what_llama_cpp_holds_is_swiglu_in_the_same_format(tmp_path) -> None:
    for design in random_designs(6, seed=0):
        held = export_nearest("llama.cpp", design, tmp_path)[0]
        assert held.weights == design.weights
        assert {(layer.ffn.activation, layer.ffn.gated) for layer in held.arch.layers} == {("silu", True)}


def test_a_runtime_without_an_exporter_cannot_be_calibrated(monkeypatch) -> None:
    from chipwise.deploy.export import exporters as exporting

    monkeypatch.setattr(exporting, "EXPORTERS", exporting.Table("exporter", "chipwise.no-such-group", {}))
    with pytest.raises(Unsupported, match=r"torch"):
        calibrate(runtime="torch")


def test_best_rates_by_pencil() -> None:
    """Three matrices of 64 × 64, one position (there is no attention): the faster of two models counts."""

    @dataclass(frozen=True)
    class Stopped(Timed):
        took_s: float = 1.0

        def seconds(self, phase: Phase, share: float) -> float:
            return self.took_s

    ffn = FeedForward(width=64, gated=False, activation="relu")
    arch = ArchSpec(stem=Tokens(vocab_size=64), d_model=64, layers=(Layer(attention=None, ffn=ffn),), positions="none")
    workload = Workload(prompt_tokens=10, new_tokens=2)
    models = [Stopped(Design(arch=arch), workload, took_s=took_s) for took_s in (2.0, 1.0)]
    machine = Machine(name="toy", cpu="toy", cores=1, memory_bytes=10**9, l2_bytes=10_000, l3_bytes=100_000)
    peaks, roofs = best_rates(models, machine)
    assert peaks == {"fp32": pytest.approx(2 * 64 * 64 * 3, rel=0.05)}  # up, down and head; the norms are the rest
    assert roofs == {"shared cache": 4 * 64 * 64 * 3}  # 49,152 bytes


def test_convolutions_go_first_where_a_runtime_has_none() -> None:
    """What else the design has stays; OpenVINO's reason names the operator."""
    attention = Attention(heads=2, kv_heads=1, head_size=16)
    layer = Layer(attention=attention, ffn=FeedForward(width=64, activation="relu", gated=False), ffn_conv=4)
    design = Design(arch=ArchSpec(stem=Tokens(vocab_size=64), d_model=32, layers=(layer,), max_tokens=16))
    first, second, *_ = variants(design)
    assert first == design
    assert second.arch.layers == (replace(layer, ffn_conv=0),)
    with pytest.raises(Unsupported, match="CausalConvWithState"):
        export_openvino(design, {}, Path("nowhere.onnx"))
