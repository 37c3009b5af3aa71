"""The adapter's parts: checks, seams, loader, model specs."""

import importlib.util
import logging
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from tiny import PADDED, SEQ_LEN, TinyCorpus, TinyManifest, tiny_config
from torch import nn

from pww.central.exporting import decoder
from pww.config import check_model
from pww.config.schema import ShippedModel
from pww.errors import ConfigError, DataError, TrainerError
from pww.trainer import titan_cpu, titan_data, titan_init, titan_model
from pww.trainer.ranks import Ranks
from pww.trainer.titan import TitanTrainer
from pww.trainer.titan_config import check
from pww.trainer.titan_data import WindowLoader, my_slices, padded


def faults(over: dict[str, Any], *, num_ranks: int = 1) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as fault:
        check(tiny_config(over), TinyManifest(), num_ranks=num_ranks)
    return fault.value.faults


def test_another_number_of_processes_is_refused() -> None:
    assert faults({}, num_ranks=2) == ("parallel.ranks=1, but 2 processes started: start as many",)


def shipped(flavor: str, **over: Any) -> ShippedModel:
    values = {
        "kind": "shipped", "family": "qwen3", "name": "x", "flavor": flavor, "seq_len": 2048,
        "tie_embeddings": True, "vocab_multiple": 256, "dtype": "fp32", **over,
    }  # fmt: skip
    return ShippedModel.model_validate(values)


def test_a_corpus_for_another_model_is_refused(ranks: Ranks) -> None:
    with pytest.raises(DataError, match=r"windows of 33 tokens, but model.seq_len=16 needs 17"):
        TitanTrainer(tiny_config(), TinyCorpus(window_tokens=33), ranks=ranks)
    with pytest.raises(DataError, match=r"no held-out window .*raise data.held_out"):
        TitanTrainer(tiny_config(), TinyCorpus(num_held_out=0), ranks=ranks)


# ------------------------------------------------------------------------------------------- seams


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(TrainerError, match=r"site\.device=cuda, but torch .* sees no GPU"):
        titan_cpu.install("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "hip", "6.2")
    with pytest.raises(TrainerError, match=r"site\.device=cuda, but torch .* was built for rocm"):
        titan_cpu.install("cuda")
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(TrainerError, match=r"site\.device=rocm, but torch .* was built for cuda"):
        titan_cpu.install("rocm")
    with pytest.raises(TrainerError, match=r"drives cpu in this process and cannot drive cuda too"):
        titan_cpu.install("cuda")


def test_kernels_without_triton_can_be_named_but_not_called() -> None:
    why = "of MinimalAsyncEP's kernels needs triton, which is not installed"
    kernels = titan_cpu._StandIn("kernels", why)
    with pytest.raises(RuntimeError, match=r"sum_rows of MinimalAsyncEP's kernels needs triton"):
        kernels.sum_rows(1)
    with pytest.raises(AttributeError):
        kernels.__path__  # noqa: B018


def test_readers_of_datasets_are_named_while_torchtitan_is_imported_and_real_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "datasets"]:
        monkeypatch.delitem(sys.modules, name)
    with titan_cpu._without_readers():
        import datasets
        from datasets.distributed import split_dataset_by_node

        assert isinstance(datasets.Dataset, type)
        assert datasets.Dataset | None
        for call in (datasets.load_dataset, split_dataset_by_node):
            with pytest.raises(RuntimeError, match=r"of datasets is not used here"):
                call("text")
        assert importlib.util.find_spec("datasets") is not None
    assert "datasets" not in sys.modules
    assert "datasets.distributed" not in sys.modules


def test_the_cpu_stands_in_for_an_accelerator() -> None:
    module = titan_cpu._CpuModule("cpu")
    assert (module.current_device(), module.device_count()) == (0, 1)
    assert module.get_device_name() == "cpu"
    assert module.get_device_properties().total_memory > 1 << 28
    assert module.memory_stats()["active_bytes.all.peak"] > 1 << 20
    assert module.is_available()
    for call in (module.synchronize, module.empty_cache, module.reset_peak_memory_stats):
        assert call() is None
    assert module.set_device("cpu") is None


def test_torchtitan_speaks_up_only_for_warnings(caplog: pytest.LogCaptureFixture) -> None:
    from torchtitan.tools import logging as titan_logging
    from torchtitan.tools import utils

    with caplog.at_level(logging.DEBUG):
        logging.getLogger().info("ours")
        utils.get_peak_flops("an unknown device")
        utils.GarbageCollection.collect("a reason")
        titan_logging.warn_once(logging.getLogger(), "theirs")
    assert [record.getMessage() for record in caplog.records] == ["ours", "theirs"]


def test_only_known_warnings_are_silenced() -> None:
    with titan_cpu.unwarned():
        warnings.warn("`torch.jit.script_method` is deprecated.", DeprecationWarning, stacklevel=1)
        with pytest.raises(UserWarning, match=r"something new"):
            warnings.warn("something new", UserWarning, stacklevel=1)


