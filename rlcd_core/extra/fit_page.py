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
from rlcd_core.gates import Guarantee, least_rows, share_at
from rlcd_core.metrics import Interval
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


def scores(p: np.ndarray, rows: np.ndarray, cases: Any) -> dict[str, str]:
    """Measures of the test part, in words; which ones, the log decides."""
    rng = np.random.default_rng(0)
    truth, actions, c = cases.truth[rows], cases.actions[rows], cases.outcomes[rows]
    p = p / p.sum(1, keepdims=True)
    taken = p[np.arange(len(p)), actions]

    def mean(values: Any) -> str:
        return _told(metrics.bootstrap_interval(np.asarray(values, float), rng=rng))

    if (truth >= 0).all():
        right = (p.argmax(1) == truth).astype(float)
        floor = metrics.ece_noise_floor(p.max(1), rng=rng)
        return {
            "accuracy": mean(right),
            "Brier score, in [0, 2]": mean(brier(p, truth)),
            "stated confidence minus accuracy": mean(p.max(1) - right),
            "ECE, 15 bins": f"{metrics.ece(p.max(1), right):.3f}; an honest decider "
            f"would show {floor:.3f} by chance, n = {len(p):,}",
        }
    floor = metrics.ece_noise_floor(taken, rng=rng)
    found = {
        "squared error of the stated chance of the action taken": mean(
            (taken - c) ** 2
        ),
        "stated chance minus outcome, of the action taken": mean(taken - c),
        "ECE of the action taken, 15 bins": f"{metrics.ece(taken, c):.3f}; an honest "
        f"decider would show {floor:.3f} by chance, n = {len(p):,}",
    }
    if cases.propensities is not None:
        chance = cases.propensities[rows]
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
) -> dict[str, Any]:
    """All that the page shows, JSON-ready.

    Parameters
    ----------
    cases : Cases
    rows : mapping of part to (n,) rows
    left : mapping of reason to rows
        What the split left out.
    found : mapping of "gate" and "test" to Judged
    """
    test, at = found["test"], rows["test"]
    cal = found["gate"]
    acts = gate.gate.acts(test.confidence)
    wrong = int((1 - test.right[acts]).sum())
    low, high = metrics.wilson_interval(wrong, int(acts.sum()))
    c, actions = cases.outcomes[at], cases.actions[at]
    if (cases.truth[at] >= 0).all():
        # Every proposal is judged here.
        what, stated, right = "the proposed option", test.confidence, test.right
    else:
        what = "the action taken"
        stated, right = test.p[np.arange(len(at)), actions], c
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
        share = share_at(cal.confidence, cal.right, error, config["delta"])
        shares[f"{error:g}"] = _told(share)
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
    if temperature.at_bound:
        limits.append(
            "The temperature lies at the edge of its range: look at the data."
        )
    needed = least_rows(config["error"], config["delta"])
    if gate.gate.act is None:
        limits.append(
            f"The gate never acts: error at most {config['error']:g} was not shown on "
            f"{gate.n:,} judged rows (at least {needed:,} acts without an error are "
            "needed)."
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
    share = gate.share()
    act = "never" if gate.gate.act is None else f"from {gate.gate.act:.4f}"
    return {
        "log": log,
        "mode": cases.mode,
        "mode_says": _MODES[cases.mode],
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
            "share": _told(share),
            "test_judged": len(test.rows),
            "test_acts": int(acts.sum()),
            "test_wrong": wrong,
            "test_error_low": float(low) if acts.any() else None,
            "test_error_high": float(high) if acts.any() else None,
        },
        "share_at": shares,
        "sources": sources,
        "untried": untried,
        "limits": limits,
        "evidence": {
            **measured,
            f"share that can be automated at error {config['error']:g}": _told(share),
        },
        "summary": [
            f"{len(cases):,} usable rows of {cases.notes['rows in the log']:,}; "
            f"mode: {cases.mode}; split by {by}",
            *[f"trained: {line}" for line in trained],
            f"temperature {temperature.value:.3f} on {len(rows['temperature']):,} rows",
            f"gate: acts {act} (error at most {config['error']:g}, delta "
            f"{config['delta']:g}); share {_told(share)}",
            f"test: {wrong:,} wrong of {int(acts.sum()):,} acts; "
            + "; ".join(
                f"{name} {value}" for name, value in list(measured.items())[:2]
            ),
        ],
    }


# --- The page --------------------------------------------------------------------

_STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto;
  padding: 0 1rem }
table { border-collapse: collapse; margin: .5rem 0; display: block; overflow-x: auto }
td, th { border-bottom: 1px solid #8888; padding: .2rem .8rem .2rem 0; text-align: left;
  font-variant-numeric: tabular-nums }
