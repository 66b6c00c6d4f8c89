"""Records a kit's measurements in a finished run, corrects the target's predictions, and predicts all trials again."""

from __future__ import annotations

from collections.abc import Callable

from chipwise.design.phases.kit_folder import kit_results
from chipwise.design.phases.measuring import run_notes
from chipwise.design.run.folder import RunFolder
from chipwise.design.run.spec import RunSpec
from chipwise.design.run.trials import Trials
from chipwise.design.targets.prompts import LONGEST
from chipwise.design.targets.target import Target


def kit_notes(
    trials: Trials, spec: RunSpec, folder: RunFolder, target: Target | None, *, on_note: Callable[[str], None]
) -> dict[int, dict[str, object]]:
    """Maps trial numbers to notes on measurements in imported kits; leaves out measurements that are already recorded.

    Results of a machine that reports another chip than the run's target are ignored, and ``on_note`` is called with
    the reason. If a kit did not measure prompts of the P99 length, the P99 times and the memory over all prompt lengths
    are predicted.
    """
    asked = spec.target
    known = None if asked.local or asked.device.startswith("ssh:") or asked.sheet is None else asked.sheet.name
    found = kit_results(folder.path, runtime=asked.runtime, target=known, on_note=on_note)
    notes = {
        number: run_notes(
            spec, taken, final=True, predicted={} if target is None else target.predict(trials[number].design)
        )
        | {"measured_because": "kit"}
        for number, taken in found.items()
    }
    if spec.prompt_p99 is not None and any(LONGEST not in taken.environment for taken in found.values()):
        on_note(
            f"this kit measured only the P50 prompt of {spec.workload.prompt_tokens:,} tokens; P99s and memory "
            f"with prompts of up to {spec.prompt_p99:,} tokens (P99) are predicted from its results"
        )
    return {number: each for number, each in notes.items() if trials[number].measured != each["measured"]}


def record(trials: Trials, target: Target, notes: dict[int, dict[str, object]]) -> None:
    """Records measurements, updates the target with them, and stores the target's new predictions for every trial.

    New predictions are stored as ``believed_now``; the predictions that a trial began with do not change.
    """
    for number, each in notes.items():
        trials.note(number, **each)
    target.learn(trials.measured())
    for item in trials.all():
        if item.alive:
            trials.note(item.number, believed_now=target.predict(item.design))
