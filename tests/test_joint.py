"""Joint fields against enumeration: every number is compared with a sum by hand."""

from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rlcd_core.data.triage import joint_tickets
from rlcd_core.decider import Decider
from rlcd_core.joint import (
    LIMIT,
    AtMostOne,
    Excludes,
    Implies,
    Joint,
    JointError,
    Rule,
    fit_weight,
)
from rlcd_core.policy import TabularPolicy
from rlcd_core.schema import Choice, Noul, SchemaError, Score

FIELDS = {
    "team": Choice("Team?", ["billing", "security", "support"]),
    "severity": Score("Severity?", ["low", "high", "critical"]),
    "human": Noul("Human?"),
}
RULE = Implies(("severity", "critical"), ("human", True))


def kept(rule: Rule, values: dict[str, str]) -> bool:
    """What a rule means, read from its parts; shares no code with the module."""
    texts = {True: "true", False: "false"}

    def holds(field: str, value: object) -> bool:
        return values[field] == texts.get(value, value)

    match rule:
        case Implies(given=(f, x), then=(g, y)):
            several = y if isinstance(y, tuple) else (y,)
            return not holds(f, x) or any(holds(g, v) for v in several)
        case Excludes(first=(f, x), second=(g, y)):
            return not (holds(f, x) and holds(g, y))
        case AtMostOne(values=pairs):
            return sum(holds(f, x) for f, x in pairs) <= 1
    raise AssertionError(rule)


def enumerate_all(questions, rules, p):
    """Every assignment with its weight: (names, {indices: weight}, kept mass)."""
    names = list(questions)
    table = {}
    for pick in itertools.product(*(range(len(questions[n].options)) for n in names)):
        values = {n: questions[n].options[k] for n, k in zip(names, pick, strict=True)}
        weight = math.prod(p[n][k] for n, k in zip(names, pick, strict=True))
        for rule in rules:
            if not kept(rule, values):
                weight *= math.exp(-rule.weight)
        table[pick] = weight
    return names, table, math.fsum(table.values())


@st.composite
def problems(draw, soft=True):
    sizes = draw(st.lists(st.integers(2, 4), min_size=2, max_size=5))
    questions = {
        f"f{i}": Choice(f"F{i}?", [f"o{k}" for k in range(size)])
        for i, size in enumerate(sizes)
    }
    names = list(questions)

    def value(name):
        return draw(st.sampled_from(questions[name].options))

    rules = []
    for _ in range(draw(st.integers(0, 4))):
        weight = draw(st.sampled_from([math.inf, math.inf, 0.5, 3.0]))
        weight = weight if soft else math.inf
        kind = draw(st.sampled_from(["implies", "excludes", "one"]))
        f, g = draw(st.permutations(names))[:2]
        if kind == "implies":
            options = questions[g].options
            several = draw(
                st.lists(
                    st.sampled_from(options),
                    min_size=1,
                    max_size=len(options) - 1,
                    unique=True,
                )
            )
            rules.append(Implies((f, value(f)), (g, tuple(several)), weight=weight))
        elif kind == "excludes":
            rules.append(Excludes((f, value(f)), (g, value(g)), weight=weight))
        else:
            some = draw(st.lists(st.sampled_from(names), min_size=2, max_size=6))
            pairs = list(dict.fromkeys((n, value(n)) for n in some))
            assume(len({n for n, _ in pairs}) > 1)
            rules.append(AtMostOne(pairs, weight=weight))
    return questions, rules


def draw_p(questions, seed, n=3):
    rng = np.random.default_rng(seed)
    return {
        name: rng.dirichlet(np.full(len(q.options), 0.5), n) + 1e-9
        for name, q in questions.items()
    }


def normal(p):
    return {name: rows / rows.sum(1, keepdims=True) for name, rows in p.items()}


