"""How a sentence encoder computes the vector of a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic import Field

from ..settings.base import Settings
from ..settings.literals import Combine, SimilarityFunction
from ..settings.pooling import NO_POOLING, SPARSE_POOLINGS, SentencePooling
from .late_interaction import LateInteractionSettings
from .sentence_modules import ModuleFiles

CONFIG = "config_sentence_transformers.json"
PromptRole = Literal["text", "query", "document"]
_ROLES: Mapping[PromptRole, tuple[str, ...]] = {
    "text": (),
    "query": ("query",),
    "document": ("document", "passage", "corpus"),
}


class SentenceSettings(Settings):
    """How a sentence encoder computes the vector of a text."""

    pooling: SentencePooling = "mean"
    layers: tuple[int, ...] = (-1,)
    combine: Combine = "concat"
    layer_weights: tuple[float, ...] | None = None
    include_prompt: bool = Field(True, description="whether pooling includes the prompt's tokens")
    normalize: bool = Field(False, description="whether vectors have length 1")
    max_seq_length: int | None = Field(None, ge=1, description="the most tokens of a text")
    late_interaction: LateInteractionSettings | None = None
    entries: dict[str, Any] = Field({}, description=f"the content of {CONFIG}")

    def prompt(self, role: PromptRole = "text") -> str:
        """Return the prefix of each text, chosen as sentence-transformers does.

        Args:
            role: queries and documents may have separate prompts; otherwise the default prompt
                is used, if there is one.
        """
        name = self.prompt_name(role)
        return "" if name is None else self.entries["prompts"][name]

    def prompt_name(self, role: PromptRole = "text") -> str | None:
        """Return the name of the prompt of `prompt`; None if there is none."""
        prompts: Mapping[str, str] = self.entries.get("prompts") or {}
        names = (name for name in _ROLES[role] if name in prompts)
        return next(names, self.entries.get("default_prompt_name"))

    @property
    def is_dense(self) -> bool:
        """Whether a text has one dense vector."""
        return self.pooling not in (*SPARSE_POOLINGS, NO_POOLING)

    def embed_defaults(self, *, is_query: bool = False) -> dict[str, Any]:
        """The settings of `embed` that differ from their usual defaults."""
        values = self.model_dump(exclude={"entries", "late_interaction"}, exclude_defaults=True)
        late = self.late_interaction
        role: PromptRole = "query" if is_query else "text"
        if role == "text" and late is not None and late.layout == "multi-vector":
            role = "document"  # whose prompts are parts of documents' form
        prompt = self.prompt(role)
        if self.dimensions is not None:
            values["dimensions"] = self.dimensions
        return {**values, "prompt": prompt} if prompt else values

    @property
    def dimensions(self) -> int | None:
        """The length to which vectors are shortened, or None: `truncate_dim` of the files.

        As in sentence-transformers, it holds for dense vectors of texts only.
        """
        is_dense = self.late_interaction is None and self.pooling not in SPARSE_POOLINGS
        return self.entries.get("truncate_dim") if is_dense else None

    @property
    def similarity_function(self) -> SimilarityFunction:
        """The function that compares vectors; if the files name none, the cosine, or the inner
        product of sparse ones; MaxSim for late interaction."""
        if self.late_interaction is not None:
            return "maxsim"
        usual: SimilarityFunction = "dot" if self.pooling in SPARSE_POOLINGS else "cosine"
        function: SimilarityFunction = self.entries.get("similarity_fn_name") or usual
        return function


class SentenceEncoder(NamedTuple):
    """What a sentence encoder's files define besides the transformer.

    Attributes:
        modules: those between pooling and a normalisation at the end; None if there are none.
    """

    settings: SentenceSettings
    modules: ModuleFiles | None
