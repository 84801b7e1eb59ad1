"""A recipe is written once: in parts, from a file, from the command line."""

import pytest
import tomli_w

from bertsmith.errors import ConfigError
from bertsmith.settings import values_of
from bertsmith.train.choosing import chosen_recipe, recipe_for
from bertsmith.train.recipe import PreTrainingRecipe, resolve_recipe


def written(tmp_path, **tables):
    path = tmp_path / "mine.toml"
    path.write_text(tomli_w.dumps(tables), encoding="utf-8")
    return path


def test_a_recipe_survives_its_folder(tmp_path):
    recipe = recipe_for("6/384", minutes=2.0, phases=((64, 0.9), (128, 0.1)), masking="span", objective="mlm", seed=3)
    recipe.save(tmp_path)
    assert PreTrainingRecipe.load(tmp_path) == recipe
    assert recipe.changed(seed=4) != recipe


def test_a_file_by_hand_says_a_few_things_and_the_size_the_rest(tmp_path):
    path = written(tmp_path, model={"size": "base"}, trainer={"total_steps": 7, "warmup_share": 0.25})
    assert chosen_recipe({}, path) == recipe_for("base", steps=7, warmup_share=0.25)
    assert chosen_recipe({"learning_rate": 1e-5, "size": "tiny"}, path) == recipe_for(
        "tiny", steps=7, warmup_share=0.25, learning_rate=1e-5
    )


@pytest.mark.parametrize(
    ("given", "batch_size"),
    [
        ({}, 128),
        ({"sequence_length": 512}, 32),
        ({"sequence_length": 512, "size": "mini"}, 32),
        ({"phases": ((64, 0.9), (512, 0.1))}, 32),
        ({"sequence_length": 2048}, 32),
        ({"batch_size": 4}, 4),
    ],
)
def test_a_gpu_gets_larger_batches_of_as_many_tokens_at_every_length(given, batch_size):
    asked = {"size": "base", "steps": 3, **given}
    assert chosen_recipe(asked, device="cuda").data.batch_size == batch_size


def test_a_file_says_more_than_the_device(tmp_path):
    path = written(tmp_path, data={"batch_size": 8})
    assert chosen_recipe({"steps": 3}, path, device="cuda").data.batch_size == 8


@pytest.mark.parametrize(
    "given", [{}, {"batch_size": 4}, {"batch_tokens": 4096}, {"phases": ((64, 1.0, 0, 8),)}], ids=str
)
def test_a_run_goes_on_with_its_batch_on_another_device(tmp_path, given):
    given = {"steps": 3, **given}
    begun = chosen_recipe(given, device="cuda", run=tmp_path)
    begun.save(tmp_path)
    assert resolve_recipe(tmp_path, chosen_recipe(given, device="cpu", run=tmp_path)) == begun


def test_a_run_goes_on_with_the_masks_of_an_older_version(tmp_path):
    given = {"family": "modernbert", "steps": 3}
    begun = chosen_recipe({**given, "mask_spread": 0.0})
    begun.save(tmp_path)
    file = tmp_path / "recipe.toml"
    file.write_text(file.read_text().replace("spread = 0.0\n", "", 1))
    assert chosen_recipe(given).data.masking.spread == 1.0
    assert resolve_recipe(tmp_path, chosen_recipe(given, run=tmp_path)) == begun


def test_another_runs_recipe_can_be_taken_up(tmp_path):
    """Which data and which weights it was for belongs to that run alone."""
    first = recipe_for("mini", minutes=3.0, steps=40, corpus="of another corpus", mask_rate=0.3, seed=9)
    first.save(tmp_path)
    again = chosen_recipe({}, tmp_path / "recipe.toml")
    assert again == first.changed(corpus="")


@pytest.mark.parametrize(
    ("given", "gone"),
    [
        ({"tokens": 500}, {"steps": 0, "minutes": 0.0}),
        ({"batch_tokens": 4096}, {"batch_size": 16}),
        ({"sequence_length": 64}, {"phases": ()}),
        ({"size": "base"}, {"batch_size": 32}),
    ],
)
def test_an_option_takes_the_place_of_what_says_the_same_in_another_way(tmp_path, given, gone):
    path = written(
        tmp_path,
        data={"batch_size": 8} if "batch_tokens" in given else {},
        trainer={"total_steps": 7},
        length={"minutes": 3.0, "phases": [[32, 0.5], [128, 0.5]]},
    )
    values = values_of(chosen_recipe(given, path))
    assert {name: values[name] for name in (*given, *gone)} == {**given, **gone}


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"trainer": {"total_steps": "many"}}, r'mine.toml: not a usable recipe \(trainer.total_steps is "many"'),
        ({"trainer": {"speed": 1}}, "trainer.speed is no setting of this version"),
        ({"length": {"phases": [[32, "half"]]}}, r"length.phases\[0\]\[1\]"),
        ({"size": "tiny", "total_steps": 9}, "written by bertsmith 0.1, which alone can finish it"),
        ({"seed": 1}, "give an end"),
        ({"objective": "mlm+xyz", "trainer": {"total_steps": 9}}, "objective 'mlm\\+xyz' is unknown; use one of"),
        ({"model": {"first_vectors": "guessed"}, "trainer": {"total_steps": 9}}, r'first_vectors is "guessed", not'),
        ({"data": {"packing": "full"}, "trainer": {"total_steps": 9}}, "full packing has no second segment"),
    ],
)
def test_an_impossible_file_is_refused_in_a_line(tmp_path, tables, message):
    with pytest.raises(ConfigError, match=message) as caught:
        chosen_recipe({}, written(tmp_path, **tables))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_missing_or_no_toml_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        chosen_recipe({"steps": 3}, tmp_path / "nowhere.toml")
    (tmp_path / "deep.toml").write_text("a = " + "[" * 100_000)
    with pytest.raises(ConfigError, match=r"deep.toml: cannot be read \(nested too deeply\)"):
        chosen_recipe({"steps": 3}, tmp_path / "deep.toml")
    (tmp_path / "b.toml").write_text("[model")
    with pytest.raises(ConfigError, match="b.toml: cannot be read"):
        chosen_recipe({"steps": 3}, tmp_path / "b.toml")


def test_first_vectors_are_counted_or_drawn():
    with pytest.raises(ConfigError, match="first_vectors 'guessed' is unknown; use counted, drawn"):
        recipe_for("mini", steps=1, first_vectors="guessed")
