"""Tables: good rows are answered, bad rows say why, and one row is what one estimate is."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from chipwise import api
from chipwise.errors import SpecError
from chipwise.predict.served.table import estimate_rows
from chipwise_fitting.optable import ops_file, price_rows


def row(**cells: object) -> dict[str, str]:
    plain = {"model": "Qwen/Qwen3-8B", "device": "h100_sxm", "isl": 512, "osl": 64, **cells}
    return {name: str(value) for name, value in plain.items()}


def test_a_row_is_what_one_estimate_is() -> None:
    found = estimate_rows([row(batch=8, weights="fp8", runtime="trtllm")])[0]
    alone = api.estimate(
        "Qwen/Qwen3-8B", device="h100-sxm", batch=8, weights="fp8", runtime="trtllm", prompt=512, new=64
    )
    assert float(str(found["tpot_s"])) == pytest.approx(alone.tpot_s, rel=1e-5)
    assert float(str(found["low_s"])) == pytest.approx(alone.metrics["tpot_p50"].low, rel=1e-5)
    assert found["bound"] == "memory"
    assert found["error"] == ""


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"model": "nobody/knows"}, "unknown model"),
        ({"device": "h100-smx"}, "did you mean 'h100-sxm'"),
        ({"batch": "many"}, "batch: must be a whole number"),
        ({"isl": ""}, "isl: is empty"),
        ({"tp": "5"}, "tp: 5 devices do not divide"),
        ({"weights": "fp7"}, "unknown weight format"),
        ({"batch": "-3"}, "batch: must be from 1"),
        ({"isl": "1e15"}, "isl: must be from 1 to 100,000,000"),
        ({"model": "meta-llama/Llama-2-70b-hf"}, "too much"),
        ({"model": "x" * 5000}, "unknown model"),  # longer than a file's name may be
        ({"model": "gpt2\0"}, "unknown model"),
    ],
)
def test_a_bad_row_says_why_and_the_others_are_answered(bad: dict[str, str], message: str) -> None:
    good = row()
    found = estimate_rows([good, row(**bad), good])
    assert message in str(found[1]["error"])
    assert found[0]["tpot_s"] == found[2]["tpot_s"]
    assert found[0]["error"] == found[2]["error"] == ""


def test_files_in_and_out(tmp_path: Path) -> None:
    source, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    source.write_text("row_id,model,device,isl,osl,batch\na,Qwen/Qwen3-8B,H100-SXM,512,64,4\nb,x,y,1,1,1\n")
    assert api.estimate_table(source, out) == (2, 1)
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [each["row_id"] for each in rows] == ["a", "b"]
    assert float(rows[0]["low_s"]) < float(rows[0]["tpot_s"]) < float(rows[0]["high_s"])
    assert rows[1]["tpot_s"] == ""
    assert "unknown" in rows[1]["error"]


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (api.estimate_table, "model,device,isl,osl,note,tpot_s\ngpt2,l4,64,8,mine,7\ngpt9,l4,64,8,bad,7\n"),
        (ops_file, "op,device,m,n,k,note,latency_s\ngemm,l4,8,64,64,mine,7\ngem,l4,8,64,64,bad,7\n"),
    ],
    ids=["estimate", "ops"],
)
def test_columns_of_ones_own_stay_and_old_answers_do_not(answer, line: str, tmp_path: Path) -> None:
    source, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    source.write_text(line)
    assert answer(source, out) == (2, 1)
    with out.open(newline="") as file:
        good, bad = csv.DictReader(file)
    assert (good["note"], bad["note"]) == ("mine", "bad")
    assert [each.get("tpot_s", each.get("latency_s")) == "7" for each in (good, bad)] == [False, False]


def test_a_file_that_is_no_table(tmp_path: Path) -> None:
    source = tmp_path / "rows.csv"
    with pytest.raises(SpecError, match="no such file"):
        api.estimate_table(source, tmp_path / "out.csv")
    source.write_text("modle,device\nx,y\n")
    with pytest.raises(SpecError, match="no column 'model'; did you mean 'modle'"):
        api.estimate_table(source, tmp_path / "out.csv")
    source.write_text("model,device\n")
    with pytest.raises(SpecError, match="holds no rows"):
        api.estimate_table(source, tmp_path / "out.csv")


def test_operators_of_a_table() -> None:
    rows = [
        {"op": "gemm", "device": "a100-sxm-80gb", "dtype": "float16", "m": "4096", "n": "4096", "k": "4096"},
        {
            "op": "attention",
            "device": "h100_sxm",
            "heads": "32",
            "kv_heads": "8",
            "head_dim": "128",
            "past_tokens": "4096",
        },
        {"op": "all_reduce", "device": "h100_sxm", "payload_bytes": "1048576", "devices": "8"},
        {"op": "gemmm", "device": "h100_sxm", "m": "1", "n": "1", "k": "1"},
        {"op": "gemm", "device": "h100_sxm", "m": "1", "n": "1"},
    ]
    found = price_rows(rows)
    # 2 x 4096^3 FLOPs at 312 TFLOP/s are 440 us; 3 x 4096^2 x 2 bytes at 2 TB/s are 49 us.
    assert found[0]["bound"] == "compute"
    assert float(found[0]["compute_s"]) == pytest.approx(440e-6, rel=0.01)
    assert 440e-6 < float(found[0]["latency_s"]) < 800e-6
    assert found[1]["bound"] in ("memory", "launch")
    assert float(found[2]["latency_s"]) > 0
    assert "did you mean 'gemm'" in found[3]["error"]
    assert "k: is empty" in found[4]["error"]


def test_where_memory_holds_fewer_requests_the_others_wait() -> None:
    # 128 requests of 32,768 tokens x 36 layers x 2 x 8 heads x 128 x 2 bytes are 618 GB of cache; an H100 has 85.5 GB.
    found = estimate_rows([row(batch=128, isl=32_000, osl=768)])[0]
    assert found["error"] == ""
    assert "of 128 requests at once" in str(found["provenance"])
    assert float(str(found["peak_memory_bytes"])) <= 81_559 * 2**20
    alone = api.estimate("Qwen/Qwen3-8B", device="h100-sxm", batch=128, prompt=32_000, new=768)
    assert float(str(found["tpot_s"])) == pytest.approx(alone.tpot_s, rel=1e-5)
    assert any("of 128 requests at once" in note for note in alone.notes)


def test_where_all_requests_fit_none_waits() -> None:
    (found,) = estimate_rows([row(model="gpt2", device="h100-sxm", batch="4")])
    assert found["error"] in (None, "")
    assert "wait" not in str(found["provenance"])
