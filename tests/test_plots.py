"""Figures: the numbers drawn, the palette's promises, and what must not be drawn."""

import io
import itertools

import matplotlib

matplotlib.use("svg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.text import Text

from rlcd_core import arms, metrics, plots

GROUNDS = ("#ffffff", "#121212", "#14181e")

# Machado, Oliveira & Fernandes (2009), full deficiency, on linear RGB.
DEFICIENCIES = {
    "none": np.eye(3),
    "protan": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deutan": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritan": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)


def linear(color):
    c = np.array(to_rgb(color))
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(color, ground):
    light = [TO_XYZ[1] @ linear(c) + 0.05 for c in (color, ground)]
    return max(light) / min(light)


def lab(color, deficiency):
    seen = (DEFICIENCIES[deficiency] @ linear(color)).clip(0, 1)
    x = (TO_XYZ @ seen) / TO_XYZ.sum(1)
    f = np.where(x > 0.008856, np.cbrt(x), 7.787 * x + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.fixture
def ax():
    plots.use_style()
    figure, axes = plots.figure()
    yield axes
    plt.close(figure)


def texts(ax):
    return [t for t in ax.findobj(Text) if t.get_text()]


# --- Style ------------------------------------------------------------------------


def test_contrast_formula_against_known_values():
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)  # WCAG


@pytest.mark.parametrize("ground", GROUNDS)
def test_ink_and_marks_read_on_light_and_dark(ground):
    assert contrast(plots.INK, ground) >= 4.0
    for color in plots.COLORS.values():
        assert contrast(color, ground) >= 3.0  # WCAG 1.4.11, graphical objects


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
def test_families_differ_for_every_reader(deficiency):
    for one, other in itertools.combinations(plots.COLORS.values(), 2):
        gap = np.linalg.norm(lab(one, deficiency) - lab(other, deficiency))
        assert gap > 20, (one, other)  # 2.3 is one just noticeable difference


def test_no_two_arms_look_alike():
    looks = [(s.family, s.marker, s.line) for s in plots.ARM_STYLE.values()]
    assert len(set(looks)) == len(looks)
    single = [
        (s.family, s.marker)
        for arm, s in plots.ARM_STYLE.items()
        if not arm.startswith(("rlvr_shannon_", "rlvr_kl_"))
    ]
    assert len(set(single)) == len(single)


def test_every_arm_that_trains_has_a_look_and_one_name():
    for name, arm in arms.ARMS.items():
        assert plots.arm_style(name).label == arm.label


def test_an_unknown_arm_is_refused_by_name():
    with pytest.raises(KeyError, match="no style for arm 'rlcd_typo'"):
        plots.arm_style("rlcd_typo")


def test_svg_is_the_same_twice_undated_and_transparent():
    def draw():
        plots.use_style()
        figure, axes = plots.figure()
        assert figure.get_facecolor()[3] == axes.get_facecolor()[3] == 0.0
        plots.plot_bars(axes, {"a": 1.0, "b": 2.0}, "value")
        out = io.BytesIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        plt.close(figure)
        return out.getvalue()

    first, second = draw(), draw()
    assert first == second
    assert b"<dc:date>" not in first
    assert b"#ffffff" not in first  # no painted ground


# --- Reliability ------------------------------------------------------------------


def test_reliability_numbers_by_hand():
    data = plots.prepare_reliability(
        np.array([0.6, 0.55]), np.array([1.0, 0.0]), n_bins=10
    )
    assert data.bins.ece == pytest.approx(0.475)
    # Wilson, one success of one: low = 1 / (1 + z^2), high = 1.
    z = 1.959963984540054
    assert data.low[6] == pytest.approx(1 / (1 + z**2))
    assert data.high[6] == pytest.approx(1.0)
    assert np.isnan(data.low[[0, 1, 2, 3, 4, 7, 8, 9]]).all()


def test_empty_bins_are_drawn_as_nothing(ax):
    data = plots.prepare_reliability(
        np.array([0.6, 0.55, 0.95]), np.array([1.0, 0.0, 1.0]), n_bins=10
    )
    plots.plot_reliability(ax, data, "rlcd")
    curve = ax.lines[-1]
    assert curve.get_xdata().tolist() == [0.55, 0.6, 0.95]
    assert curve.get_ydata().tolist() == [0.0, 1.0, 1.0]
    assert len(ax.patches) == 3  # one count a full bin
    corner = next(t.get_text() for t in texts(ax) if "ECE" in t.get_text())
    assert corner == f"ECE-10  {data.bins.ece:.3f}\nn = 3"


# --- Curves and dots --------------------------------------------------------------


def test_curve_interval_by_hand():
    curve = plots.prepare_curves([0.0, 1.0], {"rlcd": [[1.0, 2.0], [3.0, 2.0]]})["rlcd"]
    assert curve.mean.tolist() == [2.0, 2.0]
    # Two seeds: t(1) = 12.7062, standard error 1.
    assert curve.high - curve.mean == pytest.approx([12.7062, 0.0], abs=1e-4)


@pytest.mark.parametrize("values", [[1.0, 2.0], [[1.0], [2.0]]])
def test_curves_of_another_shape_are_refused(values):
    with pytest.raises(ValueError, match="rlcd: values must be"):
        plots.prepare_curves([0.0, 1.0], {"rlcd": values})


def test_names_at_line_ends_keep_apart(ax):
    x = np.arange(3.0)
    names = ("rlcd", "rlcd_loo", "rlvr", "verdict_nll", "nll")
    ends = (1.0, 1.0, 1.001, 1.002, 2.0)
    values = {a: np.full((2, 3), end) for a, end in zip(names, ends, strict=True)}
    plots.plot_curves(ax, plots.prepare_curves(x, values), "step", "Brier")
    ax.figure.canvas.draw()
    boxes = [Text.get_window_extent(t) for t in ax.texts]  # without the tie
    assert [t.get_text() for t in ax.texts] == [plots.ARM_STYLE[a].label for a in names]
    for lower, upper in itertools.pairwise(boxes):
        assert lower.y1 < upper.y0


def test_dots_stand_in_the_order_given(ax):
    dots = plots.prepare_dots({"rlcd": [0.1, 0.2], "rlvr": [0.3, 0.5]})
    plots.plot_dots(ax, dots, "Brier")
    assert [t.get_text() for t in ax.get_yticklabels()] == [
        "RLCD, one outcome",
        "RLVR, one outcome",
    ]
    assert ax.get_ylim() == (1.5, -0.5)
    assert [t.get_text() for t in ax.texts] == ["0.150", "0.400"]


# --- Simplex ----------------------------------------------------------------------


def test_lattice_holds_distributions():
    p = plots.simplex_grid(10, margin=0.3)
    assert p.shape == (66, 3)
    assert p.sum(1) == pytest.approx(np.ones(66))
    assert p.min() == pytest.approx(0.1)
    assert len(np.unique(p.round(9), axis=0)) == 66


def test_triangle_keeps_distances():
    """Equal Euclidean distances of distributions stay equal: circles are circles."""
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(3), (2, 50))
    flat = np.linalg.norm(plots.to_xy(p) - plots.to_xy(q), axis=1)
    assert flat == pytest.approx(np.linalg.norm(p - q, axis=1) / np.sqrt(2))


