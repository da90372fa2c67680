"""Skip-gram with negative sampling: static vectors that predict the neighbours of a token.

A pair is a token (the centre) and another token in a window around it. The centre's vector v has to
distinguish the other token's vector u from the vectors u' of randomly drawn pieces (negatives):

    loss = softplus(-v·u) + Σ softplus(v·u')    v: encoder's embeddings, u: context embeddings

The encoder has no layers and no positions, so that a token's vector is its piece's embedding.
Frequent pieces are dropped at random before windows are formed. The window size of each token is
drawn, so that nearer tokens form pairs more often. Negatives are drawn in proportion to their count
in the corpus to the power of 3/4. All draws are pure functions of a sequence's key and of positions
in the sequence.

Source: Mikolov et al. (2013), "Distributed representations of words and phrases and their
compositionality", §2.2 and §2.3; their code for details that the paper omits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64
from torch import Tensor, nn

from ...data.shards import Corpus
from ...nn.config import EncoderConfig
from ...nn.encoder import Encoder
from ...packed import Batch
from ...text.tokenizer import Tokenizer
from ..network import Network
from . import hashing
from .evaluator import PretrainingEvaluator
from .instances import InstanceSettings
from .settings import SkipGramSettings
from .source import PretrainingExample
from .task import PretrainingTask

_REACH = np.uint64(1 << 60)  # mixed into a token's bits: its window is an independent draw


class SkipGramNetwork(Network):
    """An encoder without layers, and context embeddings, which are initialised to zero."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.encoder = Encoder(config, pooler=False)
        self.contexts = nn.Embedding(config.vocab_size, config.hidden_size)
        nn.init.zeros_(self.contexts.weight)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return `skip_gram`, the summed loss of pairs; ignore negatives equal to the label."""
        candidates, scores = batch.targets["candidates"], self._scores(batch)
        is_wrong = candidates[:, :-1] != candidates[:, -1:]
        negatives_loss = (F.softplus(scores[:, :-1]) * is_wrong).sum()
        return {"skip_gram": F.softplus(-scores[:, -1]).sum() + negatives_loss}

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Return `mlm_logits` `[pairs, negatives + 1]`: candidates' scores, the label's last."""
        return {"mlm_logits": self._scores(batch)}

    def _scores(self, batch: Batch) -> Float[Tensor, "pairs candidates"]:
        vectors = self.encoder(batch.packed).index_select(0, batch.targets["centres"])
        contexts = self.contexts(batch.targets["candidates"]).to(vectors.dtype)
        scores: Tensor = (vectors[:, None] * contexts).sum(-1, dtype=torch.float32)
        return scores


class SkipGramTask(PretrainingTask):
    """Skip-gram pairs from instances like those of causal language models.

    Args:
        corpus: directory of the prepared corpus, whose pieces are counted for the first batch.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        instances: InstanceSettings,
        settings: SkipGramSettings,
        corpus: str,
    ) -> None:
        super().__init__(tokenizer, instances, causal=True)
        self.settings, self.corpus = settings, corpus

    @cached_property
    def counts(self) -> Float64[np.ndarray, " pieces"]:
        """The count of each piece in the corpus; 0 for special pieces."""
        corpus, size = Corpus.open(self.corpus), self.tokenizer.vocab_size
        counts = np.zeros(size)
        for number in range(corpus.num_documents):
            counts += np.bincount(corpus.document(number)[0], minlength=size)
        counts[self.tokenizer.special_ids] = 0
        return counts

    @cached_property
    def _probabilities(self) -> tuple[np.ndarray, np.ndarray]:
        """Per piece, the probability of keeping a token, and the cumulative one of drawing it."""
        ratio = self.settings.subsample * self.counts.sum() / np.maximum(1, self.counts)
        cumulative = np.cumsum(self.counts**0.75)
        return np.where(self.counts, np.sqrt(ratio) + ratio, 0.0), cumulative / cumulative[-1]

    def collate(self, examples: Sequence[PretrainingExample]) -> Batch:
        """Pack examples and form pairs.

        `targets` are `centres` `[pairs]`, indices of tokens in the pack; `candidates` `[pairs,
        negatives + 1]`, the negatives and then the other token of each pair; and `masked_labels`
        `[pairs]`, the index of the correct candidate, always the last.
        """
        packed, settings = super().collate(examples).packed, self.settings
        keep_probabilities, cumulative_probabilities = self._probabilities
        keys = np.array([examples[row].key for row in packed.sequence_row], np.uint64)
        bits = hashing.draw(np.repeat(keys, packed.lengths), packed.position_ids)
        positions = np.flatnonzero(hashing.uniform(bits) < keep_probabilities[packed.input_ids])
        sequence = np.repeat(np.arange(len(keys)), packed.lengths)[positions]
        reach = 1 + hashing.integers_below(hashing.mix(bits[positions] ^ _REACH), settings.window)
        pairs = []
        for distance in range(1, settings.window + 1):
            first = np.arange(max(0, len(positions) - distance))
            first = first[sequence[first] == sequence[first + distance]]
            for centre, other in ((first, first + distance), (first + distance, first)):
                is_near = reach[centre] >= distance
                pairs.append(np.stack([positions[centre[is_near]], positions[other[is_near]]]))
        centres, others = np.concatenate(pairs, 1)
        other_positions = packed.position_ids[others][:, None]
        counters = other_positions * settings.negatives + np.arange(settings.negatives)
        uniform_draws = hashing.uniform(hashing.draw(bits[centres][:, None], counters))
        pieces = np.searchsorted(cumulative_probabilities, uniform_draws, side="right")
        candidates = np.concatenate([pieces, packed.input_ids[others][:, None]], 1)
        labels = np.full(len(centres), settings.negatives)
        targets = {"centres": centres, "candidates": candidates, "masked_labels": labels}
        return Batch(packed, targets, {"skip_gram": len(centres)})

    def evaluator(self) -> PretrainingEvaluator:
        """Metrics `skip_gram_…`: how well the other token is distinguished from the negatives."""
        return PretrainingEvaluator("skip_gram")
