"""One search, phase by phase: text, calibration, screening, trainings, measurements, the winner, the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from chipwise.core import units
from chipwise.core.arrays import Float64Array
from chipwise.core.errors import ChipwiseError, MeasurementError
from chipwise.core.workers import WorkerPool
from chipwise.hardware.device import MachineProfile
from chipwise.optim.study import Study
from chipwise.pipeline import judging, shared
from chipwise.pipeline.answer import explained
from chipwise.pipeline.choosing import Chooser, Observation
from chipwise.pipeline.contest import draw_baselines
from chipwise.pipeline.costing import Costing
from chipwise.pipeline.counting import counting
from chipwise.pipeline.finish import Finish
from chipwise.pipeline.front import measure_front
from chipwise.pipeline.halving import Choosing, Halving
from chipwise.pipeline.judging import Judging, load_tasks
from chipwise.pipeline.measuring import HEADROOM, Measuring, notes_of, within
from chipwise.pipeline.plan import Rung, plan_finals, plan_rungs
from chipwise.pipeline.profiling import worth_measuring
from chipwise.pipeline.proxy import ProxyChooser
from chipwise.pipeline.record import make_record
from chipwise.pipeline.screening import screen
from chipwise.pipeline.strategic import StrategyChooser
from chipwise.pipeline.sustained import with_cold_limits
from chipwise.pipeline.targets import RunTargets
from chipwise.pipeline.trainings import PoolTrainer
from chipwise.profile.calibrate import calibrate
from chipwise.profile.store import saved_profile
from chipwise.reporting import output
from chipwise.reporting.record import RunRecord, save
from chipwise.run.folder import RunFolder
from chipwise.run.ledger import Ledger
from chipwise.run.progress import Observer, Status
from chipwise.run.spec import RunSpec
from chipwise.run.trials import Candidate, Trials, choice_labels
from chipwise.space import Constraint, SearchSpace
from chipwise.space.constraints import soft_limit_on_latency
from chipwise.space.designs import summary
from chipwise.space.search_space import Rows
from chipwise.training.data import load_corpus
from chipwise.training.tasks_data import Task
from chipwise.training.tokenizer import TokenStore
from chipwise.training.worker import training_pool

CALIBRATION_S, CALIBRATION_SHARE = 45.0, 0.2  # CPU seconds, and at most this share of the budget
OVERHEAD = 0.12  # of the budget, for text, measuring and the report
JUDGING = 1.3  # CPU seconds that a second of training takes with its validation and its worker's start


class Search:
    """A search in its folder. Everything that is decided follows from what the study holds.

    Args:
        spec: What is asked for.
        folder: The run's folder, open.
        observer: Told of every change.
    """

    def __init__(self, spec: RunSpec, folder: RunFolder, observer: Observer) -> None:
        self.spec, self.folder, self._observer = spec, folder, observer
        self.space = SearchSpace(spec.space)
        self.study = Study(
            folder.where,
            name=folder.study_name,
            directions=[goal.direction for goal in spec.goals],
            identity=spec.identity,
            choices=choice_labels(self.space),
        )
        if folder.storage is not None:
            folder.refuse_strangers(len(self.study.trials()))
        self.trials = Trials(self.study, spec, self.space)
        self.ledger = Ledger(self.study.memory.get("spent", {}))
        self.status = Status(budget_cpu_s=spec.budget.cpu_s, workers=spec.budget.workers)
        self._measuring = Measuring(spec)
        self._costing: Costing | None = None

    def run(self) -> RunRecord:
        """Everything, or what is still missing of it; the record of the finished run."""
        try:
            if "winner" not in self.study.memory:
                self._search()
            return self.report()
        except BaseException:
            self._leave()
            raise

    def _search(self) -> None:
        spec = self.spec
        self._phase("reading text")
        tasks = load_tasks(spec)
        corpus = load_corpus(spec.data, base=spec.folder)
        store = TokenStore(corpus, self.folder.corpus, spec.space.vocab_size)
        store.prepare()
        self.study.remember(data=corpus.summary())
        shared_s = spec.quality.shared_s(spec.budget.cpu_s)
        plan = self._plan(set_aside_s=judging.planned_cpu_s(tasks) + shared.planned_cpu_s(shared_s))
        profile = self._calibrate()
        spec = self.spec = with_cold_limits(spec, profile)
        costing = self._costing = Costing(self.space, spec.workload, profile, rates=spec.target.rates)
        self._measuring = Measuring(spec, anchors=profile.reference_s)
        self._learn()
        self._phase("screening")
        others = RunTargets(spec, self.space, costing.metrics) if spec.targets else None
        metrics = costing.metrics if others is None else others.metrics
        elsewhere = spec.limits_elsewhere
        screened = screen(self.space, metrics, (*spec.limits, *elsewhere), seed=spec.seed)
        self.study.remember(
            screened={
                "priced": screened.priced,
                "priced_per_s": screened.priced_per_s,
                "feasible_share": screened.feasible_share,
                "cloud": screened.cloud,
            }
        )
        self.status.priced = screened.priced
        self._phase("drawing the baseline by hand")
        baselines = draw_baselines(self.trials, spec, costing, measure=self._measure)
        limits = (*spec.limits, *elsewhere, *no_slower_than(baselines, spec.limits))
        counts = counting(spec)
        chooser = Chooser(
            self.space,
            screened,
            metrics,
            spec.goals,
            limits,
            final_s=spec.budget.final_s,
            bytes_per_token={size: store.tokens(size).bytes_per_token for size in spec.space.vocab_size},
            seed=spec.seed,
        )
        choosing: Choosing = chooser
        if spec.search.strategy != "auto":
            choosing = StrategyChooser(spec.search.strategy, chooser, seed=spec.seed)
        elif spec.quality.chosen == "proxy":
            choosing = ProxyChooser(chooser)
        if spec.quality.chosen == "proxy":  # every training is a full one: the law alone says which baseline has it
            baselines = sorted(baselines, key=lambda item: chooser.law_of(item.trial.notes["choices"]))[:1]
        with training_pool(spec.budget.workers) as pool:
            score = self._shared(spec, chooser, store, pool)
            trainer = PoolTrainer(
                pool, self.folder, store, seed=spec.seed, final_s=spec.budget.final_s, heard=self._heard
            )
            halving = Halving(
                self.trials,
                plan,
                chooser=choosing,
                trainer=trainer,
                measure=self._measure,
                predict=lambda row: costing.promise(self.space.design(row[0])),
                workers=spec.budget.workers,
                begun=self._phase,
                score=score,
                counts=counts,
            )
            halving.explore(baselines)
            if spec.profiling == "measured":
                for item in self.trials.all():
                    if item.alive and item.rungs and item.measured is None:
                        self._measure(item)
            if spec.profiling == "hybrid":
                self._phase("measuring along the front")
                measure_front(self._candidates, self._promise, spec.goals, limits, self._measure_for_front)
            finalists, baseline = halving.promote(baselines)
        judge = self._judging(spec, tasks, store) if tasks else None
        if judge is not None:
            self._phase("asking the tasks")
            self.study.remember(bars=judge.bars(self.study.memory.get("bars", {})))
        finish = Finish(self.trials, spec, self.folder, store, judging=judge, counts=counts, begun=self._phase)
        winner = finish.decide(finalists, baseline, halving.spare(finalists))
        finish.write_winner(winner)
        for item in self.trials.all():
            if item.trial.state == "running":
                self._close(item)
        self.study.remember(winner=winner.number, baseline=None if baseline is None else baseline.number)
        self._explain(chooser, halving.observations())

    def _explain(self, chooser: Chooser, observations: Sequence[Observation]) -> None:
        """Keeps what the run can say of its answer; where it cannot, the answer stands without."""
        self._phase("explaining the answer")
        trained = [item for item in self.trials.all() if item.rungs and not item.is_baseline]
        try:
            found = explained(self.space, chooser, observations, trained, seed=self.spec.seed)
        except ChipwiseError as error:
            found = {"knee_why": f"not known: {error}"}
        self.study.remember(answer=found)

    def _shared(
        self, spec: RunSpec, chooser: Chooser, store: TokenStore, pool: WorkerPool
    ) -> Callable[[Rows], Float64Array] | None:
        """Trains shared weights where the run asks for them, tells the chooser their word; asks them about rows."""
        budget_s = spec.quality.shared_s(spec.budget.cpu_s)
        if not budget_s:
            return None
        self._phase("training shared weights")
        trained, scored = chooser.spread(shared.TRAINED, shared.scored(budget_s))
        archs = [self.space.design(row).arch for row in trained]
        weights = shared.SharedWeights(self.folder, store, archs, budget_s=budget_s, seed=spec.seed)
        weights.train(pool, lambda update: self._heard({0: update}))
        self._phase("asking shared weights")

        def asked(rows: Rows) -> Float64Array:
            def told(done: int, total: int) -> None:
                self.status.detail = f"{done} of {total} designs"
                self._tell()

            return weights.scores([self.space.design(row).arch for row in rows], told)

        chooser.hear(scored, asked(scored))
        return asked

    def _judging(self, spec: RunSpec, tasks: Mapping[str, Task], store: TokenStore) -> Judging:
        def told(detail: str) -> None:
            self.status.detail = detail
            self._tell()

        return Judging(spec, tasks, self.trials, self.folder, store, told=told)

    def _plan(self, *, set_aside_s: float = 0.0) -> tuple[Rung, ...]:
        """How the budget is spread; what calibration, measuring, tasks and the baseline take is set aside."""
        budget, vocabularies = self.spec.budget, len(self.spec.space.vocab_size)
        left_s = budget.cpu_s * (1 - OVERHEAD) - self._calibration_s - set_aside_s
        trained_s = left_s / JUDGING - budget.final_s
        if self.spec.quality.chosen == "proxy":
            return plan_finals(training_s=trained_s, final_s=budget.final_s)
        plan = plan_rungs(training_s=trained_s, final_s=budget.final_s)
        first = plan[0].cpu_s if len(plan) > 1 else 0.0
        return plan_rungs(training_s=trained_s - first * (vocabularies - 1), final_s=budget.final_s)

    @property
    def _calibration_s(self) -> float:
        return min(CALIBRATION_S, CALIBRATION_SHARE * self.spec.budget.cpu_s)

    def _calibrate(self) -> MachineProfile:
        if self.folder.profile.exists():
            return MachineProfile.load(self.folder.profile)
        self._phase("calibrating")

        def told(what: str, share: float) -> None:
            self.status.detail = f"{what} ({share:.0%})"
            self._tell()

        target = self.spec.target
        profile = calibrate(
            runtime=target.runtime, threads=target.threads, seconds=self._calibration_s, on_progress=told
        )
        kept = saved_profile(target.runtime, target.threads)
        if kept is not None:
            profile = replace(profile, thermal=kept.thermal)
        profile.save(self.folder.profile)
        return profile

    def _candidates(self) -> list[Candidate]:
        """All candidates but what a hand drew."""
        return [item for item in self.trials.all() if not item.is_baseline]

    def _promise(self, item: Candidate) -> dict[str, list[float]]:
        """What the cost model promises of a candidate now."""
        assert self._costing is not None
        return self._costing.promise(item.design)

    def _measure_for_front(self, item: Candidate) -> bool:
        return self._measure(item, because="it may move the front")

    def _measure(self, item: Candidate, because: str | None = None) -> bool:
        """Whether a candidate keeps the limits, before its long trainings: measured where that is worth it.

        What was found is noted and learnt from. ``because`` says why it is measured whatever else is known.
        """
        assert self._costing is not None
        self.status.detail = f"measuring {summary(item.design)}"
        self._tell()
        promise = self._costing.promise(item.design)
        limits = self.spec.limits
        if not item.is_baseline:
            limits = (*limits, *no_slower_than(self._drawn(), limits))
        promised = {metric: bounds[0] for metric, bounds in promise.items()}
        unsure = self._costing.unsure(item.design)
        mode = "measured" if item.is_baseline and self.spec.profiling == "hybrid" else self.spec.profiling
        why = because or worth_measuring(mode, promise, limits, unsure=unsure, headroom=HEADROOM)
        if why is None:
            good = within(limits, promised, headroom=HEADROOM)
            self.trials.note(item.number, predicted=promise, within=good)
            return good
        try:
            found = self._measuring.candidate(item.design, self.folder.trial(item.number))
        except MeasurementError as error:
            self.trials.fail(item.number, str(error))
            self._count()
            return False
        notes = notes_of(found, self.spec.target.rates, final=False)
        if item.measured is not None and notes["loudness"] >= item.trial.notes.get("loudness", math.inf):
            return bool(item.trial.notes["within"])  # the quieter of two measurements counts
        good = within(limits, promised | notes["measured"], headroom=HEADROOM)  # as predicted where nothing measures it
        if not found.clean:  # a busy machine proves nothing against a candidate; the last measurement decides
            good = good or within(limits, promised, headroom=HEADROOM)
        self.trials.note(item.number, **notes, predicted=promise, within=good, measured_because=why)
        self._learn()
        self._count()
        return good

    def _drawn(self) -> list[Candidate]:
        """The baseline, once it is chosen; before that, all designs drawn by hand."""
        drawn = [item for item in self.trials.all() if item.is_baseline and item.alive and item.measured]
        longest = max((len(item.rungs) for item in drawn), default=0)
        return [item for item in drawn if len(item.rungs) == longest]

    def _learn(self) -> None:
        """Corrects the cost model by all measurements of the run."""
        assert self._costing is not None
        self._costing.learn(
            [
                (item.design, item.trial.notes.get("settled", item.measured))
                for item in self.trials.all()
                if item.measured
            ]
        )

    def _close(self, item: Candidate) -> None:
        """Ends a trial that is still open: with its values where it was trained, as set aside where not."""
        quality = item.trial.notes.get("exported_bits_per_byte", item.quality)
        if quality is None:
            self.trials.fail(item.number, "set aside before training")
            return
        known = item.known | {"bits_per_byte": quality}
        self.study.finish(item.number, tuple(known[goal.metric] for goal in self.spec.goals))

    def report(self) -> RunRecord:
        """Draws what is there."""
        self._phase("report")
        self.study.remember(spent=dict(self.ledger.settle()))
        record = make_record(self.spec, self.study, self.trials, self.space, self.folder)
        save(record, self.folder.record)
        output.write(record, self.folder.path)
        self.status.done = True
        self._tell()
        return record

    def _leave(self) -> None:
        """Keeps the books, and draws what is there, when a search is stopped."""
        try:
            self.study.remember(spent=dict(self.ledger.settle()))
            save(make_record(self.spec, self.study, self.trials, self.space, self.folder), self.folder.record)
        except (ChipwiseError, OSError):
            return  # the reason for which the search stopped is what the user must see

    def _phase(self, name: str) -> None:
        self.ledger.begin(name)
        self.study.remember(spent=dict(self.ledger.spent))
        self.status.phase, self.status.detail = name, ""
        self._count()

    def _heard(self, running: dict[int, dict[str, Any]]) -> None:
        """Progress of trainings, about once a second."""
        self.status.training = len(running)
        self.status.detail = ", ".join(
            f"trial {number} {data['cpu_s']:.0f}/{data['cpu_budget_s']:.0f} s"
            for number, data in sorted(running.items())
        )
        self._count()

    def _count(self) -> None:
        status = self.status
        items = self.trials.all()
        trained = [item for item in items if item.rungs]
        status.trained, status.measured = len(trained), sum(item.measured is not None for item in items)
        status.failed = sum(item.trial.state == "failed" for item in items)
        best = min((item for item in trained if item.alive), key=lambda item: item.quality or 1e9, default=None)
        if best is not None:
            status.best_bits_per_byte, status.best = best.quality, summary(best.design)
        self._tell()

    def _tell(self) -> None:
        self.status.spent_cpu_s = self.ledger.total_s
        self._observer(self.status)


def no_slower_than(baselines: Sequence[Candidate], limits: Sequence[Constraint]) -> tuple[Constraint, ...]:
    """The limit that a winner may not take longer for a token than the slowest of the hand-drawn designs.

    None where a soft limit sells that time: the baseline keeps within it.
    """
    if soft_limit_on_latency(limits):
        return ()
    measured = [item.measured["tpot_p50"] for item in baselines if item.measured]
    if not measured:
        return ()
    cap = max(measured)
    return (Constraint(metric="tpot_p50", op="<=", limit=cap, text=f"<= {units.show(cap, 'time')} (the baseline's)"),)
