"""The equations of the lessons in PyTorch, about ten lines each: to be read beside the numbers, and written oneself.

Nothing else uses them; `equation_checks` compares them with the code that trains. An equation may use those that stand
above it in its own part, as a cell of a notebook does. Letters: S tokens, H hidden size, A heads of width D = H/A, V
pieces, K labels, N sequences.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm

IMPORTS = """import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm
"""
"""What the functions below need, for a notebook."""


def masked_attention(query: Tensor, key: Tensor, value: Tensor, may_read: Tensor) -> Tensor:
    """Attention where token i reads token j only if may_read[i, j]; `torch.ones(S, S).tril()` reads to the left."""
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    # 不许读的位置得负无穷，softmax 之后权重正好是 0
    scores = scores.masked_fill(may_read == 0, -torch.inf)
    return scores.softmax(dim=-1) @ value


def word_pieces(word: str, ids: dict[str, int]) -> Tensor:
    """The ids of a word's pieces: from the left, always the longest that fits; `##` marks what continues a word."""
    found, start = [], 0
    while start < len(word):
        mark, end = "##" if start else "", len(word)
        while end > start and mark + word[start:end] not in ids:
            end -= 1
        if end == start:
            return torch.tensor([ids["[UNK]"]])
        found.append(ids[mark + word[start:end]])
        start = end
    return torch.tensor(found)


def embeddings(ids: Tensor, segments: Tensor, w: dict[str, Tensor]) -> Tensor:
    """The sum of three rows for each token, normalised: [S] ids and segments → [S, H]."""
    # 三张表各管一件事：是什么词、在第几段、在什么位置
    what = w["word.weight"][ids]
    which = w["token_type.weight"][segments]
    where = w["position.weight"][: len(ids)]
    total = what + which + where
    return layer_norm(total, total.shape[-1:], w["norm.weight"], w["norm.bias"], eps=1e-12)


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Z = softmax(Q Kᵀ / √D) V for [..., S, D] (Vaswani et al. 2017, equation 1)."""
    # 除以 √D：D 个乘积之和的方差随 D 变大，不除的话 softmax 会饱和，梯度接近 0
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    weights = scores.softmax(dim=-1)
    return weights @ value


def multi_head_attention(x: Tensor, w: dict[str, Tensor], heads: int) -> Tensor:
    """Attention in A heads on the states [S, H]; the rows of `qkv` are those of Q, K and V, head by head."""
    projected = x @ w["qkv.weight"].T + w["qkv.bias"]
    query, key, value = projected.view(len(x), 3, heads, -1).permute(1, 2, 0, 3)
    # 每个头在自己的 D 维里各算各的，再首尾相接
    joined = attention(query, key, value).transpose(0, 1).reshape(len(x), -1)
    return joined @ w["output.weight"].T + w["output.bias"]


def block(x: Tensor, w: dict[str, Tensor], heads: int) -> Tensor:
    """A block on [S, H]: attention, then a feed-forward layer; each is added to its input, and the sum normalised."""

    def norm(states: Tensor, name: str) -> Tensor:
        return layer_norm(states, states.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], eps=1e-12)

    own = {name.removeprefix("attention."): each for name, each in w.items() if name.startswith("attention.")}
    # BERT 先加残差、再归一化（post-norm）
    x = norm(x + multi_head_attention(x, own, heads), "attention_norm")
    inner = gelu(x @ w["intermediate.weight"].T + w["intermediate.bias"])
    return norm(x + inner @ w["output.weight"].T + w["output.bias"], "output_norm")


def parameter_count(v: int, p: int, h: int, i: int, layers: int) -> Tensor:
    """Parameters of a BERT without heads, from its sizes: V, P places, H, and I, the inner width of a block."""
    norm = 2 * h
    embedding = (v + p + 2) * h + norm
    attention = 4 * (h * h + h)
    feed_forward = (h * i + i) + (i * h + h)
    pooler = h * h + h
    return torch.tensor(embedding + layers * (attention + norm + feed_forward + norm) + pooler)


def hide_pieces(ids: Tensor, special: Tensor, mask_id: int, vocab_size: int) -> tuple[Tensor, Tensor]:
    """Chooses 15 % of the pieces; 80 % of these become [MASK], 10 % another piece, 10 % stay. Returns labels, too."""
    chosen = (torch.rand(len(ids)) < 0.15) & ~special
    # 微调时没有 [MASK]：留一成原样、一成换别的词，模型才不能只看 [MASK] 行事
    fate = torch.rand(len(ids))
    hidden = torch.where(chosen & (fate < 0.8), mask_id, ids)
    hidden = torch.where(chosen & (fate >= 0.9), torch.randint(vocab_size, ids.shape), hidden)
    return hidden, torch.where(chosen, ids, -100)


def masked_lm_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean of -log p(true piece) over the hidden ones: [S, V] and [S], -100 where nothing was hidden."""
    # 只有遮住的位置计入损失
    hidden = labels != -100
    log_p = logits[hidden].log_softmax(dim=-1)
    return -log_p.gather(1, labels[hidden, None]).mean()


