"""Small models of every task, saved, and servers of them on a port of this machine."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

import bertworks as bw
from bertworks.analysis.retrieval.bm25 import BM25Index
from bertworks.checkpoints.sentence_settings import SentenceSettings
from bertworks.nn.config import EncoderConfig
from bertworks.serving.app import make_app
from bertworks.serving.models import Models
from bertworks.serving.security import Keys
from bertworks.serving.service import Service
from bertworks.serving.settings import ServeSettings
from bertworks.settings.literals import Backend
from bertworks.tasks.answering import answers
from bertworks.tasks.answering.settings import AnsweringSettings
from bertworks.tasks.answering.task import AnsweringTask
from bertworks.tasks.choice import USUAL_COLUMNS, ChoiceSettings, ChoiceTask
from bertworks.tasks.classification import (
    ClassificationSettings,
    ClassificationTask,
    MultiLabelSettings,
    MultiLabelTask,
)
from bertworks.tasks.pretraining.instances import InstanceSettings
from bertworks.tasks.pretraining.task import PretrainingTask
from bertworks.tasks.regression import RegressionSettings, RegressionTask
from bertworks.tasks.tagging.settings import TaggingSettings
from bertworks.tasks.tagging.task import TaggingTask
from bertworks.tasks.task import Task
from bertworks.text.tokenizer import Tokenizer
from bertworks.utils.json_files import write_json

WORDS = ("the", "door", "was", "open", "river", "deep", "in", "london", "a", "é", "日")
PIECES = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *WORDS,
    *"bcdefghijklmnopqrstuvwxyz.,?!",
    *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"),
)
LIMIT = 48


def config(**values: Any) -> EncoderConfig:
    geometry = {
        "vocab_size": len(PIECES),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": LIMIT,
        "initializer_range": 0.4,
    }
    return EncoderConfig.parse({**geometry, **values})


def tasks(tokenizer: Tokenizer) -> dict[str, Task[Any] | None]:
    single = {"text_column": "text", "label_column": "label"}
    pairs = {**single, "pair_column": "pair"}
    limit = {"max_seq_length": LIMIT}
    full = InstanceSettings(format="full-sentences")
    labels = ("no", "so", "yes")
    return {
        "encoder": None,
        "pretrained": PretrainingTask(tokenizer, max_length=LIMIT),
        "causal": PretrainingTask(tokenizer, full, causal=True, max_length=LIMIT),
        "classifier": ClassificationTask(
            tokenizer, ClassificationSettings(labels=labels, **single, **limit)
        ),
        "topics": MultiLabelTask(tokenizer, MultiLabelSettings(labels=labels, **single, **limit)),
        "reranker": RegressionTask(tokenizer, RegressionSettings(**pairs, **limit)),
        "tagger": TaggingTask(
            tokenizer,
            TaggingSettings(
                labels=("O", "B-LOC", "I-LOC"),
                spans=True,
                word_column="words",
                tag_column="tags",
                max_seq_length=16,
                stride=4,
            ),
        ),
        "answering": AnsweringTask(
            tokenizer,
            AnsweringSettings.parse(
                {**answers.USUAL_COLUMNS, "max_seq_length": 24, "stride": 8, "unanswerable": True}
            ),
        ),
        "choice": ChoiceTask(
            tokenizer, ChoiceSettings.parse({**USUAL_COLUMNS, "first_number": 0, **limit})
        ),
    }


@pytest.fixture(scope="session")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Directories of models, by the names of `tasks`."""
    return save_models(tmp_path_factory.mktemp("models"))


def save_models(root: Path) -> dict[str, str]:
    """Save a model of each task; their directories, by the names of `tasks`."""
    import torch  # tests of the light core share this file, and have no PyTorch

    from bertworks.nn.encoder import BareEncoder, Encoder

    tokenizer = Tokenizer.from_vocabulary(PIECES)
    paths = {}
    for seed, (name, task) in enumerate(tasks(tokenizer).items()):
        torch.manual_seed(seed)
        own = config(**({"attention": "causal"} if name == "causal" else {}))
        network = BareEncoder(Encoder(own, pooler=True)) if task is None else task.network(own)
        sentence = SentenceSettings(normalize=True, max_seq_length=32) if task is None else None
        bw.Model(tokenizer, task, network.eval(), sentence=sentence).save(root / name)
        paths[name] = str(root / name)
    write_json(
        root / "encoder" / "config_sentence_transformers.json",
        {"prompts": {"query": "the door ", "document": ""}, "default_prompt_name": None},
    )
    return paths


