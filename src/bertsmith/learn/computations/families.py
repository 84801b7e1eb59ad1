"""What RoBERTa, DistilBERT, ALBERT and ELECTRA change about BERT: the lines of code, and what follows in numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from bertsmith.data.stream.masking import MaskingSettings
from bertsmith.learn.computations.experiments import trained_minibert
from bertsmith.learn.computations.masking import masked_copies
from bertsmith.learn.lesson import Cell, Computation, Language, Step, Text
from bertsmith.learn.minibert_training import MASK, simple_sentences
from bertsmith.learn.source_lines import differing_lines, differing_settings, whole_body
from bertsmith.learn.study import Study
from bertsmith.model import BertConfig, ModelConfig
from bertsmith.model.families import albert, bert, distilbert, electra, roberta
from bertsmith.model.heads import MaskedLMHead
from bertsmith.model.sizes import MatmulWeights, ParameterCounts
from bertsmith.objectives.replaced_tokens import GeneratorAndDiscriminator, sample_pieces
from bertsmith.seeding import generator

PASSES = 10
"""Passes over the text: as many as the release wrote masks of each sentence."""

SHOWN_SENTENCES = 8
"""Sentences of `electra_replaced` that are printed."""


def roberta_masks(*, id: str, title: str, language: Language, study: Study, text: str, seed: int) -> Computation:
    """Counts which places a sentence is asked at, masked once and masked anew in every pass (Liu et al. 2019, §4.1).

    Raises:
        InputError: the sentence has no words, none that the vocabulary knows, or is too long.
    """
    ids = study.encode(text)[0]
    drawn = masked_copies(study, text, PASSES, seed)
    passes, places = np.divmod(drawn.positions, len(ids))
    chosen = [set(places[passes == number].tolist()) for number in range(PASSES)]
    asked = [set.union(*chosen[: number + 1]) for number in range(PASSES)]
    rows = [
        (number, " ".join(study.pieces([ids[place] for place in sorted(new)])), len(chosen[0]), len(seen))
        for number, (new, seen) in enumerate(zip(chosen, asked, strict=True), 1)
    ]
    first = roberta.RobertaConfig().first_position
    positions = [(piece, n, n + first) for n, piece in enumerate(study.pieces(ids))]
    steps = (
        differing_lines(bert.BertEmbedding.forward, roberta.RobertaEmbedding.forward, language),
        differing_settings("roberta", language),
        Step(
            Text("rows of the position table", "位置嵌入表的行号")(language),
            positions,
            columns=("", "BERT", "RoBERTa"),
        ),
        Step(
            Text("pieces asked for, pass by pass", "一遍一遍问到的词片")(language),
            rows,
            Text("together: places that were asked for at least once", "累计：至少问过一次的位置数")(language),
            columns=tuple(
                Text(
                    "pass|asked in it|one mask: together|new masks: together",
                    "第几遍|这一遍问|同一份掩码：累计|每遍重抽：累计",
                )(language).split("|")
            ),
        ),
    )
    values = {
        "pieces": len(ids),
        "passes": PASSES,
        "chosen": len(chosen[0]),
        "together": len(asked[-1]),
        "first": first,
    }
    return Computation(id, title, steps, values, study.note(language))


def distilbert_layers(*, id: str, title: str, language: Language, size: str) -> Computation:
    """Counts what DistilBERT leaves out of a BERT, part by part (Sanh et al. 2019, §3)."""
    whole = BertConfig.named(size)
    layers = whole.num_hidden_layers // 2
    half = distilbert.DistilBertConfig.named(size, num_hidden_layers=layers)
    rows, total, left = _compared(whole, half, language)
    work = [MatmulWeights.of(config).encoder for config in (whole, half)]
    steps = (
        differing_lines(bert.BertEmbedding.forward, distilbert.DistilBertEmbedding.forward, language),
        differing_lines(bert.BertModel.__init__, distilbert.DistilBertModel.__init__, language),
        differing_settings("distilbert", language),
        Step(Text("parameters", "参数")(language), rows, columns=_headings("DistilBERT", language)),
        _work(work, "DistilBERT", language),
    )
    values = {
        "bert": total,
        "own": left,
        "share": left / total,
        "layers": layers,
        "whole": whole.num_hidden_layers,
        "work": work[1] / work[0],
    }
    return Computation(id, title, steps, values)


def albert_sharing(*, id: str, title: str, language: Language, size: str, vocab_size: int) -> Computation:
    """Counts an ALBERT beside a BERT of the same size (Lan et al. 2020, §3.1).

    Args:
        id: the computation's name.
        title: for people.
        language: of the labels.
        size: a name of `NAMED_SIZES`.
        vocab_size: V, of both.
    """
    whole = BertConfig.named(size, vocab_size=vocab_size)
    shared = albert.AlbertConfig.named(size, vocab_size=vocab_size)
    rows, total, left = _compared(whole, shared, language)
    v, h, e = vocab_size, whole.hidden_size, shared.embedding_size
    words: list[tuple[Cell, ...]] = [("BERT", "V·H", v * h), ("ALBERT", "V·E + E·H + H", v * e + e * h + h)]
    work = [MatmulWeights.of(config).encoder for config in (whole, shared)]
    steps = (
        differing_lines(bert.BertEmbedding.forward, albert.FactorisedEmbedding.forward, language),
        differing_lines(bert.BertEncoder.__init__, albert.SharedEncoder.__init__, language),
        differing_settings("albert", language),
        Step(
            Text("the vectors of the vocabulary", "词表的向量")(language),
            words,
            f"V = {v:,}, H = {h}, E = {e}",
            columns=tuple(Text("|formula|parameters", "|公式|参数个数")(language).split("|")),
        ),
        Step(Text("parameters", "参数")(language), rows, columns=_headings("ALBERT", language)),
        _work(work, "ALBERT", language),
    )
    values = {
        "bert": total,
        "own": left,
        "share": left / total,
        "layers": whole.num_hidden_layers,
        "hidden": h,
        "embedding": e,
        "words": words[0][-1],
        "factored": words[1][-1],
        "work": work[1] / work[0],
    }
    return Computation(id, title, steps, values)


def electra_replaced(*, id: str, title: str, language: Language, seed: int) -> Computation:
    """Lets a tiny generator fill a gap in every sentence, and says what is true of each token (Clark et al. 2020, §2).

    The generator is the network of one layer that the lesson on experiments trains.
    """
    model, sentences, random = trained_minibert(seed, ()), simple_sentences(), generator(seed, "learn/replaced")
    rows, replaced, words, asked = [], 0, 0, 0
    for sentence in sentences:
        written = sentence.split()
        hidden = sorted(
            random.choice(len(written), max(1, round(MaskingSettings().rate * len(written))), replace=False)
        )
        gaps = [MASK if place in hidden else word for place, word in enumerate(written)]
        candidates = model.fill(" ".join(gaps))
        read = list(written)
        for place, filled in zip(hidden, candidates, strict=True):
            # 按概率抽，不取最大：取最大会总填同一个词，判别器记住它就够了
            read[place] = _drawn(filled, float(random.random()))
        wrong = [mine != theirs for mine, theirs in zip(read, written, strict=True)]
        replaced, words, asked = replaced + sum(wrong), words + len(written), asked + len(hidden)
        likely = ", ".join(f"{word} {share:.0%}" for word, share in list(candidates[0].items())[:3])
        rows.append((" ".join(gaps), likely, " ".join(read), " ".join("✗" if each else "·" for each in wrong)))
    columns = Text(
        "the generator reads|and thinks of|the discriminator reads|replaced?", "生成器读到|它想到|判别器读到|换过吗"
    )
    questions: list[tuple[Cell, ...]] = [
        (Text("masked LM: the hidden words", "MLM：遮住的词")(language), asked, f"{asked / words:.0%}"),
        (Text("replaced tokens: every word", "替换检测：每个词")(language), words, f"{1:.0%}"),
    ]
    steps = (
        differing_lines(MaskedLMHead.forward, electra.ReplacedTokenHead.forward, language),
        whole_body(GeneratorAndDiscriminator.forward, language),
        differing_lines(bert.BertModel.__init__, electra.ElectraModel.__init__, language),
        Step(
            Text("some of the sentences", "其中几句")(language),
            [rows[number] for number in sorted(random.choice(len(rows), SHOWN_SENTENCES, replace=False))],
            Text("a gap guessed right counts as original", "猜中的空算作原样")(language),
            columns=tuple(columns(language).split("|")),
        ),
        Step(
            Text("what gives a loss", "哪些词产生损失")(language),
            questions,
            columns=tuple(Text("|words|share", "|词数|比例")(language).split("|")),
        ),
    )
    values = {
        "sentences": len(sentences),
        "words": words,
        "asked": asked,
        "replaced": replaced,
        "guessed": asked - replaced,
        "replaced_share": replaced / words,
        "more": words / asked,
    }
    return Computation(id, title, steps, values)


def _drawn(filled: dict[str, float], draw: float) -> str:
    """Draws a word as pre-training draws a piece."""
    logits = torch.tensor(list(filled.values()), dtype=torch.float64).log()[None]
    return list(filled)[int(sample_pieces(logits, torch.tensor([draw])))]


def _compared(bert: ModelConfig, own: ModelConfig, language: Language) -> tuple[list[tuple[Cell, ...]], int, int]:
    """Returns the rows of a table of parts, and the two sums: the models without pre-training heads."""
    names = Text("embeddings|encoder|pooler|together", "嵌入|编码器|pooler|合计")(language).split("|")
    counts = [ParameterCounts.of(config) for config in (bert, own)]
    theirs, ours = ((each.embeddings, each.encoder, each.pooler) for each in counts)
    rows: list[tuple[Cell, ...]] = [
        (name, before, after, f"{after / before:.1%}")
        for name, before, after in zip(names, (*theirs, sum(theirs)), (*ours, sum(ours)), strict=True)
    ]
    return rows, sum(theirs), sum(ours)


def _headings(name: str, language: Language) -> tuple[str, ...]:
    return ("", "BERT", name, Text("left", "剩下")(language))


def _work(work: Sequence[int], name: str, language: Language) -> Step:
    before, after = work
    return Step(
        Text("weights that a token is multiplied with", "一个词元要乘的权重个数")(language),
        [(before, after, f"{after / before:.1%}")],
        Text("a matrix that runs twice counts twice", "运行两次的矩阵算两次")(language),
        columns=("BERT", name, Text("left", "剩下")(language)),
    )