def next_sentence_loss(c: Tensor, w: dict[str, Tensor], follows: bool) -> Tensor:
    """-log p of the truth, from the pooled state of [CLS], [H]: class 0 says that B follows A."""
    log_p = (w["weight"] @ c + w["bias"]).log_softmax(dim=-1)
    return -log_p[0 if follows else 1]


def pretraining_loss(logits: Tensor, labels: Tensor, c: Tensor, w: dict[str, Tensor], follows: bool) -> Tensor:
    """What pre-training makes smaller (appendix A.2): the sum of the two losses above."""
    return masked_lm_loss(logits, labels) + next_sentence_loss(c, w, follows)


def adam(weights: Tensor, gradients: list[Tensor], rate: float, decay: float) -> Tensor:
    """The weights after a step of Adam with each gradient (appendix A.2); decay beside the gradient, as released."""
    mean, square = torch.zeros_like(weights), torch.zeros_like(weights)
    for step, gradient in enumerate(gradients, 1):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        direction = mean / (1 - 0.9**step)
        spread = (square / (1 - 0.999**step)).sqrt()
        weights = weights - rate * decay * weights - rate * direction / (spread + 1e-6)
    return weights


def classifier_loss(cls: Tensor, w: dict[str, Tensor], label: int) -> Tensor:
    """-log p of the true class from the state of [CLS], [H]; the classifier [K, H] and its bias are all that is new."""
    c = (w["pooler.weight"] @ cls + w["pooler.bias"]).tanh()
    logits = w["classifier.weight"] @ c + w["classifier.bias"]
    return -logits.log_softmax(dim=-1)[label]


def tagging_loss(states: Tensor, w: dict[str, Tensor], labels: Tensor) -> Tensor:
    """Mean of -log p(true tag) over words: states [S, H]; labels [S] at first pieces, -100 at all other tokens."""
    # 一个词切成几片时，只看第一片
    first = labels != -100
    logits = states[first] @ w["weight"].T + w["bias"]
    return -logits.log_softmax(dim=-1).gather(1, labels[first, None]).mean()


def best_span(states: Tensor, w: dict[str, Tensor]) -> Tensor:
    """Start, end and score of the best span in states [S, H], and the score of no answer, the span at [CLS]."""
    start, end = (states @ w["weight"].T + w["bias"]).T
    scores = start[:, None] + end
    # 终点不能在起点之前；[CLS] 不是段落里的词
    allowed = torch.ones_like(scores).triu()
    allowed[0] = 0
    scores = scores.masked_fill(allowed == 0, -torch.inf)
    i, j = divmod(int(scores.argmax()), len(end))
    return torch.tensor([i, j, float(scores[i, j]), float(start[0] + end[0])])


def choice_loss(c: Tensor, w: dict[str, Tensor], right: int) -> Tensor:
    """-log p of the right ending: c [N, H] holds the pooled state of each ending's own sequence."""
    scores = (c @ w["weight"].T + w["bias"]).squeeze(-1)
    return -scores.log_softmax(dim=0)[right]


def learning_rate(step: Tensor, peak: float, warmup: int, total: int) -> Tensor:
    """The rate at steps counted from 0: up in a straight line to the peak, then down in a straight line to 0."""
    rising = peak * (step + 1) / warmup
    falling = peak * (total - step) / (total - warmup)
    return torch.where(step < warmup, rising, falling)


def cross_entropy_gradient(logits: Tensor, labels: Tensor) -> Tensor:
    """Gradient of the mean of -log p(true piece) by the logits [N, V]: p, less one at the truth, over N."""
    gradient = logits.softmax(dim=-1)
    gradient[torch.arange(len(labels)), labels] -= 1
    return gradient / len(labels)


def attention_by_products(x: Tensor, asks: Tensor, tells: Tensor, size: int) -> Tensor:
    """A head without biases on [S, H]: asks = W_Q W_Kᵀ and tells = W_V W_O, both [H, H], say all about it."""
    scores = x @ asks @ x.T / math.sqrt(size)
    return scores.softmax(dim=-1) @ x @ tells


