"""How a question becomes the text that a model continues.

The default is lm-evaluation-harness's GSM8K prompt (`gsm8k.yaml`, version 3): `Question: …`, newline, `Answer:`; worked
examples before it in the same form, a blank line apart.
"""

import hashlib
from dataclasses import dataclass

from scalerlt.errors import UserError
from scalerlt.tasks.problem import Problem

DEFAULT_TEMPLATE = "Question: {question}\nAnswer:"
_PLACEHOLDER = "{question}"


@dataclass(frozen=True)
class Prompt:
    """A template with exactly one `{question}`, other braces standing for themselves, and worked examples.

    Raises:
        UserError: the template holds `{question}` not at all or more than once.
    """

    template: str = DEFAULT_TEMPLATE
    examples: tuple[Problem, ...] = ()

    def __post_init__(self) -> None:
        found = self.template.count(_PLACEHOLDER)
        if found != 1:
            raise UserError(f"prompt template {self.template!r} holds {{question}} {found} times; it must once")

    def render(self, question: str) -> str:
        """The text before the model's answer: examples, then the question."""
        before, after = self.template.split(_PLACEHOLDER)
        worked = [f"{before}{example.question}{after} {example.answer}\n\n" for example in self.examples]
        return f"{''.join(worked)}{before}{question}{after}"


def prompt_digest(prompt: Prompt) -> str:
    """SHA-256 (hex) of all that surrounds a question, for the identity of a run: prompts that render alike share it."""
    return hashlib.sha256(prompt.render(_PLACEHOLDER).encode()).hexdigest()
