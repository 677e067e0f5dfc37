"""Bandit environments: they reveal the outcome of the action taken, nothing else.

An environment answers ``outcomes(rows, actions)`` with 1.0 (right), 0.0 (wrong) or
NaN (unresolved). The verdicts behind the outcomes live in a closure and are no
attribute of the environment. That is a convention that keeps honest code honest, not
a security boundary: Python can always inspect a closure's cells.

Arms that are allowed to see labels get a `LabelledEnv`, which has ``labels(rows)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

TINY = float(np.finfo(np.float32).tiny)
"""The least propensity: training divides by it in 32 bits."""

Judge = Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray]


class Env(Protocol):
    """What training knows of an environment; `n_options` is (N,)."""

    n_options: np.ndarray

    def outcomes(self, rows: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Outcome of each action, (B, G): 1.0 right, 0.0 wrong, NaN unresolved."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """JSON-safe state of every random stream."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        ...


def spawn_rng(seed: int, *key: int) -> np.random.Generator:
    """A stream of its own for each (seed, key).

    Streams come from ``SeedSequence(seed, spawn_key=key)``: two processes, or an
    environment and its wrapper, with different keys never share a stream, whereas
    ``seed + 1`` collides with the run whose seed is one higher.
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


class _Streamed:
    """Shared by all environments here: checks, one stream, its state."""

    __slots__ = ("_rng",)
    _rng: np.random.Generator

    def state_dict(self) -> dict[str, Any]:
        """JSON-safe state of the random stream."""
        return {"rng": self._rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self._rng.bit_generator.state = state["rng"]


def _whole(name: str, values: Any) -> np.ndarray:
    """A fresh int64 array; refuses what a cast would silently change."""
    given = np.asarray(values)
    with np.errstate(invalid="ignore"):
        cast = given.astype(np.int64)
    if given.dtype.kind not in "iuf" or not np.array_equal(cast, given):
        raise ValueError(f"{name} must be whole numbers, not {given!r:.80}")
    return cast


def _checked(
    rows: np.ndarray, actions: np.ndarray, options: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    rows, actions = np.asarray(rows), np.asarray(actions)
    if rows.ndim != 1 or actions.ndim != 2 or len(rows) != len(actions):
        raise ValueError(
            f"rows must be (B,) and actions (B, G), not {rows.shape}, {actions.shape}"
        )
    if any(a.size and a.dtype.kind not in "iu" for a in (rows, actions)):
        raise ValueError(
            f"rows and actions must be integers, not {rows.dtype}, {actions.dtype}"
        )
    if rows.size and (rows.min() < 0 or rows.max() >= len(options)):
        raise IndexError(f"rows must be in 0..{len(options) - 1}")
    if np.any(actions < 0) or np.any(actions >= options[rows][:, None]):
        raise ValueError("an action is outside its row's options")
    return rows, actions


class RaterEnv(_Streamed):
    """An outcome is one rater's verdict on the chosen option.

    Parameters
    ----------
    counts : ndarray of int, shape (N, K)
        Verdicts per option; at least one per row. Copied, and kept out of reach.
    seed
        Fixes the draws.
    shared_outcome
        True: one verdict per row and call judges all G actions of the row. False:
        each action meets a draw of its own.

    Raises
    ------
    ValueError
        Counts that are negative, or a row without a verdict.

    Examples
    --------
    >>> env = RaterEnv(np.array([[0, 9, 0]]), seed=0)
    >>> env.outcomes(np.array([0]), np.array([[0, 1]]))
    array([[0., 1.]])
    """

    __slots__ = ("_judge", "n_options", "shared_outcome")

    def __init__(
        self, counts: np.ndarray, seed: int, shared_outcome: bool = False
    ) -> None:
        judge, _ = _rater_closures(counts, shared_outcome)
        self._judge = judge
        self._rng = spawn_rng(seed, 0)
        self.shared_outcome = shared_outcome
        self.n_options = np.full(len(counts), np.shape(counts)[1])

    def outcomes(self, rows: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Judge the actions taken; every call draws fresh verdicts.

        Parameters
        ----------
        rows : ndarray of int, shape (B,)
        actions : ndarray of int, shape (B, G)

        Returns
        -------
        ndarray of float64, shape (B, G)
            1.0 where the verdict is the action, else 0.0.
        """
        return self._judge(*_checked(rows, actions, self.n_options), self._rng)


