"""What RoBERTa, DistilBERT, ALBERT, ELECTRA and ModernBERT change about BERT: the lines of code, and the numbers.

All is computed by the modules of `model/families/` and beside BERT's own; of ModernBERT see Warner et al. 2024, §2.1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith.batch import FULL, RaggedBatch
from bertsmith.data.stream.masking import MaskingSettings
from bertsmith.errors import InputError
from bertsmith.model import BertConfig, ModelConfig, TransformerBlock, family_named
from bertsmith.model.attention import MultiHeadSelfAttention, rotated
from bertsmith.model.families import albert, bert, distilbert, electra, modernbert, roberta
from bertsmith.model.heads import MaskedLMHead
from bertsmith.model.sizes import MatmulWeights, ParameterCounts
from bertsmith.objectives.replaced_tokens import GeneratorAndDiscriminator, sample_pieces
from bertsmith.seeding import generator, torch_seed
from bertsmith_school.learn.computations.experiments import trained_minibert
from bertsmith_school.learn.computations.pretraining import masked_copies
from bertsmith_school.learn.computations.reading import SHOWN, bert_block
from bertsmith_school.learn.lesson import Cell, Found, Step, Words
from bertsmith_school.learn.minibert import MASK, simple_sentences
from bertsmith_school.learn.source_lines import differing_lines, differing_settings, lines_naming, whole_body
from bertsmith_school.learn.study import Study

FAMILIES = {"roberta": "RoBERTa", "distilbert": "DistilBERT", "albert": "ALBERT", "electra": "ELECTRA"}
FAMILIES |= {"modernbert": "ModernBERT"}
"""The families of the lesson → how people write them."""

BUILT_WIDTH = 256
"""H of the models whose modules are compared: that of ELECTRA small, whose embedding has 128 numbers."""


def swapped_modules(say: Words) -> Found:
    """Looks which modules of each family are BERT's own, which are others, and which it does without."""
    theirs = _modules("bert")
    rows, kinds = [], []
    own = {name: _modules(name) for name in FAMILIES}
    for part, (name, module) in zip(say.split("modules"), theirs.items(), strict=True):
        found = [own[family][name] for family in FAMILIES]
        kinds.append(["" if each is None else "own" if each != module else "bert" for each in found])
        cells = ["–" if each is None else "=" if each == module else each for each in found]
        rows.append((part, str(module), *cells))
    counts = [sum(kind[number] != "bert" for kind in kinds) for number in range(len(FAMILIES))]
    values: dict[str, Any] = {"families": list(FAMILIES.values()), "modules": say.split("modules"), "kinds": kinds}
    values |= {"swapped": counts, "parts": len(theirs), "fewest": min(counts), "largest": max(counts)}
    values["width"] = BUILT_WIDTH
    return [Step("", rows, columns=("", "BERT", *FAMILIES.values()))], values


def _modules(name: str) -> dict[str, str | None]:
    """Returns what a family has for each part of a BERT, by the names of classes; None where it has no such part."""
    family = family_named(name)
    # 只要类的名字：一层就够，宽度取 ELECTRA small 的，它的嵌入才比隐藏宽度窄；
    # 在 meta 设备上建 ModernBERT 反而要先载入编译器
    with torch.random.fork_rng(devices=[]):
        model: Any = family.backbone(family.config.named(f"1/{BUILT_WIDTH}", vocab_size=8, pad_token_id=0))
    block = next(iter(model.encoder.blocks))
    heads: dict[str, Any] = {kind: family.heads[kind] for kind in ("masked_lm", "sequence_classifier")}
    return {
        "embedding": type(model.embedding).__name__,
        "block": type(block).__name__,
        "encoder": type(model.encoder).__name__,
        # RoBERTa 的类里还建得出池化层，但分类器不读它：算作省去
        "pooler": "tanh(W C + b)" if model.pooler and heads["sequence_classifier"].reads == "pooled" else None,
        **{kind: head.__name__ for kind, head in heads.items()},
        "objective": family.objective,
    }


PASSES = 10
"""Passes over the text: as many as the release wrote masks of each sentence."""

SHOWN_SENTENCES = 8
"""Sentences of `electra_replaced` that are printed."""


def roberta_masks(say: Words, study: Study, *, text: str, seed: int) -> Found:
    """Counts which places a sentence is asked at, masked once and masked anew in every pass (Liu et al. 2019, §4.1)."""
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
    values: dict[str, Any] = {"pieces": len(ids), "passes": PASSES, "chosen": len(chosen[0])}
    values |= {"together": len(asked[-1]), "first": first}
    lines = differing_lines(bert.BertEmbedding.forward, roberta.RobertaEmbedding.forward, say.language)
    return [lines, differing_settings("roberta", say.language), positions, rows], values