def build(questions, rules):
    """A Joint, or None where enumeration agrees that the rules leave an option out."""
    names = list(questions)
    alive = set()
    for pick in itertools.product(*(questions[n].options for n in names)):
        values = dict(zip(names, pick, strict=True))
        if all(kept(r, values) for r in rules if r.weight == math.inf):
            alive |= set(values.items())
    every = {(n, o) for n, q in questions.items() for o in q.options}
    if alive == every:
        try:
            return Joint(questions, rules)
        except JointError as error:
            assert "forbid the same" in str(error)
            return None
    with pytest.raises(JointError, match=r"can never be|forbid the same"):
        Joint(questions, rules)
    return None


@settings(max_examples=80, deadline=None)
@given(problems(), st.integers(0, 2**31))
def test_everything_equals_enumeration(problem, seed):
    questions, rules = problem
    joint = build(questions, rules)
    assume(joint is not None)
    p = normal(draw_p(questions, seed))
    found = joint.decode(p)
    for row in range(3):
        here = {n: v[row] for n, v in p.items()}
        names, table, total = enumerate_all(questions, rules, here)
        assert found.log_kept[row] == pytest.approx(math.log(total), abs=1e-9)
        for i, name in enumerate(names):
            for k in range(len(questions[name].options)):
                share = math.fsum(w for y, w in table.items() if y[i] == k) / total
                assert found.marginals[name][row, k] == pytest.approx(share, abs=1e-9)
        best = tuple(int(found.assignment[n][row]) for n in names)
        # On a tie of the last digits either will do.
        assert table[best] == pytest.approx(max(table.values()), rel=1e-9)
        assert math.exp(found.log_joint[row]) == pytest.approx(table[best] / total)


@settings(max_examples=40, deadline=None)
@given(problems(), st.integers(0, 2**31))
def test_marginals_are_distributions_and_hard_rules_hold(problem, seed):
    questions, rules = problem
    joint = build(questions, rules)
    assume(joint is not None)
    found = joint.decode(draw_p(questions, seed))
    for name, rows in found.marginals.items():
        assert np.allclose(rows.sum(1), 1, atol=1e-12) and (rows >= 0).all(), name
    hard = np.array([rule.weight == math.inf for rule in rules], bool)
    assert not joint.broken(found.assignment)[:, hard].any()
    assert (found.log_kept <= 0).all() and (found.log_joint <= 0).all()


@settings(max_examples=40, deadline=None)
@given(problems(), st.integers(0, 2**31), st.randoms(use_true_random=False))
def test_order_of_fields_and_rules_changes_no_bit(problem, seed, random):
    questions, rules = problem
    joint = build(questions, rules)
    assume(joint is not None)
    p = draw_p(questions, seed)
    first = joint.decode(p)
    names, again = list(questions), list(rules)
    random.shuffle(names)
    random.shuffle(again)
    again = [
        Excludes(r.second, r.first, weight=r.weight)
        if isinstance(r, Excludes)
        else AtMostOne(r.values[::-1], weight=r.weight)
        if isinstance(r, AtMostOne)
        else r
        for r in again
    ]
    second = Joint({n: questions[n] for n in names}, again).decode(p)
    for name in questions:
        assert np.array_equal(first.marginals[name], second.marginals[name])
        assert np.array_equal(first.assignment[name], second.assignment[name])
    assert np.array_equal(first.log_kept, second.log_kept)
    assert np.array_equal(first.log_joint, second.log_joint)


def test_the_order_of_overlapping_soft_rules_changes_no_bit():
    questions = {n: Choice(f"{n}?", ["x", "y", "z"]) for n in "abcde"}
    rules = [
        AtMostOne([(n, "x") for n in "abcd"], weight=0.7),
        AtMostOne([(n, "y") for n in "bcde"], weight=1.3),
        Excludes(("a", "x"), ("b", "z"), weight=2.1),
        Implies(("b", "z"), ("a", "y"), weight=0.3),
        Implies(("a", "x"), ("b", "x"), weight=0.9),
    ]
    p = draw_p(questions, 9)
    first = Joint(questions, rules).decode(p)
    for again in itertools.permutations(rules):
        found = Joint(questions, again).decode(p)
        assert np.array_equal(found.log_kept, first.log_kept)
        for name in questions:
            assert np.array_equal(found.marginals[name], first.marginals[name])


