"""The expected loss after training with its interval, printed together with the model's cost."""

from __future__ import annotations

from collections.abc import Sequence

from chipwise import api
from chipwise.api import answers
from chipwise.cli.output import console
from chipwise.core.digest import plain
from chipwise.core.units import parse_field
from chipwise.errors import SpecError

HELP = "Also predict the loss after training on this many tokens, such as 2T (published scaling law)."


def check_tokens(text: str | None) -> str | None:
    """Parses the value of --train-tokens.

    Raises:
        SpecError: The text is not a positive number of tokens.
    """
    if text is not None and not parse_field(text, "count", "--train-tokens") > 0:
        raise SpecError(f"must be more than 0, not {text}", field="--train-tokens")
    return text


def with_quality(data: object, model: str | api.ArchSpec, tokens: str | None) -> object:
    """Returns ``data`` as JSON values, with the expected loss added if tokens are given."""
    if tokens is None:
        return data

    fields = plain(data)
    fields = fields if isinstance(fields, dict) else {"devices": fields}
    return fields | {"quality": plain(api.quality(model, tokens=tokens))}


def print_quality(model: str | api.ArchSpec, tokens: str | None, *, advice: Sequence[answers.Advice] = ()) -> None:
    """If tokens are given, prints the expected loss of the model, and how each piece of advice changes this loss."""
    if tokens is None:
        return

    found = api.quality(model, tokens=tokens)
    console.print(f"loss after {tokens} tokens: {found}", highlight=False, markup=False)
    for note in found.notes:
        console.print(f"note: {note}", highlight=False, markup=False)
    for number, each in enumerate(advice, start=1):
        changed = each.proposal.changed.arch
        if isinstance(model, str) or changed == model:
            continue
        change = answers.published_change(model, changed, tokens=found.tokens)
        console.print(
            f"  advice {number} changes the loss by {change.value:+.3f} [{change.low:+.3f}, {change.high:+.3f}]",
            highlight=False,
            markup=False,
        )
