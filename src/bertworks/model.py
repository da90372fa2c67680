"""`Model`: a tokenizer, a task and its network, which are loaded, used and saved together."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

import torch

from .checkpoints.model_card import ModelCard
from .checkpoints.network_weights import LoadReport
from .checkpoints.saving import SavedModel, SavedTask, save_model
from .checkpoints.sentence_settings import SentenceSettings
from .data.tables import Table
from .data.text_inputs import (
    Texts,
)
from .errors import BertworksError, SettingsError, did_you_mean, shorten_list, suggest_method
from .inference.calibration import calibrate
from .inference.features import Embedder, NetworkEmbedder, NetworkTokenFeatures
from .inference.fingerprints import fingerprint
from .inference.generate import generate
from .inference.late_interaction import LateInteractionEmbedder
from .inference.settings import (
    FeatureSettings,
    GenerateSettings,
)
from .inference.sparse import PieceWeightEmbedder, SpladeEmbedder
from .inference.static_vectors import StaticEmbedder
from .inference.task_model import TaskModel
from .nn.config import EncoderConfig
from .nn.device import pick_device
from .nn.encoder import BareEncoder, Encoder
from .nn.vector_modules import VectorModules
from .settings.keywords import (
    EmbedKeywords,
    GenerateKeywords,
)
from .settings.literals import SavedPrecision
from .settings.pooling import NO_POOLING, PIECE_WEIGHTS, SPARSE_POOLINGS
from .tasks import is_user_task
from .tasks.network import Network
from .tasks.pretraining.network import PretrainingNetwork
from .tasks.task import Task
from .text.tokenizer import Tokenizer
from .utils.formatting import format_count, format_number, html_facts

_SAVED_AS = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}


class Model(TaskModel):
    """A tokenizer, a task and its network.

    Args:
        tokenizer: the model's.
        task: what the network was trained for; None for a bare encoder.
        network: the task's network, or a `BareEncoder`.
        report: how each tensor was used when loading.
        sentence: how `embed` makes vectors by default; if omitted, as the task defines.
        modules: those that follow pooling in a sentence encoder; None: those of the network, if
            any.
        query_model: the model of queries, whose vectors are compared with this one's; None if this
            one is also for queries.
        source: the directory or name it was loaded from.
        learning_rate: the rate that suits fine-tuning it, which `finetune` uses by default; None:
            the usual one. It is saved with the model.

    Attributes:
        card: its model card, which `save` writes as `README.md`; None if it has none yet.
    """

    network: Network | BareEncoder

    def __init__(
        self,
        tokenizer: Tokenizer,
        task: Task[Any] | None,
        network: Network | BareEncoder,
        report: LoadReport | None = None,
        sentence: SentenceSettings | None = None,
        source: str | None = None,
        learning_rate: float | None = None,
        *,
        modules: VectorModules | None = None,
        query_model: Model | None = None,
    ) -> None:
        self.query_model: Model | None = query_model
        self.tokenizer, self.task, self.network, self.report = tokenizer, task, network, report
        self.sentence = sentence or (None if task is None else task.sentence)
        self.source, self.learning_rate = source, learning_rate
        own_modules = network.vector_modules if isinstance(network, Network) else None
        self.modules = own_modules if modules is None else modules
        self.card: ModelCard | None = None

    if not TYPE_CHECKING:  # a type checker would find every name

        def __getattr__(self, name: str) -> Any:
            hint = suggest_method(name)
            raise AttributeError(f"Model has no {name!r}" + (f". {hint}" if hint else ""))

    def __repr__(self) -> str:
        config = self.encoder.config
        facts = [
            f"{config.family}: {format_count(config.num_hidden_layers, 'layer')}",
            f"hidden_size {config.hidden_size}",
            format_count(config.num_attention_heads, "head"),
            f"{format_number(self.num_parameters)} parameters",
        ]
        task = "bare encoder" if self.task is None else self.task.name
        labels = f" into {shorten_list(self.labels)}" if self.labels else ""
        source = " in memory" if self.source is None else f" {self.source}"
        return f"<Model{source}; {', '.join(facts)}; {task}{labels}>"

    def _repr_html_(self) -> str:
        config = self.encoder.config
        facts = {
            "family": config.family,
            "layers": config.num_hidden_layers,
            "hidden_size": config.hidden_size,
            "heads": config.num_attention_heads,
            "parameters": f"{self.num_parameters:,}",
            "pieces": f"{self.tokenizer.vocab_size:,}",
            "task": "none: a bare encoder" if self.task is None else self.task.name,
            **({"labels": ", ".join(self.labels)} if self.labels else {}),
        }
        return html_facts(f"Model {self.source or 'in memory'}", facts)

    @classmethod
    def fresh(cls, config: EncoderConfig, tokenizer: Tokenizer, *, seed: int = 0) -> Self:
        """A bare encoder with random weights, to fine-tune as a baseline."""
        with torch.random.fork_rng(devices=[]):  # weights are drawn on the CPU
            torch.default_generator.manual_seed(seed)
            encoder = Encoder(config, pooler=config.has_pooler)
            return cls(tokenizer, None, BareEncoder(encoder).eval())

    @property
    def encoder(self) -> Encoder:
        """The encoder module: `Packed` in, `[tokens, hidden_size]` out."""
        return self.network.encoder

    @property
    def config(self) -> EncoderConfig:
        """The geometry of the encoder."""
        return self.encoder.config

    @property
    def device_type(self) -> str:
        """The kind of device that the network is on."""
        return next(self.network.parameters()).device.type

    @property
    def num_bytes(self) -> int:
        """The bytes of the weights, with those of the model of queries."""
        models = (self,) if self.query_model is None else (self, self.query_model)
        return sum(
            weight.numel() * weight.element_size()
            for network in {model.network for model in models}
            for weight in network.parameters()
        )

    @property
    def num_parameters(self) -> int:
        """The number of trainable parameters; shared ones count once."""
        return sum(weight.numel() for weight in self.network.parameters())

    def embedder(self, **settings: Unpack[EmbedKeywords]) -> NetworkEmbedder:
        """The object that computes the vectors of `embed`, with the same settings.

        Raises:
            SettingsError: a setting is unknown or impossible.
        """
        if settings.get("is_query") and self.query_model is not None:
            return self.query_model.embedder(**settings)
        values = self._embedding_settings(settings)
        arguments = self.network, self.tokenizer, values, values
        late_interaction = None if self.sentence is None else self.sentence.late_interaction
        if values.pooling == NO_POOLING:
            if late_interaction is None or self.modules is None:
                raise SettingsError("pooling=none: the model was not trained for late interaction")
            return LateInteractionEmbedder(*arguments, self.modules, late_interaction)
        if values.pooling in SPARSE_POOLINGS:
            is_static = values.pooling == PIECE_WEIGHTS
            return (PieceWeightEmbedder if is_static else SpladeEmbedder)(*arguments)
        # The modules of late interaction are for vectors of tokens.
        modules = self.modules if late_interaction is None else None
        if self.config.is_static and StaticEmbedder.can_compute(values, modules):
            return StaticEmbedder(*arguments, modules).with_dimensions(settings.get("dimensions"))
        return Embedder(*arguments, modules).with_dimensions(settings.get("dimensions"))

    def generate(
        self, prompts: str | Iterable[str], **settings: Unpack[GenerateKeywords]
    ) -> list[str]:
        """Continue each text.

        Args:
            prompts: one text or several, each at least one token long.
            settings: settings of `GenerationSettings`: `max_new_tokens`, `temperature` (0: always
                the most likely token), `top_k`, `top_p`, `stop_ids`, `seed`; and of
                `EngineSettings`.

        Returns:
            Only the new text, for each prompt.

        Raises:
            DataError: a prompt is empty or too long.
            SettingsError: the model is not causal, or a setting is unknown or impossible.
        """
        task, network = self._task_and_network()
        if not isinstance(network, PretrainingNetwork):
            raise BertworksError(f"the model was trained for {task.name}, not to continue texts")
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        ids = [row.tolist() for row in self.tokenizer.piece_ids(texts)]
        generation = GenerateSettings.parse(settings)
        new_ids = generate(network, ids, generation, generation, self.tokenizer.vocab_size)
        return [self.tokenizer.decode(row) for row in new_ids]

    def save(
        self,
        directory: str | Path,
        *,
        precision: SavedPrecision = "fp32",
        overwrite: bool = False,
        keep_others: bool = False,
    ) -> Path:
        """Write the model in the Hugging Face layout; `load` reads it again.

        Args:
            directory: new or empty; with `overwrite` also one that holds a saved model, such as the
                one that this model was loaded from.
            precision: precision of the saved weights; bf16 rounds them and halves the file; int8
                stores the layers' matrices as 8-bit numbers with a scale per row, which no other
                software reads, and the rest in bf16.
            overwrite: replace an existing model, once the new one is complete.
            keep_others: with `overwrite`: keep files that are not part of a saved model; otherwise,
                they are an error.

        Raises:
            SettingsError: weights are not saved in this precision.
            CheckpointError: the model cannot be saved in its family's layout.
            OutputError: the directory already exists or, with `overwrite`, holds something other
                than a saved model; it cannot be written, or is being written by another process.
        """
        if precision not in _SAVED_AS:
            fix = f"{did_you_mean(precision, _SAVED_AS)}."
            raise SettingsError(f"precision={precision!r}: weights are not saved so", fix=fix)
        query_model = self.query_model
        return save_model(
            directory,
            self._to_saved(),
            None if query_model is None else query_model._to_saved(),
            dtype=_SAVED_AS[precision],
            overwrite=overwrite,
            keep_others=keep_others,
        )

    def _to_saved(self) -> SavedModel:
        """Return what is saved of the model, without its model of queries."""
        task = self.task
        saved_task = None
        if task is not None:
            saved_task = SavedTask(
                task.name,
                task.to_dict(),
                task.model_class,
                task.config_entries(),
                task.head_dropout,
                is_user_task(task),
            )
        return SavedModel(
            self.network,
            self.tokenizer,
            saved_task,
            self.sentence,
            self.modules,
            self.learning_rate,
            None if self.card is None else self.card.derive(is_same_model=True),
            self.max_seq_length,
        )

    def calibrate(
        self,
        texts: str | Iterable[str] | None = None,
        *,
        data: Table | Texts | None = None,
        column: str | None = None,
    ) -> None:
        """Fix the scales of 8-bit numbers with sample texts, for `precision="int8"`.

        Without calibration, scales are computed for each token. Fixed scales are faster on
        processors that multiply 8-bit numbers (VNNI), with about the same error: measure it. For
        parts of the model in which their error would be much larger, scales are still computed for
        each token. Fixed scales are saved by `save(precision="int8")` and are valid until weights
        change. A few hundred texts similar to the later inputs are enough. Other precisions are not
        affected.

        Args:
            texts, data, column: as in `embed`.

        Raises:
            DataError: there is no text, or one cannot be tokenised.
        """

        def run(network: Any) -> None:
            model = Model(
                self.tokenizer, self.task, network, sentence=self.sentence, modules=self.modules
            )
            model.max_seq_length = self.max_seq_length
            model.embed(texts, data=data, column=column, precision="fp32")

        calibrate(self.network, run)

    def to(self, device: torch.device | str) -> Self:
        """Move the network to a device.

        Raises:
            BertworksError: there is no such device.
        """
        device = pick_device(device)
        self.network.to(device)
        if self.modules is not None:
            self.modules.to(device)
        if self.query_model is not None:
            self.query_model.to(device)
        return self

    def fingerprint(self) -> str:
        return fingerprint(self.encoder, self.tokenizer, self.network, self.modules)

    def _token_features(self, settings: FeatureSettings) -> NetworkTokenFeatures:
        return NetworkTokenFeatures(self.network, self.tokenizer, settings, settings)

    def _task_and_network(self) -> tuple[Task[Any], Network]:
        task, network = super()._task_and_network()
        assert isinstance(network, Network)
        return task, network
