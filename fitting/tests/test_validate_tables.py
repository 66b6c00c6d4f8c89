"""Tables of measured rows that are wrong: the message names the file, the row and the column."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from chipwise.errors import InputError, SpecError
from chipwise_fitting import commands
from chipwise_fitting.commands import fit, validate

GEMM = "row_id,system,backend,dtype,m,n,k,latency_s\n"
GOOD = "a,h100-sxm,vllm,bf16,128,4096,4096,1e-4\n"
POWER = "row_id,op,device,latency_s,power_w"
MOE = f"{POWER},num_tokens,hidden_size,inter_size,topk,num_experts,moe_tp_size,moe_ep_size,moe_dtype,distribution"


@pytest.mark.parametrize("cell", ["0", "-1e-4", "nan", "inf", "fast", ""])
def test_a_measured_time_that_is_not_above_zero_is_named(tmp_path: Path, cell: str) -> None:
    table = tmp_path / "gemm.csv"
    table.write_text(f"{GEMM}{GOOD}b,h100-sxm,vllm,bf16,128,4096,4096,{cell}\n")
    with pytest.raises(SpecError, match=r"gemm\.csv: row 2, latency_s: must be a number above zero"):
        validate("gemm", table, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("cell", ["0", "nan", "slow", ""])
def test_a_measured_time_per_token_that_is_not_above_zero_is_named(tmp_path: Path, cell: str) -> None:
    table = tmp_path / "serving.csv"
    table.write_text(f"row_id,model,device,isl,osl,silicon_tpot_ms\na,gpt2,l4,8,8,{cell}\n")
    with pytest.raises(SpecError, match=r"serving\.csv: row 1, silicon_tpot_ms: must be a number above zero"):
        validate("serving", table, tmp_path / "out.csv")


SERVED = "row_id,model,device,backend,isl,osl,batch,silicon_tpot_ms\na,gpt2,l4,vllm,8,8,1,2\n"


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ("b,gpt2,l4,vllm,x,8,1,2", "isl: must be a whole number, not 'x'"),
        ("b,gpt2,l4,vllm,8,1.5,1,2", r"osl: must be a whole number, not '1\.5'"),
        ("b,gpt2,l4,vllm,8,8,-1,2", "batch: must be at least 0, not -1"),
        ("b,gpt2,l4,vllm,nan,8,1,2", "isl: must be a whole number, not 'nan'"),
        ("b,gpt2,l4,,8,8,1,2", "runtime: is empty, or there is no column runtime or backend"),
        ("b,,l4,vllm,8,8,1,2", "model: is empty"),
        ("b,gpt2,,vllm,8,8,1,2", "device: is empty"),
        ("b,no-such,l4,vllm,8,8,1,2", "unknown model 'no-such'"),
    ],
)
def test_a_served_run_that_cannot_be_read_says_why(cells: str, said: str, tmp_path: Path) -> None:
    table = tmp_path / "serving.csv"
    table.write_text(f"{SERVED}{cells}\n")
    whole = validate("serving", table, tmp_path / "out.csv")[0]
    assert whole.answered == 0.5
    assert re.search(f"row b: .*{said}", whole.problem)


def test_a_good_table_is_scored(tmp_path: Path) -> None:
    table = tmp_path / "gemm.csv"
    table.write_text(GEMM + GOOD)
    (whole, part) = validate("gemm", table, tmp_path / "out.csv")
    assert (whole.subset, part.subset, whole.rows, whole.answered) == ("all", "h100-sxm", 1, 1.0)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ("b,h100-sxm,vllm,bf16,-1,4096,4096,1e-4", "row b: .*m: must be"),
        ("b,h100-sxm,vllm,bf16,x,4096,4096,1e-4", "row b: .*'x'"),
        ("b,no-such,vllm,bf16,128,4096,4096,1e-4", "row b: .*no-such"),
        ("b,h100-sxm,vllm,int7,128,4096,4096,1e-4", "row b: .*int7"),
    ],
)
def test_a_row_without_a_prediction_says_why(tmp_path: Path, cells: str, said: str) -> None:
    table = tmp_path / "gemm.csv"
    table.write_text(f"{GEMM}{GOOD}{cells}\n")
    whole = validate("gemm", table, tmp_path / "out.csv")[0]
    assert (whole.rows, whole.answered) == (2, 0.5)
    assert re.search(said, whole.problem)
    table.write_text(f"{GEMM}{cells}\n")
    with pytest.raises(InputError, match=f"none of 1 row can be predicted; {said}"):
        validate("gemm", table, tmp_path / "out.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GEMM + GOOD, r"power\.csv: has no column 'op'"),
        (f"{POWER}\na,moe,b200-sxm,1e-3,400\n", "has no column 'num_tokens'"),
        (f"{POWER}\na,moe,b200-sxm,0,400\n", "row 1, latency_s: must be a number above zero"),
        (f"{POWER}\na,moe,b200-sxm,1e-3,\n", "row 1, power_w: must be a number above zero, not empty"),
        ("", "cannot be read as a CSV table"),
        *(
            (f"{MOE}\na,moe,b200-sxm,1e-3,400,{cells}\n", f"power\\.csv: {said}")
            for cells, said in (
                ("0,64,64,2,8,1,1,bfloat16,uniform", "row 1, num_tokens: must be a whole number of at least 1, not 0"),
                ("8,64,64,2,8,0,1,bfloat16,uniform", "row 1, moe_tp_size: must be a whole number of at least 1, not 0"),
                ("8,64,64,1.5,8,1,1,bfloat16,uniform", "row 1, topk: must be a whole number of at least 1, not 1.5"),
                (
                    ",64,64,2,8,1,1,bfloat16,uniform",
                    "row 1, num_tokens: must be a whole number of at least 1, not empty",
                ),
                ("8,64,64,2,8,1,1,,uniform", "row 1, moe_dtype: must be a name, not empty"),
                ("8,64,64,2,8,1,1,bfloat16,no-such", "distribution: unknown routing 'no-such'"),
            )
        ),
        (
            f"{POWER},num_tokens,hidden_size,inter_size,topk,num_experts,moe_tp_size,moe_ep_size,distribution\n"
            "a,gemm,b200-sxm,1e-3,400,1,1,1,1,1,1,1,x\n",
            r"power\.csv: .*'gemm'",
        ),
    ],
)
def test_a_table_of_power_that_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    pytest.importorskip("pandas")
    table = tmp_path / "power.csv"
    table.write_text(text)
    with pytest.raises(SpecError, match=message):
        validate("power", table, tmp_path / "out.csv")


@pytest.mark.parametrize("kind", ["gemm", "serving", "power", "attention", "edge"])
def test_only_regular_files_are_read(kind: str, tmp_path: Path) -> None:
    if kind == "power":
        pytest.importorskip("pandas", reason="needs the extra power")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(SpecError, match=f"{name}: this is a pipe or device"):
            validate(kind, tmp_path / name, tmp_path / "out.csv")


@pytest.mark.parametrize(("name", "content"), [("edge.csv", b"\xff\xfe"), ("edge.csv.gz", b"none"), ("edge.csv", b"")])
def test_a_broken_table_of_runs_of_one_user_is_named(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SpecError, match=rf"{re.escape(name)}: "):
        validate("edge", tmp_path / name, tmp_path / "out.csv")


def test_the_table_is_not_written_over(tmp_path: Path) -> None:
    table = tmp_path / "gemm.csv"
    table.write_text(GEMM + GOOD)
    with pytest.raises(InputError, match="this is the input file"):
        validate("gemm", table, table)
    assert table.read_text() == GEMM + GOOD


def test_a_fit_never_writes_into_an_installed_package_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "DATA", Path("/usr/lib/python3/site-packages/chipwise/predict/data"))
    with pytest.raises(InputError, match="--out"):
        fit(["gemm"], None, None, on_progress=print)
