"""Changes to the vocabulary and the positions of a trained model that preserve its results.

- `add_frame`: texts get GPT's start, delimiter and extract pieces;
- `add_tokens`: words of a domain become pieces, each initialised as the mean of its former pieces;
- `shrink`: pieces that a corpus does not use are removed; ids change, results do not;
- `extend_positions`: more positions than a model was trained with.

The results for a text that a change does not affect stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.rows import chunks
from ..errors import CheckpointError, DataError, SettingsError
from ..model import Model
from ..nn.encoder import BareEncoder, Encoder
from ..settings.literals import MAX_POSITIONS
from ..tasks.network import Network
from ..tasks.task import Task
from ..text.definition import AddedPiece, Definition, Frame
from ..text.tokenizer import Tokenizer
from ..text.tree import TreeDefinition
from ..text.tree_changes import add_words, keep_pieces, places_of
from ..text.trial import check_pieces_found, is_unspaced, running_texts
from ..text.wordpiece import CONTINUATION, WordPieceDefinition

_ROWS = (
    "encoder.embeddings.word_embeddings.weight",
    *("mlm_head.decoder", "mlm_head.decoder_extension", "mlm_head.bias"),
)
"""The parameters with one row per piece."""

GPT_FRAME = Frame(("_start_",), ("_delimiter_",), ("_classify_",), 0)
"""GPT's pieces around a text, or around and between two texts; names as in the original code."""

_MAX_WORDS = 8
"""Of a term that becomes one piece, separated by spaces; more are a text by mistake."""

_POSITIONS = ("encoder.embeddings.position_embeddings.weight",)

_LIMITS = ("max_length", "max_seq_length")
"""The names of a task's limit on the tokens of a text: of pre-training, and of other tasks."""


@dataclass(frozen=True)
class Addition:
    """The result of `add_tokens`."""

    model: Model  # the new model
    added_words: tuple[str, ...]  # the words that became pieces
    known_words: tuple[str, ...]  # the words that were pieces before
    num_reused: int  # number of added words that replaced an unused piece


