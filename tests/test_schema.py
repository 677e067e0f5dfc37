"""Questions, prompts and answers: hand values, bad input by name, properties."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcd_core.schema import (
    LETTERS,
    Choice,
    Noul,
    NoulAnswer,
    SchemaError,
    Score,
    ScoreAnswer,
    instance_from_answers,
    is_schema,
    make_answer,
    make_question,
    name_questions,
    questions_from_schema,
    questions_of,
    render_prefix,
    render_state,
    render_suffix,
)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ([], "at least 2"),
        (["only"], "at least 2"),
        (["Yes", "yes ", "YES"], "'Yes' and 'yes '"),
        (["a", "a "], "'a' and 'a '"),
        (["a", "a"], "the same"),
        (["Straße", "STRASSE"], "the same"),
        (["caf\u00e9", "cafe\u0301"], "the same"),
        (["a\u200b", "a"], "the same"),
        (["a  b", "a\tb"], "the same"),
        (["\uff59\uff45\uff53", "yes"], "the same"),
        (["x\x00", "x"], "the same"),
        (["a", "\u200b"], "empty"),
        (["a", "b\nc"], "line break"),
        (["a", "b\u2028c"], "line break"),
        (["a", "b\r"], "line break"),
        (["a", ""], "empty"),
        (["a", "  "], "empty"),
        (["a", 1], "int"),
        ("ab", "one string"),
        ({"a", "b"}, "fixed order"),
        ({"a": 1, "b": 2}, "fixed order"),
        (None, "NoneType"),
        (5, "int"),
        (["a", "cut \ud83d"], "half a character"),
    ],
)
def test_bad_options_name_the_question_and_the_mend(options, reason):
    for kind in (Choice, Score):
        with pytest.raises(SchemaError, match="Which team") as caught:
            kind("Which team?", options)
        assert reason in str(caught.value)


@pytest.mark.parametrize("text", ["", "   ", "\n", None])
def test_empty_text_is_refused(text):
    with pytest.raises(SchemaError, match="'a', 'b'.*write the question out"):
        Choice(text, ("a", "b"))


def test_questions_are_values():
    assert Choice("Q", ["a", "b"]) == Choice("Q", ("a", "b"))
    assert Choice("Q", ["a", "b"]) != Score("Q", ["a", "b"])
    assert len({Noul("Q"), Noul("Q"), Choice("Q", ["true", "false"])}) == 2
    with pytest.raises(AttributeError):
        Noul("Q").text = "R"


def test_noul_has_true_first_and_no_other_options():
    assert Noul("Q").options == ("true", "false")
    with pytest.raises(SchemaError, match="ask a Choice"):
        Noul("Q", ("yes", "no"))


PROMPT = """User: Context:
Card charged twice.

