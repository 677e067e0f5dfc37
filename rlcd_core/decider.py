"""Ask typed questions about a state, get typed answers with probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rlcd_core.policy.base import predict
from rlcd_core.policy.letter import LetterPolicy
from rlcd_core.schema import (
    Answer,
    Question,
    SchemaError,
    make_answer,
    name_questions,
    questions_from_schema,
    render_state,
)


class Decider:
    """Typed answers from any policy.

    Parameters
    ----------
    policy : Policy
        Anything with `prepare` and `log_probs`. Where it also has `share` and
        `shared_log_probs`, the state of several questions is read once.
    batch_size : int
        Prompts a forward pass where nothing is shared.
    pass_tokens : int
        What one more forward pass costs, in tokens, for the cost rule. On a CPU a pass
        of a 30-layer model costs about as much as 16 tokens; on a GPU, where a short
        pass is all launches, set a few hundred.

    Examples
    --------
    >>> from rlcd_core.policy import TabularPolicy
    >>> from rlcd_core.schema import Noul
    >>> question = Noul("Page someone?")
    >>> decider = Decider(TabularPolicy([("All servers are down.", question)]))
    >>> decider.ask("All servers are down.", [question])[0].probabilities
    {'true': 0.5, 'false': 0.5}
    """

    def __init__(
        self, policy: Any, *, batch_size: int = 16, pass_tokens: int = 16
    ) -> None:
        self.policy = policy.eval() if isinstance(policy, torch.nn.Module) else policy
        self.batch_size = batch_size
        self.pass_tokens = pass_tokens

    @classmethod
    def load(cls, directory: Path | str | None = None, **options: Any) -> Decider:
        """Read options by their letters from a causal language model.

        Parameters
        ----------
        directory : path, optional
            Folder of safetensors; default the packaged SmolLM2-135M-Instruct, which
            has not been trained to decide.
        **options
            As for `LetterPolicy.load`.
        """
        return cls(LetterPolicy.load(directory, **options))

    def ask(
        self, state: Any, questions: Sequence[Question] | Mapping[str, Any]
    ) -> list[Answer] | dict[str, Answer]:
        """Answer questions about one state, each as if it were asked alone.

        Parameters
        ----------
        state : str, mapping or list of turns
            As `rlcd_core.schema.render_state` takes it.
        questions : sequence of Question, one Question, or mapping
            A mapping is a JSON schema if it says ``"type": "object"`` and has
            ``"properties"``, else names to questions.

        Returns
        -------
        list of Answer, or dict of str to Answer
            In the order asked; a dict if the questions had names.

        Raises
        ------
        SchemaError
            No question, an invalid one, or an empty state.
        PolicyError
            The policy cannot read a prompt: too long, too many options, NaN logits.
        """
        if isinstance(questions, Mapping):
            named = (
                questions_from_schema(questions)
                if questions.get("type") == "object" and "properties" in questions
                else name_questions(questions)
            )
            answers = self.ask(state, list(named.values()))
            return dict(zip(named, answers, strict=True))
        if isinstance(questions, Question):
            questions = [questions]
        questions = list(questions or ())
        for question in questions:
            if not isinstance(question, Question):
                raise SchemaError(
                    f"{question!r} is no question; pass a Choice, Score or Noul"
                )
        if not questions:
            raise SchemaError("no question given; ask at least one")
        render_state(state)  # an empty state is named before anything is computed
        rows = self.probabilities(state, questions)
        return [
            make_answer(question, row[: len(question.options)])
            for question, row in zip(questions, rows, strict=True)
        ]

    def ask_many(
        self, requests: Iterable[tuple[Any, Sequence[Question] | Mapping[str, Any]]]
    ) -> Iterator[list[Answer] | dict[str, Answer]]:
        """Answer (state, questions) pairs one after the other, as they are asked for.

        Nothing is kept from one pair to the next, so that the memory does not grow.
        """
        for state, questions in requests:
            yield self.ask(state, questions)

    def probabilities(
        self, state: Any, questions: Sequence[Question]
    ) -> list[list[float]]:
        """One row of probabilities a question, padded with zeros to the longest.

        The state is read once where the policy can share it and the cost rule says
        so: m prompts of S + q tokens against S + m q tokens and one more pass. One
        question always takes the plain path.
        """
        shared = None
        if len(questions) > 1 and hasattr(self.policy, "share"):
            shared = self.policy.share(state, questions)
        if shared is not None:
            saved = (len(questions) - 1) * len(shared.prefix)
            if saved > self.pass_tokens:
                with torch.inference_mode():
                    return self.policy.shared_log_probs(shared).exp().tolist()
        prepared = self.policy.prepare([(state, question) for question in questions])
        return predict(self.policy, prepared, batch_size=self.batch_size).tolist()
