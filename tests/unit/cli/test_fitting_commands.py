"""``fit``, ``validate`` and ``ops`` are commands of chipwise-fitting: its own where it is installed, else one line."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from chipwise.cli import fitting
from chipwise.errors import ChipwiseError

NAMES = ("fit", "validate", "ops")


@pytest.mark.parametrize("name", NAMES)
def test_the_package_brings_the_command(name: str) -> None:
    assert fitting.command(name).__module__ == f"chipwise_fitting.cli.{name}"


@pytest.mark.parametrize("name", NAMES)
def test_without_the_package_any_arguments_end_in_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "find_spec", lambda package: None)
    app = typer.Typer()
    app.command(name, context_settings=fitting.ANYTHING)(fitting.command(name))
    app.command("other")(lambda: None)
    done = CliRunner().invoke(app, [name, "gemm", "--truth", "nowhere", "-x"])
    assert isinstance(done.exception, ChipwiseError)
    assert str(done.exception).endswith("pip install ./fitting")
