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
from .tasks.task import Network, Task
from .text.definition import AddedPiece, Definition, Frame, WordPieceDefinition
from .text.tokenizer import Tokenizer
from .text.tree import TreeDefinition
from .text.tree_changes import add_words, keep_pieces

_ROWS = ("encoder.embeddings.word_embeddings.weight", "mlm_head.decoder", "mlm_head.bias")
"""The parameters that have a row for each piece."""

GPT_FRAME = Frame(("_start_",), ("_delimiter_",), ("_classify_",), 0)
"""GPT's pieces around a text, or around and between two, in the names of the original code."""

_POSITIONS = ("encoder.embeddings.position_embeddings.weight",)


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
        raise DataError("the tokenizer already puts special pieces around texts")
    tokenizer = Tokenizer(definition.framed(frame))
    config = model.encoder.config
    known, size = model.tokenizer.vocab_size, max(config.vocab_size, tokenizer.vocab_size)

    def change(tensor: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(seed)  # the same for a matrix of two names
        taken = tensor.new_zeros(size, *tensor.shape[1:])
        taken[: len(tensor)] = tensor
        new = taken[known : tokenizer.vocab_size]
        if new.ndim == 2:
            new.normal_(0, config.initializer_range, generator=generator)
        return taken

    return _rebuilt(model, tokenizer, _ROWS, change, vocab_size=size)


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
    pieces, before = list(definition.base_pieces), len(definition.base_pieces)
    free = [n for n in model.tokenizer.unused_ids.tolist() if n < before]
    sources: dict[int, list[int]] = {}  # ids of the former pieces, by the new id
    several: dict[str, list[int]] = {}  # and by the new pieces that are several words
    added: list[str] = []
    known: list[str] = []
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
        if len(parts) > 1:
            several[piece] = former
        elif free:
            pieces[free[0]] = piece
            sources[free.pop(0)] = former
        else:
            sources[len(pieces)] = former
            pieces.append(piece)
        added.append(piece)
    reused = sum(at < before for at in sources)
    order = [*range(before), *[-1] * (len(pieces) - before)]
    order += range(before, before + len(definition.added))
    sources |= enumerate(several.values(), len(order))
    order += [-1] * len(several)
    behind = (AddedPiece(piece, single_word=True) for piece in several)
    changed = replace(definition, base_pieces=tuple(pieces), added=(*definition.added, *behind))
    new = _with_rows(model, Tokenizer(changed), order, sources)
    return Addition(new, tuple(added), tuple(known), reused)


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
    rows = order + list(range(len(order), model.encoder.config.vocab_size))  # that no piece has

    def change(tensor: Tensor) -> Tensor:
        taken = tensor[torch.tensor([max(row, 0) for row in rows])].clone()
        for new, former in sources.items():
            taken[new] = tensor[torch.tensor(former)].mean(0)
        return taken

    return _rebuilt(model, tokenizer, _ROWS, change, vocab_size=len(rows))


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
    return _rebuilt(model, Tokenizer(changed), _ROWS, _take(kept), vocab_size=len(kept))


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
        raise SettingsError(f"the positions of {config.family!r} are not learned, and unlimited")
    if positions <= config.max_seqlen:
        raise SettingsError(f"the model already has {config.max_seqlen} positions")
    offset, length = config.position_offset, config.max_seqlen
    rows = [*range(offset), *(offset + at % length for at in range(positions))]
    changed = {"max_position_embeddings": offset + positions}
    return _rebuilt(model, model.tokenizer, _POSITIONS, _take(rows), **changed)


def _take(rows: list[int]) -> Callable[[Tensor], Tensor]:
    """What takes these rows of a matrix."""
    at = torch.tensor(rows)
    return lambda tensor: tensor[at]


def _rebuilt(
    model: Model,
    tokenizer: Tokenizer,
    names: tuple[str, ...],
    change: Callable[[Tensor], Tensor],
    **geometry: int,
) -> Model:
    """A model of another geometry: the parameters of these names are made from the old one's."""
    config = model.encoder.config.with_values(**geometry)
    task: Task[Any] | None = None
    network: Network | BareEncoder
    if model.task is None:
        network = BareEncoder(config, pooler=model.encoder.pooler is not None)
    else:
        task = type(model.task).from_dict(model.task.to_dict(), tokenizer)
        network = task.network(config)
    state = model.network.state_dict()
    network.load_state_dict(state | {name: change(state[name]) for name in state.keys() & names})
    return Model(tokenizer, task, network.eval(), sentence=model.sentence)
