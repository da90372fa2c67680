"""The settings of public functions as keywords, for editors and type checkers.

Written by `python -m tests.keywords` from the settings' fields; a test checks that it is current.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict


class TableKeywords(TypedDict, total=False):
    """Format of a table."""

    encoding: str
    max_line_bytes: int
    header: bool | None
    format: Literal[
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


class EngineKeywords(TypedDict, total=False):
    """Inference."""

    batch_tokens: int | None
    window_rows: int
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16", "int8"]
    deterministic: bool


class RowKeywords(TableKeywords, EngineKeywords, total=False):
    """Format of a table, and inference."""


class PredictKeywords(RowKeywords, total=False):
    """Settings of `predict` and `stream`."""

    coverage: float | None
    labels: Sequence[str]
    hypothesis_template: str


class LabelledTableKeywords(TableKeywords, total=False):
    """Format of a table of labelled rows."""

    drop_unlabelled: bool


class MineKeywords(RowKeywords, total=False):
    """Settings of `mine`."""

    num_negatives: int
    depth: int
    skip: int
    margin: float | None
    rerank_margin: float
    layout: Literal["lists", "pairs", "choices"]
    query_column: str | None
    passage_column: str | None


class RetrievalEvaluationKeywords(EngineKeywords, total=False):
    """Settings of `evaluate_retrieval`."""

    metrics: str | Sequence[str]
    qrels: str | None
    depth: int
    candidates: int | None


class EvaluateKeywords(LabelledTableKeywords, EngineKeywords, total=False):
    """Settings of `evaluate`."""

    documents: int | float
    sequences: int
    seed: int
    max_seq_length: int


class LayerKeywords(TypedDict, total=False):
    """Hidden states to use."""

    layers: Sequence[int]
    combine: Literal["concat", "sum", "mean"]
    layer_weights: Sequence[float] | None
    max_seq_length: int | None
    truncation: Literal["longest_first", "error"]


class VectorKeywords(LayerKeywords, total=False):
    """Text vectors."""

    pooling: str
    dimensions: int | None
    quantization: Literal["none", "int8", "binary"]
    normalize: bool
    prompt: str
    is_query: bool
    include_prompt: bool


class EmbedKeywords(RowKeywords, VectorKeywords, total=False):
    """Settings of `embed`."""


class FeatureKeywords(RowKeywords, LayerKeywords, total=False):
    """Settings of `features_to`."""

    unit: Literal["tokens", "words"]
    pieces: Literal["first", "mean"]


class StaticKeywords(TypedDict, total=False):
    """Settings of `distil_static`."""

    width: int
    sif: float | None


class StaticTrainingKeywords(TypedDict, total=False):
    """Settings of `train_static`."""

    ridge: float


class GenerateKeywords(EngineKeywords, total=False):
    """Settings of `generate`."""

    max_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    stop_ids: Sequence[int]
    seed: int


class ProbeKeywords(TableKeywords, VectorKeywords, total=False):
    """Settings of `probe`."""

    text_column: str | None
    label_column: str | None
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16", "int8"]
    inverse_regularization: float
    max_iterations: int


class CheckLabelsKeywords(ProbeKeywords, total=False):
    """Settings of `check_labels`."""

    folds: int
    seed: int


class CorpusKeywords(TypedDict, total=False):
    """Reading of a corpus."""

    encoding: str
    max_line_bytes: int
    format: Literal[
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
    header: bool | None
    column: str | None
    skip_bad: bool
    drop_duplicates: bool


class PrepareKeywords(CorpusKeywords, total=False):
    """Settings of `prepare`."""

    sentences: Literal["split", "lines"]
    language: str
    spans: Literal["none", "given", "rules"]
    seed: int
    shard_bytes: int


class WordMapKeywords(TypedDict, total=False):
    """Settings of the group `word_map`."""

    trigrams: bool
    norm_eps: float | None


class GlobalTokensKeywords(TypedDict, total=False):
    """Settings of the group `global_tokens`."""

    position: Literal["none", "first", "question", "choice"]
    separator_id: int


class RotaryKeywords(TypedDict, total=False):
    """Settings of the group `rotary`."""

    theta: float
    local_theta: float
    factor: float
    scaling: Literal["linear", "ntk"]
    kind: Literal["halves", "neighbours", "frequencies", "table"]


class LinearGroupsKeywords(TypedDict, total=False):
    """Settings of the group `linear_groups`."""

    query_key_value: int
    attention_output: int
    intermediate: int
    output: int


class ConvolutionKeywords(TypedDict, total=False):
    """Settings of the group `convolution`."""

    kernel_size: int
    groups: int
    activation: Literal["gelu", "gelu_new", "relu", "silu", "tanh"]


class BottleneckKeywords(TypedDict, total=False):
    """Settings of the group `bottleneck`."""

    size: int
    attention: bool
    shared_query_key: bool
    num_feed_forward: int
    norm_eps: float | None


class ScoreBiasKeywords(TypedDict, total=False):
    """Settings of the group `score_bias`."""

    kind: Literal["buckets", "alibi", "disentangled", "transformer-xl"]
    num_buckets: int | None
    max_distance: int
    terms: Sequence[Literal["c2p", "p2c"]]
    shared_maps: bool
    norm: bool
    key_bias: bool


class EncoderKeywords(TypedDict, total=False):
    """Geometry of an encoder."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    hidden_act: Literal["gelu", "gelu_new", "relu", "silu", "tanh"]
    hidden_dropout_prob: float
    attention_probs_dropout_prob: float
    max_position_embeddings: int
    type_vocab_size: int
    initializer_range: float
    layer_norm_eps: float
    family: str
    embedding_size: int | None
    output_embedding_size: int | None
    word_map: WordMapKeywords | None
    num_hidden_groups: int | None
    positions: Literal["learned", "rotary", "sinusoidal", "none"]
    position_offset: int
    task_type_vocab_size: int
    mixer: Literal["attention", "lstm"]
    attention: Literal["bidirectional", "causal", "two-way"]
    max_full_attention: int | None
    num_key_value_heads: int | None
    query_key_value_order: Literal["part", "head"]
    local_attention: int | None
    global_tokens: GlobalTokensKeywords | None
    global_attention_every: int
    rotary: RotaryKeywords
    linear_groups: LinearGroupsKeywords | None
    convolution: ConvolutionKeywords | None
    bottleneck: BottleneckKeywords | None
    score_bias: ScoreBiasKeywords | None
    zeroed_token_id: int | None
    contact_head: bool
    norm_first: bool
    first_layer_norm: bool
    embedding_norm: bool
    use_bias: bool
    intermediate_bias: bool | None
    norm: Literal["layer", "rms", "none"]
    norm_bias: bool
    gated: bool
    keep_pooler: bool
    classifier: Literal[
        "pooler", "tanh", "relu", "gelu", "context", "hidden_act", "norm", "linear", "none"
    ]
    classifier_pooling: Literal["cls", "mean", "last", "late"]
    classifier_dropout: float | None
    tagging_dropout: float | None
    answering_dropout: float | None
    mlm_transform: bool
    mlm_act: Literal["gelu", "gelu_new", "relu", "silu", "tanh"] | None
    mlm_dense_bias: bool | None
    mlm_bias: bool
    tie_word_embeddings: bool


