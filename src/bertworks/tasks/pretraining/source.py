"""The source of training instances: made on the fly from a prepared corpus, anew in each epoch.

The steps, each a pure function of (seed, epoch, block):

1. shuffle the documents for the epoch;
2. split their sequence into blocks of about `block_tokens` tokens;
3. split the documents of a block into instances (`instances`);
4. shuffle the instances, and give each the key that its masking is drawn from (`masking`).

Only the documents are on disk. Three integers suffice to resume a stream of instances.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from ...data.shards import Corpus
from ...errors import DataError
from ...text.tokenizer import Tokenizer
from ...utils.formatting import format_count
from . import hashing
from .instances import InstanceSettings, make_instances

BLOCK_TOKENS = 512 * 1024
_ORDER, _PAIRS, _SHUFFLE, _KEYS, _HELD_OUT = range(5)  # keys of independent draws


@dataclass(frozen=True, slots=True, eq=False)
class PretrainingExample:
    """One sequence, unmasked."""

    # `[num_tokens]`, of any integer type: `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`
    input_ids: np.ndarray
    first_segment: int  # number of tokens of token type 0
    next_sentence_label: int | None = None  # 0 if B follows A, 1 if not; None without pairs
    # what the masking is drawn from, as a pure function; None if nothing is to be masked, because
    # the text already contains the `[MASK]`s to predict
    key: int | None = None
    index: int = -1  # of the row of data that it comes from; -1: from a corpus
    # `[num_tokens]` bool, whether a token is masked together with the token before; None unless
    # the source has `with_units=True`
    continues_unit: np.ndarray | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.input_ids)

    @property
    def truncated_tokens(self) -> int:
        """Always 0: a text that is too long becomes several sequences, or is an error."""
        return 0


@dataclass(frozen=True, eq=False)
class InstanceBlock(Sequence[PretrainingExample]):
    """The instances of a block: a sequence of examples that are views of a few arrays.

    It can be sent between processes at little cost.
    """

    tokens: np.ndarray  # the tokens of all sequences, end to end, in the order of creation
    # `[instances]`, where each instance starts in `tokens`. This and the next four arrays are in
    # the order in which instances are used.
    starts: np.ndarray
    lengths: np.ndarray  # number of tokens
    first_segments: np.ndarray  # number of tokens of token type 0
    next_sentence_labels: np.ndarray | None  # int8; None without pairs
    keys: np.ndarray  # uint64
    # `[tokens]` bool, whether a token continues a unit; None unless `with_units` is set
    continues_unit: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, index: int) -> PretrainingExample: ...
    @overload
    def __getitem__(self, index: slice) -> list[PretrainingExample]: ...
    def __getitem__(self, index: int | slice) -> PretrainingExample | list[PretrainingExample]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        start = int(self.starts[index])
        tokens = slice(start, start + int(self.lengths[index]))
        labels = self.next_sentence_labels
        return PretrainingExample(
            self.tokens[tokens],
            int(self.first_segments[index]),
            None if labels is None else int(labels[index]),
            int(self.keys[index]),
            continues_unit=None if self.continues_unit is None else self.continues_unit[tokens],
        )


class _Document(NamedTuple):
    ids: np.ndarray  # [tokens]
    bounds: list[int]  # [sentences + 1], cumulative lengths
    continues_unit: np.ndarray | None  # [tokens] bool


class PretrainingSource:
    """Instances of some documents of a corpus.

    Args:
        documents: the numbers of the documents to use. A random B comes from these too, but not
            from a copy of A's document.
        tokenizer: its `[CLS]`, first or last, and `[SEP]` frame the sequences. If it lacks one of
            them, nothing is put around sequences, and each document ends with its end token, if it
            has one.
        seed: all random decisions are drawn from it and the epoch.
        repeat_every: the number of epochs after which the same instances repeat, with the same
            masks but in another order (`MaskingSettings.repeat_every`); None for never.
        with_units: whether examples have `continues_unit`, for `masking.unit=knowledge`.
        block_tokens: approximate number of tokens of a block.

    Raises:
        DataError: there are no documents with tokens, or too few for a random B; the tokenizer
            cannot frame pairs; or `with_units` is set and the corpus has none.
    """

    def __init__(
        self,
        corpus: Corpus,
        documents: np.ndarray,
        tokenizer: Tokenizer,
        instances: InstanceSettings,
        *,
        seed: int,
        repeat_every: int | None = None,
        with_units: bool = False,
        block_tokens: int = BLOCK_TOKENS,
    ) -> None:
        assert repeat_every is None or repeat_every > 0
        lengths = np.asarray(corpus.document_lengths)[documents]
        self.corpus = corpus
        self.documents = np.asarray(documents)[lengths > 0]
        self.lengths = lengths[lengths > 0]
        self.originals = np.asarray(corpus.originals)[self.documents]
        self.instances = instances
        self.seed = seed
        self.repeat_every = repeat_every
        self.block_tokens = block_tokens
        self.with_units = with_units
        self._has_frame = tokenizer.has("cls") and tokenizer.has("sep")
        self._frame = (tokenizer.cls_id, tokenizer.sep_id) if self._has_frame else ()
        self._puts_cls_last = tokenizer.puts_cls_last
        self._end_id = None if self._has_frame else tokenizer.end_id
        self._cached_plan: tuple[int, np.ndarray, np.ndarray] | None = None
        if not len(self.documents):
            raise DataError("there are no documents to train on", fix="Prepare a larger corpus.")
        if instances.next_sentence and np.all(self.originals == self.originals[0]):
            raise DataError(
                "there is only one document, apart from copies of it, and a random next sentence "
                "comes from another",
                fix="Separate documents by blank lines, or set format=doc-sentences.",
            )
        if instances.next_sentence and not self._has_frame:
            raise DataError(
                f"format={instances.format} has pairs, and the tokenizer no cls and sep tokens to "
                "frame them",
                fix="Set instances.format=full-sentences.",
            )
        if with_units and not corpus.has_units:
            raise DataError(
                "the corpus has no spans, which masking.unit=knowledge needs",
                fix="Prepare it with --spans given or --spans rules.",
            )

    def num_blocks(self, epoch: int) -> int:
        return len(self._plan(epoch)[1]) - 1

    def block(self, epoch: int, block: int) -> InstanceBlock:
        """The shuffled instances of a block; a block with few tokens may have none."""
        order, edges = self._plan(epoch)
        documents = order[edges[block] : edges[block + 1]].tolist()
        content = self._content(epoch)
        rng = Random(hashing.derive_key(self.seed, _PAIRS, content, block))
        instances = self._make_block(documents, rng)
        key = hashing.derive_key(self.seed, _KEYS, content, block)
        keys = hashing.draw(np.array([key], np.uint64), np.arange(len(instances.starts)))
        shuffle = hashing.permutation(
            hashing.derive_key(self.seed, _SHUFFLE, epoch, block), len(instances.starts)
        )
        labels = instances.next_sentence_labels
        return replace(
            instances,
            starts=instances.starts[shuffle],
            lengths=instances.lengths[shuffle],
            first_segments=instances.first_segments[shuffle],
            next_sentence_labels=None if labels is None else labels[shuffle],
            keys=keys[shuffle],
        )

    def examples(self, epoch: int = 0, limit: int | None = None) -> Iterator[PretrainingExample]:
        """The first `limit` examples of an epoch, for evaluation: the same in each call.

        Raises:
            DataError: there are no examples.
        """
        remaining, has_examples = limit, False
        for block in range(self.num_blocks(epoch)):
            instances = self.block(epoch, block)
            has_examples = has_examples or len(instances) > 0
            yield from instances[:remaining]
            if remaining is not None:
                remaining -= min(remaining, len(instances))
                if not remaining:
                    return
        if not has_examples:
            raise DataError(
                "the held-out documents give no examples",
                fix="Give longer documents, or hold out more of them.",
            )

    def _content(self, epoch: int) -> int:
        """The epoch whose instances and masks an epoch uses; less than `repeat_every`."""
        return epoch if self.repeat_every is None else epoch % self.repeat_every

    def _plan(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The order of the documents, and the edges of the blocks in it."""
        content = self._content(epoch)
        if self._cached_plan is not None and self._cached_plan[0] == content:
            return self._cached_plan[1:]
        key = hashing.derive_key(self.seed, _ORDER, content)
        order = hashing.permutation(key, len(self.documents))
        ends = np.cumsum(self.lengths[order])
        blocks = max(1, round(int(ends[-1]) / self.block_tokens))
        borders = np.arange(1, blocks) * (ends[-1] / blocks)
        edges = np.searchsorted(ends, borders, side="right")
        edges = np.unique(np.concatenate(([0], edges, [len(order)])))
        self._cached_plan = content, order, edges
        return order, edges

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cached_plan": None}  # faster to compute again than to send

    def _make_block(self, documents: list[int], rng: Random) -> InstanceBlock:
        """The instances of some documents, in the order of creation; `keys` stays empty."""
        cache: dict[int, _Document] = {}

        def read(number: int) -> _Document:
            if number not in cache:
                cache[number] = self._read(int(self.documents[number]))
            return cache[number]

        instances = list(
            make_instances(
                documents,
                lambda number: read(number).bounds,
                memoryview(self.originals),
                self.instances,
                rng,
                add_special_tokens=self._has_frame,
            )
        )

        def concatenate_pieces(column: Literal["ids", "continues_unit"], *frame: int) -> np.ndarray:
            """A column of all instances' pieces end to end, with `frame` values around them."""
            dtype = getattr(read(documents[0]), column).dtype
            prefix, suffix = [np.array([x], dtype) for x in frame] or (np.empty(0, dtype),) * 2
            parts = [prefix[:0]]
            first_piece, last_piece = (
                (prefix[:0], prefix) if self._puts_cls_last else (prefix, prefix[:0])
            )
            for instance in instances:
                parts.append(first_piece)
                for document, start, end in instance.pieces:
                    parts.append(getattr(cache[document], column)[start:end])
                    parts.append(suffix)
                parts.append(last_piece)
            return np.concatenate(parts)

        count = len(instances)
        frame_sizes = [1 + len(i.pieces) if self._has_frame else 0 for i in instances]
        content_sizes = [sum(end - start for _, start, end in i.pieces) for i in instances]
        lengths = np.array(frame_sizes, np.int64) + np.array(content_sizes, np.int64)
        has_pairs = self.instances.next_sentence
        first_frame = 1 if self._puts_cls_last else 2  # pieces around the first segment
        return InstanceBlock(
            tokens=concatenate_pieces("ids", *self._frame),
            starts=np.cumsum(lengths) - lengths,
            lengths=lengths,
            first_segments=np.fromiter(
                (first_frame + i.pieces[0].end - i.pieces[0].start for i in instances),
                np.int64,
                count,
            )
            if has_pairs
            else lengths,
            next_sentence_labels=np.fromiter(
                (i.next_sentence_label for i in instances), np.int8, count
            )
            if has_pairs
            else None,
            keys=np.zeros(0, np.uint64),
            continues_unit=concatenate_pieces("continues_unit", *(0 for _ in self._frame))
            if self.with_units
            else None,
        )

    def _read(self, number: int) -> _Document:
        """A document of the corpus, plus the end token if sequences are not framed."""
        ids, offsets = self.corpus.document(number)
        bounds = offsets.tolist()
        continues_unit = self.corpus.continues_unit(number) if self.with_units else None
        if self._end_id is not None:
            ids = np.append(ids, np.array([self._end_id], ids.dtype))
            bounds[-1] += 1
            continues_unit = None if continues_unit is None else np.append(continues_unit, False)
        return _Document(ids, bounds, continues_unit)


