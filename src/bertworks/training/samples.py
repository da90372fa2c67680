"""Sample fill-ins: held-out sentences with words masked, and what the network makes of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..corpus.shards import Corpus
from ..inference.engine import outputs_of
from ..inference.settings import EngineSettings
from ..tasks.pretraining.source import PretrainingExample
from ..tasks.pretraining.task import PretrainingNetwork, PretrainingTask
from ..text.tokenizer import Tokenizer

_SHORTEST, _LONGEST = 10, 32  # tokens of a sentence that says enough and not too much
_MASKS = 2


def sample_fill_ins(
    network: PretrainingNetwork,
    task: PretrainingTask,
    corpus: Corpus,
    documents: np.ndarray,
    *,
    count: int = 12,
    settings: EngineSettings,
) -> list[dict[str, Any]]:
    """Fill-ins of a sentence from each of the first documents that have one fit for it.

    Args:
        network: whose guesses are asked for.
        task: the network's.
        corpus: where the documents lie.
        documents: their numbers; held-out ones.
        count: how many samples.
        settings: how the network is run.

    Returns:
        For each sample `text`, with `[MASK]` for each masked word, the `answers`, and for each of
        them `guesses`: likeliest first, each with `token` and `probability`.
    """
    tokenizer = task.tokenizer
    samples: list[dict[str, Any]] = []
    examples: list[PretrainingExample] = []
    for ids, places in _sentences(tokenizer, corpus, documents):
        masked = ids.copy()
        masked[places] = tokenizer.mask_id
        samples.append(
            {
                "text": tokenizer.decode(masked, skip_special_tokens=False),
                "answers": [tokenizer.id_to_token(int(piece)) for piece in ids[places]],
            }
        )
        framed = np.concatenate(([tokenizer.cls_id], masked, [tokenizer.sep_id]))
        examples.append(PretrainingExample(framed, len(framed), row=len(examples)))
        if len(samples) == count:
            break
    if examples:
        for outputs, batch in outputs_of(network, task, examples, settings):
            for row, answer in task.decode(outputs, batch).items():
                samples[row]["guesses"] = [
                    [{key: guess[key] for key in ("token", "probability")} for guess in guesses]
                    for guesses in answer["masks"]
                ]
    return samples


def _sentences(
    tokenizer: Tokenizer, corpus: Corpus, documents: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """From each document a sentence's ids, and the places of words in it to be masked."""
    for number in documents.tolist():
        ids, offsets = corpus.document(number)
        for start, end in itertools.pairwise(offsets):
            sentence = ids[start:end].astype(np.int64)
            if not _SHORTEST <= len(sentence) <= _LONGEST:
                continue
            words = _whole_words(tokenizer, sentence)
            if len(words) >= 3 * _MASKS:
                # The longest words are those whose guessing says something.
                lengths = [len(tokenizer.id_to_token(int(sentence[at]))) for at in words]
                chosen = words[np.argsort(lengths, kind="stable")[-_MASKS:]]
                yield sentence, np.sort(chosen)
                break


def _whole_words(tokenizer: Tokenizer, sentence: np.ndarray) -> np.ndarray:
    """The places of words that are a single piece."""
    continues = np.append(tokenizer.goes_on(sentence), False)
    pieces = [tokenizer.id_to_token(int(piece)) for piece in sentence]
    is_word = np.array([piece.isalpha() for piece in pieces])
    return np.flatnonzero(is_word & ~continues[:-1] & ~continues[1:])