def save_changed(source: str, folder: Path, **settings: Any) -> str:
    """Save a model with other settings of its task; return its directory."""
    model = bw.load(source, device="cpu")
    assert model.task is not None
    task = type(model.task)(model.tokenizer, model.task.settings.with_values(**settings))
    bw.Model(model.tokenizer, task, model.network).save(folder)
    return str(folder)


def save_tagger_of_documents(directories: dict[str, str], folder: Path) -> str:
    """Save a tagger to which the rows of a document are context of each other."""
    settings: dict[str, Any] = {"document_column": "document", "document_context": True}
    return save_changed(directories["tagger"], folder, **settings)


@pytest.fixture(scope="session")
def get_model(directories: dict[str, str]) -> Callable[[str], bw.Model]:
    """The same models in this process."""
    models: dict[str, bw.Model] = {}

    def get(name: str) -> bw.Model:
        if name not in models:
            models[name] = bw.load(directories[name], device="cpu")
        return models[name]

    return get


@dataclass
class Running:
    """A server in a thread."""

    url: str
    service: Service
    http: httpx.Client

    def post(self, path: str, body: Any, **more: Any) -> httpx.Response:
        return self.http.post(path, json=body, **more)

    def ask(self, path: str, body: Any, **more: Any) -> Any:
        """What is answered, which is no error."""
        answer = self.post(path, body, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def reload(self) -> list[str]:
        """Load all models again, as on SIGHUP; return their names."""
        models = self.service.models
        new_models = models.load_again()
        models.swap_in(new_models)
        return [model.name for model in new_models]


def describe_hang(server: uvicorn.Server) -> str:
    """What a server waits for that does not end: its connections, tasks and threads."""
    cycles = [getattr(one, "cycle", None) for one in server.server_state.connections]
    connections = [None if one is None else vars(one) for one in cycles]
    frames = sys._current_frames()
    stacks = [
        f"{thread.name}: {''.join(traceback.format_stack(frames[thread.ident])[-4:])}"
        for thread in threading.enumerate()
        if thread.ident in frames
    ]
    return "\n".join([f"connections: {connections}", str(server.server_state.tasks), *stacks])


@contextmanager
def running(
    sources: dict[str, str],
    settings: ServeSettings | None = None,
    keys: Keys | None = None,
    *,
    local: bool = True,
    max_memory: int | None = None,
    precision: str = "auto",
    backend: Backend = "auto",
    corpus: str | Sequence[str] = (),
) -> Iterator[Running]:
    models = Models(
        sources, device="cpu", max_memory=max_memory, precision=precision, backend=backend
    )
    open_corpus = partial(BM25Index.open, corpus) if corpus else None
    lazy = ServeSettings(lazy=True)
    app = make_app(models, settings or lazy, keys, local=local, open_corpus=open_corpus)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.005)
    (socket,) = server.servers[0].sockets
    url = f"http://127.0.0.1:{socket.getsockname()[1]}"
    try:
        with httpx.Client(base_url=url, timeout=30) as http:
            yield Running(url, app.state.service, http)
    finally:
        server.should_exit = True
        thread.join(30)
    assert not thread.is_alive(), describe_hang(server)


@pytest.fixture(scope="session")
def start() -> Callable[..., AbstractContextManager[Running]]:
    return running


@pytest.fixture(scope="session")
def server(directories: dict[str, str]) -> Iterator[Running]:
    """A server of all models; the encoder is the default."""
    with running(directories) as server:
        yield server


@pytest.fixture
def directory(directories: dict[str, str]) -> Callable[[str], Path]:
    return lambda name: Path(directories[name])
