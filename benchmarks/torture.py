"""Bad inputs and kills: no traceback, no hang, no finished trial lost; every message names the wrong field.

    nice python benchmarks/torture.py --inputs 500 --kills 100 --seed 1 --out torture.csv
    nice python benchmarks/torture.py --inputs 5000 --slice 0:200 --kills 0 --out part.csv

All inputs that were once answered wrongly (``torture_reported.py``, ``torture_data.py``; these alone with --inputs 0)
are tried; others are drawn from ``torture_inputs.py`` (run files, configs, broken files, options, names and tables at
the command line, each in a process of its own and an empty folder, and wrong arguments of the Python API) and, one in
five, from ``torture_folders.py`` (damaged model folders). Every one must end in exit code 1 or 2 (an API call: a
ChipwiseError) with a message that contains a word of the case. One in --fresh runs in a new interpreter; the others in
a fork of this one, which has the imports behind it.

Kills interrupt searches like examples/smoke.yaml (fake runtime, 60 s of CPU time) at random moments with SIGKILL,
SIGINT or SIGTERM, sent to the search, one of its workers or the whole group, the first time after a training is
finished; the search is resumed until it is finished, and the trainings in its journal are compared before and after
each kill.

Columns: kind (input, kill), case, exit, seconds, verdict (ok, traceback, hang, accepted, unnamed, rough, lost), kept
(trainings and measured finalists that the journal held before a kill), message. A word of fewer than three characters
must stand alone in the message; usage lines do not count. "rough" is a message that shows a library's own words, or
counts "1 rows". Exit code 1 if any verdict is not ok. With --out, rows are written as they come.
"""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import psutil
import yaml

from provenance import stamp
from torture_data import data_cases
from torture_folders import folders
from torture_inputs import FIFO, FOLDER, SMOKE, ZERO, Case, changed, every
from torture_reported import reported

FITTING = Path(__file__).resolve().parents[1] / "fitting" / "src"  # `validate` lives there
sys.path.insert(0, str(FITTING))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(FITTING)]))
HANG_S = 20.0  # of CPU time, or three times as long on the clock: the machine may be busy
COLUMNS = ("kind", "case", "exit", "seconds", "verdict", "kept", "message")
MAIN = "from chipwise.cli import main; main()"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One row."""

    kind: str
    case: str
    exit: str
    seconds: float
    verdict: str
    message: str
    kept: int | None = None  # results that the journal held before a kill, all of which it must hold after


def place(folder: Path, name: str, content: str | bytes) -> None:
    """Puts ``content`` at ``name``: a file, a pipe, a folder or a device."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if content == FIFO:
        os.mkfifo(path)
    elif content == FOLDER:
        path.mkdir()
    elif content == ZERO:
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape"))


