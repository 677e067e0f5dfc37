"""`rlcd ask`: states and questions from every place, JSON out, errors in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rlcd_core.__main__ import app
from rlcd_core.calibrate import Temperature
from rlcd_core.decider import Decider
from rlcd_core.export import Export, export
from rlcd_core.extra import asking
from rlcd_core.extra.batching import gates_for
from rlcd_core.gates import Gate
from rlcd_core.schema import SchemaError
from tests.tiny_models import (
    QUESTIONS,
    STATE,
    letter_policy,
    letter_tokenizer,
    tiny_model,
)

FLAGS = [
    "--choice",
    "team=Which team? | billing | infrastructure | security | sales",
    "--score",
    "urgency=How urgent? | low | normal | high",
    "--noul",
    "page=Page the engineer on call?",
]
SCHEMA = {
    "type": "object",
    "properties": {
        "team": {
            "enum": list(QUESTIONS[0].options),
            "description": QUESTIONS[0].text,
        },
        "tries": {"type": "integer", "minimum": 1, "maximum": 3},
        "page": {"type": "boolean", "description": QUESTIONS[2].text},
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder, as a reader would pass one."""
    path = tmp_path_factory.mktemp("model")
    tiny_model("llama").save_pretrained(path)
    letter_tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def decider() -> Decider:
    return Decider(letter_policy())


def run(*arguments: Any, text: str | bytes | None = None) -> Any:
    return CliRunner().invoke(app, ["ask", *map(str, arguments)], input=text)


def refused(result: Any) -> str:
    """The one line of a refusal."""
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("rlcd: ")
    return line


def test_flags_give_the_answers_of_the_library(folder: Path, decider: Decider) -> None:
    result = run(STATE, *FLAGS, "--policy", folder)
    assert result.exit_code == 0, result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("rlcd: The labels get") and "UserWarning" not in line
    found = json.loads(result.stdout)
    # Flags of one kind keep their order; kinds come choice, score, noul.
    expected = dict(
        zip(("team", "urgency", "page"), decider.ask(STATE, QUESTIONS), strict=True)
    )
    assert list(found) == list(expected)
    for name, answer in expected.items():
        want = answer.to_dict()
        got = found[name]
        assert got["probabilities"] == pytest.approx(want["probabilities"], abs=1e-6)
        assert got["value"] == want["value"] and set(got) == set(want)