# ------------------------------------------------------------------------------------------ loader


@pytest.mark.parametrize("num", [1, 3, 4, 5, 8, 9, 11])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_slices_cover_every_window_once_with_equal_steps(num: int, world: int) -> None:
    ids = list(range(100, 100 + num))
    per_rank = [list(my_slices(ids, batch=4, rank=r, world=world)) for r in range(world)]
    assert {len(slices) for slices in per_rank} == {-(-num // 4)}
    for step in range(-(-num // 4)):
        together = [i for slices in per_rank for i in slices[step]]
        assert together == ids[step * 4 : step * 4 + 4]


def test_padding_has_ignored_labels() -> None:
    rows = TinyCorpus().windows([1, 2])
    for given, num in ((rows, 2), (rows[:1], 1), (None, 0)):
        inputs, labels = padded(given, batch=2, seq_len=SEQ_LEN)
        assert inputs["input"].shape == labels.shape == (2, SEQ_LEN)
        assert inputs["input"].dtype == labels.dtype == torch.int64
        assert torch.equal(inputs["input"][:num], torch.from_numpy(rows[:num, :-1]))
        assert torch.equal(labels[:num], torch.from_numpy(rows[:num, 1:]))
        assert (labels[num:] == -100).all()


def loader(rank: int, world: int) -> WindowLoader:
    return WindowLoader(
        WindowLoader.Config(), dp_world_size=world, dp_rank=rank, tokenizer=None,
        seq_len=SEQ_LEN, local_batch_size=4 // world, snapshot_every_n_steps=None,
    )  # fmt: skip


def test_the_loader_notes_what_it_drew_and_keeps_no_position() -> None:
    corpus = TinyCorpus()
    loaders = [loader(rank, 2) for rank in range(2)]
    for one in loaders:
        one.assign(corpus, [7, 5, 3, 1, 9])
        batches = list(one)
        assert len(batches) == 2
        assert one.state_dict() == {}
        one.load_state_dict({})
    assert [one.drawn for one in loaders] == [[7, 5, 9], [3, 1]]
    loaders[0].assign(corpus, [2])
    next(iter(loaders[0]))
    assert loaders[0].drawn == [2]


def test_narrow_corpora_are_widened() -> None:
    rows = np.array([[1, 65535, 3]], dtype=np.uint16)
    inputs, labels = padded(rows, batch=1, seq_len=2)
    assert (inputs["input"].tolist(), labels.tolist()) == ([[1, 65535]], [[65535, 3]])


def test_there_is_no_tokenizer_here() -> None:
    tokenizer = titan_data.NoTokenizer.Config().build(tokenizer_path="")
    with pytest.raises(NotImplementedError, match=r"tokenised by pww.data"):
        tokenizer.encode("text")
    with pytest.raises(NotImplementedError, match=r"tokenised by pww.data"):
        tokenizer.decode([1])
    with pytest.raises(NotImplementedError, match=r"padded_vocab"):
        tokenizer.get_vocab_size()


# ------------------------------------------------------------------------------------------- model


@pytest.mark.parametrize(
    ("flavor", "tied", "expected"),
    [
        ("0.6B", False, 709_427_200), ("1.7B", False, 1_947_329_536),
        ("4B", False, 4_305_911_296), ("8B", False, 8_021_914_624),
        ("14B", False, 14_557_281_280), ("32B", False, 32_551_097_344),
        ("0.6B", True, 574_947_328), ("1.7B", True, 1_678_369_792), ("4B", True, 3_969_711_616),
    ],
)  # fmt: skip
def test_shipped_flavours_have_the_published_sizes(flavor: str, tied: bool, expected: int) -> None:
    assert num_parameters(shipped(flavor, tie_embeddings=tied)) == expected


def num_parameters(model: ShippedModel) -> int:
    spec = titan_model.model_spec(model, padded_vocab=131_328, gloo=True)
    with torch.device("meta"):
        return sum(p.numel() for p in spec.model.build().parameters())


@pytest.mark.parametrize(
    ("flavor", "dim", "layers", "heads", "kv_heads", "hidden"),
    [
        ("1B", 2048, 16, 32, 8, 8192), ("3B", 3072, 28, 24, 8, 8192),
        ("8B", 4096, 32, 32, 8, 14336), ("70B", 8192, 80, 64, 8, 28672),
        ("405B", 16384, 126, 128, 8, 53248),
    ],
)  # fmt: skip
def test_llama_flavours_have_the_published_sizes(
    flavor: str, dim: int, layers: int, heads: int, kv_heads: int, hidden: int
) -> None:
    """The sizes of Meta's model cards, added up by hand."""
    attention = 2 * dim * dim + 2 * dim * (dim // heads * kv_heads)
    block = attention + 3 * dim * hidden + 2 * dim
    untied = layers * block + dim + 2 * 131_328 * dim
    model = shipped(flavor, family="llama3", tie_embeddings=False)
    assert num_parameters(model) == untied
    tied = model.model_copy(update={"tie_embeddings": True})
    assert num_parameters(tied) == untied - 131_328 * dim


def test_the_flavours_are_those_that_torchtitan_has() -> None:
    from torchtitan.models.llama3 import llama3_configs
    from torchtitan.models.qwen3 import qwen3_configs

    dense = {n for n in qwen3_configs if not n.startswith("debug") and "-A" not in n}
    assert dense == set(check_model.FLAVOURS["qwen3"])
    assert {n for n in llama3_configs if not n.startswith("debug")} == set(
        check_model.FLAVOURS["llama3"]
    )


def test_an_export_knows_every_llamas_heads() -> None:
    """No shape of a Llama tells them; a wrong one would turn the wrong rows."""
    for flavor in check_model.FLAVOURS["llama3"]:
        model = shipped(flavor, family="llama3")
        assert decoder(model).family == "llama3"
        assert decoder(model).head_dim == titan_model.sizes(model).head_dim
    custom = tiny_config({"model.family": "llama3"}).model
    assert (decoder(custom).family, decoder(custom).head_dim) == ("llama3", 8)
    assert decoder(shipped("8B")).family == decoder(tiny_config().model).family == "qwen3"


@pytest.mark.parametrize("family", ["qwen3", "llama3"])
def test_a_layer_starts_like_torchtitans(family: str) -> None:
    """The standard deviations of the first draws, for the same sizes."""
    from torchtitan.models.llama3 import model_registry as llama3
    from torchtitan.models.qwen3 import model_registry as qwen3

    registry = {"qwen3": qwen3, "llama3": llama3}[family]
    theirs = registry("debugmodel", attn_backend="flex").model
    over = {
        "dim": theirs.dim, "num_layers": len(theirs.layers),
        "num_heads": theirs.layers[0].attention.n_heads,
        "num_kv_heads": theirs.layers[0].attention.n_kv_heads or 16,
        "head_dim": theirs.layers[0].attention.head_dim or 16,
        "hidden_dim": theirs.layers[0].feed_forward.w1.out_features,
        "tie_embeddings": theirs.enable_weight_tying, "family": family,
    }  # fmt: skip
    model = tiny_config({f"model.{name}": value for name, value in over.items()}).model
    ours = titan_model.model_spec(model, padded_vocab=theirs.vocab_size, gloo=True).model
    for part in ("w1", "w2", "w3"):
        assert spread(getattr(ours.layers[3].feed_forward, part)) == pytest.approx(
            spread(getattr(theirs.layers[3].feed_forward, part)), rel=0.03
        )
    assert spread(ours.layers[3].attention.wo) == pytest.approx(
        spread(theirs.layers[3].attention.wo), rel=0.03
    )
    assert spread(ours.lm_head) == pytest.approx(spread(theirs.lm_head), rel=0.03)
    if not theirs.enable_weight_tying:
        assert spread(ours.tok_embeddings) == pytest.approx(spread(theirs.tok_embeddings), rel=0.03)
    for name in ("dim", "theta", "scaling"):
        assert getattr(ours.layers[0].attention.rope, name) == getattr(
            theirs.layers[0].attention.rope, name
        )
    for name in ("attention_norm", "ffn_norm"):
        assert getattr(ours.layers[0], name).eps == getattr(theirs.layers[0], name).eps


def spread(config: Any) -> float:
    """The standard deviation of what a configured matrix starts with."""
    drawn = torch.empty(256, 512)
    torch.manual_seed(3)
    config.param_init["weight"](drawn)
    return float(drawn.std())


def test_parameters_have_the_names_of_their_state() -> None:
    spec = titan_model.model_spec(tiny_config().model, padded_vocab=PADDED, gloo=True)
    with torch.device("meta"):
        model = spec.model.build()
    names = {name for name, _ in model.named_parameters()}
    assert {n for n in model.state_dict() if n != "lm_head.weight"} == names  # tied: one of two


def test_a_whole_draw_of_a_plain_tensor_is_a_draw() -> None:
    drawn, expected = torch.empty(5, 3), torch.empty(5, 3)
    torch.manual_seed(1)
    titan_init.whole(nn.init.normal_)(drawn)
    torch.manual_seed(1)
    nn.init.normal_(expected)
    assert torch.equal(drawn, expected)


def test_one_spec_is_not_the_next_one() -> None:
    model = tiny_config().model
    one, two = (titan_model.model_spec(model, padded_vocab=PADDED, gloo=g) for g in (True, False))
    assert one.model is not two.model
    assert one.parallelize_fn is not two.parallelize_fn
