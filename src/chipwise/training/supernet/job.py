"""The training of a supernet as a job for a worker process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from chipwise.core.digest import plain
from chipwise.core.files import build
from chipwise.core.record import Record
from chipwise.errors import InputError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.io import from_data, to_data
from chipwise.training.data.tokens import load_tokens
from chipwise.training.loop.progress import Update


@dataclass(frozen=True, slots=True, kw_only=True)
class SupernetJob:
    """A job: the training of weights that ``archs`` share. Designs listed several times are trained more often."""

    archs: tuple[ArchSpec, ...]
    tokens: tuple[str, ...]  # files that a TokenStore wrote, one for every vocabulary size
    folder: str  # folder for the run's state and weights
    cpu_budget_s: float
    seed: int
    recipe: Mapping[str, object] = dataclasses.field(default_factory=dict)  # fields of SupernetRecipe to change

    def to_data(self) -> dict[str, object]:
        """The job as JSON values; each design is stored only once."""
        fields = {f.name: plain(getattr(self, f.name)) for f in dataclasses.fields(self) if f.name != "archs"}
        different = list(dict.fromkeys(self.archs))
        place = {arch: i for i, arch in enumerate(different)}
        order = [place[arch] for arch in self.archs]
        archs = [to_data(arch) for arch in different]
        return {"kind": "supernet", **fields, "archs": archs, "order": order}

    @classmethod
    def from_data(cls, data: Mapping[str, object]) -> SupernetJob:
        """Reads the output of :meth:`to_data`.

        Raises:
            InputError: The data is not a supernet job.
        """
        record = Record.of(data)
        archs = [from_data(arch.data) for arch in record.records("archs")]
        try:
            chosen = tuple(archs[number] for number in record.sequence("order", int))
        except IndexError:
            raise InputError(
                "not a job that trains shared weights: ``order`` names designs that are not listed"
            ) from None
        fields = {name: value for name, value in data.items() if name != "order"}
        return dataclasses.replace(build(cls, {**fields, "archs": ()}), archs=chosen)

    def run(self, on_progress: Callable[[Update], None]) -> dict[str, object]:
        """Trains the supernet; returns the result as JSON values, without the supernet's architecture."""
        from chipwise.training.supernet.trainer import SupernetRecipe, train_supernet

        texts = [load_tokens(path) for path in self.tokens]
        result = train_supernet(
            self.archs,
            {text.vocab_size: text for text in texts},
            cpu_budget_s=self.cpu_budget_s,
            seed=self.seed,
            folder=self.folder,
            recipe=build(SupernetRecipe, self.recipe, field="recipe"),
            on_progress=on_progress,
        )
        values: dict[str, object] = plain(result)
        del values["whole"]
        return values
