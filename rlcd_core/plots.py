"""Figures of the book: ``prepare_*`` computes numbers, ``plot_*`` draws them.

Each ``plot_*`` takes what its ``prepare_*`` returned, so what is drawn can be tested
without looking. One style serves light and dark pages: the ground is transparent; ink
has a contrast of at least 4:1, a mark at least 3:1, on white and on near-black. Marks
need the wider band, because colours of one lightness look alike to a colour-blind
reader. Colour says the family of an arm; marker and line say which it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from rlcd_core import metrics

INK = "#7a7d84"  # text, axes and reference lines
# One colour a family of arms, apart under the three common colour deficiencies.
COLORS = {"rlcd": "#0c60fc", "rlvr": "#cc2430", "verdict": "#27a56b"}
COLORS |= {"label": "#a83cb4", "broken": "#c98300", "control": INK}
# Where options 0, 1, 2 stand: left, right, top of a triangle of side 1.
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])


@dataclass(frozen=True)
class ArmStyle:
    """How an arm looks throughout the book."""

    label: str
    family: str
    marker: str
    line: str = "-"

    @property
    def color(self) -> str:
        """Hex colour of the family."""
        return COLORS[self.family]

    @property
    def drawn(self) -> dict[str, Any]:
        """Arguments for `Axes.plot`."""
        return {"color": self.color, "marker": self.marker, "ls": self.line}


ARM_STYLE = {
    "rlcd": ArmStyle("RLCD, one outcome", "rlcd", "o"),
    "rlcd_g4": ArmStyle("RLCD, no baseline, G = 4", "rlcd", "D", "--"),
    "rlcd_loo": ArmStyle("RLCD, seed recipe", "rlcd", "s", "-."),
    "rlcd_low": ArmStyle("RLCD, a fifth of the rate", "rlcd", "v", ":"),
    "rlcd_half": ArmStyle("RLCD, half sampled penalty", "rlcd", "X", "--"),
    "residual_ht": ArmStyle("Residual HT, G = 2", "rlcd", "P", "-."),
    "rlvr": ArmStyle("RLVR, one outcome", "rlvr", "^"),
    "rlvr_loo": ArmStyle("RLVR, seed recipe", "rlvr", "s", "-."),
    "rlvr_low": ArmStyle("RLVR, a fifth of the rate", "rlvr", "v", "--"),
    "rlvr_gini": ArmStyle("RLVR + exact Gini", "rlvr", "D", "-."),
    "verdict_nll": ArmStyle("Verdict NLL", "verdict", "o"),
    "verdict_brier": ArmStyle("Verdict Brier", "verdict", "s", "--"),
    "one_bit_log": ArmStyle("Log score from one bit", "verdict", "^", "-."),
    "one_bit_spherical": ArmStyle("Spherical from one bit", "verdict", "v", ":"),
    "one_bit_log_spherical": ArmStyle("Composite from one bit", "verdict", "D", "--"),
    "nll": ArmStyle("Full label, NLL", "label", "o"),
    "brier": ArmStyle("Full label, Brier", "label", "s", "--"),
    "reference": ArmStyle("Large-label reference", "label", "^", "-."),
    "rlcd_std": ArmStyle("RLCD, std-normalised", "broken", "o"),
    "rlvr_std": ArmStyle("RLVR, std-normalised", "broken", "^", "--"),
    "bt_drawn": ArmStyle("Pairs, drawn", "label", "v", "--"),
    "pl_drawn": ArmStyle("Rankings, drawn", "label", "P", ":"),
    "top_counts": ArmStyle("Favourite, counted", "broken", "s", "--"),
    "bt_counts": ArmStyle("Pairs, counted", "broken", "v", "-."),
    "pl_counts": ArmStyle("Rankings, counted", "broken", "P", ":"),
    "warmup": ArmStyle("Warm-up", "control", "o"),
    "supervised": ArmStyle("Supervised continuation", "control", "s", "--"),
}
"""The fixed look of every arm; colour and marker, or a grid's marker and line."""

for _beta, _marker in zip((0.05, 0.1, 0.2, 0.3, 0.4, 0.5), "opPXh*", strict=True):
    for _name, _word, _line in (("shannon", "entropy", ":"), ("kl", "KL", "--")):
        _look = ArmStyle(f"RLVR + {_beta:g} {_word}", "rlvr", _marker, _line)
        ARM_STYLE[f"rlvr_{_name}_{_beta:g}"] = _look


