"""A search without training: a scaling law ranks the designs, and the best one gets a training plan.

The token budget in the run file is the number of training tokens of the chosen design. A limit is met if the target's
prediction is within it with the run's confidence. The reference design is the design with Llama's proportions that has
the lowest expected loss within the same limits, so any gain over it is due to the shape, not the size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from chipwise.core.digest import plain
from chipwise.core.files import write_json
from chipwise.core.record import Record
from chipwise.design.limits import Constraint
from chipwise.design.phases.by_law import DRAWS, LOSS, FoundByLaw, search_by_law
from chipwise.design.phases.finals import promises_of
from chipwise.design.phases.kit_return import record
from chipwise.design.phases.run_record import make_record
from chipwise.design.phases.stored_run import StoredRun
from chipwise.design.phases.training_plan import training_plan, write_training_plan
from chipwise.design.phases.widening import Found, widened
from chipwise.design.report.record import RunRecord
from chipwise.design.run.folder import PROMISES, RunFolder
from chipwise.design.run.progress import Observer, Status
from chipwise.design.run.spec import EXPECTED_LOSS, RunSpec
from chipwise.design.targets.chance import Bounds, kept
from chipwise.design.targets.target import Target, limits_on_predictions, open_target
from chipwise.errors import ChipwiseError, Infeasible
from chipwise.model.arch import io
from chipwise.model.arch.design import Design
from chipwise.model.published.write import to_config
from chipwise.model.space.designs import design_of, summary
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.predict.explain.rules.change import columns_of_tile
from chipwise.training.laws.law_fit import read_trainings, updated
from chipwise.training.laws.laws import Law, shipped
from chipwise.training.tasks.references import llama_proportions

RATIOS = (24, 32, 48, 64, 96, 128)  # width over depth of reference designs; see training/tasks/text/references.py
FEWER_DRAWS = 20_000  # random candidates when only testing whether a wider space pays
MOST_TRIALS = 24  # most designs of the front to record, best first


class LawRun(StoredRun):
    """Runs a search by a scaling law in the run's folder.

    Args:
        spec: The run; its quality method is ``law``.
        folder: The run's folder, open.
        observer: Called on every change.
    """

    def __init__(self, spec: RunSpec, folder: RunFolder, observer: Observer) -> None:
        super().__init__(spec, folder, observer, Status(workers=1))
        self.tokens = spec.budget.total

    def run(self) -> RunRecord:
        """Searches, unless a result is stored already; then writes the winner, its training plan and the report.

        If the search fails before it has recorded a design, the folder is left without a run.

        Raises:
            Infeasible: No design is predicted to meet the limits with the run's confidence.
        """
        try:
            self._phase("preparing the target")
            if self.spec.widen == "auto" and "widened" not in self.study.memory and not self.trials.all():
                self._widen_by_law()
            target = open_target(self.spec, self.space, self.folder)
            target.learn(self.trials.measured())
            if "winner" not in self.study.memory:
                self._search(target, self._law())
            else:
                self._take_results(target)
        except ChipwiseError:
            if not self.trials.all():
                self.folder.withdraw()
            raise
        self._phase("report")
        self.study.remember(spent=self.ledger.save())
        found = make_record(self.spec, self.study, self.trials, self.space, self.folder, target)
        self.write(found)
        self._observer(self.status)
        return found

    def _take_results(self, target: Target) -> None:
        """Records a kit's measurements, updates the target, and chooses again among the recorded designs."""
        notes = self.kit_notes(target)
        if not notes:
            return
        self._phase("reading the kit's results")
        record(self.trials, target, notes)
        limits = (*self.spec.limits, *target.limits)
        good = [
            item
            for item in self.trials.all()
            if item.alive
            and not item.is_reference
            and kept(limits, item.notes.believed_now, item.measured or {}, self.spec.confidence_share)
        ]
        winner = min(good, key=lambda item: (item.costs[EXPECTED_LOSS], item.number), default=None)
        number = Record(self.study.memory).get("winner", int) if winner is None else winner.number
        self._phase("planning the training")
        law, facts = self._law(), Record(self.study.memory)
        self._write_winner(number, law)
        held = {**facts.record("law").data, "change": self._change(number, facts.get("baseline", int, None), law)}
        self.study.remember(winner=number, law=held)

    def _change(self, winner: int, reference: int | None, law: Law) -> dict[str, float] | None:
        """The winner's expected loss minus the reference design's, with an interval; None without a reference."""
        if reference is None:
            return None
        found: dict[str, float] = plain(
            law.difference(self.trials[reference].design, self.trials[winner].design, self.tokens)
        )
        return found

    def _law(self) -> Law:
        """The bundled law, updated with the user's own training runs if there are any."""
        own = self.spec.quality.law
        if own is None:
            return shipped()
        path = Path(self.spec.folder) / own
        return updated(shipped(), read_trainings(path), source=str(own))

    def _widen_by_law(self) -> None:
        """Widens the run's space if the designs that the law finds best lie at its edge."""
        law = self._law()

        def best(wider: SpaceSpec) -> Found:
            space = SearchSpace(wider)
            self._phase("searching by law" if wider == self.spec.space else "searching a wider space")
            target = open_target(replace(self.spec, space=wider), space, self.folder)
            found = self._by_law(space, target, law, draws=FEWER_DRAWS)
            return space.choices(found.rows[0]), float(found.metrics[LOSS][0])

        added, gain = widened(self.spec.space, best, tile=columns_of_tile(self.spec.target.sheet, "bf16"))
        self.study.remember(widened=added, widened_gain=gain)
        self.widen(added)

    def _by_law(self, space: SearchSpace, target: Target, law: Law, *, draws: int = DRAWS) -> FoundByLaw:
        spec = self.spec
        tight = limits_on_predictions(spec, space, target)
        goals = [goal for goal in spec.goals if goal.metric != EXPECTED_LOSS]
        return search_by_law(
            space,
            target.metrics,
            law,
            tokens=self.tokens,
            constraints=tight,
            objectives=goals,
            seed=spec.seed,
            draws=draws,
        )

    def _search(self, target: Target, law: Law) -> None:
        limits = (*self.spec.limits, *target.limits)
        self._phase("searching by law")
        found = self._by_law(self.space, target, law)
        self.status.priced = found.priced
        best = self._record(found, target, limits)
        self._phase("choosing the reference design")
        reference = self._reference(target, law, limits)
        self._phase("planning the training")
        self._write_winner(best, law)
        change = self._change(best, reference, law)
        self.study.remember(
            screened={"priced": found.priced},
            law={"source": law.source, "tokens": self.tokens, "notes": list(found.notes), "change": change},
            winner=best,
            baseline=reference,
        )

    def _record(self, found: FoundByLaw, target: Target, limits: tuple[Constraint, ...]) -> int:
        """Records those designs of the front whose full estimate meets the limits; returns the best one's trial number.

        Designs that are already recorded, for example from an interrupted search, are not recorded again.
        """
        known = {item.row: item for item in self.trials.all()}
        fast = np.linspace(0, len(found.rows) - 1, MOST_TRIALS).round().astype(int)
        recorded: dict[int, None] = {}  # trial numbers, best first
        for place in [*range(min(8, len(found.rows))), *fast]:
            row = found.rows[place]
            held = known.get(tuple(int(i) for i in row))
            predicted = target.predict(self.space.design(row))
            if not kept(limits, predicted, (held and held.measured) or {}, self.spec.confidence_share):
                continue
            if held is None and len(recorded) < MOST_TRIALS:
                loss = found.loss(place)
                costs: dict[str, Bounds] = {**predicted, EXPECTED_LOSS: [loss.value, loss.low, loss.high]}
                number = self.trials.add(row, predicted=costs)
                self._close(number, costs)
                held = self.trials[number]
                known[held.row] = held
            if held is not None:
                recorded[held.number] = None
        if not recorded:
            raise Infeasible(
                f"no design of the space is predicted to meet the limits with {self.spec.confidence} confidence; "
                "loosen a limit or lower the confidence"
            )
        return next(iter(recorded))

    def _reference(self, target: Target, law: Law, limits: tuple[Constraint, ...]) -> int | None:
        """The design with Llama's proportions that has the lowest expected loss within the limits.

        Among designs of equal proportions, costs grow with size, so bisection finds the largest one within the limits.
        """
        before = [item for item in self.trials.all() if item.is_reference]
        if known := [item.number for item in before if not item.notes.earlier]:
            return known[0]
        best: tuple[float, Mapping[str, object], dict[str, Bounds]] | None = None
        for family in _families(self.spec.space):
            low, high = -1, len(family)  # indices: largest known to be within the limits, smallest known to be beyond
            found: dict[int, dict[str, Bounds]] = {}
            while high - low > 1:
                middle = (low + high) // 2
                design = design_of(family[middle], spec=self.spec.space, name="baseline")
                found[middle] = target.predict(design)
                if kept(limits, found[middle], {}, self.spec.confidence_share):
                    low = middle
                else:
                    high = middle
            if low < 0:
                continue
            design = design_of(family[low], spec=self.spec.space, name="baseline")
            loss = law.loss(design, self.tokens)
            if best is None or loss.value < best[0]:
                best = loss.value, family[low], {**found[low], EXPECTED_LOSS: [loss.value, loss.low, loss.high]}
        if best is None:
            return None
        _, choices, costs = best
        design = design_of(choices, spec=self.spec.space, name="baseline")
        if same := [item.number for item in before if item.design == design]:
            self.trials.note(same[0], earlier=False)
            return same[0]
        number = self.trials.add_reference(choices, predicted=costs)
        self._close(number, costs)
        return number

    def _close(self, number: int, costs: Mapping[str, Bounds]) -> None:
        values = {metric: bounds[0] for metric, bounds in costs.items()}
        self.study.finish(number, tuple(float(values[goal.metric] or 0.0) for goal in self.spec.goals))

    def _write_winner(self, number: int, law: Law) -> None:
        """Writes the winner's design, configuration and expected results, and the plan and script for its training."""
        item, folder = self.trials[number], self.folder.winner
        folder.mkdir(parents=True, exist_ok=True)
        io.save(item.design.arch, folder / "model.json")
        try:
            write_json(folder / "config.json", to_config(item.design.arch))
        except ChipwiseError:  # transformers has no config for this design
            (folder / "config.json").unlink(missing_ok=True)
        promises = promises_of(self.spec, item) | {"trained": False}
        write_json(folder / PROMISES, promises)
        self._plan(item.design, law)

    def _plan(self, design: Design, law: Law) -> None:
        wanted = self.spec.quality
        plan = training_plan(
            design, device=wanted.plan_device, devices=wanted.plan_devices, tokens=self.tokens, law=law
        )
        write_training_plan(design, self.folder.winner, plan)
        self.study.remember(plan={"headline": plan.headline(), "rows": plan.rows(), "design": summary(design)})

    def _phase(self, name: str) -> None:
        self.ledger.begin(name)
        self.status.phase, self.status.detail = name, ""
        self._observer(self.status)


def _families(space: SpaceSpec) -> list[list[Mapping[str, object]]]:
    """Designs with Llama's proportions sorted by size, grouped by proportions (depth, heads, sharing, format)."""
    found: dict[tuple[object, ...], list[Mapping[str, object]]] = {}
    for choices in llama_proportions(space):
        layer = choices["layers"][0]
        width, depth = choices["d_model"], choices["depth"]
        ratio = min(RATIOS, key=lambda each: abs(width / depth - each))
        if depth != max(1, round(width / ratio)):
            continue
        sharing = layer["heads"] // layer["kv_heads"]
        found.setdefault((ratio, choices["head_size"], sharing, choices["weights"], choices["vocab_size"]), []).append(
            choices
        )
    return list(found.values())
