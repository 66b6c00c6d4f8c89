"""The record that describes a kind of model; each kind's folder makes one, and ``kinds/table.py`` lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from chipwise.errors import Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.lowering import Operators
from chipwise.model.blocks.weights import Shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A kind of model that chipwise builds, by what it reads and makes.

    Attributes:
        name: What messages call such a model.
        matches: Whether a model is of this kind, whether all of it is built or not.
        weights: Names and shapes of the weights before the layers, and of those behind them.
        operators: What tells its operators from another kind's; None where none are listed.
        graph: The module of ``chipwise.model.kinds`` that makes ONNX nodes of it.
        as_run: The model without the layers that nothing reads.
        departures: Half a sentence for each block or field of a model with which it is not built as this kind.
        task: The task of a run file whose data trains it, if any does.
        does: What it reads and makes, in words.
        untrained: Why chipwise trains none, where there is no task; empty for what departs from it.
    """

    name: str
    matches: Callable[[ArchSpec], bool]
    departures: Callable[[ArchSpec], Iterator[str]]
    does: Callable[[ArchSpec], str]
    weights: tuple[Callable[[ArchSpec], Shapes], Callable[[ArchSpec], Shapes]]
    graph: str
    operators: Operators | None = None
    as_run: Callable[[ArchSpec], ArchSpec] = lambda arch: arch
    task: Callable[[ArchSpec], str] | None = None
    untrained: str = ""

    def builds(self, arch: ArchSpec) -> bool:
        """Whether chipwise builds ``arch`` as this kind."""
        return next(self.departures(arch), None) is None

    def require(self, arch: ArchSpec, *, work: str) -> None:
        """Checks that chipwise builds ``arch`` as this kind.

        Args:
            arch: The model.
            work: What was requested, for the error message ("exported to ONNX").

        Raises:
            Unsupported: It does not; names the block or field, and where it stands.
        """
        found = next(self.departures(arch), None)
        if found is not None:
            raise Unsupported(f"{arch.name} cannot be {work}: {found}; chipwise estimate prices it all the same")
