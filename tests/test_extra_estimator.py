"""The scikit-learn face: all of check_estimator, and the list of the text one."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from rlcd_core.decider import Decider
from rlcd_core.extra.estimator import BanditClassifier, TextBanditClassifier
from rlcd_core.rewards import OBJECTIVES, Feedback
from tests.tiny_models import tiny_encoder

torch.set_num_threads(1)
NAMES = ("verdict_nll", "verdict_brier", "rlcd")


@parametrize_with_checks([BanditClassifier(), BanditClassifier(objective="rlcd")])
def test_every_check_of_scikit_learn(estimator, check) -> None:
    check(estimator)


def world(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels and true probabilities of a softmax regression."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    z = X @ rng.normal(size=(4, 3))
    q = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    return X, (q.cumsum(1) < rng.random((n, 1))).sum(1), q


def test_on_labels_it_is_logistic_regression() -> None:
    X, y, _ = world(400)
    mine = BanditClassifier(alpha=1e-2).fit(X, y)
    peer = LogisticRegression(C=1 / (1e-2 * len(X)), tol=1e-8, max_iter=1000).fit(X, y)
    np.testing.assert_allclose(mine.predict_proba(X), peer.predict_proba(X), atol=2e-5)
    assert mine.effective_rows_ == len(X)
    # A label is an action with outcome 1.
    same = BanditClassifier(alpha=1e-2).fit(X, y, outcomes=np.ones(len(y)))
    np.testing.assert_array_equal(mine.coef_, same.coef_)


@pytest.mark.parametrize("objective", NAMES)
@pytest.mark.parametrize("weighted", [False, True])
def test_it_learns_the_truth_from_logged_outcomes(
    objective: str, weighted: bool
) -> None:
    X, y, q = world(12_000)
    rng = np.random.default_rng(1)
    # The old policy prefers option 0 the larger the first feature.
    z = np.stack([X[:, 0], np.zeros(len(X)), np.zeros(len(X))], 1)
    mu = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    a = (mu.cumsum(1) < rng.random((len(X), 1))).sum(1)
    chance = mu[np.arange(len(X)), a] if weighted else None
    found = BanditClassifier(objective, alpha=1e-5).fit(X, a, a == y, chance)
    assert np.abs(found.predict_proba(X) - q).mean() < 0.025
    if weighted:
        assert len(X) / 3 < found.effective_rows_ < len(X)
    # Planted fault: outcomes taken for granted teach what the old policy did.
    wrong = BanditClassifier(objective, alpha=1e-5).fit(X, a)
    assert np.abs(wrong.predict_proba(X) - q).mean() > 0.1


def test_the_losses_have_the_gradient_of_rlcd() -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(64, 3, generator=generator, dtype=torch.float64)
    mu = torch.softmax(torch.randn(64, 3, generator=generator).double(), -1)
    a = torch.multinomial(mu, 1, generator=generator)
    c = (torch.rand(64, 1, generator=generator) < 0.5).double()
    told = Feedback(a, c, mu.gather(1, a))

    def gradient(name: str, weight: torch.Tensor) -> torch.Tensor:
        at = z.clone().requires_grad_()
        loss = OBJECTIVES[name](torch.log_softmax(at, -1), told)
        (loss * weight).sum().backward()
        return at.grad

    one = torch.ones(64, dtype=torch.float64)
    plain = gradient("rlcd_poisson", one), gradient("rlcd", one)
    torch.testing.assert_close(*plain, rtol=0, atol=1e-12)
    inverse = gradient("verdict_brier", 1 / mu.gather(1, a)[:, 0])
    torch.testing.assert_close(inverse, gradient("rlcd_ips", one), rtol=0, atol=1e-12)


def test_scores_and_refusals() -> None:
    X, y, q = world(300)
    model = BanditClassifier(metric="brier").fit(X, y)
    p = model.predict_proba(X)
    by_hand = -np.mean([((p[i] - np.eye(3)[y[i]]) ** 2).sum() for i in range(len(y))])
    assert model.score(X, y) == pytest.approx(by_hand)
    told = y == 0
    zero = np.zeros(len(y), int)
    by_hand = -np.mean((p[:, 0] - told) ** 2)
    assert model.score(X, zero, told) == pytest.approx(by_hand)
    model.metric = "accuracy"
    assert model.score(X, y) == (model.predict(X) == y).mean()
    with pytest.raises(ValueError, match="metric='brier'"):
        model.score(X, zero, told)
    for wrong, message in (
        ({"outcomes": np.full(300, 0.5)}, "values 0 or 1"),
        ({"outcomes": np.ones(299)}, "values 0 or 1"),
        ({"outcomes": np.full(300, np.nan)}, "NaN"),
        ({"outcomes": told, "propensities": np.zeros(300)}, "in \\(0, 1\\]"),
        ({"outcomes": told, "propensities": np.full(300, 1.2)}, "in \\(0, 1\\]"),
        ({"propensities": np.ones(300)}, "without outcomes"),
    ):
        with pytest.raises(ValueError, match=message):
            BanditClassifier().fit(X, y, **wrong)
    with pytest.raises(ValueError, match="one class"):
        BanditClassifier().fit(X, zero)
    with pytest.raises(ValueError, match="pass one of"):
        BanditClassifier("nll").fit(X, y)
    with pytest.raises(ValueError, match="not in fit"):
        BanditClassifier(metric="brier").fit(X, y).score(X, y + 5)


def test_grid_search_on_a_log_through_metadata_routing() -> None:
    X, y, _ = world(300)
    rng = np.random.default_rng(2)
    a = rng.integers(0, 3, len(y))
    told = (a == y).astype(float)
    with sklearn.config_context(enable_metadata_routing=True):
        model = BanditClassifier(metric="brier")
        model.set_fit_request(outcomes=True).set_score_request(outcomes=True)
        grid = GridSearchCV(model, {"alpha": [1e-3, 100.0]}, cv=3)
        grid.fit(X, a, outcomes=told)
    assert grid.best_params_ == {"alpha": 1e-3}
    assert -1 <= grid.best_score_ <= 0
    scaled = make_pipeline(StandardScaler(), BanditClassifier())
    assert cross_val_score(scaled, X, y, cv=3).mean() > 0.5


# --- texts ---

TEXTS = ["The server is down.", "Invoice sent twice.", "We want to buy."] * 8
LABELS = ["network", "billing", "sales"] * 8


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TextBanditClassifier:
    monkeypatch.setenv("RLCD_CACHE", str(tmp_path / "cache"))
    folder = tiny_encoder(tmp_path / "encoder")
    return TextBanditClassifier(
        "Which team?", encoder=folder, rank=8, epochs=30, batch=8, learning_rate=1e-2
    )


def test_text_learns_clones_and_exports(
    text: TextBanditClassifier, tmp_path: Path
) -> None:
    model = clone(text).fit(TEXTS, LABELS)
    assert model.score(TEXTS, LABELS) == 1.0
    p = model.predict_proba(TEXTS[:3])
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-6)
    assert clone(model).get_params() == text.get_params()
    assert not hasattr(clone(model), "policy_")
    np.testing.assert_array_equal(
        clone(text).fit(TEXTS, LABELS).predict_proba(TEXTS[:3]), p
    )
    folder = model.export(tmp_path / "out", copy_encoder=True)
    decider = Decider.load(folder)
    answer = decider.ask(TEXTS[0], decider.exported.questions)["question"]
    assert answer.option == "network"
    assert answer.p == pytest.approx(p[0], abs=1e-6)


def test_text_learns_from_outcomes(text: TextBanditClassifier) -> None:
    options = ["billing", "network", "sales"]
    taken = options * 8  # each text meets one option, and the outcome says if it fits
    texts = [t for t in TEXTS[:3] for _ in range(8)]
    truth = [label for label in LABELS[:3] for _ in range(8)]
    right = np.array([a == t for a, t in zip(taken, truth, strict=True)], float)
    model = clone(text).set_params(metric="brier")
    model.fit(texts, taken, right, np.full(len(right), 1 / 3))
    assert model.predict(TEXTS[:3]).tolist() == LABELS[:3]
    assert model.score(texts, taken, right) > -0.05


def test_text_in_grid_search_and_pipeline(text: TextBanditClassifier) -> None:
    lower = FunctionTransformer(lambda X: [str(t).lower() for t in X])
    pipe = make_pipeline(lower, clone(text).set_params(epochs=3))
    name = "textbanditclassifier__learning_rate"
    grid = GridSearchCV(pipe, {name: [1e-2, 1e-9]}, cv=2, error_score="raise")
    grid.fit(TEXTS, LABELS)
    assert grid.best_params_[name] == 1e-2
    assert set(grid.predict(TEXTS[:3])) <= set(LABELS)


def test_text_is_pickled_only_before_it_is_fitted(text: TextBanditClassifier) -> None:
    assert pickle.loads(pickle.dumps(text)).get_params() == text.get_params()
    model = text.set_params(epochs=1).fit(TEXTS, LABELS)
    for act in (pickle.dumps, copy.deepcopy):
        with pytest.raises(pickle.PicklingError, match=r"use \.export\(folder\)"):
            act(model)


def test_text_refusals(text: TextBanditClassifier) -> None:
    with pytest.raises(ValueError, match=r"X\[1\] is float, not text"):
        text.fit(["a", 1.0], ["x", "y"])
    with pytest.raises(ValueError, match="X holds no text"):
        text.fit([], [])
    with pytest.raises(ValueError, match="2 texts and y 3"):
        text.fit(["a", "b"], ["x", "y", "x"])
    with pytest.raises(ValueError, match="learns from labels alone"):
        clone(text).set_params(objective="nll").fit(TEXTS, LABELS)
    with pytest.raises(ValueError, match="not in OBJECTIVES"):
        clone(text).set_params(objective="magic").fit(TEXTS, LABELS)
    with pytest.raises(sklearn.exceptions.NotFittedError):
        text.predict(TEXTS)
