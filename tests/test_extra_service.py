"""The service over real sockets: the library's answers and messages, and limits."""

from __future__ import annotations

import http.client
import io
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import uvicorn
from typer.testing import CliRunner

from rlcd_core.__main__ import app as cli
from rlcd_core.data.manifest import sha256_of
from rlcd_core.decider import Decider
from rlcd_core.export import Export
from rlcd_core.extra import service
from rlcd_core.extra.service import Limits, make_app
from rlcd_core.gates import Gate
from rlcd_core.policy import DecisionHead
from rlcd_core.policy.letter import LetterPolicy
from rlcd_core.schema import SchemaError, name_questions, render_state
from tests.tiny_models import (
    QUESTIONS,
    STATE,
    HashEncoder,
    letter_tokenizer,
    tiny_model,
)

torch.set_num_threads(1)
NAMED = dict(zip(("team", "urgency", "page"), QUESTIONS, strict=True))
ASKED = {name: question.to_dict() for name, question in NAMED.items()}


class Gated(DecisionHead):
    """Waits inside a pass until the test opens the gate, and counts its passes."""

    def __init__(self, fault: Exception | None = None) -> None:
        super().__init__(HashEncoder(), 4)
        torch.nn.init.normal_(self.query, generator=torch.Generator().manual_seed(0))
        self.gate, self.entered = threading.Event(), threading.Event()
        self.gate.set()
        self.passes: list[int] = []
        self.fault = fault

    def prepare(self, items: Any) -> Any:
        self.passes.append(len(items))
        self.entered.set()
        self.gate.wait(20)
        if self.fault is not None:
            raise self.fault
        return super().prepare(items)


