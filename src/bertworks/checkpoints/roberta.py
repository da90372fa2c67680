"""RoBERTa, and XLM-RoBERTa and CamemBERT, which differ from it in their vocabularies."""

from __future__ import annotations

from .family import (
    NO_DECODER,
    Family,
    embedding_keys,
    key_map,
    layer_keys,
    same_names,
    unused_constants,
)
from .heads import task_classes, task_tensors


def _family(name: str, classes: str) -> Family:
    return Family(
        name=name,
        settings=same_names(),
        keys=key_map(
            {
                **embedding_keys("roberta.embeddings"),
                **layer_keys("roberta.encoder.layer.{}"),
                "encoder.pooler.dense": "roberta.pooler.dense",
                "mlm_head.transform.dense": "lm_head.dense",
                "mlm_head.transform.norm": "lm_head.layer_norm",
                "mlm_head.bias": "lm_head.bias",
                "mlm_head.decoder": "lm_head.decoder.weight",
                "head.transform": "classifier.dense",
                "head.linear": "classifier.out_proj",
                **task_tensors(),
            }
        ),
        prefix="roberta.",
        bare_prefixes=("embeddings.", "encoder.", "pooler."),
        classes={
            "encoder": f"{classes}Model",
            "masked-lm": f"{classes}ForMaskedLM",
            **task_classes(classes),
        },
        dropouts=dict.fromkeys(("classification", "tagging"), "classifier_dropout"),
        # Padding has position 1, so that a sequence begins at position 2.
        fixed_settings={"position_offset": 2, "classifier": "tanh", "mlm_act": "gelu"},
        defaults={
            "pad_token_id": 1,
            "max_position_embeddings": 514,
            "type_vocab_size": 1,
            "layer_norm_eps": 1e-5,
        },
        # Other tools derive the first position from pad_token_id, whatever the tokenizer pads with.
        extra=lambda config: {"pad_token_id": config.position_offset - 1},
        token_ids={"bos_token_id": "cls", "eos_token_id": "sep"},
        required_values={"position_embedding_type": "absolute", "pad_token_id": 1, **NO_DECODER},
        unused_tensors=(
            *unused_constants("roberta."),
            (r"lm_head\..*", "the head of pre-training, which this task does not have"),
            (r"roberta\.pooler\..*", "the pooler, which this task does not have"),
            (r"(classifier|qa_outputs)\..*", "the head of another task"),
        ),
    )


ROBERTA = _family("roberta", "Roberta")
XLM_ROBERTA = _family("xlm-roberta", "XLMRoberta")
CAMEMBERT = _family("camembert", "Camembert")
