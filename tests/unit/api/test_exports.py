"""``chipwise export``: files, messages and refusals."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from safetensors.torch import load_file
from typer.testing import CliRunner

pytest.importorskip("gguf", reason="gguf comes with chipwise[gguf]")
pytest.importorskip("transformers", reason="transformers comes with chipwise[search]")

import chipwise
from chipwise.cli.app import app
from chipwise.core.files import write_json
from chipwise.deploy.export import parity
from chipwise.deploy.export.gguf import export as export_gguf
from chipwise.deploy.export.gguf_read import GgufFile, read
from chipwise.deploy.export.gguf_tokenizer import GgufTokenizer
from chipwise.deploy.export.hf import load_pretrained, save_pretrained
from chipwise.deploy.export.layer_groups import groups_of
from chipwise.deploy.export.onnx import random_weights
from chipwise.deploy.export.sources import holding
from chipwise.deploy.runtimes import llama_server
from chipwise.deploy.runtimes.onnxruntime import OnnxRuntimeSession
from chipwise.errors import ChipwiseError, InputError, StudyError, Unsupported
from chipwise.model.arch.arch import ArchSpec, uniform
from chipwise.model.arch.design import Design
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.quantize import Grid, nearest
from chipwise.training.data.text import load_corpus
from chipwise.training.data.tokenizer import TokenStore, train_tokenizer
from support.archs import denoiser_archs, question_archs, ranking_archs, sound_archs

ARCH = uniform(vocab_size=300, d_model=32, depth=3, heads=2, kv_heads=1, ffn_width=64, max_tokens=48, name="small")
DATA = {"source": "files", "entries": "blank-lines"}
TEXTS = ["a fever is a fever", "pain in the chest, 3 days", "naïve café"] * 4
needs_llama = pytest.mark.skipif(not llama_server.available(), reason="xllamacpp comes with chipwise[all]")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A Hugging Face folder with a tokenizer."""
    folder = tmp_path_factory.mktemp("model") / "small"
    tokenizer = folder.parent / "tokens.json"
    train_tokenizer(TEXTS, 280).save(str(tokenizer))
    return save_pretrained(ARCH, random_weights(ARCH, seed=0), tokenizer, folder)


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@needs_llama
def test_gguf_with_its_tokenizer_is_verified_by_llama_cpp(model, tmp_path) -> None:
    found = chipwise.export(model, to="gguf", weights="f32", out=tmp_path / "out")
    assert files(tmp_path / "out") == {"model.gguf", "manifest.json"}
    stored, original = found.verified
    assert (stored.against, original.against) == ("the weights as stored", "the original weights")
    assert stored.greatest <= 1e-5 * stored.largest
    assert found.sample
    told = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert told == {"schema": "chipwise.export/2", "version": chipwise.__version__, **found.to_dict()}
    back, weights = read(tmp_path / "out" / "model.gguf")
    assert back.weights == "fp32"
    for name, value in load_pretrained(model)[1].items():
        np.testing.assert_array_equal(weights[name], value)


def test_q4_0_keeps_the_head_in_eight_bits_once(model, tmp_path) -> None:
    """Parameters of all groups add up to the model's, and their bytes nearly to the file's."""
    found = chipwise.export(model, to="gguf", weights="q4_0", out=tmp_path / "out", verify=False)
    assert found.weights == "int4 head:int8"
    kinds = {group.part: (group.layers, group.format) for group in found.groups}
    assert kinds["token table and head"] == ("", "Q8_0")
    assert kinds["attention"] == kinds["feed-forward"] == ("0-2", "Q4_0")
    assert sum(group.parameters for group in found.groups) == ARCH.parameters()
    assert sum(group.bytes for group in found.groups) < found.bytes
    assert found.verified == ()


def test_formats_by_layer_are_listed_with_their_layers() -> None:
    groups = groups_of(Design(arch=ARCH, weights="int4/int8/int4 head:int8"))
    assert {(g.part, g.layers, g.format) for g in groups if g.part == "attention"} == {
        ("attention", "0, 2", "int4"),
        ("attention", "1", "int8"),
    }
    sizes = {group.part: group.parameters for group in groups}
    assert sizes["head"] == sizes["token table"] == 300 * 32  # a quantised tied head is a copy in ONNX


