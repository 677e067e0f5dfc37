"""What `rlcd fit` found, as plain values and as one HTML page without a script."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from rlcd_core import metrics
from rlcd_core.calibrate import Temperature
from rlcd_core.gates import Guarantee, learn_then_test, least_rows
from rlcd_core.metrics import Interval
from rlcd_core.schema import Question
from rlcd_core.scoring import brier

_ERRORS = (0.01, 0.02, 0.05, 0.1, 0.2)
_MOST_SOURCES = 30
_MODES = {
    "labels": (
        "The right option of every row is known (labels, or outcomes of questions with "
        "two options). Everything can be measured."
    ),
    "propensities": (
        "Some rows hold only the outcome of the action taken, and each of these has a "
        "propensity. Brier score and accuracy of the decider are estimated for all "
        "cases by weighting with inverse propensities. Lost: the gate, its promise and "
        "the reliability of proposals are about cases in which the log took the option "
        "that the decider proposes; for the others the outcome is not known."
    ),
    "outcomes": (
        "Some rows hold only the outcome of the action taken, without a propensity. "
        "What the decider states of the actions taken can be checked. Lost: its Brier "
        "score and accuracy over all cases (no weights), weighted training, and, "
        "as with propensities, every promise about cases in which the log took another "
        "option than the decider proposes. Options that the old policy avoided are "
        "judged by few outcomes or none."
    ),
}


def _told(interval: Interval, digits: int = 3) -> str:
    return f"{interval:.{digits}f}, {interval.level:.0%}, n = {interval.n:,}"


def _share(gate: Guarantee, error: float, delta: float) -> str:
    """What a gate can automate, or why it cannot."""
    if gate.gate.act is not None:
        return _told(gate.share())
    return f"none: {_why_never(gate, error, delta)}"


def _why_never(gate: Guarantee, error: float, delta: float) -> str:
    needed = least_rows(error, delta)
    if gate.n < needed:
        return (
            f"{gate.n:,} rows were judged, and {needed:,} without an error are needed"
        )
    return f"the surest of {gate.n:,} judged rows are wrong too often to show it"


def checkable(
    p: np.ndarray, rows: np.ndarray, cases: Any
) -> tuple[np.ndarray, np.ndarray, str]:
    """Stated chance of one option a row, whether it was right, and which option.

    The option must be chosen without a look at its outcome, or honest chances seem
    wrong: where a label is known it is the proposed option, else the action taken.
    """
    truth, actions = cases.truth[rows], cases.actions[rows]
    known = truth >= 0
    option = np.where(known, p.argmax(1), actions)
    right = np.where(known, truth == option, cases.outcomes[rows]).astype(float)
    what = "the proposed option" if known.all() else "the action taken"
    if known.any() and not known.all():
        what = "the action taken (where the right option is known, of the proposed one)"
    return p[np.arange(len(p)), option], right, what


def scores(p: np.ndarray, rows: np.ndarray, cases: Any) -> dict[str, str]:
    """Measures of the test part, in words; which ones, the log decides."""
    rng = np.random.default_rng(0)
    truth, actions, c = cases.truth[rows], cases.actions[rows], cases.outcomes[rows]
    p = p / p.sum(1, keepdims=True)
    stated, right, what = checkable(p, rows, cases)

    def mean(values: Any) -> str:
        return _told(metrics.bootstrap_interval(np.asarray(values, float), rng=rng))

    floor = metrics.ece_noise_floor(stated, rng=rng)
    ece = (
        f"{metrics.ece(stated, right):.3f}; an honest decider would show {floor:.3f} "
        f"by chance, n = {len(p):,}"
    )
    if (truth >= 0).all():
        return {
            "accuracy": mean(right),
            "Brier score, in [0, 2]": mean(brier(p, truth)),
            "stated confidence minus accuracy": mean(stated - right),
            "ECE, 15 bins": ece,
        }
    found = {
        f"squared error of the stated chance of {what}": mean((stated - right) ** 2),
        f"stated chance minus outcome, of {what}": mean(stated - right),
        f"ECE of {what}, 15 bins": ece,
    }
    if cases.propensities is not None:
        chance, taken = cases.propensities[rows], p[np.arange(len(p)), actions]
        weight = (p.argmax(1) == actions) / chance
        effective = weight.sum() ** 2 / max((weight**2).sum(), 1e-12)
        # E[c / mu at the action] = sum over options of p_k times its chance.
        found |= {
            "accuracy, inverse propensity": mean(weight * c),
            "Brier score in [0, 2], inverse propensity": mean(
                (p**2).sum(1) + 1 - 2 * taken * c / chance
            ),
            "effective rows behind the accuracy": f"{effective:,.0f} of {len(rows):,}; "
            f"smallest propensity {chance.min():.3g}",
        }
    return found


def reliability_bins(stated: np.ndarray, right: np.ndarray) -> list[dict[str, float]]:
    """Ten bins of a reliability diagram with Wilson bands; empty ones are left out.

    Each has its edges `lower` and `upper`, `n`, the means `stated` and `right`, and
    the band `low`, `high` of the latter.
    """
    bins = metrics.reliability(stated, right, n_bins=10)
    hits = np.nan_to_num(bins.accuracy) * bins.count
    low, high = metrics.wilson_interval(hits, bins.count)
    columns = {
        "lower": bins.lower,
        "upper": bins.upper,
        "n": bins.count,
        "stated": bins.confidence,
        "right": bins.accuracy,
        "low": low,
        "high": high,
    }
    return [
        {name: float(values[k]) for name, values in columns.items()}
        for k in np.flatnonzero(bins.count)
    ]


def summary(
    cases: Any,
    rows: Mapping[str, np.ndarray],
    left: Mapping[str, int],
    trained: Sequence[str],
    temperature: Temperature,
    gate: Guarantee,
    found: Mapping[str, Any],
    config: Mapping[str, Any],
    log: str,
    named: Mapping[str, Question],
    by_question: Mapping[str, Guarantee],
) -> dict[str, Any]:
    """All that the page shows, JSON-ready.

    Parameters
    ----------
    cases : Cases
    rows : mapping of part to (n,) rows
    left : mapping of reason to rows
        What the split left out.
    found : mapping of "gate" and "test" to Judged
    named : mapping of name to Question
        None where the questions differ from row to row.
    by_question : mapping of name to Guarantee
        The gates of the questions, where the log has several.
    """
    test, at = found["test"], rows["test"]
    cal = found["gate"]
    acts = gate.gate.acts(test.confidence)
    wrong = int((1 - test.right[acts]).sum())
    low, high = metrics.wilson_interval(wrong, int(acts.sum()))
    stated, right, what = checkable(test.p, at, cases)
    where = np.array(cases.sources)[at]
    sources = []
    for name, n in Counter(where.tolist()).most_common(_MOST_SOURCES):
        mine = where == name
        lo, hi = metrics.wilson_interval(right[mine].sum(), n)
        sources.append(
            {
                "source": name,
                "n": n,
                "stated": float(stated[mine].mean()),
                "right": float(right[mine].mean()),
                "low": float(lo),
                "high": float(hi),
                "acted on": float(gate.gate.acts(test.p[mine].max(1)).mean()),
            }
        )
    shares = {}
    for error in sorted({*_ERRORS, config["error"]}):
        can = learn_then_test(cal.confidence, cal.right, error, config["delta"])
        shares[f"{error:g}"] = _share(can, error, config["delta"])
    taken: Counter[tuple[str, str]] = Counter()
    offered: Counter[tuple[str, str]] = Counter()
    for i in rows["train"]:
        question = cases.items[i][1]
        offered.update((question.text, option) for option in question.options)
        taken[question.text, question.options[cases.actions[i]]] += 1
    untried = [
        f"{text}: {option}" for text, option in offered if not taken[text, option]
    ]
    limits = [
        f"{len(test.rows):,} of {len(at):,} test rows and {len(cal.rows):,} of "
        f"{len(rows['gate']):,} gate rows could be judged."
    ]
    if cases.mode != "labels":
        limits.append(
            "The gate's promise is about cases in which the log took the proposed "
            "option."
        )
    if untried:
        limits.append(
            f"{len(untried)} option(s) occur in no training row's action; their "
            f"probabilities rest on their wording alone: {'; '.join(untried[:5])}."
        )
    limits += _one_sided(cases, rows["train"])
    if by_question:
        limits.append(
            "The gate above holds for the questions mixed as in the log; of a question "
            "alone speaks its own gate, which rlcd ask, score and serve tell."
        )
    elif not named:
        limits.append(
            "The questions differ from row to row: no answer of rlcd ask, score or "
            "serve tells what the gate says; compare with its threshold yourself."
        )
    if temperature.at_bound:
        limits.append(
            "The temperature lies at the edge of its range: look at the data."
        )
    if gate.gate.act is None:
        why = _why_never(gate, config["error"], config["delta"])
        limits.append(
            f"The gate never acts: error at most {config['error']:g} is not shown, for "
            f"{why}."
        )
    measured = scores(test.p, at, cases)
    span = {}
    if cases.times is not None:
        for name, mine in rows.items():
            moments = [cases.times[i] for i in mine]
            span[name] = [min(moments).isoformat(), max(moments).isoformat()]
    by = "the log's own split" if cases.parts is not None else "groups of equal states"
    if cases.parts is None and cases.times is not None:
        by = "time: the latest rows judge"
    share = _share(gate, config["error"], config["delta"])
    act = "never" if gate.gate.act is None else f"from {gate.gate.act:.4f}"
    return {
        "log": log,
        "mode": cases.mode,
        "mode_says": _MODES[cases.mode],
        "questions": len({question for _, question in cases.items}),
        "config": dict(config),
        "notes": dict(cases.notes),
        "left_out_of_parts": dict(left),
        "split_by": by,
        "parts": {name: len(mine) for name, mine in rows.items()},
        "times": span,
        "trained": list(trained),
        "temperature": asdict(temperature),
        "scores": measured,
        "reliability": {"of": what, "bins": reliability_bins(stated, right)},
        "gate": {
            **asdict(gate),
            "share": share,
            "test_judged": len(test.rows),
            "test_acts": int(acts.sum()),
            "test_wrong": wrong,
            "test_error_low": float(low) if acts.any() else None,
            "test_error_high": float(high) if acts.any() else None,
        },
        "share_at": shares,
        "gates": {
            name: {
                "question": named[name].text,
                "n": one.n,
                "act": one.gate.act,
                "share": _share(one, config["error"], config["delta"]),
            }
            for name, one in by_question.items()
        },
        "sources": sources,
        "untried": untried,
        "limits": limits,
        "evidence": {
            **measured,
            f"share that can be automated at error {config['error']:g}": share,
        },
        "summary": [
            f"{len(cases):,} usable rows of {cases.notes['rows in the log']:,}; "
            f"mode: {cases.mode}; split by {by}",
            *[f"trained: {line}" for line in trained],
            f"temperature {temperature.value:.3f} on {len(rows['temperature']):,} rows",
            f"gate: acts {act} (error at most {config['error']:g}, delta "
            f"{config['delta']:g}); share {share}",
            f"test: {wrong:,} wrong of {int(acts.sum()):,} acts; "
            + "; ".join(
                f"{name} {value}" for name, value in list(measured.items())[:2]
            ),
            *[f"limit: {line}" for line in limits],
        ],
    }


def _one_sided(cases: Any, train: np.ndarray) -> list[str]:
    """What a log that knows only one thing cannot teach."""
    told, heard = train[cases.labelled[train]], train[~cases.labelled[train]]
    labels = {cases.items[i][1].options[cases.actions[i]] for i in told}
    outcomes = set(cases.outcomes[heard].tolist())
    found = []
    if len(labels) == 1:
        found.append(f"Every label to learn from is {labels.pop()!r}.")
    if len(outcomes) == 1:
        found.append(
            f"Every outcome to learn from is {outcomes.pop():g}: nothing tells a good "
            "action from a bad one."
        )
    return found


# --- The page --------------------------------------------------------------------

_STYLE = """
:root { color-scheme: light dark; --mark: light-dark(#0c60fc, #7fb0ff);
  --faint: light-dark(#6b6f76, #a3a7ae) }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto;
  padding: 0 1rem; overflow-wrap: break-word }
h1 { font-size: 1.6rem; line-height: 1.25 } h2 { font-size: 1.2rem; margin-top: 2rem }
table { border-collapse: collapse; margin: .5rem 0; display: block; overflow-x: auto }
td, th { border-bottom: 1px solid #8888; padding: .2rem .8rem .2rem 0; text-align: left;
  vertical-align: top; font-variant-numeric: tabular-nums }
svg { width: 100%; max-width: 30rem; height: auto }
svg text { fill: currentColor; font-size: 13px }
svg .mark { fill: var(--mark) } svg .band { stroke: var(--mark) }
svg .axis { stroke: var(--faint); fill: none } svg .count { fill: var(--faint) }
"""


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    def cells(values: Sequence[Any], tag: str) -> str:
        inside = "".join(f"<{tag}>{html.escape(_cell(v))}</{tag}>" for v in values)
        return f"<tr>{inside}</tr>"

    body = "".join(cells(row, "td") for row in rows)
    return f"<table>{cells(head, 'th') if head else ''}{body}</table>"


def _pairs(values: Mapping[str, Any]) -> str:
    return _table((), list(values.items()))


def reliability_svg(bins: Sequence[Mapping[str, float]], of: str) -> str:
    """A reliability diagram with Wilson bars, and below it the counts, as SVG."""

    def x(value: float) -> float:
        return 50 + 340 * value

    def y(value: float) -> float:
        return 350 - 340 * value

    most = max(b["n"] for b in bins)
    foot = 450  # of the columns of counts
    marks = [
        f'<path d="M{x(0)} {y(1)}V{y(0)}H{x(1)}" class="axis"/>',
        f'<path d="M{x(0)} {y(0)}L{x(1)} {y(1)}" class="axis" stroke-dasharray="2 4"/>',
    ]
    for b in bins:
        tall = 45 * b["n"] / most
        wide = x(b["upper"]) - x(b["lower"])
        marks += [
            f'<rect x="{x(b["lower"]) + 1:.1f}" y="{foot - tall:.1f}" '
            f'width="{wide - 2:.1f}" height="{tall:.1f}" class="count"/>',
            f'<text x="{x(b["lower"]) + wide / 2:.1f}" y="{foot - tall - 3:.1f}" '
            f'text-anchor="middle">{b["n"]:.0f}</text>',
            f'<path d="M{x(b["stated"]):.1f} {y(b["low"]):.1f}V{y(b["high"]):.1f}" '
            'class="band" stroke-width="5" opacity=".4"/>',
            f'<circle cx="{x(b["stated"]):.1f}" cy="{y(b["right"]):.1f}" r="5" '
            'class="mark"/>',
        ]
    marks += [
        f'<text x="{x(v)}" y="{y(0) + 18}" text-anchor="middle">{v:g}</text>'
        f'<text x="{x(0) - 8}" y="{y(v) + 4}" text-anchor="end">{v:g}</text>'
        for v in (0, 0.5, 1)
    ]
    alt = f"Reliability of the stated chance of {of}: " + "; ".join(
        f"stated {b['stated']:.2f}, right {b['right']:.2f} of {b['n']:.0f}"
        for b in bins
    )
    return (
        f'<svg viewBox="0 0 410 475" role="img" aria-label="{html.escape(alt)}">'
        f'{"".join(marks)}<text x="220" y="468" text-anchor="middle">stated chance; '
        'columns: rows</text><text x="14" y="180" text-anchor="middle" '
        'transform="rotate(-90 14 180)">share right</text></svg>'
    )


def page(report: Mapping[str, Any]) -> str:
    """The audit page: one HTML file that asks no other file and no host."""
    gate, reliability = report["gate"], report["reliability"]
    judged = (
        "decisions" if report["mode"] == "labels" else "decisions like those judged"
    )
    if gate["gate"]["act"] is None:
        acts = (
            f"<p><strong>The decider never acts alone.</strong> That at most "
            f"{gate['target']:.3g} of its acts are wrong could not be shown on "
            f"{gate['n']:,} judged rows.</p>"
        )
    else:
        acts = (
            f"<p><strong>The decider acts alone where it states a chance of at least "
            f"{gate['gate']['act']:.4f}:</strong> {gate['accepted']:,} of the "
            f"{gate['n']:,} judged rows on which this threshold was set. Promise: at "
            f"most {gate['target']:.3g} of its acts are wrong; an unlucky draw of "
            f"those rows breaks it with a chance of at most {gate['delta']:.3g}.</p>"
        )
        tested = "On the test rows it never acted."
        if gate["test_acts"]:
            tested = (
                f"On the test rows, which took no part, {gate['test_wrong']:,} of "
                f"{gate['test_acts']:,} acts were wrong (95 % interval of the rate "
                f"{gate['test_error_low']:.3f} to {gate['test_error_high']:.3f})."
            )
        acts += f"<p>{tested}</p>"
    if report["gates"]:
        acts += "<p>Each question alone has its own gate:</p>" + _table(
            ("question", "judged", "acts from", f"share of {judged}"),
            [
                (
                    f"{name}: {one['question']}",
                    one["n"],
                    "never" if one["act"] is None else f"{one['act']:.4f}",
                    one["share"],
                )
                for name, one in report["gates"].items()
            ],
        )
    items = "".join(f"<li>{html.escape(line)}</li>" for line in report["limits"])
    times, heat = report["times"], report["temperature"]
    parts = [
        f"<h1>Audit of a decider: {html.escape(report['log'])}</h1>",
        f"<h2>How much can be automated</h2>{acts}",
        _table(
            ("error at most", f"share of {judged}, with interval"),
            list(report["share_at"].items()),
        ),
        f"<h2>Limits</h2><ul>{items}</ul>",
        f"<h2>What this log permits</h2><p>{html.escape(report['mode_says'])}</p>",
        f"<h2>Is what it says true?</h2><p>Test rows: stated chance of "
        f"{html.escape(reliability['of'])} against how often it was right. Bars are "
        "95 % Wilson bands, the dotted line is honest, the columns below count the "
        "rows.</p>",
        reliability_svg(reliability["bins"], reliability["of"]),
        _pairs(report["scores"]),
        "<h2>By source</h2><p>Test rows: mean stated chance, share right with its 95 % "
        "Wilson band, share acted on.</p>",
        _table(
            ("source", "rows", "stated", "right", "acts"),
            [
                (
                    row["source"],
                    row["n"],
                    f"{row['stated']:.2f}",
                    f"{row['right']:.2f} [{row['low']:.2f}, {row['high']:.2f}]",
                    f"{row['acted on']:.2f}",
                )
                for row in report["sources"]
            ],
        ),
        "<h2>What happened to the rows</h2>",
        _pairs({**report["notes"], **report["left_out_of_parts"]}),
        f"<p>Split by {html.escape(report['split_by'])}.</p>",
        _table(
            ("part", "rows", *(("from", "to") if times else ())),
            [(k, n, *times.get(k, ())) for k, n in report["parts"].items()],
        ),
        "<h2>Settings</h2>",
        _pairs({"trained": "; ".join(report["trained"]), **report["config"]}),
        f"<p>Temperature {heat['value']:.4g}, fitted on "
        f"{report['parts']['temperature']:,} rows: {html.escape(heat['objective'])} "
        f"{heat['before']:.4f} before, {heat['after']:.4f} after.</p>",
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Audit: {html.escape(report['log'])}</title><style>{_STYLE}</style>"
        f"</head><body>{''.join(parts)}</body></html>\n"
    )
