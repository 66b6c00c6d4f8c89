"""Vision and audio models measured in parts: exported files and the sum by pencil, with fake times."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from chipwise import api
from chipwise.cli.app import app
from chipwise.deploy.measure.measurement import Measurement
from chipwise.deploy.runtimes.onnxruntime import OnnxClassifier, OnnxRuntimeSession
from chipwise.design.models import measured_parts
from chipwise.design.models.measured_parts import comes_in_parts, measure_parts, put_together, tower_and_request
from chipwise.design.models.measuring import Measured
from chipwise.design.phases.measuring import metrics_of
from chipwise.errors import InputError, SpecError, Unsupported
from chipwise.model.arch.design import Design
from chipwise.model.arch.image_tokens import Read
from chipwise.model.kinds.question.projector.spec import Projector
from chipwise.model.ops.workload import Workload
from chipwise.model.published.read import resolve
from chipwise.predict.cost.model import Predicted

SEEING: dict[str, Any] = {
    "model_type": "idefics3",
    "vision_config": {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 32,
        "patch_size": 8, "size": {"longest_edge": 64},
    },
    "text_config": {
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 99, "max_position_embeddings": 128,
    },
    "scale_factor": 2,
}  # fmt: skip
HEARING: dict[str, Any] = {
    "model_type": "qwen2_audio",
    "audio_config": {
        "d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 4, "encoder_ffn_dim": 48, "num_mel_bins": 8,
        "max_source_positions": 100,
    },
    "text_config": {**SEEING["text_config"], "model_type": "qwen2", "max_position_embeddings": 256},
}  # fmt: skip


def written(config: dict[str, Any], folder: Path) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def taken(name: str, ttft_s: tuple[float, ...], tpot_s: tuple[float, ...], request: Workload, size: int) -> Measured:
    found = Measurement(
        design="d", name=name, runtime="onnxruntime", runtime_version="1", threads=1, workload=request, device="toy",
        ttft_s=ttft_s, tpot_s=tpot_s, cpu_s=0.1, peak_memory_bytes=size, clean=True,
    )  # fmt: skip
    return Measured(measurement=found, metrics=metrics_of(found), predicted=None, promised=None)


class Timed:
    """Stands in for timing: runs each exported file once, and says that every pass took so long."""

    def __init__(self) -> None:
        self.asked: list[tuple[Design, Workload, tuple[int, ...]]] = []

    def __call__(self, path: Path, design: Design | None, workload: Workload, **settings: Any) -> Measured:
        assert design is not None
        if not design.arch.reads_tokens:
            session = OnnxClassifier(path, batch=workload.batch)
            given = np.zeros((workload.batch, *session.facts["image"]), np.float32)
            self.asked.append((design, workload, session.prefill(given).shape))
            return taken("tower", (0.010, 0.010, 0.012), (), workload, 300)
        decoder = OnnxRuntimeSession(path, capacity=workload.total_tokens, batch=workload.batch)
        tokens = np.zeros((workload.batch, workload.prompt_tokens), np.int64)
        self.asked.append((design, workload, decoder.prefill(tokens).shape))
        return taken("decoder", (0.050, 0.052, 0.060), (0.002, 0.002, 0.003), workload, 1000)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Timed:
    stand_in = Timed()
    monkeypatch.setattr(measured_parts, "timed", stand_in)
    return stand_in


def test_an_image_takes_passes_of_the_tower_and_one_of_the_decoder(timed: Timed, tmp_path: Path) -> None:
    """64 x 64 pixels in tiles of 32: 4 and the whole are 5 passes of 4 tokens; with marks 4 · (4 + 2) + 2 + 4 + 3 = 33.

    TTFT is 2 · 5 · 10 ms + 52 ms for two images; the decoder reads 2 · 33 + 16 tokens.
    """
    found = measure_parts(written(SEEING, tmp_path), images=2, image_size=(64, 64), prompt=16, new=4, keep=False)
    assert (found.passes, found.tokens) == (10, 66)
    tower, decoder = timed.asked
    assert tower[2] == (1, 4, 32)  # of a tile 16 patches, four joined: the projector is part of the file
    assert decoder[1] == Workload(prompt_tokens=82, new_tokens=4, batch=1)
    assert found.metrics["ttft_p50"] == pytest.approx(10 * 0.010 + 0.052)
    assert found.metrics["tpot_p50"] == pytest.approx(0.002)
    assert found.metrics["throughput"] == pytest.approx(4 / (0.152 + 3 * 0.002))
    assert found.metrics["peak_memory"] == 1300
    assert "10 passes of the tower and one of the decoder over 66 tokens" in found.notes[0]
    assert {row["metric"] for row in found.rows()} == found.metrics.keys()
    assert json.loads(json.dumps(found.to_dict()))["tower"]["measurement"]["name"] == "tower"


def test_several_requests_are_read_at_once(timed: Timed, tmp_path: Path) -> None:
    measure_parts(written(SEEING, tmp_path), image_size=(32, 32), batch=3, prompt=4, new=2, keep=False)
    assert timed.asked[0][2][0] == timed.asked[1][2][0] == timed.asked[1][1].batch == 3


def test_a_model_that_hears_is_measured_without_its_projector(timed: Timed, tmp_path: Path) -> None:
    """The tower reads one window of 100 positions; half a second is 25 of them and 12 of the decoder's tokens."""
    found = measure_parts(written(HEARING, tmp_path), audio_s=0.5, prompt=4, new=2, keep=False)
    assert found.passes == 1
    assert timed.asked[0][2] == (1, 100, 32)
    assert timed.asked[1][1].prompt_tokens == 4 + found.tokens
    assert any(note.startswith("the projector (") and note.endswith("left out") for note in found.notes)


