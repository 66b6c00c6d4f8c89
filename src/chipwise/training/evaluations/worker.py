"""A child process that evaluates a model on a task: ``python -m chipwise.training.evaluations.worker``.

The process tunes a copy of the trained weights, exports it in the deployed format, evaluates the exported graph on the
held-out items, and writes the result and the classifier to the job's folder. Finished jobs are not repeated. The
protocol is that of ``core/workers.py``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from chipwise.core.digest import digest
from chipwise.core.files import build, read_json, storage, write_json
from chipwise.core.workers import serve
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.arch.io import from_data, to_data
from chipwise.training.data.tokenizer import load_tokenizer
from chipwise.training.evaluations.classifier import Classifier, ClassifierHead, write_classifier
from chipwise.training.evaluations.data import Kind, Task, load_task
from chipwise.training.loop.evaluate import load_model, quantised
from chipwise.training.loop.worker import limit_threads

RESULT = "result.json"
_METHOD = 2  # increase it when tuning or evaluation changes, so that old results are not reused


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskJob:
    """A job: the evaluation of one model on one task."""

    task: str  # a shipped task's name, or a file
    kind: Kind | None = None
    arch: ArchSpec
    weight_format: str  # number format of the deployed weights
    weights: str  # safetensors file, Transformer keys
    tokenizer: str
    folder: str  # folder for the result and the classifier
    cpu_s: float | None = None  # CPU seconds that tuning may take; None: as many as it needs

    def to_data(self) -> dict[str, object]:
        """The job as JSON values."""
        return {**{name: getattr(self, name) for name in self.__slots__}, "arch": to_data(self.arch)}

    @classmethod
    def from_data(cls, data: dict[str, object]) -> TaskJob:
        """Reads the output of :meth:`to_data`."""
        return build(cls, {**data, "arch": from_data(data.get("arch"))})

    def key(self, task: Task) -> str:
        """Key under which the result is stored."""
        return digest([_METHOD, task.identity, self.arch.digest, self.weight_format, Path(self.weights).name])

    def finished(self, task: Task) -> dict[str, object] | None:
        """The result in the job's folder, if it belongs to this job."""
        path = Path(self.folder) / RESULT
        kept = read_json(path) if path.exists() else None
        return kept["result"] if isinstance(kept, dict) and kept.get("key") == self.key(task) else None


def run_job(job: TaskJob) -> dict[str, object]:
    """Tunes, exports and evaluates; writes the fields of :class:`chipwise.training.evaluations.evaluate.TaskResult`.

    Raises:
        DataError: The task cannot be read.
        InputError: The weights cannot be read or are not finite.
        TrainingDiverged: The loss of tuning was no longer finite.
    """
    from chipwise.training.evaluations.evaluate import evaluate_task, learn, score_answers

    task = load_task(job.task, kind=job.kind)
    folder = Path(job.folder)
    kept = job.finished(task)
    if kept is not None:
        return kept
    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
    model, tokenizer = load_model(job.arch, job.weights), load_tokenizer(job.tokenizer)
    if task.kind == "choice":
        result = asdict(evaluate_task(quantised(model, job.weight_format), tokenizer, task))
        result["judged"] = f"weights rounded to {job.weight_format}, in torch"
    else:
        tuned, head = learn(model, tokenizer, task, cpu_s=job.cpu_s)
        read = {
            "weight": head.linear.weight.detach(),
            "bias": head.linear.bias.detach(),
            "mean": head.mean,
            "deviation": head.deviation,
        }
        write_classifier(
            folder,
            task=task,
            design=Design(arch=job.arch, weights=job.weight_format),
            weights={name: value.numpy() for name, value in tuned.state_dict().items()},
            reading=ClassifierHead(**{name: value.numpy() for name, value in read.items()}),
            tokenizer=Path(job.tokenizer),
        )
        classifier = Classifier(folder)
        scores = classifier.scores([item.text for item in task.test])
        result = asdict(score_answers(task, scores, method="tune", judged=classifier.judged))
    write_json(folder / RESULT, {"key": job.key(task), "result": result})
    return result


def main() -> None:
    """Runs the jobs that arrive on standard input."""
    serve(lambda data, _report: run_job(TaskJob.from_data(data)), start=limit_threads)


if __name__ == "__main__":
    main()
