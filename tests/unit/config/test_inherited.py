"""The sizes of a model's file and a configuration of the user's own: never mixed unasked."""

import pytest

from pww.config.load import compose
from pww.config.schema import HfModel
from pww.errors import ConfigError


def refused(*words: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as fault:
        compose(list(words))
    return fault.value.faults


def model(*words: str) -> HfModel:
    found = compose(list(words)).model
    assert isinstance(found, HfModel)
    return found


LLAMA = {
    "num_hidden_layers": 12, "hidden_size": 768, "intermediate_size": 2048,
    "num_attention_heads": 12, "num_key_value_heads": 12,
}  # fmt: skip


@pytest.mark.parametrize("config", ["here/folder", "mistral"])
def test_a_files_sizes_do_not_go_over_another_configuration(config: str) -> None:
    (told,) = refused("model=hf/llama", f"model.config={config}")
    assert told == (
        f"model.config={config}: model=hf/llama changes num_hidden_layers=12, hidden_size=768, "
        "intermediate_size=2048, num_attention_heads=12, num_key_value_heads=12, which would go "
        "over what that configuration says; use model=hf/folder model.config="
        f"{config}, or give a model.changes.NAME=VALUE for each of them"
    )
    assert refused(f"model={{config: {config}}}", "model=hf/llama") == (told,)


def test_sizes_that_are_all_given_are_meant() -> None:
    given = [f"model.changes.{name}={value}" for name, value in LLAMA.items()]
    assert model("model=hf/llama", "model.config=mistral", *given).changes == LLAMA
    (told,) = refused("model=hf/llama", "model.config=mistral", *given[1:])
    assert "changes num_hidden_layers=12, which would" in told


def test_a_folders_own_sizes_and_one_more_change() -> None:
    assert model("model=hf/llama").changes == LLAMA
    assert model("model=hf/folder", "model.config=there").changes == {}
    words = ("model=hf/folder", "model.config=there", "+model.changes.attn_pdrop=0.0")
    assert model(*words).changes == {"attn_pdrop": 0.0}
    assert refused("model=hf/folder") == ("model.config: has no value yet; give model.config=…",)


@pytest.mark.parametrize(
    "word",
    ["model.changes={}", "model.changes={n_layer: 2}", "model={changes: {}}", "+model.changes={}"],
)
def test_changes_given_whole_would_be_added_so_they_are_refused(word: str) -> None:
    told = refused("model=hf/gpt2", word)
    assert told == (
        f"{word}: adds to the changes of the model's file and takes none away; give "
        "model.changes.NAME=VALUE, or model=hf/folder model.config=…, which changes nothing",
    )


@pytest.mark.parametrize(
    ("word", "meant"),
    [("gpt2", "; did you mean hf/gpt2?"), ("hf", ""), ("hf/gtp2", "; did you mean hf/gpt2?")],
)
def test_models_of_a_folder_below_are_choices(word: str, meant: str) -> None:
    (told,) = refused(f"model={word}")
    assert told.startswith(f"model={word}: model is one of ")
    assert told.endswith(f"resnet_digits, hf/folder, hf/gpt2, hf/llama{meant}")


def test_a_group_of_its_own_is_no_choice_of_the_one_above() -> None:
    (told,) = refused("data=file")
    assert "tokenizer" not in told
    assert "base" not in told
