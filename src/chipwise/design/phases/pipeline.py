"""One search, phase by phase: data, calibration, screening, training, measurements, winner, report."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from chipwise.core.digest import digest, plain
from chipwise.core.record import Record
from chipwise.design.limits import Constraint
from chipwise.design.phases import supernet_prior
from chipwise.design.phases.choosing import Chooser
from chipwise.design.phases.finals import Finals
from chipwise.design.phases.findings import explain_answer
from chipwise.design.phases.going_on import seed_of
from chipwise.design.phases.halving import Halving, Propose, Rung
from chipwise.design.phases.kit_return import record
from chipwise.design.phases.limits import as_good_but_faster, no_slower_than, penalty_factor, traded, with_headroom
from chipwise.design.phases.measurement_choice import measure_front
from chipwise.design.phases.measuring import CandidateMeasurer
from chipwise.design.phases.other_devices import AcrossDevices, OtherDevices
from chipwise.design.phases.reference_design import largest_within, reference_designs
from chipwise.design.phases.run_budget import RunBudget
from chipwise.design.phases.run_record import make_record
from chipwise.design.phases.screening import DRAWS, Metrics, Screened, loosened, screen
from chipwise.design.phases.stored_run import StoredRun
from chipwise.design.phases.strategy_proposer import StrategyProposer
from chipwise.design.phases.supernet_prior import Supernet, designs_to_score
from chipwise.design.phases.task_evaluation import TaskEvaluation, bag_of_words, load_tasks
from chipwise.design.phases.training_pace import known_pace, measure_pace
from chipwise.design.phases.trainings import Trainings, charged
from chipwise.design.phases.widening import Found, widened
from chipwise.design.report.record import RunRecord, save
from chipwise.design.run.folder import RunFolder
from chipwise.design.run.past import Known, known_before, store_trainings
from chipwise.design.run.progress import Observer, Status
from chipwise.design.run.spec import RunSpec
from chipwise.design.run.trials import Candidate
from chipwise.design.targets.local import least_calibration_s
from chipwise.design.targets.target import Target, limits_on_predictions, open_target
from chipwise.errors import ChipwiseError, OutOfReach
from chipwise.model.arch.design import Design
from chipwise.model.space.designs import summary
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.predict.explain.rules.change import columns_of_tile
from chipwise.training.tasks.protocol import TaskData
from chipwise.training.trainers.protocol import Setup, Trainer, open_trainer

ALONE_DRAWS = 50_000  # random candidates to screen in a run that trains one model; references already show most
REMEMBERED_S = 1.0  # CPU seconds between two saves of what was spent


@dataclass(frozen=True)
class Priced:
    """A run's space with the functions that predict costs, and the candidates within the limits."""

    space: SearchSpace
    others: OtherDevices
    target: Target
    metrics: Metrics
    limits: tuple[Constraint, ...]
    screened: Screened


@dataclass(frozen=True)
class Prepared:
    """Results of the preparation of a search."""

    data: TaskData
    tasks: TaskEvaluation | None
    target: Target
    measurer: CandidateMeasurer
    chooser: Chooser
    references: Sequence[Candidate]
    limits: tuple[Constraint, ...]
    plan: tuple[Rung, ...]