def test_predictions_are_added_as_measurements_are() -> None:
    """Three passes of 10 ms [8, 12] and a decoder of 50 ms [40, 70] are 80 ms [64, 106]; tokens take the decoder's."""
    request = Workload(prompt_tokens=4, new_tokens=2)
    parts = [taken("t", (0.01,), (), request, 1), taken("d", (0.05,), (0.002,), request, 1)]
    read = Read(passes=3, positions=9, tokens=9)
    alone = put_together("m", *parts, read=read, workload=request)
    assert alone.predicted == {}
    assert alone.headline() == "m in onnxruntime on toy, in parts, clean"
    tower = {"ttft_p50": Predicted(value=0.010, low=0.008, high=0.012)}
    token = Predicted(value=0.002, low=0.001, high=0.003)
    decoder = {"ttft_p50": Predicted(value=0.050, low=0.040, high=0.070), "tpot_p50": token, "throughput": token}
    told = [
        replace(part, predicted=SimpleNamespace(metrics=metrics))  # type: ignore[arg-type]
        for part, metrics in zip(parts, (tower, decoder), strict=True)
    ]
    both = put_together("m", *told, read=read, workload=request).predicted
    assert both.keys() == {"ttft_p50", "tpot_p50"}
    first = both["ttft_p50"]
    assert (first.value, first.low, first.high) == pytest.approx((0.080, 0.064, 0.106))
    assert both["tpot_p50"] == token
    unsure = replace(told[0], predicted=SimpleNamespace(metrics={"ttft_p50": Predicted(value=0.01)}))  # type: ignore[arg-type]
    first = put_together("m", unsure, told[1], read=read, workload=request).predicted["ttft_p50"]
    assert (first.value, first.low, first.high) == (pytest.approx(0.080), None, None)
    one = put_together("m", told[0], parts[1], read=read, workload=request)
    assert one.predicted == {}  # a sum of which one part is unknown


def test_the_command_says_which_part_took_what(timed: Timed, tmp_path: Path) -> None:
    model = written(SEEING, tmp_path)
    line = ["measure", model, "--image-size", "64x64", "--prompt", "16", "--new", "4"]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    assert "batch 1, 33 tokens of what is read, 16 prompt tokens, 4 new tokens" in text
    assert "tower, measured 5 10 ms" in text
    assert "decoder, measured 1 52 ms" in text
    assert "ttft_p50 102 ms" in text
    assert "note: TTFT is the sum of the medians of 5 passes of the tower and one of the decoder" in text
    data = json.loads(CliRunner().invoke(app, [*line, "--json"]).output)
    assert data["passes"] == 5


def test_wrong_requests_are_one_line(tmp_path: Path) -> None:
    model = written(SEEING, tmp_path)
    assert comes_in_parts(model)
    assert not comes_in_parts("gpt2")
    with pytest.raises(InputError, match=r"has 128 positions; 66 tokens of what it reads"):
        measure_parts(model, images=2, image_size=(64, 64))
    with pytest.raises(SpecError, match="does not take audio"):
        measure_parts(model, audio_s=1.0)
    with pytest.raises(SpecError, match=r"images: must be from 1"):
        measure_parts(model, images=0)
    with pytest.raises(InputError, match="has no tower"):
        measure_parts("gpt2")
    with pytest.raises(InputError, match=r"measure it in parts, with measure_parts\(\)"):
        api.measure(model)
    refused = CliRunner().invoke(app, ["measure", "gpt2", "--images", "2"])
    assert "--images only applies to models with a vision tower" in " ".join(refused.output.split())


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("Qwen/Qwen2-VL-2B-Instruct", "the tower of Qwen/Qwen2-VL-2B-Instruct cannot be measured: positions = 'rope'"),
        ("google/gemma-3-4b-pt", "the decoder of google/gemma-3-4b-pt cannot be measured: norm_place = 'both'"),
    ],
)
def test_what_is_not_built_is_one_line_that_names_what_works(name: str, missing: str) -> None:
    with pytest.raises(Unsupported, match="chipwise estimate prices the whole model") as caught:
        tower_and_request(resolve(name), images=1, image_size=(224, 224), audio_s=None)
    assert str(caught.value).startswith(missing)


def test_smolvlm_reads_a_photograph_in_13_passes() -> None:
    """1024 x 768 becomes 2048 x 1536: 4 x 3 tiles of 512 and the whole, 64 tokens each."""
    tower, read, notes = tower_and_request(resolve("smolvlm-256m"), images=1, image_size=(1024, 768), audio_s=None)
    assert (read.passes, notes) == (13, ())
    assert read.tokens > 13 * 64
    assert isinstance(tower.head, Projector)