def distilbert_layers(say: Words, *, size: str) -> Found:
    """Counts what DistilBERT leaves out of a BERT, part by part (Sanh et al. 2019, §3)."""
    whole = BertConfig.named(size)
    layers = whole.num_hidden_layers // 2
    half = distilbert.DistilBertConfig.named(size, num_hidden_layers=layers)
    rows, total, left = _compared(whole, half, say)
    work = _work(whole, half)
    steps = [
        differing_lines(bert.BertEmbedding.forward, distilbert.DistilBertEmbedding.forward, say.language),
        differing_lines(bert.BertModel.__init__, distilbert.DistilBertModel.__init__, say.language),
        differing_settings("distilbert", say.language),
        rows,
        [(*work, f"{work[1] / work[0]:.1%}")],
    ]
    values: dict[str, Any] = {"bert": total, "own": left, "share": left / total, "layers": layers}
    values |= {"whole": whole.num_hidden_layers, "work": work[1] / work[0]}
    return steps, values


def albert_sharing(say: Words, *, size: str, vocab_size: int) -> Found:
    """Counts an ALBERT beside a BERT of the same size (Lan et al. 2020, §3.1)."""
    whole = BertConfig.named(size, vocab_size=vocab_size)
    shared = albert.AlbertConfig.named(size, vocab_size=vocab_size)
    rows, total, left = _compared(whole, shared, say)
    v, h, e = vocab_size, whole.hidden_size, shared.embedding_size
    words: list[tuple[Cell, ...]] = [("BERT", "V·H", v * h), ("ALBERT", "V·E + E·H + H", v * e + e * h + h)]
    work = _work(whole, shared)
    steps = [
        differing_lines(bert.BertEmbedding.forward, albert.FactorisedEmbedding.forward, say.language),
        differing_lines(bert.BertEncoder.__init__, albert.SharedEncoder.__init__, say.language),
        differing_settings("albert", say.language),
        words,
        rows,
        [(*work, f"{work[1] / work[0]:.1%}")],
    ]
    values: dict[str, Any] = {"bert": total, "own": left, "share": left / total, "layers": whole.num_hidden_layers}
    values |= {"vocabulary": v, "hidden": h, "embedding": e, "words": words[0][-1], "factored": words[1][-1]}
    values |= {"work": work[1] / work[0]}
    return steps, values


def electra_replaced(say: Words, *, seed: int) -> Found:
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
    shown = [rows[number] for number in sorted(random.choice(len(rows), SHOWN_SENTENCES, replace=False))]
    questions = say.named("questions", [(asked, f"{asked / words:.0%}"), (words, f"{1:.0%}")])
    steps = [
        differing_lines(MaskedLMHead.forward, electra.ReplacedTokenHead.forward, say.language),
        whole_body(GeneratorAndDiscriminator.forward, say.language),
        differing_lines(bert.BertModel.__init__, electra.ElectraModel.__init__, say.language),
        shown,
        questions,
    ]
    values: dict[str, Any] = {"sentences": len(sentences), "words": words, "asked": asked, "replaced": replaced}
    values |= {"guessed": asked - replaced, "more": words / asked}
    return steps, values


def _drawn(filled: dict[str, float], draw: float) -> str:
    """Draws a word as pre-training draws a piece."""
    logits = torch.tensor(list(filled.values()), dtype=torch.float64).log()[None]
    return list(filled)[int(sample_pieces(logits, torch.tensor([draw])))]


def _compared(bert: ModelConfig, own: ModelConfig, say: Words) -> tuple[list[tuple[Cell, ...]], int, int]:
    """Returns the rows of a table of parts, and the two sums: the models without pre-training heads."""
    counts = [ParameterCounts.of(config) for config in (bert, own)]
    theirs, ours = ([each.embeddings, each.encoder, each.pooler] for each in counts)
    totals = sum(theirs), sum(ours)
    pairs = zip([*theirs, totals[0]], [*ours, totals[1]], strict=True)
    return say.named("parts", [(before, after, f"{after / before:.1%}") for before, after in pairs]), *totals


def _work(bert: ModelConfig, own: ModelConfig) -> list[int]:
    return [MatmulWeights.of(config).encoder for config in (bert, own)]


DEPTH = 12
"""Blocks that the gradient goes back through: as many as base has."""

LENGTHS = (128, 512, 2048, 8192)
"""Tokens of the texts whose pairs are counted."""

