"""One training example of BERT from end to end: a masked pair, both losses, their sum (§3.1; figure 1, left)."""

from __future__ import annotations

import math

import torch

from bertsmith.batch import RaggedBatch
from bertsmith.errors import InputError
from bertsmith.learn.computations.losses import places_of
from bertsmith.learn.lesson import Computation, Language, Step, Text
from bertsmith.learn.study import Study
from bertsmith.model.heads import NextSentenceHead
from bertsmith.objectives import MaskedLMLoss, NSPLoss


@torch.inference_mode()
def one_example(
    *, id: str, title: str, language: Language, study: Study, first: str, second: str, hidden: str, other: str
) -> Computation:
    """Hides a word in each sentence of a true pair, and adds both losses up.

    Raises:
        InputError: a word is not in its sentence, the texts are too long, or the family has no next-sentence head.
    """
    if study.model.family.heads.get("next_sentence") is not NextSentenceHead:
        raise InputError(f"{study.model.family.name} was not trained to tell the next sentence; take a BERT")
    ids, segments = study.encode(first, second)
    positions: list[int] = []
    for word, text in ((hidden, first), (other, second)):
        target = study.tokenizer.encode(word)
        segment = 0 if text is first else 1
        places = [n for n in places_of(target, ids) if segments[n] == segment]
        if not places:
            raise InputError(f"the word {word[:40]!r} is not in {text[:40]!r}; name a word of the sentence")
        positions += range(places[0], places[0] + len(target))
    read = [study.tokenizer.mask_token_id if n in positions else index for n, index in enumerate(ids)]
    targets = torch.tensor([ids[n] for n in positions])
    output = study.model(RaggedBatch.from_sequences([read], [segments]), torch.tensor(positions))
    logits = output.mlm_logits.float()
    words, pair = MaskedLMLoss()(logits, targets), NSPLoss()(output.nsp_logits, torch.tensor([0]))
    shares = logits.softmax(-1)
    best = shares.max(-1)
    filled = [
        (n, study.pieces([ids[n]])[0], study.pieces([int(guess)])[0], float(top), float(share[ids[n]]))
        for n, guess, top, share in zip(positions, best.indices, best.values, shares, strict=True)
    ]
    follows = float(output.nsp_logits[0].float().softmax(-1)[0])
    total = float(words.loss) + float(pair.loss)

    def say(en: str, zh: str) -> str:
        return Text(en, zh)(language)

    steps = (
        Step(say("what the model reads", "模型读到的"), " ".join(study.pieces(read))),
        Step(
            say("the hidden words", "遮住的词"),
            filled,
            columns=tuple(
                say(
                    "place|true piece|likeliest|its p|p of the true one", "位置|正确词片|最可能的|它的 p|正确词片的 p"
                ).split("|")
            ),
        ),
        Step(say("masked-LM loss, the mean of -log p", "MLM 损失，-log p 的平均"), float(words.loss), "nats"),
        Step(say("probability that B follows A", "B 接着 A 的概率"), follows),
        Step(say("next-sentence loss", "NSP 损失"), float(pair.loss), "nats"),
        Step(say("loss of pre-training, the sum", "预训练的损失，两者之和"), total, "nats"),
    )
    values = {
        "read": study.pieces(read),
        "segments": segments,
        "positions": positions,
        "filled": filled,
        "words_loss": float(words.loss),
        "pair_loss": float(pair.loss),
        "loss": total,
        "follows": follows,
        "blind": math.log(logits.shape[1]) + math.log(2),
    }
    return Computation(id, title, steps, values, study.note(language))