def in_fork(case: Case, folder: Path) -> int:
    """Starts the case in a fork; its output goes to ``folder``/out and err."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.setsid()
        os.chdir(folder / "work")
        resource.setrlimit(resource.RLIMIT_AS, (12 * 2**30,) * 2)
        for number, name in ((1, case.out or folder / "out"), (2, folder / "err")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.environ.update(case.environment)
        encoding = case.environment.get("PYTHONIOENCODING")
        sys.stdout, sys.stderr = (open(number, "w", closefd=False, encoding=encoding) for number in (1, 2))  # noqa: SIM115
        code = run_call(case) if case.call else run_command(case)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_command(case: Case) -> int:
    """Exit code of the command line, in this process."""
    from chipwise.cli import main

    sys.argv = ["chipwise", *case.arguments]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    return 0


def run_call(case: Case) -> int:
    """Exit code for the way in which the call ended."""
    from chipwise.errors import ChipwiseError

    assert case.call
    try:
        case.call()
    except ChipwiseError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def in_new_process(case: Case, folder: Path) -> int:
    """Starts the command line in an interpreter of its own."""
    with Path(case.out or folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        command = [sys.executable, "-c", MAIN, *case.arguments]
        options: dict[str, Any] = {"cwd": folder / "work", "env": {**os.environ, **case.environment}}
        return subprocess.Popen(command, stdout=out, stderr=err, start_new_session=True, **options).pid


def attempt(case: Case, folder: Path, *, fresh: bool) -> Outcome:
    """Runs one case and classifies its outcome."""
    work = folder / "work"
    work.mkdir(parents=True)
    for name, content in case.files.items():
        place(work, name, content)
    for name, target in case.links.items():
        (work / name).symlink_to(target)
    begun = time.monotonic()
    usable = fresh and not case.call and all("\0" not in part for part in case.arguments)
    child = in_new_process(case, folder) if usable else in_fork(case, folder)
    status, cpu_s = None, 0.0
    while status is None and cpu_s < HANG_S and time.monotonic() - begun < 3 * HANG_S:
        done, raw, usage = os.wait4(child, os.WNOHANG)
        if done:
            status, cpu_s = os.waitstatus_to_exitcode(raw), usage.ru_utime + usage.ru_stime
        else:
            time.sleep(0.02)
            times = psutil.Process(child).cpu_times()
            cpu_s = times.user + times.system
    if status is None:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    text = (folder / "err").read_text(errors="replace") if (folder / "err").exists() else ""
    out = (folder / "out").read_text(errors="replace") if (folder / "out").exists() else ""
    message = next((line for line in reversed(text.splitlines()) if line.strip()), "").replace(f"{work}/", "")
    return Outcome(
        kind="input",
        case=case.name,
        exit=str(status),
        seconds=round(time.monotonic() - begun, 2),
        verdict=judge(case, status, text, text + out),
        message=message[:300],
    )


def judge(case: Case, status: int | None, complaint: str, everything: str) -> str:
    """The verdict on one case."""
    if "Traceback (most recent call last)" in everything or (status is not None and status not in (0, 1, 2)):
        return "traceback"
    if status is None:
        return "hang"
    if status == 0:
        return "ok" if case.rows else "accepted"
    flat = " ".join(line.strip() for line in complaint.splitlines() if not line.startswith(("Usage:", "Try '")))
    named = any(mentions(" ".join(word.split()), flat) for word in case.words)
    if not named or len(complaint) > 4000:
        return "unnamed"
    return "rough" if ROUGH.search(flat) else "ok"


ROUGH = re.compile(
    r"Value error|Input should be|[Rr]ecursion|NoneType|has no attribute|Errno|Exception|<class |object at 0x"
    r"|unhashable"
    r"|(?<![\w.,])1 (\w+ )?(rows|entries|threads|tokens|layers|steps|candidates|heads|files|values|devices|columns)\b"
)


def mentions(word: str, text: str) -> bool:
    """Whether ``text`` contains ``word``; a word of one or two characters must stand alone."""
    if len(word) > 2:
        return word in text
    return re.search(rf"(?<![\w.]){re.escape(word)}(?![\w.])", text) is not None


def inputs(chosen: list[Case], fresh: int) -> Iterator[Outcome]:
    """Outcomes of bad inputs."""
    import torch  # noqa: F401

    with tempfile.TemporaryDirectory(prefix="torture") as folder:
        os.environ["CHIPWISE_HOME"] = str(Path(folder, "home"))
        for number, case in enumerate(chosen):
            found = attempt(case, Path(folder, str(number)), fresh=number % fresh == 0)
            shutil.rmtree(Path(folder, str(number)), ignore_errors=True)
            progress("inputs", number + 1, len(chosen), found)
            yield found


def progress(what: str, done: int, total: int, last: Outcome) -> None:
    """A progress line in a terminal, and a permanent line for every failure."""
    if last.verdict != "ok":
        print(f"\r{last.verdict}: {last.case}: {last.message[:200]}", file=sys.stderr)
    if sys.stderr.isatty():
        print(f"\r{what} {done}/{total} ", end="\n" if done == total else "", file=sys.stderr, flush=True)


def trainings(folder: Path, spec: Path) -> dict[str, float]:
    """Bits per byte of every training and finalist that the journal holds, by trial and rung; read from a copy."""
    from chipwise.design.run.spec import load_run
    from chipwise.design.run.trials import Trials, choice_labels
    from chipwise.design.strategies.study import Study
    from chipwise.model.space.search_space import SearchSpace

    if not (folder / "study.journal").exists():
        return {}
    copy = folder.parent / "copy.journal"
    shutil.copy(folder / "study.journal", copy)
    run = load_run(spec)
    space = SearchSpace(run.space)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        study = Study(
            copy,
            name=run.name,
            directions=[goal.direction for goal in run.goals],
            identity=run.identity,
            choices=choice_labels(space),
        )
        every_trial = Trials(study, run, space).all()
    found = {f"{item.number}/{rung.rung}": rung.quantised_loss for item in every_trial for rung in item.rungs}
    return found | {
        f"{item.number}/{name}": value
        for item in every_trial
        for name, value in (("final", item.notes.exported_loss), ("test", item.notes.test_loss))
        if value is not None
    }


def begin(spec: Path, folder: Path, log: Path) -> subprocess.Popen[bytes]:
    """Starts or resumes a search in a process group of its own."""
    hears = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{hears}; {MAIN}", "search", str(spec), "--out", str(folder), "--resume"]
    with log.open("wb") as stream:
        return subprocess.Popen(command, stdout=stream, stderr=stream, start_new_session=True)


def strike(process: subprocess.Popen[bytes], number: int, target: str) -> str:
    """Sends the signal; returns what was really hit."""
    workers = psutil.Process(process.pid).children(recursive=True)
    if target == "worker" and workers:
        workers[0].send_signal(number)
        return "worker"
    if target == "group":
        os.killpg(process.pid, number)
        return "group"
    process.send_signal(number)
    return "parent"


def prepare(spec: Path, folder: Path, log: Path) -> None:
    """Calibrates once, because calibration takes longer than these searches and has its own tests."""
    process = begin(spec, folder, log)
    while process.poll() is None and not (folder / "profile.json").exists():
        time.sleep(0.5)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def first_results(process: subprocess.Popen[bytes], folder: Path, spec: Path) -> dict[str, float]:
    """Waits up to ten minutes for the first finished training of a new search."""
    found: dict[str, float] = {}
    deadline = time.monotonic() + 600
    while not found and process.poll() is None and time.monotonic() < deadline:
        time.sleep(2)
        found = trainings(folder, spec)
    return found


def again(folder: Path, name: str) -> Path:
    """A run folder for the next search, with the profile in it."""
    folder.mkdir()
    if (profile := Path(name, "first", "profile.json")).exists():
        shutil.copy(profile, folder)
    return folder


def kills(count: int, seed: int, least_s: float, most_s: float, profile: Path | None) -> Iterator[Outcome]:
    """Outcomes of ``count`` kills, and of searches that failed though nobody killed them."""
    chance, done = random.Random(f"kills {seed}"), 0
    with tempfile.TemporaryDirectory(prefix="torture") as name:
        os.environ["CHIPWISE_HOME"] = str(Path(name, "home"))
        base = changed(
            changed(SMOKE, "target.runtime", "fake"), "budget", {"cpu": "60 s", "final": "1 s", "workers": 2}
        )
        spec, log, round_, folder = Path(name, "smoke.yaml"), Path(name, "log"), 0, Path(name, "run0")
        spec.write_text(yaml.dump(base))
        if profile is None:
            prepare(spec, Path(name, "first"), log)
        else:
            Path(name, "first").mkdir()
            shutil.copy(profile, Path(name, "first", "profile.json"))
        folder = again(folder, name)
        known: dict[str, float] = {}
        while done < count:
            begun = time.monotonic()
            process = begin(spec, folder, log)
            if not known:
                known = first_results(process, folder, spec)
            try:
                code = process.wait(chance.uniform(least_s, most_s))
                end = outcome("finish", str(code), begun, log, known, trainings(folder, spec), bad=code != 0)
                if code and not known:  # nothing was trained: the next search would end in the same way
                    raise SystemExit(f"a search that nobody killed ends before its first training: {end.message}")
                if end.verdict != "ok":  # a search that nobody killed must succeed, and keep what it had
                    yield end
                round_ += 1  # finished: the next kill strikes a new search
                known, folder = {}, again(Path(name, f"run{round_}"), name)
                continue
            except subprocess.TimeoutExpired:
                pass
            signal_, target = chance.choice((signal.SIGKILL, signal.SIGINT, signal.SIGTERM)), chance.choice(TARGETS)
            struck = strike(process, signal_, target)
            title = f"{signal_.name} to {struck} after {time.monotonic() - begun:.1f} s, run {round_}"
            code = settle(process, struck)
            now = trainings(folder, spec)
            found = outcome(title, str(code), begun, log, known, now)
            known, done = now, done + 1
            progress("kills", done, count, found)
            yield found


TARGETS = ("parent", "worker", "group")


def settle(process: subprocess.Popen[bytes], struck: str) -> int | None:
    """Exit code after a signal; None for a hang, or if workers outlive their search."""
    limit = 3 * HANG_S if struck != "worker" else 1.0  # a search goes on without one worker: it is killed in turn
    workers = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    try:
        code: int | None = process.wait(limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        code = process.wait() if struck == "worker" else None
    _, alive = psutil.wait_procs(workers, timeout=3 * HANG_S)
    return None if alive else code


def outcome(
    title: str,
    code: str,
    begun: float,
    log: Path,
    before: dict[str, float],
    after: dict[str, float],
    *,
    bad: bool = False,
) -> Outcome:
    """The verdict on one kill."""
    text = log.read_text(errors="replace")
    lost = [key for key, value in before.items() if after.get(key) != value]
    verdict = "lost" if lost else "traceback" if "Traceback" in text or bad else "hang" if code == "None" else "ok"
    message = f"lost {lost[:5]}" if lost else next((line for line in reversed(text.splitlines()) if line.strip()), "")
    seconds = round(time.monotonic() - begun, 2)
    return Outcome(
        kind="kill", case=title, exit=code, seconds=seconds, verdict=verdict, message=message[:300], kept=len(before)
    )


def written(outcomes: Iterable[Outcome], path: Path) -> list[Outcome]:
    """The outcomes, each added to the CSV file at ``path`` as it comes."""
    found = []
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for item in outcomes:
            writer.writerow([getattr(item, name) for name in COLUMNS])
            file.flush()
            found.append(item)
    stamp(path)
    return found


def drawn(count: int, seed: int, only: str) -> list[Case]:
    """All reported cases and ``count`` others whose names contain ``only``, one in five a damaged folder, mixed."""
    chance, found = (
        random.Random(f"inputs {seed}"),
        [case for case in (*reported(), *data_cases()) if only in case.name],
    )
    for made, wanted in ((every(), count - count // 5), (list(folders()), count // 5)):
        cases = [case for case in made if only in case.name]
        found += chance.sample(cases, min(wanted, len(cases)))
    chance.shuffle(found)
    return found


def main() -> int:
    """Runs, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=500)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fresh", type=int, default=20, help="one input in so many has an interpreter of its own")
    parser.add_argument("--moments", default="2,20", help="seconds after which a search is killed: least,most")
    parser.add_argument("--profile", type=Path, help="this machine's profile; without it, it is calibrated first")
    parser.add_argument("--only", default="", help="draw from inputs whose name contains this")
    parser.add_argument("--slice", default="", help="which of the drawn inputs, such as 0:200")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    chosen = drawn(options.inputs, options.seed, options.only)
    first, _, last = options.slice.partition(":")
    chosen = chosen[int(first or 0) : int(last or len(chosen))]
    least_s, most_s = map(float, options.moments.split(","))
    outcomes = itertools.chain(
        inputs(chosen, options.fresh) if chosen else (),
        kills(options.kills, options.seed, least_s, most_s, options.profile) if options.kills else (),
    )
    found = written(outcomes, options.out) if options.out else list(outcomes)
    for kind in ("input", "kill"):
        verdicts = Counter(item.verdict for item in found if item.kind == kind)
        if verdicts:
            print(f"{kind}s: {sum(verdicts.values())}; " + ", ".join(f"{n} {v}" for v, n in sorted(verdicts.items())))
    print(json.dumps({"not ok": sum(item.verdict != "ok" for item in found)}))
    return int(any(item.verdict != "ok" for item in found))


if __name__ == "__main__":
    sys.exit(main())
