"""A run that starts from a pretrained model: heals a pruned and a truncated version, and compares all three.

Each stage (:mod:`chipwise.design.shrink.stages`) writes a file to ``state/``. Results of the contenders (the original,
the pruned model and the truncated model) are in ``state/contenders.json``. A run that was killed continues from these
files.

::

    runs/small-encoder/
    ├── spec.json           the run file
    ├── state/              the stages' files
    ├── exact/  truncate/   for each contender: model/ (a Hugging Face folder) and model.onnx
    ├── winner/             the pruned model, if it meets the limits
    └── report.html  card.md  trials.csv  record.json
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from chipwise.core.digest import digest, plain
from chipwise.core.files import storage, write_json
from chipwise.deploy.measure.measurement import Measurement
from chipwise.design.limits import unit_of
from chipwise.design.phases.measuring import metrics_of
from chipwise.design.phases.task_evaluation import bag_of_words, load_tasks
from chipwise.design.report import output
from chipwise.design.report.record import RunRecord, save
from chipwise.design.run.changes import Basis
from chipwise.design.run.folder import PROMISES, RunFolder
from chipwise.design.run.ledger import Ledger
from chipwise.design.run.progress import Observer, Status
from chipwise.design.run.start_spec import ORIGINAL, StartSpec
from chipwise.design.shrink.block_selection import Limits, options_of
from chipwise.design.shrink.cut_limits import limits_of, promises_of
from chipwise.design.shrink.cut_quality import bits_per_byte, likeness, task_score
from chipwise.design.shrink.cut_record import (
    CUT,
    Contender,
    broken_limits,
    constraints_of,
    make_record,
    read_known,
    values_of,
)
from chipwise.design.shrink.distillation import Healing
from chipwise.design.shrink.shrink_model import claim
from chipwise.design.shrink.sizes import Sizes, blocks, generates
from chipwise.design.shrink.stages import CutSettings, Named, Shrinking
from chipwise.design.shrink.text_material import TextMaterial
from chipwise.design.targets.bench import Bench
from chipwise.errors import ChipwiseError, Infeasible, MeasurementError, SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.io import to_data
from chipwise.model.space.designs import summary
from chipwise.training.data.text import Corpus, load_corpus
from chipwise.training.evaluations.data import Task

OVERHEAD = 0.12  # share of the budget for evaluation, measuring and the report
LEAST_STEPS = 10  # fewer healing steps are not worth their warm-up
TIMEOUT_S = 600.0  # for one measurement; pretrained models may be large
LONGEST = (64, 256)  # bounds of the most tokens per text; between these bounds it is the tokens of a request's prompt
_SHOWN_S = 0.2
_BASE_UNIT = {"time": " s", "bytes": " B", "count": "", "share": ""}


class Cutting:
    """Executes a run that starts from a pretrained model.

    Args:
        spec: The run file.
        folder: The run's folder, already opened.
        observer: Notified of every change of the run's status.
    """

    def __init__(self, spec: StartSpec, folder: RunFolder, observer: Observer) -> None:
        self.spec, self.folder, self._observer = spec, folder, observer
        self._notes = folder.path / "state" / "contenders.json"
        self.known = read_known(self._notes)
        self.ledger = Ledger(self.known.get("spent", {}), power=self.known.get("power"))
        self.status = Status(budget=spec.budget.cpu_s)
        self._shown_s = 0.0

    def run(self) -> RunRecord:
        """Completes the run and returns its record.

        Raises:
            Infeasible: No pruned model can meet the limits, or the measured values of the healed model exceed them.
        """
        try:
            self._take_up()
            if not self.known.get("finished"):
                self._cut()
            return self.report()
        except BaseException:
            self._leave()
            raise

    def _take_up(self) -> None:
        """Forgets results of models that were pruned for other limits or budgets; the stages' files are kept."""
        now = asdict(Basis.of(self.spec))
        if self.known.get("basis", asdict(Basis.of(self.folder.before or self.spec))) != now:
            original = self._of("original")
            self.known.update({"contenders": {"original": original} if original else {}, "finished": False})
        if self.known.get("basis") != now:
            self.known["basis"] = now
            self._note()
        if self.folder.before is not None:
            self.folder.write_spec()

    def _cut(self) -> None:
        spec, folder = self.spec, self.folder.path
        self._phase("reading model and text")
        tasks, corpus = load_tasks(spec), load_corpus(spec.data, base=spec.folder)
        longest = min(max(LONGEST[0], spec.workload.prompt_tokens), LONGEST[1])
        material = TextMaterial(spec.source, corpus, longest=longest)
        work = Shrinking(
            material,
            folder,
            workload=spec.workload,
            weight_format=spec.weights,
            seed=spec.seed,
            on_progress=self._on_stage,
        )
        spec.require_kind(work.arch)
        _require_answerable(work.arch, tasks)
        claim(folder, work.about, resume=True)  # the folder compared the spec already; this compares weights and text
        self.known |= {"data": corpus.summary(), "space": _space_of(work)}
        self._note()
        limits = self._limits(work)
        settings = CutSettings(method=CUT, limits=limits, healing=Healing())
        self._contender(work, settings, corpus, tasks)
        try:
            self._contender(work, replace(settings, method="truncate"), corpus, tasks)
        except Infeasible as error:
            self._found("truncate", Contender(absent=f"no truncation to the first layers meets the limits: {error}"))
        if tasks:
            self._phase("evaluating the TF-IDF baseline")
            self.known["bars"] = bag_of_words(tasks, self.known.get("bars", {}))
            self._note()
        self._evaluate("original", Design(arch=work.arch, weights=spec.weights), work.original, work, corpus, tasks)
        self._measure(work)
        self._decide(work)

    def _limits(self, work: Shrinking) -> Limits:
        """Measures the original, and converts the run's constraints to limits for choosing the pruned model."""
        if "measured" not in self._of("original"):
            self._phase("measuring the original")
            [found] = Bench(self.spec, timeout_s=TIMEOUT_S).alternately([work.original_file])
            if isinstance(found, MeasurementError):
                raise found
            self._found(
                "original",
                {
                    "parameters": work.arch.parameters(),
                    "summary": summary(Design(arch=work.arch, weights=self.spec.weights)),
                    **_noted(found),
                },
            )
        original = values_of(self._of("original"))
        return limits_of(work, constraints_of(self.spec, self.known["contenders"]), original)

    def _steps(self, work: Shrinking, settings: CutSettings, weights: Named, sizes: Sizes) -> int:
        """Number of healing steps for each of the two models (the pruned and the truncated one).

        The steps must fit in ``budget.final``, and in half of what remains of ``budget.cpu``.

        Raises:
            SpecError: The budget is spent, or too small for a few steps.
        """
        budget = self.spec.budget

        def make() -> int:
            self._phase("timing a healing step")
            step_s = work.healing_step_s(weights, sizes)
            spent_s = self.ledger.total_s
            least_s = LEAST_STEPS * step_s
            if budget.final_s < least_s:
                raise SpecError(
                    f"one healing step takes {step_s:.2g} s of CPU time, so fewer than {LEAST_STEPS} fit in this "
                    f"budget; raise it to at least {1.1 * least_s:.2g} s and go on with --resume",
                    field="budget.final",
                )
            left_s = min(budget.final_s, (budget.cpu_s * (1 - OVERHEAD) - spent_s) / 2)
            if left_s < least_s:
                enough_s = (spent_s + 2 * least_s) / (1 - OVERHEAD)
                raise SpecError(
                    f"timing and scoring blocks took {spent_s:.0f} CPU-s, which leaves too little for healing; "
                    f"raise this budget to at least {1.1 * enough_s:.0f} s and go on with --resume",
                    field="budget.cpu",
                )
            return int(left_s / step_s)

        steps: int = work.kept("steps", make, key=digest([settings.choosing, budget.cpu_s, budget.final_s]))
        self.known["steps"] = steps
        self._note()
        return steps

    @property
    def _tokenizer(self) -> Path:
        return self.spec.source / "tokenizer.json"

    def _contender(self, work: Shrinking, settings: CutSettings, corpus: Corpus, tasks: Mapping[str, Task]) -> None:
        """Chooses, heals, writes and evaluates the pruned or the truncated model."""
        name = settings.method
        self._phase("choosing")
        weights, sizes = work.choose(settings)
        if name != "truncate":
            self._steps(work, settings, weights, sizes)
        cut = work.heal(replace(settings, healing=Healing(steps=self.known["steps"])), weights, sizes)
        work.write(cut, self.folder.path / name)
        design = Design(arch=cut.arch, weights=self.spec.weights)
        self._found(
            name,
            Contender(
                parameters=cut.arch.parameters(),
                summary=summary(design),
                sizes=plain(sizes),
                predicted=promises_of(work, sizes, self._of("original")["measured"]),
                loss_before=cut.loss_before,
                loss_after=cut.loss_after,
                heal_cpu_s=work.cpu_s["heal"],
                arch=to_data(cut.arch),
            ),
        )
        self._evaluate(name, design, cut.weights, work, corpus, tasks)

    def _evaluate(
        self, name: str, design: Design, weights: Named, work: Shrinking, corpus: Corpus, tasks: Mapping[str, Task]
    ) -> None:
        """Evaluates one contender on test text and on the tasks, unless these weights were already evaluated."""
        path = work.original_file if name == "original" else self.folder.path / name / "model.onnx"
        arrays = {key: value.numpy() for key, value in weights.items()}
        key: list[object] = [
            self.known.get("steps") if name != "original" else None,
            [task.identity for task in tasks.values()],
        ]
        if self._of(name).get("judged") == key:
            return
        self._phase("evaluating on test text")
        quality: Contender = {"tasks": {}, "judged": key}
        if generates(design.arch):
            quality["bits_per_byte"] = bits_per_byte(
                design,
                arrays,
                self._tokenizer,
                corpus.test,
                longest=LONGEST[0],
                path=work.state / "judged.onnx",
            )
        elif name != "original":
            quality["tasks"][ORIGINAL] = likeness(
                path, work.original_file, self._tokenizer, corpus.test, longest=LONGEST[0]
            )
        for label, task in tasks.items():
            self._phase(f"evaluating {label}")
            quality["tasks"][label] = task_score(
                task, design, arrays, path, self._tokenizer, on_progress=lambda done, total: self._detail(done, total)
            )
        self._found(name, quality)

    def _measure(self, work: Shrinking) -> None:
        """Measures all contenders in alternation; these values replace earlier ones, and limits are checked on them."""
        self._phase("measuring alternately")
        names = [name for name in ("original", CUT, "truncate") if "parameters" in self._of(name)]
        files = [work.original_file, *(self.folder.path / name / "model.onnx" for name in names[1:])]
        measured = Bench(self.spec, timeout_s=TIMEOUT_S).alternately(files)
        for name, found in zip(names, measured, strict=True):
            if isinstance(found, MeasurementError):
                raise found
            self._found(name, _noted(found))

    def _decide(self, work: Shrinking) -> None:
        """Makes the pruned model the winner if its measured values meet every limit.

        Raises:
            Infeasible: The pruned model exceeds a limit; the message names its values.
        """
        contenders = self.known["contenders"]
        values = values_of(contenders[CUT])
        missed = broken_limits(self.spec, contenders)
        if missed:
            listed = ", ".join(f"{item.metric} {item.show(values[item.metric])} (limit {item.text})" for item in missed)
            busy = "" if contenders[CUT]["clean"] else "; the machine was busy, so measure again with --resume"
            raise Infeasible(
                f"the healed cut exceeds its limits: {listed}{busy}. Loosen the limit"
                + (", or raise budget.final" if any(item.task for item in missed) else "")
                + f"; the cut is in {self.folder.path / CUT}"
            )
        self._write_winner(work)
        self.known["finished"] = True
        self._note()

    def _write_winner(self, work: Shrinking) -> None:
        """Writes the winner's folder: the Hugging Face files, the measured ``model.onnx``, and the metrics."""
        source, target = self.folder.path / CUT, self.folder.winner
        found = self._of(CUT)
        with storage(target):
            shutil.copytree(source / "model", target, dirs_exist_ok=True)
            shutil.copyfile(source / "model.onnx", target / "model.onnx")
        limits = constraints_of(self.spec, self.known["contenders"])
        promises = {
            "schema": "chipwise.winner/1",
            "arch": found["arch"],
            "weights": self.spec.weights,
            "target": plain(self.spec.target),
            "workload": plain(self.spec.workload),
            "constraints": {c.metric: f"{c.op} {c.limit:.6g}{_BASE_UNIT[unit_of(c.metric)]}" for c in limits},
            "promised": found["predicted"],
            "measured": found["measured"],
            "started_from": {"source": self.spec.start_from, "weights": work.about["weights"]},
        }
        write_json(target / PROMISES, promises)

    def report(self) -> RunRecord:
        """Writes the report of the current state and returns the record."""
        self._phase("report")
        record = self._record()
        output.write(record, self.folder.path)
        self.status.done = True
        self._notify()
        return record

    def _record(self) -> RunRecord:
        self.known["spent"] = dict(self.ledger.settle())
        self.known["power"] = self.ledger.power.held
        record = make_record(self.spec, self.known)
        save(record, self.folder.record)
        return record

    def _leave(self) -> None:
        """Saves the spent budget and writes the report when a run is stopped."""
        try:
            if self._of("original"):
                self._note()
                output.write(self._record(), self.folder.path)
        except (ChipwiseError, OSError):
            return  # the user needs the reason why the run stopped, not this error

    def _of(self, name: str) -> Contender:
        return self.known["contenders"].get(name, Contender())

    def _found(self, name: str, facts: Contender) -> None:
        self.known["contenders"][name] = {**self._of(name), **facts}
        self._note()

    def _note(self) -> None:
        self.known["spent"] = dict(self.ledger.settle())
        self.known["power"] = self.ledger.power.held
        write_json(self._notes, self.known)

    def _phase(self, name: str) -> None:
        self.ledger.begin(name)
        self.status.phase, self.status.detail = name, ""
        self._notify()

    def _on_stage(self, stage: str, done: int, total: int) -> None:
        """Shows a stage's progress to the observer."""
        if stage != self.status.phase:
            self._phase(stage)
            self._note()
        self._detail(done, total)

    def _detail(self, done: int, total: int) -> None:
        if done < total and time.monotonic() - self._shown_s < _SHOWN_S:
            return
        self.status.detail = f"{done:,} of {total:,}"
        self._notify()

    def _notify(self) -> None:
        self._shown_s = time.monotonic()
        self.status.spent = self.ledger.total_s
        self._observer(self.status)


def _noted(found: Measurement) -> Contender:
    return {
        "measured": metrics_of(found),
        "clean": found.clean,
        "reasons": list(found.reasons),
        "runtime_version": found.runtime_version,
    }


def _space_of(work: Shrinking) -> dict[str, object]:
    """Describes the space of pruned models: how many there are, and which sizes layers may have."""
    options = options_of(work.arch)
    size = 1
    for _, kind in blocks(work.arch):
        size *= len(options[kind])
    return {
        "size": size,
        "choices": {
            "KV heads of a layer": list(options["attention"]),
            "FFN neurons of a layer": list(options["ffn"]),
        },
    }


def _require_answerable(arch: ArchSpec, tasks: Mapping[str, Task]) -> None:
    for name, task in tasks.items():
        if task.kind == "choice" and not generates(arch):
            raise SpecError(
                f"{name}: this task needs likelihoods of answers, which encoders do not compute; leave it out",
                field="tasks",
            )
