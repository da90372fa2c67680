"""A static model from another: its vocabulary is run through the encoder, once.

    piece ─► [CLS] piece [SEP] ─► the model's vector ─► principal axes ─► × sif / (sif + p)

A text's vector is then the mean of its pieces' vectors, scaled to length 1. Frequent pieces count
less, with their probability estimated by Zipf's law from their rank: vocabularies are in the order
of frequency. Special and unused pieces have no rank, and vectors of zeros.

Source: Tulkens and van Dongen (2024), "Model2Vec"; Arora et al. (2017), "A Simple but Tough-to-Beat
Baseline for Sentence Embeddings", for the weights (SIF).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..checkpoints.card_training import describe_training, public_name
from ..checkpoints.sentence_settings import SentenceSettings
from ..checkpoints.static import static_config
from ..errors import DataError, SettingsError
from ..inference.features import Embedder
from ..inference.text_embedding import EncodedText
from ..model import Model
from ..settings.keywords import StaticKeywords
from ..text.definition import UNK, Definition
from ..text.encoding import TokenIds
from ..text.static_tokenizer import to_static
from ..text.tokenizer import Tokenizer
from ..text.wordpiece import WordPieceDefinition
from .static_settings import StaticSettings


def distil_static(
    model: Model, words: Sequence[str] = (), **settings: Unpack[StaticKeywords]
) -> Model:
    """Make a static model whose vectors resemble those of another model.

    Args:
        model: a sentence encoder, or any encoder; its vectors are those of `embed`.
        words: words that become pieces, in the order of their frequency; for BERT's tokenizer.
        settings: settings of `StaticSettings`.

    Raises:
        SettingsError: a setting is not valid, or does not fit the model; or the model's vectors
            are sparse, or of tokens.
        DataError: a word cannot become a piece.
    """
    values = StaticSettings.parse(settings)
    embedder = model.embedder(normalize=False, prompt="")
    if not isinstance(embedder, Embedder):
        raise SettingsError("a static model is made from a model with one vector of a text")
    if "width" in values.model_fields_set and values.width > embedder.width:
        raise SettingsError(f"width={values.width}: the model's vectors have {embedder.width}")
    width = min(values.width, embedder.width)
    definition = model.tokenizer.definition
    static = to_static(definition if not words else _with_words(definition, words))
    frame = definition.frame
    start, end = ([definition.ids[piece] for piece in part] for part in (frame.start, frame.end))
    ids = [[number] for number in range(len(definition.pieces))]
    ids += [row.tolist() for row in model.tokenizer.piece_ids(static.pieces[len(ids) :])]
    encodings = [
        EncodedText(index, TokenIds(np.array([*start, *row, *end], np.int32)))
        for index, row in enumerate(ids)
    ]
    vectors = embedder.vectors(encodings, lambda index: f"the piece {static.pieces[index]!r}")
    tokenizer = Tokenizer(static)
    is_used = np.ones(len(vectors), np.bool_)
    is_used[[*tokenizer.special_ids.tolist(), *tokenizer.unused_ids.tolist()]] = False
    if static.unknown_id is not None:
        is_used[static.unknown_id] = False
    vectors = _project(vectors, is_used, width)
    if values.sif is not None:
        vectors[is_used] *= zipf_weights(int(is_used.sum()), values.sif)[:, None]
    vectors[~is_used] = 0  # so that tools that count unknown pieces find the same direction
    result = Model.fresh(static_config(len(vectors), width), tokenizer)
    table = torch.from_numpy(np.ascontiguousarray(vectors, np.float32))
    result.encoder.embeddings.word_embeddings.weight = nn.Parameter(table)
    result.sentence = SentenceSettings(normalize=True)
    teacher = "a model in memory" if model.source is None else public_name(model.source)
    sentence = f"Distilled from {teacher} into static vectors"
    result.card = describe_training(model.card, None, sentence, values.model_dump(mode="json"))
    return result


def zipf_weights(count: int, sif: float) -> NDArray[np.float64]:
    """The weight of each rank: `sif / (sif + p)`, with p proportional to `1 / (rank + 2)`."""
    shares = 1 / (np.arange(count) + 2)
    return np.asarray(sif / (sif + shares / shares.sum()))


def _project(
    vectors: NDArray[np.float32], is_used: NDArray[np.bool_], width: int
) -> NDArray[np.float64]:
    """Centred vectors on the first principal axes of those that are used."""
    centred = vectors - vectors[is_used].mean(0, dtype=np.float64)
    _, axes = np.linalg.eigh(centred[is_used].T @ centred[is_used])
    return np.asarray(centred @ axes[:, ::-1][:, :width])


def _with_words(definition: Definition, words: Sequence[str]) -> Definition:
    """A tokenizer with more pieces that are whole words.

    Raises:
        DataError: the tokenizer is not BERT's, or a text would never have a word as one piece.
    """
    if not isinstance(definition, WordPieceDefinition) or definition.added:
        raise DataError("new words are supported for BERT's tokenizer only")
    pieces = dict.fromkeys(definition.base_pieces)
    for word in words:
        parts = definition.normalization.words(word)
        if len(parts) != 1 or len(parts[0]) > definition.max_word_characters or parts[0] == UNK:
            raise DataError(f"{word!r} is not one word of a text", fix="Leave it out.")
        pieces[parts[0]] = None
    return WordPieceDefinition(
        tuple(pieces), (), definition.normalization, definition.max_word_characters
    )
