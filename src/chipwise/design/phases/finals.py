"""The end of a run: exports and measures the finalists and the reference design, and decides the winner.

The validation text selects the winner; the test text is used only for the reported numbers.

A finalist can win if it was measured within every hard limit, reaches the minimum scores on tasks, and takes no longer
per token than the reference design (unless a soft limit trades time for quality). Of these finalists, the one with the
fewest validation bits per byte, including penalties, wins. If latency is also an objective, a clearly faster finalist
wins instead if its loss differs by no more than the noise between seeds. Measured values decide. The interval of a P99
may extend beyond the limit: with few samples, the interval is so wide that otherwise no finalist could win. The report
says whether the interval is within the limit.

If no finalist qualifies, the search still ends with a design. A finalist that met the limits on times in an earlier
measurement, but exceeds them now on a busy machine, is unconfirmed. The same rule chooses among unconfirmed finalists.
If there are none, the winner is the design whose worst relative excess over a limit is smallest. The report says so,
and resuming the run measures again.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.core.digest import plain
from chipwise.core.dtypes import weight_format
from chipwise.core.files import build, storage, write_atomic
from chipwise.deploy.export.exporters import export_for, suffix_of
from chipwise.deploy.export.onnx import export
from chipwise.deploy.measure.measurement import Measurement
from chipwise.deploy.runtimes.web.engines import ENGINES
from chipwise.deploy.serving.web_page import write_page
from chipwise.design.limits import TIMED, broken, soft_limit_on_latency
from chipwise.design.phases.going_on import seed_of
from chipwise.design.phases.limits import as_good_but_faster, within, worst_excess
from chipwise.design.phases.matrix_formats import chosen_by_matrix, select_formats
from chipwise.design.phases.measuring import loudness_of, run_notes
from chipwise.design.phases.other_devices import OtherDevices
from chipwise.design.phases.task_evaluation import SPARE, TaskEvaluation
from chipwise.design.run.folder import PROMISES, RunFolder
from chipwise.design.run.spec import RunSpec
from chipwise.design.run.trials import Candidate, Trials
from chipwise.design.run.winner import read_winner
from chipwise.design.targets.chance import chances_of, kept, values_of
from chipwise.design.targets.formats import suffix_there
from chipwise.design.targets.target import Target
from chipwise.errors import Infeasible, InputError, MeasurementError, TrainingDiverged, Unsupported
from chipwise.model.arch.design import USUALLY_FUSED, Design
from chipwise.model.arch.io import to_data
from chipwise.model.blocks.quantisers import QUANTISERS
from chipwise.model.blocks.quantize import Packing
from chipwise.model.walk.calibration import AUTO, LEARNED, Choice, Judge, choose, quantiser
from chipwise.training.data.recipe import Recipe
from chipwise.training.tasks.protocol import Exported, Losses, TaskData

LEARNED_SHARE = 0.05  # cost of learned rounding to int4, as a share of a finalist's training cost
LEARNED_STEP = 4.2  # its cost per step, in training steps: half the batch, but twice, in FP32 and with all logits
ALIKE_FROM_BITS = 8  # from this many bits per weight, quantisers differ by less than 0.05 % of the loss: none is tried
ROUNDS = 5  # most rounds of measuring on a busy machine
ROUNDS_S = 120.0  # wall-clock seconds after which no further round begins
PAUSE_S = (0.0, 3.0, 10.0, 20.0)  # waiting time before each further round, for the machine to become quiet


class Finals:
    """Exports, scores and measures the finalists, decides the winner and writes the winner's folder.

    Args:
        trials: The run's trials.
        spec: The run.
        folder: The run's folder.
        data: The run's task with its data.
        target: The target device.
        tasks: Evaluates contenders on the run's tasks; None if there are no tasks.
        others: The run's devices other than its target; None if there are none.
        penalty_factor: Factor on a candidate's bits per byte: 1, or more if soft limits are exceeded.
        on_phase: Called with the name of each phase.
        left_s: CPU seconds of the budget left for measuring. Default: no limit.
        sleep: Function that waits for some seconds.
        clock: Function that returns wall-clock seconds.
    """

    def __init__(
        self,
        trials: Trials,
        spec: RunSpec,
        folder: RunFolder,
        data: TaskData,
        target: Target,
        *,
        tasks: TaskEvaluation | None = None,
        others: OtherDevices | None = None,
        penalty_factor: Callable[[Candidate], float] = lambda item: 1.0,
        on_phase: Callable[[str], None] = lambda phase: None,
        left_s: Callable[[], float] = lambda: math.inf,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trials, self._spec, self._folder, self._data = trials, spec, folder, data
        self._tasks, self._penalty_factor, self._on_phase = tasks, penalty_factor, on_phase
        self._left_s, self._sleep, self._clock = left_s, sleep, clock
        self._target, self._others = target, others
        self._learned: dict[int, Exported] = {}  # candidates whose rounding is learned, by number
        self.contenders: list[Candidate] = []  # those from which the winner was chosen
        self.met = True  # whether any contender qualifies

    def decide(
        self, finalists: Sequence[Candidate], reference: Candidate | None, others: Sequence[Candidate] = ()
    ) -> Candidate:
        """Decides the winner; see the module docstring.

        Limits on metrics that cannot be measured are checked by prediction. If no finalist meets the limits, the
        candidates in ``others`` are exported and measured in the given order; they get no further training. Up to
        ``SPARE`` of them that meet the limits are evaluated on the tasks.

        If no trained candidate qualifies, the winner is the candidate that comes closest to the limits, and ``met`` is
        False.

        Raises:
            Infeasible: No finalist could be measured.
        """
        beside = [reference] if reference is not None else []
        self.measure([*finalists, *beside])
        self._take_back([*finalists, *beside])
        tried = [self._trials[item.number] for item in finalists]
        fitting = [item for item in tried if self.keeps_limits(item)]
        good = self._keeping_floors(fitting, beside=beside)
        evaluated = 0
        for other in others:
            if good or evaluated >= SPARE or any(self._unconfirmed(self._trials[item.number]) for item in tried):
                break
            self.measure([other])
            self._take_back([other])
            tried.append(self._trials[other.number])
            if self.keeps_limits(tried[-1]):
                evaluated += self._tasks is not None
                fitting.append(tried[-1])
                good = self._keeping_floors(tried[-1:])
        self.met = bool(good)
        self.contenders = good or self._closest(fitting or tried)
        if not self.met:
            self._keeping_floors(self.contenders)  # the report needs their scores too
        return self.best(self.contenders, reference)

    def _closest(self, tried: Sequence[Candidate]) -> list[Candidate]:
        """The contenders if no candidate meets all limits: unconfirmed ones, else the one closest to the limits.

        Raises:
            Infeasible: None of ``tried`` could be measured.
        """
        known = [item for item in (self._trials[each.number] for each in tried) if item.alive]
        if not known:
            reasons = "; ".join(f"trial {item.number}: {self._trials[item.number].notes.reason}" for item in tried)
            raise Infeasible(f"no finalist could be measured: {reasons}")
        unconfirmed = [item for item in known if self._unconfirmed(item)]
        return unconfirmed or [min(known, key=lambda item: (self._beyond(item), item.number))]

    def _unconfirmed(self, item: Candidate) -> bool:
        """Whether a candidate exceeds only limits on times, on a busy machine, and met these limits earlier."""
        timed = [limit for limit in self._spec.limits if limit.hard and limit.metric in TIMED]
        others = [limit for limit in self._spec.limits if limit.hard and limit.metric not in TIMED]
        return (
            item.notes.clean is False
            and item.notes.within is True
            and bool(broken(timed, item.costs))
            and not broken(others, item.known)
            and (self._others is None or self._others.keeps_limits(item.design))
        )

    def _beyond(self, item: Candidate) -> float:
        """The candidate's largest relative excess over any limit; infinite if a task could not be evaluated."""
        if any("failed" in result for result in item.tasks.values()):
            return math.inf
        there = {} if self._others is None else values_of(self._others.predict(item.design))
        limits = (*self._spec.limits, *self._spec.limits_elsewhere, *self._target.limits)
        return worst_excess(limits, item.known | there)

    def best(self, items: Sequence[Candidate], reference: Candidate | None) -> Candidate:
        """Chooses the winner among candidates within the limits; see the module docstring."""
        cap = None if reference is None else self._seconds(self._trials[reference.number])
        no_slower = [item for item in items if cap is None or (self._seconds(item) or 0.0) <= cap]
        traded = soft_limit_on_latency(self._spec.limits)  # a soft limit already trades time for quality
        left = items if traded else no_slower or items
        fewest = min(left, key=lambda item: (self._counted(item), item.number))
        faster = as_good_but_faster(self._spec, left, fewest, loss=self._counted, seconds=self._seconds)
        return next(iter(faster), fewest)

    def _seconds(self, item: Candidate) -> float | None:
        """Measured time per token or request; the predicted time if the target cannot measure."""
        known = item.measured if self._target.measures else item.costs
        return (known or {}).get(self._spec.task_settings.latency_metric)

    def _counted(self, item: Candidate) -> float:
        bits = item.notes.exported_loss
        assert bits is not None
        return bits * self._penalty_factor(item)

    def keeps_limits(self, item: Candidate) -> bool:
        """Whether a contender meets every hard limit, as measured or as predicted with the run's confidence."""
        if not item.alive or (self._others is not None and not self._others.keeps_limits(item.design)):
            return False
        if not self._target.measures:
            limits = (*self._spec.limits, *self._target.limits)
            return kept(limits, item.notes.believed_now, item.measured or {}, self._spec.confidence_share)
        return item.measured is not None and within(self._spec.limits, item.costs)

    def _keeping_floors(self, items: Sequence[Candidate], *, beside: Sequence[Candidate] = ()) -> list[Candidate]:
        """Selects the ``items`` that reach all minimum scores on tasks; evaluates ``beside`` too, for the report."""
        if self._tasks is None:
            return list(items)
        self._on_phase("evaluating tasks")
        self._tasks.evaluate([item for item in (*items, *beside) if self._trials[item.number].alive])
        known = [self._trials[item.number] for item in items]
        return [item for item in known if not self._tasks.missed(item)]

    def measure(self, contenders: Sequence[Candidate]) -> None:
        """Exports the contenders and, if possible, measures them alternately; repeats while the machine is busy.

        For each contender, the measurement made while the machine was quietest counts. There are at most ``ROUNDS``
        rounds; after the first one, only as many as the budget and ``ROUNDS_S`` allow. A contender that was measured
        only while the machine was busy is marked.
        """
        self._on_phase("measuring the finalists" if self._target.measures else "exporting the finalists")
        for item in contenders:
            self._export(item)
            if not self._target.measures:
                self._trials.note(item.number, believed_now=self._target.predict(item.design))
        if not self._target.measures:
            return
        round_s, began_s = 0.0, self._clock()  # CPU seconds of the last round
        for number in range(ROUNDS):
            before_s = self._left_s()
            running = [item for item in (self._trials[c.number] for c in contenders) if item.alive]
            if all(item.notes.final for item in running) or (number and before_s < round_s):
                return
            if number and self._clock() - began_s > ROUNDS_S:
                return
            if number and PAUSE_S[number - 1]:
                self._sleep(PAUSE_S[number - 1])
            for item, found in zip(running, self._measure(running), strict=True):
                if isinstance(found, MeasurementError):
                    self._trials.fail(item.number, str(found))
                elif number == 0 or self._quieter(item, found):
                    self._trials.note(item.number, **self._notes(item, found))
            round_s = before_s - self._left_s() if math.isfinite(before_s) else 0.0

    def _notes(self, item: Candidate, found: Measurement) -> dict[str, object]:
        """Notes of a final measurement."""
        return run_notes(self._spec, found, final=True, predicted=self._target.predict(item.design))

    def _quieter(self, item: Candidate, found: Measurement) -> bool:
        known = item.notes.loudness
        return not item.notes.final and (known is None or found.clean or loudness_of(self._notes(item, found)) < known)

    def _take_back(self, contenders: Sequence[Candidate]) -> None:
        """Drops the per-matrix formats of contenders that exceed a limit, and measures these contenders again."""
        if not chosen_by_matrix(self._spec, self._target):
            return
        tried = [self._trials[item.number] for item in contenders]
        outside = [item for item in tried if item.notes.by_matrix.get("kept") and not self.keeps_limits(item)]
        for item in outside:
            again = {**item.notes.by_matrix, "kept": False}
            self._trials.note(item.number, by_matrix=again, exported_loss=None, final=False)
        if outside:
            self.measure(outside)

    def _measure(self, contenders: Sequence[Candidate]) -> list[Measurement | MeasurementError]:
        return self._target.alternately([self._served(item) for item in contenders])

    def _served(self, item: Candidate) -> Path:
        """The file that the target's runtime serves: ``model.onnx``, or the runtime's own format."""
        runtime = self._spec.target.runtime
        suffix = suffix_of(runtime) if self._target.measures else suffix_there(runtime) or ".onnx"
        return self._folder.trial(item.number) / f"model{suffix}"

    def _export(self, item: Candidate) -> None:
        """Writes ``model.onnx`` with the trained weights and scores it on the validation text, if not yet done."""
        item, folder = self._trials[item.number], self._folder.trial(item.number)
        if item.notes.exported_loss is not None and (folder / "model.onnx").exists():
            return
        weights = self._weights(item)
        if chosen_by_matrix(self._spec, self._target) and not item.notes.by_matrix:
            with storage(folder):
                folder.mkdir(parents=True, exist_ok=True)
            packing, _ = self._packing(self._trials[item.number], weights)
            usual = "gptq" if self._spec.quantiser == AUTO else self._spec.quantiser
            chosen = select_formats(
                item,
                weights,
                folder,
                spec=self._spec,
                data=self._data,
                predict=self._target.predict,
                packing=replace(packing, quantiser=quantiser(usual)),
            )
            self._trials.note(item.number, by_matrix=chosen)
            item = self._trials[item.number]
            self._trials.note(item.number, believed_now=self._target.predict(item.design))
        with storage(folder):
            shipped = self._exported(self._with_quantiser(item, weights))
            export(shipped.design, shipped.weights, folder / "model.onnx", packing=shipped.packing)
            if self._served(item).name != "model.onnx":
                runtime = self._spec.target.runtime if self._target.measures else "llama.cpp"
                export_for(runtime, shipped.design, folder, weights=shipped.weights, packing=shipped.packing)
        found = self._data.losses(shipped, split="validation")
        self._trials.note(item.number, exported_loss=found.loss)

    def _weights(self, item: Candidate) -> Mapping[str, AnyArray]:
        """The trained weights of a candidate; trains again if the file is missing or damaged."""
        from chipwise.model.nn.precision import kept_precision
        from chipwise.training.loop.evaluate import read
        from chipwise.training.loop.trainer import trained_again

        arch = item.design.arch
        path = self._folder.training(arch) / str(item.rungs[-1].weights)
        try:
            return read(path)
        except InputError:
            precision = kept_precision(self._folder.path / "precision.json")
            data = self._data.data(arch).load()
            recipe = build(Recipe, dict(self._data.recipe))
            seed = seed_of(self._trials.study, self._spec)(arch)
            return read(trained_again(arch, data, path, seed=seed, precision=precision, recipe=recipe))

    def _trained(self, item: Candidate) -> Exported:
        """The trained weights of a candidate, and how its matrices are packed."""
        weights, folder = self._weights(item), self._folder.trial(item.number)
        packing, _ = self._packing(self._trials[item.number], weights)
        return Exported(design=item.design, weights=weights, folder=folder, packing=packing)

    def _exported(self, item: Candidate) -> Exported:
        """Design and weights for the candidate's ``model.onnx``, after learned rounding if that was chosen."""
        if item.number in self._learned:
            return self._learned[item.number]
        trained = self._trained(item)
        if self._trials[item.number].notes.quantised.get("method") != LEARNED:
            return trained
        self._learned[item.number] = self._learn(item, trained)  # not kept on disk: equal steps give equal weights
        return self._learned[item.number]

    def _learn(self, item: Candidate, trained: Exported) -> Exported:
        """Applies learned rounding to a candidate, at a cost of about ``LEARNED_SHARE`` of its training cost.

        Raises:
            Unsupported: The model reads more than one input.
        """
        from chipwise.training.loop.evaluate import lessons_of
        from chipwise.training.loop.learned_rounding import distance_from, learn_steps

        arch, recipe = item.design.arch, build(Recipe, dict(self._data.recipe))
        lessons = lessons_of(arch, trained.weights, self._data.data(arch), recipe)
        steps = learned_steps(item.rungs[-1].tokens / self._data.step_tokens(arch))
        found = learn_steps(item.design, trained.weights, trained.packing, distance_from(lessons), steps=steps)
        return replace(trained, design=found.design, weights=found.weights, packing=found.packing)

    def _with_quantiser(self, item: Candidate, weights: Mapping[str, AnyArray]) -> Candidate:
        """Notes the candidate's quantiser: the run file's or, for ``auto``, the best one on calibration data."""
        if item.design.weights == "fp32":
            return item
        method = self._spec.quantiser
        found: dict[str, object] = {"method": method}
        if method == AUTO:
            packing, judge = self._packing(item, weights)
            bits = min(weight_format(form).stored_bits for form in item.design.formats.all)
            among = tuple(QUANTISERS) if bits < ALIKE_FROM_BITS else ("nearest",)
            choice = choose(item.design, weights, packing, judge, among=among)
            found = plain(choice)
            begun = "learning" in item.notes.quantised  # in a run that was stopped then; its cost is charged already
            if learns(self._spec, self._target, item.design) and (begun or self._can_learn):
                self._trials.note(item.number, quantised=found | {"learning": True})
                found = {**plain(self._beside_learned(item, choice, judge)), "start": choice.method}
        self._trials.note(item.number, quantised=found)
        return self._trials[item.number]

    @property
    def _can_learn(self) -> bool:
        """Whether the budget still pays for learned rounding; see :meth:`RunBudget.kept_for`."""
        allowed = self._spec.allowance
        return not allowed.whole or self._left_s() >= LEARNED_SHARE * allowed.total

    def _beside_learned(self, item: Candidate, choice: Choice, judge: Judge) -> Choice:
        """The better of ``choice`` and learned rounding; ``choice`` itself if learned rounding is not possible."""
        self._on_phase("learned rounding")
        began_s = time.process_time()
        try:
            found = self._learn(item, self._trained(item))
        except (TrainingDiverged, Unsupported):
            return choice
        finally:
            self._on_phase("measuring the finalists")
        both = choice.beside(LEARNED, judge(found.design.arch, found.weights), time.process_time() - began_s)
        if both.method == LEARNED:
            self._learned[item.number] = found
        return both

    def _packing(self, item: Candidate, weights: Mapping[str, AnyArray]) -> tuple[Packing, Judge]:
        """Returns how to pack a candidate's matrices, and a function that computes the loss of rounded weights.

        Both use batches of the task's training data. If no quantiser is noted for the candidate, its matrices are
        rounded to nearest.
        """
        from chipwise.training.loop.evaluate import calibrated

        arch = item.design.arch
        packing, judge = calibrated(arch, weights, self._data.data(arch), build(Recipe, dict(self._data.recipe)))
        noted = item.notes.quantised
        method = noted.get("start", noted.get("method", "nearest"))  # learned rounding starts from another quantiser
        return replace(packing, quantiser=quantiser(str(method))), judge

    def test(self, winner: Candidate, reference: Candidate | None) -> dict[str, object]:
        """Scores winner and reference design on test data, stores the losses, and returns the fields of ``TestScore``.

        The standard error of the difference between the log losses is computed over the test entries.
        """
        self._on_phase("scoring on test data")
        found: list[Losses] = []
        for item in (winner, reference):
            if item is not None:
                found.append(self._data.losses(self._exported(item), split="test"))
                self._trials.note(item.number, test_loss=found[-1].loss)
        entries = len(found[0].values)
        error = None
        if reference is not None and reference.number != winner.number and entries > 1:
            ours, theirs = (each.values / max(each.values.sum(), 1e-300) for each in found)
            error = float(np.sqrt(entries / (entries - 1) * ((ours - theirs) ** 2).sum()))
        return {
            "entries": entries,
            "bytes": int(found[0].sizes.sum()),
            "difference_std_error": error,
            "std_errors": [each.std_error for each in found],
        }

    def samples(self, winner: Candidate, reference: Candidate | None) -> dict[str, object]:
        """Example outputs of winner and reference design on test data, for the report."""
        found = dict(
            self._data.samples(self._exported(winner), None if reference is None else self._exported(reference))
        )
        known = {"winner": winner} | ({} if reference is None else {"baseline": reference})
        by_matrix = {who: dict(item.notes.by_matrix) for who, item in known.items() if item.notes.by_matrix}
        found |= {"by_matrix": by_matrix} if by_matrix else {}
        return found

    def write_winner(self, winner: Candidate) -> None:
        """Writes the winner's folder in the format of its ecosystem, with the measured ``model.onnx``."""
        source = self._folder.trial(winner.number) / "model.onnx"
        metric, notes = self._spec.task_settings.metric, winner.notes
        tested = notes.exported_loss if notes.test_loss is None else notes.test_loss
        promises = promises_of(self._spec, winner) | {
            metric.name: None if tested is None else metric.shown(tested),
            f"validation_{metric.name}": None if notes.exported_loss is None else metric.shown(notes.exported_loss),
        }
        if self._tasks is not None:
            promises["tasks"] = self._tasks.ship(winner, self._folder.winner)
        with storage(self._folder.winner):
            files = {PROMISES: json.dumps(promises, indent=1) + "\n"}
            for path in {source, self._served(winner)}:
                write_atomic(self._folder.winner / path.name, path.read_bytes())
            self._data.ship(
                self._trained(winner), self._folder.winner, files
            )  # GGUF is written again, now with the tokenizer
            self._write_page()

    def _write_page(self) -> None:
        """Adds to the winner's folder the files that run the winner in a web page, if the run's target is a browser."""
        target, folder = self._spec.target, self._folder.winner
        engine = ENGINES.get(target.runtime)
        if engine is not None and (known := read_winner(folder)) is not None:
            write_page(folder, engine=engine, threads=target.threads, promise=known.promise())