def arm_style(arm: str) -> ArmStyle:
    """Look of ``arm``; KeyError for an arm that has none."""
    if arm not in ARM_STYLE:
        raise KeyError(f"no style for arm {arm!r}; known: {', '.join(ARM_STYLE)}")
    return ARM_STYLE[arm]


def use_style() -> None:
    """Set the book's style; in a notebook, also make figures reproducible SVG.

    Glyphs are stored as outlines, so a figure looks alike on every machine; the salt
    and the missing date make a second run write the same bytes.
    """
    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor")
    clear = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
    mpl.rcdefaults()
    style: dict[str, Any] = dict.fromkeys((*inked, "xtick.color", "ytick.color"), INK)
    style |= dict.fromkeys(clear, "none") | {"savefig.transparent": True}
    style |= {"svg.fonttype": "path", "svg.hashsalt": "rlcd"}
    style |= {"axes.spines.top": False, "axes.spines.right": False}
    style |= {"font.family": "DejaVu Sans", "font.size": 11, "axes.titlesize": 12}
    style |= {"axes.titlelocation": "left", "figure.constrained_layout.use": True}
    style |= {"xtick.labelsize": 10, "ytick.labelsize": 10}
    style |= {"lines.linewidth": 2.0, "lines.markersize": 6.5}
    mpl.rcParams.update(style)
    if "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None:
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        # bbox_inches=None keeps the width, and with it the size of the letters.
        quiet = {"Date": None, "Creator": None}
        set_matplotlib_formats("svg", bbox_inches=None, metadata=quiet)


def figure(rows: int = 1, columns: int = 1, height: float = 3.4, **options: Any) -> Any:
    """Figure and axes of the book's width, 6 in, with ``height`` inches a row.

    They are drawn at four fifths of that size and shown larger, so that the letters
    stay readable when a phone shrinks the figure to 320 pixels. Panels that are read
    one by one belong in rows: on a phone they keep their width.
    """
    size = (0.8 * 6.0, 0.8 * height * rows)
    return plt.subplots(rows, columns, figsize=size, **options)


def note(ax: Axes, text: str, x: float, y: float, **options: Any) -> None:
    """Write ``text`` near a data point, by default 6 points right of it."""
    place: dict[str, Any] = {"xytext": (6, 0), "textcoords": "offset points"}
    place |= {"fontsize": 10, "va": "center", "annotation_clip": False}
    ax.annotate(text, (x, y), **(place | options))


