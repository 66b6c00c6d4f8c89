"""Rewrites the sample outputs, counts and pictures of README.md and docs/ from the program itself: ``make figures``.

A sample output is a code block after ``<!-- output: COMMAND -->`` (``lines=12`` keeps the first twelve lines); a text
file, such as the end of a long search, after ``<!-- file: PATH -->``. A count, or a figure of the tables in
benchmarks/, stands between ``<!-- count: NAME -->`` and ``<!-- end -->``. ``--check`` changes nothing and fails where
something is stale.
"""

from __future__ import annotations

import csv
import functools
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CLI = "import sys; sys.argv[0] = 'chipwise'; from chipwise.cli import main; main()"
BLOCK = re.compile(
    r"(<!-- (output|file): ([^>]*?)(?: lines=(\d+))? -->\n+```\w*\n)(.*?)(^```$)", flags=re.DOTALL | re.MULTILINE
)
COUNT = re.compile(r"(<!-- count: (\w+) -->)(.*?)(<!-- end -->)", flags=re.DOTALL)


def render(text: str) -> str:
    """``text`` with every sample output and count as the program gives it now."""
    text = BLOCK.sub(lambda m: f"{m[1]}{_content(m[2], m[3], int(m[4] or 0), m[5])}\n{m[6]}", text)
    return COUNT.sub(lambda m: m[1] + counts()[m[2]] + m[4], text)


def _content(kind: str, what: str, lines: int, before: str) -> str:
    if kind == "file":
        path = ROOT / what
        found = path.read_text(encoding="utf-8") if path.exists() else before
    else:
        found = f"$ {what}\n{output_of(what)}"
    kept = found.rstrip().splitlines()
    return "\n".join(kept[:lines] if lines else kept)


@functools.cache
def output_of(command: str) -> str:
    """Output of a ``chipwise`` command at 80 columns."""
    words = command.split()
    assert words[0] == "chipwise", command
    environment = os.environ | {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(
        [sys.executable, "-c", CLI, *words[1:]], capture_output=True, text=True, check=True, env=environment
    )
    return "\n".join(line.rstrip() for line in done.stdout.splitlines())


@functools.cache
def counts() -> dict[str, str]:
    """Counts of what is bundled, and figures of the tables in benchmarks/."""
    import chipwise
    from chipwise.design.strategies.algorithms import STRATEGIES
    from chipwise.hardware.runtime import RUNTIMES

    claims = (ROOT / "docs" / "notes" / "claims.md").read_text(encoding="utf-8")
    verdicts = re.findall(r"^\|.*\| \*\*(holds|conditions|wrong|open)\*\*", claims, flags=re.MULTILINE)
    return {
        "models": str(len(chipwise.models())),
        "devices": str(len(chipwise.devices())),
        "runtimes": str(len(RUNTIMES)),
        "strategies": str(len(STRATEGIES.names())),
        "claims": str(len(verdicts)),
        **{f"claims_{name}": str(verdicts.count(name)) for name in ("holds", "conditions", "wrong", "open")},
        **_cpu_figures(),
        **_search_figures(),
        **_winner_figures(),
    }


def _rows(name: str) -> list[dict[str, str]]:
    with (ROOT / "benchmarks" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _cpu_figures() -> dict[str, str]:
    """Mean error and rank correlation of predicted times on one CPU, before anything of the run is learnt."""
    from chipwise.core.statistics import kendall_tau

    found = {}
    rows = _rows("predicted-vs-measured-epyc-zen5-ort1.31.1-2026-11-21.csv")
    for phase in ("decode", "prefill"):
        kept = [row for row in rows if (row["phase"], row["stage"]) == (phase, "calibrated")]
        predicted, measured = ([float(row[name]) for row in kept] for name in ("predicted_s", "measured_s"))
        error = statistics.mean(abs(p / m - 1) for p, m in zip(predicted, measured, strict=True))
        found |= {f"cpu_{phase}_error": f"{100 * error:.1f}", "cpu_designs": str(len(kept))}
        found[f"cpu_{phase}_tau"] = f"{kendall_tau(predicted, measured):.2f}"
    return found


def _search_figures() -> dict[str, str]:
    """Mean shares of the true hypervolume of HW-GPT-Bench s2 that ``auto`` and the best other strategy reach."""
    scores: dict[tuple[str, int], list[float]] = {}
    for row in _rows("search-hwgpt-s.csv"):
        if row["problem"] == "s2":
            scores.setdefault((row["strategy"], int(row["evaluations"])), []).append(float(row["score"]))
    means = {key: statistics.mean(found) for key, found in scores.items()}
    counts = (100, 200, 500)
    others = {name for name, _ in means if not name.startswith("auto")}

    def shown(names: Collection[str]) -> str:
        return ", ".join(f"{max(means[name, count] for name in names):.3f}".lstrip("0") for count in counts)

    return {"s2_auto": shown(["auto"]), "s2_other": shown(others), "s2_seeds": str(len(scores["auto", 500]))}


def _winner_figures() -> dict[str, str]:
    """Bits per byte (with their standard deviation over seeds) and time per token of winner and reference design."""
    found = {}
    rows = _rows("winner-vs-baseline-xeon-ort1.31.1-2026-11-22.csv")
    for name in ("winner", "baseline"):
        bits, seconds = (
            [float(row[column]) for row in rows if row["contender"] == name]
            for column in ("bits_per_byte", "latency_p50_s")
        )
        found[f"{name}_bits"] = f"{statistics.mean(bits):.3f} ± {statistics.stdev(bits):.3f}"
        found[f"{name}_us"] = f"{1e6 * statistics.mean(seconds):.3g}"
        found["winner_seeds"] = str(len(bits))
    return found


def main() -> int:
    """Rewrites pages and pictures, or with ``--check`` names those that are stale."""
    stale = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        new = render(text)
        if new != text:
            stale.append(page)
            if "--check" not in sys.argv:
                page.write_text(new, encoding="utf-8")
    sys.path.insert(0, str(Path(__file__).parent))
    from pictures import pictures

    for path, drawn in pictures().items():
        if not path.exists() or path.read_text(encoding="utf-8") != drawn:
            stale.append(path)
            if "--check" not in sys.argv:
                path.write_text(drawn, encoding="utf-8")
    for page in stale:
        print(f"{'stale' if '--check' in sys.argv else 'wrote'}: {page.relative_to(ROOT)}")
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