class Running:
    """A server in a thread, and requests to it."""

    def __init__(self, port: int) -> None:
        self.port = port

    def send(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            given = {"Content-Type": "application/json"} | headers
            connection.request(method, path, body, given)
            reply = connection.getresponse()
            text = reply.read()
            told = {name.lower(): value for name, value in reply.getheaders()}
            return reply.status, json.loads(text), told
        finally:
            connection.close()

    def ask(
        self, state: Any = STATE, questions: Any = None, **more: Any
    ) -> tuple[int, Any, dict[str, str]]:
        asked = ASKED if questions is None else questions
        body = json.dumps({"state": state, "questions": asked, **more})
        return self.send("POST", "/ask", body.encode())


@contextmanager
def running(
    policy: Any,
    limits: Limits | None = None,
    decider: Decider | None = None,
    **about: Any,
) -> Iterator[Any]:
    app = make_app(decider or Decider(policy), limits=limits, **about)
    config = uvicorn.Config(app, port=0, log_level="debug", log_config=None)
    server = uvicorn.Server(config)
    place = socket.socket()
    place.bind(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([place],), daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.005)
        yield Running(place.getsockname()[1])
    finally:
        if isinstance(policy, Gated):
            policy.gate.set()
        server.should_exit = True
        thread.join(20)
        place.close()
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def head() -> Iterator[Running]:
    with running(Gated(), model="tiny", files={"a": "b"}) as service_:
        yield service_


def test_answers_are_those_of_the_library(head: Running) -> None:
    for state in (STATE, {"tier": 1, "note": "x"}, [("user", "Down!")]):
        status, told, _ = head.ask(state)
        assert status == 200
        expected = Decider(Gated()).ask(state, NAMED)
        assert list(told["answers"]) == list(expected)
        for name, answer in expected.items():
            found, want = told["answers"][name], answer.to_dict()
            assert found.keys() == want.keys()
            assert found["value"] == want["value"] and found["kind"] == want["kind"]
            assert found["probabilities"] == pytest.approx(want["probabilities"])
            assert list(found["probabilities"]) == list(want["probabilities"])


def test_many_at_once_get_their_own_answers_and_share_passes() -> None:
    policy = Gated()
    offline = Decider(Gated())
    states = [f"ticket {i}" for i in range(60)]
    with running(policy) as service_, ThreadPoolExecutor(8) as clients:
        replies = list(clients.map(service_.ask, states))
    for state, (status, told, _) in zip(states, replies, strict=True):
        assert status == 200
        for name, answer in offline.ask(state, NAMED).items():
            found = told["answers"][name]["probabilities"]
            assert found == pytest.approx(answer.probabilities, abs=1e-6)
    assert sum(policy.passes) == 60 * 3 and len(policy.passes) < 60
    assert max(policy.passes) <= 8 * 3


def test_a_shared_prefix_policy_answers_as_offline() -> None:
    letter = LetterPolicy(tiny_model("llama"), letter_tokenizer(), max_tokens=200)
    offline = Decider(LetterPolicy(tiny_model("llama"), letter_tokenizer()))
    single = {"page": QUESTIONS[2]}
    requests: list[Any] = []
    for i in range(6):
        requests.append((f"{STATE} {i}", NAMED if i % 2 else single))
        requests.append(("word " * 300, single))  # refused, beside good ones

    def send(request: Any) -> Any:
        state, asked = request
        return service_.ask(state, {n: q.to_dict() for n, q in asked.items()})

    with running(letter) as service_, ThreadPoolExecutor(6) as clients:
        replies = list(clients.map(send, requests))
    for (state, asked), (status, told, _) in zip(requests, replies, strict=True):
        if state.startswith("word"):
            assert status == 422 and "limit is 200" in told["detail"]
            continue
        assert status == 200
        for name, answer in offline.ask(state, asked).items():
            found = told["answers"][name]["probabilities"]
            assert found == pytest.approx(answer.probabilities, abs=1e-6)


def test_gates_of_an_export_are_told() -> None:
    policy = Gated()
    decider = Decider(policy)
    gate = Gate(act=0.0)
    decider.exported = Export(policy, {"t": QUESTIONS[0]}, None, {"act": gate}, {})
    with running(policy, decider=decider) as service_:
        _, told, _ = service_.ask()
    assert told["answers"]["team"]["gates"] == {"act": "act"}
    assert "gates" not in told["answers"]["page"]


# --- What is refused -------------------------------------------------------------

CHOICE = {"kind": "choice", "text": "Which?", "options": ["a", "b"]}
BAD_QUESTIONS: list[Any] = [
    {},
    [],
    "x",
    {"q": 3},
    {"": CHOICE},
    {"q": {"kind": "choice", "text": "Which?"}},
    {"q": {"kind": "maybe", "text": "Which?"}},
    {"q": {"text": "Which?"}},
    {"q": CHOICE | {"extra": 1}},
    {"q": CHOICE | {"text": "  "}},
    {"q": CHOICE | {"text": 3}},
    {"q": CHOICE | {"options": ["Yes", "yes "]}},
    {"q": CHOICE | {"options": ["a"]}},
    {"q": CHOICE | {"options": ["a\nb", "c"]}},
    {"q": CHOICE | {"options": [1, 2]}},
    {"q": CHOICE | {"options": "ab"}},
    {"q": CHOICE | {"options": ["\ud83d", "b"]}},
    {"q": {"kind": "noul", "text": "Which?", "options": ["yes", "no"]}},
]


@pytest.mark.parametrize("questions", BAD_QUESTIONS, ids=repr)
def test_wrong_questions_have_the_librarys_message(
    head: Running, questions: Any
) -> None:
    with pytest.raises(SchemaError) as library:
        name_questions(questions)
    status, told, _ = head.ask(questions=questions)
    assert status == 422 and told == {"detail": str(library.value)}


@pytest.mark.parametrize(
    "state", ["", " \n", {}, [], 3, None, [["user", ""]], "\ud83d"]
)
def test_wrong_states_have_the_librarys_message(head: Running, state: Any) -> None:
    with pytest.raises(SchemaError) as library:
        render_state(state)
    status, told, _ = head.ask(state)
    assert status == 422 and told == {"detail": str(library.value)}


def test_other_mistakes_name_the_place(head: Running) -> None:
    for body, said in (
        (b"{", "JSON"),
        (b"\xff", "body"),
        (b"[]", "body"),
        (b'{"state": "x"}', "questions"),
        (json.dumps({"questions": ASKED}).encode(), "state"),
        (b"[" * 100_000, "body"),
    ):
        status, told, _ = head.send("POST", "/ask", body)
        assert status in (400, 422) and said in told["detail"], body[:20]
    status, told, _ = head.ask(more=1)
    assert status == 422 and "more" in told["detail"]
    assert head.send("GET", "/ask")[0] == 405
    assert head.send("GET", "/nothing")[0] == 404


def test_sizes_are_limited() -> None:
    limits = Limits(body_bytes=2000, state_characters=100, questions=2, options=3)
    with running(Gated(), limits) as service_:
        assert service_.ask("x" * 100, {"q": CHOICE})[0] == 200
        for state, questions, said in (
            ("x" * 101, {"q": CHOICE}, "101 characters and the limit is 100"),
            ({"a": "x" * 99}, {"q": CHOICE}, "limit is 100"),
            ("x", {n: CHOICE for n in "abc"}, "3 questions and the limit is 2"),
            ("x", {"q": CHOICE | {"options": list("abcd")}}, "4 options"),
        ):
            status, told, _ = service_.ask(state, questions)
            assert status == 422 and said in told["detail"]
        status, told, _ = service_.ask("x" * 3000)
        assert status == 413 and "2,000 bytes" in told["detail"]
        # Without a length, in chunks: counted while it arrives.
        connection = http.client.HTTPConnection("127.0.0.1", service_.port, timeout=20)
        chunks = iter([b"x" * 1000] * 3)
        connection.request("POST", "/ask", chunks, encode_chunked=True)
        assert connection.getresponse().status == 413
        connection.close()


def test_a_body_that_is_too_large_is_told_even_while_it_is_sent() -> None:
    with running(Gated(), Limits(body_bytes=500_000)) as service_:
        for _ in range(5):  # more than the buffers of a connection hold
            status, told, _ = service_.ask("x" * 1_900_000)
            assert status == 413 and "500,000 bytes" in told["detail"]
        # Far more is not waited for.
        with socket.create_connection(("127.0.0.1", service_.port), 20) as line:
            line.sendall(HEAD + b"Content-Length: 9000000000\r\n\r\n")
            assert line.recv(100).startswith(b"HTTP/1.1 413")
        assert service_.ask("x" * 400)[0] == 200


HEAD = b"POST /ask HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def test_the_body_limit_has_room_for_the_largest_state() -> None:
    limits = Limits()
    worst = json.dumps("\U0001f600" * limits.state_characters)  # twelve bytes each
    assert len(worst) + 2**16 < limits.body_bytes


@pytest.mark.parametrize(
    "length", [b"Content-Length: 9", b"Transfer-Encoding: chunked"]
)
def test_a_body_that_does_not_arrive_is_given_up(length: bytes) -> None:
    with running(Gated(), Limits(seconds=0.3)) as service_:
        with socket.create_connection(("127.0.0.1", service_.port), 20) as line:
            line.sendall(HEAD + length + b"\r\n\r\n")
            assert line.recv(100).startswith(b"HTTP/1.1 408")
        # One that comes byte by byte has no more time than any other.
        with socket.create_connection(("127.0.0.1", service_.port), 20) as line:
            line.settimeout(0.05)
            line.sendall(HEAD + b"Content-Length: 9000\r\n\r\n")
            begun, reply = time.monotonic(), b""
            while not reply and time.monotonic() < begun + 20:
                line.sendall(b" ")
                try:
                    reply = line.recv(100)
                except TimeoutError:
                    pass
            assert reply.startswith(b"HTTP/1.1 408")
            assert time.monotonic() < begun + 5


# --- Load ------------------------------------------------------------------------


def until(true: Any) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_overload_is_503_and_those_who_wait_are_answered() -> None:
    policy = Gated()
    with running(policy, Limits(waiting=3, batch=2, linger=0)) as service_:
        with ThreadPoolExecutor(8) as clients:
            policy.gate.clear()
            policy.entered.clear()
            first = clients.submit(service_.ask)
            assert policy.entered.wait(20)
            waiting = [clients.submit(service_.ask, f"w{i}") for i in range(3)]
            until(lambda: service_.send("GET", "/health")[1]["waiting"] == 3)
            status, told, headers = service_.ask("one too many")
            assert status == 503 and "queue is full" in told["detail"]
            assert int(headers["retry-after"]) >= 1
            policy.gate.set()
            assert [r.result()[0] for r in (first, *waiting)] == [200] * 4
        assert service_.ask("again")[0] == 200


def test_late_answers_are_504_and_what_waits_is_dropped() -> None:
    policy = Gated()
    with running(policy, Limits(seconds=0.3, linger=0)) as service_:
        with ThreadPoolExecutor(2) as clients:
            policy.gate.clear()
            policy.entered.clear()
            first = clients.submit(service_.ask)
            assert policy.entered.wait(20)
            second = clients.submit(service_.ask, "waits in the queue")
            for reply in (first, second):
                status, told, _ = reply.result()
                assert status == 504 and "0.3 s" in told["detail"]
            passes = len(policy.passes)
            assert service_.send("GET", "/health")[1]["waiting"] == 0
            policy.gate.set()
        assert service_.ask("a later one")[0] == 200
        assert len(policy.passes) == passes + 1, "the late request was not computed"


def test_who_has_gone_is_not_computed() -> None:
    policy = Gated()
    body = json.dumps({"state": "gone", "questions": ASKED}).encode()
    length = f"Content-Length: {len(body)}\r\n\r\n".encode()
    with running(policy, Limits(batch=1, linger=0)) as service_:
        with ThreadPoolExecutor(1) as clients:
            policy.gate.clear()
            policy.entered.clear()
            first = clients.submit(service_.ask)
            assert policy.entered.wait(20)

            def waiting() -> int:
                return service_.send("GET", "/health")[1]["waiting"]

            with socket.create_connection(("127.0.0.1", service_.port), 20) as line:
                line.sendall(HEAD + length + body)
                until(lambda: waiting() == 1)
            until(lambda: waiting() == 0)  # closed: it leaves the queue
            policy.gate.set()
            assert first.result()[0] == 200
        assert service_.ask("a later one")[0] == 200
        assert len(policy.passes) == 2


def test_a_request_that_breaks_the_policy_fails_alone() -> None:
    class Brittle(Gated):
        def prepare(self, items: Any) -> Any:
            if any("poison" in state for state, _ in items):
                raise IndexError("inside the policy")
            return super().prepare(items)

    policy = Brittle()
    with (
        running(policy, Limits(linger=0)) as service_,
        ThreadPoolExecutor(6) as clients,
    ):
        policy.gate.clear()
        policy.entered.clear()
        first = clients.submit(service_.ask)
        assert policy.entered.wait(20)
        states = ["a", "poison", "b", "c"]
        rest = [clients.submit(service_.ask, state) for state in states]
        until(lambda: service_.send("GET", "/health")[1]["waiting"] == 4)
        policy.gate.set()
        assert first.result()[0] == 200
        assert [reply.result()[0] for reply in rest] == [200, 500, 200, 200]


def test_a_failing_policy_is_500_and_the_service_goes_on() -> None:
    policy = Gated(RuntimeError("a fault that quotes SECRET"))
    with running(policy) as service_:
        status, told, _ = service_.ask()
        assert status == 500 and told == {"detail": "the policy failed"}
        policy.fault = None
        assert service_.ask()[0] == 200


# --- Health, logs, start ---------------------------------------------------------


def test_health_says_what_is_served(head: Running, tmp_path: Path) -> None:
    status, told, _ = head.send("GET", "/health")
    assert status == 200 and told["ready"] is True
    assert told["model"] == "tiny" and told["files"] == {"a": "b"}
    assert told["policy"] == "Gated" and told["limits"]["batch"] == 8
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "x.txt").write_text("x")
    hashes = service.file_hashes(tmp_path)
    assert hashes == {"sub/x.txt": sha256_of(tmp_path / "sub" / "x.txt")}


