"""How often the right choice is told."""

from __future__ import annotations

from ..example import LabelledExample
from ..metrics import OneOfSeveralEvaluator


class ChoiceEvaluator(OneOfSeveralEvaluator):
    """`loss`, `accuracy`, and `majority`: that of always choosing the commonest number."""

    def shown(self, example: LabelledExample, true: int, told: int) -> tuple[str, str, str]:
        prompt, *choices = example.texts
        return prompt, choices[true], choices[told]