def _rater_closures(
    counts: np.ndarray, shared_outcome: bool
) -> tuple[Judge, Callable[[np.ndarray, int, np.random.Generator], np.ndarray]]:
    counts = _whole("counts", counts)
    if counts.ndim != 2 or np.any(counts < 0) or np.any(counts.sum(axis=1) < 1):
        raise ValueError("counts must be (N, K), >= 0, with a verdict in every row")
    edges = np.cumsum(counts, axis=1)

    def verdicts(rows: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
        # Draw one of the row's raters by number, exactly, without floating point.
        rater = rng.integers(0, edges[rows, -1][:, None], size=(len(rows), size))
        return (rater[..., None] >= edges[rows][:, None, :]).sum(axis=-1)

    def judge(
        rows: np.ndarray, actions: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        drawn = verdicts(rows, 1 if shared_outcome else actions.shape[1], rng)
        return (drawn == actions).astype(np.float64)

    return judge, verdicts


class LabelEnv(_Streamed):
    """An outcome says whether the action is the one fixed label of its row.

    Parameters
    ----------
    labels : ndarray of int, shape (N,)
        Copied, and kept out of reach.
    n_options : int or ndarray of int, shape (N,)
        Number of options of all rows, or of each.
    """

    __slots__ = ("_judge", "n_options", "shared_outcome")

    def __init__(self, labels: np.ndarray, n_options: int | np.ndarray) -> None:
        hidden = _whole("labels", labels)
        self.n_options = np.broadcast_to(np.asarray(n_options), hidden.shape).copy()
        if np.any(hidden < 0) or np.any(hidden >= self.n_options):
            raise ValueError("a label is outside its row's options")
        self._judge = lambda rows, actions, rng: np.asarray(
            hidden[rows][:, None] == actions, dtype=np.float64
        )
        self._rng = spawn_rng(0, 0)
        self.shared_outcome = True

    def outcomes(self, rows: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Judge the actions taken: (B,), (B, G) -> (B, G) of 0.0 and 1.0."""
        return self._judge(*_checked(rows, actions, self.n_options), self._rng)


class LabelledEnv(RaterEnv):
    """For the arms that may see labels: also gives one rater's verdict per row.

    One-hot `counts` give the fixed label. The name says what it reveals, so that an
    outcome arm cannot be handed labels by accident.
    """

    __slots__ = ("_draw",)

    def __init__(
        self, counts: np.ndarray, seed: int, shared_outcome: bool = False
    ) -> None:
        super().__init__(counts, seed, shared_outcome)
        _, self._draw = _rater_closures(counts, shared_outcome)

    def labels(self, rows: np.ndarray) -> np.ndarray:
        """One verdict per row, (B,) of option indices, drawn afresh at each call."""
        rows, _ = _checked(rows, np.zeros((len(rows), 1), dtype=int), self.n_options)
        return self._draw(rows, 1, self._rng)[:, 0]


class _Wrapper(_Streamed):
    """An environment around another; it sees outcomes, never verdicts."""

    __slots__ = ("_env", "rate")
    _key: int

    def __init__(self, env: Any, rate: float, seed: int) -> None:
        if not 0.0 <= rate <= 1.0:
            raise ValueError(f"rate must be in [0, 1], not {rate}")
        self._env, self.rate = env, rate
        self._rng = spawn_rng(seed, self._key)

    @property
    def n_options(self) -> np.ndarray:
        """Number of options of each row, (N,)."""
        return self._env.n_options

    @property
    def shared_outcome(self) -> bool:
        """Whether one verdict judges all actions of a row."""
        return self._env.shared_outcome

    def state_dict(self) -> dict[str, Any]:
        """JSON-safe state of this stream and the wrapped environment's."""
        return {**super().state_dict(), "env": self._env.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        super().load_state_dict(state)
        self._env.load_state_dict(state["env"])


class Flip(_Wrapper):
    """Noise kind ``flip``: each outcome bit is flipped with probability `rate`."""

    __slots__ = ()
    _key = 1

    def outcomes(self, rows: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Outcomes of the wrapped environment, some flipped; NaN stays NaN."""
        bits = self._env.outcomes(rows, actions)
        return np.where(self._rng.random(bits.shape) < self.rate, 1.0 - bits, bits)


class Redraw(_Wrapper):
    """Noise kind ``redraw``: the label is redrawn uniformly with probability `rate`.

    With `shared_outcome` one redrawn label judges the row's whole group. No true label
    is needed: an action agrees with a uniform label whatever the verdict was.
    """

    __slots__ = ()
    _key = 2

    def outcomes(self, rows: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Outcomes under the partly redrawn labels; NaN stays NaN."""
        bits = self._env.outcomes(rows, actions)
        actions = np.asarray(actions)
        label, noisy = self._redrawn(rows, 1 if self.shared_outcome else bits.shape[1])
        redrawn = np.where(np.isnan(bits), np.nan, label == actions)
        return np.where(noisy, redrawn, bits)

    def labels(self, rows: np.ndarray) -> np.ndarray:
        """Labels of a wrapped `LabelledEnv`, some redrawn."""
        clean = self._env.labels(rows)
        label, noisy = self._redrawn(rows, 1)
        return np.where(noisy[:, 0], label[:, 0], clean)

    def _redrawn(self, rows: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        shape = (len(rows), size)
        label = self._rng.integers(0, self.n_options[rows][:, None], size=shape)
        return label, self._rng.random(shape) < self.rate


class Unresolved(_Wrapper):
    """Some outcomes never come: they are NaN.

    Parameters
    ----------
    env
        Environment to wrap.
    rate
        Probability that a right action's outcome resolves.
    seed
        Fixes the draws.
    rate_wrong
        Probability that a wrong action's outcome resolves; `rate` if None
        (resolution independent of correctness). The spec's second kind is .9 / .5.
    """

    __slots__ = ("rate_wrong",)
    _key = 3

    def __init__(
        self, env: Any, rate: float, seed: int, rate_wrong: float | None = None
    ) -> None:
        super().__init__(env, rate, seed)
        self.rate_wrong = rate if rate_wrong is None else rate_wrong
        if not 0.0 <= self.rate_wrong <= 1.0:
            raise ValueError(f"rate_wrong must be in [0, 1], not {rate_wrong}")

    def outcomes(self, rows: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Outcomes of the wrapped environment, the unresolved ones NaN."""
        bits = self._env.outcomes(rows, actions)
        rate = np.where(bits == 1.0, self.rate, self.rate_wrong)
        return np.where(self._rng.random(bits.shape) < rate, bits, np.nan)


class LoggedEnv:
    """Decisions already taken: only the logged action has an outcome.

    Parameters
    ----------
    actions : ndarray of int, shape (N,)
    outcomes : ndarray of float, shape (N,)
        1.0, 0.0, or NaN where unresolved.
    n_options : int or ndarray of int, shape (N,)
    propensities : ndarray of float, shape (N,), optional
        Probability with which the behaviour policy took the logged action, in (0, 1].

    Raises
    ------
    ValueError
        Shapes differ, an action is outside its options, an outcome is not 0, 1 or
        NaN, or a propensity is outside (0, 1] or smaller than `TINY`.
    """

    __slots__ = ("_actions", "_outcomes", "_propensities", "n_options")
    shared_outcome = True

    def __init__(
        self,
        actions: np.ndarray,
        outcomes: np.ndarray,
        n_options: int | np.ndarray,
        propensities: np.ndarray | None = None,
    ) -> None:
        self._actions = _whole("actions", actions)
        self._outcomes = np.array(outcomes, dtype=np.float64)
        self.n_options = np.broadcast_to(
            np.asarray(n_options), np.shape(actions)
        ).copy()
        rows = np.arange(len(self._actions))
        _checked(rows, self._actions[:, None], self.n_options)
        known = self._outcomes[~np.isnan(self._outcomes)]
        if self._outcomes.shape != rows.shape or not np.isin(known, (0.0, 1.0)).all():
            raise ValueError("outcomes must be (N,), each 0, 1 or NaN (unresolved)")
        self._propensities = None
        if propensities is not None:
            self._propensities = np.array(propensities, dtype=np.float64)
            good = (self._propensities >= TINY) & (self._propensities <= 1)
            if self._propensities.shape != rows.shape or not good.all():
                first = self._propensities[~good][:1].tolist()
                raise ValueError(
                    f"propensities must be (N,) in (0, 1], at least {TINY:.1e} to be "
                    f"divided by in 32 bits; {int((~good).sum())} are not {first}. "
                    "Leave out those rows, or all propensities."
                )

    def logged(
        self, rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Actions, outcomes and propensities, each (B, 1); the last may be None."""
        p = None if self._propensities is None else self._propensities[rows][:, None]
        return self._actions[rows][:, None], self._outcomes[rows][:, None], p

    def outcomes(self, rows: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Logged outcome where the action is the logged one, else NaN."""
        rows, actions = _checked(rows, actions, self.n_options)
        same = actions == self._actions[rows][:, None]
        return np.where(same, self._outcomes[rows][:, None], np.nan)

    def state_dict(self) -> dict[str, Any]:
        """Nothing is random in a log."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Accept the empty state."""
        if state:
            raise ValueError("a LoggedEnv has no state")


def record_log(env: Env, p: np.ndarray, seed: int) -> LoggedEnv:
    """Let a behaviour policy act once on every row, and keep the log.

    Parameters
    ----------
    env
        Environment that judges.
    p : ndarray, shape (N, K)
        Behaviour probabilities; zero for options that a row lacks.
    seed
        Fixes the actions.
    """
    p = np.asarray(p, dtype=np.float64)
    rows = np.arange(len(p))
    draw = spawn_rng(seed, 4).random(len(p))[:, None]
    edges = np.cumsum(p, axis=1)
    if np.any(p < 0) or not np.allclose(edges[:, -1], 1.0):
        raise ValueError("each row of p must be probabilities that sum to 1")
    # Neither rounding of the sum nor a draw next to 1 may pick an option of mass zero.
    last = p.shape[1] - 1 - np.argmax(p[:, ::-1] > 0, axis=1)
    actions = np.minimum((draw * edges[:, -1:] >= edges).sum(axis=1), last)
    outcomes = env.outcomes(rows, actions[:, None])[:, 0]
    return LoggedEnv(actions, outcomes, env.n_options, p[rows, actions])
