"""What a token knows of the others: both sides, the input sum, and why `[CLS]` can speak for a sentence.

All run on the reader's model, with no change to it: what is compared are states with and without a word.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bertsmith.batch import CAUSAL, FULL, RaggedBatch
from bertsmith.errors import InputError
from bertsmith.learn.lesson import Computation, Language, Step, Text
from bertsmith.learn.study import Study

MOVED = 1e-5
"""Relative change of a state above which it counts as changed: float32 rounding stays well below."""

MOST_PIECES = 64
"""Longest sentence whose pieces are hidden one by one: the model reads it as many times."""

SHOWN = 4
"""Numbers of a vector that are printed."""


def both_sides(*, id: str, title: str, language: Language, study: Study, first: str, second: str) -> Computation:
    """Changes a word and looks whose state changes: from the left, from the right, and both ways (§1, figure 3).

    GPT reads from the left; ELMo joins a network that reads from the left with one that reads from the right.

    Raises:
        InputError: the sentences are the same, or differ in length.
    """
    ids, other = study.encode(first)[0], study.encode(second)[0]
    if len(ids) != len(other) or ids == other:
        raise InputError(
            f"first makes {len(ids)} pieces and second {len(other)}: change one word for another of as many pieces"
        )
    # 一句一句地算：合成一批会改变矩阵乘法的舍入，看不见改动的词元也会有极小的差
    two_ways, one_way = ([study.states([each], mask=mask)[0] for each in (ids, other)] for mask in (FULL, CAUSAL))
    # 从右到左：把句子倒过来，用同样的因果遮罩读，再把状态倒回去
    other_way = [study.states([each[::-1]], mask=CAUSAL)[0].flip(0) for each in (ids, other)]
    both, left, right = _changes(*two_ways), _changes(*one_way), _changes(*other_way)
    place = next(n for n, (a, b) in enumerate(zip(ids, other, strict=True)) if a != b)
    rows = list(zip(study.pieces(ids), study.pieces(other), left, right, both, strict=True))
    columns = Text("sentence|changed|left to right|right to left|both ways", "句子|改动后|从左到右|从右到左|双向")(
        language
    ).split("|")
    note = Text(
        "how far each token's last state moves, relative to its length; 0: it cannot know of the change",
        "每个词元最后一层状态移动了多远（相对于自身长度）；0 表示它不可能知道这个改动",
    )
    steps = (Step(Text("change of state", "状态的变化")(language), rows, note(language), columns=tuple(columns)),)
    values = {
        "tokens": len(ids),
        "changed_both": sum(change > MOVED for change in both),
        "changed_left": sum(change > MOVED for change in left),
        "changed_right": sum(change > MOVED for change in right),
        "place": place,
        "word": study.pieces(ids)[place],
        "other": study.pieces(other)[place],
        "left": left,
        "both": both,
    }
    return Computation(id, title, steps, values, study.note(language))


@torch.inference_mode()
def input_sum(
    *, id: str, title: str, language: Language, study: Study, first: str, second: str, place: int
) -> Computation:
    """Adds token, segment and position embedding up, and normalises (§3, figure 2).

    Raises:
        InputError: there is no token at that place, or the model's family does not add three embeddings.
    """
    ids, segments = study.encode(first, second)
    if place >= len(ids):
        raise InputError(f"place {place}: the pair has the tokens 0 to {len(ids) - 1}")
    embedding, first_position = study.model.backbone.embedding, study.model.config.first_position
    if not hasattr(embedding, "token_type") or not hasattr(embedding, "position"):
        raise InputError(
            f"{study.model.family.name} does not add three embeddings; take a model of BERT or of a family nearer to it"
        )
    parts = [
        embedding.word.weight[ids[place]],
        embedding.token_type.weight[min(segments[place], embedding.token_type.num_embeddings - 1)],
        embedding.position.weight[first_position + place],
    ]
    total = parts[0] + parts[1] + parts[2]
    # 直接用嵌入的归一化：有的家族之后还有一个矩阵，那已不是这个和
    normed = embedding.norm(total)
    pieces = study.pieces(ids)
    rows = [(piece, i, s, n) for n, (piece, i, s) in enumerate(zip(pieces, ids, segments, strict=True))]
    heads = Text("piece|id|segment|position", "词片|编号|段|位置")(language).split("|")
    names = Text("token|segment|position|sum|after LayerNorm", "词|段|位置|和|LayerNorm 之后")(language).split("|")
    shown = torch.stack([*parts, total, normed])[:, :SHOWN].tolist()
    moments = [
        (name, float(vector.mean()), float(vector.std(correction=0)))
        for name, vector in ((names[3], total), (names[4], normed))
    ]
    what = Text("vector|mean|deviation", "向量|均值|标准差")(language).split("|")
    size = len(total)
    steps = (
        Step(Text("the sequence", "序列")(language), rows, columns=tuple(heads)),
        Step(
            Text(f"the token {pieces[place]} at place {place}", f"第 {place} 个位置的词元 {pieces[place]}")(language),
            shown,
            Text(f"the first {SHOWN} of {size} numbers", f"{size} 个数中的前 {SHOWN} 个")(language),
            tuple(names),
        ),
        Step(Text("over the whole vector", "整个向量")(language), moments, columns=tuple(what)),
    )
    values = {
        "tokens": len(ids),
        "hidden": size,
        "piece": pieces[place],
        "place": place,
        "segment": segments[place],
        "sum": total.tolist(),
        "normed": normed.tolist(),
    }
    return Computation(id, title, steps, values, study.note(language))


@torch.inference_mode()
def cls_summary(*, id: str, title: str, language: Language, study: Study, text: str) -> Computation:
    """Hides each word in turn and measures how far `[CLS]` moves, with its attention and without (§3, C of figure 1).

    With every path into `[CLS]` cut, in all layers, it reads itself alone: the same as a sequence of `[CLS]` only.

    Raises:
        InputError: the sentence has no words, or too many to hide one after the other.
    """
    ids = study.encode(text)[0]
    if len(ids) > MOST_PIECES:
        raise InputError(f"{text[:40]!r} makes {len(ids)} pieces; hiding each in turn takes at most {MOST_PIECES}")
    mask = study.tokenizer.mask_token_id
    hidden = [[*ids[:n], mask, *ids[n + 1 :]] for n in range(1, len(ids) - 1)]
    whole, *changed = (states[0] for states in study.states([ids, *hidden]))
    # 切断 [CLS] 的所有入口后，它每层只读自己，与“只有 [CLS] 的序列”逐位相同
    alone, *still = (states[0] for states in study.states([sequence[:1] for sequence in [ids, *hidden]]))
    moves = [_move(whole, state) for state in changed]
    cut = [_move(alone, state) for state in still]
    output = study.model.backbone(RaggedBatch.from_sequences([ids]), need_maps=True)
    assert output.attentions is not None
    looks = torch.stack([layer[0] for layer in output.attentions])[:, :, 0].mean((0, 1))
    pieces = study.pieces(ids)
    rows = [
        (piece, float(look), move, none)
        for piece, look, move, none in zip(pieces[1:-1], looks[1:-1], moves, cut, strict=True)
    ]
    columns = Text("word|attention of [CLS]|C moves|C moves, paths cut", "词|[CLS] 的注意力|C 的移动|切断后的移动")(
        language
    )
    note = Text(
        "attention: mean over layers and heads; C moves: when the word is hidden",
        "注意力：各层各头的平均；C 的移动：遮住这个词之后",
    )
    label = Text("each word and [CLS]", "每个词与 [CLS]")(language)
    steps = (Step(label, rows, note(language), columns=tuple(columns.split("|"))),)
    most = max(range(len(moves)), key=moves.__getitem__)
    values = {
        "words": len(moves),
        "moved": sum(move > MOVED for move in moves),
        "moved_cut": sum(move > MOVED for move in cut),
        "most": pieces[1 + most],
        "most_move": moves[most],
        "moves": moves,
        "attention": looks.tolist(),
        "own_attention": float(looks[0]),
    }
    return Computation(id, title, steps, values, study.note(language))


def _changes(states: Tensor, others: Tensor) -> list[float]:
    return [_move(state, other) for state, other in zip(states, others, strict=True)]


def _move(state: Tensor, other: Tensor) -> float:
    return float((state - other).norm() / state.norm())
