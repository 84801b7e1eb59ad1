"""Counting a model's parameters matrix by matrix (§3: 110 and 340 million)."""

from __future__ import annotations

from bertsmith.learn.lesson import Computation, Language, Step, Text
from bertsmith.model import BertConfig


def parameters(*, id: str, title: str, language: Language, size: str, vocab_size: int) -> Computation:
    """Counts every matrix, bias and norm of a pre-training model.

    Args:
        id: the computation's name.
        title: for people.
        language: of the labels.
        size: a name of `NAMED_SIZES`.
        vocab_size: V.
    """
    config = BertConfig.named(size, vocab_size=vocab_size)
    h, i, v = config.hidden_size, config.intermediate_size, config.vocab_size
    p, t, layers = config.max_position_embeddings, config.type_vocab_size, config.num_hidden_layers

    def row(en: str, zh: str, formula: str, count: int) -> tuple[str, str, int]:
        return Text(en, zh)(language), formula, count

    embeddings = [
        row("token embedding", "词嵌入", "V·H", v * h),
        row("position embedding", "位置嵌入", "P·H", p * h),
        row("segment embedding", "段嵌入", "2·H", t * h),
        row("its norm", "归一化", "2·H", 2 * h),
    ]
    block = [
        row("query, key, value", "Q、K、V", "3·(H² + H)", 3 * (h * h + h)),
        row("attention output", "注意力输出", "H² + H", h * h + h),
        row("feed-forward, in", "前馈层，进", "H·I + I", h * i + i),
        row("feed-forward, out", "前馈层，出", "I·H + H", i * h + h),
        row("two norms", "两次归一化", "4·H", 4 * h),
    ]
    # MLM 的输出矩阵就是词嵌入本身，不再另算
    heads = [
        row("masked LM: transform", "MLM：变换", "H² + H + 2·H", h * h + 3 * h),
        row("masked LM: a bias per piece", "MLM：每个词片的偏置", "V", v),
        row("next sentence", "NSP", "2·H + 2", 2 * h + 2),
    ]
    pooler = h * h + h
    one = sum(count for _, _, count in block)
    first, rest = sum(count for _, _, count in embeddings), sum(count for _, _, count in heads)
    total = first + layers * one + pooler + rest
    parts = [
        row("embeddings", "嵌入", "", first),
        row("encoder", "编码器", f"{layers} ×", layers * one),
        row("pooler", "pooler", "H² + H", pooler),
        row("heads", "两个头", "", rest),
        row("total", "合计", "", total),
    ]
    columns = tuple(Text("part|formula|parameters", "部分|公式|参数个数")(language).split("|"))
    letters = f"L = {layers}, H = {h}, I = {i}, V = {v:,}, P = {p}"
    steps = (
        Step(Text("embeddings", "嵌入")(language), embeddings, letters, columns=columns),
        Step(Text("one block", "一层")(language), block, columns=columns),
        Step(Text("pre-training heads", "预训练的两个头")(language), heads, columns=columns),
        Step(Text("all together", "全部")(language), parts, columns=columns),
    )
    values = {
        "total": total,
        "embeddings": first,
        "block": one,
        "encoder": layers * one,
        "pooler": pooler,
        "heads": rest,
        "without_heads": total - rest,
        "layers": layers,
        "words_share": v * h / total,
        "feed_forward_share": (2 * h * i + h + i) / one,
        "approximate": 12 * h * h,
    }
    return Computation(id, title, steps, values)
