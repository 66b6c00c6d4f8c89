"""First and further lines of estimate, explain and compare."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from chipwise import api
from chipwise.cli.app import app

MODEL = "meta-llama/Llama-3.1-8B"


def output(*words: str, code: int = 0) -> str:
    """What a command prints at 200 columns."""
    done = CliRunner().invoke(app, [*words], env={"COLUMNS": "200"})
    assert done.exit_code == code, done.output
    return done.output


def test_defaults_stand_in_the_first_line_and_kernels_only_where_asked_for() -> None:
    text = output("estimate", MODEL, "--device", "rtx-4070")
    assert text.startswith(f"{MODEL} on rtx-4070, llama.cpp, q4_k_m (defaults for this chip): predicted")
    assert "──" not in text
    assert "decode step: kernels " in output("estimate", MODEL, "--device", "rtx-4070", "--kernels")


@pytest.mark.parametrize(
    ("words", "served"),
    [
        ([], "vllm, bf16 (defaults for this chip)"),
        (["--runtime", "trtllm"], "trtllm, bf16 (default for this chip)"),
        (["--weights", "fp8"], "vllm (default for this chip), fp8"),
        (["--weights", "fp8", "--runtime", "vllm"], "vllm, fp8"),
    ],
)
def test_only_what_was_not_named_is_called_a_default(words: list[str], served: str) -> None:
    for command in ("estimate", "explain"):
        assert output(command, "gpt2", "--device", "h100-sxm", *words).startswith(f"gpt2 on h100-sxm, {served}")


def test_what_does_not_fit_says_so_first_and_gives_numbers_after_it() -> None:
    asked = [MODEL, "--device", "rtx-4070", "--weights", "bf16"]
    said, _, rest = output("estimate", *asked, code=2).partition("\nhypothetical, as if it fitted: predicted ")
    first = " ".join(said.split())
    assert (
        ": does not fit: needs 17.3 GB, has 12.9 GB; q8_0 fits (9.74 GB), or 2 devices fit (9.15 GB on each); or 26 of"
        " 32 layers on the card, the rest on its host: " in first
    )
    assert "\nTPOT " in rest
    told = output("explain", *asked)
    assert " ".join(told.split()).startswith(first)
    assert "\nhypothetical, as if it fitted: TTFT " in told
    data = json.loads(output("estimate", *asked, "--json", code=2))
    assert data["does_not_fit"].startswith("does not fit: ")
    assert json.loads(output("explain", *asked, "--json"))["does_not_fit"] == data["does_not_fit"]


def test_advice_is_numbered_in_order_and_names_nothing_that_the_runtime_lacks() -> None:
    asked = ["explain", MODEL, "--device", "rtx-4070", "--runtime", "llama.cpp", "--weights", "bf16"]
    short, long = output(*asked), output(*asked, "--all")
    for text in (short, long):
        numbers = [int(number) for number in re.findall(r"^ ?(\d+)\. ", text, re.MULTILINE)]
        assert numbers == list(range(1, len(numbers) + 1))
        advice = text[text.index("\nAdvice") :]
        assert not re.search(r"\b(fp8|nvfp4|int8|int4|[48] devices)\b", advice)
        assert "1x faster (1 to 1)" not in text
    assert re.search(r"^ 1\. weights in q8_0, so that it fits$", short, re.MULTILINE)
    assert "--tp" not in output("explain", MODEL, "--device", "raspberry-pi-5", "--weights", "bf16", "--all")


def test_waiting_for_prompts_is_told_apart_from_a_decode_step() -> None:
    """TPOT is the decode step plus other requests' prompts divided by the new tokens."""
    few, many = (api.estimate(MODEL, batch=64, new=new) for new in (16, 1000))
    for found in (few, many):
        assert found.decode_step_s is not None
        assert found.decode_step_s + found.prompts_wait_s == pytest.approx(found.tpot_s)
        assert found.metrics["decode_tokens_per_s"].value == pytest.approx(1 / found.tpot_s)
    assert few.prompts_wait_s > 40 * many.prompts_wait_s
    assert few.decode_step_s == pytest.approx(many.decode_step_s, rel=0.2)
    text = output("estimate", MODEL, "--batch", "64", "--new", "16")
    assert re.search(r"of which +[\d.]+ ms waiting for other requests' prompts; a decode step takes [\d.]+ ms", text)
    assert "waiting for other requests" not in output("estimate", MODEL)


def test_decode_rates_are_in_every_answer() -> None:
    one = 1 / api.estimate("gpt2", device="l4").tpot_s
    assert re.search(
        rf"^decode, each request +{one:.0f} tokens/s \(", output("estimate", "gpt2", "--device", "l4"), re.MULTILINE
    )
    assert f"decode {one:.0f} tokens/s each request" in output("explain", "gpt2", "--device", "l4")
    table = output("compare", "gpt2", "Qwen/Qwen3-0.6B", "--device", "l4")
    assert "tok/s each" in table
    assert re.search(rf"^  gpt2 .* {one:.0f} ", table, re.MULTILINE)