@pytest.mark.parametrize("to", ["onnx", "hf"])
def test_onnx_and_hugging_face_compute_what_torch_computes(model, tmp_path, to) -> None:
    found = chipwise.export(model, to=to, out=tmp_path / "out")
    assert "tokenizer.json" in files(tmp_path / "out")
    (check,) = found.verified
    assert check.greatest <= 1e-4
    assert check.same_choice == 1.0


@pytest.mark.parametrize("kind", [sound_archs, ranking_archs, question_archs, denoiser_archs])
def test_models_of_other_inputs_are_verified_too(kind, tmp_path) -> None:
    @settings(max_examples=1, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(arch=kind())
    def one(arch: ArchSpec) -> None:
        folder = save_pretrained(arch, random_weights(arch, seed=0), None, tmp_path / "model")
        for to in ("onnx", "hf"):
            (check,) = chipwise.export(folder, to=to, out=tmp_path / to).verified
            assert check.greatest <= 1e-4
        with pytest.raises(Unsupported, match="use --to hf or --to onnx"):
            chipwise.export(folder, to="gguf", out=tmp_path / "gguf")

    one()


def test_a_gguf_file_goes_back_to_hugging_face_with_its_tokens(model, tmp_path) -> None:
    from transformers import AutoTokenizer

    gguf = chipwise.export(model, to="gguf", weights="fp32", out=tmp_path / "gguf", verify=False).folder / "model.gguf"
    found = chipwise.export(gguf, to="hf", out=tmp_path / "hf")
    before, after = (AutoTokenizer.from_pretrained(folder) for folder in (model, found.folder))
    for text in ("a fever", "  chest, 33 days\n", "<|endoftext|>naïve 🙂"):
        assert after(text).input_ids == before(text).input_ids
        assert after.decode(after(text).input_ids) == text
    again = chipwise.export(gguf, to="gguf", weights="int8", out=tmp_path / "again", verify=False)
    held = GgufTokenizer.of_fields(GgufFile.open(again.folder / "model.gguf").fields, file="model.gguf")
    assert held is not None
    assert held.tokens[0] == "<|endoftext|>"


def test_a_run_and_its_winner_keep_their_format(model, tmp_path) -> None:
    run = tmp_path / "run"
    (run / "winner").mkdir(parents=True)
    (run / "study.journal").write_text("")
    with pytest.raises(StudyError, match="no winner with weights yet"):
        chipwise.export(run, to="gguf")
    shutil.copytree(model, run / "winner", dirs_exist_ok=True)
    promises = {
        "arch": json.loads((_arch_file(tmp_path)).read_text()),
        "weights": "int8",
        "workload": {"prompt_tokens": 4, "new_tokens": 4, "batch": 1},
        "constraints": {},
        "promised": {},
        "target": {"threads": 1},
    }
    (run / "winner" / "chipwise.json").write_text(json.dumps(promises))
    found = chipwise.export(run, to="gguf", verify=False)
    assert (found.folder, found.weights) == (run / "export-gguf", "int8")
    other = chipwise.export(run / "winner", to="gguf", weights="fp16", out=tmp_path / "out", verify=False)
    assert other.weights == "fp16"


def _arch_file(folder: Path) -> Path:
    from chipwise.model.arch.io import to_data

    path = folder / "arch.json"
    path.write_text(json.dumps(to_data(ARCH)))
    return path


def test_an_earlier_export_is_replaced_whole(model, tmp_path) -> None:
    out = tmp_path / "out"
    chipwise.export(model, to="onnx", out=out, verify=False)
    chipwise.export(model, to="gguf", out=out, verify=False)
    assert files(out) == {"model.gguf", "manifest.json"}
    assert not list(tmp_path.glob(".out*"))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"to": "ncnn"}, r"to \(--to\): unknown file type 'ncnn'; known: gguf, onnx, hf"),
        ({"to": "gguf", "weights": "q4_k_m"}, r"\(--weights\): gguf cannot store 'q4_k_m'; choose one of fp32, "),
        (
            {"to": "onnx", "weights": "bf16"},
            r"onnx cannot store 'bf16' \(--to gguf can store it\); choose one of fp32, int8",
        ),
        ({"to": "hf", "weights": "int8"}, "hf cannot store 'int8'"),
        ({"to": "gguf", "weights": "int4/int8 head:int8"}, "lists formats for 2 layers; the model has 3"),
        ({"model": "qwen3-8b", "to": "gguf"}, "the name of a known model, but chipwise does not contain its weights"),
        ({"model": "nowhere/at-all", "to": "gguf"}, "there is no such folder; give a run, a Hugging Face folder"),
        ({"model": "nowhere.gguf", "to": "hf"}, "there is no such file"),
    ],
)
def test_wrong_questions_are_refused_in_one_line(model, tmp_path, changes, named) -> None:
    with pytest.raises(ChipwiseError, match=named) as error:
        chipwise.export(**{"model": model, "out": tmp_path / "out", **changes})
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 2
    assert not (tmp_path / "out").exists()


