"""Claims about pre-training: small runs that differ in a setting, half a minute each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..data.shards import Corpus
from ..inference.engine import outputs_of
from ..inference.settings import EngineSettings
from ..loading import load
from ..tasks.pretraining.instances import InstanceSettings
from ..tasks.pretraining.masking import MaskingSettings
from ..tasks.pretraining.network import PretrainingNetwork
from ..tasks.pretraining.source import PretrainingSource, split_held_out
from ..tasks.pretraining.task import PretrainingTask
from .bench import STEPS, Lab
from .claims import compare_arms
from .learning import Number, after_finetuning

Changes = Mapping[str, Any]

_ONLY: Changes = {"masking": {"mask_ratio": 1.0, "random_ratio": 0.0}}
_RANDOM: Changes = {"masking": {"mask_ratio": 0.8, "random_ratio": 0.2}}
_KEEP_TOKENS: Changes = {"masking": {"mask_ratio": 0.8, "random_ratio": 0.0}}
_EVERY: Changes = {"masking": {"mlm_probability": 1.0, "mask_ratio": 0.0, "random_ratio": 0.0}}
FULL_SENTENCES: Changes = {
    "instances": {"format": "full-sentences", "next_sentence_balance": "original"}
}
CAUSAL: Changes = {**FULL_SENTENCES, "objective": "causal", "masking": None}
LEFT: Changes = {**CAUSAL, "model": {"attention": "causal"}}
CENTRED_WINDOW: Changes = {  # as wide as two of `LEFT`
    **CAUSAL,
    "model": {"attention": "two-way", "family": "bertworks", "hidden_size": 256}
    | {"num_attention_heads": 16, "intermediate_size": 1024},
}
_LEAK: Changes = {**CAUSAL, "model": {"attention": "bidirectional"}, "allow_leak": True}
RANDOM_ATTENTION: Changes = {"initial_attention": "random"}
_FEW, _MANY = STEPS // 4, 8 * STEPS
_SMALL: Changes = {"hidden_size": 32, "intermediate_size": 128, "num_attention_heads": 4}
_ADAPT: Changes = {
    **{"by_model": True, "steps": _FEW, "learning_rate": 5e-4},
    **{"initial_attention": None, "model": None},
}


def after_pretraining(what: str, *parts: Changes, **changes: Any) -> Number:
    """Return a function that pre-trains a small model and returns a measurement of it.

    Args:
        what: a held-out metric; `frozen` or `frozen [CLS]`, the accuracy of logistic regression on
            vectors of 1,000 texts; `fine-tuned`, the accuracy of fine-tuning on 1,000 texts; or a
            name in `_places`.
        parts, changes: the settings that differ from the lab's.
    """
    settings = {key: value for part in (*parts, changes) for key, value in part.items()}

    def measure(lab: Lab, seed: int) -> float:
        run, metrics = lab.pretrained(seed, **settings)
        if what.startswith("frozen"):
            return lab.probe_accuracy(run, seed, pooling="cls" if "[CLS]" in what else "mean")
        if what == "fine-tuned":
            return lab.finetuned_model(run, seed)
        return metrics[what] if what in metrics else _places(lab, run)[what]

    return measure


def _places(lab: Lab, run: Path) -> Mapping[str, float]:
    """Return mean probabilities at held-out positions of masked, random and kept tokens.

    `right at random` is the probability of the original token, `seen at random` that of the random
    token in the input; likewise for `masked` and `kept`.
    """

    def make(_: Path) -> Mapping[str, float]:
        corpus, model = Corpus.open(lab.prepared_corpus()), load(run, device="cpu")
        assert isinstance(model.network, PretrainingNetwork)
        settings = InstanceSettings(max_seq_length=48)
        held = split_held_out(corpus, 0.05, seed=0)[1]
        source = PretrainingSource(corpus, held, model.tokenizer, settings, seed=0)
        thirds = MaskingSettings(mask_ratio=1 / 3, random_ratio=1 / 3)
        task = PretrainingTask(model.tokenizer, settings, thirds)
        accuracies: dict[str, list[float]] = {}
        examples = list(source.examples(limit=1000))
        for outputs, batch in outputs_of(model.network, task, examples, EngineSettings()):
            chances = outputs["mlm_logits"].float().softmax(-1)
            right = batch.targets["masked_labels"]
            masked_inputs = batch.packed.input_ids[batch.targets["masked_positions"]]
            masked, kept = masked_inputs == model.tokenizer.mask_id, masked_inputs == right
            kinds = {"masked": masked, "random": ~(masked | kept), "kept": kept}
            for what, pieces in (("right", right), ("seen", masked_inputs)):
                values = chances.gather(1, pieces[:, None])[:, 0]
                for kind, places in kinds.items():
                    accuracies.setdefault(f"{what} at {kind}", []).extend(values[places].tolist())
        return {name: float(torch.tensor(values).mean()) for name, values in accuracies.items()}

    return lab.cached_run("places", {"run": run.name}, make)[1]


compare_arms(
    "mask-only",
    {
        "80/10/10": after_pretraining("right at kept"),
        "[MASK] alone": after_pretraining("right at kept", _ONLY),
    },
)
compare_arms(
    "mask-and-random",
    {
        "80/10/10": after_pretraining("seen at kept"),
        "no kept words": after_pretraining("seen at kept", _RANDOM),
    },
)
compare_arms(
    "mask-and-kept",
    {
        "no random words": after_pretraining("seen at random", _KEEP_TOKENS),
        "80/10/10": after_pretraining("seen at random"),
    },
)
compare_arms(
    "mask-ratios",
    {
        "frozen, 80/10/10": after_pretraining("frozen"),
        "frozen, [MASK] alone": after_pretraining("frozen", _ONLY),
        "fine-tuned, 80/10/10": after_pretraining("fine-tuned"),
        "fine-tuned, [MASK] alone": after_pretraining("fine-tuned", _ONLY),
    },
)
compare_arms(
    "predict-every-word",
    {
        "predicted, none masked": after_pretraining("mlm_accuracy", _EVERY),
        "predicted, masked": after_pretraining("mlm_accuracy"),
        "99 in a hundred": lambda *_: 0.99,
        "frozen, none masked": after_pretraining("frozen", _EVERY),
        "frozen, masked": after_pretraining("frozen"),
    },
)
compare_arms(
    "cheating",
    {
        "both sides": after_pretraining("lm_accuracy", _LEAK),
        "left side": after_pretraining("lm_accuracy", LEFT),
    },
)
_NETWORKS = {"bidirectional": FULL_SENTENCES, "left-to-right": LEFT, "side by side": CENTRED_WINDOW}
compare_arms(
    "deeply-bidirectional",
    {name: after_pretraining("fine-tuned", how) for name, how in _NETWORKS.items()},
)
compare_arms(
    "slower-at-first",
    {
        f"{name}, {when}": after_pretraining("fine-tuned", how, RANDOM_ATTENTION, steps=steps)
        for name, how in (("left-to-right", LEFT), ("masked", FULL_SENTENCES))
        for when, steps in (("early", _FEW), ("later", STEPS), ("late", _MANY))
    },
)
compare_arms(
    "more-steps",
    {
        f"{name}, {when}": after_pretraining(what, steps=steps)
        for name, what in (("predicted", "mlm_accuracy"), ("fine-tuned", "fine-tuned"))
        for when, steps in (("early", _FEW), ("late", STEPS))
    },
)
compare_arms(
    "size-matters",
    {
        f"{name}, {width} wide": after_pretraining(what, model=changes)
        for name, what in (("predicted", "mlm_accuracy"), ("fine-tuned", "fine-tuned"))
        for width, changes in ((32, _SMALL), (128, {}))
    },
)
compare_arms(
    "next-sentence-learned",
    {
        "next sentence": after_pretraining("nsp_accuracy"),
        "commoner answer": after_pretraining("nsp_majority"),
    },
)
compare_arms(
    "segments-needed",
    {
        "two segments": after_pretraining("nsp_accuracy"),
        "one segment": after_pretraining("nsp_accuracy", model={"type_vocab_size": 1}),
    },
)
compare_arms(
    "cls-filled",
    {
        "with next sentences": after_pretraining("frozen [CLS]"),
        "without": after_pretraining("frozen [CLS]", FULL_SENTENCES),
    },
)
compare_arms(
    "positions-needed",
    {
        name: after_pretraining(
            "mlm_accuracy", RANDOM_ATTENTION, model={"family": "bertworks", "positions": kind}
        )
        for name, kind in (
            ("learned positions", "learned"),
            ("sinusoids", "sinusoidal"),
            ("no positions", "none"),
        )
    },
)


def _adapted_accuracy(lab: Lab, seed: int) -> float:
    """Pre-train the model further on the corpus, fine-tune on 300 texts; return the accuracy."""
    run, _ = lab.pretrained(seed, **_ADAPT, init_checkpoint=lab.name)
    return lab.finetuned_model(run, seed, rows=300)


compare_arms(
    "text-of-the-field", {"text of the field": _adapted_accuracy, "as it is": after_finetuning(300)}
)


def _student(lab: Lab, seed: int) -> float:
    """Distil a student with half of the layers, fine-tune on 1,000 texts; return the accuracy."""
    config = lab.model.encoder.config
    half = config.model_dump(exclude={"vocab_size"}, exclude_defaults=True)
    half["num_hidden_layers"] = max(1, config.num_hidden_layers // 2)
    how: Changes = {"objective": "distillation", "distillation": {"teacher": lab.name}}
    run, _ = lab.pretrained(seed, **{**_ADAPT, **how, "model": half})
    return lab.finetuned_model(run, seed)


compare_arms("student", {"student": _student, "teacher": after_finetuning()})
