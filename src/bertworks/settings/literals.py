"""Types of settings and options that allow only a few words.

The command line and the library share them; nothing is imported here, so that `--help` is fast.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

Device: TypeAlias = Literal["auto", "cpu", "cuda", "mps"]
"""Device on which a network runs."""

Precision: TypeAlias = Literal["auto", "fp32", "tf32", "bf16", "fp16"]
"""`auto` is bf16 if the device is faster at it, else fp32; a resumed run keeps its precision.

In bf16 hidden states are bfloat16; weights and their summed gradients stay float32. fp16 is for
CUDA: hidden states are float16, and in training the loss is scaled. Training chooses it on cards
without bfloat16. tf32 is fp32 whose products of matrices round their factors to 11 bits, on CUDA.
"""

Backend: TypeAlias = Literal["auto", "native", "torch"]
"""What computes: native code alone, or PyTorch."""
InferencePrecision: TypeAlias = Literal["auto", "fp32", "tf32", "bf16", "fp16", "int8"]
"""Precision of inference. `tf32` and `fp16` are for CUDA, `int8` for CPUs: the linear maps of the
layers have 8-bit weights and 8-bit inputs, with a scale for each output and each token; the rest is
as with `auto`.
"""

Quantization: TypeAlias = Literal["none", "int8", "binary"]
"""Vectors as they are, as 8-bit integers, or as bits: the signs of their numbers."""

SavedPrecision: TypeAlias = Literal["fp32", "bf16", "int8"]
"""Precision of the weights in a model's file."""

DataFormat: TypeAlias = Literal[
    "auto",
    "text",
    "tsv",
    "csv",
    "jsonl",
    "json",
    "parquet",
    "conll",
    "conllu",
    "label-text",
    "wiki",
]
"""Format of a file of data. `text`: in a table one text on each line, in a corpus with a blank line
between documents; `json`: one document, an array of objects or SQuAD's; `label-text`: a label, a
space and a text on each line; `wiki`: WikiExtractor's `<doc>`s; auto: see `data/formats.py`."""

Objective: TypeAlias = Literal[
    "mlm",
    "causal",
    "replaced_tokens",
    "distillation",
    "skip_gram",
    "permutation",
    "masked_permutation",
]
"""Objective of pre-training: predict masked tokens (BERT), each next token (GPT), which tokens were
replaced (ELECTRA), masked tokens with a teacher (DistilBERT), nearby tokens (word2vec), or tokens
in a random order, without (XLNet) or with [MASK]s at the positions of later ones (MPNet)."""

InitialAttention: TypeAlias = Literal["random", "neighbours"]
"""Initialisation of attention: random weights, or weights that attend to neighbouring tokens."""

Sentences: TypeAlias = Literal["split", "lines"]
"""How paragraphs are split into sentences: by rules, or each line is a sentence."""

SpanSource: TypeAlias = Literal["none", "given", "rules"]
"""Source of the spans to mask: none; the documents; or rules, for documents without spans."""

ScoredTask: TypeAlias = Literal["answering", "tagging", "classification", "regression", "retrieval"]
"""Task whose predictions are scored."""

PoolingMode: TypeAlias = Literal[
    "mean", "cls", "max", "mean-sqrt", "weighted-mean", "sep", "pooler"
]
"""How the vectors of a sequence's tokens, special tokens included, become one vector.

- `mean`: the mean;
- `cls`: the first token's vector, that of `[CLS]`;
- `max`: the largest value of each feature;
- `mean-sqrt`: the sum divided by the square root of the length;
- `weighted-mean`: the mean with weights 1, 2, 3, …: for causal models, whose later tokens have seen
  more. Source: Muennighoff (2022), "SGPT", §4.1.1;
- `sep`: the last token's vector, in BERT that of `[SEP]`;
- `pooler`: the pooler's output for the first token. Source: the paper's code, §3.2 "C".
"""

SparsePooling: TypeAlias = Literal[
    "splade-max", "splade-sum", "splade-max-log", "splade-sum-log", "piece-weights"
]
"""How the masked-language-model head's logits of a text's tokens become one sparse vector, with a
number for each piece of the vocabulary: the largest or the sum of `log(1 + max(0, logit))`.

With `-log`, of the logarithm of 1 plus that. Source: Formal et al. (2021), "SPLADE", §3.2, and
"SPLADE v2", §3; for the second logarithm Geng et al. (2025), "Competitive Search Relevance For
Inference-Free Learned Sparse Retrievers".
"""

Pooling: TypeAlias = str
"""One of `PoolingMode` or `SparsePooling`, or several modes joined by `+`, such as `mean+max`: the
vectors side by side."""

Combine: TypeAlias = Literal["concat", "sum", "mean"]
"""How the vectors of several layers are combined."""

SimilarityFunction: TypeAlias = Literal["cosine", "dot", "euclidean", "manhattan", "maxsim"]
"""How the vectors of two texts are compared; distances are negative, so that more is more similar.

`maxsim` compares the matrices of late interaction: for each row of the first, the largest inner
product with a row of the second; their sum.
"""

MAX_POSITIONS = 1_000_000
"""Maximum number of positions that a model is extended to: their vectors take gigabytes."""
