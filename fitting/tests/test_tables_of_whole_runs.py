"""Tables of whole runs: small made-up folders, unknown rows, what is left out, fits that find what was put in."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from chipwise.errors import InputError, SpecError
from chipwise.hardware import datasheet
from chipwise.predict.whole_runs.sums import Amount, named, value_of
from chipwise.predict.whole_runs.vision import Setup, VisionTransformer, plain_law
from chipwise_fitting.commands import validate
from chipwise_fitting.sums_fit import Fit, folds
from chipwise_fitting.table_runs import TableRun, fit_runs, rival_answers
from chipwise_fitting.vision import counted_law

HEADS = {
    "vendors": "row_id,hardware,devices,model,length,batch,latency_s,tokens_per_s,device,runtime",
    "vision": "row_id,device,runtime,runtime_version,dtype,layout,model,image_size,batch,step_ms,gmacs,macts_m,"
    "arch_class,plain,patch,width,depth,heads,mlp_hidden,gated_mlp,prefix_tokens,tokens",
    "energy": "row_id,gpu_model,model_id,num_gpus,avg_power_watts,max_num_seqs,avg_output_len,weight_precision,"
    "energy_per_token_joules",
    "phones": "row_id,model,component,precision,device,runtime,ms,unit,layers",
    "layers": "layer_name,input,kv_cache,tp_size,latency(ns)",
}
ROWS = {
    "vendors": [
        "a1,x,1,meta-llama/Meta-Llama-3-8B,512,16,7.16,0,mi300x,vllm",
        "a2,x,2,meta-llama/Llama-2-7b-hf,128,32,1.8,0,gh200,tensorrt-llm",
        "a3,x,1,mistralai/Mistral-7B-v0.1,100,3,9.0,0,mi250,an-engine-of-tomorrow",
        "a4,x,1,meta-llama/Meta-Llama-3-8B,128,1,,0,mi300x,vllm",
    ],
    "vision": [
        "v1,rtx-4090,pytorch compiled,2.9.1,amp,nchw,vit_base_patch16_224,224,1024,303,17.58,23.9,VisionTransformer,1,"
        "16,768,12,12,3072,0,1,197",
        "v2,rtx-5090,pytorch eager,3.0.0,bf16,nhwc,levit_128,224,64,9,0.41,2.7,Levit,0,,,,,,,,",
        "v3,core-i9-10940x,pytorch compiled,2.4.0,fp32,nchw,deit_tiny,224,8,60,,,VisionTransformer,1,"
        "16,192,12,3,768,0,1,197",
    ],
    "energy": [
        "gpqa-1,H100,Qwen/Qwen3-8B,1,540,16,7861,bfloat16,0.4",
        "a-new-task-7,B200,openai/gpt-oss-120b,2,1200,64,500,mxfp4,0.3",
        "gpqa-2,H200,Qwen/Qwen3-14B,1,600,3000,4000,bfloat16,",
    ],
    "phones": [
        "q1,vit,VIT,float,Samsung Galaxy S25,tflite,6.5,NPU,523",
        "q2,opus_mt_en_fi,encoder,w8a16,Samsung Galaxy S23,qnn_dlc,2.0,NPU,",
        "q3,a_new_model,whole,w8a8,A phone of tomorrow,a-new-runtime,9.0,GPU,300",
    ],
    "layers": ["q_proj,64,0,1,57050", "input_layernorm,512,0,1,123904"],
}
UNKNOWN = {
    "vendors": "u,x,1,no/such-model,128,1,2.0,0,mi300x,vllm",
    "vision": "u,no-such-device,pytorch eager,2.9.1,amp,nchw,m,224,8,60,1,1,X,0,,,,,,,,",
    "energy": "u,X100,no/such-model,1,500,8,100,bfloat16,1.0",
    "phones": "u,vit,VIT,float,Samsung Galaxy S25,tflite,,NPU,523",
    "layers": "an_unknown_kernel,64,0,1,57050",
}
LAYERS = "A6000-meta-llama-Llama-3.1-8B-tp1-layers"
FILES = {
    "phones": "phones.csv.gz",
    "layers": f"layers/{LAYERS}.csv",
    **{"vendors": "vendors.csv", "vision": "vision.csv.gz", "energy": "energy/some-task.csv"},
}
COLUMN = {"vision": "step_s", "energy": "power_w"}
UNTIMED = {"vendors": {"a4"}, "phones": {"u"}}


def folder_of(kind: str, tmp_path: Path) -> Path:
    import gzip

    path = tmp_path / FILES[kind]
    path.parent.mkdir(exist_ok=True)
    text = "\n".join([HEADS[kind], *ROWS[kind], UNKNOWN[kind]]) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return tmp_path


def answers(path: Path) -> dict[str, dict[str, str]]:
    with path.open(newline="") as file:
        return {row["row_id"]: row for row in csv.DictReader(file)}


@pytest.mark.parametrize("leave_out", ["none", "model", "device", "family", "vendor"])
@pytest.mark.parametrize("kind", list(HEADS))
def test_known_rows_are_answered_with_an_interval_and_unknown_ones_stay_empty(
    kind: str, leave_out: str, tmp_path: Path
) -> None:
    out = tmp_path / "out.csv"
    scores = validate(kind, folder_of(kind, tmp_path), out, leave_out=leave_out)  # type: ignore[arg-type]
    found, column = answers(out), COLUMN.get(kind, "latency_s")
    timed = {row.split(",")[0] for row in ROWS[kind]} - UNTIMED.get(kind, set())
    assert set(found) == ({f"{LAYERS}:2", f"{LAYERS}:3"} if kind == "layers" else timed)
    for row in found.values():
        low, middle, high = (float(row[name]) for name in (f"low_{column}", column, f"high_{column}"))
        assert 0 < low < middle < high < math.inf
    unknown = (
        "" if kind == "phones" else f"{LAYERS}:4:" if kind == "layers" else "u:"
    )  # any part of any model is answered
    assert unknown in scores[0].problem
    assert scores[0].rival_median is not None


def test_a_wider_interval_where_less_is_known(tmp_path: Path) -> None:
    folder, widths = folder_of("vendors", tmp_path), []
    for leave_out in ("none", "model", "device", "vendor"):
        validate("vendors", folder, tmp_path / "out.csv", leave_out=leave_out)
        row = answers(tmp_path / "out.csv")["a1"]
        widths.append(float(row["high_latency_s"]) / float(row["low_latency_s"]))
    assert widths == sorted(widths)


@pytest.mark.parametrize("kind", sorted(set(HEADS) - {"layers"}))
def test_a_table_that_lacks_its_columns_is_named(kind: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("row_id,length\na,1\n")
    with pytest.raises(SpecError, match=r"t\.csv.*lacks the columns"):
        validate(kind, tmp_path / "t.csv", tmp_path / "out.csv")


def test_kernels_have_no_fit_without_a_vendor_or_a_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gemm has fits that leave out a device or a family, not a model"):
        validate("gemm", tmp_path, tmp_path / "out.csv", leave_out="model")


def test_a_setting_changes_the_rates_of_any_style_as_it_does_those_of_plain_transformers() -> None:
    setup = Setup(device=datasheet.load("rtx-4090"))
    model = VisionTransformer(image_size=224, patch=16, width=384, depth=12, heads=6, mlp_hidden=1536)
    plain, other = plain_law(model, setup, 64), counted_law(9e9, 12e6, "Levit", setup, 64)
    for faster in ("products|rtx-4090", "activations|rtx-4090", "pass|rtx-4090"):
        for law in (plain, other):
            assert value_of(law, {faster: -1.0}) < value_of(law, {})
    assert value_of(plain, {"other.flops|Levit": -1.0}) == value_of(plain, {})
    assert value_of(other, {"other.flops|Levit": -1.0}) < value_of(other, {})


def made_up(seed: int) -> list[TableRun]:
    """Runs of two devices at 1.5 and 3 times the sheet's seconds, with 0.1 s of each run's own."""
    draw = np.random.default_rng(seed)
    runs = []
    for device, rate in (("fast", 1.5), ("slow", 3.0)):
        for i, seconds in enumerate(draw.uniform(0.5, 5, 40)):
            law = (Amount(float(seconds), 0, named("bytes", [device])), Amount(1.0, 1, named("run", [])))
            measured = float((rate * seconds + 0.1) * np.exp(draw.normal(0, 0.01)))
            runs.append(
                TableRun(
                    row_id=f"{device}{i}",
                    subset=device,
                    measured=measured,
                    model=f"m{i % 4}",
                    device=device,
                    vendor="V",
                    place=device,
                    law=law,
                    rival=float(seconds),
                )
            )
    return runs


def prior(name: str) -> tuple[float, float]:
    return (math.log(0.3), 1.0) if name == "run" else (0.0, 1.0)


def test_a_fit_finds_the_rates_that_runs_were_made_with() -> None:
    runs = made_up(1)
    terms = Fit(prior=prior).fitted([run.law for run in runs if run.law], [run.measured for run in runs])
    assert math.exp(terms["bytes"] + terms["bytes|fast"]) == pytest.approx(1.5, rel=0.03)
    assert math.exp(terms["bytes"] + terms["bytes|slow"]) == pytest.approx(3.0, rel=0.03)
    assert math.exp(terms["run"]) == pytest.approx(0.1, rel=0.5)


def test_what_is_left_out_is_predicted_by_the_others() -> None:
    runs = made_up(2)
    laws = [run.law for run in runs if run.law]
    found = folds(Fit(prior=prior), laws, [run.measured for run in runs], {"device": [run.device for run in runs]})
    assert np.abs(found.misses["none"]).max() < 0.05
    # 3 is half shared, half the slow device's own: the fast one is expected at √3 and takes 1.5
    assert np.median(found.misses["device"][:40]) == pytest.approx(math.log(math.sqrt(3) / 1.5), abs=0.04)
    terms = {**found.terms["none"], **found.terms["device:slow"]}
    assert terms.get("bytes|slow", 0.0) == pytest.approx(0.0, abs=0.02)
    assert value_of(laws[0], terms) == pytest.approx(runs[0].measured, rel=0.05)


def test_half_widths_do_not_shrink_as_less_is_known() -> None:
    widths = fit_runs(made_up(3), Fit(prior=prior), source="made up")["halfwidths"]
    assert isinstance(widths, dict)
    found = [widths[f"{situation}|*"] for situation in ("known", "seen", "sibling", "unseen")]
    assert found == sorted(found)
    assert found[1] < found[2]


def test_the_rival_is_one_constant_times_the_sheets_seconds() -> None:
    runs = made_up(4)
    own = np.array(rival_answers(runs, "none"), float) / [run.rival for run in runs]
    assert len({round(value, 6) for value in own[:40]}) == 1
    assert own[0] == pytest.approx(np.median([run.measured / (run.rival or 1) for run in runs[:40]]))
    left_out = np.array(rival_answers(runs, "device"), float) / [run.rival for run in runs]
    assert left_out[0] == pytest.approx(own[40], rel=0.01)  # the other device's constant


def test_a_file_of_layers_is_named_by_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("layer_name,input\na,1\n")
    with pytest.raises(SpecError, match=r"t\.csv.*is not named DEVICE-MODEL-tpN-layers"):
        validate("layers", tmp_path / "t.csv", tmp_path / "out.csv")