def test_values_and_velocities_are_checked():
    assert plots.prepare_simplex(lambda p: p[:, 0], 4).value.shape == (15,)
    with pytest.raises(ValueError, match="must sum to 0"):
        plots.prepare_simplex(lambda p: p, 4)
    with pytest.raises(ValueError, match="must return"):
        plots.prepare_simplex(lambda p: p[:, :2], 4)


def test_arrows_point_along_the_velocity(ax):
    corner = np.array([1.0, 0.0, 0.0])
    data = plots.prepare_simplex(lambda p: corner - p, 5, 0.2)
    plots.plot_field(ax, data, "rlvr")
    drawn = np.stack([ax.collections[0].U, ax.collections[0].V], axis=1)
    wanted = plots.CORNERS[0] - plots.to_xy(data.p)
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    length = np.linalg.norm(drawn, axis=1, keepdims=True)
    assert drawn / length == pytest.approx(wanted)
    assert length.max() == pytest.approx(0.09)


def test_a_resting_point_draws_no_arrow_of_nan(ax):
    rest = np.arange(10)[:, None] != 4
    data = plots.prepare_simplex(lambda p: rest * (1 / 3 - p), 3, 0.1)
    plots.plot_field(ax, data, "rlcd")
    assert not np.any(ax.collections[0].Umask)  # where it masks NaN


def test_contours_and_corner_names(ax):
    data = plots.prepare_simplex(lambda p: ((p - 1 / 3) ** 2).sum(1), 20)
    plots.plot_simplex(ax, data, labels=("bug", "billing", "other"), levels=[0.02, 0.1])
    assert {t.get_text() for t in ax.texts} == {"bug", "billing", "other"}
    contour = ax.collections[0]
    assert not isinstance(contour, LineCollection)
    radius = [
        np.linalg.norm(path.vertices - plots.to_xy(np.full(3, 1 / 3)), axis=1)
        for path in contour.get_paths()
    ]
    # ||p - q||^2 = 0.02 lies at distance sqrt(0.02 / 2) of the drawn centre.
    assert radius[0] == pytest.approx(np.full(len(radius[0]), 0.1), abs=0.004)


# --- Bars -----------------------------------------------------------------------