def test_a_folder_of_other_things_is_left_alone(model, tmp_path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(InputError, match="is not empty and not an earlier export"):
        chipwise.export(model, to="gguf", out=tmp_path)
    with pytest.raises(InputError, match="is a file"):
        chipwise.export(model, to="gguf", out=tmp_path / "mine")
    with pytest.raises(InputError, match="is the model itself"):
        chipwise.export(model, to="hf", out=model)
    assert files(tmp_path) == {"mine"}


def test_a_block_that_gguf_lacks_is_named_with_what_holds_it(tmp_path) -> None:
    gelu = FeedForward(width=64, activation="gelu")
    arch = replace(ARCH, layers=(Layer(attention=Attention(heads=2, kv_heads=1, head_size=16), ffn=gelu),))
    folder = save_pretrained(arch, random_weights(arch, seed=0), None, tmp_path / "model")
    converted = ["executorch", "litert", "coreml"]
    assert holding(arch) == ["hf", "onnx", "openvino", *converted, "compressed-tensors", "transformers.js"]
    with pytest.raises(Unsupported, match=r"no feed-forward of gated gelu.*use --to hf or --to onnx"):
        chipwise.export(folder, to="gguf", out=tmp_path / "out")


def test_a_full_disk_leaves_nothing(model, tmp_path, monkeypatch) -> None:
    import errno

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("chipwise.deploy.export.gguf._stored", full)
    with pytest.raises(ChipwiseError, match="space"):
        chipwise.export(model, to="gguf", out=tmp_path / "out")
    assert files(tmp_path) == set()


def test_without_a_tokenizer_or_llama_cpp_the_file_says_so(model, tmp_path, monkeypatch) -> None:
    folder = tmp_path / "bare"
    shutil.copytree(model, folder)
    (folder / "tokenizer.json").unlink()
    monkeypatch.setattr(llama_server, "available", lambda: True)
    found = chipwise.export(folder, to="gguf", out=tmp_path / "out")
    assert "llama.cpp takes no text" in found.notes[0]
    assert (found.verified, found.unverified) == ((), ("llama.cpp cannot run a file without a tokenizer",))
    wordpiece = {"model": {"type": "WordPiece", "vocab": {"a": 0}}}
    (folder / "tokenizer.json").write_text(json.dumps(wordpiece))
    found = chipwise.export(folder, to="gguf", out=tmp_path / "out")
    assert "this one is WordPiece" in found.notes[0]
    monkeypatch.setattr(llama_server, "available", lambda: False)
    found = chipwise.export(model, to="gguf", out=tmp_path / "out")
    assert found.unverified == ("llama.cpp is not installed; install it (xllamacpp) with pip install 'chipwise[all]'",)


def test_differences_by_pencil() -> None:
    told = {"runtime": "r", "version": "1", "against": "w", "outputs": "logits"}
    found = parity.compared(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 2.5], [5.0, 4.0]]), **told)
    assert (found.greatest, found.mean, found.largest, found.same_choice) == (2.0, 0.625, 5.0, 0.5)


