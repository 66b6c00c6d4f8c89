"""Writes the report as an HTML page, section by section. All content that comes from files is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chipwise.core.page.document import document
from chipwise.core.page.markup import empty, safe, section, table
from chipwise.design.report import by_matrix, facts, insights, law_text, unmet, words
from chipwise.design.report.plots import Plot, draw
from chipwise.design.report.record import RunRecord, Trial
from chipwise.training.tasks.protocol import Section

_BADGES: dict[facts.Status, str] = {
    "met": "met",
    "probably met": "met",
    "broken": "broken",
    "paid": "wait",
    "expected": "wait",
    "at risk": "wait",
    "unknown": "wait",
}


def page(record: RunRecord) -> str:
    """The report of a run as one self-contained HTML document.

    Raises:
        MissingExtra: plotly, whose script the page contains, is not installed.
    """
    plots = draw(record)
    figures = {plot.key: [view.figure for view in plot.views] for plot in plots if plot.views}
    after = {"front": _failed(record), "promised": _promises(record)}
    sections = [
        _answer(record),
        constraints(record),
        _contenders(record),
        insights.continuations(record),
        *[section(item.name, item.title, item.html) for item in task_sections(record)],
        by_matrix.by_matrix(record),
        insights.tasks(record),
        law_text.section_of(record),
    ]
    sections += [_plot(plot, after.get(plot.key, "")) for plot in plots]
    sections += [
        budget(record),
        insights.explained(record),
        insights.elsewhere(record),
        _trials(record),
        _about(record),
        notes(record),
    ]
    body = f"{_head(record)}\n{''.join(sections)}{_foot(record)}"
    return document(f"{record.name} · chipwise", body, figures=figures)


def task_sections(record: RunRecord) -> Sequence[Section]:
    """The sections that the task defines, such as example outputs of the models."""
    return record.words.task.report_sections(record.samples)


def _costs(record: RunRecord) -> tuple[str, ...]:
    """Cost metrics, in the order of their columns in the table of trials."""
    return tuple(sorted(record.words.served(), key=lambda name: {"tpot": 0, "ttft": 1, "peak": 3}.get(name[:4], 2)))


def _head(record: RunRecord) -> str:
    state = _state(record)
    links = (
        ("constraints", "Constraints"),
        ("contenders", "Winner and reference design"),
        *([("writes", "What it writes")] if record.continuations else []),
        *[(item.name, item.title) for item in task_sections(record)],
        *([("by-matrix", by_matrix.TITLE)] if by_matrix.known(record) else []),
        *([("tasks", "Tasks")] if record.tasks else []),
        ("front", "Front"),
        ("promised", "Promised and measured"),
        *([("plan", "Training plan")] if facts.by_law(record) else [("curves", "Training")]),
        ("explained", "Why"),
        ("trials", "Trials"),
        ("about", "Run"),
    )
    return header(record, f"Target: {facts.where(record)}", links) + state


def header(record: RunRecord, about: str, links: Iterable[tuple[str, str]]) -> str:
    """The page's header: the run's name, the line ``about``, the workload, and links to sections."""
    nav = "".join(f'<a href="#{key}">{label}</a>' for key, label in links)
    return (
        f'<header><div class="brand">chipwise</div><h1>{safe(record.name)}</h1>'
        f'<div class="muted">{safe(about)} · {safe(facts.workload(record))}'
        f" · {safe(record.created.replace('T', ' ')[:16])}</div></header><nav>{nav}</nav>"
    )


def _state(record: RunRecord) -> str:
    """A banner for a run that is unfinished or whose winner breaks limits; empty for any other run."""
    told = unmet.verdict(record)
    if record.status == "partial":
        told = "This run has not finished. The sections below show the results so far."
        told += f" It stopped: {record.stopped}." if record.stopped else ""
    step = unmet.next_step(record)
    return f'<div class="banner">{safe(told)} {safe(step)}</div>' if told else ""


def _answer(record: RunRecord) -> str:
    winner = record.trial(record.winner)
    if winner is None:
        reason = safe(facts.no_winner(record))
        return f'<div class="answer open"><h2>No winner yet</h2><p class="verdict">{reason}</p></div>'
    known = ("quality", "parameters", *record.words.served())
    tiles = "".join(_tile(record, winner, metrics, title) for title, metrics in _TILES if metrics[0] in known)
    return (
        f'<div class="answer"><h2>The winner is trial {winner.number}</h2>'
        f'<p class="summary">{safe(winner.summary)}</p><div class="tiles">{tiles}</div>'
        f'<p class="verdict">{safe(facts.comparison(record))}</p></div>'
    )


_TILES = (
    ("", ("quality",)),
    ("Time per output token", ("tpot_p50", "tpot_p99")),
    ("Time to first token", ("ttft_p50", "ttft_p99")),
    ("Peak memory", ("peak_memory",)),
    ("Parameters", ("parameters",)),
)


def _tile(record: RunRecord, trial: Trial, metrics: Sequence[str], title: str) -> str:
    baseline = record.trial(record.baseline)
    if metrics[0] == "quality":
        pair = [trial] if baseline is None else [trial, baseline]
        metrics = (facts.reported_quality(record, *pair)[0],)
        metric = record.words.metric.title
        title = "Expected loss, nats per token" if metrics[0] == facts.LOSS else metric[0].upper() + metric[1:]
    elif record.words.one_pass() and metrics[0] == "ttft_p50":
        title = record.words.labels.latency.capitalize()
    known = facts.value(record, trial, metrics[0])
    shown = safe(record.words.show(known.value, metrics[0]))
    if len(metrics) > 1:
        tail = facts.value(record, trial, metrics[1])
        value = tail.value if tail.source == known.source else None  # because only one source is named for both
        shown += f" <small>P50</small><br>{safe(record.words.show(value, metrics[1]))} <small>P99</small>"
    lines = [
        safe(
            f"{_text_of(record, metrics[0])}, {facts.quality_of(trial)}"
            if metrics[0] in words.QUALITY
            else known.source
        )
    ]
    if trial.clean is False and known.source == "measured":
        lines[0] += " on a busy machine"
    if baseline is not None and baseline.number != trial.number and known.value is not None:
        other = facts.value(record, baseline, metrics[0])
        if other.value and other.source == known.source:
            which = " P50" if len(metrics) > 1 else ""
            difference = words.signed(known.value, other.value)
            if metrics[0] in words.QUALITY and record.words.metric.more_is_better:
                difference = f"errors {difference}"
            lines.append(safe(f"reference design{which} {record.words.show(other.value, metrics[0])} ({difference})"))
    return (
        f'<div class="tile"><div class="label">{safe(title)}</div><div class="value">{shown}</div>'
        f'<div class="from">{"<br>".join(lines)}</div></div>'
    )


def _text_of(record: RunRecord, metric: str) -> str:
    return f"{'test' if metric.startswith('test_') else 'validation'} {record.words.labels.data}"


def constraints(record: RunRecord) -> str:
    """The section on limits: checks each of them for the winner, or for the reference design if there is no winner."""
    title = "Constraints"
    if not record.constraints:
        return section("constraints", title, empty("The run file states no constraint."))
    trial = record.trial(record.winner) or record.trial(record.baseline)
    caption = "There is no winner and no reference design yet, so nothing was checked."
    if trial is not None:
        caption = (
            f"Checked for the {safe(facts.name(record, trial))}. Promised values were predicted before measuring. "
            f"{_how_measured(record, trial)} {safe(facts.paid(record, trial))}"
        )
    rows = [_check_row(record, item) for item in facts.checks(record, trial)]
    head = ("constraint", "limit", "promised", "measured", "share of the limit", "")
    return section("constraints", title, table(head, rows, numbers={2, 3, 4}), caption)


def _how_measured(record: RunRecord, trial: Trial) -> str:
    """Explains where the column of measured values comes from."""
    if trial.measured is None and not record.target.measures:
        return "Nothing was measured; the probability of meeting each limit is predicted."
    where = safe(record.target.title or record.target.device if not record.target.measures else facts.where(record))
    return (
        f"Measured on {where}, with 95 % intervals; a limit on a percentile is met if the whole interval is "
        "within the limit, and probably met if only the measured value is."
    )


def _check_row(record: RunRecord, check: facts.Check) -> list[str]:
    constraint = check.constraint
    used = words.UNKNOWN if check.measured is None else f"{check.measured / constraint.limit * 100:.0f} %"
    return [
        safe(record.words.label(constraint.metric)),
        safe(words.limit(constraint.text)).replace(" ", "\u00a0", 1),
        *map(safe, check.shown),
        used,
        _badge(check.status, facts.status_text(check)),
    ]


def _badge(status: facts.Status, text: str = "") -> str:
    return f'<span class="badge {_BADGES[status]}">{safe(text or facts.STATUS[status])}</span>'


def _contenders(record: RunRecord) -> str:
    trials = facts.contenders(record)
    if not trials:
        return section("contenders", "Winner and reference design", empty("No winner is known yet."))
    head = ["", *[safe(_contender(record, trial)) for trial in trials]]
    rows = [["design", *[f"<small>{safe(trial.summary)}</small>" for trial in trials]]]
    known = any(trial.perplexity is not None for trial in trials)
    tested = ["test_loss"] if any(trial.test_loss is not None for trial in trials) else []
    quality = ("expected_loss",) if facts.by_law(record) else (*tested, "loss", *(["perplexity"] if known else []))
    shown = (*quality, *record.words.served(), "parameters")
    rows += [
        [safe(record.words.label(metric)), *[_cell(record, trial, metric) for trial in trials]] for metric in shown
    ]
    if not facts.by_law(record):
        rows.append(["training", *[safe(_training(record, trial)) for trial in trials]])
    if record.constraints:
        rows.append(["constraints", *[_kept(record, trial) for trial in trials]])
    found = "was measured" if record.target.measures else "is predicted"
    caption = (
        f"The reference design is a {record.words.labels.reference}. It is the largest size that {found} within the "
        "same constraints before its training and that one final training can train on at least a quarter of a token "
        "per parameter. If no size can be trained so long, it is the smallest one. It has the same training budget as "
        "the winner. The knee is where the front bends most."
    )
    if facts.by_law(record):
        caption = law_text.CONTENDERS
    if record.winner is not None:
        device = "here" if record.target.device == "local" else safe(record.target.device)
        caption += f" Roofline and operators: <code>chipwise explain winner --device {device} --html page.html</code>."
    return section("contenders", "Winner and reference design", table(head, rows), caption)


def _kept(record: RunRecord, trial: Trial) -> str:
    """A cell that names the constraints that a design breaks.

    If it breaks none, the cell shows the first status in ``_BADGES`` other than ``met`` that a constraint has.
    """
    broken = facts.broken_limits(record, trial)
    if broken:
        return f"{_badge('broken')} <small>{safe(broken)}</small>"
    states = {item.status for item in facts.checks(record, trial)}
    status: facts.Status = next((one for one in facts.LEAST_CERTAIN_FIRST if one in states), "met")
    return _badge(status, "all met" if status == "met" else "")


def _contender(record: RunRecord, trial: Trial) -> str:
    extra = ", the knee" if trial.number == record.knee and record.role(trial) != "candidate" else ""
    plain = "knee (" + f"trial {trial.number})" if trial.number == record.knee and not extra else None
    return plain or facts.name(record, trial) + extra


def _cell(record: RunRecord, trial: Trial, metric: str) -> str:
    known = facts.value(record, trial, metric)
    if known.value is None:
        return words.NOT_MEASURED if metric in record.words.served() else words.UNKNOWN
    source = facts.quality_of(trial) if metric in words.QUALITY else known.source
    if known.source == "measured" and trial.clean is False:
        source += ", busy machine"
    text = words.count(known.value) if metric == "parameters" else record.words.show(known.value, metric)
    guess = trial.predicted.get(metric) if known.source != "counted" else None
    promise = "" if guess is None else f"; predicted {record.words.span(guess.value, guess.low, guess.high, metric)}"
    if known.source == "expected" and guess is not None:
        return f"{safe(record.words.span(known.value, known.low, known.high, metric))} <small>expected</small>"
    return f"<b>{safe(text)}</b> <small>{safe(source)}{safe(promise)}</small>"


def _training(record: RunRecord, trial: Trial) -> str:
    if trial.train_cpu_s is None:
        return "not trained"
    tokens = f", {words.count(trial.curve[-1].tokens)} {record.words.labels.tokens}" if trial.curve else ""
    return f"{words.quantity(trial.train_cpu_s, 'time')} of CPU time{tokens}"


def _plot(plot: Plot, after: str) -> str:
    if not plot.views:
        return section(plot.key, plot.title, empty(plot.empty) + after)
    buttons = ""
    if len(plot.views) > 1:
        buttons = "".join(
            f'<button type="button" data-plot="{plot.key}" data-view="{i}" aria-pressed="{str(i == 0).lower()}">'
            f"{safe(view.label)}</button>"
            for i, view in enumerate(plot.views)
        )
        buttons = f'<div class="views">{buttons}</div>'
    height = plot.views[0].figure["layout"]["height"]
    drawn = f'<div class="plot" id="plot-{plot.key}" style="min-height:{height}px"></div>'
    return section(plot.key, plot.title, buttons + drawn + after, safe(plot.caption))


def _failed(record: RunRecord) -> str:
    failed = [trial for trial in record.trials if trial.state == "failed"]
    if not failed:
        return ""
    items = "".join(
        f"<li>trial {trial.number} ({safe(trial.summary)}): {safe(trial.reason or 'for an unknown reason')}</li>"
        for trial in failed
    )
    count = words.times(len(failed), "trial")
    return f"<details><summary>{count} failed and cannot be drawn</summary><ul>{items}</ul></details>"


def _promises(record: RunRecord) -> str:
    if not record.promised_measured:
        return ""
    rows = []
    for item in record.promised_measured:
        trial = record.trial(item.trial)
        rows.append(
            [
                (safe(facts.name(record, trial)) if trial else str(item.trial), item.trial),
                (safe(record.words.label(item.metric)), item.metric),
                (safe(record.words.span(item.promised, item.low, item.high, item.metric)), item.promised),
                (safe(record.words.show(item.measured, item.metric, missing=words.NOT_MEASURED)), item.measured),
                (words.UNKNOWN, None)
                if item.measured is None
                else (words.signed(item.measured, item.promised), item.measured / item.promised - 1),
            ]
        )
    head = ("trial", "metric", "promised", "measured", "measured against promised")
    promises = _sortable(head, rows, numbers={2, 3, 4})
    return f'<details><summary>All promises as a table</summary><div class="long">{promises}</div></details>'


def budget(record: RunRecord) -> str:
    """The section on the CPU time of each phase."""
    allowed, title = record.budget, "Where the budget went"
    if not allowed.spent:
        return section("budget", title, empty("No phase has ended yet."))
    spent = sum(allowed.spent.values())
    rows = [[safe(phase), safe(words.quantity(seconds, "time"))] for phase, seconds in allowed.spent.items()]
    if allowed.cpu_s is None:
        rows.append(["<b>all phases on the searching machine</b>", f"<b>{safe(words.quantity(spent, 'time'))}</b>"])
    else:
        whole = safe(words.quantity(allowed.cpu_s, "time"))
        rows.append(["<b>all phases</b>", f"<b>{safe(words.quantity(spent, 'time'))}</b> of {whole}"])
    cost = "" if allowed.footprint is None else f"<p>{safe(allowed.footprint.sentence)}</p>"
    return section("budget", title, table(("phase", "CPU time (measured)"), rows, numbers={1}) + cost)


def _trials(record: RunRecord) -> str:
    if not record.trials:
        return section("trials", "All trials", empty("No candidate has been tried yet."))
    rows, classes = [], []
    for trial in record.trials:
        quality = facts.quality(record, trial)
        cells: list[tuple[str, object]] = [
            (str(trial.number), trial.number),
            (
                safe(words.role(record.role(trial)) + (", knee" if trial.number == record.knee else "")),
                record.role(trial),
            ),
            (safe(trial.state), trial.state),
            (f'<div class="text">{safe(trial.summary)}</div>', trial.summary),
            (safe(record.words.show(trial.parameters, "parameters")), trial.parameters),
            (safe(record.words.show(quality.value, "loss", missing="not trained")), quality.value),
        ]
        if not facts.by_law(record):
            cells.append((safe(words.quantity(trial.train_cpu_s, "time", missing="not trained")), trial.train_cpu_s))
        for metric in _costs(record):
            guess, real = trial.predicted.get(metric), (trial.measured or {}).get(metric)
            cells.append(
                (safe(record.words.show(guess.value if guess else None, metric)), guess.value if guess else None)
            )
            cells.append((safe(record.words.show(real, metric, missing=words.NOT_MEASURED)), real))
        fits = {True: "yes", False: "no", None: words.UNKNOWN}[trial.feasible]
        basis = "" if trial.feasible is None else " (measured)" if trial.measured else " (predicted)"
        if trial.feasible and any(
            item.task is not None and item.task not in trial.tasks for item in record.constraints
        ):
            basis = f"{basis[:-1]}; tasks not evaluated)"
        cells.append((fits + basis, fits))
        cells.append((f'<div class="text">{safe(trial.reason or "")}</div>', trial.reason))
        rows.append(cells)
        classes.append(record.role(trial))
    head = ["#", "role", "state", "design", "parameters"]
    head += (
        ["loss (expected)"] if facts.by_law(record) else [f"{record.words.metric.title} (trained)", "training CPU time"]
    )
    for metric in _costs(record):
        head += [f"{record.words.short(metric)} predicted", f"{record.words.short(metric)} measured"]
    head += ["meets the constraints", "reason"]
    body = _sortable(head, rows, numbers={0, *range(4, len(head) - 2)}, classes=classes)
    counts = {
        state: sum(trial.state == state for trial in record.trials)
        for state in dict.fromkeys(t.state for t in record.trials)
    }
    caption = ", ".join(f"{count} {state}" for state, count in counts.items())
    return section("trials", "All trials", body, safe(f"{caption}. Click a heading to sort."), kind="long")


def _about(record: RunRecord) -> str:
    space, data, what = record.space, record.data, record.words.labels.data
    target = record.target
    label, once, costs = record.words.label, record.words.one_pass(), facts.per_thousand(record)
    thousand = f"1,000 {record.words.entries()}" if once else f"1,000 generated {record.words.labels.tokens}"
    about = {
        "Search space": {
            "designs": words.count(space.size),
            "distinct designs with predicted costs": words.count(space.priced),
            "distinct designs with predicted costs, per second": words.count(space.priced_per_s),
            "share of random candidates predicted within the limits": words.quantity(space.feasible_share, "share"),
            **{name: _listed(values) for name, values in space.choices.items()},
        },
        "Data": {},
        "Machine and run": {
            "device": target.device,
            "processor": target.cpu or words.UNKNOWN,
            "cores": words.count(target.cores),
            "runtime": f"{target.runtime} {target.runtime_version or '(version unknown)'}",
            "threads": str(target.threads),
            "launch overhead (measured)": words.quantity(record.launch_overhead_s, "time"),
            "workload": facts.workload(record),
            "objectives": ", ".join(f"{label(item.metric)} ({item.direction})" for item in record.objectives)
            or "none stated",
            f"time of {thousand}": costs["time"],
            f"energy of {thousand}": costs["energy"],
            **({} if once else {"price of tokens": costs["price"]}),
            "seed": str(record.seed),
            "status": record.status,
        },
    }
    if record.law is not None:
        about["Data"] = law_text.told(record.law)
    elif data is not None:
        about["Data"] = {
            "name": data.name,
            f"training {what}": _text(record, data.entries_train, data.bytes_train),
            f"validation {what}": _text(record, data.entries_val, data.bytes_val),
            f"test {what}": _text(record, data.entries_test, data.bytes_test),
            "licence": data.licence or words.UNKNOWN,
            "source": data.source or words.UNKNOWN,
        }
    parts = [
        f"<h3>{title}</h3>{facts_list(items) if items else empty('No data was read yet.')}"
        for title, items in about.items()
    ]
    return section("about", "Space, data and machine", "".join(parts))


def _text(record: RunRecord, entries: int | None, size: int | None) -> str:
    return f"{words.count(entries)} {record.words.entries()}, {words.quantity(size, 'bytes')}"


def _listed(values: object) -> str:
    if isinstance(values, dict):
        return "; ".join(f"{key}: {_listed(item)}" for key, item in values.items())
    if isinstance(values, list | tuple):
        return ", ".join(_listed(item) for item in values)
    return (
        {None: "none", True: "yes", False: "no"}.get(values, str(values))
        if isinstance(values, bool | None)
        else str(values)
    )


def notes(record: RunRecord) -> str:
    """The section with the record's notes."""
    if not record.notes:
        return section("notes", "Notes and limits", empty("Nothing to note."))
    return section(
        "notes", "Notes and limits", f"<ul>{''.join(f'<li>{safe(note)}</li>' for note in record.notes)}</ul>"
    )