def add_frame(model: Model, frame: Frame = GPT_FRAME, *, seed: int = 0) -> Model:
    """Put special pieces around a model's texts, as a classifier of the first GPT needs.

    The classifier reads the last token, which is then the extract piece. The pieces are new; their
    embeddings are random, and fine-tuning trains them.

    Source: Radford et al. (2018), §3.3 and figure 1: "randomly initialized start and end tokens".

    Raises:
        DataError: the tokenizer puts special pieces around texts already.
    """
    definition = model.tokenizer.definition
    if not isinstance(definition, TreeDefinition) or definition.frame != Frame((), (), (), 0):
        raise DataError("the tokenizer already puts special pieces around texts")
    tokenizer = Tokenizer(definition.with_frame(frame))
    config = model.encoder.config
    old_size, size = model.tokenizer.vocab_size, max(config.vocab_size, tokenizer.vocab_size)

    def change(tensor: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(seed)  # the same for a matrix with two names
        resized_tensor = tensor.new_zeros(size, *tensor.shape[1:])
        resized_tensor[: len(tensor)] = tensor
        new = resized_tensor[old_size : tokenizer.vocab_size]
        if new.ndim == 2:
            new.normal_(0, config.initializer_range, generator=generator)
        return resized_tensor

    return _rebuild(model, tokenizer, _ROWS, change, vocab_size=size)


def add_tokens(
    model: Model, words: Iterable[str], *, where: Sequence[str] | None = None
) -> Addition:
    """Add words to the vocabulary as pieces.

    A word is first normalised, as in texts. If running text has it as one word, it becomes a piece
    of the vocabulary and replaces an `[unused…]` piece, as long as there are any. Otherwise it
    becomes a piece that is searched for in texts before they are split: several words (such as
    "covid-19", because of its hyphen), and words of scripts without spaces (such as "A股" or
    "タワー"). For tokenizers other than WordPiece, see `text.tree_changes`: there, several words
    are an error.

    Each new piece is tried: the tokenizer must find it in the word alone, and in running text.

    Args:
        words: the words.
        where: the place of each word, for errors; "word 1" and so on if omitted.

    Raises:
        DataError: a word is empty, is a text of more than eight words, has a lone surrogate, begins
            with `##`, or is a piece that no text gets, such as `[SEP]`; or the tokenizer is neither
            WordPiece, byte-level BPE nor Unigram; or the new tokenizer does not find a word in
            texts.
    """
    definition, words = model.tokenizer.definition, list(words)
    if isinstance(definition, TreeDefinition):
        return _add_to_tree(model, definition, words, where)
    definition = _check_wordpiece(definition)
    normalization = definition.normalization
    pieces, num_base_pieces = list(definition.base_pieces), len(definition.base_pieces)
    markers = _marker_ids(model)
    unused = model.tokenizer.unused_ids.tolist()
    free = [number for number in unused if number < num_base_pieces and number not in markers]
    sources: dict[int, list[int]] = {}  # ids of the former pieces, by new id
    searched_pieces: dict[str, list[int]] = {}  # the same, by piece that is searched for in texts
    places_of_pieces: dict[str, str] = {}  # the place of each new piece
    known_words: list[str] = []
    for word, place in zip(words, places_of(words, where), strict=True):
        parts, place_of_word = normalization.words(word, where=place), f"{place} ({word!r})"
        if not parts:
            raise DataError("nothing is left of it", where=place_of_word)
        if (count := len(word.split())) > _MAX_WORDS:
            what = f"is a text of {count} words, not a word"
            raise DataError(what, where=place_of_word, fix="Give one word, or term, a line.")
        piece = parts[0] if len(parts) == 1 else normalization.piece(word)
        former = model.tokenizer.piece_ids([word])[0].tolist()
        if (len(former) == 1 and former[0] != model.tokenizer.unk_id) or piece in places_of_pieces:
            known_words.append(word)
            continue
        if piece.startswith(CONTINUATION) and piece != CONTINUATION:
            what = f"begins with {CONTINUATION}, which marks pieces inside a word"
            raise DataError(what, where=place_of_word, fix="Give whole words only.")
        if piece in definition.ids:
            raise DataError(
                "is a piece that no text gets", where=place_of_word, fix="Leave it out."
            )
        is_word = all(piece in normalization.words(text) for text in running_texts(word))
        if not is_word or len(piece) > definition.max_word_characters:
            searched_pieces[piece] = former
        elif free:
            pieces[free[0]] = piece
            sources[free.pop(0)] = former
        else:
            sources[len(pieces)] = former
            pieces.append(piece)
        places_of_pieces[piece] = place_of_word
    num_reused = sum(at < num_base_pieces for at in sources)
    order = [*range(num_base_pieces), *[-1] * (len(pieces) - num_base_pieces)]
    order += range(num_base_pieces, num_base_pieces + len(definition.added))
    sources |= enumerate(searched_pieces.values(), len(order))
    order += [-1] * len(searched_pieces)
    later = (AddedPiece(piece, single_word=not is_unspaced(piece)) for piece in searched_pieces)
    changed = replace(definition, base_pieces=tuple(pieces), added=(*definition.added, *later))
    tokenizer = Tokenizer(changed)
    check_pieces_found(
        tokenizer, [(piece, [piece], place) for piece, place in places_of_pieces.items()]
    )
    new = _with_rows(model, tokenizer, order, sources)
    return Addition(new, tuple(places_of_pieces), tuple(known_words), num_reused)


def _add_to_tree(
    model: Model, definition: TreeDefinition, words: Sequence[str], where: Sequence[str] | None
) -> Addition:
    addition = add_words(definition, words, where)
    before = len(definition.pieces)
    sources = {before + at: list(former) for at, former in enumerate(addition.former)}
    order = [*range(before), *[-1] * len(sources)]
    new = _with_rows(model, Tokenizer(addition.definition), order, sources)
    return Addition(new, addition.added_words, addition.known_words, 0)


def _with_rows(
    model: Model, tokenizer: Tokenizer, order: list[int], sources: dict[int, list[int]]
) -> Model:
    """Return the model with a row per piece: its former row, or the mean of its source rows."""
    rows = order + list(range(len(order), model.encoder.config.vocab_size))  # rows without a piece

    def change(tensor: Tensor) -> Tensor:
        rows_of_pieces = tensor[torch.tensor([max(row, 0) for row in rows])].clone()
        for new, former in sources.items():
            rows_of_pieces[new] = tensor[torch.tensor(former)].mean(0)
        return rows_of_pieces

    return _rebuild(model, tokenizer, _ROWS, change, vocab_size=len(rows))


def shrink(model: Model, texts: Iterable[str], *, batch: int = 1000) -> Model:
    """Remove the pieces that do not occur in some texts.

    Special pieces and single characters are kept, so that no known text becomes unknown. The given
    texts are split into the same pieces as before.

    Raises:
        DataError: a text has a lone surrogate, or the tokenizer is neither WordPiece, byte-level
            BPE nor Unigram.
    """
    tokenizer = model.tokenizer
    is_used = np.zeros(tokenizer.vocab_size, np.bool_)
    is_used[_marker_ids(model)] = True
    number = 0
    for part in chunks(texts, batch):
        places = [f"text {number + at + 1}" for at in range(len(part))]
        for ids in tokenizer.piece_ids(part, where=places):
            is_used[ids] = True
        number += len(part)
    smaller: Definition
    if isinstance(tokenizer.definition, TreeDefinition):
        smaller, kept_ids = keep_pieces(tokenizer.definition, is_used)
    else:
        smaller, kept_ids = _keep_wordpieces(tokenizer, is_used)
    return _rebuild(model, Tokenizer(smaller), _ROWS, _take(kept_ids), vocab_size=len(kept_ids))


def _marker_ids(model: Model) -> list[int]:
    """The ids of pieces that mark queries and passages of late interaction, but are in no text."""
    late = None if model.sentence is None else model.sentence.late_interaction
    markers = () if late is None else (late.query_prefix.strip(), late.document_prefix.strip())
    return [number for number, piece in enumerate(model.tokenizer.pieces) if piece in markers]


def _check_wordpiece(definition: Definition) -> WordPieceDefinition:
    """Return the definition; raise DataError if its vocabulary is neither BERT's nor a tree."""
    if not isinstance(definition, WordPieceDefinition):
        raise DataError("only WordPiece, byte-level BPE and Unigram vocabularies can be changed")
    return definition


def _keep_wordpieces(
    tokenizer: Tokenizer, is_used: NDArray[np.bool_]
) -> tuple[WordPieceDefinition, list[int]]:
    """Return the tokenizer's definition with only the used pieces, and their former ids."""
    definition = _check_wordpiece(tokenizer.definition)
    is_used[tokenizer.special_ids] = is_used[tokenizer.unk_id] = True
    for at, piece in enumerate(tokenizer.pieces):
        if len(piece.removeprefix(CONTINUATION)) == 1:
            is_used[at] = True
    base = len(definition.base_pieces)
    kept_ids: list[int] = np.flatnonzero(is_used).tolist()
    smaller = replace(
        definition,
        base_pieces=tuple(definition.base_pieces[at] for at in kept_ids if at < base),
        added=tuple(definition.added[at - base] for at in kept_ids if at >= base),
    )
    return smaller, kept_ids


def extend_positions(model: Model, positions: int) -> Model:
    """Add positions to a model, initialised as repeated copies of the existing ones.

    Source: Beltagy et al. (2020), "Longformer", §5: neighbouring positions keep their relation,
    except where a copy begins.

    A limit of the model's own (see `text_limit`) becomes the new maximum if it was the old one; a
    smaller one stays.

    Args:
        model: a model with learned positions.
        positions: the new maximum number of tokens in a sequence.

    Raises:
        SettingsError: the model already has as many positions, they are not learned, or there are
            more than `MAX_POSITIONS`.
    """
    config = model.encoder.config
    if config.positions != "learned":
        raise SettingsError(
            f"the model has positions={config.positions}, which are not learned: there is no table "
            "to extend",
            fix="Raise the maximum number of positions in its config.json.",
        )
    if config.max_full_attention is not None:
        raise SettingsError(
            f"the attention of {config.family!r} is sparse in longer sequences, which is not "
            "supported"
        )
    if positions > MAX_POSITIONS:
        raise SettingsError(f"positions={positions}: must be at most {MAX_POSITIONS:,}")
    if positions <= config.max_seqlen:
        raise SettingsError(f"the model already has {config.max_seqlen} positions")
    offset, length = config.position_offset, config.max_seqlen
    rows = [*range(offset), *(offset + at % length for at in range(positions))]
    changed = {"max_position_embeddings": offset + positions}
    return _rebuild(model, model.tokenizer, _POSITIONS, _take(rows), **changed)


def text_limit(model: Model) -> int:
    """Return the most tokens of a text that a model reads: its positions, or a limit of its own.

    A sentence encoder and most tasks have one, which is saved with them.
    """
    limits: list[int | None] = [model.encoder.config.max_seqlen, model.max_seq_length]
    if model.task is not None:
        limits += map(model.task.to_dict().get, _LIMITS)
    if model.sentence is not None:
        limits.append(model.sentence.max_seq_length)
    return min(limit for limit in limits if limit is not None)


def _take(rows: list[int]) -> Callable[[Tensor], Tensor]:
    """Return a function that selects these rows of a tensor."""
    at = torch.tensor(rows)
    return lambda tensor: tensor[at]


def _rebuild(
    model: Model,
    tokenizer: Tokenizer,
    names: tuple[str, ...],
    change: Callable[[Tensor], Tensor],
    **geometry: int | None,
) -> Model:
    """Return a model with another geometry, and the named parameters changed by `change`.

    Raises:
        CheckpointError: the model has other modules for queries, which would not be changed.
    """
    if model.query_model is not None:
        raise CheckpointError(
            "the model has other modules for queries, and only those for documents would change",
            fix="Save the part for documents: model.query_model = None; model.save(DIR).",
        )
    if model.encoder.config.zeroed_token_id is not None:
        geometry["zeroed_token_id"] = tokenizer.id_of("mask")
    config = model.encoder.config.with_values(**geometry)
    if (tokens := config.global_tokens) is not None:
        config = config.with_global_tokens(tokens.position, tokenizer.id_of("sep"))
    task: Task[Any] | None = None
    network: Network | BareEncoder
    sentence, old_limit = model.sentence, model.encoder.config.max_seqlen
    if sentence is not None and sentence.max_seq_length == old_limit:
        sentence = sentence.with_values(max_seq_length=config.max_seqlen)
    if model.task is None:
        network = BareEncoder(Encoder(config, pooler=model.encoder.pooler is not None))
    else:
        values = model.task.to_dict()
        # A limit that was all positions stays all of them; a smaller one was chosen.
        values |= {name: config.max_seqlen for name in _LIMITS if values.get(name) == old_limit}
        task = type(model.task).from_dict(values, tokenizer)
        network = task.network(config)
    state = model.network.state_dict()
    network.load_state_dict(state | {name: change(state[name]) for name in state.keys() & names})
    rate = model.learning_rate
    has_modules = isinstance(network, Network) and network.vector_modules is not None
    result = Model(
        tokenizer,
        task,
        network.eval(),
        sentence=sentence,
        learning_rate=rate,
        # The network's own modules are loaded with it; those of the old network are another's.
        modules=None if has_modules else model.modules,
    )
    result.card, result.max_seq_length = model.card, model.max_seq_length
    return result