PICTURE = 12
"""Tokens in the picture of a window."""


def modernbert_block(say: Words, study: Study, *, text: str, place: int) -> Found:
    """Follows a token through BERT's first block, and ModernBERT's over the same matrices; only the gate is fresh."""
    ids = study.encode(text)[0]
    study.require_place(place, ids)
    post = bert_block(study)
    pre = as_modernbert(post, study)
    batch = RaggedBatch.from_sequences([ids])
    with torch.no_grad():
        hidden = study.model.backbone.embedding(batch)
        tables = [_post_norm(post, hidden, batch), _pre_norm(pre, hidden, batch)]
    # 长度单列一列：看得出归一化把主干缩回来，还是让它长下去
    shown = [[(*state[place, :SHOWN].tolist(), float(state[place].norm())) for state in states] for states in tables]
    post_left, pre_left = (_gradients(block, hidden, batch) for block in (post, pre))
    steps = [
        differing_lines(TransformerBlock.forward, modernbert.ModernBertBlock.forward, say.language),
        differing_settings("modernbert", say.language),
        *shown,
        [(layer, *post_left[layer], *pre_left[layer]) for layer in range(0, DEPTH + 1, 3)],
    ]
    output = [states[-1][place] for states in tables]
    values: dict[str, Any] = {"piece": study.pieces(ids)[place], "place": place, "depth": DEPTH, "shown": SHOWN}
    values |= {"hidden": hidden.shape[1], "bert_length": float(output[0].norm())}
    values |= {"own_length": float(output[1].norm())}
    values |= {"bert_gradient": post_left[0][1], "own_gradient": pre_left[0][1], "output": output[1].tolist()}
    return steps, values


def as_modernbert(block: TransformerBlock, study: Study) -> modernbert.ModernBertBlock:
    """Returns a block of ModernBERT with the matrices, biases and norms of one of BERT's; the gate is fresh."""
    config = study.model.config
    shape = modernbert.ModernBertConfig(
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        hidden_act=config.hidden_act,
        layer_norm_eps=config.layer_norm_eps,
        attention_bias=True,
        mlp_bias=True,
        norm_bias=True,
        pruned_heads={1: config.pruned_heads[0]} if 0 in config.pruned_heads else {},
    )
    made = modernbert.ModernBertBlock(shape, layer=1).eval()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(0, "learn/gate"))
        for name in ("attention.qkv", "attention.output", "attention_norm", "output", "output_norm"):
            made.get_submodule(name).load_state_dict(block.get_submodule(name).state_dict())
        up = block.intermediate
        # GeGLU 的上行矩阵有两半：前一半就是 BERT 的，后一半是 BERT 没有的门
        gate = torch.randn_like(up.weight) * up.weight.std()
        made.intermediate.weight.copy_(torch.cat([up.weight, gate]))
        made.intermediate.bias.copy_(torch.cat([up.bias, torch.zeros_like(up.bias)]))
    return made


def _post_norm(block: TransformerBlock, x: Tensor, batch: RaggedBatch) -> list[Tensor]:
    """The steps of a block of BERT: x, attention, LayerNorm of the sum, feed-forward, LayerNorm of the sum."""
    attended = block.attention(x, batch).states
    y = block.attention_norm(x + attended)
    back = block.output(block.activation(block.intermediate(y)))
    return [x, attended, y, back, block.output_norm(y + back)]


def _pre_norm(block: modernbert.ModernBertBlock, x: Tensor, batch: RaggedBatch) -> list[Tensor]:
    """The steps of a block of ModernBERT: x, LayerNorm, attention, sum, LayerNorm, gated, sum."""
    n = block.attention_norm(x)
    attended = block.attention(n, batch).states
    y = x + attended
    m = block.output_norm(y)
    expanded, gate = block.intermediate(m).chunk(2, dim=-1)
    gated = block.activation(expanded) * gate
    return [x, n, attended, y, m, gated, y + block.output(gated)]


def _gradients(block: nn.Module, hidden: Tensor, batch: RaggedBatch) -> list[tuple[float, float]]:
    """Returns mean length of a state and relative length of its gradient, below and above each of `DEPTH` blocks."""
    states = [hidden.detach().clone().requires_grad_()]
    with torch.enable_grad():
        for _ in range(DEPTH):
            states.append(block(states[-1], batch).states)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(0, "learn/gradient"))
        # 顶端给一个随机方向：看它往回走时还剩多长
        start = torch.randn_like(hidden)
    gradients = torch.autograd.grad(states[-1], states, start)
    top = float(gradients[-1].norm())
    return [
        (float(state.detach().norm(dim=-1).mean()), float(gradient.norm()) / top)
        for state, gradient in zip(states, gradients, strict=True)
    ]


