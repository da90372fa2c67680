"""What a model card says of each model: how it is used by this package, by other tools, over HTTP.

`MODEL` in the examples is the model's directory, or its name on the hub.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..settings.pooling import SPARSE_POOLINGS
from ..utils.atomic_writes import write_file
from ..utils.edits import is_edited, mark_edited, read_checksums
from ..utils.remote import is_remote
from .locate import local_directory
from .model_card import CARD, ModelCard
from .sentence_settings import SentenceSettings

PIPELINES = {
    **dict.fromkeys(("classification", "multilabel", "regression"), "text-classification"),
    "tagging": "token-classification",
    "answering": "question-answering",
    "choice": "multiple-choice",
    "retrieval": "sentence-similarity",
    "translation": "translation",
    "pretraining": "fill-mask",
}
"""The hub's names of what models of a task do."""

_CLASSES = (
    *("ForMaskedLM", "ForPreTraining", "ForSequenceClassification", "ForTokenClassification"),
    *("ForQuestionAnswering", "ForMultipleChoice", "ForNextSentencePrediction"),
)
"""The ends of transformers' classes, each of which has an `Auto` class of that end."""

_TEXT, _PAIR = "The door was open.", "It was cold outside."


def _code(value: Any) -> str:
    """Return texts, lists and mappings of texts as code of Python."""
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class SavedUse:
    """What a saved model's files say of its use.

    Attributes:
        task, settings: the task's name and settings; None for a bare encoder.
        is_user_task: whether the task is defined in a user's file.
        architecture: the class in `config.json`.
        has_own_files: whether no other tool reads all of the model: it has heads or 8-bit weights
            that only this package knows.
        mask: the mask piece, if the tokenizer has one.
        note: on how the weights are stored.
    """

    task: str | None
    settings: Mapping[str, Any]
    is_user_task: bool
    architecture: str
    sentence: SentenceSettings | None
    has_own_files: bool
    mask: str | None
    note: str = ""

    @property
    def entries(self) -> dict[str, Any]:
        """The entries of the card's front matter."""
        return {
            "library_name": self._library,
            "pipeline_tag": self._pipeline,
            "tags": ["bertworks"],
        }

    @property
    def section(self) -> str:
        """The section of the card."""
        call, route, body = self._example
        task = ', task="path/to/file.py:Class"' if self.is_user_task else ""
        option = " --task path/to/file.py:Class" if self.is_user_task else ""
        blocks = [
            "## Use",
            "`MODEL` is the folder of this file, or the model's name on the hub."
            + (f" {self.note}" if self.note else ""),
            "With [bertworks](https://pypi.org/project/bertworks):",
            f'```python\nimport bertworks as bw\n\nmodel = bw.load("MODEL"{task})\n{call}\n```',
            *self._other_tool,
            "Over HTTP:",
            f"```sh\nbertworks serve MODEL{option}\n```",
            f"```sh\ncurl localhost:8080{route} -H 'content-type: application/json' \\\n"
            f"  -d '{_code(body)}'\n```",
        ]
        return "\n\n".join(blocks) + "\n"

    @property
    def _is_causal(self) -> bool:
        return bool(self.settings.get("causal"))

    @property
    def _pipeline(self) -> str:
        if self._is_causal:
            return "text-generation"
        if self.sentence is not None and self.sentence.pooling not in SPARSE_POOLINGS:
            return "sentence-similarity"
        return PIPELINES.get(self.task or "", "feature-extraction")

    @property
    def _library(self) -> str:
        if self.has_own_files:
            return "bertworks"
        return "transformers" if self.sentence is None else "sentence-transformers"

    @property
    def _example(self) -> tuple[str, str, dict[str, Any]]:
        """A call in Python, and a route with the body of a request."""
        if self.sentence is not None:
            return self._vector_example
        if self._is_causal:
            return 'print(model.generate("The door"))', "/generate", {"inputs": "The door"}
        if self.task == "pretraining":
            text = f"The door was {self.mask}."
            return f"print(model.fill_mask({_code(text)}))", "/fill-mask", {"inputs": text}
        if self.task == "next-sentence":
            call = f"print(model.next_sentence({_code(_TEXT)}, {_code(_PAIR)}))"
            return call, "/next-sentence", {"inputs": [[_TEXT, _PAIR]]}
        if self.task in (None, "replaced-tokens", "permutation"):
            return f"print(model.embed([{_code(_TEXT)}]))", "/embed", {"inputs": [_TEXT]}
        row = self._row
        return f"print(model.predict([{_code(row)}]))", "/predict-rows", {"rows": [row]}

    @property
    def _vector_example(self) -> tuple[str, str, dict[str, Any]]:
        assert self.sentence is not None
        if self.sentence.late_interaction is not None:
            call = f"print(model.similarity({_code(_PAIR)}, [{_code(_TEXT)}]))"
            return call, "/rerank", {"query": _PAIR, "texts": [_TEXT]}
        is_sparse = self.sentence.pooling in SPARSE_POOLINGS
        route = "/embed_sparse" if is_sparse else "/embed"
        return f"print(model.embed([{_code(_TEXT)}]))", route, {"inputs": [_TEXT]}

    @property
    def _row(self) -> Any:
        """A row of the task's table: a text, a pair of texts, or columns by name."""
        settings = self.settings
        if self.task == "answering":
            return {
                settings.get("question_column") or "question": "Where is the door?",
                settings.get("context_column") or "context": _TEXT,
            }
        if self.task == "choice":
            columns = settings.get("choice_columns") or ["choices"]
            choices = [_TEXT, _PAIR]
            row = {settings.get("prompt_column") or "prompt": "She looked up."}
            if len(columns) == 1:
                return {**row, columns[0]: choices}
            return {**row, **dict.fromkeys(columns, _TEXT)}
        return [_TEXT, _PAIR] if settings.get("pair_column") else _TEXT

    @property
    def _other_tool(self) -> list[str]:
        """How transformers or sentence-transformers use the model; empty if they cannot."""
        if self.has_own_files:
            return []
        sentence = self.sentence
        if sentence is not None:
            if sentence.late_interaction is not None:
                return []
            is_sparse = sentence.pooling in SPARSE_POOLINGS
            kind = "SparseEncoder" if is_sparse else "SentenceTransformer"
            code = (
                f"from sentence_transformers import {kind}\n\n"
                f'model = {kind}("MODEL")\nprint(model.encode([{_code(_TEXT)}]))'
            )
            return ["With sentence-transformers:", f"```python\n{code}\n```"]
        kind = self._auto_class
        code = (
            f"from transformers import {kind}, AutoTokenizer\n\n"
            'tokenizer = AutoTokenizer.from_pretrained("MODEL")\n'
            f'model = {kind}.from_pretrained("MODEL")\n'
            f"print(model(**{self._tokenizer_call}))"
        )
        return ["With transformers:", f"```python\n{code}\n```"]

    @property
    def _auto_class(self) -> str:
        if self._is_causal or "LMHead" in self.architecture:
            return "AutoModelForCausalLM"
        ends = (end for end in _CLASSES if end in self.architecture)
        return f"AutoModel{next(ends, '')}"

    @property
    def _tokenizer_call(self) -> str:
        row, options = self._row, 'return_tensors="pt"'
        if self.task == "choice":
            pairs = _code([[_TEXT, _TEXT], [_TEXT, _PAIR]])
            call = f"tokenizer({pairs}, padding=True, {options})"
            return "{key: value[None] for key, value in " + call + ".items()}"
        texts = list(row.values()) if isinstance(row, dict) else [row]
        texts = row if isinstance(row, list) else texts
        if self.task == "pretraining" and not self._is_causal:
            texts = [f"The door was {self.mask}."]
        return f"tokenizer({', '.join(map(_code, texts))}, {options})"