@settings(max_examples=40, deadline=None)
@given(problems(), st.integers(0, 2**31))
def test_log_prob_is_the_log_of_the_normalised_weight(problem, seed):
    questions, rules = problem
    joint = build(questions, rules)
    assume(joint is not None)
    p = normal(draw_p(questions, seed, n=1))
    here = {n: v[0] for n, v in p.items()}
    names, table, total = enumerate_all(questions, rules, here)
    picks = np.array(list(table))
    many = {n: np.repeat(p[n], len(picks), 0) for n in names}
    labels = {n: picks[:, i] for i, n in enumerate(names)}
    found = np.exp(joint.log_prob(many, labels))
    assert np.allclose(found, np.array(list(table.values())) / total, atol=1e-12)
    assert found.sum() == pytest.approx(1)


@settings(max_examples=40, deadline=None)
@given(problems(soft=False), st.integers(0, 2**31))
def test_hard_rules_never_raise_the_log_loss_of_an_allowed_truth(problem, seed):
    questions, rules = problem
    joint = build(questions, rules)
    assume(joint is not None)
    p = normal(draw_p(questions, seed))
    rng = np.random.default_rng(seed)
    labels = {n: rng.integers(0, v.shape[1], 3) for n, v in p.items()}
    alone = sum(np.log(v[np.arange(3), labels[n]]) for n, v in p.items())
    gain = joint.log_prob(p, labels) - alone
    ok = ~joint.broken(labels).any(1)
    assert gain[ok] == pytest.approx(-joint.decode(p).log_kept[ok], abs=1e-9)
    assert np.isneginf(gain[~ok]).all()


def test_by_hand():
    p = {"severity": [[0.2, 0.3, 0.5]], "human": [[0.4, 0.6]]}
    questions = {n: FIELDS[n] for n in p}
    found = Joint(questions, [RULE]).decode(p)
    total = Fraction(7, 10)  # without .5 * .6
    assert found.log_kept[0] == pytest.approx(math.log(total))
    assert found.marginals["severity"][0] == pytest.approx(
        [float(Fraction(2, 10) / total), float(Fraction(3, 10) / total), 0.2 / 0.7]
    )
    assert found.marginals["human"][0] == pytest.approx([0.4 / 0.7, 0.3 / 0.7])
    # Critical and a human has .20; high and no human .18; alone: critical, no human.
    assert {n: int(v[0]) for n, v in found.assignment.items()} == {
        "severity": 2,
        "human": 0,
    }
    assert found.log_joint[0] == pytest.approx(math.log(0.2 / 0.7))


def test_a_soft_rule_by_hand():
    soft = Implies(*(RULE.given, RULE.then), weight=math.log(4))
    p = {"severity": [[0.2, 0.3, 0.5]], "human": [[0.4, 0.6]]}
    joint = Joint({n: FIELDS[n] for n in p}, [soft])
    found = joint.decode(p)
    total = 0.7 + 0.3 / 4
    assert found.log_kept[0] == pytest.approx(math.log(total))
    assert found.marginals["severity"][0, 2] == pytest.approx((0.2 + 0.075) / total)
    broken = joint.log_prob(p, {"severity": [2], "human": [1]})
    assert broken[0] == pytest.approx(math.log(0.075 / total))


def test_the_best_values_one_by_one_may_break_a_rule_that_the_assignment_keeps():
    questions = {n: Noul(f"{n}?") for n in "abc"}
    rules = [AtMostOne([(n, True) for n in "abc"])]
    p = {n: [[0.6, 0.4]] for n in "abc"}
    found = Joint(questions, rules).decode(p)
    # Three of one (.6 .4 .4) against none (.4 .4 .4).
    assert found.marginals["a"][0, 0] == pytest.approx(0.096 / (3 * 0.096 + 0.064))
    assert sum(v[0] == 0 for v in found.assignment.values()) == 1
    # Implication: each marginal says its first option, together that is forbidden.
    rule = [Excludes(("a", True), ("b", True))]
    p = {"a": [[0.8, 0.2]], "b": [[0.8, 0.2]], "c": [[0.9, 0.1]]}
    found = Joint(questions, rule).decode(p)
    assert found.marginals["a"][0, 0] == pytest.approx(0.16 / 0.36)
    alone = {n: np.argmax(v, 1) for n, v in p.items()}
    assert Joint(questions, rule).broken(alone).all()
    assert not Joint(questions, rule).broken(found.assignment).any()