def learns(spec: RunSpec, target: Target | None, design: Design) -> bool:
    """Whether a finalist gets learned rounding.

    The finalist must be in int4 and served as an ONNX file. The run must train a single design, measure it, and choose
    the quantiser itself (``auto``).
    """
    served = target is not None and target.measures and suffix_of(spec.target.runtime) == ".onnx"
    return served and "int4" in design.formats.all and spec.allowance.alone and spec.quantiser == AUTO


def learned_steps(training_steps: float) -> int:
    """Number of learned-rounding steps for a model that was trained for ``training_steps`` steps."""
    return max(1, round(LEARNED_SHARE * training_steps / LEARNED_STEP))


def promises_of(spec: RunSpec, winner: Candidate) -> dict[str, object]:
    """Contents of a winner's ``chipwise.json``: design, target, limits, predicted and measured metrics.

    "Expected" values are predictions for metrics without a measurement; there are none if the winner was measured on
    this machine.
    """
    known = {**winner.notes.predicted, **winner.notes.believed_now}
    measured = winner.measured or {}
    here = spec.target.local and bool(measured)
    return {
        "schema": "chipwise.winner/1",
        **({} if spec.task == "text" else {"task": spec.task}),
        "arch": to_data(winner.design.arch),
        "weights": winner.design.weights,
        **({} if winner.design.fused == USUALLY_FUSED else {"fused": winner.design.fused}),
        **({"quantiser": winner.notes.quantised["method"]} if winner.notes.quantised else {}),
        "target": plain(spec.target),
        "workload": plain(spec.workload),
        **({} if spec.prompt_p99 is None else {"prompt_p99": spec.prompt_p99}),
        "constraints": dict(spec.constraints),
        "promised": dict(winner.notes.predicted),
        "expected": {} if here else {metric: known[metric] for metric in known if metric not in measured},
        "chances": chances(spec, winner),
        "measured": winner.measured,
    }


def chances(spec: RunSpec, item: Candidate) -> dict[str, float | None]:
    """Maps each unmeasured metric with a hard limit to the probability that the limit is met; None if unknown."""
    known = {**item.notes.predicted, **item.notes.believed_now}
    return chances_of((i for i in spec.limits if i.hard and i.metric not in (item.measured or {})), known)
