"""A small HTTP service: typed questions in, typed answers out, with limits.

``POST /ask`` answers questions about one state, ``GET /health`` says what is served.
Requests that wait are answered in one batch; a full queue answers 503 at once instead
of growing. What a state says is never written to a log.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import socket
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import fastapi
import uvicorn
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, model_validator

import rlcd_core
from rlcd_core.data.manifest import sha256_of
from rlcd_core.decider import Decider
from rlcd_core.extra.batching import Request, answer_batch, answer_dict, gates_for
from rlcd_core.policy.base import PolicyError
from rlcd_core.schema import Question, SchemaError, name_questions, render_state

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """What one request may ask for, and how many may wait.

    Attributes
    ----------
    body_bytes : int
        Largest request body; more is 413. It leaves room for the largest state, of
        which JSON may write a character in twelve bytes.
    state_characters, questions, options : int
        Largest state as text, most questions of a request, most options of a
        question; more is 422.
    seconds : float
        For the body to arrive, later is 408, and from there to the answer, later is
        504. A pass that has begun is not broken off.
    waiting : int
        Requests in the queue; one more is 503 with ``Retry-After``.
    batch : int
        Requests answered together, at most.
    linger : float
        Seconds that a free worker waits for company.
    """

    body_bytes: int = 2**20
    state_characters: int = 50_000
    questions: int = 16
    options: int = 64
    seconds: float = 30.0
    waiting: int = 64
    batch: int = 8
    linger: float = 0.002

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not (0 if name == "linger" else 1e-3) <= value < math.inf:  # nor NaN
                raise ValueError(f"limit {name}={value}: pass a positive number")


class Busy(RuntimeError):
    """The queue is full.

    Attributes
    ----------
    seconds : float
        How long the requests that wait will take, by those before.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the queue is full; try again in {math.ceil(seconds)} s")
        self.seconds = seconds


class Failed(RuntimeError):
    """The policy failed on a request, by a fault of its own."""

    def __init__(self) -> None:
        # What it said may quote a state.
        super().__init__("the policy failed")


# --- What goes in and out --------------------------------------------------------


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ChoiceIn(_Strict):
    """A question with unordered options."""

    kind: Literal["choice"]
    text: str
    options: list[str]


class ScoreIn(_Strict):
    """A question whose options are ordered levels, lowest first."""

    kind: Literal["score"]
    text: str
    options: list[str]


class NoulIn(_Strict):
    """A yes-or-no question."""

    kind: Literal["noul"]
    text: str
    options: list[str] = ["true", "false"]


class TurnIn(_Strict):
    """One turn of a conversation."""

    role: str
    content: str


QuestionIn = Annotated[ChoiceIn | ScoreIn | NoulIn, Field(discriminator="kind")]


class AskIn(_Strict):
    """A state (text, fields, or turns) and named questions on it."""

    state: str | dict[str, Any] | list[TurnIn | tuple[str, str]]
    questions: dict[str, QuestionIn]

    @model_validator(mode="before")
    @classmethod
    def _as_the_library(cls, value: Any) -> Any:
        # Before pydantic looks: the same messages as everywhere else.
        if isinstance(value, dict):
            if "questions" in value:
                name_questions(value["questions"])
            if "state" in value:
                render_state(value["state"])
        return value


class AnswerOut(BaseModel):
    """One answer; ``score`` is there for a score only, ``gates`` where an export
    brings gates for the question."""

    kind: Literal["choice", "score", "noul"]
    question: str
    value: bool | str
    probabilities: dict[str, float]
    confidence: float
    entropy_confidence: float
    score: float | None = None
    gates: dict[str, str] | None = None


class AskOut(BaseModel):
    """Answers under the names of their questions."""

    answers: dict[str, AnswerOut]


class HealthOut(BaseModel):
    """What is served, and whether it can answer."""

    ready: bool
    policy: str
    model: str
    files: dict[str, str]
    version: str
    waiting: int
    limits: dict[str, float]


class ErrorOut(BaseModel):
    """What is wrong, in one sentence."""

    detail: str


