"""Changes to a trained model's vocabulary and positions, which keep what it computes.

- `add_frame`: texts get GPT's start, delimiter and extract pieces;
- `add_tokens`: words of a domain become pieces, each beginning as the mean of its former pieces;
- `shrink`: pieces that a corpus does not use are left out, and its ids change, not its meaning;
- `extend_positions`: more positions than a model was trained with.

What a model said of a text that none of this touches, it says afterwards too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .api import BareEncoder, Model
from .errors import DataError, SettingsError
from .inference.engine import chunks
from .model.config import EncoderConfig
from .text.definition import AddedPiece, Definition, Frame, WordPieceDefinition
from .text.tokenizer import Tokenizer
from .text.tree import TreeDefinition
from .text.tree_changes import add_words, keep_pieces

_ROWS = ("encoder.embeddings.word_embeddings.weight", "mlm_head.decoder", "mlm_head.bias")
"""The parameters that have a row for each piece."""

GPT_FRAME = Frame(("_start_",), ("_delimiter_",), ("_classify_",), 0)
"""GPT's pieces around a text, or around and between two, in the names of the original code."""

_POSITIONS = "encoder.embeddings.position_embeddings.weight"


@dataclass(frozen=True)
class Addition:
    """What `add_tokens` did."""

    model: Model  # the new model
    added: tuple[str, ...]  # the words that became pieces
    known: tuple[str, ...]  # those that were pieces before
    reused: int  # how many of the added took the place of an unused piece


def add_frame(model: Model, frame: Frame = GPT_FRAME, *, seed: int = 0) -> Model:
    """Put special pieces around a model's texts, as a classifier of the first GPT needs.

    The classifier reads the last token: then the extract piece, which means nothing else. The
    pieces are new and their embeddings are drawn at random, to be learned in fine-tuning.

    Source: Radford et al. (2018), §3.3 and figure 1: "randomly initialized start and end tokens".

    Raises:
        DataError: the tokenizer puts special pieces around texts already.
    """
    definition = model.tokenizer.definition
    if not isinstance(definition, TreeDefinition) or definition.frame != Frame((), (), (), 0):
        raise DataError("the tokenizer puts special pieces around texts already")
    tokenizer = Tokenizer(definition.framed(frame))
    config = model.encoder.config
    known, size = model.tokenizer.vocab_size, max(config.vocab_size, tokenizer.vocab_size)

    def change(name: str, tensor: Tensor) -> Tensor:
        if name not in _ROWS:
            return tensor
        generator = torch.Generator().manual_seed(seed)  # the same for a matrix of two names
        taken = tensor.new_zeros(size, *tensor.shape[1:])
        taken[: len(tensor)] = tensor
        new = taken[known : tokenizer.vocab_size]
        if new.ndim == 2:
            new.normal_(0, config.initializer_range, generator=generator)
        return taken

    return _rebuilt(model, tokenizer, config.with_values(vocab_size=size), change)


def add_tokens(model: Model, words: Iterable[str]) -> Addition:
    """Make pieces of words.

    A word is normalised first, as it will be in texts. What is one word then becomes a piece of the
    vocabulary, in the place of an `[unused…]` one as long as there are any; what is several (as
    "covid-19" is, for its hyphen) is looked for in texts before they are split. Of tokenizers that
    are not WordPiece, see `text.tree_changes`: there, several words are an error.

    Raises:
        DataError: a word is empty, or has a lone surrogate; or the tokenizer is of another kind
            than WordPiece, byte-level BPE and Unigram.
    """
    definition = model.tokenizer.definition
    if isinstance(definition, TreeDefinition):
        return _add_to_tree(model, definition, list(words))
    assert isinstance(definition, WordPieceDefinition)
    pieces = list(definition.base_pieces)
    free = [n for n in model.tokenizer.unused_ids.tolist() if n < len(pieces)]
    sources: dict[int, list[int]] = {}  # ids of the former pieces, by the new id
    later: list[AddedPiece] = []
    appended: list[tuple[str, list[int]]] = []
    added: list[str] = []
    known: list[str] = []
    reused = 0
    for number, word in enumerate(words, 1):
        parts = definition.normalization.words(word, where=f"word {number}")
        if not parts:
            raise DataError("nothing is left of it", where=f"word {number} ({word!r})")
        piece = parts[0]
        if len(parts) > 1:
            piece = definition.normalization.normalizer.normalize_str(word).strip()
        former = model.tokenizer.piece_ids([word])[0].tolist()
        if (len(former) == 1 and former[0] != model.tokenizer.unk_id) or piece in added:
            known.append(word)
            continue
        if len(parts) == 1 and free:
            at = free.pop(0)
            pieces[at] = piece
            sources[at] = former
            reused += 1
        else:
            appended.append((piece, former))
        if len(parts) > 1:
            later.append(AddedPiece(piece, single_word=True))
        added.append(piece)
    return Addition(
        _with_pieces(model, definition, pieces, later, appended, sources),
        tuple(added),
        tuple(known),
        reused,
    )


