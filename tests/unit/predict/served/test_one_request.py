"""One definition of what a request takes: a prompt's pass gives the first token, a decode step each token after it."""

from __future__ import annotations

import numpy as np
import pytest

from chipwise import api
from chipwise.hardware import datasheet
from chipwise.model.ops.workload import Workload
from chipwise.predict.cost.request import price_shares, request_total
from chipwise.predict.cost.spending import Rates, spent
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.energy import energies
from chipwise.predict.served.estimate import cost_of
from chipwise.predict.served.request import Request
from chipwise.predict.served.table import estimate_rows


def test_a_request_by_pencil() -> None:
    assert request_total(10.0, 2.0, 1) == 10.0  # the prompt's pass gives the only token
    assert request_total(10.0, 2.0, 4) == 16.0  # and three steps the other three
    assert request_total(np.array([1.0, 2.0]), 0.5, np.array([3, 1])).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("new", [1, 2, 128])
def test_tokens_per_second_and_price_are_the_same_in_estimates_tables_and_run_files(new: int) -> None:
    found = api.estimate("gpt2", device="l4", new=new)
    request_s = found.ttft_s + (new - 1) * found.tpot_s
    usd = found.metrics["usd_per_1k_tokens"].value
    assert found.metrics["throughput"].value == pytest.approx(new / request_s)
    workload = Workload(prompt_tokens=1024, new_tokens=new, batch=1)
    limits = spent(found.ttft_s, found.tpot_s, workload, Rates(usd_per_s=datasheet.load("l4").price_usd_per_s))
    assert usd == pytest.approx(limits["usd_per_1k_tokens"])
    (row,) = estimate_rows([{"model": "gpt2", "device": "l4", "isl": "1024", "osl": str(new)}])
    assert float(str(row["usd_per_1k_tokens"])) == pytest.approx(usd, rel=1e-3)


def test_the_first_token_takes_the_energy_of_the_prompt_alone() -> None:
    # E(n) = prefill + (n - 1) steps, so what a token more adds is the same step from the first to the second as from
    # the second to the third (the cache is one position longer, of a thousand).
    joules = []
    for new in (1, 2, 3):
        (found,) = energies([cost_of(Request(model="gpt2", deployment=Deployment(device="l4"), new_tokens=new))])
        joules.append(new * float(found.token_j[0]))  # type: ignore[union-attr]
    first, second, third = joules
    assert third - second == pytest.approx(second - first, rel=0.02)
    assert first > 5 * (second - first)  # a thousand tokens of prompt against one


@pytest.mark.parametrize(("new", "batch"), [(1, 1), (2, 1), (128, 1), (128, 16)])
def test_prices_of_input_and_output_add_up_to_the_request(new: int, batch: int) -> None:
    found = api.estimate("gpt2", device="l4", prompt=512, new=new, batch=batch).metrics
    read, written, all_in = (
        found[f"usd_per_1k_{name}"].value / 1000 for name in ("input_tokens", "output_tokens", "tokens")
    )
    assert 512 * read + new * written == pytest.approx(new * all_in)
    assert written >= 0
    asked = {"model": "gpt2", "device": "l4", "isl": "512", "osl": str(new), "batch": str(batch)}
    (row,) = estimate_rows([asked])
    assert float(str(row["usd_per_1k_input_tokens"])) == pytest.approx(1000 * read, rel=1e-3)
    assert float(str(row["usd_per_1k_output_tokens"])) == pytest.approx(1000 * written, rel=1e-3)


def test_a_new_token_costs_a_step_shared_by_all_in_flight() -> None:
    """10 s of prompt and waiting, 3 steps of 2 s: 4 tokens; 6 of the request's 16 s are the new tokens'."""
    assert price_shares(16.0, 2.0, 4) == (10.0, 6.0)
    assert price_shares(10.0, 2.0, 1) == (10.0, 0.0)  # the only token comes out of the prompt's pass


def test_a_text_encoder_has_a_price_of_input_alone() -> None:
    found = api.estimate("bert-base-uncased", device="l4").metrics
    assert found["usd_per_1k_input_tokens"].value == pytest.approx(found["usd_per_1k_tokens"].value)
    assert "usd_per_1k_output_tokens" not in found


@pytest.mark.parametrize(("new", "batch"), [(1, 1), (128, 4)])
def test_estimate_compare_and_explain_give_every_metric_the_same_value(new: int, batch: int) -> None:
    request = {"prompt": 256, "new": new, "batch": batch}
    alone = api.estimate("gpt2", device="l4", **request).metrics
    compared = api.compare(["gpt2"], devices=["l4"], **request).cells[0].estimate
    explained = api.explain("gpt2", device="l4", **request).estimate
    assert compared is not None
    assert alone.keys() == compared.metrics.keys() == explained.metrics.keys()
    for name, item in alone.items():
        assert compared.metrics[name].value == pytest.approx(item.value, rel=1e-9)
        assert explained.metrics[name].value == pytest.approx(item.value, rel=1e-9)
