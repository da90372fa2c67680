"""The runs that are kept half-way: command lines as users typed them at the fixtures' commit.

`make` writes them down beside the runs; the tests read them there, so that a change here does not
change what is tested.
"""

from __future__ import annotations

_PRETRAIN = (
    "model.hidden_size=8",
    "model.num_hidden_layers=2",
    "model.num_attention_heads=2",
    "model.intermediate_size=16",
    "model.max_position_embeddings=32",
    "model.hidden_dropout_prob=0.1",
    "steps=12",
    "batch_size=4",
    "held_out={documents: 3, sequences: 8}",
    "data=prepared",
    "precision=fp32",
    "log_every=2",
    "eval_every=4",
    "checkpoint_every=5",
    "keep_checkpoints=1",
    "tensorboard=false",
)
_FINETUNE = (
    "max_seq_length=32",
    "batch_size=8",
    "epochs=3",
    "learning_rate=5e-3",
    "log_every=2",
    "eval_every=3",
    "checkpoint_every=5",
)
_CPU = ("--device", "cpu", "--threads", "1")


def _pretrain(recipe: str, name: str, *words: str) -> tuple[str, ...]:
    return ("pretrain", recipe, *_PRETRAIN, *words, "--out", f"runs/{name}", *_CPU)


def _finetune(task: str, table: str, name: str, *words: str) -> tuple[str, ...]:
    suffix = "json" if table.startswith("squad") else "jsonl"
    train, dev = (f"tables/{table}-{part}.{suffix}" for part in ("train", "dev"))
    where = ("--train", train, "--dev", dev, "--out", f"runs/{name}")
    return ("finetune", task, "--model", "models/small", *where, *_FINETUNE, *words, *_CPU)


RUNS: dict[str, tuple[str, ...]] = {
    "pretrain-dynamic": _pretrain(
        "tiny",
        "pretrain-dynamic",
        "phases=[{max_seq_length: 16, share: 0.5}, "
        "{max_seq_length: 24, share: 0.5, batch_size: 3}]",
        "masking.unit=whole-word",
        "micro_batch_tokens=40",
        "optimizer.lr=1e-2",
    ),
    "pretrain-static": _pretrain(
        "paper",
        "pretrain-static",
        "model.size=null",
        "phases=[{max_seq_length: 24}]",
        "masking.dupe_factor=2",
        "masking.unit=knowledge",
        "optimizer.warmup=3",
        "optimizer.lr=1e-2",
        "ema=0.8",
    ),
    "pretrain-adapt": (
        "pretrain",
        "adapt",
        *(word for word in _PRETRAIN if not word.startswith(("model.", "batch_size"))),
        "init_checkpoint=models/small",
        "instances.format=doc-sentences",
        "masking.unit=span",
        "masking.max_span_words=2",
        "phases=[{max_seq_length: 24}]",
        "batch_size=null",
        "batch_tokens=90",
        "optimizer.name=lamb",
        "optimizer.lr=1e-2",
        "freezing.layers=1",
        *("--out", "runs/pretrain-adapt", *_CPU),
    ),
    "pretrain-electra": _pretrain(
        "electra-small",
        "pretrain-electra",
        "model.embedding_size=6",
        "phases=[{max_seq_length: 24}]",
        "replaced_tokens={generator_share: 0.5}",
        "optimizer.warmup=3",
        "optimizer.lr=1e-2",
    ),
    "pretrain-distillation": _pretrain(
        "tiny",
        "pretrain-distillation",
        "model.num_hidden_layers=1",
        "phases=[{max_seq_length: 24}]",
        "distillation={teacher: models/small, temperature: 1.5, soft_weight: 4.0}",
        "optimizer.lr=1e-2",
    ),
    "pretrain-causal": _pretrain(
        "tiny",
        "pretrain-causal",
        "model.attention=causal",
        "phases=[{max_seq_length: 24}]",
        "instances.format=full-sentences",
        "optimizer.lr=1e-2",
    ),
    "classification": _finetune(
        "classification",
        "single",
        "classification",
        "label_smoothing=0.1",
        "balance_classes=true",
        "dropout=0.2",
        "best_metric=accuracy",
    ),
    "several-labels": _finetune(
        "classification", "several", "several-labels", "multi_label=true", "bias_correction=false"
    ),
    "windows": _finetune(
        "classification",
        "single",
        "windows",
        "truncation=windows",
        "max_seq_length=10",
        "stride=3",
        "window_pooling=max",
        "micro_batch_tokens=60",
    ),
    "careful": _finetune(
        "classification",
        "pair",
        "careful",
        "ema=0.9",
        "layer_decay=0.8",
        "freeze_layers=1",
        "unfreeze_epochs=0.5",
        "early_stopping=2",
        "schedule=slanted-triangular",
        "gradient_checkpointing=true",
        "bucket_batches=2",
        "epochs=8",
        "learning_rate=1e-4",
    ),
    "lora": _finetune(
        "classification", "pair", "lora", "lora_rank=2", "lora_alpha=8", "both_orders=true"
    ),
    "student": _finetune(
        "classification", "single", "student", "teacher=models/classification", "temperature=2.0"
    ),
    "regression": _finetune(
        "regression", "scored", "regression", "reinitialize_layers=1", "classifier_pooling=mean"
    ),
    "tagging": _finetune(
        "tagging", "words", "tagging", "document_context=true", "labelled_piece=all", "stride=8"
    ),
    "answering": _finetune(
        "answering", "squad2", "answering", "stride=8", "n_best=5", "max_question_tokens=10"
    ),
    "choice": _finetune("choice", "choice", "choice", "weight_decay=0.1", "warmup=2"),
    "retrieval": _finetune(
        "retrieval", "query", "retrieval", "pooling=mean", "scale=10", "symmetric=true"
    ),
    "grid": (
        *("finetune", "classification", "--model", "models/small"),
        *("--train", "tables/single-train.jsonl", "--dev", "tables/single-dev.jsonl"),
        *("--out", "runs/grid", "--grid", "learning_rate=1e-3,1e-2", "--seeds", "1,"),
        *(*_FINETUNE[:3], "log_every=3", "eval_every=4", "checkpoint_every=4", *_CPU),
    ),
    "glue": (
        *("glue", "--model", "models/small", "--data", "glue", "--out", "runs/glue"),
        *("--tasks", "mrpc,rte", *_FINETUNE[:2], "epochs=5", "learning_rate=5e-3"),
        *("log_every=4", "eval_every=4", "checkpoint_every=4", *_CPU),
    ),
    "ablate": (
        *("ablate", "features", "--model", "models/small"),
        *("--train", "tables/words-train.jsonl", "--dev", "tables/words-dev.jsonl"),
        *(
            "--out",
            "runs/ablate",
            "max_seq_length=32",
            "probe.lstm_hidden_size=4",
            "probe.epochs=1",
        ),
        *("probe.batch_size=16", "finetune.epochs=1", "finetune.batch_size=8"),
        *("finetune.learning_rate=5e-3", "finetune.checkpoint_every=2", *_CPU),
    ),
}
"""The command line of each run, by the run's name."""

KILLED_AT = {"grid": 12 + 7, "glue": 10 + 7, "ablate": 10 + 3, "careful": 9}
"""The step, counted over all runs of a command, in which it was killed; 8 if not named.

Steps before the last checkpoint are in the journal, and so are some after it, which resuming has to
forget.
"""
