"""The end of a run: finalists and baseline in their final form, measured in turns; a winner that keeps its promises."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from chipwise.core.digest import plain
from chipwise.core.errors import Infeasible, InputError, MeasurementError, StudyError
from chipwise.core.files import write_atomic
from chipwise.deploy.gguf import export_if_possible
from chipwise.deploy.hf import save_pretrained
from chipwise.deploy.onnx import export
from chipwise.pipeline.judging import SPARE, Judging
from chipwise.pipeline.measuring import Measuring, exported_bits_per_byte, notes_of, within
from chipwise.profile.exporting import export_for, suffix_of
from chipwise.profile.measurement import Measurement
from chipwise.run.folder import PROMISES, RunFolder
from chipwise.run.spec import RunSpec
from chipwise.run.trials import Candidate, Trials
from chipwise.space.constraints import soft_limit_on_latency
from chipwise.spec.io import to_data
from chipwise.training.tokenizer import TokenStore

ATTEMPTS = 2  # rounds of measuring, where the machine was busy in the first


class Finish:
    """Exports, judges and measures the finalists, and writes the winner's folder.

    Args:
        trials: Where everything is kept.
        spec: The run.
        folder: Its folder.
        store: Tokenised text.
        judging: Asks contenders the run's tasks, if it has some.
        counts: What one bit per byte of a candidate counts as: 1, and more past soft limits.
        begun: Told the name of each stage.
    """

    def __init__(
        self,
        trials: Trials,
        spec: RunSpec,
        folder: RunFolder,
        store: TokenStore,
        *,
        judging: Judging | None = None,
        counts: Callable[[Candidate], float] = lambda item: 1.0,
        begun: Callable[[str], None] = lambda stage: None,
    ) -> None:
        self._trials, self._spec, self._folder, self._store = trials, spec, folder, store
        self._judging, self._counts, self._begun = judging, counts, begun
        self._measuring = Measuring(spec)

    def decide(
        self, finalists: Sequence[Candidate], baseline: Candidate | None, others: Sequence[Candidate] = ()
    ) -> Candidate:
        """The finalist of fewest bits per byte, as exported, that was measured within the limits and keeps the floors.

        Limits on what could not be measured hold as predicted; past soft ones bits per byte count as more. One that was
        measured to be slower than the baseline can only win where there is no other, or where a soft limit sells that
        time. Where no finalist keeps the limits, ``others`` are exported as far as they were trained and measured, in
        their order; of those within the limits at most ``SPARE`` are asked the tasks.

        Raises:
            Infeasible: Nothing that was trained was measured within the limits, or none of that keeps the floors.
        """
        self._begun("measuring the finalists")
        drawn = [baseline] if baseline is not None else []
        self._measure_final([*finalists, *drawn])
        tried = [self._trials[item.number] for item in finalists]
        fitting = [item for item in tried if self._fits(item)]
        good = self._judged(fitting, beside=drawn)
        asked = 0
        for other in others:
            if good or asked >= SPARE:
                break
            self._begun("measuring the finalists")
            self._measure_final([other])
            tried.append(self._trials[other.number])
            if self._fits(tried[-1]):
                asked += self._judging is not None
                fitting.append(tried[-1])
                good = self._judged(tried[-1:])
        if not fitting:
            told = "; ".join(f"trial {item.number}: {self._against_limits(item)}" for item in tried)
            raise Infeasible(f"no trained candidate was measured within the limits: {told}")
        if not good:
            raise Infeasible(self._below_floors(fitting))
        cap = ((self._trials[baseline.number].measured or {}).get("tpot_p50")) if baseline is not None else None
        faster = [item for item in good if cap is None or (item.measured or {}).get("tpot_p50", 0.0) <= cap]
        best = good if soft_limit_on_latency(self._spec.limits) else faster or good
        counted = {item.number: item.trial.notes["exported_bits_per_byte"] * self._counts(item) for item in best}
        return min(best, key=lambda item: (counted[item.number], item.number))

    def _fits(self, item: Candidate) -> bool:
        return item.alive and item.measured is not None and within(self._spec.limits, item.costs)

    def _judged(self, items: Sequence[Candidate], *, beside: Sequence[Candidate] = ()) -> list[Candidate]:
        """Those that keep the floors of all tasks; ``beside`` are asked too, for the report."""
        if self._judging is None:
            return list(items)
        self._begun("asking the tasks")
        self._judging.ask([item for item in (*items, *beside) if self._trials[item.number].alive])
        known = [self._trials[item.number] for item in items]
        return [item for item in known if not self._judging.missed(item)]

    def _below_floors(self, items: Sequence[Candidate]) -> str:
        assert self._judging is not None
        told = "; ".join(
            f"trial {self._trials[item.number].number}: {', '.join(self._judging.said(self._trials[item.number]))}"
            for item in items
        )
        return (
            f"no trained candidate within the limits keeps the floors of its tasks: {told}; lower the floor, loosen "
            "limits so that larger models fit, or raise budget.final"
        )

    def _against_limits(self, item: Candidate) -> str:
        how = {metric: "" if metric in (item.measured or {}) else " as predicted" for metric in item.costs}
        return ", ".join(
            f"{limit.metric} {limit.show(item.costs[limit.metric])}{how[limit.metric]} (limit {limit.text})"
            for limit in self._spec.limits
            if limit.hard and limit.metric in item.costs
        )

    def _measure_final(self, contenders: Sequence[Candidate]) -> None:
        """Exports, judges and measures the contenders in turns; again where the machine was busy."""
        for item in contenders:
            self._export(item)
        for _ in range(ATTEMPTS):
            known = [self._trials[item.number] for item in contenders]
            if all(item.trial.notes.get("final") or not item.alive for item in known):
                return
            running = [item for item in contenders if self._trials[item.number].alive]
            for item, measured in zip(running, self._measure(running), strict=True):
                if isinstance(measured, MeasurementError):
                    self._trials.fail(item.number, str(measured))
                else:
                    self._trials.note(item.number, **notes_of(measured, self._spec.target.rates, final=measured.clean))

    def _measure(self, contenders: Sequence[Candidate]) -> list[Measurement | MeasurementError]:
        return self._measuring.alternately([self._served(item) for item in contenders])

    def _served(self, item: Candidate) -> Path:
        """The file that the target's runtime serves: ``model.onnx``, or what that runtime reads instead."""
        return self._folder.trial(item.number) / f"model{suffix_of(self._spec.target.runtime)}"

    def _export(self, item: Candidate) -> None:
        """Writes ``model.onnx`` with the trained weights and judges what it answers, once."""
        folder = self._folder.trial(item.number)
        if "exported_bits_per_byte" in item.trial.notes and (folder / "model.onnx").exists():
            return
        weights = self._weights(item)
        export(item.design, weights, folder / "model.onnx")
        if self._served(item).name != "model.onnx":
            export_for(self._spec.target.runtime, item.design, folder, weights=weights)
        data = self._store.tokens(item.design.arch.vocab_size)
        quality = exported_bits_per_byte(item.design, weights, data, folder / "judged.onnx")
        self._trials.note(item.number, exported_bits_per_byte=quality)

    def _weights(self, item: Candidate) -> dict[str, Any]:
        from chipwise.training.evaluate import read

        try:
            return read(self._folder.training(item.design.arch) / item.rungs[-1]["weights"])
        except InputError as error:
            raise StudyError(
                f"{error} (trial {item.number}); restore the file and go on with --resume, or begin anew with --restart"
            ) from None

    def write_winner(self, winner: Candidate) -> None:
        """The Hugging Face folder, with the measured ``model.onnx`` and the promises beside it.

        Where the ``gguf`` package is installed and GGUF can hold the winner, also ``model.gguf``.
        """
        source = self._folder.trial(winner.number) / "model.onnx"
        vocab_size = winner.design.arch.vocab_size
        promises = {
            "schema": "chipwise.winner/1",
            "arch": to_data(winner.design.arch),
            "weights": winner.design.weights,
            "target": plain(self._spec.target),
            "workload": plain(self._spec.workload),
            "constraints": dict(self._spec.constraints),
            "promised": winner.trial.notes["predicted"],
            "measured": winner.measured,
            "bits_per_byte": winner.trial.notes["exported_bits_per_byte"],
        }
        if self._judging is not None:
            promises["tasks"] = self._judging.ship(winner, self._folder.winner)
        save_pretrained(
            winner.design.arch,
            self._weights(winner),
            self._store.tokenizer_path(vocab_size),
            self._folder.winner,
            {PROMISES: json.dumps(promises, indent=1) + "\n"},
        )
        for path in {source, self._served(winner)}:
            write_atomic(self._folder.winner / path.name, path.read_bytes())
        export_if_possible(
            winner.design,
            self._weights(winner),
            self._folder.winner / "model.gguf",
            tokenizer=self._store.tokenizer_path(vocab_size),
        )