def rotary_shift(
    say: Words, *, query: NDArray[np.float64], key: NDArray[np.float64], first: int, second: int, shift: int, base: int
) -> Found:
    """Takes q·k at two places, and again with both moved: by a learned table, and by turning (Su et al. 2021, §3.2)."""
    size = len(query)
    if len(key) != size or size % 2:
        raise InputError(f"query has {size} numbers and key {len(key)}; give both the same, even number of them")
    moved = [number * shift for number in range(4)]
    places = [(first + by, second + by) for by in moved]
    rows: list[tuple[Cell, ...]] = []
    for m, n in places:
        q, k = (_turned(vector, place, base) for vector, place in ((query, m), (key, n)))
        # 学来的位置是加上去的一行：每个位置一行，行与行之间没有约定
        learned = (query + _learned(size, m)) @ (key + _learned(size, n))
        rows.append((m, n, m - n, float(learned), float(q @ k)))
    angles = [
        (f"{i}, {i + size // 2}", base ** (-2 * i / size), first * base ** (-2 * i / size)) for i in range(size // 2)
    ]
    steps = [
        differing_lines(bert.BertEmbedding.forward, modernbert.ModernBertEmbedding.forward, say.language),
        lines_naming(MultiHeadSelfAttention.forward, "rotary_base", say.language),
        angles,
        rows,
    ]
    values: dict[str, Any] = {"size": size, "first": first, "apart": abs(first - second)}
    values |= {"unmoved": float(query @ key), "turned": rows[0][-1], "turned_last": rows[-1][-1]}
    values |= {"table": rows[0][-2], "table_last": rows[-1][-2], "scores": [row[-1] for row in rows]}
    values |= {"moved": moved[-1]}
    return steps, values


def _turned(vector: NDArray[np.float64], place: int, base: float) -> NDArray[np.float64]:
    batch = RaggedBatch.from_sequences([[0] * (place + 1)])
    # 用模型自己的旋转：[T, 3, A, D]，一个头，只看这一个位置
    qkv = torch.tensor(vector, dtype=torch.float32).expand(place + 1, 3, 1, len(vector)).contiguous()
    return rotated(qkv, batch, base)[place, 0, 0].double().numpy()


def _learned(size: int, place: int) -> NDArray[np.float64]:
    table = torch.Generator().manual_seed(torch_seed(place, "learn/positions"))
    return torch.randn(size, generator=table, dtype=torch.float64).numpy()


def local_window(say: Words, *, window: int, layers: int, every: int) -> Found:
    """Counts the pairs of tokens that layers with a window compare, and those of layers that read the whole text."""
    config = modernbert.ModernBertConfig(num_hidden_layers=layers, global_attn_every_n_layers=every)
    whole = sum(config.reads_whole_text(layer) for layer in range(layers))
    rows: list[tuple[Cell, ...]] = []
    for length in LENGTHS:
        full, near = length * length, _near(length, window)
        all_layers = whole * full + (layers - whole) * near
        rows.append((length, full, near, f"{near / full:.1%}", f"{all_layers / (layers * full):.1%}"))
    hidden = FULL.within(2).hidden_by_place(PICTURE, torch.device("cpu"))
    assert hidden is not None
    picture = [" ".join("·" if far else "■" for far in row) for row in hidden[0, 0].tolist()]
    steps = [
        differing_lines(TransformerBlock.__init__, modernbert.ModernBertBlock.__init__, say.language),
        lines_naming(MultiHeadSelfAttention.forward, "self.window", say.language),
        Step("", [[line] for line in picture], rows=tuple(map(str, range(PICTURE)))),
        rows,
    ]
    longest = LENGTHS[-1]
    values = {
        "window": window,
        "layers": layers,
        "whole": whole,
        "longest": longest,
        "near": _near(longest, window),
        "full": longest * longest,
        "near_share": _near(longest, window) / longest**2,
        "share": (whole * longest**2 + (layers - whole) * _near(longest, window)) / (layers * longest**2),
        # 两个读全文的层之间，消息一层传一个窗口那么远
        "reach": (every - 1) * window,
    }
    return steps, values


def _near(length: int, window: int) -> int:
    """Returns how many pairs of tokens lie at most a window apart."""
    within = min(window, length - 1)
    # 每个词元读 2w + 1 个；两端的词元缺了一边，共缺 w(w + 1) 个
    return length * (2 * within + 1) - within * (within + 1)