def soft_target_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """How far a student's logits [N, V] are from its teacher's: T² · KL(teacher ‖ student) at a temperature T."""
    own = (student / temperature).log_softmax(dim=-1)
    other = (teacher / temperature).log_softmax(dim=-1)
    # 梯度随 1/T² 变小：乘回 T²，换温度时不必改学习率
    return temperature**2 * (other.exp() * (other - own)).sum(dim=-1).mean()


def albert(ids: Tensor, w: dict[str, Tensor], block: Callable[[Tensor], Tensor], layers: int) -> Tensor:
    """The states [S, H] of an ALBERT: rows of E numbers, a matrix from E to H, and one block, run again and again."""
    total = w["word.weight"][ids] + w["token_type.weight"][0] + w["position.weight"][: len(ids)]
    narrow = layer_norm(total, total.shape[-1:], w["norm.weight"], w["norm.bias"], eps=1e-12)
    x = narrow @ w["projection.weight"].T + w["projection.bias"]
    # 同一个块反复用：参数不随层数增加
    for _ in range(layers):
        x = block(x)
    return x


def replaced_token_loss(logits: Tensor, written: Tensor, read: Tensor) -> Tensor:
    """Mean of -log p(replaced, or original) over all S tokens; a logit above 0 says that the token was replaced."""
    # 每个词元都有损失，而不只是遮住的那些
    replaced = written != read
    p = logits.sigmoid()
    return -torch.where(replaced, p, 1 - p).log().mean()


def pre_norm_block(x: Tensor, w: dict[str, Tensor], attend: Callable[[Tensor], Tensor]) -> Tensor:
    """ModernBERT's block on [S, H], around its attention: norms before the sub-layers, a GeGLU, no biases."""

    def norm(states: Tensor, name: str) -> Tensor:
        return layer_norm(states, states.shape[-1:], w[f"{name}.weight"], eps=1e-5)

    # 先归一化、再算、再加（pre-norm）：残差一路直通
    x = x + attend(norm(x, "attention_norm"))
    inner, gate = (norm(x, "output_norm") @ w["intermediate.weight"].T).chunk(2, dim=-1)
    return x + (gelu(inner) * gate) @ w["output.weight"].T


def turned(x: Tensor, base: float) -> Tensor:
    """Queries or keys [S, D], turned by their places: the pair (i, i + D/2) by base^(-2i/D) radians a place."""
    size = x.shape[-1]
    speed = base ** (-torch.arange(0, size, 2) / size)
    # 转过的角度与位置成正比：两个词元的点积就只看相隔多远
    angle = torch.arange(len(x))[:, None] * speed
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * angle.cos() - right * angle.sin(), right * angle.cos() + left * angle.sin()], dim=-1)


def windowed_attention(query: Tensor, key: Tensor, value: Tensor, window: int) -> Tensor:
    """Attention on [..., S, D] in which a token reads itself and so many tokens on either side."""
    places = torch.arange(query.shape[-2])
    far = (places[:, None] - places).abs() > window
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    return scores.masked_fill(far, -torch.inf).softmax(dim=-1) @ value


Equation = Callable[..., Any]
EQUATIONS: Mapping[str, Equation] = {
    "both_sides": masked_attention,
    "pieces_of_a_word": word_pieces,
    "input_sum": embeddings,
    "two_tokens": attention,
    "two_heads": multi_head_attention,
    "first_block": block,
    "parameters": parameter_count,
    "masking": hide_pieces,
    "mlm_loss": masked_lm_loss,
    "nsp_loss": next_sentence_loss,
    "one_example": pretraining_loss,
    "learning_curve": adam,
    "head_sizes": classifier_loss,
    "tag_words": tagging_loss,
    "answer_span": best_span,
    "choose_ending": choice_loss,
    "schedule": learning_rate,
    "gradient_check": cross_entropy_gradient,
    "recovered_attention": attention_by_products,
    "distilbert_layers": soft_target_loss,
    "albert_sharing": albert,
    "electra_replaced": replaced_token_loss,
    "modernbert_block": pre_norm_block,
    "rotary_shift": turned,
    "local_window": windowed_attention,
}
"""Name of a computation → its equation, in the order of the story."""


def source_of(function: Equation) -> str:
    """Returns the lines of an equation."""
    return inspect.getsource(function).rstrip()