def test_bars_name_their_values_and_refuse_nan(ax):
    plots.plot_bars(ax, {"G = 1": 0.117, "G = 4": 0.38}, "variance")
    assert [t.get_text() for t in ax.texts] == ["0.117", "0.380"]
    with pytest.raises(ValueError, match="finite"):
        plots.plot_bars(ax, {"a": float("nan")}, "variance")


def test_letters_are_large_enough_for_a_phone(ax):
    c = np.linspace(0.1, 0.9, 50)
    data = plots.prepare_reliability(c, (c > 0.4).astype(float))
    plots.plot_reliability(ax, data, "rlvr")
    assert min(t.get_fontsize() for t in texts(ax)) >= 9
    assert ax.figure.get_figwidth() == pytest.approx(4.8)


def signal_rows(**columns):
    steps = range(1, len(next(iter(columns.values()))) + 1)
    names = ("step", *columns)
    rows = zip(steps, *columns.values(), strict=True)
    return [dict(zip(names, map(float, row), strict=True)) for row in rows]


def test_signals_hold_means_intervals_and_what_to_worry_about():
    honest = [
        signal_rows(gap=[0.0, 0.02], entropy=[0.8, 0.7], zero_variance=[1, 1]),
        signal_rows(gap=[0.02, 0.04], entropy=[0.8, 0.5], zero_variance=[1, 1]),
    ]
    sure = [
        signal_rows(gap=[0.01, 0.3], entropy=[0.8, 0.1], zero_variance=[0.3, 0.9]),
        signal_rows(gap=[0.03, 0.1], entropy=[0.8, 0.1], zero_variance=[0.3, 0.9]),
    ]
    panels = plots.prepare_signals({"rlcd": honest, "rlvr_loo": sure})
    assert list(panels) == ["gap", "entropy", "zero_variance"]
    np.testing.assert_allclose(panels["gap"].curves["rlcd"].mean, [0.01, 0.03])
    want = metrics.seed_interval([0.3, 0.1])
    found = panels["gap"].curves["rlvr_loo"]
    assert (found.low[1], found.high[1]) == pytest.approx((want.low, want.high))
    assert panels["gap"].worry == ((-np.inf, -0.05), (0.05, np.inf))
    assert panels["gap"].inside == {"rlcd": 0.0, "rlvr_loo": 0.5}
    # A quarter of .8; only the second arm gets there, at the last of two steps.
    assert panels["entropy"].worry == ((-np.inf, pytest.approx(0.2)),)
    assert panels["entropy"].inside == {"rlcd": 0.0, "rlvr_loo": 0.5}
    # Lone actions always agree with themselves and are no news.
    assert panels["zero_variance"].inside == {"rlvr_loo": 0.5}


def test_signals_of_one_seed_have_no_width_and_a_spike_is_seen():
    rows = signal_rows(
        grad_norm=[1] * 10 + [30], outcome=[0.5] * 11, label_mass=[0.4] * 11
    )
    panels = plots.prepare_signals({"rlcd": [rows]})
    assert list(panels) == ["outcome", "label_mass", "grad_norm"]
    curve = panels["grad_norm"].curves["rlcd"]
    assert np.array_equal(curve.low, curve.high)
    assert panels["grad_norm"].inside["rlcd"] == pytest.approx(1 / 11)
    assert panels["label_mass"].inside["rlcd"] == 1
    assert panels["outcome"].worry == () and panels["outcome"].inside["rlcd"] == 0


def test_signals_are_refused_where_seeds_do_not_match():
    one, other = signal_rows(gap=[0.0, 0.1]), signal_rows(gap=[0.0])
    for seeds in ([one, other], [], [[]]):
        with pytest.raises(ValueError, match="rlcd: pass seeds"):
            plots.prepare_signals({"rlcd": seeds})


def test_drawn_signals_are_the_prepared_ones():
    rows = signal_rows(gap=[0.0, 0.1, 0.2], grad_norm=[1, 1, 2])
    label_only = signal_rows(grad_norm=[2, 2, 2])
    panels = plots.prepare_signals({"rlcd": [rows], "nll": [label_only]})
    _, axes = plots.figure(2)
    plots.plot_signals(axes, panels)
    for ax, data in zip(axes, panels.values(), strict=True):
        for line, curve in zip(ax.lines, data.curves.values(), strict=True):
            assert np.array_equal(line.get_ydata(), curve.mean)
    # The shade starts at the band's edge: .05 on the first axes, none on the second.
    shade = [p for p in axes[0].patches if p.get_alpha() == 0.18]
    assert [p.get_y() for p in shade] == [pytest.approx(0.05)]
    assert not axes[1].patches
    written = [[t.get_text() for t in ax.texts] for ax in axes]
    assert written == [["RLCD, one outcome"], ["Full label, NLL"]]
    with pytest.raises(ValueError, match="2 signals need as many axes, not 1"):
        plots.plot_signals(axes[:1], panels)