Question: Which team?
Options:
A) billing
B) technical support
Answer with the letter only.
Assistant: The answer is"""


def test_prompt_is_the_protocols():
    question = Choice(" Which team? ", ["billing", "technical support "])
    prompt = render_prefix("Card charged twice.") + render_suffix(question)
    assert prompt == PROMPT


def test_more_options_than_labels_fail_at_render_time_only():
    question = Choice("Which intent?", [f"intent {k}" for k in range(27)])
    with pytest.raises(SchemaError, match="Which intent.*27 options but only 26"):
        render_suffix(question)
    labels = [f"{a}{b}" for a in LETTERS for b in LETTERS]
    assert "\nBA) intent 26\n" in render_suffix(question, labels[:27])


def test_state_forms():
    assert render_state("as it is \n") == "as it is \n"
    state = {"tier": 1, "note": "first\ntier: 3", "tags": ["x", {"b": 1, "a": None}]}
    assert render_state(state) == (
        'note: first\n  tier: 3\ntags: ["x", {"a": null, "b": 1}]\ntier: 1'
    )
    assert render_state({"a": 1, "a-b": 2}) == "a: 1\na-b: 2"
    # JSON leaves this line end as it is: it is indented like any other.
    assert render_state({"a": ["x\u2028b: y"]}) == 'a: ["x\n  b: y"]'
    turns = [{"role": "user", "content": "Hi\nagent: bye"}, ("agent", "Hello")]
    assert render_state(turns) == "user: Hi\n  agent: bye\nagent: Hello"


@pytest.mark.parametrize(
    "state",
    ["", " \n ", {}, [], None, 3, b"bytes", {"a": math.nan}, {"a": object()},
     {1: "a"}, {"a\nb": "c"}, {"": "a"}, ["just text"], [{"role": "user"}],
     [{"role": "user", "content": "x", "name": "lost"}], [("user", "")],
     [("us\ner", "x")], [("user", 3)], "cut \ud83d", {"a": "cut \ud83d"},
     {"a": [{"b": "cut \udc00"}]}, {"a": math.inf}, {"a": {1: "x", "b": "y"}}],
)  # fmt: skip
def test_bad_state_is_refused(state):
    with pytest.raises(SchemaError, match="^state: "):
        render_state(state)


def test_endless_nesting_is_refused():
    inside = []
    for _ in range(100_000):
        inside = [inside]
    with pytest.raises(SchemaError, match="^state: a is list, which JSON cannot hold"):
        render_state({"a": inside})


@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.text()))
def test_equal_states_render_equally_and_keys_cannot_be_forged(state):
    if not state:
        return
    text = render_state(state)
    assert text == render_state(dict(reversed(state.items())))
    starts = [line for line in text.split("\n") if not line.startswith("  ")]
    assert [line.split(":")[0] for line in starts] == sorted(state)


def test_questions_from_plain_mappings():
    question = make_question({"kind": "score", "text": "Q", "options": ["lo", "hi"]})
    assert question == Score("Q", ("lo", "hi"))
    assert make_question(question.to_dict()) == question
    named = name_questions({"page": {"kind": "noul", "text": "Page?"}, "q": question})
    assert named == {"page": Noul("Page?"), "q": question}


@pytest.mark.parametrize(
    ("questions", "reason"),
    [
        ({}, "ask at least one"),
        ({"": Noul("Q")}, "non-empty"),
        ({"n": "Q?"}, "n: .*is no question"),
        ({"n": {"kind": "nool", "text": "Q"}}, "n: .*'nool'; use one of"),
        ({"n": {"kind": "noul"}}, "n: .*exactly the keys"),
        ({"n": {"kind": "noul", "text": "Q", "optoins": []}}, "n: .*exactly the keys"),
        ({"n": {"kind": "choice", "text": "Q"}}, "n: Choice 'Q': 0 option"),
        ({"n": {"kind": [], "text": "Q"}}, "n: .*use one of"),
        ({"n": {"kind": "noul", "text": "Q \ud83d"}}, "n: .*half a character"),
        ([Noul("Q")], "list has no names"),
    ],
)
def test_bad_named_questions(questions, reason):
    with pytest.raises(SchemaError, match=reason):
        name_questions(questions)


SCHEMA = {
    "type": "object",
    "$defs": {"Team": {"enum": ["billing", "sales"], "type": "string"}},
    "properties": {
        "team": {"$ref": "#/$defs/Team", "description": "Which team?"},
        "level": {"enum": ["low", "high"], "x-ordered": True},
        "stars": {"type": "integer", "minimum": 1, "maximum": 3},
        "code": {"enum": [404, 500]},
        "urgent": {"type": "boolean", "title": "Urgent"},
        "size": {"oneOf": [{"const": "S", "title": "small"}, {"const": "L"}]},
    },
}


def test_questions_from_json_schema():
    assert questions_from_schema(SCHEMA) == {
        "team": Choice("Which team?", ("billing", "sales")),
        "level": Score("level", ("low", "high")),
        "stars": Score("stars", ("1", "2", "3")),
        "code": Choice("code", ("404", "500")),
        "urgent": Noul("Urgent"),
        "size": Choice("size", ("S", "L")),
    }


def test_a_percentage_is_a_score():
    fields = {"type": "integer", "minimum": 0, "maximum": 100}
    question = questions_from_schema({"properties": {"f": fields}})["f"]
    assert len(question.options) == 101 and question.kind == "score"


def test_answers_give_a_document_that_the_schema_accepts():
    questions = questions_from_schema(SCHEMA)
    answers = {
        name: make_answer(q, [0.0] * (len(q.options) - 1) + [1.0])
        for name, q in questions.items()
    }
    assert instance_from_answers(SCHEMA, answers) == {
        "team": "sales", "level": "high", "stars": 3, "code": 500,
        "urgent": False, "size": "L",
    }  # fmt: skip
    with pytest.raises(SchemaError, match="do not match"):
        instance_from_answers(SCHEMA, {"team": answers["team"]})
    # Answers to another version of the schema would be read as other options.
    options = list(reversed(questions["team"].options))
    turned = make_answer(Choice("Team?", options), answers["team"].p)
    with pytest.raises(SchemaError, match="'team' has the options .* among"):
        instance_from_answers(SCHEMA, answers | {"team": turned})


def test_a_schema_and_names_are_told_apart():
    assert questions_of(SCHEMA) == questions_from_schema(SCHEMA)
    named = {"properties": Noul("Any?"), "type": {"kind": "noul", "text": "Typed?"}}
    assert not is_schema(named) and list(questions_of(named)) == ["properties", "type"]
    assert is_schema(SCHEMA) and not is_schema([SCHEMA])
    with pytest.raises(SchemaError, match="has no names"):
        questions_of([Noul("Any?")])


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"type": "string"}, "'f'.*use enum"),
        ({"type": "integer", "minimum": 0}, "'f'.*use enum"),
        ({"type": "integer", "minimum": 0, "maximum": 10**9}, "'f'.*use enum"),
        ({"enum": [None, "a"]}, "'f'.*use enum"),
        ({"enum": ["a"]}, "f: Choice 'f'.*at least 2"),
        ({"enum": ["a", "A "]}, "f: Choice 'f'.*the same"),
        ({"$ref": "#/$defs/Nowhere"}, "'f'"),
        ({"$ref": "https://example.org/s.json"}, "'f'"),
        ("string", "'f'.*no JSON schema"),
        ({"oneOf": [5]}, "'f'.*use enum"),
    ],
)
def test_bad_json_schema_names_the_property(fields, reason):
    with pytest.raises(SchemaError, match=reason):
        questions_from_schema({"properties": {"f": fields}})
    with pytest.raises(SchemaError, match="'f'.*use enum"):
        questions_from_schema({"properties": {"f": {"$ref": "#/$defs/x"}}, "$defs": []})
    for schema in ({"type": "object"}, []):
        with pytest.raises(SchemaError, match="no properties"):
            questions_from_schema(schema)


def test_answers_by_hand():
    levels = Score("How bad?", ("P3", "P2", "P1", "P0"))
    p = [0.002271013985650127, 0.002937758814346358, 0.002244528100786117]
    answer = make_answer(levels, [*p, 0.9925466990992174])
    # The seed document prints these for the same probabilities.
    assert answer.value == "P0"
    assert answer.score == pytest.approx(0.9950223041045235, abs=1e-12)
    assert answer.entropy_confidence == pytest.approx(0.9624410710472786, abs=1e-12)
    three = Choice("Q", ("a", "b", "c"))
    assert make_answer(three, (0, 0.95, 0.05)).entropy_confidence == pytest.approx(
        0.8193036, abs=5e-8
    )
    five = Choice("Q", tuple("abcde"))
    assert make_answer(five, (0.01, 0.02, 0.07, 0.3, 0.6)).entropy_confidence == (
        # 30 digits give .392255164; .3922553, found in older notes, is 1e-7 off.
        pytest.approx(0.3922551640207, abs=1e-12)
    )
    assert make_answer(three, (0.4, 0.4, 0.2)).value == "a"


def test_a_noul_answer_is_a_bool():
    # "false" as text would be true in an if statement.
    no = make_answer(Noul("Refund?"), (0.25, 0.75))
    assert isinstance(no, NoulAnswer) and no.value is False and no.option == "false"
    assert no.probabilities == {"true": 0.25, "false": 0.75}
    assert no.confidence == 0.75
    assert no.to_dict()["value"] is False


@pytest.mark.parametrize(
    ("p", "reason"),
    [
        ((0.5, 0.6), "sum to"),
        ((1.5, -0.5), "not negative"),
        ((math.nan, 1.0), "finite"),
        ((math.inf, 0.0), "finite"),
        ((1.0,), "1 probabilities for 2"),
        ((0.0, 0.0), "sum to"),
    ],
)
def test_bad_probabilities_name_the_question(p, reason):
    with pytest.raises(SchemaError, match=f"Refund.*{reason}"):
        make_answer(Noul("Refund?"), p)


def test_make_answer_refuses_what_is_no_question():
    with pytest.raises(SchemaError, match="no Choice, Score or Noul"):
        make_answer("Refund?", (0.5, 0.5))


@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=9).filter(lambda w: sum(w) > 1e-6),
    st.text(min_size=1).filter(str.strip),
)
def test_every_answer_is_valid_json_and_in_range(weights, text):
    p = [w / math.fsum(weights) for w in weights]
    options = tuple(f"level {k}" for k in range(len(p)))
    for question in (Choice(text, options), Score(text, options)):
        answer = make_answer(question, p)
        back = json.loads(json.dumps(answer.to_dict(), allow_nan=False))
        assert back["value"] == answer.value in question.options
        assert list(back["probabilities"]) == list(options)
        assert 1 / len(p) - 1e-9 <= answer.confidence <= 1 + 1e-9
        assert 0 <= answer.entropy_confidence <= 1
        if isinstance(answer, ScoreAnswer):
            assert 0 <= back["score"] <= 1 + 1e-12
        assert hash(answer) == hash(make_answer(question, tuple(p)))