def read_card(directory: Path) -> ModelCard | None:
    """Read the card in a directory; None if there is none. Line ends become those of Unix."""
    file = directory / CARD
    if not file.is_file():
        return None
    text = file.read_bytes().decode("utf-8-sig", "surrogateescape")
    return ModelCard(text.replace("\r\n", "\n"))


def load_card(name: str | Path, directory: Path) -> ModelCard | None:
    """Return the card of a model that is loaded from a directory or the hub.

    Args:
        name: what the user gave.
        directory: where the model's files are.
    """
    card = read_card(directory)
    if local_directory(name) is not None or is_remote(name):
        return card
    return ModelCard("" if card is None else card.text, hub_name=str(name))


def write_card(
    directory: Path,
    target: Path,
    card: ModelCard | None,
    entries: Mapping[str, Any],
    section: str,
) -> None:
    """Write a model's card into a new directory.

    Args:
        target: what the directory becomes. If a model is there, what the user wrote in its card
            stays; a card of which nothing was written here stays as it is.
        card: the model's so far.
        entries, section: of the model's use, as in `SavedUse`.
    """
    existing = read_card(target)
    title = target.resolve().name
    candidate = (card or ModelCard()).update(entries, {"use": section}).with_title(title)
    new = candidate
    if existing is not None and is_edited(existing.text):
        new = existing
        if read_checksums(existing.text) is not None:
            new = ModelCard(mark_edited(existing.update_from(candidate).text))
    write_file(directory / CARD, new.text.encode("utf-8", "surrogateescape"))
