"""Gates: hand values, costs by enumeration, promises on a world of known risk."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, kstwo

from rlcd_core.gates import (
    Costs,
    Gate,
    GateError,
    conformal_risk_control,
    learn_then_test,
    least_rows,
    share_at,
    split_conformal,
)

N, ERROR, DELTA, DRAWS = 2000, 0.05, 0.1, 1000
# The world: an honest confidence 1 - u^2/2 with u uniform. Accepting the share s errs
# at rate s^2/6, so the oracle's share at error a is sqrt(6 a).
ORACLE = math.sqrt(6 * ERROR)


def world(rng: np.random.Generator, n: int, grid: float = 0.0):
    """Confidences (n,), outcomes (n,); `grid` rounds u up, which makes ties."""
    u = rng.random(n)
    u = np.ceil(u / grid) * grid if grid else u
    stated = 1 - u**2 / 2
    return stated, (rng.random(n) < stated).astype(float)


def true_share(act: float | None) -> float:
    return 0.0 if act is None else math.sqrt(2 * (1 - act))


# --- Gates by hand and by cost -------------------------------------------------------


def test_three_answers_and_their_edges() -> None:
    gate = Gate(act=0.9, abstain=0.2)
    stated = np.array([[1.0, 0.9], [np.nextafter(0.9, 0), 0.2]])
    answers = [["act", "act"], ["escalate", "escalate"]]
    assert gate.decide(stated).tolist() == answers
    assert gate.decide(np.float32(0.1)) == "abstain"
    never = Gate(None, abstain=1.0).decide([1.0, 0.99]).tolist()
    assert never == ["escalate", "abstain"]
    assert Gate(1.0).acts(1 + 1e-9), "an average of probabilities may pass 1"


def expected(costs: Costs, p: float) -> dict[str, float]:
    return {
        "act": costs.wrong * (1 - p),
        "escalate": costs.escalate,
        "abstain": math.inf if math.isinf(costs.missed) else costs.missed * p,
    }


price = st.floats(0.0, 100.0)


@given(st.floats(0.01, 100.0), price, price | st.just(math.inf), st.floats(0, 1))
def test_cost_gate_takes_the_cheapest_answer(wrong, escalate, missed, p) -> None:
    costs = Costs(wrong, escalate, missed)
    prices = expected(costs, p)
    answer = str(costs.gate().decide(p))
    assert prices[answer] <= min(prices.values()) + 1e-9 * (1 + wrong)


def test_costs_by_hand() -> None:
    assert Costs(20, 2, 8).gate() == Gate(0.9, 0.25)
    # Too dear to ask anyone: act or abstain, whichever errs cheaper.
    assert Costs(3, 100, 1).gate() == Gate(0.75, 0.75)
    assert Costs(10, 1).gate() == Gate(0.9, 0.0), "missing is out of the question"
    assert Costs(3, math.inf, 1).gate() == Gate(0.75, 0.75)
    answers = ["act", "act", "escalate", "abstain", "abstain"]
    mean = Costs(20, 2, 8).mean(answers, [1, 0, 1, 1, 0])
    assert mean == pytest.approx((0 + 20 + 2 + 8 + 0) / 5)
    assert Costs(20, 2).mean(["act", "abstain"], [1, 0]) == 0


def test_honest_confidences_make_the_cost_gate_best() -> None:
    stated, right = world(np.random.default_rng(0), 200_000)
    costs = Costs(20, 2, 8)
    gate = costs.gate()
    best = costs.mean(gate.decide(stated), right)
    for other in (Gate(0.8, 0.25), Gate(0.97, 0.25), Gate(None)):
        assert best < costs.mean(other.decide(stated), right)


# --- Learn then test -----------------------------------------------------------------


def by_hand(stated, right, error, delta, begin_rows) -> float | None:
    """Fixed sequence, as slow and plain as possible."""
    act = None
    for t in sorted(set(stated), reverse=True):
        inside = [r for s, r in zip(stated, right, strict=True) if s >= t]
        if len(inside) < begin_rows:
            continue
        if binom.cdf(inside.count(0.0), len(inside), error) > delta:
            break
        act = t
    return act


@pytest.mark.parametrize("grid", [0.0, 0.05])
def test_fixed_sequence_equals_the_plain_loop(grid: float) -> None:
    for seed in range(20):
        stated, right = world(np.random.default_rng(seed), 150, grid)
        found = learn_then_test(stated, right, 0.15, 0.2)
        rows = max(least_rows(0.15, 0.2), 15)
        assert found.gate.act == by_hand(stated, right.tolist(), 0.15, 0.2, rows)
        inside = stated >= (2 if found.gate.act is None else found.gate.act)
        assert (found.accepted, found.loss) == (inside.sum(), (1 - right)[inside].sum())


def test_least_rows_are_the_fewest_that_can_pass() -> None:
    for error in (0.01, 0.02, 0.1, 0.5):
        n = least_rows(error, 0.1)
        assert (1 - error) ** n <= 0.1 < (1 - error) ** (n - 1)
        clean = np.ones(n)
        assert learn_then_test(np.full(n, 0.9), clean, error).gate.act == 0.9
        assert learn_then_test(clean[1:], clean[1:], error).gate.act is None


def test_tied_confidences_go_together() -> None:
    # The tie at .8 spoils the error: the gate stops above it and splits nothing.
    stated = np.array([0.9] * 100 + [0.8] * 100)
    right = np.array([1.0] * 100 + [1.0, 0.0] * 50)
    order = np.random.default_rng(0).permutation(200)
    for rows in (np.arange(200), order):
        found = learn_then_test(stated[rows], right[rows], 0.05)
        assert (found.gate.act, found.accepted, found.loss) == (0.9, 100, 0)


def test_a_start_fixed_beforehand() -> None:
    stated = np.array([0.95] * 10 + [0.9] * 90 + [0.7] * 100)
    right = np.ones(200)
    right[:3] = 0  # the most confident rows are bad
    right[100:] = 0
    # .85 accepts the rows of .9; the threshold tested is the start itself.
    found = learn_then_test(stated, right, 0.1, start=0.85)
    assert (found.gate.act, found.accepted, found.loss) == (0.85, 100, 3)
    for start in (0.95, 0.99, 0.6):
        assert learn_then_test(stated, right, 0.1, start=start).gate.act is None


@pytest.fixture(scope="module")
def draws():
    rng = np.random.default_rng(31)
    return [world(rng, N) for _ in range(DRAWS)]


def test_learn_then_test_keeps_its_promise_and_is_useful(draws) -> None:
    found = [learn_then_test(*draw, ERROR, DELTA) for draw in draws]
    share = np.array([true_share(g.gate.act) for g in found])
    exceeded = (share**2 / 6 > ERROR).sum()
    # Were the true chance delta, more than this has chance .001.
    assert binom.ppf(0.999, DRAWS, DELTA) == 130
    assert 20 < exceeded <= 130
    assert share.mean() >= 0.8 * ORACLE
    inside = [
        g.share().low <= s <= g.share().high for g, s in zip(found, share, strict=True)
    ]
    assert np.mean(inside) >= 0.95


def test_ties_keep_the_promise() -> None:
    # u on a grid of 50 values k/50: accepting the first k errs at a known rate.
    rng, grid = np.random.default_rng(7), 0.02
    u = np.arange(1, 51) * grid
    risk = np.cumsum(u**2 / 2) / np.arange(1, 51)
    stated = 1 - u**2 / 2
    oracle = np.arange(1, 51)[risk <= ERROR].max()
    taken = []
    for _ in range(DRAWS):
        act = learn_then_test(*world(rng, N, grid), ERROR, DELTA).gate.act
        taken.append(0 if act is None else (stated >= act - 1e-12).sum())
    taken = np.array(taken)
    assert (taken > oracle).sum() <= 130
    assert taken.mean() >= 0.8 * oracle


def test_overconfidence_costs_the_promise_nothing(draws) -> None:
    # Only the order of the confidences matters, where the naive threshold breaks.
    for stated, right in draws[:20]:
        boast = stated**0.1
        a, b = (
            learn_then_test(stated, right, ERROR),
            learn_then_test(boast, right, ERROR),
        )
        assert (a.accepted, a.loss) == (b.accepted, b.loss)
        naive = boast >= 1 - ERROR
        assert 1 - right[naive].mean() > ERROR


def test_share_at_is_one_call(draws) -> None:
    stated, right = draws[0]
    found = share_at(stated, right, error=0.1)
    gate = learn_then_test(stated, right, 0.1).gate
    assert found.estimate == gate.acts(stated).mean()
    half = found.high - found.estimate
    assert found.low < found.estimate < found.high and found.level == 0.95
    # DKW is the limit of Kolmogorov's exact band, and never shorter.
    assert kstwo.ppf(0.95, N) <= half <= 1.01 * kstwo.ppf(0.95, N)
    nothing = share_at(stated, 1 - right)
    assert (nothing.estimate, nothing.low, nothing.high) == (0, 0, 0)


# --- Conformal risk control ----------------------------------------------------------


def test_risk_control_holds_on_the_mean(draws) -> None:
    # Acting on the share s costs s^3/6 wrong acts a decision.
    target = 0.02
    loss = [
        true_share(conformal_risk_control(s, 1 - r, target).gate.act) ** 3 / 6
        for s, r in draws
    ]
    error = np.std(loss, ddof=1) / math.sqrt(DRAWS)
    # Lower bound of the theorem, and one gap between order statistics more.
    assert target - 3 / (N + 1) - 4 * error <= np.mean(loss) <= target + 4 * error
    # A promise about the mean: single draws exceed it about half the time.
    assert 0.3 < np.mean(np.array(loss) > target) < 0.7


def test_risk_control_by_hand() -> None:
    stated, loss = [0.9, 0.8, 0.8, 0.6], [0.0, 0.5, 0.5, 1.0]
    found = conformal_risk_control(stated, loss, 0.4)  # (0 + 1 + 1) / 5
    assert (found.gate.act, found.accepted, found.loss) == (0.8, 3, 1.0)
    assert conformal_risk_control(stated, loss, 0.39).gate.act == 0.9
    assert conformal_risk_control(stated, loss, 0.19).gate.act is None


# --- Sets ----------------------------------------------------------------------------


def test_sets_cover_and_are_mapies() -> None:
    mapie = pytest.importorskip("mapie.classification")
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Stated(ClassifierMixin, BaseEstimator):
        """Hands its input on: the probabilities themselves."""

        def __init__(self) -> None:
            self.classes_, self.n_features_in_ = np.arange(3), 3

        def __sklearn_is_fitted__(self) -> bool:
            return True

        def predict_proba(self, p):
            return p

        def predict(self, p):
            return p.argmax(1)

    rng = np.random.default_rng(0)
    for n, error in ((50, 0.1), (99, 0.05), (500, 0.2)):
        p = rng.dirichlet(np.ones(3), n + 4000)
        y = (p.cumsum(1) < rng.random((len(p), 1))).sum(1)
        ours = p[n:] >= split_conformal(p[:n], y[:n], error)
        peer = mapie.SplitConformalClassifier(
            Stated(), confidence_level=1 - error, conformity_score="lac", prefit=True
        ).conformalize(p[:n], y[:n])
        assert (peer.predict_set(p[n:])[1][:, :, 0] == ours).all()


def test_sets_miss_as_often_as_promised() -> None:
    rng, missed = np.random.default_rng(1), []
    for _ in range(300):
        p = rng.dirichlet(np.ones(3), 199)
        y = (p.cumsum(1) < rng.random((199, 1))).sum(1)
        least = split_conformal(p[:99], y[:99], 0.1)
        missed.append((p[99:][np.arange(100), y[99:]] < least).mean())
    # 30,000 rows; exactly 10 of 100 ranks are missed, whatever the model.
    assert np.mean(missed) == pytest.approx(0.1, abs=0.006)
    by_hand = split_conformal([[0.7, 0.3], [0.6, 0.4], [0.2, 0.8]], [0, 0, 1], 0.3)
    assert by_hand == 0.6, "one of four ranks may be missed"
    assert split_conformal(np.eye(3), [0, 1, 2], 0.2) == 0.0, "too few rows: all"


# --- Bad input -----------------------------------------------------------------------

C, OK = [0.9, 0.8], [1, 0]
FAULTS = {
    "confidence": lambda: learn_then_test([0.9, 1.2], OK, 0.1),
    "confidence: shape": lambda: learn_then_test([[0.9, 0.8]], [OK], 0.1),
    "pass \\(N,\\)": lambda: learn_then_test([], [], 0.1),
    "correct: shape": lambda: learn_then_test(C, [1], 0.1),
    "correct: pass values": lambda: learn_then_test(C, [1, np.nan], 0.1),
    "soft": lambda: learn_then_test(C, [1, 0.5], 0.1),
    "type": lambda: learn_then_test(["high", "low"], OK, 0.1),
    "error": lambda: learn_then_test(C, OK, 0),
    "delta": lambda: learn_then_test(C, OK, 0.1, delta=1),
    "start": lambda: learn_then_test(C, OK, 0.1, start=2),
    "level": lambda: share_at(C, OK, level=95),
    "target": lambda: conformal_risk_control(C, OK, 1.5),
    "loss": lambda: conformal_risk_control(C, [0, 7], 0.1),
    "act=0.2": lambda: Gate(0.2, abstain=0.5),
    "act=1.5": lambda: Gate(1.5),
    "act=nan": lambda: Gate(math.nan),
    "`wrong`": lambda: Costs(0, 1),
    "costs": lambda: Costs(1, -1),
    "infinite": lambda: Costs(1, math.inf),
    "answers": lambda: Costs(1, 1).mean(["act", "wait"], OK),
    "integer labels": lambda: split_conformal([[0.5, 0.5]], [2]),
    "pass \\(N, K\\)": lambda: split_conformal([0.5, 0.5], [1]),
    "p: pass values": lambda: split_conformal([[2.0, -1.0]], [0]),
}


@pytest.mark.parametrize("message", FAULTS)
def test_bad_input_is_named(message: str) -> None:
    with pytest.raises(GateError, match=message):
        FAULTS[message]()


@settings(max_examples=30)
@given(st.integers(1, 60), st.integers(0, 2**31), st.floats(0.01, 0.6))
def test_any_outcomes_give_a_gate_that_its_rows_support(n, seed, error) -> None:
    stated, right = world(np.random.default_rng(seed), n, 0.1)
    found = learn_then_test(stated, right, error)
    if found.gate.act is None:
        assert (found.accepted, found.loss) == (0, 0)
    else:
        assert found.loss / found.accepted <= error
        assert found.accepted >= least_rows(error)
        assert found.gate.acts(stated).sum() == found.accepted