def _foot(record: RunRecord) -> str:
    return (
        f"<footer>Made by chipwise {safe(record.version)}, seed {record.seed}. Predicted: by the cost model, with its "
        "interval. Expected: predicted, and not measured. Measured: on the target, in its runtime. Trained: "
        f"{safe(record.words.metric.title)} of held-out {safe(record.words.labels.data)}.</footer>\n"
    )


def facts_list(items: dict[str, str]) -> str:
    """An HTML list of names with their values."""
    return '<dl class="facts">' + "".join(f"<dt>{safe(k)}</dt><dd>{safe(v)}</dd>" for k, v in items.items()) + "</dl>"


def _sortable(
    head: Sequence[str],
    rows: Iterable[Sequence[tuple[str, object]]],
    numbers: set[int],
    classes: Sequence[str] = (),
) -> str:
    """A sortable table; each cell is given as its HTML and the value to sort by."""
    kinds = [' class="number"' if i in numbers else "" for i in range(len(head))]
    top = "".join(f"<th{kind}>{safe(cell)}</th>" for kind, cell in zip(kinds, head, strict=True))
    body = []
    for i, row in enumerate(rows):
        cells = "".join(
            f'<td{kind} data-value="{"" if value is None else safe(value)}">{cell}</td>'
            for kind, (cell, value) in zip(kinds, row, strict=True)
        )
        body.append(f'<tr class="{safe(classes[i])}">{cells}</tr>' if classes else f"<tr>{cells}</tr>")
    return (
        f'<div class="scroll"><table class="sortable"><thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )
