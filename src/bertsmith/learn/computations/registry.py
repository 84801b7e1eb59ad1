"""`compute`: every computation of the lessons by name, with the inputs that a reader may change.

The terminal calls them with their defaults, the browser with what the reader typed; both get the same `Computation`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bertsmith.errors import InputError
from bertsmith.learn.computations import (
    attention,
    backward,
    block,
    choosing,
    counting,
    example,
    experiments,
    families,
    finetuning,
    heads,
    lookup,
    losses,
    masking,
    modernbert,
    pieces,
    published,
    reading,
    schedule,
    tagging,
)
from bertsmith.learn.lesson import Computation, Input, Language, Text
from bertsmith.learn.pictures.attention import draw_head
from bertsmith.learn.pictures.blocks import draw_block
from bertsmith.learn.pictures.embeddings import draw_embeddings
from bertsmith.learn.pictures.masks import draw_masking
from bertsmith.learn.pictures.shapes import draw_example, draw_shapes
from bertsmith.learn.starting import Ids, Suits, starting_sentences
from bertsmith.learn.study import Study
from bertsmith.model import NAMED_SIZES
from bertsmith.model.families.modernbert import ModernBertConfig
from bertsmith.tokenizer import Tokenizer


@dataclass(frozen=True)
class Recipe:
    """How a computation is made.

    Attributes:
        title: for people.
        function: takes the language, a `Study` where `needs_study`, and the inputs by name.
        inputs: what a reader may change.
        needs_study: whether it runs on the reader's model.
        suits: what it asks of its sentences besides being known to the vocabulary; None for nothing.
        draw: draws what it found as SVG; None for what is better read than seen.
    """

    title: Text
    function: Callable[..., Computation]
    inputs: tuple[Input, ...] = ()
    needs_study: bool = False
    suits: Suits | None = None
    draw: Callable[[Computation, Language], str] | None = None

    def sentences(self, tokenizer: Tokenizer) -> dict[str, str]:
        """Returns the texts that it starts from with a vocabulary, by name; empty where it takes none."""
        texts = [given for given in self.inputs if given.kind == "text"]
        options = [{given.name: given.default for given in texts}, {given.name: given.chinese for given in texts}]
        return starting_sentences(tokenizer, options, self.suits)


def _differ_in_a_word(ids: Ids) -> bool:
    return len(ids["first"]) == len(ids["second"]) and ids["first"] != ids["second"]


def _holds_the_word(ids: Ids) -> bool:
    return bool(losses.places_of(ids["hidden"], ids["text"]))


def _holds_both_words(ids: Ids) -> bool:
    pairs = (("hidden", "first"), ("other", "second"))
    return all(losses.places_of(ids[word], ids[text]) for word, text in pairs)


def _holds_word(ids: Ids) -> bool:
    return bool(losses.places_of(ids["word"], ids["text"]))


def _sentence(name: str, default: str, chinese: str, label: Text | None = None) -> Input:
    return Input(name, label or Text("sentence", "句子"), "text", default, chinese)


_FIRST, _SECOND = Text("sentence A", "句子 A"), Text("sentence B", "句子 B")
_SIZE = Input("size", Text("size", "尺寸"), "choice", "base", choices=tuple(NAMED_SIZES))
_SEED = Input("seed", Text("seed", "随机种子"), "integer", 0, smallest=0, largest=10**6)
_PLACE = Input("place", Text("token to look at", "要看的词元"), "integer", 2, smallest=0, largest=511)
_LONG_SENTENCE = _sentence(
    "text",
    "in the morning the woman reads the book at the barn and the farmer eats the bread",
    "她早上在家里看书下午去公园散步晚上和朋友一起在家里看电影",
)
_MODERN = ModernBertConfig()

COMPUTATIONS: dict[str, Recipe] = {
    "both_sides": Recipe(
        Text("What a change at the end reaches", "句末的改动影响到哪里"),
        reading.both_sides,
        (
            _sentence("first", "the man reads the book", "他早上在家里看书"),
            _sentence(
                "second",
                "the man reads the bread",
                "他早上在家里看报",
                Text("the same with another word", "换了一个词的句子"),
            ),
        ),
        needs_study=True,
        suits=_differ_in_a_word,
    ),
    "pieces_of_a_word": Recipe(
        Text("A word into pieces", "一个词切成词片"),
        pieces.pieces_of_a_word,
        (_sentence("text", "the reader walked homewards", "他早上在家里看书"),),
        needs_study=True,
    ),
    "input_sum": Recipe(
        Text("Three embeddings, summed", "三种嵌入相加"),
        reading.input_sum,
        (
            _sentence("first", "the man reads", "他在看书", _FIRST),
            _sentence("second", "the woman sleeps", "她在睡觉", _SECOND),
            _PLACE,
        ),
        needs_study=True,
        draw=draw_embeddings,
    ),
    "looking_up": Recipe(
        Text("Who is she?", "she 指谁？"),
        lookup.looking_up,
        (
            Input("x", Text("X, a row per word", "X，每个词一行"), "matrix", lookup.STATES),
            Input("query", Text("W_Q", "W_Q"), "matrix", lookup.QUERY),
            Input("key", Text("W_K", "W_K"), "matrix", lookup.KEY),
            Input("value", Text("W_V", "W_V"), "matrix", lookup.VALUE),
        ),
        draw=draw_head,
    ),
    "two_tokens": Recipe(
        Text("Attention between two tokens", "两个词元之间的注意力"),
        attention.two_tokens,
        (
            Input("x", Text("X, a row per token", "X，每个词元一行"), "matrix", [[1, 0], [1, 2]]),
            Input("query", Text("W_Q", "W_Q"), "matrix", [[1, 1], [0, 1]]),
            Input("key", Text("W_K", "W_K"), "matrix", [[1, 0], [1, 1]]),
            Input("value", Text("W_V", "W_V"), "matrix", [[2, 0], [0, 3]]),
        ),
    ),
    "two_heads": Recipe(
        Text("Two heads, joined and projected", "两个头，拼接并投影"),
        attention.two_heads,
        (
            Input("x", Text("X, a row per token", "X，每个词元一行"), "matrix", [[1, 0], [1, 2]]),
            Input(
                "query",
                Text("W_Q, half of the columns for each head", "W_Q，每个头一半的列"),
                "matrix",
                [[1, 0], [0, 1]],
            ),
            Input("key", Text("W_K", "W_K"), "matrix", [[0, 1], [1, -1]]),
            Input("value", Text("W_V", "W_V"), "matrix", [[2, 0], [0, 3]]),
            Input("output", Text("W_O", "W_O"), "matrix", [[1, 1], [0, 1]]),
        ),
    ),
    "trained_heads": Recipe(
        Text("What every head reads", "每个头在读什么"),
        heads.trained_heads,
        (
            _sentence("text", "In the morning the farmer feeds the cow at the barn.", "他早上在家里看书"),
            _sentence("word", "feeds", "看", Text("word that reads", "正在读的词")),
        ),
        needs_study=True,
        suits=_holds_word,
    ),
    "first_block": Recipe(
        Text("A token through a block", "一个词元经过一层"),
        block.first_block,
        (
            _sentence("text", "the man reads the book", "他早上在家里看书"),
            _PLACE,
        ),
        needs_study=True,
        draw=draw_block,
    ),
    "cls_summary": Recipe(
        Text("What reaches [CLS]", "什么能到达 [CLS]"),
        reading.cls_summary,
        (_sentence("text", "the man reads the book", "他早上在家里看书"),),
        needs_study=True,
    ),
    "parameters": Recipe(
        Text("Counting the parameters", "数一数参数"),
        counting.parameters,
        (
            _SIZE,
            Input("vocab_size", Text("pieces", "词片数"), "integer", 30522, smallest=1, largest=10**7),
        ),
    ),
    "masking": Recipe(
        Text("What is hidden", "遮住了什么"),
        masking.masking,
        (
            _LONG_SENTENCE,
            Input("seed", Text("draw", "第几次抽取"), "integer", 18, smallest=0, largest=10**6),
        ),
        needs_study=True,
        draw=draw_masking,
    ),
    "mlm_loss": Recipe(
        Text("Masked LM, from logits to a number", "MLM：从 logits 到一个数"),
        losses.mlm_loss,
        (
            _sentence("text", "the man reads the book", "他早上在家里看书"),
            _sentence("hidden", "book", "书", Text("word to hide", "要遮住的词")),
        ),
        needs_study=True,
        suits=_holds_the_word,
    ),
    "nsp_loss": Recipe(
        Text("Next sentence, from logits to a number", "NSP：从 logits 到一个数"),
        losses.nsp_loss,
        (
            _sentence("first", "the man reads the book", "他早上在家里看书", _FIRST),
            _sentence("second", "he sleeps at night", "他晚上很早睡觉", _SECOND),
            Input("truth", Text("the truth", "真实情况"), "choice", "is next", choices=losses.CLASSES),
        ),
        needs_study=True,
    ),
    "one_example": Recipe(
        Text("A whole example: both losses", "一个完整的例子：两个损失"),
        example.one_example,
        (
            _sentence("first", "In the morning the man eats the bread.", "他早上在家里看书", _FIRST),
            _sentence("second", "At noon he sweeps the floor at the shop.", "他晚上很早睡觉", _SECOND),
            _sentence("hidden", "eats", "看", Text("word of A to hide", "A 中要遮住的词")),
            _sentence("other", "floor", "睡", Text("word of B to hide", "B 中要遮住的词")),
        ),
        needs_study=True,
        suits=_holds_both_words,
        draw=draw_example,
    ),
    "head_sizes": Recipe(
        Text("What a task adds", "一个任务要加多少"),
        finetuning.head_sizes,
        (_SIZE, Input("labels", Text("classes", "类别数"), "integer", 3, smallest=1, largest=10**5)),
        draw=draw_shapes,
    ),
    "tag_words": Recipe(Text("Tagging, trained while you wait", "序列标注，当场训练"), tagging.tag_words, (_SEED,)),
    "answer_span": Recipe(
        Text("The best span", "最好的片段"),
        finetuning.answer_span,
        (
            Input("start", Text("S·T_i, [CLS] first", "S·T_i，[CLS] 在前"), "numbers", [1, 0, 3, 2, -1]),
            Input("end", Text("E·T_j, [CLS] first", "E·T_j，[CLS] 在前"), "numbers", [1, 4, 0, 2, 1]),
        ),
    ),
    "choose_ending": Recipe(
        Text("Choosing an ending", "选择结尾"),
        choosing.choose_ending,
        (
            _sentence(
                "context",
                "Anna the baker lives at the bakery. The day is sunny.",
                "他早上在家里看书",
                Text("context", "上文"),
            ),
            _sentence(
                "first",
                "In the morning Anna eats the wonderful bread.",
                "他晚上很早睡觉",
                Text("the right ending", "正确的结尾"),
            ),
            _sentence(
                "second", "At noon Leo climbs the ridge.", "她下午去公园散步", Text("a wrong ending", "错误的结尾")
            ),
            _sentence(
                "third",
                "In the evening Greta casts the net.",
                "我们一起看电影",
                Text("another wrong ending", "另一个错误的结尾"),
            ),
        ),
        needs_study=True,
    ),
    "published": Recipe(
        Text("What the paper reports", "论文报告的结果"),
        published.published,
        (Input("table", Text("table", "表"), "choice", published.ALL, choices=(published.ALL, *published.TABLES)),),
    ),
    "ablation": Recipe(
        Text("Taking one idea away", "拿走一个想法"),
        experiments.ablation,
        (_SEED,),
    ),
    "schedule": Recipe(
        Text("The learning rate over time", "学习率随时间的变化"),
        schedule.schedule,
        (
            Input("steps", Text("steps", "步数"), "integer", 1_000_000, smallest=1, largest=10**9),
            Input("warmup", Text("warm-up steps", "预热步数"), "integer", 10_000, smallest=0, largest=10**9),
        ),
    ),
    "gradient_check": Recipe(
        Text("A gradient, derived and measured", "梯度：推导与测量"),
        backward.gradient_check,
        (_SEED,),
    ),
    "recovered_attention": Recipe(
        Text("What attention gives away", "注意力泄露了什么"),
        backward.recovered_attention,
        (_SEED,),
    ),
    "roberta_masks": Recipe(
        Text("RoBERTa: new masks in every pass", "RoBERTa：每一遍重抽掩码"),
        families.roberta_masks,
        (_LONG_SENTENCE, _SEED),
        needs_study=True,
    ),
    "distilbert_layers": Recipe(
        Text("DistilBERT: what is left out", "DistilBERT：省去了什么"), families.distilbert_layers, (_SIZE,)
    ),
    "albert_sharing": Recipe(
        Text("ALBERT: one block for all layers", "ALBERT：所有层共用一块"),
        families.albert_sharing,
        (_SIZE, Input("vocab_size", Text("pieces", "词片数"), "integer", 30000, smallest=1, largest=10**7)),
    ),
    "electra_replaced": Recipe(
        Text("ELECTRA: which words were replaced?", "ELECTRA：哪些词被换过？"), families.electra_replaced, (_SEED,)
    ),
    "modernbert_block": Recipe(
        Text("ModernBERT: the norm before, and a gate", "ModernBERT：先归一化，再加一道门"),
        modernbert.modernbert_block,
        (_sentence("text", "the man reads the book", "他早上在家里看书"), _PLACE),
        needs_study=True,
    ),
    "rotary_shift": Recipe(
        Text("ModernBERT: places as angles", "ModernBERT：位置是角度"),
        modernbert.rotary_shift,
        (
            Input("query", Text("q", "q"), "numbers", [1, 2, 0, 1]),
            Input("key", Text("k", "k"), "numbers", [2, 1, 1, 0]),
            Input("first", Text("place of q", "q 的位置"), "integer", 5, smallest=0, largest=8191),
            Input("second", Text("place of k", "k 的位置"), "integer", 2, smallest=0, largest=8191),
            Input("shift", Text("moved by", "每次移动"), "integer", 7, smallest=1, largest=2000),
            Input(
                "base", Text("base θ", "底数 θ"), "integer", int(_MODERN.local_rope_theta), smallest=2, largest=10**7
            ),
        ),
    ),
    "local_window": Recipe(
        Text("ModernBERT: a window in two layers of three", "ModernBERT：三层里有两层只看窗口"),
        modernbert.local_window,
        (
            Input(
                "window",
                Text("tokens on either side", "左右各几个词元"),
                "integer",
                _MODERN.local_attention // 2,
                smallest=1,
                largest=10**6,
            ),
            Input("layers", Text("layers", "层数"), "integer", _MODERN.num_hidden_layers, smallest=1, largest=1000),
            Input(
                "every",
                Text("every how many layers all is read", "每几层读一次全文"),
                "integer",
                _MODERN.global_attn_every_n_layers,
                smallest=1,
                largest=1000,
            ),
        ),
    ),
}
"""Every computation by name, in the order of the story."""


def picture(found: Computation, language: Language = "en") -> str | None:
    """Draws what a computation found.

    Args:
        found: of `compute`, with whatever inputs.
        language: of the words in the picture; that of `found`, so that both say the same.

    Returns:
        An SVG; None for a computation that has no picture.
    """
    draw = COMPUTATIONS[found.id].draw
    return None if draw is None else draw(found, language)


def compute(id: str, *, language: Language = "en", study: Study | None = None, **inputs: Any) -> Computation:
    """Runs a computation.

    Args:
        id: a name of `COMPUTATIONS`.
        language: of titles, labels and notes.
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
    if not recipe.needs_study:
        return recipe.function(id=id, title=recipe.title(language), language=language, **given)
    study = Study.village() if study is None else study
    # 几句话是互相配着的：读者写了其中一句，就一句也不替换
    if not any(known[name].kind == "text" for name in inputs):
        given |= recipe.sentences(study.tokenizer)
    return recipe.function(id=id, title=recipe.title(language), language=language, study=study, **given)