def test_without_a_rule_nothing_changes_a_bit():
    p = draw_p(FIELDS, 3)
    for rules, free in (([], list(FIELDS)), ([RULE], ["team"])):
        found = Joint(FIELDS, rules).decode(p)
        for name in free:
            assert np.array_equal(found.marginals[name], p[name])
            assert np.array_equal(found.assignment[name], p[name].argmax(1))
    assert (Joint(FIELDS, []).decode(p).log_kept == 0).all()


def test_a_chain_of_many_fields_is_summed_exactly():
    # 2^60 assignments; a Markov chain gives the same numbers by forward sums.
    n = 60
    questions = {f"x{i:02}": Noul(f"X{i}?") for i in range(n)}
    names = list(questions)
    rules = [Implies((a, True), (b, True)) for a, b in itertools.pairwise(names)]
    rng = np.random.default_rng(0)
    true = rng.uniform(0.2, 0.8, n)
    p = {name: [[t, 1 - t]] for name, t in zip(names, true, strict=True)}
    found = Joint(questions, rules).decode(p)
    # Once true, true to the end: the first true field decides everything.
    start = [math.prod(1 - true[:i]) * math.prod(true[i:]) for i in range(n + 1)]
    total = math.fsum(start)
    assert found.log_kept[0] == pytest.approx(math.log(total), rel=1e-12)
    for i in (0, 7, 59):
        share = math.fsum(start[: i + 1]) / total
        assert found.marginals[names[i]][0, 0] == pytest.approx(share, rel=1e-9)
    first = sum(int(v[0]) for v in found.assignment.values())
    assert first == int(np.argmax(start))


def test_at_most_one_of_many_fields_is_summed_exactly():
    n = 200
    questions = {f"x{i:03}": Noul(f"X{i}?") for i in range(n)}
    rule = AtMostOne([(name, True) for name in questions])
    true = np.random.default_rng(1).uniform(0.01, 0.3, n)
    p = {name: [[t, 1 - t]] for name, t in zip(questions, true, strict=True)}
    found = Joint(questions, [rule]).decode(p)
    odds = true / (1 - true)
    log_none = np.log1p(-true).sum()
    assert found.log_kept[0] == pytest.approx(log_none + math.log(1 + odds.sum()))
    for i in (0, 100, 199):
        share = odds[i] / (1 + odds.sum())
        assert found.marginals[f"x{i:03}"][0, 0] == pytest.approx(share)


def test_too_large_a_table_is_refused_by_its_size_and_never_built(monkeypatch):
    options = [f"o{i}" for i in range(30)]
    questions = {f"f{i}": Choice(f"F{i}?", options) for i in range(6)}
    rules = [
        Excludes((a, "o1"), (b, "o2")) for a, b in itertools.combinations(questions, 2)
    ]
    monkeypatch.setattr("rlcd_core.joint._Tree.build", None)  # not callable
    with pytest.raises(JointError, match="6 fields so closely.* 729,000,000 cells"):
        Joint(questions, rules)
    assert 30**6 > LIMIT


def test_many_rows_are_cut_into_pieces_without_a_seam(monkeypatch):
    p = draw_p(FIELDS, 5, n=40)
    whole = Joint(FIELDS, [RULE]).decode(p)
    monkeypatch.setattr("rlcd_core.joint._CELLS", 50)
    pieces = Joint(FIELDS, [RULE]).decode(p)
    for name in FIELDS:
        assert np.array_equal(whole.marginals[name], pieces.marginals[name])
        assert np.array_equal(whole.assignment[name], pieces.assignment[name])
    assert np.array_equal(whole.log_kept, pieces.log_kept)