def _with_pieces(
    model: Model,
    definition: WordPieceDefinition,
    pieces: list[str],
    later: list[AddedPiece],
    appended: list[tuple[str, list[int]]],
    sources: dict[int, list[int]],
) -> Model:
    """The model with some pieces in place of others, and more behind them."""
    behind = {piece.content for piece in later}
    whole = [(text, former) for text, former in appended if text not in behind]
    tail = [(text, former) for text, former in appended if text in behind]
    before = len(definition.base_pieces)
    old_added = len(definition.added)
    order = [*range(before)]
    for text, former in whole:
        sources[len(pieces)] = former
        pieces.append(text)
        order.append(-1)
    order += range(before, before + old_added)
    for _, former in tail:
        sources[len(order)] = former
        order.append(-1)
    changed = replace(definition, base_pieces=tuple(pieces), added=(*definition.added, *later))
    return _with_rows(model, Tokenizer(changed), order, sources)


def _add_to_tree(model: Model, definition: TreeDefinition, words: list[str]) -> Addition:
    found = add_words(definition, words)
    before = len(definition.pieces)
    sources = {before + at: list(former) for at, former in enumerate(found.former)}
    order = [*range(before), *[-1] * len(sources)]
    new = _with_rows(model, Tokenizer(found.definition), order, sources)
    return Addition(new, found.added, found.known, 0)


def _with_rows(
    model: Model, tokenizer: Tokenizer, order: list[int], sources: dict[int, list[int]]
) -> Model:
    """The model with a row for each piece: the row of before, or the mean of its sources'."""
    config = model.encoder.config
    rows = order + list(range(len(order), config.vocab_size))  # rows that no piece has

    def change(name: str, tensor: Tensor) -> Tensor:
        if name not in _ROWS:
            return tensor
        taken = tensor[torch.tensor([max(row, 0) for row in rows])].clone()
        for new, former in sources.items():
            taken[new] = tensor[torch.tensor(former)].mean(0)
        return taken

    return _rebuilt(model, tokenizer, config.with_values(vocab_size=len(rows)), change)


def shrink(model: Model, texts: Iterable[str], *, batch: int = 1000) -> Model:
    """Leave out the pieces that some texts do not use.

    Special pieces stay, and so does every single character, so that no text becomes unknown that
    was not. The texts' tokens are the same pieces as before.

    Raises:
        DataError: a text has a lone surrogate, or the tokenizer is of another kind than WordPiece,
            byte-level BPE and Unigram.
    """
    tokenizer = model.tokenizer
    used = np.zeros(tokenizer.vocab_size, np.bool_)
    number = 0
    for part in chunks(texts, batch):
        places = [f"text {number + at + 1}" for at in range(len(part))]
        for ids in tokenizer.piece_ids(part, where=places):
            used[ids] = True
        number += len(part)
    changed: Definition
    if isinstance(tokenizer.definition, TreeDefinition):
        changed, kept = keep_pieces(tokenizer.definition, used)
    else:
        changed, kept = _keep_wordpieces(tokenizer, used)
    rows = torch.tensor(kept)
    config = model.encoder.config.with_values(vocab_size=len(kept))
    return _rebuilt(
        model,
        Tokenizer(changed),
        config,
        lambda name, tensor: tensor[rows] if name in _ROWS else tensor,
    )


def _keep_wordpieces(
    tokenizer: Tokenizer, used: NDArray[np.bool_]
) -> tuple[WordPieceDefinition, list[int]]:
    """The tokenizer with the used pieces alone, and their former ids."""
    definition = tokenizer.definition
    assert isinstance(definition, WordPieceDefinition)
    used[tokenizer.special_ids] = used[tokenizer.unk_id] = True
    for at, piece in enumerate(tokenizer.pieces):
        if len(piece.removeprefix("##")) == 1:
            used[at] = True
    base = len(definition.base_pieces)
    kept: list[int] = np.flatnonzero(used).tolist()
    changed = replace(
        definition,
        base_pieces=tuple(definition.base_pieces[at] for at in kept if at < base),
        added=tuple(definition.added[at - base] for at in kept if at >= base),
    )
    return changed, kept


def extend_positions(model: Model, positions: int) -> Model:
    """Give a model more positions; the new ones begin as copies of the old, again and again.

    Source: Beltagy et al. (2020), "Longformer", §5: neighbours keep their relation, everywhere but
    where a copy begins.

    Args:
        model: with learned positions.
        positions: the most tokens that a sequence may then have.

    Raises:
        SettingsError: there are as many already, or the positions are not learned.
    """
    config = model.encoder.config
    if config.positions != "learned":
        raise SettingsError(f"the positions of {config.family!r} are not learned, and have no end")
    if positions <= config.max_seqlen:
        raise SettingsError(f"the model has {config.max_seqlen} positions already")
    offset, length = config.position_offset, config.max_seqlen
    rows = [*range(offset), *(offset + at % length for at in range(positions))]
    taken = torch.tensor(rows)
    return _rebuilt(
        model,
        model.tokenizer,
        config.with_values(max_position_embeddings=offset + positions),
        lambda name, tensor: tensor[taken] if name == _POSITIONS else tensor,
    )


def _rebuilt(
    model: Model,
    tokenizer: Tokenizer,
    config: EncoderConfig,
    change: Callable[[str, Tensor], Tensor],
) -> Model:
    """A model of another geometry, its parameters made from the old one's."""
    task: Any = None
    if model.task is not None:
        task = type(model.task).from_dict(model.task.to_dict(), tokenizer)
    network = (
        BareEncoder(config, pooler=model.encoder.pooler is not None)
        if task is None
        else task.network(config)
    )
    state = model.network.state_dict()
    network.load_state_dict({name: change(name, tensor) for name, tensor in state.items()})
    return Model(tokenizer, task, network.eval(), sentence=model.sentence)
