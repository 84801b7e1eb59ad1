"""From a word to the states of a whole model: pieces, the input sum, a block, what reaches a token, the parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertsmith.batch import CAUSAL, FULL, RaggedBatch
from bertsmith.errors import InputError
from bertsmith.model import BertConfig, TransformerBlock
from bertsmith.tokenizer import WordPieceTokenizer
from bertsmith_school.learn.lesson import Found, Step, Words
from bertsmith_school.learn.study import Study
from bertsmith_school.looking.maps import maps_of

MOVED = 1e-5
"""Relative change of a state above which it counts as changed: float32 rounding stays well below."""

MOST_PIECES = 64
"""Longest sentence whose pieces are hidden one by one: the model reads it as many times."""

SHOWN = 4
"""Numbers of a vector that are printed."""


def pieces_of_a_word(study: Study, *, text: str) -> Found:
    """Takes the word of a sentence that makes the most pieces, and spells it."""
    study.encode(text)
    tokenizer = study.tokenizer
    encoding = tokenizer(text)
    words: dict[int, list[str]] = {}
    for index, number in zip(encoding["input_ids"], encoding["word_ids"], strict=True):
        if number >= 0:
            words.setdefault(number, []).append(tokenizer.vocab[index])
    spelled = list(words.values())
    if not isinstance(tokenizer, WordPieceTokenizer):
        raise InputError("the model does not read WordPiece; take one that does to see how it spells a word")
    known = [pieces for pieces in spelled if tokenizer.special_tokens.unk not in pieces]
    if not known:
        raise InputError(f"the vocabulary has none of the words in {text[:40]!r}; write another sentence")
    word = "".join(piece.removeprefix("##") for piece in max(known, key=len))
    rows, start = [], 0
    while start < len(word):
        # 从最长的开始试，每次去掉末尾一个字符；第一个在词表里的就是
        ends = range(len(word), start, -1)
        tried = [("##" if start else "") + word[start:end] for end in ends]
        found = next(number for number, piece in enumerate(tried) if piece in tokenizer.piece_to_id)
        rows.append((word[start:], tried[found], found + 1))
        start = ends[found]
    every = [(" ".join(pieces), len(pieces)) for pieces in spelled]
    values: dict[str, Any] = {"word": word, "pieces": [piece for _, piece, _ in rows], "count": len(rows)}
    values |= {"tries": sum(row[2] for row in rows), "vocabulary": tokenizer.vocab_size}
    return [every, rows], values


def both_sides(study: Study, *, first: str, second: str) -> Found:
    """Changes a word and looks whose state changes: from the left, from the right, and both ways (§1, figure 3).

    GPT reads from the left; ELMo joins a network that reads from the left with one that reads from the right.
    """
    ids, other = study.encode(first)[0], study.encode(second)[0]
    if len(ids) != len(other) or ids == other:
        raise InputError(
            f"first makes {len(ids)} pieces and second {len(other)}: change one word for another of as many pieces"
        )
    places = [n for n, (one, two) in enumerate(zip(ids, other, strict=True)) if one != two]
    if places[-1] - places[0] >= len(places):
        raise InputError(f"{first[:40]!r} and {second[:40]!r} differ in several places; change one word")
    # 一句一句地算：合成一批会改变矩阵乘法的舍入，看不见改动的词元也会有极小的差
    two_ways, one_way = ([study.states([each], mask=mask)[0] for each in (ids, other)] for mask in (FULL, CAUSAL))
    # 从右到左：把句子倒过来，用同样的因果遮罩读，再把状态倒回去
    other_way = [study.states([each[::-1]], mask=CAUSAL)[0].flip(0) for each in (ids, other)]
    both, left, right = (
        [_move(state, changed) for state, changed in zip(*states, strict=True)]
        for states in (two_ways, one_way, other_way)
    )
    place = next(n for n, (a, b) in enumerate(zip(ids, other, strict=True)) if a != b)
    rows = list(zip(study.pieces(ids), study.pieces(other), left, right, both, strict=True))
    values: dict[str, Any] = {"tokens": len(ids), "changed_both": sum(change > MOVED for change in both)}
    values |= {"changed_left": sum(change > MOVED for change in left)}
    values |= {"changed_right": sum(change > MOVED for change in right), "place": place}
    values |= {"word": study.pieces(ids)[place], "other": study.pieces(other)[place], "left": left}
    return [rows], values


@torch.inference_mode()
def input_sum(say: Words, study: Study, *, first: str, second: str, place: int) -> Found:
    """Adds token, segment and position embedding up, and normalises (§3, figure 2)."""
    ids, segments = study.encode(first, second)
    study.require_place(place, ids, "pair")
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
    names = tuple(say.split("vectors"))
    shown = torch.stack([*parts, total, normed])[:, :SHOWN].tolist()
    moments = [
        (name, float(vector.mean()), float(vector.std(correction=0)))
        for name, vector in ((names[3], total), (names[4], normed))
    ]
    values: dict[str, Any] = {"tokens": len(ids), "hidden": len(total), "shown": SHOWN, "piece": pieces[place]}
    values |= {"place": place, "segment": segments[place], "sum": total.tolist(), "normed": normed.tolist()}
    return [rows, Step("", shown, rows=names), moments], values


@torch.inference_mode()
def cls_summary(study: Study, *, text: str) -> Found:
    """Hides each word in turn and measures how far `[CLS]` moves, with its attention and without (§3, C of figure 1).

    With every path into `[CLS]` cut, in all layers, it reads itself alone: the same as a sequence of `[CLS]` only.
    """
    ids = study.encode(text, most=MOST_PIECES)[0]
    mask = study.tokenizer.mask_token_id
    hidden = [[*ids[:n], mask, *ids[n + 1 :]] for n in range(1, len(ids) - 1)]
    whole, *changed = (states[0] for states in study.states([ids, *hidden]))
    # 切断 [CLS] 的所有入口后，它每层只读自己，与“只有 [CLS] 的序列”逐位相同
    alone, *still = (states[0] for states in study.states([sequence[:1] for sequence in [ids, *hidden]]))
    moves = [_move(whole, state) for state in changed]
    cut = [_move(alone, state) for state in still]
    # 剪掉的头没有图：不算进平均
    looks = np.nanmean(maps_of(study.model, study.tokenizer, text).maps[:, :, 0], axis=(0, 1))
    pieces = study.pieces(ids)
    rows = [
        (piece, float(look), move, none)
        for piece, look, move, none in zip(pieces[1:-1], looks[1:-1], moves, cut, strict=True)
    ]
    values: dict[str, Any] = {"words": len(moves), "moved": sum(move > MOVED for move in moves)}
    values |= {"moved_cut": sum(move > MOVED for move in cut)}
    values |= {"most": pieces[1 + max(range(len(moves)), key=moves.__getitem__)], "moves": moves}
    values |= {"attention": looks.tolist()}
    return [rows], values


def _move(state: Tensor, other: Tensor) -> float:
    return float((state - other).norm() / state.norm())


def bert_block(study: Study) -> TransformerBlock:
    """Returns the first block of a model."""
    block = next(iter(study.model.backbone.encoder.blocks))
    if not isinstance(block, TransformerBlock):
        raise InputError(
            f"a block of {study.model.family.name} goes another way than BERT's, which is shown here; take a model of"
            " BERT or of a family nearer to it"
        )
    return block


@torch.inference_mode()
def first_block(study: Study, *, text: str, place: int) -> Found:
    """Follows a token through the first block: attention, residual, norm, feed-forward layer, residual, norm."""
    ids = study.encode(text)[0]
    study.require_place(place, ids)
    batch = RaggedBatch.from_sequences([ids])
    block = bert_block(study)
    hidden = study.model.backbone.embedding(batch)
    attended = block.attention(hidden, batch).states
    # 每个子层只给出“改动”，加回原来的状态上：梯度总有一条不经过任何矩阵的路
    middle = block.attention_norm(hidden + attended)
    wide = block.intermediate(middle)
    bent = block.activation(wide)
    back = block.output(bent)
    output = block.output_norm(middle + back)
    states = [hidden, attended, hidden + attended, middle, back, middle + back, output]
    steps = [torch.stack([state[place, :SHOWN] for state in shown]).tolist() for shown in (states, (wide, bent))]
    before, after = hidden[place], output[place]
    values: dict[str, Any] = {"piece": study.pieces(ids)[place], "place": place, "hidden": hidden.shape[1]}
    values |= {"inner": wide.shape[1], "shown": SHOWN, "function": study.model.config.hidden_act}
    values |= {"cosine": float(torch.cosine_similarity(before, after, dim=0)), "output": after.tolist()}
    return steps, values


def parameters(say: Words, *, size: str, vocab_size: int) -> Found:
    """Counts every matrix, bias and norm of a pre-training model."""
    config = BertConfig.named(size, vocab_size=vocab_size)
    h, i, v = config.hidden_size, config.intermediate_size, config.vocab_size
    p, t, layers = config.max_position_embeddings, config.type_vocab_size, config.num_hidden_layers
    embeddings = [("V·H", v * h), ("P·H", p * h), ("2·H", t * h), ("2·H", 2 * h)]
    block = [("3·(H² + H)", 3 * (h * h + h)), ("H² + H", h * h + h), ("H·I + I", h * i + i), ("I·H + H", i * h + h)]
    block.append(("4·H", 4 * h))
    # MLM 的输出矩阵就是词嵌入本身，不再另算
    heads = [("H² + H + 2·H", h * h + 3 * h), ("V", v), ("2·H + 2", 2 * h + 2)]
    pooler = h * h + h
    first, one, rest = (sum(count for _, count in part) for part in (embeddings, block, heads))
    total = first + layers * one + pooler + rest
    whole = [("", first), (f"{layers} ×", layers * one), ("H² + H", pooler), ("", rest), ("", total)]
    tables = {"embeddings": embeddings, "block": block, "heads": heads, "whole": whole}
    values: dict[str, Any] = {"total": total, "embeddings": first, "block": one, "encoder": layers * one}
    values |= {"heads": rest, "without_heads": total - rest, "layers": layers, "hidden": h, "inner": i}
    values |= {"vocabulary": v, "positions": p, "words_share": v * h / total}
    values |= {"feed_forward_share": (2 * h * i + h + i) / one}
    return [say.named(name, rows) for name, rows in tables.items()], values
