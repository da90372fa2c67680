"""Token vectors for late interaction (ColBERT): a matrix for each text.

    query:    [CLS] [Q] tokens [SEP] [MASK] … up to a fixed length ─┐
    document: [CLS] [D] tokens [SEP], without punctuation ──────────┴─► a row of length 1 each

`tasks/retrieval/late_interaction.py` writes the texts.

Two texts are compared by MaxSim: the sum over the query's rows of the largest inner product with a
row of the document. Source: Khattab and Zaharia (2020), "ColBERT", §3.2 and §3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from ..checkpoints.late_interaction import LateInteractionSettings
from ..errors import SettingsError, row_name
from ..nn.encoder import Encoder, HasEncoder
from ..nn.vector_modules import VectorModules
from ..packed import Padded
from ..tasks.retrieval.late_interaction import TextForm
from ..text.encoding import TokenIds
from ..text.tokenizer import Tokenizer
from .features import NetworkEmbedder
from .frozen_network import frozen_form, inference
from .network_runner import check_finite
from .settings import EmbedSettings, EngineSettings
from .text_embedding import EncodedText

Matrix = NDArray[np.float32]


class LateInteractionEmbedder(NetworkEmbedder):
    """Computes a matrix of each text, float32 `[tokens, width]`; rows mostly have length 1.

    Args:
        modules: the maps from an encoder's token vector to a row.
        late_interaction: how queries and documents are written.

    Raises:
        SettingsError: a setting is for other vectors, or a prefix is not a piece.
    """

    def __init__(
        self,
        network: HasEncoder,
        tokenizer: Tokenizer,
        settings: EmbedSettings,
        engine: EngineSettings,
        modules: VectorModules,
        late_interaction: LateInteractionSettings,
    ) -> None:
        super().__init__(network, tokenizer, settings, engine)
        if not self.is_of_last:
            raise SettingsError("late interaction uses only the last layer")
        if self.settings.dimensions is not None:
            raise SettingsError("dimensions: the matrices of late interaction are not shortened")
        if self.settings.quantization != "none":
            raise SettingsError("quantization: the matrices of late interaction are not quantized")
        if not self.settings.include_prompt:
            raise SettingsError("include_prompt=false: late interaction includes the prompt")
        self.modules, self.late_interaction = modules, late_interaction
        self._width = modules.output_width(self.config.hidden_size)
        self.is_query = settings.is_query
        own = late_interaction
        self._form = TextForm(tokenizer, own)
        length = own.query_length if self.is_query else own.document_length
        length = self.limit if length is None else min(self.limit, length)
        self._filled_length = length
        if not (self._expands and own.keeps_long_queries):
            self.limit = length

    def provenance(self) -> dict[str, Any]:
        return {**self.late_interaction.model_dump(mode="json"), **super().provenance()}

    @property
    def width(self) -> int:
        """The length of a row."""
        return self._width

    @property
    def _expands(self) -> bool:
        return self.is_query and self.late_interaction.expands_queries

    def _tokenize(self, texts: Sequence[Any], **options: Any) -> Sequence[TokenIds]:
        """Return the ids of texts, with the prefix of queries or documents after `[CLS]`."""
        return self._form.encode(texts, **options, is_query=self.is_query)

    def vectors(
        self,
        texts: Sequence[EncodedText],
        place: Callable[[int], str] = row_name,
        progress: Callable[[int], None] | None = None,
    ) -> list[Matrix]:
        result: dict[int, Matrix] = {}
        assert self.modules is not None
        modules = frozen_form(self.modules, "fp32", self.engine.deterministic)
        with inference(self.network, self.engine) as form:
            for part, hidden in self._hidden_states(form.encoder, texts):
                rows = modules(torch.cat(hidden).float())
                if self.late_interaction.normalize:
                    rows = F.normalize(rows, dim=-1)
                edges = np.cumsum([0, *map(len, hidden)]).tolist()
                for text, start, end in zip(part, edges, edges[1:], strict=False):
                    matrix = rows[start:end]
                    check_finite(matrix, lambda _: place(text.index))  # noqa: B023  called in this turn
                    result[text.index] = self._kept_rows(text, matrix.cpu().numpy())
                if progress is not None:
                    progress(len(result))
        return [result[index] for index in range(len(texts))]

    def _kept_rows(self, text: EncodedText, matrix: Matrix) -> Matrix:
        """Leave out a document's punctuation."""
        if self.is_query:
            return matrix
        rows: Matrix = matrix[~np.isin(text.encoding.input_ids, self._form.skipped_ids)]
        return rows

    def _hidden_states(
        self, encoder: Encoder, texts: Sequence[EncodedText]
    ) -> Iterator[tuple[list[EncodedText], list[Float[Tensor, "tokens hidden_size"]]]]:
        """Yield some texts, and the hidden states of each, of an encoder in its frozen form."""
        if self._expands and not self.late_interaction.attends_to_expansion:
            for text in texts:
                yield [text], [self._expand_query(text)]
            return
        if self._expands:
            texts = [replace(text, encoding=TokenIds(self._fill_query(text))) for text in texts]
        for part, packed in self.batches(texts):
            hidden = encoder(packed)
            yield part, [hidden[tokens] for tokens in packed.slices]

    def _fill_query(self, text: EncodedText) -> NDArray[np.int32]:
        """A query's ids, filled with `[MASK]`."""
        assert isinstance(text.encoding, TokenIds), "encoded here"
        return self._form.fill(text.encoding, self._filled_length)

    def _expand_query(self, text: EncodedText) -> Float[Tensor, "tokens hidden_size"]:
        """The hidden states of a query whose tokens do not attend to its expansion.

        The expansion attends to the tokens. No pack expresses that, so the query is a padded row,
        and the parameters' own precision is used.
        """
        ids = torch.from_numpy(self._fill_query(text)).long()[None].to(self.device)
        mask = torch.arange(ids.shape[1], device=self.device)[None] < text.num_tokens
        hidden: Tensor = self.network.encoder(Padded.from_tensors(ids, mask))
        return hidden

    def concatenate(self, parts: Sequence[list[Matrix]]) -> list[Matrix]:
        return [*chain.from_iterable(parts)]
