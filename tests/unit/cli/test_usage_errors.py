"""Options and arguments that are wrong end in one line that names them, whatever typer's parsers call the mistake."""

from __future__ import annotations

import sys

import pytest

from chipwise.cli import main


def ends(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str]:
    """Exit code and complaint of the command line."""
    monkeypatch.setattr(sys, "argv", ["chipwise", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("estimate gpt2 --batch 0", "--batch: must be at least 1, not 0 (see chipwise estimate --help)"),
        ("estimate gpt2 --batch x", "--batch: must be a whole number, not 'x' (see chipwise estimate --help)"),
        ("estimate gpt2 --batch 1.5", "--batch: must be a whole number, not 1.5 (see chipwise estimate --help)"),
        ("calibrate --minutes x", "--minutes: must be a number, not 'x' (see chipwise calibrate --help)"),
        ("estimate gpt2 --devic l4", "there is no option --devic; did you mean '--device'? (see chipwise estimate"),
        ("estimate gpt2 --train --batch 8", "there is no option --train; chipwise training-step has it (see chipwise"),
        ("estimate sdxl --steps 3", "there is no option --steps; chipwise pictures has it (see chipwise estimate"),
        ("estimate vit --part encoder", "there is no option --part; chipwise parts has it (see chipwise estimate"),
        ("estimate r --candidates 1,8", "there is no option --candidates; chipwise candidates --counts has it (see"),
        ("estimate gpt2 --batch", "option '--batch' requires an argument"),
        ("explain", "the argument MODEL is missing (see chipwise explain --help)"),
        ("evaluate folder", "the option --task is missing (see chipwise evaluate --help)"),
        ("estmate gpt2", "there is no command 'estmate'; did you mean 'estimate'"),
        ("quantise gpt2", "there is no command 'quantise'; did you mean 'quantize'? (see chipwise --help)"),
        ("convert gpt2", "there is no command 'convert'; did you mean 'export'? (see chipwise --help)"),
        ("recommend gpt2", "there is no command 'recommend'; did you mean 'compare'?"),
        ("bench gpt2", "there is no command 'bench'; did you mean 'measure'?"),
        ("serv gpt2", "there is no command 'serv'; did you mean 'serve'?"),
        ("run gpt2", "there is no command 'run'; did you mean 'measure' or 'search'?"),
        ("devices shw", "there is no command 'shw'; "),
        ("search a b c", "this command takes no further arguments: b c (see chipwise search --help)"),
        (
            "compare gpt2 --device ,",
            "--device is empty; give devices, such as --device a100-sxm-80gb,l4, or --device all (see chipwise compare "
            "--help)",
        ),
        ("estimate gpt2 --train-tokens x", "--train-tokens: 'x' is not a quantity; write a number and a unit"),
        ("estimate gpt2 --train-tokens -1", "--train-tokens: must be more than 0, not -1"),
        ("measure gpt2 --sustained x", "--sustained: 'x' is not a quantity; write a number and a unit, such as 900 s"),
        ("explain gpt2 --train-tokens nan", "--train-tokens: 'nan' is not a quantity"),
    ],
)
def test_the_option_is_named_on_one_line(line: str, said: str, monkeypatch, capsys) -> None:
    code, complaint = ends(monkeypatch, capsys, *line.split())
    assert code == 2
    assert complaint.startswith(f"error: {said}")
    assert complaint.count("\n") == 1


def test_a_choice_that_does_not_exist_lists_the_choices(monkeypatch, capsys) -> None:
    code, complaint = ends(monkeypatch, capsys, "fit", "--from", "thin-air")
    assert (code, complaint.count("\n")) == (2, 1)
    assert complaint.startswith("error: --from: 'thin-air' is not one of 'aiconfigurator', ")


def test_no_command_shows_the_help(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["chipwise"])
    with pytest.raises(SystemExit) as end:
        main()
    shown = capsys.readouterr()
    assert end.value.code in (0, 2)
    assert "Usage: chipwise" in shown.out + shown.err


def test_a_command_that_succeeds_exits_with_0(monkeypatch, capsys) -> None:
    assert ends(monkeypatch, capsys, "--version")[0] in (0, None)
    assert ends(monkeypatch, capsys, "strategies")[0] in (0, None)