class TrainingKeywords(TypedDict, total=False):
    """Settings of all training."""

    freeze_embeddings: bool
    freeze_layers: int
    unfreeze_every: int | None
    optimizer: Literal["adamw", "lamb"]
    learning_rate: float
    warmup: float
    schedule: Literal[
        "linear", "linear-from-peak", "constant", "slanted-triangular", "warmup-stable-decay"
    ]
    decay_share: float | None
    weight_decay: float
    layer_decay: float
    betas: Sequence[float]
    eps: float
    bias_correction: bool
    max_grad_norm: float
    seed: int
    batch_size: int | None
    micro_batch_size: int | None
    micro_batch_tokens: int | None
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"]
    gradient_checkpointing: bool
    ema: float | None
    log_every: int
    eval_every: int | None
    checkpoint_every: int | None
    keep_checkpoints: int
    deterministic: bool
    cuda_graphs: bool
    sharding: Literal["none", "full"]
    rank_timeout: float
    tensorboard: bool
    tracking: Literal["mlflow", "wandb"] | None


class ModelKeywords(EncoderKeywords, total=False):
    """Settings of the group `model`."""

    size: Literal["tiny", "mini", "small", "medium", "base", "large"] | None


class PhaseKeywords(TypedDict, total=False):
    """Settings of the group `phases`."""

    max_seq_length: int
    share: float
    batch_size: int | None
    batch_tokens: int | None


class InstanceKeywords(TypedDict, total=False):
    """Settings of the group `instances`."""

    format: Literal[
        "segment-pair", "sentence-pair", "sentence-order", "full-sentences", "doc-sentences"
    ]
    max_seq_length: int
    short_seq_prob: float
    next_sentence_balance: Literal["original", "exact"]


class MaskingKeywords(TypedDict, total=False):
    """Settings of the group `masking`."""

    mlm_probability: float
    mask_ratio: float
    random_ratio: float
    max_predictions_per_sequence: int | None
    unit: Literal["token", "whole-word", "span", "knowledge"]
    span_lengths: Literal["harmonic", "geometric"]
    max_span_words: int
    span_geometric_p: float
    replace: Literal["token", "span"]
    static: bool
    dupe_factor: int


class HeldOutKeywords(TypedDict, total=False):
    """Settings of the group `held_out`."""

    documents: int | float
    sequences: int
    seed: int | None


class DistillationKeywords(TypedDict, total=False):
    """Settings of the group `distillation`."""

    teacher: str
    temperature: float
    soft_weight: float
    mlm_weight: float
    cosine_weight: float
    initialize: bool


