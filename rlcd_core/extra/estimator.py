"""A scikit-learn face: one classifier on numbers, one on texts.

Both have one way to learn: ``fit(X, y, outcomes=None, propensities=None)``. `y` holds
the options taken, `outcomes` whether each was right, `propensities` how likely the
old policy was to take it. Without `outcomes` every option is taken to be right, which
is what a label says: a label is an action that is known to be right.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from rlcd_core.env import LoggedEnv
from rlcd_core.export import Card, export
from rlcd_core.policy import DecisionHead, Encoder, predict
from rlcd_core.rewards import OBJECTIVES, Feedback
from rlcd_core.schema import Choice
from rlcd_core.scoring import brier
from rlcd_core.train import Arm, TrainConfig, train

# With one action a row, RLCD's direction is the gradient of a loss: Poisson's; weighted
# by p_a / mu_a, it is that of the verdict Brier loss weighted by 1 / mu_a.
_LOSSES = {"verdict_nll": "verdict_nll", "verdict_brier": "verdict_brier"}
_PLAIN = _LOSSES | {"rlcd": "rlcd_poisson"}
_WEIGHTED = _LOSSES | {"rlcd": "verdict_brier"}


def _checked(
    y: Any, outcomes: Any, propensities: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """Classes, actions as indices, outcomes (1 where not given), propensities."""
    check_classification_targets(y)
    classes, actions = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(
            f"y holds one class, {classes[0]!r}: a decision needs at least 2"
        )
    told = np.ones(len(actions))
    if outcomes is not None:
        told = check_array(outcomes, ensure_2d=False, dtype=np.float64)
        if told.shape != actions.shape or not np.isin(told, (0, 1)).all():
            raise ValueError(
                f"outcomes: pass {len(actions)} values 0 or 1, one a row of y; leave "
                "out rows that are not resolved"
            )
    if propensities is None:
        return classes, actions, told, None
    if outcomes is None:
        raise ValueError(
            "propensities without outcomes: y then holds labels, which have none"
        )
    chance = check_array(propensities, ensure_2d=False, dtype=np.float64)
    if chance.shape != actions.shape or not ((chance > 0) & (chance <= 1)).all():
        raise ValueError(f"propensities: pass {len(actions)} values in (0, 1]")
    return classes, actions, told, chance


class _Decides(ClassifierMixin, BaseEstimator):
    """What both classifiers share, once `predict_proba` is there."""

    classes_: np.ndarray
    metric: str

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row, (N,)."""
        p = self.predict_proba(X)
        return self.classes_[p.argmax(1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities (N, K) in the order of `classes_`."""
        raise NotImplementedError

    def score(self, X: Any, y: Any, outcomes: Any = None) -> float:
        """Accuracy, or with ``metric="brier"`` the negative Brier score, in [-2, 0].

        With `outcomes`, `y` holds actions, and the score is the negative squared error
        of the stated chance of each, in [-1, 0]; accuracy cannot be had from a log.
        """
        if self.metric not in ("accuracy", "brier"):
            raise ValueError(f"metric {self.metric!r}: pass 'accuracy' or 'brier'")
        if self.metric == "accuracy":
            if outcomes is not None:
                raise ValueError(
                    "accuracy needs labels; with outcomes pass metric='brier'"
                )
            return super().score(X, y)
        p = self.predict_proba(X)
        column = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        if not (self.classes_[column] == np.asarray(y)).all():
            raise ValueError("y holds a class that was not in fit")
        if outcomes is None:
            return -float(brier(p / p.sum(1, keepdims=True), column).mean())
        told = np.asarray(outcomes, dtype=np.float64)
        return -float(((p[np.arange(len(p)), column] - told) ** 2).mean())


class BanditClassifier(_Decides):
    """Softmax regression on numbers, from labels or from outcomes of actions.

    Parameters
    ----------
    objective : {"verdict_nll", "verdict_brier", "rlcd"}
        On labels the first is multinomial logistic regression. With propensities each
        row is weighted by the inverse of its own, so that the loss stands for all
        cases, and "rlcd" and "verdict_brier" are one.
    alpha : float
        Weight of ``||W||^2 / 2`` beside the mean loss; put a scaler before it.
    max_iter : int
        Most steps of L-BFGS, which starts at zero: nothing is random.
    metric : {"accuracy", "brier"}
        What `score` returns.

    Attributes
    ----------
    classes_ : (K,) array
    coef_ : (D, K) array, intercept_ : (K,) array
    n_iter_ : int
    effective_rows_ : float
        ``(sum w)^2 / sum w^2`` of the weights; N without propensities.

    Examples
    --------
    >>> X = np.array([[-1.0], [-2.0], [1.0], [2.0]])
    >>> taken, right = ["a", "b", "a", "b"], [1, 0, 0, 1]
    >>> BanditClassifier().fit(X, taken, outcomes=right).predict(X).tolist()
    ['a', 'a', 'b', 'b']
    """

    def __init__(
        self,
        objective: str = "verdict_nll",
        alpha: float = 1e-3,
        max_iter: int = 500,
        metric: str = "accuracy",
    ) -> None:
        self.objective = objective
        self.alpha = alpha
        self.max_iter = max_iter
        self.metric = metric

    def fit(
        self, X: Any, y: Any, outcomes: Any = None, propensities: Any = None
    ) -> BanditClassifier:
        """Learn from labels, or with `outcomes` from the actions in `y`.

        Parameters
        ----------
        X : (N, D) array of finite numbers
        y : (N,) labels, or actions
        outcomes : (N,) array of 0 and 1, optional
        propensities : (N,) array in (0, 1], optional
        """
        X, y = validate_data(self, X, y, dtype=np.float64)
        self.classes_, actions, told, chance = _checked(y, outcomes, propensities)
        known = _PLAIN if chance is None else _WEIGHTED
        if self.objective not in known:
            raise ValueError(f"objective {self.objective!r}: pass one of {[*known]}")
        loss = OBJECTIVES[known[self.objective]]
        weight = np.ones(len(X)) if chance is None else 1 / chance
        self.effective_rows_ = float(weight.sum() ** 2 / (weight**2).sum())
        rows = torch.tensor(X)  # a copy: what scikit-learn hands over may be read-only
        share = torch.from_numpy(weight / weight.sum())
        feedback = Feedback(
            torch.from_numpy(actions)[:, None], torch.from_numpy(told)[:, None]
        )
        shape = (X.shape[1] + 1, len(self.classes_))

        def cost(flat: np.ndarray) -> tuple[float, np.ndarray]:
            w = torch.from_numpy(flat.reshape(shape)).requires_grad_()
            log_p = torch.log_softmax(rows @ w[:-1] + w[-1], -1)
            total = (loss(log_p, feedback) * share).sum()
            total = total + self.alpha / 2 * w[:-1].square().sum()
            total.backward()
            return float(total.detach()), w.grad.numpy().ravel()

        found = minimize(
            cost,
            np.zeros(shape).ravel(),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": self.max_iter, "ftol": 1e-12, "gtol": 1e-8},
        )
        weights = found.x.reshape(shape)
        self.coef_, self.intercept_ = weights[:-1], weights[-1]
        self.n_iter_ = max(1, int(found.nit))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities (N, K) in the order of `classes_`."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        z = X @ self.coef_ + self.intercept_
        p = np.exp(z - z.max(1, keepdims=True))
        return p / p.sum(1, keepdims=True)


@cache
def _encoder(folder: Path | None, truncate: bool) -> Encoder:
    if folder is None:
        return Encoder.load(truncate=truncate)
    return Encoder(folder, truncate=truncate)


class TextBanditClassifier(_Decides):
    """A decision head on texts, from labels or from outcomes of actions.

    Its classes are the options, and their wording matters: the head reads it.

    Parameters
    ----------
    question : str
        What is asked of each text.
    objective : str
        A verdict loss, or an RLCD objective (`rlcd_core.rewards.OBJECTIVES`) that
        learns from outcomes.
    epochs, batch, learning_rate, rank
        Of the decision head.
    encoder : path, optional
        Folder of an encoder's safetensors; by default the packaged one. (A path and
        no object, so that cloning an estimator copies no model.)
    truncate : bool
        Cut texts that are longer than the encoder reads, instead of raising.
    metric : {"accuracy", "brier"}
    random_state : int

    Notes
    -----
    A fitted one is exported, not pickled: a pickle can run code when it is read, and
    carries no hash. It is therefore not for ``n_jobs`` above 1 where fitted estimators
    travel between processes, such as ``cross_validate(return_estimator=True)``.
    """

    def __init__(
        self,
        question: str = "Which option fits?",
        objective: str = "verdict_nll",
        epochs: int = 5,
        batch: int = 64,
        learning_rate: float = 1e-3,
        rank: int = 64,
        encoder: str | Path | None = None,
        truncate: bool = False,
        metric: str = "accuracy",
        random_state: int = 0,
    ) -> None:
        self.question = question
        self.objective = objective
        self.epochs = epochs
        self.batch = batch
        self.learning_rate = learning_rate
        self.rank = rank
        self.encoder = encoder
        self.truncate = truncate
        self.metric = metric
        self.random_state = random_state

    def fit(
        self,
        X: Sequence[str],
        y: Any,
        outcomes: Any = None,
        propensities: Any = None,
    ) -> TextBanditClassifier:
        """Learn from labels, or with `outcomes` from the actions in `y`.

        Parameters
        ----------
        X : sequence of N texts
        y : (N,) labels, or actions; text
        outcomes : (N,) array of 0 and 1, optional
        propensities : (N,) array in (0, 1], optional
        """
        texts = _texts(X)
        if len(texts) != len(y):
            raise ValueError(f"X has {len(texts)} texts and y {len(y)} rows")
        self.classes_, actions, told, chance = _checked(y, outcomes, propensities)
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective {self.objective!r} is not in OBJECTIVES")
        if OBJECTIVES[self.objective].needs != "outcome":
            raise ValueError(
                f"objective {self.objective!r} learns from labels alone; verdict_nll "
                "on labels is the full-label NLL"
            )
        self.question_ = Choice(self.question, [str(c) for c in self.classes_])
        folder = None if self.encoder is None else Path(self.encoder)
        generator = torch.Generator().manual_seed(self.random_state)
        encoder = _encoder(folder, self.truncate)
        self.policy_ = DecisionHead(encoder, self.rank, generator)
        prepared = self.policy_.prepare([(text, self.question_) for text in texts])
        env = LoggedEnv(actions, told, len(self.classes_), chance)
        size = min(self.batch, len(texts))
        sizes = TrainConfig(
            learning_rate=self.learning_rate,
            outcomes=max(self.epochs * len(texts), size),
            outcomes_per_step=size,
        )
        arm = Arm(self.objective, self.objective, self.objective)
        rows = np.arange(len(texts))
        train(self.policy_, prepared, rows, env, arm, sizes, self.random_state)
        return self

    def predict_proba(self, X: Sequence[str]) -> np.ndarray:
        """Probabilities (N, K) in the order of `classes_`."""
        check_is_fitted(self, "policy_")
        items = [(text, self.question_) for text in _texts(X)]
        return predict(self.policy_, self.policy_.prepare(items))

    def export(self, folder: Path | str, **options: Any) -> Path:
        """Write the fitted head as `rlcd_core.export.export` does; same options."""
        check_is_fitted(self, "policy_")
        options.setdefault("card", Card(decides=self.question_.text))
        asked = {"question": self.question_}
        return export(self.policy_, folder, questions=asked, **options)

    def __getstate__(self) -> Any:
        if hasattr(self, "policy_"):
            raise pickle.PicklingError(
                "a fitted TextBanditClassifier is not pickled, since a pickle can run "
                "code when it is read: use .export(folder), and Decider.load(folder)"
            )
        return super().__getstate__()


def _texts(X: Any) -> list[str]:
    texts = list(X)
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(
                f"X[{place}] is {type(text).__name__}, not text: pass a sequence of "
                "str, such as a column of a table"
            )
    if not texts:
        raise ValueError("X holds no text; pass at least one")
    return texts