def test_tiny_probabilities_neither_underflow_nor_vanish():
    n = 40
    questions = {f"x{i:02}": Noul(f"X{i}?") for i in range(n)}
    rules = [Implies((a, True), (b, True)) for a, b in itertools.pairwise(questions)]
    # Independent: x00 true, all others false, which only factors of 1e-30 can mend.
    p = {name: [[1e-30, 1.0]] for name in questions} | {"x00": [[1.0, 1e-30]]}
    found = Joint(questions, rules).decode(p)
    assert found.log_kept[0] == pytest.approx(math.log(1e-30))
    assert found.marginals["x00"][0, 0] < 1e-300
    assert found.assignment["x00"][0] == 1


BAD = [
    ([Implies(("urgency", "high"), ("human", True))], "no field 'urgency'.*team, sev"),
    ([Implies(("severity", "urgent"), ("human", True))], "no option 'urgent'.*low, hi"),
    ([Excludes(("severity", "low"), ("human", "yes"))], "no option 'yes'.*true, false"),
    ([AtMostOne([("team", "billing"), ("human", 1)])], "no option '1'.*true, false"),
    ([Implies(("severity", "low"), ("human", [True, False]))], "every option of 'hum"),
    ([RULE, RULE], "forbid the same; drop one"),
    # The same in other words: critical never with false.
    ([RULE, Excludes(("human", False), ("severity", "critical"))], "forbid the same"),
    ([AtMostOne([("human", False), ("severity", "critical")]), RULE], "forbid the sa"),
    (
        [
            Implies(("team", "billing"), ("severity", "low")),
            RULE,
            Implies(("team", "billing"), ("severity", "high")),
        ],
        r"'team' can never be 'billing': the rules team=billing implies severity=low; "
        r"team=billing implies severity=high contradict",
    ),
    (["severity"], "'severity' is no rule"),
]


@pytest.mark.parametrize(("rules", "message"), BAD)
def test_bad_rules_are_named_with_their_mend(rules, message):
    with pytest.raises(JointError, match=message):
        Joint(FIELDS, rules)


def test_no_assignment_at_all_names_the_smallest_set_of_rules():
    questions = {n: Noul(f"{n}?") for n in "abc"}
    four = [Implies(("a", x), ("b", y)) for x in (True, False) for y in (True, False)]
    with pytest.raises(JointError, match="'a' can never be 'true'") as caught:
        Joint(questions, [*four, Implies(("a", True), ("c", True))])
    assert "c=true" not in str(caught.value)
    # With exceptions allowed there is no contradiction.
    soft = [Implies(r.given, r.then, weight=2.0) for r in four]
    assert Joint(questions, soft).decode({n: [[0.5, 0.5]] for n in "abc"})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Implies("severity", ("human", True)),
            "'severity' is no .field, value",
        ),
        (lambda: Implies(("a", "x"), ("a", "y")), "'a' on both sides"),
        (lambda: Excludes(("a", "x"), ("a", "y")), "'a' on both sides"),
        (lambda: Implies(("a", "x"), ("b", ())), "'b': values .*at least one"),
        (lambda: Implies(("a", "x"), ("b", ("y", "y"))), "none twice"),
        (lambda: Implies(("a", None), ("b", "y")), "'a': value None is a NoneType"),
        (lambda: Excludes(("", "x"), ("b", "y")), "field '': use the name"),
        (lambda: AtMostOne([("a", "x"), ("a", "y")]), "fewer than two fields"),
        (lambda: AtMostOne([("a", 1), ("a", 1), ("b", 1)]), "a=1 is listed twice"),
        (lambda: AtMostOne("ab"), "'ab'; pass a list"),
        (lambda: Implies(("a", "x"), ("b", "y"), weight=0), "weight 0; pass"),
        (lambda: Excludes(("a", "x"), ("b", "y"), weight=math.nan), "weight nan"),
    ],
)
def test_a_rule_that_says_nothing_is_refused(make, message):
    with pytest.raises(JointError, match=message):
        make()


