"""Results are short on screen, whole as a dict, and a table for pandas and notebooks."""

from __future__ import annotations

import json
import sys

import pytest

import chipwise
from chipwise.core.results import Result
from chipwise.design.report.record import Budget, RunRecord, SpaceSummary, Target, Trial
from chipwise.errors import ChipwiseError, UnknownName

SOME = {
    "estimate": lambda: chipwise.estimate("gpt2", device="l4"),
    "training": lambda: chipwise.estimate_training("gpt2", device="a100-sxm-80gb"),
    "explanation": lambda: chipwise.explain("gpt2", device="l4"),
    "comparison": lambda: chipwise.compare(["gpt2"], devices=["l4"]),
    "quality": lambda: chipwise.quality("Qwen/Qwen3-8B", tokens="2T"),
    "spec": lambda: chipwise.resolve("HuggingFaceTB/SmolLM2-135M"),
    "device": lambda: chipwise.devices()[0],
    "model": lambda: chipwise.models("gpt2")[0],
    "runtime": lambda: chipwise.runtimes()[0],
}


@pytest.mark.parametrize("name", SOME)
def test_a_result_is_short_and_plain(name: str) -> None:
    found = SOME[name]()
    assert isinstance(found, Result)
    assert len(repr(found)) < 200
    assert "\n" not in repr(found)
    assert json.loads(json.dumps(found.to_dict()))
    assert found._repr_html_().startswith("<table>")
    assert found.rows()


def test_a_data_frame_has_the_rows() -> None:
    pandas = pytest.importorskip("pandas")
    found = chipwise.estimate("gpt2", device="l4")
    frame = found.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame.set_index("metric").loc["tpot_p50", "value"] == found.tpot_s


def test_without_pandas_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ChipwiseError, match="pip install pandas"):
        chipwise.devices().to_pandas()


def test_estimates_of_several_devices_are_one_table() -> None:
    found = chipwise.estimate("meta-llama/Llama-3.1-8B", devices=["l4", "h100-sxm", "raspberry-pi-4"], weights="own")
    assert found[0].device == "h100-sxm"
    assert found[0].estimate.tpot_s == chipwise.estimate("meta-llama/Llama-3.1-8B", device="h100-sxm").tpot_s
    assert found[2].estimate is None
    assert "raspberry-pi-4 has 8 GB" in found[2].problem
    assert len(repr(found[2])) < 100
    assert {len(row) for row in found.rows()} == {len(found.rows()[0])}
    assert found.rows()[2]["tpot_p50"] is None


def test_the_tables_list_what_ships() -> None:
    from chipwise.hardware import datasheet
    from chipwise.model.published import families

    assert [each.name for each in chipwise.devices()] == datasheet.names()
    listed = chipwise.models()
    pictures = [each for each in listed if each.kind == "pictures"]
    assert [each.name for each in listed] == [*families.names(), *(each.name for each in pictures)]
    assert {"dit-xl-2", "stable-diffusion-xl", "flux.1", "wan2.1-t2v-14b"} <= {each.name for each in pictures}
    for each in pictures:
        assert chipwise.estimate_pictures(each.name, device="h100-sxm").metrics["latency_s"].value > 0
    whole = chipwise.models("stable-diffusion-xl")[0]
    assert whole.parameters == sum(chipwise.estimate_pictures(whole.name, device="h100-sxm").parameters.values())
    assert {each.name for each in chipwise.models("SMOLLM2")} < set(families.names())
    assert len(chipwise.models("no such model")) == 0
    known = {each.name: each for each in chipwise.models("gpt2")}
    assert known["openai-community/gpt2"].parameters == 124_439_808  # as its model card counts


def test_a_run_can_be_given_as_fields(tmp_path) -> None:
    with pytest.raises(ChipwiseError, match="the run's fields: workload"):
        chipwise.search({"name": "x"}, out=tmp_path / "run")
    with pytest.raises(UnknownName, match="unknown model"):
        chipwise.resolve("no-such-model-anywhere")


def test_a_record_is_one_line_and_a_row_for_each_trial() -> None:
    trials = (
        Trial(number=0, state="measured", summary="d64", weights="int8", measured={"tpot_p50": 1e-3}),
        Trial(number=1, state="priced", summary="d32", weights="int8"),
    )
    record = RunRecord(
        name="notes", created="2026-01-01T00:00:00", version="0.1.0", status="partial", seed=0,
        target=Target(device="local", runtime="onnxruntime"), workload=chipwise.Workload(), budget=Budget(cpu_s=60.0),
        space=SpaceSummary(size=2), trials=trials,
    )  # fmt: skip
    assert repr(record) == "<RunRecord: notes, partial: 2 trials, no winner yet>"
    assert [row["tpot_p50"] for row in record.rows()] == [1e-3, None]


def test_a_unet_is_listed_with_the_layers_and_the_width_that_it_has() -> None:
    """Stable Diffusion XL: 70 layers with attention, the widest of 1,280 (its config's block_out_channels)."""
    found = next(model for model in chipwise.models() if model.name == "stable-diffusion-xl")
    assert (found.layers, found.d_model) == (70, 1280)


def test_one_of_a_thing_is_not_several() -> None:
    assert repr(chipwise.estimate("gpt2", devices=["l4"])) == "<gpt2 on 1 device: 1 row>"
    assert chipwise.estimate("gpt2", devices=["l4", "t4"]).title == "gpt2 on 2 devices"
