"""Pre-training in numbers: what is masked, both losses, a whole example, the learning rate over time (§3.1, A.2)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from bertsmith.batch import RaggedBatch
from bertsmith.data.stream.masking import MaskedTokens, MaskingSettings, mask_tokens
from bertsmith.errors import InputError
from bertsmith.objectives import MaskedLMLoss, NSPLoss
from bertsmith.seeding import generator
from bertsmith.train.optimizer import learning_rate_at
from bertsmith_school.learn.lesson import Cell, Found, Words
from bertsmith_school.learn.study import Study

DRAWS = 5000
"""Times that the sentence is masked to see the shares."""

CLASSES = ("is next", "is random")
"""The two classes of next sentence prediction, by id."""

TOP = 5
"""Candidates that are printed."""

BOOKS_WORDS, WIKIPEDIA_WORDS = 800_000_000, 2_500_000_000
"""The corpora of §3.1: BooksCorpus (Zhu et al. 2015) and the running text of English Wikipedia."""

PEAK, BATCH, LENGTH, CORPUS_WORDS = 1e-4, 256, 512, BOOKS_WORDS + WIKIPEDIA_WORDS
"""What A.2 states: the highest rate, sequences in a batch, tokens in a sequence, words in books and Wikipedia."""

SHORT, SHORT_SHARE = 128, 0.9
"""The length of the first steps, and their share."""


def masked_copies(study: Study, text: str, copies: int, seed: int) -> MaskedTokens:
    """Masks a sentence many times over, each time anew, by the published shares."""
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


def masking(say: Words, study: Study, *, text: str, seed: int) -> Found:
    """Masks a sentence once, and then many times to count."""
    ids = np.array(study.encode(text)[0])
    settings = MaskingSettings()
    drawn = masked_copies(study, text, DRAWS, seed)
    before, after = drawn.labels, drawn.input_ids[drawn.positions]
    masked, kept = after == study.tokenizer.mask_token_id, after == before
    fates, count = (masked, ~masked & ~kept, kept), len(before)
    shares = [int(fate.sum()) / count for fate in fates]
    once = drawn.positions[drawn.positions < len(ids)]
    names = say.split("fates")
    this_draw: list[tuple[Cell, ...]] = [
        (
            int(place),
            *study.pieces([ids[place], drawn.input_ids[place]]),
            names[[bool(f[n]) for f in fates].index(True)],
        )
        for n, place in enumerate(once)
    ]
    wanted = (settings.mask_share, settings.random_share, 1 - settings.mask_share - settings.random_share)
    counted = [
        (int(fate.sum()), f"{share:.1%}", f"{setting:.0%}")
        for fate, share, setting in zip(fates, shares, wanted, strict=True)
    ]
    values: dict[str, Any] = {"pieces": len(ids), "chosen": count // DRAWS, "rate": settings.rate}
    values |= {"exact": settings.rate * len(ids), "draws": DRAWS, "count": count, "masked_share": shares[0]}
    values |= {"random_share": shares[1], "kept_share": shares[2]}
    read = (" ".join(study.pieces(row.tolist())) for row in (ids, drawn.input_ids[: len(ids)]))
    return [next(read), count // DRAWS, next(read), this_draw, say.named("fates", counted)], values


@torch.inference_mode()
def mlm_loss(study: Study, *, text: str, hidden: str) -> Found:
    """Hides a word and follows the loss at its place."""
    tokenizer = study.tokenizer
    ids = study.encode(text)[0]
    target, place = tokenizer.encode(hidden), study.places_of(hidden, text, ids)[0]
    positions = list(range(place, place + len(target)))
    corrupted = [tokenizer.mask_token_id if n in positions else index for n, index in enumerate(ids)]
    output = study.model(RaggedBatch.from_sequences([corrupted]), torch.tensor(positions))
    logits = output.mlm_logits.float()
    measure = MaskedLMLoss()(logits, torch.tensor(target))
    # 先减去最大值再取指数：结果不变，但不会溢出
    first = logits[0] - logits[0].max()
    powers = first.exp()
    best = logits[0].topk(min(TOP, len(first))).indices.tolist()
    shown = best if target[0] in best else [*best, target[0]]
    rows = [
        (study.pieces([n])[0], float(logits[0, n]), float(powers[n]), float(powers[n] / powers.sum())) for n in shown
    ]
    probabilities = logits.softmax(-1)[torch.arange(len(target)), torch.tensor(target)].tolist()
    each = [
        (piece, probability, -math.log(probability))
        for piece, probability in zip(study.pieces(target), probabilities, strict=True)
    ]
    loss, blind = float(measure.loss), math.log(logits.shape[1])
    steps = [" ".join(study.pieces(corrupted)), rows, float(powers.sum()), each, loss, blind]
    values: dict[str, Any] = {"loss": loss, "probabilities": probabilities, "pieces": len(target)}
    values |= {"vocabulary": logits.shape[1], "blind": blind, "word": hidden, "perplexity": math.exp(loss)}
    return steps, values


@torch.inference_mode()
def nsp_loss(say: Words, study: Study, *, first: str, second: str, truth: str) -> Found:
    """Follows a pair from C to the next-sentence loss."""
    study.require_next_sentence()
    ids, segments = study.encode(first, second)
    output = study.model(RaggedBatch.from_sequences([ids], [segments]), torch.tensor([0]))
    label = CLASSES.index(truth)
    loss = float(NSPLoss()(output.nsp_logits, torch.tensor([label])).loss)
    probabilities = output.nsp_logits[0].float().softmax(-1).tolist()
    rows = [
        (float(logit), probability, "✓" if n == label else "")
        for n, (logit, probability) in enumerate(zip(output.nsp_logits[0], probabilities, strict=True))
    ]
    c, pooled = (vector[0, :TOP].numpy() for vector in (output.encoded.cls, output.encoded.pooled))
    steps = [" ".join(study.pieces(ids)), c, pooled, say.named("classes", rows), loss, math.log(2)]
    values: dict[str, Any] = {"loss": loss, "size": output.encoded.cls.shape[1], "probability": probabilities[label]}
    values |= {"next": probabilities[0], "random": probabilities[1], "coin": math.log(2)}
    values |= {"truth": say.split("classes")[label]}
    return steps, values


@torch.inference_mode()
def one_example(study: Study, *, first: str, second: str, hidden: str, other: str) -> Found:
    """Hides a word in each sentence of a true pair, and adds both losses up."""
    study.require_next_sentence()
    ids, segments = study.encode(first, second)
    positions: list[int] = []
    for number, (word, text) in enumerate(((hidden, first), (other, second))):
        # 词只在它自己那句里找：别处的词换成 -1
        inside = [n if segment == number else -1 for n, segment in zip(ids, segments, strict=True)]
        place = study.places_of(word, text, inside)[0]
        positions += range(place, place + len(study.tokenizer.encode(word)))
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
    steps = [" ".join(study.pieces(read)), filled, float(words.loss), follows, float(pair.loss), total]
    values: dict[str, Any] = {"read": study.pieces(read), "segments": segments, "positions": positions}
    values |= {"filled": filled, "words_loss": float(words.loss), "pair_loss": float(pair.loss), "loss": total}
    values |= {"follows": follows, "blind": math.log(logits.shape[1]) + math.log(2)}
    return steps, values


def schedule(say: Words, *, steps: int, warmup: int) -> Found:
    """Follows the rate from the first step to the last."""
    if warmup > steps:
        raise InputError(f"warmup {warmup} is longer than the run of {steps} steps")
    places = [0, warmup // 2, warmup, warmup + (steps - warmup) // 2, steps - 1]
    rates = {
        step: learning_rate_at(step, peak=PEAK, warmup_steps=warmup, total_steps=steps)
        for step in sorted({max(0, place) for place in places})
    }
    tokens = BATCH * LENGTH * steps
    # 词数按词数算、词片按词片算：一个词常常不止一个词片，所以这是遍数的上界
    passes = tokens / CORPUS_WORDS
    saved = 1 - (SHORT_SHARE * SHORT + (1 - SHORT_SHARE) * LENGTH) / LENGTH
    table = [(step, f"{rate:.2e}") for step, rate in rates.items()]
    text: list[tuple[Cell, ...]] = [
        (f"{BATCH} · {LENGTH}", BATCH * LENGTH),
        (f"· {steps:,}", tokens),
        (f"/ {CORPUS_WORDS:,}", f"{passes:.1f}"),
        ("", f"{saved:.1%}"),
    ]
    values: dict[str, Any] = {"first": rates[0], "last": list(rates.values())[-1], "steps": steps, "warmup": warmup}
    values |= {"warmup_share": warmup / steps, "batch_tokens": BATCH * LENGTH, "tokens": tokens, "passes": passes}
    values |= {"saved": saved, "short": SHORT, "long": LENGTH, "short_share": SHORT_SHARE}
    return [table, say.named("text", text)], values