def test_bad_probabilities_are_named():
    joint, good = Joint(FIELDS, [RULE]), draw_p(FIELDS, 0)
    for change, message in (
        ({"team": good["team"][:2]}, r"'team': probabilities of shape \(2, 3\)"),
        ({"human": np.full((3, 2), 0.6)}, "'human', row 0: .* is no distribution"),
        ({"human": [[1, 0], [np.nan, 1], [1, 0]]}, "'human', row 1"),
        ({"other": good["team"]}, "'other' has no question"),
    ):
        with pytest.raises(JointError, match=message):
            joint.decode(good | change)
    with pytest.raises(JointError, match="'team' has no probabilities"):
        joint.decode({n: good[n] for n in ("severity", "human")})
    with pytest.raises(JointError, match="no labels of field 'team'"):
        joint.log_prob(good, {"severity": [0] * 3, "human": [0] * 3})
    zeros = {name: [0] * 3 for name in FIELDS}
    for wrong in ([-1, 0, 0], [0, 0, 2], [0], [0.0, 0.0, 0.0], [[0, 0, 0]]):
        for call in (lambda x: joint.log_prob(good, x), joint.broken):
            with pytest.raises(JointError, match=r"'human': labels .* from 0 to 1"):
                call(zeros | {"human": wrong})
    one = {"severity": [[0, 0, 1]], "human": [[0, 1]], "team": [[1, 0, 0]]}
    with pytest.raises(JointError, match=r"row 0: every assignment .* probability 0"):
        joint.decode(one)
    soft = Joint(FIELDS, [Implies(RULE.given, RULE.then, weight=5.0)])
    assert soft.decode(one).log_kept[0] == pytest.approx(-5)


# --- Marginals kept ---------------------------------------------------------------


def test_matched_marginals_against_the_closed_form_of_one_implication():
    rng = np.random.default_rng(4)
    p = {n: rng.dirichlet(np.ones(len(q.options)), 60) for n, q in FIELDS.items()}
    critical, human = p["severity"][:, 2], p["human"][:, 0]
    joint = Joint(FIELDS, [RULE])
    fields, reached = joint.matched(p)
    inside = human - critical > 0.02
    assert reached[inside].all() and not reached[human <= critical].any()
    assert 10 < reached.sum() < 50
    found = joint.decode(fields)
    for name in FIELDS:
        assert np.allclose(found.marginals[name][reached], p[name][reached], atol=1e-7)
        # What cannot be reached comes back as it was.
        assert np.array_equal(fields[name][~reached], p[name][~reached])
    # Critical takes its share of true; what is left is independent.
    for level in range(3):
        for h in range(2):
            labels = {
                "team": np.zeros(60, int),
                "severity": np.full(60, level),
                "human": np.full(60, h),
            }
            if level == 2:
                wanted = critical * (h == 0)
            else:
                left = human - critical if h == 0 else 1 - human
                wanted = p["severity"][:, level] / (1 - critical) * left
            exact = np.exp(joint.log_prob(fields, labels)) / p["team"][:, 0]
            assert np.allclose(exact[reached], wanted[reached], atol=1e-6), (level, h)


@settings(max_examples=25, deadline=None)
@given(problems(), st.integers(0, 2**31))
def test_matched_marginals_of_a_world_that_keeps_the_rules(problem, seed):
    # Marginals of an allowed joint with no zero inside are always reached, and the log
    # loss under that joint falls by more than conditioning makes it fall.
    questions, rules = problem
    rules = [type(r)(*_parts(r)) for r in rules]
    joint = build(questions, rules)
    assume(joint is not None)
    rng = np.random.default_rng(seed)
    names, sizes = list(questions), [len(q.options) for q in questions.values()]
    picks = np.array(list(itertools.product(*map(range, sizes))))
    labels = {n: picks[:, i] for i, n in enumerate(names)}
    world = rng.dirichlet(np.full(len(picks), 5.0))
    world[joint.broken(labels).any(1)] = 0
    world /= world.sum()
    p = {
        n: np.bincount(picks[:, i], world, sizes[i])[None] for i, n in enumerate(names)
    }
    fields, reached = joint.matched(p, tolerance=1e-7, sweeps=2000)
    assert reached.all()
    many = {n: np.repeat(v, len(picks), 0) for n, v in p.items()}
    kept_fields = {n: np.repeat(v, len(picks), 0) for n, v in fields.items()}
    alive = world > 0
    alone = sum(np.log(many[n][alive, picks[alive, i]]) for i, n in enumerate(names))
    conditioned = joint.log_prob(many, labels)[alive]
    matched = joint.log_prob(kept_fields, labels)[alive]
    score = [float(world[alive] @ x) for x in (alone, conditioned, matched)]
    assert score[0] <= score[1] + 1e-9
    assert score[1] <= score[2] + 1e-5


