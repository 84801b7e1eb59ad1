"""How 15 % x 80/10/10 comes out on one's own sentence, by the code that pre-training uses (§3.1 task 1, A.1)."""

from __future__ import annotations

import numpy as np

from bertsmith.data.stream.masking import MaskedTokens, MaskingSettings, mask_tokens
from bertsmith.errors import InputError
from bertsmith.learn.lesson import Computation, Language, Step, Text
from bertsmith.learn.study import Study
from bertsmith.seeding import generator

DRAWS = 5000
"""Times that the sentence is masked to see the shares."""


def masked_copies(study: Study, text: str, copies: int, seed: int) -> MaskedTokens:
    """Masks a sentence many times over, each time anew, by the published shares.

    Raises:
        InputError: the sentence has no words, none that the vocabulary knows, or is too long.
    """
    ids, tokenizer = np.array(study.encode(text)[0]), study.tokenizer
    # 同一句话复制多份首尾相接：一次调用就抽了几千次，第一份即为展示的那次
    drawn = mask_tokens(
        np.tile(ids, copies),
        np.full(copies, len(ids)),
        special_ids=np.array(sorted(tokenizer.special_ids)),
        mask_token_id=tokenizer.mask_token_id,
        vocab_size=tokenizer.vocab_size,
        settings=MaskingSettings(),
        rng=generator(seed, "learn/masking"),
    )
    # 特殊词片从不被掩码，而 [UNK] 也是其中之一
    if not len(drawn.positions):
        raise InputError(f"the vocabulary has none of the words in {text[:40]!r}; write another sentence")
    return drawn


def masking(*, id: str, title: str, language: Language, study: Study, text: str, seed: int) -> Computation:
    """Masks a sentence once, and then many times to count.

    Raises:
        InputError: the sentence has no words, none that the vocabulary knows, or is too long.
    """
    ids = np.array(study.encode(text)[0])
    tokenizer, settings = study.tokenizer, MaskingSettings()
    drawn = masked_copies(study, text, DRAWS, seed)
    before, after = drawn.labels, drawn.input_ids[drawn.positions]
    masked, kept = after == tokenizer.mask_token_id, after == before
    count = len(before)
    replaced = count - int(masked.sum()) - int(kept.sum())
    once = drawn.positions[drawn.positions < len(ids)]
    names = Text("becomes [MASK]|another piece|stays, but is asked for", "变成 [MASK]|换成别的词片|不变，但仍要预测")(
        language
    ).split("|")
    fates = [
        (
            int(place),
            study.pieces([int(ids[place])])[0],
            study.pieces([int(drawn.input_ids[place])])[0],
            names[0 if masked[n] else 2 if kept[n] else 1],
        )
        for n, place in enumerate(once)
    ]
    shares = [
        (names[0], int(masked.sum()), f"{masked.mean():.1%}", f"{settings.mask_share:.0%}"),
        (names[1], replaced, f"{replaced / count:.1%}", f"{settings.random_share:.0%}"),
        (names[2], int(kept.sum()), f"{kept.mean():.1%}", f"{1 - settings.mask_share - settings.random_share:.0%}"),
    ]
    per_draw = count // DRAWS
    chosen = Text(
        f"{settings.rate:.0%} of {len(ids)} pieces is {settings.rate * len(ids):.2f}; the nearest whole number, a half"
        " to the even one; at least one",
        f"{len(ids)} 个词片的 {settings.rate:.0%} 是 {settings.rate * len(ids):.2f}，取最近的整数，恰为一半时取偶数；"
        "至少一个",
    )
    steps = (
        Step(Text("pieces", "词片")(language), " ".join(study.pieces(ids.tolist()))),
        Step(Text("how many are chosen", "选几个")(language), per_draw, chosen(language)),
        Step(
            Text("what the model reads", "模型读到的")(language),
            " ".join(study.pieces(drawn.input_ids[: len(ids)].tolist())),
        ),
        Step(
            Text("this draw", "这一次")(language),
            fates,
            columns=tuple(Text("place|piece|read as|fate", "位置|词片|读到的|处理")(language).split("|")),
        ),
        Step(
            Text(f"{DRAWS:,} draws", f"抽 {DRAWS:,} 次")(language),
            shares,
            Text("a random piece may by chance be the same: it then counts as unchanged", "随机词片碰巧相同时算作不变")(
                language
            ),
            columns=tuple(Text("fate|pieces|share|setting", "处理|词片数|比例|设定")(language).split("|")),
        ),
    )
    values = {
        "pieces": len(ids),
        "chosen": per_draw,
        "draws": DRAWS,
        "count": count,
        "masked_share": float(masked.mean()),
        "random_share": replaced / count,
        "kept_share": float(kept.mean()),
        "chosen_share": per_draw / len(ids),
    }
    return Computation(id, title, steps, values, study.note(language))
