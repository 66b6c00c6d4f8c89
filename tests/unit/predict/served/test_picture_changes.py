"""Pictures explained: shares of the time, changes that are priced, and the commands for them."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from chipwise.api import estimate_pictures
from chipwise.cli.app import app
from chipwise.errors import UnknownName
from chipwise.predict.served.picture_changes import explain_pictures


def run(*arguments: str) -> str:
    found = CliRunner().invoke(app, list(arguments))
    assert found.exit_code == 0, found.output
    return found.stdout


@pytest.mark.parametrize("model", ["stable-diffusion-3.5-large", "DiT-XL/2", "Wan-AI/Wan2.1-T2V-14B"])
def test_shares_are_of_the_whole_and_changes_are_what_the_estimate_says(model: str) -> None:
    found = explain_pictures(model, device="h100-sxm")
    assert sum(found.estimate.shares.values()) == pytest.approx(1)
    times = [change.times for change in found.changes]
    assert times == sorted(times, reverse=True)
    few = next(change for change in found.changes if change.what.startswith("4 steps"))
    other = estimate_pictures(model, device="h100-sxm", steps=4)
    assert few.times == pytest.approx(found.estimate.latency_s / other.latency_s)


def test_parts_that_do_not_fit_together_are_said() -> None:
    """8.1 + 0.1 + 5.6 billion parameters of 2 bytes: 27 GB on a card of 24."""
    notes = estimate_pictures("stable-diffusion-3.5-large", device="rtx-4090").notes
    assert any("text encoders" in note for note in notes)
    assert not any("text encoders" in n for n in estimate_pictures("pixart-sigma", device="h100-sxm").notes)


def test_commands_answer_for_pictures() -> None:
    assert "8,056,627,520" in run("estimate", "stable-diffusion-3.5-large", "--device", "h100-sxm")
    assert "goes to" in run("explain", "flux.1-dev", "--device", "h100-sxm")
    assert json.loads(run("explain", "flux.1-dev", "--json"))["changes"]
    both = run("compare", "flux.1-dev", "pixart-sigma", "--device", "h100-sxm,b200-sxm")
    assert both.count("flux.1-dev") == 2
    for arguments, word in (
        (["compare", "flux.1-dev", "gpt2", "--device", "l4"], "one kind"),
        (["compare", "flux.1-dev", "pixart-sigma"], "name the devices"),
        (["explain", "flux.1-dev", "--prompt", "10"], "language models"),
    ):
        refused = CliRunner().invoke(app, arguments)
        assert refused.exit_code == 2
        assert word in refused.output
    with pytest.raises(UnknownName):
        explain_pictures("nobody/nothing", device="h100-sxm")


def test_rows_are_the_shares_and_then_the_changes() -> None:
    found = explain_pictures("pixart-sigma", device="h100-sxm")
    shares, changes = found.estimate.shares, found.changes
    assert changes
    assert found.rows() == [
        *({"what": name, "share": share} for name, share in shares.items()),
        *({"what": change.what, "times_faster": change.times} for change in changes),
    ]
    largest = max(shares, key=lambda name: shares[name])
    assert found.headline().endswith(f"of it is {largest}")