def _parts(rule):
    match rule:
        case Implies():
            return rule.given, rule.then
        case Excludes():
            return rule.first, rule.second
        case _:
            return (rule.values,)


def test_matched_without_rules_is_the_identity():
    p = draw_p(FIELDS, 1)
    fields, reached = Joint(FIELDS, []).matched(p)
    assert reached.all()
    assert all(np.array_equal(fields[n], p[n]) for n in p)


# --- Through the decider ----------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {
        "severity": {"enum": ["low", "high", "critical"], "x-ordered": True},
        "human": {"type": "boolean"},
        "level": {"type": "integer", "minimum": 1, "maximum": 3},
    },
}
SCHEMA_RULES = [RULE, Implies(("severity", "critical"), ("level", [2, 3]))]


def decider(questions, logits):
    policy = TabularPolicy([("Down.", q) for q in questions.values()])
    import torch

    with torch.no_grad():
        for row, values in enumerate(logits):
            policy.logits[row, : len(values)] = torch.log(torch.tensor(values))
    return Decider(policy)


def test_ask_with_rules_answers_under_the_names_of_a_json_schema():
    from rlcd_core.schema import questions_from_schema

    questions = questions_from_schema(SCHEMA)
    values = [[0.2, 0.2, 0.6], [0.3, 0.7], [0.5, 0.3, 0.2]]
    asker = decider(questions, values)
    plain = asker.ask("Down.", SCHEMA)
    assert {n: a.value for n, a in plain.items()} == {
        "severity": "critical",
        "human": False,
        "level": "1",
    }
    found = asker.ask("Down.", SCHEMA, rules=SCHEMA_RULES)
    assert list(found) == list(plain) and len(found) == 3
    here = dict(zip(questions, values, strict=True))
    names, table, total = enumerate_all(
        questions,
        [RULE, Implies(("severity", "critical"), ("level", ("2", "3")))],
        here,
    )
    assert math.exp(found.log_kept) == pytest.approx(total, abs=1e-6)
    best = max(table, key=table.get)
    assert tuple(found.indices[n] for n in names) == best
    assert found.confidence == pytest.approx(table[best] / total, abs=1e-6)
    for i, name in enumerate(names):
        for k, option in enumerate(questions[name].options):
            share = sum(w for y, w in table.items() if y[i] == k) / total
            assert found[name].probabilities[option] == pytest.approx(share, abs=1e-6)
    assert found.document(SCHEMA) == {"severity": "low", "human": False, "level": 1}
    assert found.assignment == {"severity": "low", "human": False, "level": "1"}
    text = json.dumps(found.to_dict(), allow_nan=False)
    assert json.loads(text)["assignment"]["human"] is False


def test_ask_with_no_rules_is_bit_equal_and_unruled_fields_are_untouched():
    asker = decider(FIELDS, [[0.1, 0.2, 0.7], [0.2, 0.2, 0.6], [0.3, 0.7]])
    plain = asker.ask("Down.", FIELDS)
    assert dict(asker.ask("Down.", FIELDS, rules=[])) == plain
    assert asker.ask("Down.", FIELDS, rules=[]).log_kept == 0
    assert asker.ask("Down.", FIELDS, rules=[RULE])["team"] == plain["team"]
    assert asker.ask("Down.", FIELDS, rules=RULE)["human"] != plain["human"]