def test_the_command_prints_sizes_formats_and_checks(model, tmp_path) -> None:
    words = ["export", str(model), "--to", "onnx", "--out", str(tmp_path / "out")]
    shown = CliRunner().invoke(app, words, catch_exceptions=False).output
    assert "token table and head" in shown
    assert "verified: ONNX Runtime" in shown
    told = json.loads(CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False).output)
    assert told["files"].keys() == {
        *("model.onnx", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
    }
    assert "Example: chipwise export" in CliRunner().invoke(app, ["export", "--help"]).output


@needs_llama
def test_a_winners_gguf_writes_text_as_its_card_says(tmp_path, monkeypatch) -> None:
    """The shipped file has the tensors of the measured one, and a tokenizer."""
    from chipwise.design.phases import finals
    from chipwise.training.tasks.protocol import Exported as Candidate
    from chipwise.training.tasks.text.data import TextData

    tokenizer, trial = tmp_path / "tokens.json", tmp_path / "trial"
    train_tokenizer(TEXTS, 280).save(str(tokenizer))
    design, weights = Design(arch=ARCH, weights="int8"), random_weights(ARCH, seed=0)
    measured = export_gguf(design, weights, trial / "model.gguf")
    (trial / "model.onnx").write_bytes(b"measured")
    work = finals.Finals.__new__(finals.Finals)
    work._folder = SimpleNamespace(trial=lambda number: trial, winner=tmp_path / "winner")
    work._data, work._tasks = TextData(SimpleNamespace(tokenizer_path=lambda size: tokenizer)), None
    settings = SimpleNamespace(metric=SimpleNamespace(name="bits", shown=float))
    work._spec = SimpleNamespace(task_settings=settings, target=SimpleNamespace(runtime="llama.cpp"))
    work._served = lambda item: measured
    work._trained = lambda item: Candidate(design=design, weights=weights, folder=trial)
    monkeypatch.setattr(finals, "promises_of", lambda spec, item: {})
    work.write_winner(SimpleNamespace(number=0, notes=SimpleNamespace(exported_loss=1.0, test_loss=None)))
    assert (tmp_path / "winner" / "model.onnx").read_bytes() == b"measured"
    shipped = tmp_path / "winner" / "model.gguf"
    assert llama_server.LlamaServer(shipped, context=48).text("The beginning of a text", 8)
    before, after = (GgufFile.open(path).tensors for path in (measured, shipped))
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name].data, after[name].data) for name in before)


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    """Entries that differ, in blank lines."""
    parts = ["a fever", "pain in the chest", "naïve café", "3 days", "of the chest", "is a fever"]
    entries = {f"{a} {b} and {c}, {d}" for a in parts for b in parts for c in parts for d in range(8)}
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n".join(sorted(entries)), encoding="utf-8")
    return path


def test_the_quantiser_of_least_divergence_on_calibration_text_is_chosen(model, text, tmp_path) -> None:
    found = chipwise.export(model, to="onnx", weights="int4", out=tmp_path / "out", data=str(text))
    losses = found.quantiser.losses
    assert list(losses) == ["nearest", "searched", "gptq"]
    assert found.quantiser.method == min(losses, key=losses.get)
    assert 0 < losses["gptq"] < losses["nearest"]
    assert all(seconds >= 0 for seconds in found.quantiser.cpu_s.values())
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["quantiser"]["method"] == found.quantiser.method
    asked = chipwise.export(model, to="onnx", weights="int4", out=tmp_path / "b", data=str(text), method="searched")
    assert asked.quantiser.method == "searched"
    assert asked.quantiser.losses == pytest.approx({name: losses[name] for name in ("nearest", "searched")}, rel=1e-4)
    files_of = [(tmp_path / name / "model.onnx").read_bytes() for name in ("out", "b")]
    assert files_of[0] != files_of[1]


