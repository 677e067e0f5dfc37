"""Ask typed questions about a state, get typed answers with probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from rlcd_core.export import Export, is_export, load_export
from rlcd_core.joint import Joint, JointAnswers, Rule
from rlcd_core.policy.base import PolicyError, evaluating
from rlcd_core.policy.letter import LetterPolicy, warn_of_mass
from rlcd_core.policy.passes import CostRule, Plan, plan, state_log_probs
from rlcd_core.schema import (
    Answer,
    Question,
    SchemaError,
    make_answer,
    questions_of,
    render_state,
)


class Decider:
    """Typed answers from any policy.

    Parameters
    ----------
    policy : Policy
        Anything with `prepare` and `log_probs`. Where it also has `share`, the state
        of several questions is read once.
    batch_size : int
        Prompts a forward pass where nothing is shared.
    rule : CostRule
        Chooses the way in which several questions are read; its docstring says how.
        On a GPU, where a short pass is all launches, pass one with ``pass_tokens`` of
        a few hundred.
    least_mass : float
        Warn once, at the first answer, if the labels of a letter policy together have
        less than this share of the vocabulary's probability: the model then hardly
        means to answer with a label, and what is renormalised is noise. 0 for a
        policy that was trained on the labels alone, which leaves their mass free.

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
        self,
        policy: Any,
        *,
        batch_size: int = 16,
        rule: CostRule | None = None,
        least_mass: float = 0.01,
    ) -> None:
        if batch_size < 1:
            raise PolicyError(f"batch_size={batch_size}: pass at least 1")
        self.policy = policy.eval() if isinstance(policy, torch.nn.Module) else policy
        self.batch_size = batch_size
        self.rule = CostRule() if rule is None else rule
        self.least_mass = least_mass
        self._weighed = False
        self.exported: Export | None = None

    @classmethod
    def load(cls, directory: Path | str | None = None, **options: Any) -> Decider:
        """Load an export, or read options by their letters from a language model.

        Parameters
        ----------
        directory : path, optional
            Folder that `rlcd_core.export` wrote (what came with the policy, such as
            gates, is then in `exported`), or a causal language model in safetensors;
            default the packaged SmolLM2-135M-Instruct, which has not been trained to
            decide.
        **options
            Of a language model, as for `LetterPolicy.load`; an export holds its own.
        """
        if directory is not None and is_export(directory):
            if options:
                raise TypeError(f"{directory} is an export: leave out {[*options]}")
            exported = load_export(directory)
            decider = cls(exported.policy, least_mass=0.0)
            decider.exported = exported
            return decider
        return cls(LetterPolicy.load(directory, **options))

    def ask(
        self,
        state: Any,
        questions: Sequence[Question] | Mapping[str, Any],
        *,
        rules: Iterable[Rule] | None = None,
    ) -> list[Answer] | dict[str, Answer] | JointAnswers:
        """Answer questions about one state, each as if it were asked alone.

        Parameters
        ----------
        state : str, mapping or list of turns
            As `rlcd_core.schema.render_state` takes it.
        questions : sequence of Question, one Question, or mapping
            A mapping is a JSON schema if it says ``"type": "object"`` and has
            ``"properties"``, else names to questions.
        rules : iterable of Rule, optional
            What the named answers must agree on (`rlcd_core.joint`).

        Returns
        -------
        list of Answer, dict of str to Answer, or JointAnswers
            In the order asked; a dict if the questions had names. With rules also a
            mapping of names to answers, with the assignment that keeps the rules.

        Raises
        ------
        SchemaError
            No question, an invalid one, or an empty state; `JointError`: rules that
            fit neither the questions nor each other.
        PolicyError
            The policy cannot read a prompt: too long, too many options, NaN logits.
        """
        named: dict[str, Question] | None = None
        joint: Joint | None = None
        if isinstance(questions, Mapping):
            named = questions_of(questions)
            # Rules are checked before anything is computed.
            joint = None if rules is None else Joint(named, rules)
            questions = list(named.values())
        elif rules is not None:
            raise SchemaError(
                "rules speak of fields by name; pass the questions as a mapping of "
                "names to questions, or as a JSON schema"
            )
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
        answers = [
            make_answer(question, row[: len(question.options)])
            for question, row in zip(questions, rows, strict=True)
        ]
        if named is None:
            return answers
        by_name = dict(zip(named, answers, strict=True))
        return by_name if joint is None else joint.answer(by_name)

    def probabilities(
        self, state: Any, questions: Sequence[Question]
    ) -> list[list[float]]:
        """One row of probabilities a question, padded with zeros to the longest.

        The state is read once where the policy can share it and the cost rule says
        so; `plan` tells which way a call takes. One question in one order always takes
        the plain path.
        """
        if self._weighed or self.least_mass <= 0:
            return self._rows(state, questions)
        rows, masses = self._weigh(state, questions)
        self._weighed = True
        if masses:
            warn_of_mass(float(torch.cat(masses).mean()), self.least_mass, 4)
        return rows

    def plan(self, state: Any, questions: Sequence[Question]) -> Plan:
        """Which way `probabilities` reads these questions, and what each would cost.

        Examples
        --------
        >>> from rlcd_core.policy import TabularPolicy
        >>> from rlcd_core.schema import Noul
        >>> item = ("All servers are down.", Noul("Page someone?"))
        >>> Decider(TabularPolicy([item])).plan(item[0], [item[1]]).way
        'plain'
        """
        return plan(self.policy, state, questions, self.rule, self.batch_size)

    def label_mass(self, state: Any, questions: Sequence[Question]) -> float:
        """Probability that the full vocabulary gives to the declared labels, in [0, 1].

        The mean over the prompts that are read (with averaging, one for each order).
        Near 1, the model means to answer with a label; near 0 the answers are what
        renormalising leaves of noise.

        Raises
        ------
        PolicyError
            The policy reads no labels.
        """
        _, masses = self._weigh(state, questions)
        if not masses:
            raise PolicyError(
                f"{type(self.policy).__name__} reads no labels, so that they have no "
                "mass: ask it of a decider over a letter policy."
            )
        return float(torch.cat(masses).mean())

    def _weigh(
        self, state: Any, questions: Sequence[Question]
    ) -> tuple[list[list[float]], list[torch.Tensor]]:
        """Probabilities, and the label masses seen by the letter policies inside."""
        parts = getattr(self.policy, "modules", tuple)()
        readers = [part for part in parts if isinstance(part, LetterPolicy)]
        with ExitStack() as stack:
            kept = [stack.enter_context(reader.weighing()) for reader in readers]
            rows = self._rows(state, questions)
        return rows, [mass for masses in kept for mass in masses]

    def _rows(self, state: Any, questions: Sequence[Question]) -> list[list[float]]:
        with evaluating(self.policy):
            log_p = state_log_probs(
                self.policy, state, questions, self.rule, self.batch_size
            )
        return log_p.float().exp().tolist()