def note_ends(ax: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Tie each ``(x, y, text, color)`` to the right of its line's end, none overlap."""
    low, high = ax.get_ylim()
    gap = 14 * (high - low) / (ax.get_window_extent().height / ax.figure.dpi * 72)
    ends = sorted(ends, key=lambda end: end[1])
    seat = np.array([end[1] for end in ends])
    for _ in range(500):
        for i in np.flatnonzero(np.diff(seat) < 0.999 * gap):
            push = (gap - seat[i + 1] + seat[i]) / 2
            seat[i : i + 2] += (-push, push)
    for (x, y, text, color), at in zip(ends, seat, strict=True):
        tie = {"arrowstyle": "-", "color": color, "relpos": (0, 0.5), "shrinkB": 0}
        note(ax, text, x, y, xytext=(18, (at - y) / gap * 14), arrowprops=tie)


@dataclass(frozen=True)
class ReliabilityData:
    """Bins, and Wilson bounds (n_bins,) of their accuracy, NaN where a bin is empty."""

    bins: metrics.Reliability
    low: np.ndarray
    high: np.ndarray


def prepare_reliability(
    confidence: np.ndarray, correct: np.ndarray, level: float = 0.95, **binning: Any
) -> ReliabilityData:
    """Bin confidences (n,) against outcomes (n,); options as `metrics.reliability`."""
    bins = metrics.reliability(confidence, correct, **binning)
    right = np.nan_to_num(bins.accuracy) * bins.count
    return ReliabilityData(bins, *metrics.wilson_interval(right, bins.count, level))


def plot_reliability(ax: Axes, data: ReliabilityData, arm: str) -> None:
    """Draw accuracy over confidence, its band, shares along the foot, ECE and n."""
    look, bins, full = arm_style(arm), data.bins, data.bins.count > 0
    x, left, foot = bins.confidence[full], bins.lower[full], bins.count[full]
    # Shares of all, so that panels side by side can be compared.
    tall, wide = 0.2 * foot / bins.n, bins.upper[full] - left
    ax.plot([0, 1], [0, 1], color=INK, lw=1, ls=":")
    ax.bar(left, tall, wide, align="edge", color=INK, alpha=0.4)
    band = data.low[full], data.high[full]
    ax.fill_between(x, *band, color=look.color, alpha=0.25, lw=0)
    ax.plot(x, bins.accuracy[full], **look.drawn)
    text = f"ECE-{len(full)}  {bins.ece:.3f}\nn = {bins.n:,}"
    ax.text(0.98, 0.2, text, ha="right")
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", title=look.label)
    ax.set(xlabel="stated confidence", ylabel="observed accuracy")


@dataclass(frozen=True)
class CurveData:
    """Mean over seeds and its interval along ``x``; arrays (T,)."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def prepare_curves(
    x: np.ndarray, values: Mapping[str, np.ndarray], level: float = 0.95
) -> dict[str, CurveData]:
    """Mean and t-interval over seeds of each arm's values (seeds, T) at ``x`` (T,).

    ValueError for another shape, for fewer than two seeds or for values not finite.
    """
    curves = {}
    for arm, runs in values.items():
        if np.ndim(runs) != 2 or np.shape(runs)[1:] != np.shape(x):
            raise ValueError(f"{arm}: values must be (seeds, {np.size(x)})")
        cells = [metrics.seed_interval(step, level) for step in np.transpose(runs)]
        bounds = np.array([(cell.estimate, cell.low, cell.high) for cell in cells])
        curves[arm] = CurveData(np.asarray(x), *bounds.T)
    return curves


Curves = Mapping[str, CurveData]


def _end(arm: str, data: CurveData) -> tuple[float, float, str, str]:
    """An arm's name at the right end of its curve, for `note_ends`."""
    look = arm_style(arm)
    return data.x[-1], data.mean[-1], look.label, look.color


def plot_curves(ax: Axes, curves: Curves, xlabel: str, ylabel: str) -> None:
    """Draw one banded line an arm, each named at its right end."""
    for arm, data in curves.items():
        look, every = arm_style(arm), max(1, len(data.x) // 8)
        ax.fill_between(data.x, data.low, data.high, color=look.color, alpha=0.2, lw=0)
        ax.plot(data.x, data.mean, markevery=every, **look.drawn)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    note_ends(ax, [_end(arm, data) for arm, data in curves.items()])


SIGNALS = {
    "outcome": "share right",
    "gap": "stated - actual",
    "entropy": "entropy, nats",
    "zero_variance": "groups that agree",
    "label_mass": "label mass",
    "grad_norm": "gradient norm",
}
"""Health signals of `train.signals` and their axis labels, top to bottom."""

GAP_WORRY, AGREE_WORRY, MASS_WORRY = 0.05, 0.8, 0.5
FADE, SPIKE = 0.25, 10.0  # parts of the start: entropy below, gradient norm above
Signals = Sequence[Mapping[str, float]]


@dataclass(frozen=True)
class SignalData:
    """One signal of some arms, and where a reader should worry.

    Attributes
    ----------
    label : str
        Name of the axis.
    curves : dict of `CurveData`
        Mean over seeds and its 95 % interval; of one seed alone, no width.
    worry : tuple of (low, high)
        Ranges that are a reason to look closer; infinite ends are open.
    inside : dict of float
        Share of the run that an arm's mean spends there, in [0, 1].
    """

    label: str
    curves: dict[str, CurveData]
    worry: tuple[tuple[float, float], ...]
    inside: dict[str, float]


def prepare_signals(
    runs: Mapping[str, Sequence[Signals]], level: float = 0.95
) -> dict[str, SignalData]:
    """What to watch while arms train: every signal that at least one arm has.

    Parameters
    ----------
    runs : dict
        For each arm its seeds' signals, as `RunRecord.signals` or
        `TrainResult.history` keep them: rows with ``step`` and the signals.
    level : float
        Of the intervals over seeds.

    Returns
    -------
    dict of `SignalData`
        In the order of `SIGNALS`. Left out: arms that lack a signal, and groups that
        agree where every group is of one action, which always agrees with itself.

    Notes
    -----
    Worry: stated minus actual more than .05 from 0 (a block of 1,000 outcomes has a
    standard error of at most .016); entropy under a quarter of where the first arm
    began; more than .8 of the groups without a difference, hence without a gradient
    under a group baseline; label mass under .5; a gradient norm ten times the median of
    the first tenth of the first arm's run. The share right has no such range.

    Raises
    ------
    ValueError
        An arm has no row, or its seeds differ in steps.
    """
    panels = {}
    for name, label in SIGNALS.items():
        curves = {}
        for arm, seeds in runs.items():
            steps = [[row["step"] for row in rows] for rows in seeds]
            if not steps or not steps[0] or any(s != steps[0] for s in steps):
                raise ValueError(f"{arm}: pass seeds with rows at the same steps")
            if not all(name in row for rows in seeds for row in rows):
                continue
            values = np.array([[row[name] for row in rows] for rows in seeds])
            if name == "zero_variance" and (values == 1).all():
                continue
            x = np.array(steps[0])
            if len(values) > 1:
                curves |= prepare_curves(x, {arm: values}, level)
            else:
                curves[arm] = CurveData(x, values[0], values[0], values[0])
        if curves:
            worry = _worry(name, next(iter(curves.values())).mean)
            hit = {
                arm: np.any([(c.mean > a) & (c.mean < b) for a, b in worry], axis=0)
                for arm, c in curves.items()
            }
            inside = {arm: float(np.mean(found)) for arm, found in hit.items()}
            panels[name] = SignalData(label, curves, worry, inside)
    return panels


def _worry(name: str, first: np.ndarray) -> tuple[tuple[float, float], ...]:
    early = first[: max(1, len(first) // 10)]
    match name:
        case "gap":
            return ((-np.inf, -GAP_WORRY), (GAP_WORRY, np.inf))
        case "entropy":
            return ((-np.inf, FADE * float(early[0])),)
        case "zero_variance":
            return ((AGREE_WORRY, np.inf),)
        case "label_mass":
            return ((-np.inf, MASS_WORRY),)
        case "grad_norm":
            return ((SPIKE * float(np.median(early)), np.inf),)
    return ()


def plot_signals(axes: Sequence[Axes], panels: Mapping[str, SignalData]) -> None:
    """Draw one panel a signal on as many axes; shaded where a reader should worry."""
    axes = np.ravel(np.array(axes, dtype=object))
    if len(axes) != len(panels):
        raise ValueError(f"{len(panels)} signals need as many axes, not {len(axes)}")
    for ax, data in zip(axes, panels.values(), strict=True):
        for arm, c in data.curves.items():
            look = arm_style(arm)
            ax.fill_between(c.x, c.low, c.high, color=look.color, alpha=0.2, lw=0)
            ax.plot(c.x, c.mean, color=look.color, ls=look.line)
        low, high = ax.get_ylim()
        for a, b in data.worry:
            if a < high and b > low:  # only as much of it as the curves come near
                span = max(a, low), min(b, high)
                ax.axhspan(*span, color=COLORS["broken"], alpha=0.18, lw=0, zorder=0)
        ax.set(ylim=(low, high), ylabel=data.label)
        ax.label_outer()
    axes[-1].set_xlabel("step")
    named: set[str] = set()  # each name stands once, in the first panel with its arm
    for ax, data in zip(axes, panels.values(), strict=True):
        note_ends(ax, [_end(a, c) for a, c in data.curves.items() if a not in named])
        named |= data.curves.keys()


def prepare_dots(
    values: Mapping[str, Sequence[float]], level: float = 0.95
) -> dict[str, CurveData]:
    """Mean and t-interval over each arm's values (seeds,): curves of one point."""
    columns = {arm: np.array(runs)[:, None] for arm, runs in values.items()}
    return prepare_curves(np.zeros(1), columns, level)


def plot_dots(ax: Axes, dots: Curves, xlabel: str) -> None:
    """Draw a dot and its interval a row, first arm on top, mean written beside it."""
    for row, (arm, dot) in enumerate(dots.items()):
        look = arm_style(arm)
        ax.plot([dot.low, dot.high], [row, row], color=look.color, lw=3, alpha=0.6)
        ax.plot(dot.mean, row, **look.drawn)
        note(ax, f"{dot.mean[0]:.3f}", dot.high[0], row)
    ax.set_yticks(range(len(dots)), [arm_style(arm).label for arm in dots])
    ax.set(ylim=(len(dots) - 0.5, -0.5), xlabel=xlabel)
    ax.margins(x=0.15)
    ax.tick_params(axis="y", length=0)


def to_xy(p: np.ndarray) -> np.ndarray:
    """Map points (or tangent vectors) (..., 3) of the simplex to the plane (..., 2).

    >>> to_xy(np.array([0.0, 1.0, 0.0])).tolist()
    [1.0, 0.0]
    """
    return np.asarray(p, float) @ CORNERS


def simplex_grid(resolution: int, margin: float = 0.0) -> np.ndarray:
    """Lattice (N, 3) of distributions over three options, shrunk off the edges.

    >>> simplex_grid(2).shape
    (6, 3)
    """
    i, j = np.indices((resolution + 1, resolution + 1))
    steps = np.stack([i, j, resolution - i - j], axis=-1)[i + j <= resolution]
    return (1 - margin) * steps / resolution + margin / 3


@dataclass(frozen=True)
class SimplexData:
    """Values (N,) or velocities (N, 3) at distributions ``p`` (N, 3)."""

    p: np.ndarray
    value: np.ndarray


def prepare_simplex(
    function: Callable[[np.ndarray], Any], resolution: int = 60, margin: float = 0.0
) -> SimplexData:
    """Values (N,), or velocities (N, 3) that sum to 0, of ``function`` on a lattice."""
    p = simplex_grid(resolution, margin)
    value = np.asarray(function(p), float)
    if value.shape not in (p.shape, p.shape[:1]):
        raise ValueError(f"function must return (N,) or (N, 3), got {value.shape}")
    if value.ndim == 2 and np.abs(value.sum(axis=1)).max() > 1e-9:
        raise ValueError("a velocity on the simplex must sum to 0")
    return SimplexData(p, value)


def plot_simplex(
    ax: Axes,
    data: SimplexData | None = None,
    labels: Sequence[str] = ("A", "B", "C"),
    levels: int | Sequence[float] = 9,
    fill: bool = False,
) -> None:
    """Draw the triangle with named corners, with contours or a heat map of ``data``."""
    if data is not None:
        thin = {"colors": INK, "linewidths": 0.8, "alpha": 0.7}
        draw, look = (ax.tricontourf, {}) if fill else (ax.tricontour, thin)
        draw(*to_xy(data.p).T, data.value, levels=levels, **look)
    ax.plot(*CORNERS[[0, 1, 2, 0]].T, color=INK, lw=1.2)
    for at, text, shift in zip(CORNERS, labels, (-11, -11, 10), strict=True):
        note(ax, text, *at, xytext=(0, shift), ha="center", fontsize=11)
    ax.set(aspect="equal", xlim=(-0.08, 1.08), ylim=(-0.1, 0.97))
    ax.axis("off")


def plot_field(ax: Axes, data: SimplexData, arm: str, power: float = 0.35) -> None:
    """Draw arrows whose length grows as speed to ``power``; the longest is 0.09."""
    flat = to_xy(data.value)
    speed = np.linalg.norm(flat, axis=1, keepdims=True)
    step = 0.09 * flat / np.where(speed > 0, speed, 1) * (speed / speed.max()) ** power
    head = {"headwidth": 4, "headlength": 4.5, "headaxislength": 4, "pivot": "mid"}
    units = {"angles": "xy", "scale_units": "xy", "scale": 1, "width": 0.0075}
    ax.quiver(*to_xy(data.p).T, *step.T, color=arm_style(arm).color, **units, **head)


def plot_bars(
    ax: Axes, values: Mapping[str, float], xlabel: str, colors: Sequence[str] = ()
) -> None:
    """Draw one horizontal bar a label with its value at the end, first on top."""
    if not np.isfinite(list(values.values())).all():
        raise ValueError("every bar needs a finite value")
    paint = colors or [COLORS["rlcd"]] * len(values)
    ax.barh(list(values), list(values.values()), height=0.62, color=paint)
    for row, value in enumerate(values.values()):
        note(ax, f"{value:#.3g}", max(value, 0), row)
    ax.set(ylim=(len(values) - 0.5, -0.5), xlabel=xlabel)
    ax.margins(x=0.12)
    ax.tick_params(axis="y", length=0)
