"""Bring your own decisions: a log becomes a calibrated, gated, exported decider.

The log (`rlcd_core.data.log`) is read in constant memory and split by time, or by
state where it has no times, into rows to learn from, rows for the temperature, rows for
the gate and rows for the audit. A label is an action that is known to be right, so
that labels and outcomes are learned by one loss.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlcd_core.calibrate import Temperature, fit_verdict_temperature
from rlcd_core.data.log import Decision, read_log
from rlcd_core.data.split import (
    link_groups,
    near_duplicates,
    normalise,
    split_by_group,
)
from rlcd_core.env import LoggedEnv
from rlcd_core.export import Card, ExportError, export
from rlcd_core.extra.asking import read_object
from rlcd_core.extra.fit_page import page, summary
from rlcd_core.gates import Guarantee, learn_then_test, least_rows
from rlcd_core.policy import DecisionHead, Encoder
from rlcd_core.schema import Question, questions_of, render_state
from rlcd_core.train import Arm, TrainConfig, train

PARTS = ("train", "temperature", "gate", "test")
_SHARES = (0.6, 0.1, 0.15, 0.15)
# Of rows that their own column calls "val": temperature, gate.
_VAL_SHARES = (0.4, 0.6)
_FEWEST = 20  # rows in each part
OBJECTIVES = ("verdict_nll", "verdict_brier", "rlcd", "rlcd_ips", "rlcd_snips")


class FitError(ValueError):
    """A log from which no decider can be made; the message tells the mend."""


@dataclass(frozen=True)
class FitConfig:
    """What is learned, and what is promised.

    Parameters
    ----------
    error, delta : float
        The gate's promise: with probability 1 - delta at most the share `error` of its
        acts is wrong.
    objective : str
        One of `OBJECTIVES`. Rows with a label are learned by the verdict losses, of
        which they are the case "right"; `rlcd_ips` and `rlcd_snips` need propensities.
    epochs, batch, learning_rate, rank
        Of the decision head.
    limit : int
        Most rows kept; of a larger log a random sample is. Memory grows with it, about
        1.5 kB and the text of the state a row; the length of the log does not matter.
    """

    error: float = 0.05
    delta: float = 0.1
    objective: str = "verdict_nll"
    epochs: int = 5
    batch: int = 64
    learning_rate: float = 1e-3
    rank: int = 64
    limit: int = 100_000
    seed: int = 0

    def __post_init__(self) -> None:
        least_rows(self.error, self.delta)  # both must be rates
        if self.objective not in OBJECTIVES:
            raise FitError(
                f"objective {self.objective!r}: choose one of {', '.join(OBJECTIVES)}"
            )
        if min(self.epochs, self.batch, self.rank, self.limit) < 1:
            raise FitError("epochs, batch, rank and limit must be at least 1")


@dataclass(frozen=True)
class Cases:
    """Usable rows of a log as arrays (N,).

    A labelled row has its label as action, outcome 1 and propensity 1. `truth` is the
    right option where it is known for certain: from a label, or from the outcome of
    either of two options; else -1. `propensities` is None unless every row has one.
    """

    items: list[tuple[Any, Question]]
    actions: np.ndarray
    outcomes: np.ndarray
    labelled: np.ndarray
    truth: np.ndarray
    groups: list[str]
    sources: list[str]
    propensities: np.ndarray | None
    times: list[datetime] | None
    parts: np.ndarray | None
    notes: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.items)

    @property
    def mode(self) -> str:
        """What the log permits: "labels", "propensities" or "outcomes"."""
        if (self.truth >= 0).all():
            return "labels"
        return "outcomes" if self.propensities is None else "propensities"


def read_questions(path: Path | None) -> dict[str, Question]:
    """Questions by name from a JSON file, as `rlcd ask` reads it; none without one."""
    return {} if path is None else questions_of(read_object(path))


def read_cases(
    path: Path,
    questions: Mapping[str, Question] | None = None,
    limit: int = FitConfig.limit,
) -> Cases:
    """Read a log; every row is checked, unresolved ones are counted and left out.

    Raises
    ------
    LogError
        As `rlcd_core.data.log.read_log`, at the first row at fault.
    FitError
        No usable row; times or splits that only some rows have, or unknown splits.
    """
    kept: list[tuple[int, int, Decision]] = []
    notes: Counter[str] = Counter()
    for place, row in enumerate(read_log(path, questions)):
        notes["rows in the log"] += 1
        if row.label is None and row.outcome is None:
            notes["unresolved, left out"] += 1
            continue
        # Those with the smallest hashes are a random sample, whatever their order.
        told = row.id.encode(errors="surrogatepass")
        rank = int.from_bytes(hashlib.blake2b(told, digest_size=8).digest())
        entry = (-rank, place, row)
        if len(kept) < limit:
            heapq.heappush(kept, entry)
        else:
            heapq.heappushpop(kept, entry)
            notes["over the limit of rows kept, left out"] += 1
    rows = [row for *_, row in sorted(kept, key=lambda entry: entry[1])]
    if not rows:
        raise FitError(
            f"{path}: none of {notes['rows in the log']:,} rows has an outcome or a "
            "label; there is nothing to learn from yet"
        )
    labelled = np.array([row.label is not None for row in rows])
    actions = np.array([r.action if r.label is None else r.label for r in rows])
    outcomes = np.array([1.0 if r.label is not None else r.outcome for r in rows])
    two = np.array([len(row.question.options) == 2 for row in rows])
    truth = np.where(labelled, actions, -1)
    told = two & ~labelled
    truth[told] = np.where(outcomes == 1, actions, 1 - actions)[told]
    chances = [1.0 if r.label is not None else r.propensity for r in rows]
    without = sum(chance is None for chance in chances)
    if 0 < without < (~labelled).sum():
        notes["without propensity, so that none is used"] = without
    times = _all_or_none(path, "decided_at", [row.decided_at for row in rows])
    if times is not None and len({time.tzinfo is None for time in times}) == 2:
        raise FitError(
            f"{path}: some times of decided_at have a zone and some have none; write "
            "all of them alike"
        )
    splits = _all_or_none(path, "split", [row.split or None for row in rows])
    unknown = set(splits or ()) - {"train", "val", "test"}
    if unknown:
        raise FitError(
            f"{path}: split {sorted(unknown)[0]!r}; use train, val and test, or leave "
            "the column out"
        )
    texts = [render_state(row.state) for row in rows]
    groups = link_groups([normalise(t) for t in texts], near_duplicates(texts))
    known = ("train", "val", "test")
    return Cases(
        items=[(row.state, row.question) for row in rows],
        actions=actions,
        outcomes=outcomes,
        labelled=labelled,
        truth=truth,
        groups=groups,
        sources=[row.source or "(none)" for row in rows],
        propensities=None if without else np.array(chances),
        times=times,
        parts=None if splits is None else np.array([known.index(s) for s in splits]),
        notes=notes,
    )


def _all_or_none(path: Path, name: str, values: list[Any]) -> list[Any] | None:
    missing = sum(value is None for value in values)
    if 0 < missing < len(values):
        raise FitError(
            f"{path}: {missing:,} of {len(values):,} usable rows have no {name}; fill "
            "the column, or leave it out"
        )
    return None if missing else values


def split_cases(cases: Cases, seed: int = 0) -> tuple[np.ndarray, dict[str, int]]:
    """Part of each row, an index of `PARTS`, or -1; and what was left out of parts.

    By the log's own split if it has one ("val" makes temperature and gate), else by
    time (the latest rows audit), else by group of states that nearly repeat each
    other. A state is in one part only: what it would be in later parts is left out. The
    parts that judge hold one row a state, since gates and intervals count
    independent rows.

    Raises
    ------
    FitError
        A part has fewer than 20 rows.
    """
    n = len(cases)
    if cases.parts is not None:
        part = np.array([0, 1, 3])[cases.parts]
        val = np.flatnonzero(part == 1)
        groups = [cases.groups[i] for i in val]
        part[val] += split_by_group(groups, _VAL_SHARES, seed) if len(val) else 0
    elif cases.times is not None:
        ordered = sorted(cases.times)
        ends = np.cumsum(_SHARES)[:-1]
        cuts = [ordered[min(int(end * n), n - 1)] for end in ends]
        part = np.array([sum(time >= cut for cut in cuts) for time in cases.times])
    else:
        part = split_by_group(cases.groups, _SHARES, seed)
    left: Counter[str] = Counter()
    first: dict[str, int] = {}
    for i in np.argsort(part, kind="stable"):
        home = first.setdefault(cases.groups[i], part[i])
        if home != part[i]:
            part[i] = -1
            left["a state of an earlier part again"] += 1
    seen: set[str] = set()
    for i in np.flatnonzero(part > 0):
        if cases.groups[i] in seen:
            part[i] = -1
            left["a state of the same judging part again"] += 1
        seen.add(cases.groups[i])
    sizes = {name: int((part == k).sum()) for k, name in enumerate(PARTS)}
    if min(sizes.values()) < _FEWEST:
        by_time = cases.parts is None and cases.times is not None
        raise FitError(
            f"after splitting, the parts have {sizes} rows; each needs at least "
            f"{_FEWEST}: bring more decisions, or look at what was left out: "
            f"{dict(left) or 'nothing'}"
            + ("; or leave decided_at out, to split by state" if by_time else "")
        )
    return part, dict(left)


# --- Learning ----------------------------------------------------------------------


def learn(
    policy: torch.nn.Module,
    prepared: Any,
    rows: np.ndarray,
    cases: Cases,
    config: FitConfig,
    progress: bool = False,
) -> list[str]:
    """Train on logged rows in place; says in words what was done.

    The verdict losses take all rows at once. The RLCD objectives, whose steps speak of
    actions that a policy drew, first warm up on the labelled rows, then learn from the
    outcomes of the others.
    """
    told = rows[cases.labelled[rows]]
    heard = rows[~cases.labelled[rows]]
    needs = config.objective in ("rlcd_ips", "rlcd_snips")
    if needs and len(heard) and cases.propensities is None:
        raise FitError(
            f"objective {config.objective!r} needs the propensity of every outcome; "
            "use verdict_nll, or fill that column"
        )
    if config.objective.startswith("verdict") or not len(heard):
        stages = [("verdict_nll" if not len(heard) else config.objective, rows)]
    else:
        stages = [("verdict_nll", told), (config.objective, heard)]
    done = []
    for objective, chosen in stages:
        if not len(chosen):
            continue
        env = LoggedEnv(
            cases.actions,
            cases.outcomes,
            np.array([len(q.options) for _, q in cases.items]),
            cases.propensities,
        )
        size = min(config.batch, len(chosen))
        sizes = TrainConfig(
            learning_rate=config.learning_rate,
            outcomes=max(config.epochs * len(chosen), size),
            outcomes_per_step=size,
        )
        arm = Arm(objective, objective, objective)
        train(policy, prepared, chosen, env, arm, sizes, config.seed, progress=progress)
        known = int(cases.labelled[chosen].sum())
        done.append(
            f"{objective}: {known:,} labels and {len(chosen) - known:,} outcomes, "
            f"{config.epochs} times"
        )
    return done


def log_probabilities(policy: Any, prepared: Any, rows: np.ndarray) -> np.ndarray:
    """(n, K) float64 log-probabilities, -1e9 where a row has no option."""
    parts = []
    with torch.inference_mode():
        for start in range(0, len(rows), 1024):
            batch = prepared.take(rows[start : start + 1024])
            parts.append(policy.log_probs(batch).double().cpu().numpy())
    return np.concatenate(parts)


@dataclass(frozen=True)
class Judged:
    """Rows of a part on which the proposed option was judged.

    `rows` index the part; `confidence` and `right` are (n,); `p` (m, K) holds the
    answers to all m rows of the part.
    """

    p: np.ndarray
    rows: np.ndarray
    confidence: np.ndarray
    right: np.ndarray


def judge(p: np.ndarray, rows: np.ndarray, cases: Cases) -> Judged:
    """Where it is known whether the most probable option is right.

    With a known right option it always is. Else the log must have taken the same
    option; that it took another one and was right would tell as well, but keeping those
    rows would keep wrong proposals only.
    """
    top, truth = p.argmax(1), cases.truth[rows]
    same = cases.actions[rows] == top
    known = (truth >= 0) | same
    right = np.where(truth >= 0, truth == top, cases.outcomes[rows])
    at = np.flatnonzero(known)
    return Judged(p, at, p[at, top[at]], right[at].astype(float))


@dataclass(frozen=True)
class Fitted:
    """What `fit` made: where, and what it found (JSON-ready, also `report.json`)."""

    folder: Path
    report: Mapping[str, Any]

    def lines(self) -> list[str]:
        """The summary, as the command prints it."""
        return list(self.report["summary"])


def fit(
    path: Path | str,
    folder: Path | str,
    config: FitConfig = FitConfig(),
    *,
    questions: Mapping[str, Question] | None = None,
    encoder: Encoder | None = None,
    truncate: bool = False,
    copy_encoder: bool = False,
    progress: bool = False,
) -> Fitted:
    """Make a decider of a log of decisions, with its audit page.

    Parameters
    ----------
    path : path
        The log: CSV, JSONL or Parquet; columns as `rlcd_core.data.log` says.
    folder : path
        The export, which must not exist; it holds ``audit.html`` and ``report.json``.
    questions : mapping, optional
        Questions that the log calls by name.
    encoder : Encoder, optional
        Default: the packaged one, for states of at most 256 tokens.
    truncate : bool
        Of the packaged encoder: cut longer states at their end instead of raising.
    copy_encoder : bool
        As for `rlcd_core.export.export`.

    Raises
    ------
    LogError, FitError, ExportError
        A row, the log, or the folder cannot be used; nothing is written.
    """
    path, folder = Path(path), Path(folder)
    if folder.exists():
        raise ExportError(f"{folder} exists; choose another folder, or delete this one")
    cases = read_cases(path, questions, config.limit)
    part, left = split_cases(cases, config.seed)
    encoder = Encoder.load(truncate=truncate) if encoder is None else encoder
    generator = torch.Generator().manual_seed(config.seed)
    policy = DecisionHead(encoder, config.rank, generator)
    prepared = policy.prepare(cases.items)
    rows = {name: np.flatnonzero(part == k) for k, name in enumerate(PARTS)}
    done = learn(policy, prepared, rows["train"], cases, config, progress)
    policy.eval()
    temperature = _temperature(policy, prepared, rows["temperature"], cases)
    found = {
        name: judge(
            temperature.apply(log_probabilities(policy, prepared, rows[name])),
            rows[name],
            cases,
        )
        for name in ("gate", "test")
    }
    gate = _gate(found["gate"], config)
    named = _names(cases, questions or {})
    gates = _gates_by_question(found["gate"], rows["gate"], cases, named, config)
    report = summary(
        cases,
        rows,
        left,
        done,
        temperature,
        gate,
        found,
        asdict(config),
        path.name,
        named,
        gates,
    )
    export(
        policy,
        folder,
        questions=named or None,
        temperature=temperature,
        gates={"act": gate, **gates},
        card=Card(
            decides=f"{report['questions']:,} question(s) of the log {path.name}.",
            trained_on=f"{path.name}: {'; '.join(done)}.",
            evidence=report["evidence"],
            limits=report["limits"],
        ),
        copy_encoder=copy_encoder,
        pages={
            "audit.html": page(report),
            "report.json": json.dumps(report, indent=1, sort_keys=True) + "\n",
        },
    )
    return Fitted(folder, report)


def _names(cases: Cases, given: Mapping[str, Question]) -> dict[str, Question]:
    """The questions of the log by name; none where they differ from row to row."""
    asked = list(dict.fromkeys(question for _, question in cases.items))
    if len(asked) > 20:
        return {}
    known = {question: name for name, question in given.items()}
    places = range(1, len(asked) + len(given) + 1)
    plain = ["question"] * (len(asked) == 1) + [f"question_{k}" for k in places]
    free = [name for name in plain if name not in given]
    return {known.get(q, name): q for name, q in zip(free, asked, strict=False)}


def _gates_by_question(
    found: Judged,
    rows: np.ndarray,
    cases: Cases,
    named: Mapping[str, Question],
    config: FitConfig,
) -> dict[str, Guarantee]:
    """A gate for each of several questions: what holds for all of them mixed may not
    hold for one alone."""
    if len(named) < 2:
        return {}
    asked = [cases.items[i][1] for i in rows[found.rows]]
    gates = {}
    for name, question in named.items():
        mine = np.array([one == question for one in asked])
        if mine.any():
            gates[name] = learn_then_test(
                found.confidence[mine], found.right[mine], config.error, config.delta
            )
    return gates


def _temperature(
    policy: Any, prepared: Any, rows: np.ndarray, cases: Cases
) -> Temperature:
    log_p = log_probabilities(policy, prepared, rows)
    return fit_verdict_temperature(log_p, cases.actions[rows], cases.outcomes[rows])


def _gate(found: Judged, config: FitConfig) -> Guarantee:
    if not len(found.rows):
        raise FitError(
            "the decider agrees with the log on no row of the gate's part, so that "
            "nothing can be promised: label some rows"
        )
    return learn_then_test(found.confidence, found.right, config.error, config.delta)