class Search(StoredRun):
    """Runs a search in its folder. Every decision depends only on the study, so a search can be resumed.

    Args:
        spec: The run.
        folder: The run's folder, open.
        observer: Called on every change.
    """

    def __init__(self, spec: RunSpec, folder: RunFolder, observer: Observer) -> None:
        allowed = self.allowance = spec.allowance
        metric = spec.task_settings.metric
        status = Status(unit=allowed.unit, budget=allowed.total, workers=spec.budget.workers, metric=metric)
        super().__init__(spec, folder, observer, status)
        self.budget = RunBudget(spec, self.trials, self.ledger)
        self.target: Target | None = None  # None until it is open

    def run(self) -> RunRecord:
        """Runs all phases that are not finished yet; returns the record of the finished run.

        A search that fails before its calibration and first trial leaves no run in its folder. If the winner of a
        finished run does not meet the limits, the finalists are measured again.
        """
        try:
            if "winner" not in self.study.memory or "unmet" in self.study.memory:
                self._search(open_trainer(self._setup))
            else:
                self._take_results()
            return self.report()
        except BaseException as error:
            if isinstance(error, ChipwiseError) and not self.trials.all() and not self.folder.profile.exists():
                self.folder.withdraw()
            else:
                self._save_partial(error)
            raise

    def _search(self, trainer: Trainer) -> None:
        self.study.forget("stopped")
        with trainer:
            ready = self._prepare()
            halving = self._halving(ready, trainer)
            finalists, reference = self._finalists(ready, halving)
            finals = self._finals(
                ready.data, ready.target, tasks=ready.tasks, left_s=lambda: self.budget.left_for_finals_s
            )
            winner = finals.decide(finalists, reference, halving.spare(finalists))
            if finals.met:
                winner, reference = self._fair_reference(ready, halving, finals, winner, reference)
        self._score(finals, winner, reference)
        finals.write_winner(self.trials[winner.number])
        for item in self.trials.all():
            if item.trial.state == "running":
                self._close(item)
        self._explain(ready, halving, winner)
        self.study.remember(
            winner=winner.number,
            baseline=None if reference is None else reference.number,
            unmet=None if finals.met else True,
        )
        try:
            store_trainings(self.spec, ready.data, self.trials.all())
        except ChipwiseError as error:  # the run itself is complete
            self.study.remember(not_stored=f"this run's training runs are not stored for later searches: {error}")

    def _take_results(self) -> None:
        """Records a kit's measurements in a finished run, corrects the predictions, and chooses the winner again."""
        notes = self.kit_notes(target := self._opened())
        if target is None or not notes:
            return
        self._phase("reading the kit's results")
        record(self.trials, target, notes)
        finals = self._finals(self._read_data(), target)
        number = Record(self.study.memory).get("baseline", int, None)
        reference = None if number is None else self.trials[number]
        good = [
            item
            for item in self.trials.all()
            if item.notes.exported_loss is not None and not item.is_reference and finals.keeps_limits(item)
        ]
        former = self.trials[Record(self.study.memory).get("winner", int)]
        winner = finals.best(good, reference) if good else former
        if winner.number != former.number:
            self._score(finals, winner, reference)
        finals.write_winner(self.trials[winner.number])
        self.study.remember(winner=winner.number)

    def _finals(
        self,
        data: TaskData,
        target: Target,
        *,
        tasks: TaskEvaluation | None = None,
        left_s: Callable[[], float] = lambda: math.inf,
    ) -> Finals:
        return Finals(
            self.trials,
            self.spec,
            self.folder,
            data,
            target,
            tasks=tasks,
            others=self.others,
            penalty_factor=penalty_factor(self.spec, self.others.predict),
            on_phase=self._phase,
            left_s=left_s,
        )

    def _read_data(self) -> TaskData:
        """Opens the data of the task."""
        self._phase("reading data")
        spec = self.spec
        return spec.task_settings.open(spec.data, base=Path(spec.folder), folder=self.folder.corpus, space=spec.space)

    def _score(self, finals: Finals, winner: Candidate, reference: Candidate | None) -> None:
        """Scores winner and reference design on test data, and stores examples of their outputs."""
        self.study.remember(test=finals.test(winner, reference), samples=finals.samples(winner, reference))

    def _prepare(self) -> Prepared:
        """Prepares the data, calibrates, screens candidates, chooses reference designs, and plans training."""
        self.budget.require(ahead_s=least_calibration_s(self.spec, self.folder))
        data = self._read_data()
        tasks = load_tasks(self.spec)
        data.prepare()
        self.study.remember(data=dict(data.summary()))
        priced = self._priced(self.spec)
        if self.allowance.alone:
            self._phase("timing a training step")
            measure_pace(self.study, self.spec, self.folder, data)
        if self.spec.widen == "auto" and "widened" not in self.study.memory and not self.trials.all():
            priced = self._widened(priced, data)
        past, others, target = self._past(data), priced.others, priced.target
        self.others, self.target = others, target
        spec = self.spec = target.with_sustained_limits(self.spec)
        measurer = CandidateMeasurer(self.trials, spec, self.folder, target, on_progress=self._detail)
        self._remember_screened(priced.screened)
        self._phase("choosing the reference design")
        alone, pace = self.allowance.alone, spec.task_settings.latency_metric
        loss = self._chooser(priced, data, past).law_of if alone else None  # only the best of them is built upon
        references = reference_designs(self.trials, spec, target, measurer=measurer, others=others, loss=loss)
        if alone:
            limits = with_headroom(priced.limits) if target.measures else priced.limits
        else:
            paces = no_slower_than(references, spec.limits, measured=target.measures, pace=pace)
            limits = (*priced.limits, *paces)
        chooser = self._chooser(replace(priced, limits=limits), data, past)
        if alone:
            usual = spec.task_settings.references(spec.space)
            before = Record(self.study.memory).sequence("centre", int)  # later measurements change predictions
            choices = [item.notes.choices for item in references]
            centre = chooser.stay_around(choices, usual, traded=traded(spec), before=before)
            self.study.remember(centre=[] if centre is None else centre[0].tolist())
        if spec.quality.chosen == "proxy":  # without short training, only the law can choose the reference design
            references = sorted(references, key=lambda item: chooser.law_of(item.notes.choices))[:1]
        self.budget.set_aside(target, tasks)
        evaluation = TaskEvaluation(spec, tasks, self.trials, self.folder, on_progress=self._detail)
        if tasks:
            self._phase("evaluating tasks")
            known = Record(self.study.memory).record("bars").data
            self.study.remember(bars=bag_of_words(tasks, known, on_progress=self._detail))
        return Prepared(
            data=data,
            tasks=evaluation if tasks else None,
            target=target,
            measurer=measurer,
            chooser=chooser,
            references=references,
            limits=limits,
            plan=self.budget.plan(references),
        )

    def _priced(self, spec: RunSpec, *, wider: bool = False) -> Priced:
        """Opens the run's target, predicts costs in the space of ``spec``, and screens for candidates within limits."""
        space = SearchSpace(spec.space)
        others = OtherDevices(spec, space)
        self._phase("screening a wider space" if wider else "calibrating")
        target = open_target(spec, space, self.folder, self._calibrated)
        self.budget.require()
        spec = target.with_sustained_limits(spec)
        if not wider:
            self._phase("screening")
        across = AcrossDevices(spec, space, others, target.metrics) if spec.targets else None
        metrics = target.metrics if across is None else across.metrics
        limits = (*limits_on_predictions(spec, space, target), *others.limits_on_rows())
        draws = ALONE_DRAWS if self.allowance.alone else DRAWS
        try:
            screened = screen(space, metrics, limits, seed=spec.seed, draws=draws)
        except OutOfReach as error:
            if not any(item.rungs for item in self._candidates()):
                raise
            limits = loosened(limits, error.beyond)  # so that the search ends with the closest design
            screened = screen(space, metrics, limits, seed=spec.seed, draws=draws)
        return Priced(space, others, target, metrics, limits, screened)

    def _widened(self, priced: Priced, data: TaskData) -> Priced:
        """Widens the run's space if the designs that the law finds best lie at its edge; returns the space to use."""
        found = {digest(plain(self.spec.space)): priced}

        def priced_once(space: SpaceSpec) -> Priced:
            if (key := digest(plain(space))) not in found:
                found[key] = self._priced(replace(self.spec, space=space), wider=True)
            return found[key]

        def best(space: SpaceSpec) -> Found:
            one = priced_once(space)
            rows = one.screened.rows
            chooser = self._chooser(one, data, known_before(self.spec, one.space, data))
            loss = chooser.law(rows) * chooser.penalty_factor(rows)
            return one.space.choices(rows[loss.argmin()]), float(loss.min())

        added, gain = widened(self.spec.space, best, tile=columns_of_tile(self.spec.target.sheet, "bf16"))
        self.study.remember(widened=added, widened_gain=gain)
        if added:
            self.widen(added)
            self.budget = RunBudget(self.spec, self.trials, self.ledger)
        return priced_once(self.spec.space)

    def _chooser(self, priced: Priced, data: TaskData, past: Sequence[Known]) -> Chooser:
        return Chooser(
            priced.space,
            priced.screened,
            priced.metrics,
            self.spec.goals,
            priced.limits,
            final=self.allowance.final,
            in_tokens=self.allowance.unit == "tokens",
            bytes_per_token=lambda rows: data.bytes_per_token(priced.space, rows),
            unique_bytes=Record(data.summary()).get("bytes_train", float, math.inf),
            law=self.spec.task_settings.law,
            operators=self.spec.operators,
            pace=known_pace(self.study),
            past=past,
            seed=self.spec.seed,
        )

    def _past(self, data: TaskData) -> list[Known]:
        """Training runs of earlier searches on the same data that were stored when this run began."""
        if "past" not in self.study.memory:
            self.study.remember(past=[[list(row), *rest] for row, *rest in known_before(self.spec, self.space, data)])
        kept = Record(self.study.memory).sequence("past", list[Any])
        return [(tuple(row), tokens, loss) for row, tokens, loss in kept]

    def _calibrated(self, detail: str) -> None:
        """Shows the progress of calibration; stops it when too little budget would be left for training."""
        self._detail(detail)
        self.budget.require()

    def _finalists(self, ready: Prepared, halving: Halving) -> tuple[list[Candidate], Candidate | None]:
        """Finalists and reference design; those of an interrupted search are kept."""
        if known := Record(self.study.memory).sequence("finalists", list[int]):
            finalists, reference = ([self.trials[number] for number in part] for part in known)
            return finalists, reference[0] if reference else None
        trained = () if self.allowance.alone else ready.references  # one model gets the whole budget
        halving.explore(trained)
        if not (self.allowance.alone and len(ready.plan) == 1):  # if so, the only design is measured already
            self._measure_candidates(ready)
        finalists, best = halving.promote(trained)
        if best is None:
            best = self._earlier_reference(ready)
        kept = [item.number for item in finalists], [] if best is None else [best.number]
        self.study.remember(finalists=kept)
        return finalists, best

    def _earlier_reference(self, ready: Prepared) -> Candidate | None:
        """The largest reference design within the limits that was trained in full before the run was resumed.

        Looser limits may require a larger reference design, which the remaining budget may be too small to train.
        """
        good = [
            item
            for item in self.trials.all()
            if item.is_reference
            and item.alive
            and item.trained_to(len(ready.plan) - 1)
            and ready.measurer.within_limits(item)
        ]
        return max(good, key=lambda item: item.design.arch.parameters(), default=None)

    def _halving(self, ready: Prepared, trainer: Trainer) -> Halving:
        """Sets up successive halving, after training the supernet if the run uses one."""
        spec, chooser, target = self.spec, ready.chooser, ready.target
        self._supernet(chooser, ready.data, trainer)
        propose: Propose | None = None
        if spec.search.strategy != "auto":
            propose = StrategyProposer(spec.search.strategy, chooser, seed=spec.seed)
        elif spec.quality.chosen == "proxy":
            propose = chooser.propose_by_law
        return Halving(
            self.trials,
            ready.plan,
            chooser=chooser,
            trainer=Trainings(
                trainer,
                self.folder,
                ready.data,
                seed=seed_of(self.study, spec),
                allowance=self.allowance,
                train=spec.train,
                workers=spec.budget.workers,
                on_progress=self._show_trainings,
            ),
            measurer=ready.measurer,
            predict=lambda row: target.predict(self.space.design(row[0])),
            workers=spec.budget.workers,
            propose=propose,
            on_phase=self._phase,
            penalty_factor=penalty_factor(spec, self.others.predict),
            allowance=self.allowance,
            left=lambda: self.budget.left,
            kept=lambda item: self.budget.kept_for(self._forms(item, chooser), target),
            faster=lambda items, best, loss: as_good_but_faster(
                spec, items, best, loss=loss, seconds=lambda item: item.costs.get(spec.task_settings.latency_metric)
            ),
        )

    def _forms(self, item: Candidate, chooser: Chooser) -> list[Design]:
        """A candidate in each weight format in which it is predicted to meet the limits."""
        others = chooser.in_other_formats(item.row or (), ("weights",))
        return [item.design, *(self.space.design(tuple(row)) for row in others.tolist())]

    def _measure_candidates(self, ready: Prepared) -> None:
        """Before promotions, measures all candidates that were trained, or those along the front."""
        spec = self.spec
        if not ready.target.measures:
            return
        for item in self.trials.all():
            if item.alive and item.measured is not None and item.notes.within is None:
                ready.measurer.within_limits(item)
        if spec.profiling == "measured":
            for item in self.trials.all():
                if item.alive and item.rungs and item.measured is None:
                    ready.measurer.measure(item)
        if spec.profiling == "hybrid":
            self._phase("measuring along the front")
            measure_front(
                self._candidates,
                ready.measurer.predict,
                spec.goals,
                ready.limits,
                lambda item: ready.measurer.measure(item, because="it may improve the front"),
            )

    def _supernet(self, chooser: Chooser, data: TaskData, trainer: Trainer) -> None:
        """Trains a supernet if the run file asks for one, and gives its scores to the chooser as a prior."""
        budget_s = self.budget.supernet_s
        if not budget_s:
            return
        self._phase("training the supernet")
        if "supernet" not in self.study.memory:
            rows = chooser.spread(supernet_prior.TRAINED, designs_to_score(budget_s))
            trained, scored = (each.tolist() for each in rows)
            settings = {"trained": trained, "scored": scored, "budget_s": budget_s, "seed": self.spec.seed}
            self.study.remember(supernet=settings)
        begun = Record(self.study.memory).record("supernet")  # limits, budget and seed may have changed since it began
        scored = np.array(begun.sequence("scored", list[int]), np.int64)
        archs = [self.space.design(row).arch for row in np.array(begun.sequence("trained", list[int]), np.int64)]
        supernet = Supernet(
            self.folder, data, archs, budget_s=begun.get("budget_s", float), seed=begun.get("seed", int)
        )
        supernet.train(trainer, lambda share: self._show_trainings({0: share}))
        self._phase("scoring with the supernet")
        designs = [self.space.design(row).arch for row in scored]
        scores = supernet.scores(designs, lambda done, total: self._detail(f"{done} of {total} designs"))
        chooser.set_supernet_prior(scored, scores)
        self.study.remember(supernet={**begun.data, "done": True})

    def _fair_reference(
        self, ready: Prepared, halving: Halving, finals: Finals, winner: Candidate, reference: Candidate | None
    ) -> tuple[Candidate, Candidate | None]:
        """The winner, and a reference design that was measured within the limits.

        If the exported reference design exceeds a limit, it is replaced with the next largest one within the limits,
        which gets equally long training. This is repeated as far as the budget allows.
        """
        while reference is not None and not finals.keeps_limits(self.trials[reference.number]):
            if self.budget.left < self.allowance.final * halving.overhead:
                break
            self.trials.note(reference.number, within=False)
            self._phase("choosing the reference design")
            family = self.spec.task_settings.family(reference.notes.choices)
            smaller = largest_within(
                self.trials, self.spec, ready.target, family, measurer=ready.measurer, others=self.others
            )
            if smaller is None:
                break
            reference = halving.train_in_full(smaller)
            finals.measure([winner, reference])
            winner = finals.best([self.trials[item.number] for item in finals.contenders], reference)
        return self.trials[winner.number], None if reference is None else self.trials[reference.number]

    def _explain(self, ready: Prepared, halving: Halving, winner: Candidate) -> None:
        """Stores explanations of the result, or why they cannot be computed."""
        self._phase("explaining the answer")
        trained = [item for item in self.trials.all() if item.rungs and not item.is_reference]
        alone = self.allowance.alone
        sure = [item for item in ready.references if self.trials[item.number].measured or not ready.target.measures]
        try:
            found = explain_answer(
                self.space,
                ready.chooser,
                halving.observations(),
                trained,
                winner=self.trials[winner.number],
                references=sure if alone else (),
                whole=self.allowance.total if alone else None,
                seed=self.spec.seed,
            )
        except ChipwiseError as error:
            found = {"knee_why": f"not known: {error}"}
        self.study.remember(answer=found)

    @property
    def _setup(self) -> Setup:
        """Arguments for starting the trainer."""
        train = self.spec.train
        return Setup(on=train.on, folder=self.folder.path, workers=self.spec.budget.workers, device=train.trains_on)

    def _remember_screened(self, screened: Screened) -> None:
        found = {"priced": screened.priced, "priced_per_s": screened.priced_per_s}
        self.study.remember(screened=found | {"feasible_share": screened.feasible_share})
        self.status.priced = screened.priced

    def _candidates(self) -> list[Candidate]:
        """All candidates except the reference designs."""
        return [item for item in self.trials.all() if not item.is_reference]

    def _close(self, item: Candidate) -> None:
        """Ends an open trial: with its results if it was trained, else as failed (set aside before training)."""
        if item.loss is None:
            self.trials.fail(item.number, "set aside before training")
            return
        metric = self.spec.task_settings.metric
        known = item.known | {metric.name: metric.shown(item.loss)}
        self.study.finish(item.number, tuple(known[goal.metric] for goal in self.spec.goals))

    def report(self) -> RunRecord:
        """Writes the run's record, report, table and card."""
        self._phase("report")
        self.study.remember(spent=self.ledger.save())
        found = self._record()
        self.write(found)
        self._show()
        return found

    def _record(self) -> RunRecord:
        return make_record(
            self.spec, self.study, self.trials, self.space, self.folder, self._opened(), others=self.others
        )

    @cached_property
    def others(self) -> OtherDevices:
        """The devices of the run besides its target."""
        return OtherDevices(self.spec, self.space)

    def _opened(self) -> Target | None:
        """The run's target; opens it if that needs no calibration."""
        if self.target is None and (self.folder.profile.exists() or not self.spec.target.local):
            self.target = open_target(self.spec, self.space, self.folder, self._detail)
            self.target.learn(self.trials.measured())
        return self.target

    def _save_partial(self, error: BaseException) -> None:
        """Writes the record of a search that stops early, with the reason unless the user pressed Ctrl-C."""
        try:
            stopped = str(error) if isinstance(error, ChipwiseError) else None
            self.study.remember(spent=self.ledger.save(), stopped=stopped)
            save(self._record(), self.folder.record)
        except (ChipwiseError, OSError):
            return  # the user must see why the search stopped

    def _phase(self, name: str) -> None:
        self.ledger.begin(name)
        self.study.remember(spent=self.ledger.save())
        self.status.phase, self.status.detail = name, ""
        self._show_counts()

    def _detail(self, detail: str) -> None:
        self.status.detail = detail
        self._show_counts()

    def _show_trainings(self, running: dict[int, float]) -> None:
        """Shows the progress of the training runs under way; called about once a second."""
        self.status.training = len(running)
        self._detail(", ".join(f"trial {number} {share * 100:.0f} %" for number, share in sorted(running.items())))

    def _show_counts(self) -> None:
        status = self.status
        items = self.trials.all()
        trained = [item for item in items if item.rungs]
        status.trained, status.measured = len(trained), sum(item.measured is not None for item in items)
        status.failed = sum(item.trial.state == "failed" for item in items)
        best = min((item for item in trained if item.alive), key=lambda item: item.quality or 0.0, default=None)
        if best is not None:
            status.best_loss, status.best = best.quality, summary(best.design)
        self._show()

    def _show(self) -> None:
        """Shows the status; saves the CPU time spent first, so that it never decreases when a run is resumed."""
        spent_s = self.ledger.saved_total_s(at_least_s=REMEMBERED_S)
        self.status.spent = spent_s if self.allowance.whole else charged(self.trials.all(), self.allowance)
        self._observer(self.status)
