"""Options of ``plan`` and ``simulate`` that cannot be meant, or would change nothing, are refused before any work."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from chipwise.cli.app import app

runner = CliRunner()
PLAN = ("plan", "gpt2", "--prompt", "200", "--new", "20", "--tp", "1")
SIMULATE = ("simulate", "gpt2", "--device", "l4", "--prompt", "200", "--new", "20")
RATE = ("--rate", "2/s")
L4 = (*RATE, "--device", "l4")


def said(*arguments: str) -> str:
    """What a refused command says, on one line."""
    outcome = runner.invoke(app, list(arguments))
    assert outcome.exception is not None, outcome.output
    error = "" if isinstance(outcome.exception, SystemExit) else str(outcome.exception)
    return " ".join(f"{outcome.output} {error}".replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*PLAN, *L4, "--price", "h100-sxm=-1 USD/h"), "prices.h100-sxm: h100-sxm is not among the devices, l4"),
        ((*PLAN, *RATE, "--device", "h100-sxm", "--price", "h100-sxm=-1 USD/h"), "prices.h100-sxm: must be above zero"),
        ((*PLAN, *L4, "--price", "l4=0 USD/h"), "prices.l4: must be above zero"),
        ((*PLAN, *L4, "--price", "lv4=1 USD/h"), "unknown device 'lv4'"),
        (
            (*PLAN, *L4, "--price", "l4=1 USD/h", "--price", "l4=2 USD/h"),
            "--price: a second price for a device: 'l4=2 USD/h'",
        ),
        ((*PLAN, *RATE, "--device", "l4,l4"), "devices: l4 is named twice"),
        ((*PLAN, *RATE, "--device", ","), "devices: is an empty list; leave the field out"),
        ((*PLAN, *L4, "--budget", "-3 USD/h"), "budget: must be above zero, not -$3.00/h"),
        ((*PLAN, "--device", "l4", "--trace", "log.csv"), "--prompt cannot be combined with --trace"),
        ((*SIMULATE, "--clients", "2", "--think=-1s"), "think_s: must be from 0 to 86,400 s, not -1 s"),
        ((*SIMULATE, *RATE, "--think", "1s"), "think_s: only applies to clients"),
        ((*SIMULATE, *RATE, "--link", "5 GB/s"), "link: applies only to separate prefill and decode"),
        ((*SIMULATE, *RATE, "--decode-device", "l4", "--link", "0 GB/s"), "link: must be above zero"),
        ((*SIMULATE, *RATE, "--acceptance", "0.5"), "--acceptance only applies to speculative decoding"),
        ((*SIMULATE, *RATE, "--draft", "gpt2"), "draft: needs `drafted` too"),
        ((*SIMULATE, *RATE, "--request-time", "1e300s"), "request_s: must be from 0 to 86,400 s"),
        (
            (*SIMULATE, "--clients", "2", "--arrivals", "gamma"),
            "--arrivals only applies to requests that arrive at a --rate",
        ),
        ((*SIMULATE, "--trace", "log.csv"), "--prompt cannot be combined with --trace"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: tuple[str, ...], message: str) -> None:
    assert message in said(*arguments)


@pytest.mark.parametrize("arguments", [(*PLAN, *L4, "--html"), (*PLAN, *L4, "--out"), (*SIMULATE, *RATE, "--html")])
def test_no_folder_is_made_for_a_result(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert "there is no folder" in said(*arguments, str(tmp_path / "no" / "such" / "file"))
    assert not (tmp_path / "no").exists()
