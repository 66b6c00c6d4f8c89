"""Records kit measurements for a finished run, updates the target's predictions, and predicts every trial again."""

from __future__ import annotations

from collections.abc import Callable

from chipwise.design.phases.kit_folder import kit_results
from chipwise.design.phases.measuring import measurement_notes
from chipwise.design.run.folder import RunFolder
from chipwise.design.run.spec import RunSpec
from chipwise.design.run.trials import Trials
from chipwise.design.targets.prompts import LONGEST
from chipwise.design.targets.target import Target


def kit_notes(
    trials: Trials, spec: RunSpec, folder: RunFolder, target: Target | None, *, on_note: Callable[[str], None]
) -> dict[int, dict[str, object]]:
    """Notes on trials from imported kits, by trial number, without those already recorded.

    Results of a machine that cannot be the run's target are ignored, and ``on_note`` is called with the reason. Kits
    that were packed before they measured the P99 prompt, too, leave P99s and memory over a spread to be predicted.
    """
    asked = spec.target
    known = None if asked.local or asked.device.startswith("ssh:") or asked.sheet is None else asked.sheet.name
    found = kit_results(folder.path, runtime=asked.runtime, target=known, on_note=on_note)
    notes = {
        number: measurement_notes(
            taken,
            spec.target.rates,
            final=True,
            request=spec.space,
            predicted={} if target is None else target.predict(trials[number].design),
            prompt_p99=spec.prompt_p99,
        )
        | {"measured_because": "kit"}
        for number, taken in found.items()
    }
    if spec.prompt_p99 is not None and any(LONGEST not in taken.environment for taken in found.values()):
        on_note(
            f"this kit measured prompts of {spec.workload.prompt_tokens:,} tokens, the P50: P99s over prompts of up to "
            f"{spec.prompt_p99:,} tokens (P99) and memory are predicted from its results"
        )
    return {number: each for number, each in notes.items() if trials[number].measured != each["measured"]}


def record(trials: Trials, target: Target, notes: dict[int, dict[str, object]]) -> None:
    """Records measurements, updates the target with them, and stores its new predictions for every trial.

    The predictions that were stored before the measurement do not change.
    """
    for number, each in notes.items():
        trials.note(number, **each)
    target.learn(trials.measured())
    for item in trials.all():
        if item.alive:
            trials.note(item.number, believed_now=target.predict(item.design))
