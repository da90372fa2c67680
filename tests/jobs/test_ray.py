"""Ray's nodes, one of which is killed half-way: the bytes of one process."""

from __future__ import annotations

import importlib
import os
import random
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bertworks.data.prepare import prepare
from bertworks.errors import BertworksError, DataError
from bertworks.jobs.parallel import Workers
from bertworks.text import vocabulary
from tests.crashes import contents

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'bertworks[ray]'")
cluster_utils = pytest.importorskip("ray.cluster_utils")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Ray Client connection timed out"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ROOT = Path(__file__).resolve().parents[2]
MEMORY = 1 << 27  # bytes of a node's object store
Kill = Callable[[int], None]


@pytest.fixture(scope="module")
def port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def cluster(port: int) -> Iterator[Any]:
    """A head without cores; the nodes that work are each test's."""
    patches = pytest.MonkeyPatch()
    patches.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # As `ray start` has it where there is a token: by itself a cluster of tests asks for none, but
    # its server for clients, and this process, send one that is in ~/.ray.
    patches.setenv("RAY_AUTH_MODE", "token")
    patches.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    reset_auth_token_state = pytest.importorskip(
        "ray._private.authentication_test_utils", reason="this version of Ray knows no tokens"
    ).reset_auth_token_state
    reset_auth_token_state()  # Ray read the variables when it was imported
    # Ray's server forks while gRPC has threads; with gRPC's handlers its child may die at once
    # (ray-project/ray#63202).
    patches.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")
    # Workers can import their modules, as they must for a client on another machine.
    patches.syspath_prepend(str(ROOT))
    patches.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    head = {"num_cpus": 0, "object_store_memory": MEMORY, "include_dashboard": False}
    ray_cluster = cluster_utils.Cluster(
        initialize_head=True, head_node_args={**head, "ray_client_server_port": port}
    )
    patches.setenv("RAY_ADDRESS", ray_cluster.address)
    yield ray_cluster
    ray.shutdown()
    ray_cluster.shutdown()
    patches.undo()
    reset_auth_token_state()


@pytest.fixture(params=[2, 3])
def kill(cluster: Any, request: pytest.FixtureRequest) -> Iterator[Kill]:
    """Has one of two or three nodes killed, by SIGKILL, once: when it is called with 5 or more."""
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=MEMORY) for _ in range(request.param)]
    left = list(nodes)

    def call(num_done: int) -> None:
        if num_done >= 5 and len(left) == len(nodes):
            cluster.remove_node(left.pop(), allow_graceful=False)

    yield call
    assert len(left) == len(nodes) - 1, "no node was killed"
    for node in left:
        cluster.remove_node(node)


def sentences(count: int) -> list[str]:
    draw = random.Random(5)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(1, 6))) for _ in range(90)]
    return [" ".join(draw.choices(words, k=draw.randint(1, 12))) for _ in range(count)]


def test_vocabulary_is_the_same_on_ray(kill: Kill, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = sentences(400)
    monkeypatch.setattr(vocabulary, "_PART_CHARACTERS", 500)

    def read() -> Iterator[str]:
        for number, text in enumerate(texts):
            kill(number // 10)
            yield text

    alone = vocabulary.train_vocabulary(texts, size=300)
    found = vocabulary.train_vocabulary(read(), size=300, workers=None, on="ray")
    assert found.pieces == alone.pieces


def test_shards_are_the_same_on_ray(kill: Kill, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("\n\n".join(map("{}.".format, sentences(3000))))
    tokenizer = vocabulary.train_vocabulary(sentences(400), size=300)
    options: dict[str, Any] = {"tokenizer": tokenizer, "shard_bytes": 3000}
    whole = prepare(tmp_path / "text", out=tmp_path / "alone", **options)
    assert len(whole.shards) > 25
    prepare(
        tmp_path / "text",
        out=tmp_path / "ray",
        workers=None,
        on="ray",
        progress=lambda now: kill(now.shards),
        **options,
    )
    assert contents(tmp_path / "ray") == contents(tmp_path / "alone")


def test_vectors_are_the_same_on_ray(kill: Kill, tmp_path: Path) -> None:
    # Workers import this file for `Work`; transformers would take most of their start.
    from tests.checkpoints.test_store import tiny

    model, texts = tiny(), sentences(200)
    model.embed_to(tmp_path / "alone.npy", texts, window_rows=8)
    out = tmp_path / "ray.npy"
    model.embed_to(
        out, texts, window_rows=8, workers=None, on="ray", progress=lambda rows, _: kill(rows // 8)
    )
    assert out.read_bytes() == (tmp_path / "alone.npy").read_bytes()


class Work:
    """Notes each process that gets it; some parts fail."""

    def __init__(self, loads: Path) -> None:
        self.loads = loads

    def __setstate__(self, state: dict[str, Path]) -> None:
        self.__dict__ = state
        with self.loads.open("a") as file:
            file.write("loaded\n")

    def __call__(self, part: int) -> int:
        if part == 103:
            raise DataError("bad", where="f:3", fix="Mend it.")
        return part * 2


class NotImportable:
    """Cannot be imported by a worker."""

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return importlib.import_module, ("elsewhere",)


def test_a_worker_loads_once_and_few_parts_are_on_their_way(cluster: Any, tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=2, object_store_memory=MEMORY)
    num_drawn = 0

    def parts() -> Iterator[int]:
        nonlocal num_drawn
        while num_drawn < 40:
            num_drawn += 1
            yield num_drawn

    results = []
    for result in Workers(2, cluster="ray").map(Work(tmp_path / "loads"), parts()):
        results.append(result)
        assert num_drawn - len(results) <= 4
    assert results == [2 * number for number in range(1, 41)]
    # At most two at a time; a process may have been replaced by another.
    assert 1 <= len((tmp_path / "loads").read_text().splitlines()) <= 4
    with pytest.raises(BertworksError, match=r"gave up .*'elsewhere'\)\. Install on each node"):
        list(Workers(cluster="ray").map(NotImportable(), [1]))
    with pytest.raises(DataError, match=r"^f:3: bad\. Mend it\.$"):
        list(Workers(cluster="ray").map(Work(tmp_path / "loads"), [1, 103, 2]))
    cluster.remove_node(node)


def test_a_cluster_is_reached_by_the_address_of_its_server(
    cluster: Any, port: int, tmp_path: Path
) -> None:
    pytest.importorskip("grpc", reason="Ray's client is not installed")
    node = cluster.add_node(num_cpus=1, object_store_memory=MEMORY)
    ray.shutdown()
    try:
        found = Workers(cluster=f"ray://127.0.0.1:{port}").map(Work(tmp_path / "loads"), [1, 2, 3])
        assert list(found) == [2, 4, 6]
        with pytest.raises(BertworksError, match=r"cannot run .*'elsewhere'\)\. Install on each"):
            list(Workers(cluster=f"ray://127.0.0.1:{port}").map(NotImportable(), [1]))
    finally:
        ray.shutdown()
        cluster.remove_node(node)


def test_unreachable_address_is_an_error() -> None:
    ray.shutdown()
    with pytest.raises(BertworksError, match=r"ray://127\.0\.0\.1:9: Ray cannot be reached"):
        list(Workers(cluster="ray://127.0.0.1:9").map(str, [1]))
