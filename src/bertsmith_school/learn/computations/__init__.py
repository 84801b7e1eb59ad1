"""The computations of the lessons, by name, with the inputs that a reader may change.

Their words, and the sentences that they start from, are in `parts/computations.LANGUAGE.yaml`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bertsmith.errors import InputError
from bertsmith.model import NAMED_SIZES
from bertsmith.model.families import modernbert as modernbert_family
from bertsmith.tokenizer import Tokenizer
from bertsmith_school.learn import charts, pictures
from bertsmith_school.learn.computations import (
    attention,
    experiments,
    families,
    finetuning,
    pretraining,
    reading,
    why,
)
from bertsmith_school.learn.equations import EQUATIONS, source_of
from bertsmith_school.learn.lesson import LANGUAGES, Computation, Found, Input, Language, Text, Words
from bertsmith_school.learn.study import Ids, Study, Suits, places_of, starting_sentences


@dataclass(frozen=True)
class Recipe:
    """How a computation is made.

    Attributes:
        function: takes `say`, the words of a language, and `study`, where it names them, and the inputs by name.
        suits: what it asks of its sentences besides being known to the vocabulary; None for nothing.
        draw: draws what it found as SVG, in the words of a picture; None for what is better read than seen.
    """

    title: Text
    function: Callable[..., Found]
    inputs: tuple[Input, ...] = ()
    suits: Suits | None = None
    draw: Callable[[Computation, Mapping[str, str]], str] | None = None

    @property
    def needs_study(self) -> bool:
        """Whether it computes with a model."""
        return "study" in inspect.signature(self.function).parameters

    def sentences(self, tokenizer: Tokenizer) -> dict[str, str]:
        """Returns the texts that it starts from with a vocabulary, by name; empty where it takes none."""
        texts = [given for given in self.inputs if given.kind == "text"]
        options = [{given.name: given.default for given in texts}, {given.name: given.chinese for given in texts}]
        return starting_sentences(tokenizer, options, self.suits)


def _recipe(function: Callable[..., Found], given: Mapping[str, Mapping[str, Any]], **how: Any) -> Recipe:
    """Builds a recipe: its texts are those of the words, its other inputs are given by name, as fields of `Input`."""
    words, chinese = (Words.of(function.__name__, language).texts for language in LANGUAGES)
    texts = {
        name: {"kind": "text", "default": text, "chinese": chinese["starts"][name]}
        for name, text in words["starts"].items()
    }
    inputs = [
        Input(name, Text(words["inputs"][name], chinese["inputs"][name]), **fields)
        for name, fields in (texts | dict(given)).items()
    ]
    return Recipe(Text(words["title"], chinese["title"]), function, tuple(inputs), **how)


def _whole(default: int, smallest: int, largest: int) -> dict[str, Any]:
    return {"kind": "integer", "default": default, "smallest": smallest, "largest": largest}


def _choice(default: str, choices: Iterable[str]) -> dict[str, Any]:
    return {"kind": "choice", "default": default, "choices": tuple(choices)}


def _arrays(kind: str, **defaults: Any) -> dict[str, dict[str, Any]]:
    return {name: {"kind": kind, "default": default} for name, default in defaults.items()}


def _differ_in_a_word(ids: Ids) -> bool:
    return len(ids["first"]) == len(ids["second"]) and ids["first"] != ids["second"]


def _held(**words: str) -> Suits:
    """Asks that each word, by the name of its input, stands in its sentence."""
    return lambda ids: all(places_of(ids[word], ids[text]) for word, text in words.items())


_SEED, _SIZE, _PLACE = (
    {"seed": _whole(0, 0, 10**6)},
    {"size": _choice("base", NAMED_SIZES)},
    {"place": _whole(2, 0, 511)},
)
_LOOKING_UP = _arrays("matrix", x=attention.STATES, query=attention.QUERY, key=attention.KEY, value=attention.VALUE)
_TWO_TOKENS = _arrays(
    "matrix", x=[[1, 0], [1, 2]], query=[[1, 1], [0, 1]], key=[[1, 0], [1, 1]], value=[[2, 0], [0, 3]]
)
_TWO_HEADS = _arrays(
    "matrix", query=[[1, 0], [0, 1]], key=[[0, 1], [1, -1]], value=[[2, 0], [0, 3]], output=[[1, 1], [0, 1]]
)
_MODERN = modernbert_family.ModernBertConfig()
_TURNED = {
    **_arrays("numbers", query=[1, 2, 0, 1], key=[2, 1, 1, 0]),
    "first": _whole(5, 0, 8191),
    "second": _whole(2, 0, 8191),
    "shift": _whole(7, 1, 2000),
    "base": _whole(int(_MODERN.local_rope_theta), 2, 10**7),
}
_WINDOW = {
    "window": _whole(_MODERN.local_attention // 2, 1, 10**6),
    "layers": _whole(_MODERN.num_hidden_layers, 1, 1000),
    "every": _whole(_MODERN.global_attn_every_n_layers, 1, 1000),
}
_TABLE = {"table": _choice(experiments.ALL, (experiments.ALL, *experiments.TABLES))}
_STEPS = {"steps": _whole(1_000_000, 1, 10**9), "warmup": _whole(10_000, 0, 10**9)}
_RECIPES = (
    _recipe(why.two_stages, _SIZE, draw=charts.draw_stages),
    _recipe(why.who_reads_whom, {}, draw=charts.draw_readers),
    _recipe(reading.both_sides, {}, suits=_differ_in_a_word, draw=charts.draw_both_sides),
    _recipe(why.own_answer, {"layers": _whole(3, 1, 12)}, suits=_held(hidden="text"), draw=charts.draw_paths),
    _recipe(reading.pieces_of_a_word, {}),
    _recipe(reading.input_sum, _PLACE, draw=pictures.draw_embeddings),
    _recipe(attention.looking_up, _LOOKING_UP, draw=pictures.draw_head),
    _recipe(attention.two_tokens, _TWO_TOKENS),
    _recipe(attention.two_heads, {"x": _TWO_TOKENS["x"], **_TWO_HEADS}),
    _recipe(attention.trained_heads, {}, suits=_held(word="text")),
    _recipe(reading.first_block, _PLACE, draw=pictures.draw_block),
    _recipe(reading.cls_summary, {}),
    _recipe(reading.parameters, {**_SIZE, "vocab_size": _whole(30522, 1, 10**7)}),
    _recipe(pretraining.masking, {"seed": _whole(18, 0, 10**6)}, draw=pictures.draw_masking),
    _recipe(pretraining.mlm_loss, {}, suits=_held(hidden="text")),
    _recipe(pretraining.nsp_loss, {"truth": _choice("is next", pretraining.CLASSES)}),
    _recipe(pretraining.one_example, {}, suits=_held(hidden="first", other="second"), draw=pictures.draw_example),
    _recipe(experiments.learning_curve, {**_SEED, "steps": _whole(experiments.STEPS, 2, 400)}, draw=charts.draw_curve),
    _recipe(finetuning.head_sizes, {**_SIZE, "labels": _whole(3, 1, 10**5)}, draw=pictures.draw_shapes),
    _recipe(finetuning.tag_words, _SEED),
    _recipe(finetuning.answer_span, _arrays("numbers", start=[1, 0, 3, 2, -1], end=[1, 4, 0, 2, 1])),
    _recipe(finetuning.choose_ending, {}),
    _recipe(experiments.published, _TABLE, draw=charts.draw_published),
    _recipe(experiments.larger_networks, {}, draw=charts.draw_sizes),
    _recipe(experiments.paper_ablation, {}, draw=charts.draw_paper_ablation),
    _recipe(experiments.ablation, _SEED, draw=charts.draw_ablation),
    _recipe(experiments.several_seeds, {"seeds": _whole(3, 2, 20)}, draw=charts.draw_seeds),
    _recipe(pretraining.schedule, _STEPS, draw=charts.draw_schedule),
    _recipe(experiments.gradient_check, _SEED, draw=charts.draw_gradient),
    _recipe(experiments.recovered_attention, _SEED, draw=charts.draw_recovered),
    _recipe(families.swapped_modules, {}, draw=charts.draw_swapped),
    _recipe(families.roberta_masks, _SEED, draw=charts.draw_masks),
    _recipe(families.distilbert_layers, _SIZE, draw=charts.draw_sharing),
    _recipe(families.albert_sharing, {**_SIZE, "vocab_size": _whole(30000, 1, 10**7)}, draw=charts.draw_sharing),
    _recipe(families.electra_replaced, _SEED, draw=charts.draw_replaced),
    _recipe(families.modernbert_block, _PLACE, draw=charts.draw_depth),
    _recipe(families.rotary_shift, _TURNED, draw=charts.draw_turned),
    _recipe(families.local_window, _WINDOW, draw=charts.draw_window),
)
COMPUTATIONS: dict[str, Recipe] = {recipe.function.__name__: recipe for recipe in _RECIPES}
"""Every computation by name, in the order of the story."""


def picture(found: Computation, language: Language = "en") -> str | None:
    """Draws what `compute` found, in its language, as SVG; None for a computation that has no picture."""
    draw = COMPUTATIONS[found.id].draw
    return None if draw is None else draw(found, Words.of(found.id, language).picture(found.values))


def compute(id: str, *, language: Language = "en", study: Study | None = None, **inputs: Any) -> Computation:
    """Runs a computation of `COMPUTATIONS`.

    Args:
        study: the model to compute with, where one is needed; None for the village model.
        **inputs: what to change, see `COMPUTATIONS[id].inputs`; the rest keeps its default. Where no text is given,
            the texts are such as the model's vocabulary can write.

    Raises:
        InputError: there is no such computation or input, or a value is not possible.
    """
    if id not in COMPUTATIONS:
        raise InputError(f"there is no computation {id[:40]!r}; there are {', '.join(COMPUTATIONS)}")
    recipe = COMPUTATIONS[id]
    known = {each.name: each for each in recipe.inputs}
    unknown = sorted(inputs.keys() - known.keys())
    if unknown:
        raise InputError(f"{id} has no input {unknown[0][:40]!r}; it has {', '.join(known) or 'none'}")
    given = {name: each.check(inputs.get(name, each.default)) for name, each in known.items()}
    note = ""
    if recipe.needs_study:
        given["study"] = study = study or Study.village()
        note = study.note(language)
        # 几句话是互相配着的：读者写了其中一句，就一句也不替换
        if not any(known[name].kind == "text" for name in inputs):
            given |= recipe.sentences(study.tokenizer)
    say = Words.of(id, language)
    if "say" in inspect.signature(recipe.function).parameters:
        given["say"] = say
    found, values = recipe.function(**given)
    code = source_of(EQUATIONS[id]) if id in EQUATIONS else ""
    return Computation(id, recipe.title(language), tuple(say.steps(found, values)), values, note, code)
