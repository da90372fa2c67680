"""A text's vector is the same to the bit, alone and in any batch, by one thread or two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from tests.native.conftest import list_instruction_sets

import bertworks as bw
from bertworks.inference.frozen_layers import has_packed_kernels
from bertworks.inference.frozen_network import frozen_form
from bertworks.model import Model
from bertworks.native import library
from bertworks.nn.config import EncoderConfig
from bertworks.nn.device import is_fast_at_bfloat16  # which all other tests replace
from bertworks.nn.heads import MLMHead
from bertworks.settings.literals import Pooling
from bertworks.text.tokenizer import Tokenizer

has_amx = torch.cpu._is_amx_tile_supported()
needs_amx = pytest.mark.skipif(not has_amx, reason="bfloat16 depends on batches with AMX alone")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENIZER = Tokenizer.from_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS])
BUDGETS = (1 << 14, 1 << 10, 300)


@pytest.fixture
def two_threads() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(num_threads)


def model_of(hidden_size: int) -> Model:
    """A model whose every product has sums of the size of real ones."""
    config = EncoderConfig(
        vocab_size=TOKENIZER.vocab_size,
        hidden_size=hidden_size,
        num_hidden_layers=2,
        num_attention_heads=hidden_size // 32,
        intermediate_size=4 * hidden_size,
        max_position_embeddings=256,
        initializer_range=0.05,
    )
    return Model.fresh(config, TOKENIZER)


def texts_of(count: int, longest: int = 250) -> list[str]:
    """Many short texts, some of them of a few hundred tokens."""
    random = np.random.default_rng(0)
    lengths = np.minimum(random.geometric(1 / 30, count), longest)
    return [" ".join(random.choice(list(LETTERS), length)) for length in lengths]


def check(
    model: Model,
    texts: list[str],
    pooling: Pooling,
    precision: str,
    *,
    deterministic: bool = False,
    num_single: int | None = None,
    budgets: Sequence[int] = BUDGETS,
) -> None:
    """Compare vectors of all texts, in batches, with those of the first of them, each alone."""
    settings = {"pooling": pooling, "precision": precision, "deterministic": deterministic}
    single = np.concatenate([model.embed(text, **settings) for text in texts[:num_single]])
    for seed, budget in enumerate(budgets):
        order = np.random.default_rng(seed).permutation(len(texts))
        vectors = model.embed([texts[at] for at in order], batch_tokens=budget, **settings)
        assert np.array_equal(vectors[np.argsort(order)][: len(single)], single)


def precisions(most_inputs: int) -> list[str]:
    """Those whose packed kernels this processor has; the promise is theirs.

    Args:
        most_inputs: of a linear map. AMX's sums of more than 384 in bfloat16 depend on the rows of
            a call (benchmarks/results/inference-notes.md).
    """
    kinds = (("fp32", torch.float32), ("bf16", torch.bfloat16), ("int8", torch.float32))
    result = [name for name, dtype in kinds if has_packed_kernels(dtype)]
    if most_inputs > 384 and has_amx:
        result.remove("bf16")
    return result


@pytest.fixture(params=["native", "portable"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Native code where there is any, and PyTorch's kernels alone."""
    if request.param == "portable":
        monkeypatch.setenv("BERTWORKS_NATIVE", "0")


@pytest.mark.long
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("pooling", "hidden_size"),
    [("mean", 384), ("pooler", 384), ("weighted-mean", 64), ("mean+max", 64)],
)
def test_batches_change_no_bit(pooling: Pooling, hidden_size: int) -> None:
    model, texts = model_of(hidden_size), texts_of(24)
    for precision in precisions(model.encoder.config.intermediate_size):
        check(model, texts, pooling, precision)


@pytest.mark.long
def test_batches_of_two_thousand_rows_do_not_change_bits() -> None:
    model, texts = model_of(64), texts_of(800, 40)
    budgets = (1 << 14, 1 << 11)  # of products: the first batch has 16,000 rows
    for precision in precisions(model.encoder.config.intermediate_size):
        check(model, texts, "mean", precision, num_single=100, budgets=budgets)


@pytest.mark.long
@pytest.mark.usefixtures("two_threads", "kernels")
def test_batches_change_no_bit_with_two_threads() -> None:
    model, texts = model_of(64), texts_of(30)
    for precision in precisions(model.encoder.config.intermediate_size):
        check(model, texts, "mean", precision, num_single=15)


@pytest.mark.long
@needs_amx
@pytest.mark.parametrize("pooling", ["mean", "pooler"])
def test_bfloat16_with_amx_changes_no_bit_if_it_is_deterministic(
    pooling: Pooling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTWORKS_NATIVE", "0")  # native layers never do
    model, texts = model_of(512), texts_of(24)
    with pytest.raises(AssertionError):  # so the test sees a difference where there is one
        check(model, texts, pooling, "bf16")
    check(model, texts, pooling, "bf16", deterministic=True)


@pytest.mark.long
@needs_amx
def test_deterministic_predictions_of_masks_do_not_depend_on_their_number() -> None:
    config = model_of(512).encoder.config.with_values(vocab_size=3000)
    head = MLMHead(config, torch.nn.Parameter(torch.randn(3000, 512) / 20))
    hidden = torch.randn(700, 512, dtype=torch.bfloat16)

    def differs(deterministic: bool) -> bool:
        form = frozen_form(head, "bf16", deterministic)
        with torch.inference_mode():
            whole = form(hidden)
            return any(not torch.equal(form(hidden[:rows]), whole[:rows]) for rows in (1, 40, 200))

    assert differs(deterministic=False)
    assert not differs(deterministic=True)


@pytest.mark.long
@pytest.mark.skipif(not library.has_kernels("fp32"), reason="no native code for this processor")
def test_forced_instruction_set_has_the_same_bits_without_pytorch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the processor has more than the set that is forced, such as AMX."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr("bertworks.nn.device.is_fast_at_bfloat16", is_fast_at_bfloat16)
    monkeypatch.setattr(
        "bertworks.inference.native_network.is_fast_at_bfloat16", library.is_fast_at_bfloat16
    )
    code, texts = library.library(), ["a short text", "another one, which is longer", "a"]
    forced_sets = []
    try:
        for name in list_instruction_sets():
            if code.bertworks_choose(name.encode()) or not library.has_kernels("int8"):
                continue
            forced_sets.append(name)
            network, native = (
                bw.load("mini-sentences", backend=one) for one in ("torch", "native")
            )
            for precision in ("auto", "fp32", "int8"):
                expected = network.embed(texts, precision=precision)
                assert np.array_equal(native.embed(texts, precision=precision), expected), name
    finally:
        library._choose(code)
    assert forced_sets
