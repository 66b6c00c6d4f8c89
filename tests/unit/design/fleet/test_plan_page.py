"""Pages of plans and simulations state the question, left-out devices and serving commands."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

import chipwise
from chipwise.design.fleet.plan_page import load_in_words, write_plan_page, write_simulation
from chipwise.design.fleet.question import question_from

pytest.importorskip("plotly", reason="pages carry plotly's script")

ASKED: dict[str, Any] = {
    "rate": 4, "prompt": 300, "new": 30, "devices": ["h100-sxm", "l4"], "tp": [1], "requests": 60, "weights": ["fp8"],
    "limits": {"ttft_p99": "500 ms", "tpot_p99": "12 ms"},
}  # fmt: skip


def text_of(page: str) -> str:
    """The visible text of a page on one line."""
    body = page[page.index("<main>") : page.index("</main>")]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def figures_of(page: str) -> dict[str, Any]:
    held = re.search(r'id="figures">(.*?)</script>', page, re.DOTALL)
    assert held is not None
    found: dict[str, Any] = json.loads(held[1])
    return found


def test_a_plans_page_states_the_question_and_how_to_serve_the_answer(tmp_path: Path) -> None:
    plan = chipwise.plan("qwen3-8b", budget="40 USD/h", **ASKED)
    write_plan_page(plan, tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    shown = text_of(page)
    for part in (
        "Plan for qwen3-8b",
        "4 requests/s, Poisson arrivals; 300 prompt and 30 new tokens",
        "P99 time to first token ≤ 500 ms",
        "P99 time per output token ≤ 12 ms",
        "90 % probability that all limits are met",
        "at most $40.00/h",
        "P99 TPOT",
        "vllm serve Qwen/Qwen3-8B --max-model-len",
    ):
        assert part in shown
    assert "l4 no arrangement meets tpot_p99" in shown
    front = figures_of(page)["front"][0]["data"][0]
    assert front["text"] == [f"{option.devices} x {option.device}" for option in plan.options]
    state = figures_of(page)["state"][0]["layout"]
    assert state["yaxis2"]["side"] == "right"
    assert state["margin"]["r"] >= 88  # room for ticks and the title, as on the left


def test_a_simulations_page_states_model_and_load(tmp_path: Path) -> None:
    found = chipwise.simulate(
        "qwen3-0.6b", device="l4", clients=4, think_s=2.0, prompt=300, new=30, shared_tokens=100, requests=50, seeds=1
    )
    write_simulation(found, tmp_path / "simulation.html")
    shown = text_of((tmp_path / "simulation.html").read_text())
    assert "qwen3-0.6b on 1 x l4" in shown
    assert "4 clients in a closed loop, each waiting 2 s between its requests; 300 prompt and 30 new tokens" in shown
    assert "starting with a shared text of 100 tokens" in shown
    assert "vllm serve Qwen/Qwen3-0.6B" in shown


def test_classes_are_named_with_their_shares() -> None:
    kinds = [
        {"name": "chat", "share": 3, "prompt": 500, "new": 250, "shared": 300, "prefixes": 4},
        {"name": "sum", "share": 1, "prompt": 6000, "new": 400, "spread": 0.5},
    ]
    asked = {"model": "qwen3-8b", "rate": 20, "classes": kinds, "arrivals": "gamma", "burstiness": 4}
    assert load_in_words(question_from(asked)) == (
        "20 requests/s, gamma arrivals of burstiness 4; chat (75 %): 500 prompt and 250 new tokens, starting with "
        "one of 4 shared texts of 300 tokens; sum (25 %): 6,000 prompt and 400 new tokens, varying by 50 %"
    )
