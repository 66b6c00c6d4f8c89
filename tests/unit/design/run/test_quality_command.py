import json
import re

from typer.testing import CliRunner

from chipwise.cli.app import app
from chipwise.errors import SpecError, Unsupported

ASKED = ["estimate", "meta-llama/Llama-2-7b-hf", "--device", "h100-sxm"]


def test_the_loss_is_said_when_tokens_are_and_never_without_its_interval() -> None:
    shown = CliRunner().invoke(app, [*ASKED, "--train-tokens", "2T"]).stdout
    line = " ".join(shown[shown.index("loss after") :].split())
    found = re.match(
        r"loss after 2T tokens: ([\d.]+) nats/token \[([\d.]+), ([\d.]+)\], predicted, published law", line
    )
    assert found, line
    value, low, high = map(float, found.groups())
    assert low < value < high
    assert "another tokenizer and text" in line
    assert "loss after" not in CliRunner().invoke(app, ASKED).stdout


def test_json_gains_the_quality_beside_the_costs() -> None:
    plain = json.loads(CliRunner().invoke(app, [*ASKED, "--json"]).stdout)
    more = json.loads(CliRunner().invoke(app, [*ASKED, "--json", "--train-tokens", "2T"]).stdout)
    quality = more.pop("quality")
    assert more == plain
    assert quality["loss"]["low"] < quality["loss"]["value"] < quality["loss"]["high"]
    assert quality["unit"] == "nats/token"
    assert quality["tokens"] == 2e12


def test_explain_prices_what_a_change_of_the_model_may_cost() -> None:
    shown = CliRunner().invoke(app, ["explain", "gpt2", "--all", "--train-tokens", "300B"]).stdout
    changes = re.findall(r"advice \d+ changes the loss by ([+-][\d.]+) \[([+-][\d.]+), ([+-][\d.]+)\]", shown)
    assert changes
    assert all(float(low) <= float(value) <= float(high) for value, low, high in changes)


def test_what_the_law_cannot_say_is_an_error_that_says_why() -> None:
    for arguments, kind, said in (
        ([*ASKED, "--train-tokens", "2X"], SpecError, "--train-tokens: unknown unit 'X' for count in '2X'"),
        (
            ["estimate", "bert-base-uncased", "--train-tokens", "2T"],
            Unsupported,
            "bert-base-uncased: the published laws",
        ),
    ):
        refused = CliRunner().invoke(app, arguments).exception
        assert type(refused) is kind
        assert said in str(refused)
    table = CliRunner().invoke(app, ["estimate", "--table", "x.csv", "--out", "y.csv", "--train-tokens", "2T"])
    assert table.exit_code == 2
    assert "--train-tokens" in table.output