def test_rules_need_names_and_are_checked_before_the_policy_is_asked():
    class Never:
        def prepare(self, items):
            raise AssertionError("asked")

    with pytest.raises(SchemaError, match="pass the questions as a mapping"):
        Decider(Never()).ask("Down.", list(FIELDS.values()), rules=[RULE])
    with pytest.raises(JointError, match="no field 'severity'"):
        Decider(Never()).ask("Down.", {"human": FIELDS["human"]}, rules=[RULE])


# --- The generator, and the soft weight -------------------------------------------


def test_the_rule_of_the_triage_generator_holds_and_the_mass_is_that_of_the_product():
    rows = joint_tickets(40, np.random.default_rng(2))
    questions = {n: item.question for n, item in rows[0].items.items()}
    rule = Implies(("severity", "critical"), ("needs_human", True))
    joint = Joint(questions, [rule])
    labels = {n: np.array([r.items[n].label for r in rows]) for n in questions}
    p = {n: np.array([r.items[n].posterior for r in rows]) for n in questions}
    assert not joint.broken(labels).any()
    allowed = np.stack([row.joint for row in rows])
    product = np.einsum("na,nb,nc->nabc", *p.values())
    product[:, :, 3, 1] = 0
    total = product.sum((1, 2, 3))
    found = joint.decode(p)
    assert np.allclose(np.exp(found.log_kept), total)
    restricted = product / total[:, None, None, None]
    at = tuple(labels[n] for n in questions)
    truth = restricted[(np.arange(40), *at)]
    assert np.allclose(np.exp(joint.log_prob(p, labels)), truth)
    assert (allowed[:, :, 3, 1] == 0).all()


def test_stored_predictions_of_the_family_give_its_log_loss_and_no_zeros():
    from rlcd_core.extra.families.joint import FIELDS as NAMES
    from rlcd_core.extra.families.joint import JOINT_ARMS, SEEDS, joint_task
    from rlcd_core.extra.grid import family_records
    from rlcd_core.records import Store

    task, store = joint_task(), Store("joint_fields")
    test = task.splits["test"]
    tickets = test.reshape(-1, len(NAMES)) // len(NAMES)
    assert (tickets == tickets[:, :1]).all(), "a ticket is split"
    told = task.counts[test].astype(bool)
    records = family_records("joint_fields")
    assert {(r.arm, r.seed) for r in records} == set(
        itertools.product(JOINT_ARMS, SEEDS)
    )
    for record in records:
        right = store.predictions(record)[told]
        assert right.min() > 0  # float16 would make a log loss infinite
        nll = record.metrics["test"]["nll"]
        assert -np.log(right).mean() == pytest.approx(nll, abs=2e-3)


def test_fit_weight_finds_the_rate_and_the_least_loss():
    rng = np.random.default_rng(0)
    mass = rng.uniform(0.02, 0.4, 40_000)

    def stated(w):
        return mass * np.exp(-w) / (1 - mass + mass * np.exp(-w))

    def loss(w):
        return (np.log(1 - mass + mass * np.exp(-w)) + w * broken).mean()

    broken = rng.random(40_000) < stated(math.log(10))
    weight = fit_weight(np.log1p(-mass), broken)
    assert stated(weight).mean() == pytest.approx(broken.mean(), abs=1e-9)
    assert all(loss(weight) <= loss(w) + 1e-12 for w in np.linspace(0, 8, 400))
    # 1,100 breaks: a standard error of .03.
    assert weight == pytest.approx(math.log(10), abs=0.15)


def test_fit_weight_at_its_ends():
    mass = np.full(99, 0.2)
    none = fit_weight(np.log1p(-mass), np.zeros(99, bool))
    # Half a break in a hundred: .25 e^-w = .005 / .995.
    assert none == pytest.approx(math.log(0.25 * 0.995 / 0.005))
    often = np.zeros(99, bool)
    often[:30] = True
    assert fit_weight(np.log1p(-mass), often) == 0.0
    with pytest.raises(JointError, match=r"shape \(99,\), broken \(3,\)"):
        fit_weight(np.log1p(-mass), often[:3])
    with pytest.raises(JointError, match="log_kept <= 0"):
        fit_weight(-np.log1p(-mass), often)
