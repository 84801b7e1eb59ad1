"""What ModernBERT changes about a block: where the norm stands, the gate, turned queries and keys, the window.

Everything is computed by the modules of `model/families/` and beside BERT's own (Warner et al. 2024, §2.1).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith.batch import FULL, RaggedBatch
from bertsmith.errors import InputError
from bertsmith.learn.computations.block import bert_block
from bertsmith.learn.computations.reading import SHOWN
from bertsmith.learn.lesson import Cell, Computation, Language, Step, Text
from bertsmith.learn.source_lines import differing_lines, differing_settings, lines_naming
from bertsmith.learn.study import Study
from bertsmith.model import TransformerBlock
from bertsmith.model.attention import MultiHeadSelfAttention
from bertsmith.model.families import bert, modernbert
from bertsmith.model.rotary import rotated
from bertsmith.seeding import torch_seed

DEPTH = 12
"""Blocks that the gradient goes back through: as many as base has."""

LENGTHS = (128, 512, 2048, 8192)
"""Tokens of the texts whose pairs are counted."""

PICTURE = 12
"""Tokens in the picture of a window."""


def modernbert_block(*, id: str, title: str, language: Language, study: Study, text: str, place: int) -> Computation:
    """Follows a token through BERT's first block and through ModernBERT's over the same matrices.

    The way up of a GeGLU is twice as wide: its first half is BERT's matrix, the gate's is fresh.

    Raises:
        InputError: the model has no block of BERT's form, or there is no token at that place.
    """
    ids = study.encode(text)[0]
    if place >= len(ids):
        raise InputError(f"place {place}: the sentence has the tokens 0 to {len(ids) - 1}")
    post = bert_block(study)
    pre = as_modernbert(post, study)
    batch = RaggedBatch.from_sequences([ids])
    with torch.no_grad():
        hidden = study.model.backbone.embedding(batch)
        tables = [_post_norm(post, hidden, batch, language), _pre_norm(pre, hidden, batch, language)]
    shown: list[Step] = []
    for name, rows in zip(("BERT", "ModernBERT"), tables, strict=True):
        # 长度单列一列：看得出归一化把主干缩回来，还是让它长下去
        cells = [(*state[place, :SHOWN].tolist(), float(state[place].norm())) for state in rows.values()]
        size = hidden.shape[1]
        note = Text(f"the first {SHOWN} of {size} numbers, and the length", f"{size} 个数中的前 {SHOWN} 个，以及长度")
        length = Text("length", "长度")(language)
        shown.append(Step(name, cells, note(language), tuple(rows), (*[""] * SHOWN, length)))
    left = {name: _gradients(block, hidden, batch) for name, block in (("post", post), ("pre", pre))}
    stack = [(layer, *left["post"][layer], *left["pre"][layer]) for layer in range(0, DEPTH + 1, 3)]
    what = "above block|BERT: length|BERT: gradient|ModernBERT: length|ModernBERT: gradient"
    columns = Text(what, "第几层之上|BERT：长度|BERT：梯度|ModernBERT：长度|ModernBERT：梯度")(language).split("|")
    steps = (
        differing_lines(TransformerBlock.forward, modernbert.ModernBertBlock.forward, language),
        differing_settings("modernbert", language),
        *shown,
        Step(
            Text(f"the same block {DEPTH} times", f"同一层连走 {DEPTH} 遍")(language),
            stack,
            Text(
                "mean length of a state, and length of the gradient that comes back there, 1 at the top",
                "状态的平均长度，以及传回这里的梯度的长度（以顶端为 1）",
            )(language),
            columns=tuple(columns),
        ),
    )
    output = [list(rows.values())[-1][place] for rows in tables]
    change = output[1] - hidden[place]
    values = {
        "piece": study.pieces(ids)[place],
        "place": place,
        "depth": DEPTH,
        "bert_length": float(output[0].norm()),
        "own_length": float(output[1].norm()),
        "cosine_bert": _cosine(hidden[place], output[0]),
        "cosine_own": _cosine(hidden[place], output[1]),
        "added": float(change.norm() / hidden[place].norm()),
        "bert_gradient": left["post"][0][1],
        "own_gradient": left["pre"][0][1],
        "output": output[1].tolist(),
    }
    return Computation(id, title, steps, values, study.note(language))


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


def _post_norm(block: TransformerBlock, x: Tensor, batch: RaggedBatch, language: Language) -> dict[str, Tensor]:
    """The steps of a block of BERT."""
    names = "x|attention(x)|y = LayerNorm(x + attention(x))|feed-forward(y)|LayerNorm(y + feed-forward(y))"
    chinese = "x|注意力(x)|y = LayerNorm(x + 注意力(x))|前馈(y)|LayerNorm(y + 前馈(y))"
    attended = block.attention(x, batch).states
    y = block.attention_norm(x + attended)
    back = block.output(block.activation(block.intermediate(y)))
    states = (x, attended, y, back, block.output_norm(y + back))
    return dict(zip(Text(names, chinese)(language).split("|"), states, strict=True))


def _pre_norm(
    block: modernbert.ModernBertBlock, x: Tensor, batch: RaggedBatch, language: Language
) -> dict[str, Tensor]:
    """The steps of a block of ModernBERT."""
    names = "x|n = LayerNorm(x)|attention(n)|y = x + attention(n)|m = LayerNorm(y)|GELU(m W_a) * (m W_b)|y + that W_2"
    chinese = "x|n = LayerNorm(x)|注意力(n)|y = x + 注意力(n)|m = LayerNorm(y)|GELU(m W_a) * (m W_b)|y + 上一行 W_2"
    n = block.attention_norm(x)
    attended = block.attention(n, batch).states
    y = x + attended
    m = block.output_norm(y)
    expanded, gate = block.intermediate(m).chunk(2, dim=-1)
    gated = block.activation(expanded) * gate
    states = (x, n, attended, y, m, gated, y + block.output(gated))
    return dict(zip(Text(names, chinese)(language).split("|"), states, strict=True))


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


def _cosine(one: Tensor, other: Tensor) -> float:
    return float(torch.cosine_similarity(one, other, dim=0))


def rotary_shift(
    *,
    id: str,
    title: str,
    language: Language,
    query: NDArray[np.float64],
    key: NDArray[np.float64],
    first: int,
    second: int,
    shift: int,
    base: int,
) -> Computation:
    """Takes q·k at two places, and again with both moved: by a learned table, and by turning (Su et al. 2021, §3.2).

    Args:
        id: the computation's name.
        title: for people.
        language: of the labels.
        query: [D] of the token at `first`.
        key: [D] of the token at `second`.
        first: its place.
        second: its place.
        shift: by how many places both are moved, again and again.
        base: θ of the angles.

    Raises:
        InputError: query and key differ in length, or it is odd.
    """
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
    steps = (
        differing_lines(bert.BertEmbedding.forward, modernbert.ModernBertEmbedding.forward, language),
        lines_naming(MultiHeadSelfAttention.forward, "rotary_base", language),
        Step(
            Text("how far a pair of numbers turns, in radians", "一对数转多少（弧度）")(language),
            angles,
            columns=tuple(
                Text(f"the numbers|a place|place {first}", f"哪两个数|每个位置|位置 {first}")(language).split("|")
            ),
        ),
        Step(
            "q·k",
            rows,
            Text("positions added from a table; positions as angles", "位置从表里加上；位置是角度")(language),
            columns=tuple(Text("q at|k at|apart|table|turned", "q 在|k 在|相隔|加表|旋转")(language).split("|")),
        ),
    )
    values = {
        "size": size,
        "apart": abs(first - second),
        "unmoved": float(query @ key),
        "turned": rows[0][-1],
        "turned_last": rows[-1][-1],
        "table": rows[0][-2],
        "table_last": rows[-1][-2],
        "scores": [row[-1] for row in rows],
        "moved": moved[-1],
    }
    return Computation(id, title, steps, values)


def _turned(vector: NDArray[np.float64], place: int, base: float) -> NDArray[np.float64]:
    """Returns a query turned as the model turns it at a place."""
    batch = RaggedBatch.from_sequences([[0] * (place + 1)])
    # 用模型自己的旋转：[T, 3, A, D]，一个头，只看这一个位置
    qkv = torch.tensor(vector, dtype=torch.float32).expand(place + 1, 3, 1, len(vector)).contiguous()
    return rotated(qkv, batch, base)[place, 0, 0].double().numpy()


def _learned(size: int, place: int) -> NDArray[np.float64]:
    """Returns a row of a position table with fresh weights."""
    table = torch.Generator().manual_seed(torch_seed(place, "learn/positions"))
    return torch.randn(size, generator=table, dtype=torch.float64).numpy()


def local_window(*, id: str, title: str, language: Language, window: int, layers: int, every: int) -> Computation:
    """Counts the pairs of tokens that layers with a window compare, and those of layers that read the whole text.

    Args:
        id: the computation's name.
        title: for people.
        language: of the labels.
        window: most tokens between a token and one that it reads, on either side.
        layers: L.
        every: every so many layers, from the first, read the whole text.
    """
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
    numbers = tuple(f"{number}" for number in range(PICTURE))
    what = "tokens|all pairs|pairs in a window|share|share over all layers"
    steps = (
        differing_lines(TransformerBlock.__init__, modernbert.ModernBertBlock.__init__, language),
        lines_naming(MultiHeadSelfAttention.forward, "self.window", language),
        Step(
            Text("who reads whom, two tokens on either side", "谁读谁：左右各两个词元")(language),
            [[line] for line in picture],
            rows=numbers,
        ),
        Step(
            Text("pairs that one head compares", "一个头要比较的对数")(language),
            rows,
            Text(
                f"{window} tokens on either side; {whole} of {layers} layers read the whole text",
                f"左右各 {window} 个词元；{layers} 层中有 {whole} 层读全文",
            )(language),
            columns=tuple(Text(what, "词元数|全部的对|窗口里的对|比例|各层合计的比例")(language).split("|")),
        ),
    )
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
    return Computation(id, title, steps, values)


def _near(length: int, window: int) -> int:
    """Returns how many pairs of tokens lie at most a window apart."""
    within = min(window, length - 1)
    # 每个词元读 2w + 1 个；两端的词元缺了一边，共缺 w(w + 1) 个
    return length * (2 * within + 1) - within * (within + 1)