@pytest.mark.parametrize(("group", "symmetric"), [(16, True), (64, False)])
def test_sizes_of_groups_are_those_of_the_file(group: int, symmetric: bool, model, tmp_path) -> None:
    """A group takes half a byte a value, 4 bytes of scale and half a byte of zero if it has its own."""
    found = chipwise.export(
        model, to="onnx", weights="int4", out=tmp_path / "out", group=group, symmetric=symmetric, verify=False
    )
    rows = {64: 32 * 3, 32: (32 + 16 + 16 + 32 + 64 + 64) * 3 + 300}  # by width: down; q, k, v, out, gate, up; head
    groups = sum(count * -(-width // group) for width, count in rows.items())
    per_group = group / 2 + 4 + (0 if symmetric else 0.5)
    known = sum(part.bytes for part in found.groups if part.format == "int4")
    assert known == pytest.approx(groups * per_group, rel=0.02)
    assert found.quantiser.method == "nearest"
    assert found.quantiser.losses == {}


def test_calibration_that_is_missing_or_a_grid_that_no_file_has_is_one_line(model, tmp_path) -> None:
    with pytest.raises(InputError, match=r"gptq needs calibration data \(--data\): texts or a run file"):
        chipwise.export(model, to="onnx", weights="int4", method="gptq", out=tmp_path / "out")
    with pytest.raises(InputError, match=r"'gptg'.*gptq"):
        chipwise.export(model, to="onnx", weights="int4", method="gptg", out=tmp_path / "out")
    for asked in ({"to": "gguf", "weights": "int4"}, {"to": "onnx", "weights": "int8"}):
        with pytest.raises(InputError, match="apply only to int4 in ONNX and compressed-tensors"):
            chipwise.export(model, group=64, out=tmp_path / "out", **asked)
    assert not (tmp_path / "out").exists()


def test_compressed_int4_is_what_was_packed(model, tmp_path) -> None:
    """Eight values to an int32, the first in the lowest bits, 8 added to each; a scale in bfloat16 for 16 values."""
    found = chipwise.export(model, to="vllm", weights="int4", group=16, out=tmp_path / "out", verify=False)
    stored, (_, weights) = load_file(tmp_path / "out" / "model.safetensors"), load_pretrained(model)
    place = "model.layers.1.self_attn.k_proj"
    words, scales = stored[f"{place}.weight_packed"].numpy(), stored[f"{place}.weight_scale"]
    assert (words.dtype, words.shape, scales.dtype) == (np.int32, (16, 4), torch.bfloat16)
    assert stored[f"{place}.weight_shape"].tolist() == [16, 32]
    values = (words.view(np.uint32)[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15).astype(int) - 8
    restored = (values.reshape(16, 2, 16) * scales.float().numpy()[..., None]).reshape(16, 32)
    wanted = nearest(weights["layers.1.attention.k.weight"], "int4", grid=Grid(block=16)).restored()
    assert np.abs(restored - wanted).max() <= np.abs(wanted).max() / 2**8  # bfloat16 keeps 8 bits
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    about = config["quantization_config"]
    assert (about["quant_method"], about["format"]) == ("compressed-tensors", "pack-quantized")
    assert about["ignore"] == ["lm_head", "model.embed_tokens"]
    assert about["config_groups"]["group_0"]["weights"]["group_size"] == 16
    assert sum(part.bytes for part in found.groups) == sum(tensor.nbytes for tensor in stored.values())
    assert {part.format for part in found.groups} == {"int4", "bf16"}
    assert sum(part.parameters for part in found.groups) == ARCH.parameters()
    assert found.weights == "int4 head:bf16"
    assert "not run in vLLM" in found.notes


def test_compressed_fp8_rows_have_scales_of_their_own(model, text, tmp_path) -> None:
    found = chipwise.export(
        model, to="compressed-tensors", weights="fp8", data=str(text), out=tmp_path / "out", verify=False
    )
    stored, (_, weights) = load_file(tmp_path / "out" / "model.safetensors"), load_pretrained(model)
    place, ours = "model.layers.0.mlp.down_proj", weights["layers.0.ffn.down.weight"]
    codes, scales = stored[f"{place}.weight"], stored[f"{place}.weight_scale"].numpy()
    assert codes.dtype == torch.float8_e4m3fn
    assert np.allclose(scales[:, 0], np.abs(ours).max(axis=1) / 448)
    assert np.abs(codes.float().numpy() * scales - ours).max() <= np.abs(ours).max() / 16
    about = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert about["config_groups"]["group_0"]["input_activations"]["strategy"] == "token"
    assert list(found.quantiser.losses) == ["nearest"]
    assert found.quantiser.losses["nearest"] > 0


def test_what_compressed_tensors_cannot_hold_is_one_line(model, tmp_path) -> None:
    with pytest.raises(
        Unsupported, match="rows of 32 values, which is not a multiple of the group size 64; choose another group size"
    ):
        chipwise.export(model, to="compressed-tensors", group=64, out=tmp_path / "out")
    with pytest.raises(InputError, match="compressed-tensors is always symmetric"):
        chipwise.export(model, to="compressed-tensors", symmetric=False, out=tmp_path / "out")
    with pytest.raises(InputError, match="compressed-tensors cannot store 'int8'"):
        chipwise.export(model, to="compressed-tensors", weights="int8", out=tmp_path / "out")
    plain = replace(ARCH, layers=(replace(ARCH.layers[0], ffn=FeedForward(width=64, gated=False)), *ARCH.layers[1:]))
    save_pretrained(plain, random_weights(plain, seed=0), None, tmp_path / "plain")
    with pytest.raises(Unsupported, match="cannot be written as compressed-tensors; use --to"):
        chipwise.export(tmp_path / "plain", to="compressed-tensors", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def won(folder: Path, text: Path) -> Path:
    """A run folder with a winner whose text is in ``text``."""
    run = folder / "run"
    store = TokenStore(load_corpus(DATA | {"paths": [str(text)]}), run / "corpus", sizes=[300])
    store.prepare()
    arch = replace(ARCH, max_tokens=16)
    save_pretrained(arch, random_weights(arch, seed=0), store.tokenizer_path(300), run / "winner")
    (run / "study.journal").write_text("")
    layer = {"heads": [2], "kv_heads": [1], "ffn": ["swiglu"], "ffn_width": [64]}
    space = {"d_model": [32], "depth": [3], "vocab_size": [300], "layer": layer, "max_tokens": 16}
    spec = {"name": "toy", "workload": {"prompt_tokens": 8, "new_tokens": 8}, "space": space}
    write_json(run / "spec.json", {"spec": spec | {"data": DATA | {"paths": [str(text)]}}})
    return run


def test_a_winner_is_calibrated_on_the_data_of_its_run_and_rounded_to_nearest_where_it_is_gone(text, tmp_path) -> None:
    run = won(tmp_path, text)
    found = chipwise.export(run, to="onnx", weights="int4", out=tmp_path / "a")
    assert found.notes == ()
    losses = found.quantiser.losses
    assert list(losses) == ["nearest", "searched", "gptq"]
    assert all(1 < loss < 12 for loss in losses.values())  # nats a token; random weights are near log 300
    shutil.rmtree(run / "corpus")
    spec = json.loads((run / "spec.json").read_text())
    spec["spec"]["data"]["paths"] = [str(tmp_path / "gone.txt")]
    write_json(run / "spec.json", spec)
    gone = chipwise.export(run, to="onnx", weights="int4", out=tmp_path / "b")
    assert (gone.quantiser.method, gone.quantiser.losses) == ("nearest", {})
    assert any("the data of the model's run cannot be used" in note and "gone.txt" in note for note in gone.notes)
    with pytest.raises(ChipwiseError, match=r"gone\.txt"):
        chipwise.export(run, to="onnx", weights="int4", method="gptq", out=tmp_path / "c")


@pytest.mark.parametrize(
    ("to", "weights"), [(t, w) for t in ("openvino", "transformers.js") for w in ("fp32", "int8", "int4")]
)
def test_other_runtimes_take_the_same_steps_as_torch(model, tmp_path, to, weights) -> None:
    if to == "openvino":
        pytest.importorskip("openvino", reason="openvino comes with chipwise[openvino]")
    found = chipwise.export(model, to=to, weights=weights, out=tmp_path / "out")
    (check,) = found.verified
    (peer,) = chipwise.export(model, to="onnx", weights=weights, out=tmp_path / "onnx").verified
    assert check.decode_steps == peer.decode_steps == 32
    assert check.values == 33 * ARCH.vocab_size
    if weights == "fp32":
        assert check.greatest <= 1e-4 * check.largest
    elif to == "openvino":  # it rounds activations in another way
        assert check.mean == pytest.approx(peer.mean, rel=0.3)
    else:
        assert (check.greatest, check.mean) == pytest.approx((peer.greatest, peer.mean), rel=1e-3)
    assert (found.unverified == ()) == (to == "openvino")


def test_transformers_js_can_make_an_empty_cache(model, tmp_path) -> None:
    """It looks up axes by name: ``batch_size`` is the number of texts, an unknown name is 0."""
    chipwise.export(model, to="transformers.js", out=tmp_path / "out", verify=False)
    graph = onnx.load(str(tmp_path / "out" / "onnx" / "model.onnx")).graph
    shapes = {each.name: [d.dim_param or d.dim_value for d in each.type.tensor_type.shape.dim] for each in graph.input}
    kv = ARCH.layers[0].attention
    assert shapes["past_key_values.0.key"] == ["batch_size", kv.kv_heads, "past", kv.head_size]
    assert {shape[0] for shape in shapes.values()} == {"batch_size"}


def test_the_manifests_numbers_are_those_of_its_files(model, tmp_path) -> None:
    chipwise.export(model, to="onnx", weights="int8", out=tmp_path / "out")
    told = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    assert told["schema"] == "chipwise.export/2"
    assert told["files"] == {
        file.name: file.stat().st_size for file in (tmp_path / "out").iterdir() if file.name != "manifest.json"
    }
    (check,) = told["verified"]
    ids = parity.tokens_of(model / "tokenizer.json")[:48]
    wanted = parity.in_torch(ARCH, load_pretrained(model)[1], (np.array([ids]),))[0]
    session = OnnxRuntimeSession(tmp_path / "out" / "model.onnx", capacity=48)
    found = [session.prefill(np.array([ids[:16]]))[0].copy()]
    found += [session.decode(np.array([[token]]))[0].copy() for token in ids[16:]]
    off = np.abs(np.array(found, np.float64) - wanted[15:])
    assert (check["greatest"], check["mean"]) == pytest.approx((off.max(), off.mean()), rel=1e-3)
    losses = [
        torch.nn.functional.cross_entropy(torch.tensor(np.array(logits[:-1])), torch.tensor(ids[16:]))
        for logits in (found, wanted[15:])
    ]
    assert check["perplexity_change"] == pytest.approx(float(torch.exp(losses[0] - losses[1]) - 1), abs=1e-4)


def test_several_formats_get_a_folder_each_and_one_that_lacks_a_block_is_refused(tmp_path) -> None:
    arch = replace(ARCH, layers=(replace(ARCH.layers[0], ffn=replace(ARCH.layers[0].ffn, width=48)), *ARCH.layers[1:]))
    save_pretrained(arch, random_weights(arch, seed=0), None, tmp_path / "mixed")
    words = [
        "export",
        str(tmp_path / "mixed"),
        "--to",
        "onnx,transformers.js,hf",
        "--out",
        str(tmp_path / "out"),
        "--json",
    ]
    done = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    told = json.loads(done.output)
    assert done.exit_code == 1
    assert files(tmp_path / "out") == {"onnx", "hf"}
    assert [each["to"] for each in told["written"]] == ["onnx", "hf"]
    assert "use --to gguf or --to hf or --to onnx" in told["refused"]["transformers.js"]


def test_an_export_of_the_first_schema_is_replaced(model, tmp_path) -> None:
    write_json(tmp_path / "export.json", {"schema": "chipwise.export/1", "files": {"old.bin": 3}})
    (tmp_path / "old.bin").write_bytes(b"old")
    chipwise.export(model, to="transformers.js", out=tmp_path, verify=False)
    chipwise.export(model, to="onnx", out=tmp_path, verify=False)
    assert not {"old.bin", "export.json", "onnx"} & files(tmp_path)


def test_learned_rounding_is_written_and_is_tried_by_auto_where_it_has_time(model, text, tmp_path) -> None:
    """What it changes besides the integers, such as norms, is in the file: torch with the same weights agrees."""
    seen = []
    found = chipwise.export(
        model,
        to="onnx",
        weights="int4",
        out=tmp_path / "out",
        data=str(text),
        cpu_seconds=2,
        on_progress=lambda stage, done, total: seen.append((done, total)),
    )
    losses = found.quantiser.losses
    assert list(losses) == ["nearest", "searched", "gptq", "learned"]
    assert found.quantiser.method == min(losses, key=losses.get)
    assert losses["learned"] < losses["nearest"]  # it begins with the best of the others
    assert seen[0] == (0, 2)
    assert not list(tmp_path.glob(".out*"))  # nor a checkpoint
    gptq = chipwise.export(model, to="onnx", weights="int4", out=tmp_path / "b", data=str(text), method="gptq")
    assert found.verified[0].mean < 1.25 * gptq.verified[0].mean  # it lessens the divergence, not this mean
    for asked, why in (
        ({"to": "gguf", "method": "learned"}, "learned works for onnx and openvino, not gguf"),
        (
            {"to": "onnx", "method": "gptq", "cpu_seconds": 5},
            "applies only to the methods learned and auto, not to gptq",
        ),
        ({"to": "onnx", "method": "learnt"}, "unknown quantiser 'learnt'"),
    ):
        with pytest.raises(InputError, match=why):
            chipwise.export(model, weights="int4", out=tmp_path / "c", data=str(text), **asked)


def test_quantize_with_a_method_writes_what_export_writes(model, text, tmp_path) -> None:
    words = ["quantize", str(model), "--data", str(text), "--method", "gptq", "--out", str(tmp_path / "a"), "--json"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    chipwise.export(model, to="onnx", weights="int4", out=tmp_path / "b", data=str(text), method="gptq")
    assert json.loads(done.output)["quantiser"]["method"] == "gptq"
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert (tmp_path / "a" / "model.onnx").read_bytes() == (tmp_path / "b" / "model.onnx").read_bytes()
    learned = chipwise.quantize(model, data=str(text), method="learned", cpu_seconds=1, out=tmp_path / "c")
    assert learned.quantiser.method == "learned"
    printed = CliRunner().invoke(app, words[:-1], catch_exceptions=False)
    assert "rounded by: gptq" in printed.output


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"method": "auto", "weights": "q4_k"}, "format: q4_k is rounded by llama.cpp; leave the method"),
        (
            {"method": "auto", "tpot": "<= 1 ms"},
            "tpot: only applies to a choice of formats; with a method",
        ),
        ({"cpu_seconds": 5, "dry_run": True}, "dry_run: only applies to a choice of formats"),
        ({"method": "best"}, "unknown quantiser 'best'"),
    ],
)
def test_quantize_with_a_method_refuses_what_a_choice_of_formats_takes(model, text, options, why) -> None:
    with pytest.raises(InputError, match=why):
        chipwise.quantize(model, data=str(text), **options)


def test_a_method_is_not_for_an_onnx_file(tmp_path) -> None:
    with pytest.raises(InputError, match="method: only applies to a GGUF file or a Hugging Face folder"):
        chipwise.quantize(tmp_path / "a.onnx", data="x.npz", method="auto")