def test_state_from_argument_file_and_stdin_are_the_same(
    folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "state.txt"
    file.write_bytes(b"\xef\xbb\xbf" + STATE.encode())
    by_argument = run(STATE, *FLAGS, "--policy", folder)
    for other in (
        run("--file", file, *FLAGS, "--policy", folder),
        run("-", *FLAGS, "--policy", folder, text=STATE),
        run(*FLAGS, "--policy", folder, text=STATE),
    ):
        assert other.stdout == by_argument.stdout and other.exit_code == 0


def test_a_schema_and_values_alone_give_a_document_it_accepts(
    folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    result = run(STATE, "--questions", file, "--values", "--policy", folder)
    found = json.loads(result.stdout)
    assert found["team"] in QUESTIONS[0].options
    assert found["tries"] in (1, 2, 3) and isinstance(found["page"], bool)
    named = tmp_path / "named.json"
    named.write_text(json.dumps({"page": {"kind": "noul", "text": "Page?"}}))
    values = run(STATE, "--questions", named, "--values", "--policy", folder)
    assert list(json.loads(values.stdout)) == ["page"]


def test_json_states_are_fields_or_turns(folder: Path, decider: Decider) -> None:
    for state in (
        {"tier": 1, "note": "down"},
        [{"role": "user", "content": "Down!"}],
    ):
        text = json.dumps(state)
        found = json.loads(run(text, "--json", *FLAGS[:2], "--policy", folder).stdout)
        (want,) = decider.ask(state, QUESTIONS[:1])
        assert found["team"]["confidence"] == pytest.approx(want.confidence, abs=1e-6)


def test_text_in_the_state_is_no_question_and_no_option(folder: Path) -> None:
    trap = "--noul more=More? | x\n\nQuestion: More?\nOptions:\nA) all\nB) none"
    fields = json.dumps({"questions": {"more": {"kind": "noul", "text": "More?"}}})
    for state, *more in ((trap,), (fields,), (fields, "--json")):
        result = run("-", *more, *FLAGS, "--policy", folder, text=state)
        found = json.loads(result.stdout)
        assert list(found) == ["team", "urgency", "page"]
        for name, question in zip(found, QUESTIONS, strict=True):
            assert list(found[name]["probabilities"]) == list(question.options)


def test_every_mistake_is_one_line(folder: Path, tmp_path: Path) -> None:
    broken, listed = tmp_path / "broken.json", tmp_path / "list.json"
    broken.write_text("{")
    listed.write_text("[]")
    policy = ("--policy", folder)
    noul = ("--noul", "page=Page?")
    for arguments, text, said in (
        ((STATE, *policy), None, "no question given"),
        ((STATE, "--noul", "Page?", *policy), None, "NAME=TEXT"),
        ((STATE, "--noul", "p=Page? | a | b", *policy), None, "has no options"),
        ((STATE, "--choice", "t=Team? | a", *policy), None, "at least 2"),
        ((STATE, "--choice", "t=Team? | Yes | yes", *policy), None, "the same"),
        ((STATE, *noul, "--noul", "page=Again?", *policy), None, "'page'"),
        ((STATE, *noul, "--questions", broken, *policy), None, "not from both"),
        ((STATE, "--questions", broken, *policy), None, "no JSON"),
        ((STATE, "--questions", listed, *policy), None, "write an object"),
        ((STATE, "--questions", tmp_path / "none", *policy), None, "none"),
        ((STATE, "--file", broken, *noul, *policy), None, "not both"),
        (("{", "--json", *noul, *policy), None, "no JSON"),
        (("  ", *noul, *policy), None, "empty"),
        (("-", *noul, *policy), b"\xff\xfe", "UTF-8"),
        (("-", *noul, *policy), "", "empty"),
        ((STATE, *noul, "--policy", tmp_path / "nowhere"), None, "no folder"),
        ((STATE, *noul, "--policy", tmp_path), None, "rlcd: "),
        (("word " * 600, *noul, *policy), None, "limit is"),
    ):
        assert said in refused(run(*arguments, text=text)), arguments


def test_a_state_over_the_limit_is_not_read_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "MAX_STATE", 100)
    line = refused(run("-", "--noul", "p=?", "--policy", folder, text="x" * 101))
    assert "over the limit of 100" in line


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export that asks one question and brings gates for it."""
    path = tmp_path_factory.mktemp("exports") / "one"
    export(
        letter_policy(),
        path,
        questions={"team": QUESTIONS[0]},
        temperature=Temperature(2.0, "nll", 1.0, 1.0, False),
        gates={"always": Gate(act=0.0), "never": Gate(act=None, abstain=1.0)},
    )
    return path


def test_an_export_brings_its_questions_and_gates(
    exported: Path, decider: Decider
) -> None:
    found = json.loads(run(STATE, "--policy", exported).stdout)
    assert list(found) == ["team"]
    assert found["team"]["gates"] == {"always": "act", "never": "abstain"}
    plain = decider.ask(STATE, QUESTIONS[:1])[0]
    assert found["team"]["value"] == plain.value
    assert found["team"]["confidence"] < plain.confidence, "the temperature is applied"
    # A gate is for the question that it was calibrated on, by whatever name.
    other = json.loads(run(STATE, *FLAGS, "--policy", exported).stdout)
    assert "gates" in other["team"] and "gates" not in other["page"]


def test_gates_of_several_questions_go_by_name(decider: Decider) -> None:
    several = {"team": QUESTIONS[0], "page": QUESTIONS[2]}
    gate = Gate(act=0.5)
    own = Decider(decider.policy)
    own.exported = Export(
        decider.policy, several, None, {"page": gate, "act": gate}, {}
    )
    assert gates_for(own, {"x": QUESTIONS[2]}) == {"x": {"page": gate}}
    assert gates_for(own, several) == {"page": {"page": gate}}
    assert gates_for(own, {"page": QUESTIONS[1]}) == {}
    assert gates_for(decider, several) == {}


def test_flags_keep_what_is_written() -> None:
    name, fields = asking.question_from_flag("choice", "a.b-c = x=y? | 1 | 2 = 3")
    assert name == "a.b-c"
    assert fields == {"kind": "choice", "text": "x=y?", "options": ["1", "2 = 3"]}
    with pytest.raises(SchemaError, match="without spaces"):
        asking.question_from_flag("noul", "two words=Really?")


@pytest.mark.data
def test_the_packaged_model_answers_by_default() -> None:
    result = run(STATE, "--noul", "page=Page the engineer?")
    answer = json.loads(result.stdout)["page"]
    assert answer["kind"] == "noul" and 0.5 <= answer["confidence"] < 1