svg { width: 100%; max-width: 30rem; height: auto }
svg text { fill: currentColor; font-size: 13px }
"""


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    def cells(values: Sequence[Any], tag: str) -> str:
        shown = [f"{v:.3f}" if isinstance(v, float) else str(v) for v in values]
        inside = "".join(f"<{tag}>{html.escape(v)}</{tag}>" for v in shown)
        return f"<tr>{inside}</tr>"

    body = "".join(cells(row, "td") for row in rows)
    return f"<table>{cells(head, 'th') if head else ''}{body}</table>"


def _pairs(values: Mapping[str, Any]) -> str:
    return _table((), list(values.items()))


def reliability_svg(bins: Sequence[Mapping[str, float]], of: str) -> str:
    """A reliability diagram with Wilson bars, and counts along the foot, as SVG."""

    def x(value: float) -> float:
        return 50 + 340 * value

    def y(value: float) -> float:
        return 350 - 340 * value

    most = max(b["n"] for b in bins)
    ink, blue = 'stroke="#7a7d84"', "#0c60fc"
    dotted = f'{ink} stroke-dasharray="2 4"'
    marks = [
        f'<path d="M{x(0)} {y(1)}V{y(0)}H{x(1)}" fill="none" {ink}/>',
        f'<path d="M{x(0)} {y(0)}L{x(1)} {y(1)}" {dotted}/>',
    ]
    for b in bins:
        tall = 50 * b["n"] / most
        wide = x(b["upper"]) - x(b["lower"])
        marks += [
            f'<rect x="{x(b["lower"]):.1f}" y="{y(0) - tall:.1f}" width="{wide:.1f}" '
            f'height="{tall:.1f}" fill="#7a7d84" opacity=".35"/>',
            f'<text x="{x(b["lower"]) + wide / 2:.1f}" y="{y(0) - tall - 3:.1f}" '
            f'text-anchor="middle">{b["n"]:.0f}</text>',
            f'<path d="M{x(b["stated"]):.1f} {y(b["low"]):.1f}V{y(b["high"]):.1f}" '
            f'stroke="{blue}" stroke-width="5" opacity=".4"/>',
            f'<circle cx="{x(b["stated"]):.1f}" cy="{y(b["right"]):.1f}" r="5" '
            f'fill="{blue}"/>',
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
        f'<svg viewBox="0 0 410 390" role="img" aria-label="{html.escape(alt)}">'
        f'{"".join(marks)}<text x="220" y="386" text-anchor="middle">stated chance'
        '</text><text x="14" y="180" text-anchor="middle" '
        'transform="rotate(-90 14 180)">share right</text></svg>'
    )


def page(report: Mapping[str, Any]) -> str:
    """The audit page: one HTML file that asks no other file and no host."""
    gate, reliability = report["gate"], report["reliability"]
    act = (
        "never acts"
        if gate["gate"]["act"] is None
        else (f"acts from {gate['gate']['act']:.4f}")
    )
    tested = "no test row was acted on"
    if gate["test_acts"]:
        tested = (
            f"on the test part {gate['test_wrong']:,} of {gate['test_acts']:,} acts "
            f"were wrong (95 % interval of the rate {gate['test_error_low']:.3f} to "
            f"{gate['test_error_high']:.3f})"
        )
    columns = ("source", "n", "stated", "right", "low", "high", "acted on")
    items = "".join(f"<li>{html.escape(line)}</li>" for line in report["limits"])
    parts = [
        f"<h1>Audit of a decider: {html.escape(report['log'])}</h1>",
        f"<p>{html.escape(report['mode_says'])}</p>",
        "<h2>How much can be automated</h2>",
        f"<p>The gate {act}: with chance {1 - gate['delta']:g} over calibration draws "
        f"at most {gate['target']:g} of its acts are wrong. It was set on "
        f"{gate['n']:,} rows, of which it accepts {gate['accepted']:,}; {tested}.</p>",
        _table(
            ("error at most", "share of decisions, with interval"),
            list(report["share_at"].items()),
        ),
        f"<h2>Is what it says true?</h2><p>Test rows: stated chance of "
        f"{html.escape(reliability['of'])} against how often it was right. Bars are "
        "95 % Wilson bands, grey columns the number of rows, the dotted line is "
        "honest.</p>",
        reliability_svg(reliability["bins"], reliability["of"]),
        _pairs(report["scores"]),
        "<h2>By source</h2>",
        _table(columns, [[row[name] for name in columns] for row in report["sources"]]),
        "<h2>What happened to the rows</h2>",
        _pairs({**report["notes"], **report["left_out_of_parts"]}),
        f"<p>Split by {html.escape(report['split_by'])}.</p>",
        _table(
            ("part", "rows", "from", "to"),
            [
                (k, n, *report["times"].get(k, ["", ""]))
                for k, n in report["parts"].items()
            ],
        ),
        f"<h2>Limits</h2><ul>{items}</ul>",
        "<h2>Settings</h2>",
        _pairs({"trained": "; ".join(report["trained"]), **report["config"]}),
        _pairs({f"temperature: {k}": v for k, v in report["temperature"].items()}),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Audit: {html.escape(report['log'])}</title><style>{_STYLE}</style>"
        f"</head><body>{''.join(parts)}</body></html>\n"
    )
