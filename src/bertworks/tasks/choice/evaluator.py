"""How often the right choice is told."""

from __future__ import annotations

from ..metrics import OneOfSeveralEvaluator
from .examples import ChoiceExample


class ChoiceEvaluator(OneOfSeveralEvaluator):
    """`loss`, `accuracy`, and `majority`: that of always choosing the commonest number."""

    def shown(self, example: ChoiceExample, true: int, told: int) -> tuple[str, str, str]:
        return example.prompt, example.choices[true], example.choices[told]