class _Json(JSONResponse):
    """JSON in ASCII: half a character in a name cannot break the reply."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


# --- The queue -------------------------------------------------------------------


@dataclass(eq=False)
class _Waiting:
    state: Any
    questions: list[Question]
    reply: asyncio.Future[Any]


def _answer_each(decider: Decider, requests: Sequence[Request]) -> list[Any]:
    """As `answer_batch`; a request that breaks the policy fails alone."""
    try:
        return answer_batch(decider, requests)
    except Exception as error:
        log.error("a batch of %d failed: %s", len(requests), type(error).__name__)
        if len(requests) == 1:
            return [Failed()]
        return [reply for one in requests for reply in _answer_each(decider, [one])]


class Batcher:
    """Answers requests that wait together in one batch, in one thread.

    Parameters
    ----------
    decider : Decider
    limits : Limits
    """

    def __init__(self, decider: Decider, limits: Limits) -> None:
        self.decider, self.limits = decider, limits
        self._queue: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rlcd-ask")
        self._each = 0.1  # seconds a request, a moving mean
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Requests in the queue, those in work not counted."""
        return len(self._queue)

    @property
    def ready(self) -> bool:
        """Whether the worker runs."""
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Begin to work; call it inside the event loop."""
        self._task = asyncio.get_running_loop().create_task(self._work())

    async def stop(self) -> None:
        """Stop; requests that still wait are cancelled."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for one in self._queue:
            one.reply.cancel()
        self._queue.clear()
        self._thread.shutdown(wait=False)

    async def ask(self, state: Any, questions: Mapping[str, Question]) -> list[Any]:
        """Answers in the order of the questions.

        Raises
        ------
        Busy
            The queue is full.
        TimeoutError
            No answer within the limit.
        SchemaError, PolicyError, Failed
            The request cannot be answered.
        """
        if len(self._queue) >= self.limits.waiting:
            raise Busy(self._each * len(self._queue))
        reply = asyncio.get_running_loop().create_future()
        one = _Waiting(state, list(questions.values()), reply)
        self._queue.append(one)
        self._arrived.set()
        try:
            return await asyncio.wait_for(reply, self.limits.seconds)
        finally:
            if one in self._queue:  # late, or nobody waits any more
                self._queue.remove(one)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            if len(self._queue) < self.limits.batch and self.limits.linger:
                await asyncio.sleep(self.limits.linger)
            batch = []
            while self._queue and len(batch) < self.limits.batch:
                one = self._queue.popleft()
                if not one.reply.done():
                    batch.append(one)
            if not self._queue:
                self._arrived.clear()
            if not batch:
                continue
            begun = time.perf_counter()
            asked = [(one.state, one.questions) for one in batch]
            replies = await loop.run_in_executor(
                self._thread, _answer_each, self.decider, asked
            )
            taken = (time.perf_counter() - begun) / len(batch)
            self._each += 0.2 * (taken - self._each)
            for one, reply in zip(batch, replies, strict=True):
                if one.reply.done():
                    continue
                if isinstance(reply, Exception):
                    one.reply.set_exception(reply)
                else:
                    one.reply.set_result(reply)


# --- The application -------------------------------------------------------------


class _BodyLimit:
    """413 for a body over the limit, whether or not it says its length; 408 for one
    that does not arrive in time."""

    def __init__(self, app: Any, limit: int, seconds: float) -> None:
        self.app, self.limit, self.seconds = app, limit, seconds

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        told = dict(scope["headers"]).get(b"content-length", b"0")
        size, body, status = int(told) if told.isdigit() else 0, bytearray(), 200
        if size > self.limit:
            status = 413
        # A body a little over the limit is read all the same, and thrown away: one
        # that is left unread breaks the connection before the client hears why.
        most, seen, more = 4 * self.limit, 0, size <= 4 * self.limit
        try:
            async with asyncio.timeout(self.seconds):
                while more and seen <= most:
                    message = await receive()
                    if message["type"] != "http.request":
                        return  # the client has gone
                    seen += len(message.get("body", b""))
                    if seen > self.limit:
                        status = 413
                        body.clear()
                    else:
                        body += message.get("body", b"")
                    more = message.get("more_body", False)
        except TimeoutError:
            status = 408
        if status != 200:
            detail = f"the body is over the limit of {self.limit:,} bytes"
            if status == 408:
                detail = f"the body did not arrive within {self.seconds:g} s"
            reply = _Json({"detail": detail}, status, {"Connection": "close"})
            await reply(scope, receive, send)
            return
        given = False

        async def again() -> Any:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        await self.app(scope, again, send)


async def _unless_gone(request: fastapi.Request, work: Coroutine[Any, Any, Any]) -> Any:
    """What `work` gives, or None if the client goes before; it is then cancelled."""
    answer = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.receive())  # the body has been read
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else None
    finally:
        gone.cancel()
        answer.cancel()


def _message(error: RequestValidationError) -> str:
    """The library's own message, or pydantic's with the place; never the input."""
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, SchemaError):
        return str(cause)
    place = ".".join(str(part) for part in first["loc"] if part != "body")
    return f"{place or 'body'}: {first['msg']}"