class ReplacedTokensKeywords(TypedDict, total=False):
    """Settings of the group `replaced_tokens`."""

    weight: float
    generator_share: float
    generator_layers: float
    sharing: Literal["tied", "gradient-disentangled"]


class SkipGramKeywords(TypedDict, total=False):
    """Settings of the group `skip_gram`."""

    window: int
    negatives: int
    subsample: float


class PretrainKeywords(TrainingKeywords, total=False):
    """Settings of `pretrain`."""

    batch_tokens: int | None
    eval_first: bool
    loader_workers: int
    data: str
    objective: Literal[
        "mlm",
        "causal",
        "replaced_tokens",
        "distillation",
        "skip_gram",
        "permutation",
        "masked_permutation",
    ]
    model: ModelKeywords
    init_checkpoint: str | None
    init_generator: str | None
    initial_attention: Literal["random", "neighbours"]
    allow_leak: bool
    steps: int
    phases: Sequence[PhaseKeywords]
    instances: InstanceKeywords
    masking: MaskingKeywords
    held_out: HeldOutKeywords
    distillation: DistillationKeywords | None
    replaced_tokens: ReplacedTokensKeywords | None
    skip_gram: SkipGramKeywords | None


class FinetuneKeywords(TrainingKeywords, total=False):
    """Settings of `finetune`, for any task."""

    lora_rank: int | None
    lora_alpha: float | None
    lora_dropout: float
    lora_targets: Sequence[str]
    epochs: float
    unfreeze_epochs: float | None
    bucket_batches: int
    table_sampling: Literal["proportional", "round-robin"]
    best_metric: str | None
    early_stopping: int | None
    dev_seed: int
    teacher: str | None
    temperature: float
    reinitialize: bool
    reinitialize_layers: int


class TaskKeywords(FinetuneKeywords, TableKeywords, total=False):
    """Settings of the package's tasks."""

    drop_unlabelled: bool
    max_seq_length: int
    dropout: float | None
    text_column: str | None
    pair_column: str | None
    label_column: str | None
    truncation: Literal["longest_first", "first", "second", "error", "windows"]
    stride: int | None
    window_pooling: Literal["mean", "max"]
    classifier_pooling: Literal["cls", "mean", "last", "late"] | None
    both_orders: bool
    lm_weight: float
    balance_classes: bool
    calibrate: bool
    positive_label: str | None
    no_label: str | None
    label_smoothing: float
    few_shot: bool
    pairs_per_row: int
    label_separator: str
    word_column: str | None
    tag_column: str | None
    scheme: Literal["bio", "bioes", "plain"]
    labelled_piece: Literal["first", "last", "all"]
    decoding: Literal["constrained", "free"]
    document_context: bool
    document_column: str | None
    max_question_tokens: int
    max_answer_tokens: int
    n_best: int
    span_loss: Literal["mean", "sum"]
    softmax: Literal["sequence", "passage"]
    question_column: str | None
    context_column: str | None
    answers_column: str | None
    start_column: str | None
    impossible_column: str | None
    prompt_column: str | None
    choice_columns: str | Sequence[str] | None
    first_number: Literal[0, 1] | None
    scale: float | None
    symmetric: bool
    margin: float
    dimensions: Sequence[int] | None
    query_prompt: str | Sequence[str]
    passage_prompt: str | Sequence[str]
    score_range: Sequence[float] | None
    chunk_tokens: int | None
    query_column: str | None
    passage_column: str | None
    negative_columns: str | Sequence[str] | None
    score_column: str | None
    query_texts: str | None
    passage_texts: str | None
    loss: (
        Literal["in-batch", "triplet", "margin-mse", "kl", "cosine", "cosent", "angle"]
        | Sequence[Literal["in-batch", "triplet", "margin-mse", "kl", "cosine", "cosent", "angle"]]
        | None
    )
    pooling: str | None
    query_regularization: float
    passage_regularization: float
    regularization_warmup: int
    query_length: int
    projection_size: int
    query_marker: str | None
    passage_marker: str | None
    skipped_words: Sequence[str] | None
    source_column: str | None
    target_column: str | None


class TaggingProbeKeywords(TypedDict, total=False):
    """Settings of the group `probe`."""

    lstm_hidden_size: int
    lstm_layers: int
    dropout: float
    epochs: float
    batch_size: int
    learning_rate: float
    max_grad_norm: float
    bucket_batches: int


class AblationKeywords(TableKeywords, total=False):
    """Settings of `ablate_features`."""

    drop_unlabelled: bool
    max_seq_length: int
    dropout: float | None
    word_column: str | None
    tag_column: str | None
    scheme: Literal["bio", "bioes", "plain"]
    labelled_piece: Literal["first", "last", "all"]
    decoding: Literal["constrained", "free"]
    stride: int | None
    document_context: bool
    document_column: str | None
    seeds: Sequence[int]
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"]
    probe: TaggingProbeKeywords
    finetune: FinetuneKeywords | None