def split_held_out(
    corpus: Corpus, held_out: float | int = 0.01, *, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Split the documents into training and held-out documents.

    Args:
        held_out: the number of documents to hold out (int), or their share (float). Copies of a
            document count once.
        seed: determines, with the number of documents, which ones are held out.

    Returns:
        The numbers of the training documents, and of the held-out documents (at least two); both
        rising. A document is not in the training part if a copy of it is held out.

    Raises:
        DataError: the corpus has too few documents.
    """
    originals = np.asarray(corpus.originals)
    distinct = np.unique(originals)
    total = len(distinct)
    count = max(2, held_out if isinstance(held_out, int) else round(held_out * total))
    if total - count < 2:
        raise DataError(
            f"the corpus has {format_count(total, 'document')}: "
            f"too few to hold {count} out and train on the rest",
            fix="Separate documents by blank lines, or prepare a larger corpus.",
        )
    order = hashing.permutation(hashing.derive_key(seed, _HELD_OUT), total)
    held = np.sort(distinct[order[:count]])
    return np.flatnonzero(~np.isin(originals, held)), held


def describe(source: PretrainingSource) -> dict[str, float]:
    """Statistics of a source's instances, computed from its first block.

    Returns:
        An epoch's `documents`, `tokens` and `blocks`; `instances_per_epoch`, an estimate if there
        is more than one block; `mean_length` and `full_length_share` of the sequences; and, for
        formats with pairs, `not_next_share`.
    """
    blocks, first = source.num_blocks(0), source.block(0, 0)
    lengths = first.lengths
    statistics: dict[str, float] = {
        "documents": len(source.documents),
        "tokens": int(source.lengths.sum()),
        "blocks": blocks,
        "instances_per_epoch": len(lengths) * blocks,
    }
    if len(lengths):
        statistics["mean_length"] = float(lengths.mean())
        statistics["full_length_share"] = float(np.mean(lengths == source.instances.max_seq_length))
        if first.next_sentence_labels is not None:
            statistics["not_next_share"] = float(first.next_sentence_labels.mean())
    return statistics