def _check(asked: AskIn, limits: Limits) -> tuple[Any, dict[str, Question]]:
    """State and questions as the library takes them, within the limits."""
    given = asked.model_dump()
    state, questions = given["state"], name_questions(given["questions"])
    length = len(render_state(state))
    if length > limits.state_characters:
        raise SchemaError(
            f"state: {length:,} characters and the limit is "
            f"{limits.state_characters:,}; shorten it"
        )
    if len(questions) > limits.questions:
        raise SchemaError(
            f"{len(questions)} questions and the limit is {limits.questions}; send "
            "several requests"
        )
    for name, question in questions.items():
        if len(question.options) > limits.options:
            raise SchemaError(
                f"{name}: {len(question.options)} options and the limit is "
                f"{limits.options}"
            )
    return state, questions


def file_hashes(directory: Path | str) -> dict[str, str]:
    """SHA-256 of each file of a model's folder, by its path in it."""
    root = Path(directory)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): sha256_of(path) for path in files}


def make_app(
    decider: Decider,
    *,
    limits: Limits | None = None,
    model: str = "",
    files: Mapping[str, str] | None = None,
) -> fastapi.FastAPI:
    """The service over a decider.

    Parameters
    ----------
    limits : Limits, optional
    model : str
        Name that ``/health`` tells.
    files : mapping of str to str, optional
        Hashes that ``/health`` tells, as `file_hashes` gives them.
    """
    limits = limits or Limits()
    name = type(decider.policy).__name__

    @contextlib.asynccontextmanager
    async def life(app: fastapi.FastAPI) -> AsyncIterator[None]:
        app.state.batcher = Batcher(decider, limits)
        app.state.batcher.start()
        yield
        await app.state.batcher.stop()

    app = fastapi.FastAPI(
        title="rlcd",
        version=rlcd_core.__version__,
        lifespan=life,
        docs_url=None,  # these pages load scripts from other hosts
        redoc_url=None,
    )
    app.state.limits = limits
    app.add_middleware(_BodyLimit, limit=limits.body_bytes, seconds=limits.seconds)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Any, error: RequestValidationError) -> JSONResponse:
        return _Json({"detail": _message(error)}, 422)

    @app.exception_handler(SchemaError)
    @app.exception_handler(PolicyError)
    async def refused(_: Any, error: Exception) -> JSONResponse:
        return _Json({"detail": str(error)}, 422)

    @app.exception_handler(Busy)
    async def busy(_: Any, error: Busy) -> JSONResponse:
        seconds = str(max(1, math.ceil(error.seconds)))
        return _Json({"detail": str(error)}, 503, {"Retry-After": seconds})

    @app.exception_handler(Failed)
    async def failed(_: Any, error: Failed) -> JSONResponse:
        return _Json({"detail": str(error)}, 500)

    @app.exception_handler(TimeoutError)
    async def late(_: Any, __: Exception) -> JSONResponse:
        detail = f"no answer within {limits.seconds:g} s"
        return _Json({"detail": detail}, 504)

    failures = {
        code: {"model": ErrorOut, "description": why}
        for code, why in (
            (408, "The body did not arrive in time"),
            (413, "The body is too large"),
            (422, "The request cannot be answered"),
            (500, "The policy failed"),
            (503, "Too many requests wait"),
            (504, "Too slow"),
        )
    }

    @app.post("/ask", response_model=AskOut, responses=failures)
    async def ask(asked: AskIn, request: fastapi.Request) -> JSONResponse:
        """Answer named questions about one state."""
        state, questions = _check(asked, limits)
        work = app.state.batcher.ask(state, questions)
        answers = await _unless_gone(request, work)
        if answers is None:
            return _Json({"detail": "the client has gone"}, 499)  # nobody reads it
        gates = gates_for(decider, questions)
        told = {
            name: answer_dict(answer, gates.get(name))
            for name, answer in zip(questions, answers, strict=True)
        }
        return _Json({"answers": told})

    @app.get("/health", response_model=HealthOut)
    async def health() -> JSONResponse:
        """Say what is served, and whether it can answer."""
        batcher = app.state.batcher
        told = HealthOut(
            ready=batcher.ready,
            policy=name,
            model=model,
            files=dict(files or {}),
            version=rlcd_core.__version__,
            waiting=batcher.waiting,
            limits=asdict(limits),
        )
        return _Json(told.model_dump(), 200 if told.ready else 503)

    return app


def serve(app: fastapi.FastAPI, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serve until interrupted; requests under way are still answered.

    Only the loopback address by default: the service knows no users and no encryption,
    so put it behind something that does. Port 0 takes a free one. Raises `OSError` if
    the address is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as place:
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{place.getsockname()[1]}"
        print(f"listening on {address}", file=sys.stderr, flush=True)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            limit_concurrency=512,  # connections; one that says nothing holds memory
            timeout_graceful_shutdown=math.ceil(2 * app.state.limits.seconds),
        )
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[place])
