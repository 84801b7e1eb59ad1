"""What the heads of a whole model read, for one word of a sentence."""

from __future__ import annotations

import torch

from bertsmith.batch import RaggedBatch
from bertsmith.errors import InputError
from bertsmith.learn.lesson import Computation, Language, Step, Text
from bertsmith.learn.study import Study


@torch.inference_mode()
def trained_heads(*, id: str, title: str, language: Language, study: Study, text: str, word: str) -> Computation:
    """Shows which piece each head reads most from a word, and all shares of the head that singles one out most.

    Raises:
        InputError: the word is not in the sentence, the sentence has no words, or it is too long.
    """
    ids, target = study.encode(text)[0], study.tokenizer.encode(word)
    places = [n for n in range(len(ids)) if target and ids[n : n + len(target)] == target]
    if not places:
        raise InputError(f"the word {word[:40]!r} is not in {text[:40]!r}; name a word of the sentence")
    place, pieces = places[-1], study.pieces(ids)
    output = study.model.backbone(RaggedBatch.from_sequences([ids]), need_maps=True)
    assert output.attentions is not None
    # [L, A, S]：每一层每个头里，这个词从各个词元取多少
    shares = torch.stack([layer[0] for layer in output.attentions])[:, :, place]
    inside = shares[:, :, 1:-1].clone()
    # 从自己和特殊词元读不算“找别的词”：挑最能说明问题的头时先去掉
    inside[:, :, place - 1] = 0
    layer, head = divmod(int(inside.amax(-1).argmax()), shares.shape[1])
    rows, best = [], shares.argmax(-1)
    for number, (most, of_layer) in enumerate(zip(best.tolist(), shares, strict=True), 1):
        rows += [
            (number, other, pieces[piece], f"{float(of_layer[other - 1, piece]):.0%}")
            for other, piece in enumerate(most, 1)
        ]
    chosen = shares[layer, head].tolist()
    found = 1 + int(inside[layer, head].argmax())
    columns = Text("layer|head|reads most from|share", "层|头|读得最多的词元|份额")(language).split("|")
    label = Text(
        f"layer {layer + 1}, head {head + 1}: from where {pieces[place]} reads",
        f"第 {layer + 1} 层第 {head + 1} 个头：{pieces[place]} 从哪里读",
    )(language)
    steps = (
        Step(
            Text(f"every head, for {pieces[place]}", f"每个头，看 {pieces[place]}")(language),
            rows,
            columns=tuple(columns),
        ),
        Step(
            label,
            [(piece, f"{share:.0%}") for piece, share in zip(pieces, chosen, strict=True)],
            columns=tuple(Text("piece|share", "词元|份额")(language).split("|")),
        ),
    )
    values = {
        "piece": pieces[place],
        "layer": layer + 1,
        "head": head + 1,
        "found": pieces[found],
        "share": chosen[found],
        "even": 1 / len(ids),
        "shares": chosen,
        "pieces": pieces,
        "heads": shares.shape[0] * shares.shape[1],
    }
    return Computation(id, title, steps, values, study.note(language))
