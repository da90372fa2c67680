"""The values that settings and options take, where those are a few words.

The command line and the library share them; nothing is imported, so that `--help` is fast.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

Device: TypeAlias = Literal["auto", "cpu", "cuda", "mps"]
"""Where a network runs."""

Precision: TypeAlias = Literal["auto", "fp32", "bf16"]
"""`auto` is bf16 where the device is faster at it, else fp32; what was begun is resumed as it was.

In bf16 hidden states are bfloat16; weights and their summed gradients stay float32.
"""

InferencePrecision: TypeAlias = Literal["auto", "fp32", "bf16", "int8"]
"""What a trained network computes in. `int8`: the linear maps of the layers take 8-bit weights and
8-bit inputs, each output and each token with a scale; the rest is as with `auto`.
"""

SavedPrecision: TypeAlias = Literal["fp32", "bf16", "int8"]
"""What the weights in a model's file are."""

TableFormat: TypeAlias = Literal[
    "auto",
    "tsv",
    "csv",
    "jsonl",
    "json",
    "parquet",
    "conll",
    "conllu",
    "label-text",
    "text",
]
"""What a table's file is. `json`: one document, an array of objects or SQuAD's; `label-text`: a
label, a space and a text on each line; `text`: a text on each line; auto: by suffix, else by
content."""

Objective: TypeAlias = Literal["mlm", "causal", "replaced_tokens", "distillation", "skip_gram"]
"""What an encoder is pre-trained for: to predict masked tokens (BERT) or each next one (GPT), to
predict replaced tokens (ELECTRA), or masked tokens from a teacher too (DistilBERT)."""

InitialAttention: TypeAlias = Literal["random", "neighbours"]
"""How attention begins: as random weights make it, or on neighbouring tokens."""

CorpusFormat: TypeAlias = Literal["auto", "text", "wiki", "jsonl", "parquet"]
"""How the files of a corpus hold their documents."""

Sentences: TypeAlias = Literal["split", "lines"]
"""How paragraphs become sentences: by rules, or each line is one already."""

SpanSource: TypeAlias = Literal["none", "given", "rules"]
"""Where spans to mask come from: nowhere; the documents; or, for one without any, rules."""

ScoredTask: TypeAlias = Literal["answering", "tagging", "classification", "regression"]
"""What predictions are scored for."""

Pooling: TypeAlias = Literal[
    "mean", "cls", "max", "mean-sqrt", "weighted-mean", "sep", "pooler", "mean+max"
]
"""How the vectors of a sequence's tokens, special tokens included, become one vector.

- `mean`: the mean;
- `cls`: the first token's vector, that of `[CLS]`;
- `max`: the largest value of each feature;
- `mean-sqrt`: the sum over the square root of the length;
- `weighted-mean`: the mean with weights 1, 2, 3, …: for causal models, whose later tokens have seen
  more. Source: Muennighoff (2022), "SGPT", §4.1.1;
- `sep`: the last token's vector, in BERT that of `[SEP]`;
- `pooler`: the pooler's output for the first token. Source: the paper's code, §3.2 "C";
- `mean+max`: mean and max, concatenated.
"""

Combine: TypeAlias = Literal["concat", "sum", "mean"]
"""What is done with the vectors of several layers."""