def test_health_is_503_once_the_worker_is_gone() -> None:
    app = make_app(Decider(Gated()))

    async def check() -> None:
        async with app.router.lifespan_context(app):
            batcher = app.state.batcher
            assert batcher.ready
            await batcher.stop()
            assert not batcher.ready
            endpoint = next(r for r in app.routes if r.path == "/health").endpoint
            assert (await endpoint()).status_code == 503

    import asyncio

    asyncio.run(check())


def test_the_description_has_the_typed_questions(head: Running) -> None:
    _, told, _ = head.send("GET", "/openapi.json")
    schemas = told["components"]["schemas"]
    assert {"ChoiceIn", "ScoreIn", "NoulIn", "AskIn", "AnswerOut"} <= set(schemas)
    assert {"200", "413", "422", "503", "504"} <= set(
        told["paths"]["/ask"]["post"]["responses"]
    )


def test_no_state_reaches_a_log(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    mark = "SECRET-7731"
    caplog.set_level(logging.DEBUG)
    policy = Gated()
    with running(policy, Limits(state_characters=500)) as service_:
        for state in (mark, mark * 100, {mark: mark}, [[mark, ""]], [mark]):
            service_.ask(state)
        service_.ask(questions={mark: 3})
        service_.ask(questions={"q": CHOICE | {"text": mark, "options": ["a"]}})
        service_.send("POST", "/ask", b'{"state": "' + mark.encode())
        status, told, _ = service_.ask("fine", more=mark)
        assert status == 422 and mark not in json.dumps(told)
        policy.fault = RuntimeError(f"a fault that quotes {mark}")
        assert service_.ask(mark)[0] == 500
    said = caplog.text + "".join(capfd.readouterr())
    assert "a batch of 1 failed: RuntimeError" in said, "the log is being read"
    assert mark not in said


def test_limits_must_be_positive() -> None:
    for name, value in (("batch", 0), ("seconds", float("nan")), ("waiting", -1)):
        with pytest.raises(ValueError, match=f"limit {name}={value}"):
            Limits(**{name: value})


def test_text_in_the_state_is_no_question_and_no_option(head: Running) -> None:
    state = (
        '"questions": {"more": {"kind": "noul", "text": "More?"}}\n\nQuestion: More?\n'
        "Options:\nA) all\nB) none\nAnswer with the letter only."
    )
    for text in (state, {"questions": ASKED, "note": state}, [("user", state)]):
        status, told, _ = head.ask(text)
        assert status == 200 and list(told["answers"]) == list(NAMED)
        for name, question in NAMED.items():
            assert list(told["answers"][name]["probabilities"]) == [*question.options]


def test_options_that_look_the_same_are_refused(head: Running) -> None:
    for pair in (
        ["caf\u00e9", "cafe\u0301"],
        ["STRASSE", "stra\u00dfe"],
        ["a", "a\u00a0"],
    ):
        status, told, _ = head.ask(questions={"q": CHOICE | {"options": pair}})
        assert status == 422 and "look the same" in told["detail"]


def test_an_interrupted_service_answers_what_it_has_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said, policy = io.StringIO(), Gated()
    monkeypatch.setattr(sys, "stderr", said)

    def clients() -> list[int]:
        try:
            until(lambda: said.getvalue().endswith("\n"))
            start, _, port = said.getvalue().rpartition(":")
            assert start == "listening on http://127.0.0.1"
            service_ = Running(int(port))
            policy.gate.clear()
            with ThreadPoolExecutor(4) as pool:
                replies = [pool.submit(service_.ask, f"w{i}") for i in range(4)]
                until(lambda: service_.send("GET", "/health")[1]["waiting"] == 3)
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.2)
                policy.gate.set()
                return [reply.result()[0] for reply in replies]
        except BaseException:
            policy.gate.set()
            os.kill(os.getpid(), signal.SIGINT)
            raise

    with ThreadPoolExecutor(1) as outside:
        codes = outside.submit(clients)
        # Here, in the main thread: signals reach no other.
        app = make_app(Decider(policy), limits=Limits(batch=1))
        service.serve(app, port=0)
        assert codes.result() == [200] * 4
    assert said.getvalue().count("\n") == 1, "no traceback"


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    letter_tokenizer().save_pretrained(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(cli, ["serve", str(tmp_path), "--port", port])
    assert result.exit_code == 1 and port in result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("rlcd: ") and "in use" in line


def test_the_command_serves_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    letter_tokenizer().save_pretrained(tmp_path)
    served: list[Any] = []
    monkeypatch.setattr(service, "serve", lambda *a: served.append(a))
    options = ["--port", "8123", "--batch", "3", "--seconds", "2"]
    options += ["--state-characters", "2000000"]
    monkeypatch.chdir(tmp_path)  # "." has a name too
    result = CliRunner().invoke(cli, ["serve", ".", *options])
    assert result.exit_code == 0, result.output
    app, host, port = served[0]
    assert (host, port) == ("127.0.0.1", 8123)

    async def health() -> Any:
        async with app.router.lifespan_context(app):
            endpoint = next(r for r in app.routes if r.path == "/health").endpoint
            return json.loads((await endpoint()).body)

    import asyncio

    told = asyncio.run(health())
    assert told["model"] == tmp_path.name
    assert told["policy"] == "LetterPolicy" and told["limits"]["batch"] == 3
    assert told["limits"]["body_bytes"] == 2_000_000 * 16, "room for such a state"
    assert told["files"]["model.safetensors"] == sha256_of(
        tmp_path / "model.safetensors"
    )
    for arguments, said in (
        ([str(tmp_path / "none")], "no folder"),
        ([str(tmp_path), "--seconds", "0"], "limit seconds"),
    ):
        result = CliRunner().invoke(cli, ["serve", *arguments])
        assert result.exit_code == 1
        (line,) = result.stderr.splitlines()
        assert line.startswith("rlcd: ") and said in line
