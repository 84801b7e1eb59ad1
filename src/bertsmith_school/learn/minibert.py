"""MiniBert: one BERT layer in NumPy, trained by gradients that are derived by hand. A lesson, not a tool.

- the whole network is one page: embeddings, attention, feed-forward, the tied output; every gradient stands beside
  the equation it comes from, and a test checks each against finite differences and against autograd
- sentences of one length are one array [N, S], so that there is no padding and no attention mask
- GELU is its tanh form, as in the paper's release: NumPy has no error function
- every step of training reads all sentences, hidden anew by the code that pre-training uses; the gradients of the
  lengths add up to those of the whole
- `use_positions` and `causal` take one idea of the paper away each, to show what goes wrong without it: in the hundred
  sentences `the man [MASK] the book` asks for a verb, `the book [MASK] the man` does not

Letters: N sentences of S words, H hidden size, A heads of width D = H/A, I inner width, V words, M hidden words.
d_x stands for ∂loss/∂x and has the shape of x.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.stream.masking import MaskingSettings, mask_tokens
from bertsmith.errors import ConfigError, InputError
from bertsmith.seeding import generator

Array = NDArray[np.floating[Any]]
Parameters = dict[str, Array]

NORM_EPSILON = 1e-12
"""Added to the variance in LayerNorm, as in the release."""


@dataclass(frozen=True)
class MiniBertConfig:
    """The shape of a MiniBert: V words, `[MASK]` included, and H, a multiple of the number of heads."""

    vocab_size: int
    max_length: int
    hidden_size: int = 128
    num_heads: int = 1
    intermediate_size: int = 512
    use_positions: bool = True
    causal: bool = False

    def __post_init__(self) -> None:
        sizes = (self.max_length, self.hidden_size, self.num_heads, self.intermediate_size)
        if min(sizes) < 1 or self.vocab_size < 2 or self.hidden_size % self.num_heads:
            raise ConfigError(f"{self}: sizes must be positive, hidden_size a multiple of num_heads, 2 words or more")


class Trace(NamedTuple):
    """What the forward pass keeps for the backward pass; shapes in `MiniBert.forward`."""

    embedded: Array
    query: Array
    key: Array
    value: Array
    attention: Array
    mixed: Array
    attention_normed: Array
    attention_scale: Array
    attended: Array
    activated: Array
    slope: Array
    output_normed: Array
    output_scale: Array
    states: Array


class MiniBert:
    """Embeddings, one Transformer block, and a masked-word head tied to the embedding (Devlin et al. 2019, §3)."""

    def __init__(self, config: MiniBertConfig, *, seed: int = 0, dtype: type[np.floating[Any]] = np.float32) -> None:
        """Draws matrices from a normal of deviation 1/√H; biases start at 0, gains at 1."""
        self.config = config
        rng = generator(seed, "minibert/weights")
        h, i, v = config.hidden_size, config.intermediate_size, config.vocab_size
        matrices = {"query": (h, h), "key": (h, h), "value": (h, h), "dense": (h, h), "expand": (h, i)}
        matrices |= {"contract": (i, h), "embedding": (v, h)}
        if config.use_positions:
            matrices["positions"] = (config.max_length, h)
        self.parameters: Parameters = {n: rng.normal(0, h**-0.5, s).astype(dtype) for n, s in matrices.items()}
        biases = {"query": h, "key": h, "value": h, "dense": h, "expand": i, "contract": h, "output": v}
        self.parameters |= {f"{name}_bias": np.zeros(size, dtype) for name, size in biases.items()}
        for norm in ("attention_norm", "output_norm"):
            self.parameters |= {f"{norm}_gain": np.ones(h, dtype), f"{norm}_bias": np.zeros(h, dtype)}

    def forward(self, ids: NDArray[np.int64]) -> Trace:
        """Encodes sentences of one length.

        For ids [N, S] with S at most `max_length`:

            X = E[ids] + P[0..S-1]                              [N, S, H]
            Q = X W_Q + b_Q, K = X W_K + b_K, V = X W_V + b_V   [N, A, S, D], one slice per head
            Att = softmax(Q Kᵀ / √D), Z = Att V                 [N, A, S, S], [N, A, S, D]
            U = LayerNorm(X + Z W_O + b_O)                      [N, S, H]
            F = LayerNorm(U + gelu(U W_1 + b_1) W_2 + b_2)      [N, S, H]
        """
        p = self.parameters
        x = p["embedding"][ids]
        if self.config.use_positions:
            # 没有这一项，打乱词序后每个词的输出完全不变：注意力只看见一袋词
            x = x + p["positions"][: ids.shape[1]]
        query, key, value = (self._split(self._linear(name, x)) for name in ("query", "key", "value"))
        scores = query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
        if self.config.causal:
            scores = np.where(np.tri(ids.shape[1], dtype=bool), scores, -np.inf)
        attention = softmax(scores)
        mixed = self._join(attention @ value)
        normed_1, scale_1 = normalize(x + self._linear("dense", mixed))
        attended = normed_1 * p["attention_norm_gain"] + p["attention_norm_bias"]
        activated, slope = gelu(self._linear("expand", attended))
        normed_2, scale_2 = normalize(attended + self._linear("contract", activated))
        states = normed_2 * p["output_norm_gain"] + p["output_norm_bias"]
        norms = (normed_1, scale_1, attended, activated, slope, normed_2, scale_2)
        return Trace(x, query, key, value, attention, mixed, *norms, states)

    def logits(self, states: Array) -> Array:
        """Scores every word by its embedding: states [M, H] → F Eᵀ + c, [M, V]."""
        scored: Array = states @ self.parameters["embedding"].T + self.parameters["output_bias"]
        return scored

    def loss_and_gradients(
        self, ids: NDArray[np.int64], positions: NDArray[np.int64], labels: NDArray[np.int64], *, total: int
    ) -> tuple[float, Parameters]:
        """Measures predictions of hidden words: returns the loss in nats, and its gradient by every parameter.

        Read from the bottom up, as the chain rule runs. For a linear layer y = x W + b, summed over its R rows:

            ∂L/∂W = xᵀ d_y      ∂L/∂b = Σ_rows d_y      d_x = d_y Wᵀ                                  (linear)

        1. Loss, L = -(1/total) Σ_m log softmax(l_m)[y_m], l = F E^T + c. With p = softmax(l) and y one-hot:
           d_l = (p - y) / total; it is a linear layer with W = Eᵀ: ∂L/∂c = Σ d_l, ∂L/∂E = d_lᵀ F (first part),
           d_F = d_l E, which is nonzero at the M hidden words only.
        2. F = LayerNorm(R), R = U + G W_2 + b_2, G = gelu(T), T = U W_1 + b_1: `norm_gradients` gives the gain, the
           bias and d_R; (linear) gives W_2, b_2, d_G; d_T = d_G ⊙ gelu'(T); (linear) gives W_1, b_1. U is reached by
           two paths, the residual and the layer: d_U = d_R + d_T W_1ᵀ.
        3. U = LayerNorm(X + Z W_O + b_O): gain, bias, W_O, b_O and d_Z as in step 2; d_X begins with the
           residual's part.
        4. Z = Att V, row by row a weighted mean: d_Att = d_Z Vᵀ, d_V = Attᵀ d_Z.
        5. Att = softmax(s) along each row: ∂Att_j/∂s_k = Att_j (δ_jk - Att_k), so
           d_s = Att ⊙ (d_Att - Σ_j d_Att_j Att_j). Hidden future words have Att = 0 and get nothing.
        6. s = Q Kᵀ / √D: d_Q = d_s K / √D, d_K = d_sᵀ Q / √D. The key's bias adds q·b_K to a whole row, which softmax
           does not see: ∂L/∂b_K = 0, whatever the data.
        7. Q, K, V = X W + b: (linear) three times; X gets the sum of the three d_x besides the residual's part.
        8. X = E[ids] + P: row w of ∂L/∂E gets d_X of every place where w stands (second part, added to the first,
           since the matrix is tied); row t of ∂L/∂P gets the sum over the N sentences of d_X at place t.

        Args:
            ids: [N, S] words, some hidden.
            positions: [M] places among the N S words, counted through; none twice.
            labels: [M] true words there.
            total: what the summed loss is divided by: M, or that of the whole batch where this is a share of it.
        """
        p, trace = self.parameters, self.forward(ids)
        h = self.config.hidden_size
        grads: Parameters = {}

        def linear(name: str, x: Array, d_y: Array) -> Array:
            """The rule (linear): stores ∂L/∂W and ∂L/∂b, returns d_x."""
            rows, d_rows = x.reshape(-1, x.shape[-1]), d_y.reshape(-1, d_y.shape[-1])
            grads[name], grads[f"{name}_bias"] = rows.T @ d_rows, d_rows.sum(0)
            d_x: Array = (d_rows @ p[name].T).reshape(x.shape)
            return d_x

        def norm(name: str, normed: Array, scale: Array, d_y: Array) -> Array:
            d_gain, d_bias, d_x = norm_gradients(normed, scale, p[f"{name}_gain"], d_y)
            grads[f"{name}_gain"], grads[f"{name}_bias"] = d_gain, d_bias
            return d_x

        # 1. 只有被掩码的 M 个位置有损失
        states = trace.states.reshape(-1, h)[positions]
        d_logits = softmax(self.logits(states))
        likelihood = d_logits[np.arange(len(labels)), labels]
        loss = -float(np.log(likelihood).sum()) / total
        d_logits[np.arange(len(labels)), labels] -= 1
        d_logits /= total
        grads["output_bias"] = d_logits.sum(0)
        d_states = np.zeros_like(trace.states).reshape(-1, h)
        d_states[positions] = d_logits @ p["embedding"]
        # 2. 前馈层
        d_sum = norm("output_norm", trace.output_normed, trace.output_scale, d_states.reshape(trace.states.shape))
        d_inner = linear("contract", trace.activated, d_sum) * trace.slope
        # 残差：U 有两条路通向损失，梯度相加
        d_attended = d_sum + linear("expand", trace.attended, d_inner)
        # 3. 注意力之后的投影
        d_x = norm("attention_norm", trace.attention_normed, trace.attention_scale, d_attended)
        d_mixed = self._split(linear("dense", trace.mixed, d_x))
        # 4.–6. 注意力
        d_attention = d_mixed @ trace.value.swapaxes(-1, -2)
        d_value = trace.attention.swapaxes(-1, -2) @ d_mixed
        d_scores = trace.attention * (d_attention - (d_attention * trace.attention).sum(-1, keepdims=True))
        d_scores /= math.sqrt(trace.query.shape[-1])
        d_query, d_key = d_scores @ trace.key, d_scores.swapaxes(-1, -2) @ trace.query
        # 7. 三个投影
        for name, d_part in (("query", d_query), ("key", d_key), ("value", d_value)):
            d_x = d_x + linear(name, trace.embedded, self._join(d_part))
        # 8. 嵌入矩阵用了两次（输入与输出共享），两份梯度相加
        grads["embedding"] = d_logits.T @ states
        np.add.at(grads["embedding"], ids, d_x)
        if self.config.use_positions:
            grads["positions"] = np.zeros_like(p["positions"])
            grads["positions"][: ids.shape[1]] = d_x.sum(0)
        return loss, grads

    def _linear(self, name: str, x: Array) -> Array:
        """The rule y = x W + b for [N, S, ...]: all N S rows in one product, several times as fast as N small ones."""
        rows: Array = x.reshape(-1, x.shape[-1]) @ self.parameters[name] + self.parameters[f"{name}_bias"]
        return rows.reshape(*x.shape[:-1], -1)

    def _split(self, joined: Array) -> Array:
        """[N, S, H] → [N, A, S, D]."""
        return joined.reshape(*joined.shape[:2], self.config.num_heads, -1).swapaxes(1, 2)

    def _join(self, split: Array) -> Array:
        """[N, A, S, D] → [N, S, H]."""
        return split.swapaxes(1, 2).reshape(split.shape[0], split.shape[2], -1)


def softmax(scores: Array) -> Array:
    """exp(s) / Σ exp(s) along the last axis; the largest is taken off first, so that nothing overflows."""
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    shares: Array = powers / powers.sum(-1, keepdims=True)
    return shares


def normalize(x: Array) -> tuple[Array, Array]:
    """LayerNorm without gain and bias: x̂ = (x - mean) σ⁻¹ along the last axis; returns x̂ and σ⁻¹ [..., 1]."""
    centred = x - x.mean(-1, keepdims=True)
    scale = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + NORM_EPSILON)
    return centred * scale, scale


def norm_gradients(normed: Array, scale: Array, gain: Array, d_y: Array) -> tuple[Array, Array, Array]:
    """Derives y = x̂ ⊙ g + b, x̂ = (x - mean(x)) σ⁻¹: returns ∂L/∂g [H], ∂L/∂b [H], d_x in the shape of d_y.

    ∂L/∂g = Σ_rows d_y ⊙ x̂ and ∂L/∂b = Σ_rows d_y. For x, with d_x̂ = d_y ⊙ g: an entry x_k moves x̂_k by σ⁻¹, the mean
    by 1/H and σ by x̂_k / H, and both of these move every entry of the row; summed up,

        d_x = σ⁻¹ (d_x̂ - mean(d_x̂) - x̂ mean(d_x̂ ⊙ x̂))

    that is, d_x̂ without its parts along (1, …, 1) and along x̂: shifting or stretching a row changes nothing.
    """
    rows = tuple(range(d_y.ndim - 1))
    d_normed = d_y * gain
    along = (d_normed * normed).mean(-1, keepdims=True)
    d_x = scale * (d_normed - d_normed.mean(-1, keepdims=True) - normed * along)
    return (d_y * normed).sum(rows), d_y.sum(rows), d_x


_BEND, _SLOPE = 0.044715, math.sqrt(2 / math.pi)


def gelu(x: Array) -> tuple[Array, Array]:
    """x/2 (1 + t) with t = tanh(√(2/π) (x + 0.044715 x³)) (Hendrycks and Gimpel 2016), and its derivative.

    By the product rule, and with tanh' = 1 - t²: (1 + t)/2 + x/2 (1 - t²) √(2/π) (1 + 3 · 0.044715 x²).
    """
    square = x * x
    t = np.tanh(_SLOPE * x * (1 + _BEND * square))
    half = 0.5 * (1 + t)
    # 两者共用同一个 tanh：它是整层里最慢的逐元素运算
    return x * half, half + 0.5 * x * (1 - t * t) * _SLOPE * (1 + 3 * _BEND * square)


MASK = "[MASK]"


class Adam:
    """Adam (Kingma and Ba 2015): m ← β₁m + (1-β₁)g, v ← β₂v + (1-β₂)g², θ ← θ - η m̂ / (√v̂ + ε)."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters, self.steps = parameters, 0
        self.means = {name: np.zeros_like(value) for name, value in parameters.items()}
        self.squares = {name: np.zeros_like(value) for name, value in parameters.items()}

    def step(self, gradients: Parameters, learning_rate: float) -> None:
        """Moves every parameter, in place."""
        self.steps += 1
        first, second = 0.9, 0.999
        for name, gradient in gradients.items():
            mean, square = self.means[name], self.squares[name]
            mean += (1 - first) * (gradient - mean)
            square += (1 - second) * (gradient**2 - square)
            # 除以 1-βᵗ：两个均值都从 0 开始，最初几步会偏小
            corrected, spread = mean / (1 - first**self.steps), square / (1 - second**self.steps)
            self.parameters[name] -= learning_rate * corrected / (np.sqrt(spread) + 1e-8)


@dataclass(frozen=True)
class TrainedMiniBert:
    """A MiniBert with its words by id, `[MASK]` first, and the masked-word loss at every step, in nats."""

    model: MiniBert
    words: tuple[str, ...]
    losses: tuple[float, ...]

    def fill(self, text: str) -> list[dict[str, float]]:
        """Returns for every `[MASK]` of a sentence all words with their probabilities, likeliest first."""
        ids = encode([text], self.words)[0]
        if 0 not in ids:
            raise InputError(f"no {MASK} in {text[:60]!r}; write {MASK} where a word is to be filled in")
        if len(ids) > self.model.config.max_length:
            raise InputError(f"{text[:60]!r} has {len(ids)} words; this model reads {self.model.config.max_length}")
        logits = self.model.logits(self.model.forward(ids[None]).states[0][ids == 0])
        filled = []
        for row in softmax(logits[:, 1:]):
            order = np.argsort(-row, kind="stable")
            filled.append({self.words[1 + word]: float(row[word]) for word in order})
        return filled


def train_minibert(
    sentences: Sequence[str], *, steps: int = 100, learning_rate: float = 3e-3, seed: int = 0, **shape: Any
) -> TrainedMiniBert:
    """Trains on sentences with the paper's masking; every step reads all of them, hidden anew.

    Args:
        learning_rate: at the start; it falls linearly to 0.
        **shape: fields of `MiniBertConfig`, other than the two that follow from the sentences.
    """
    words = (MASK, *sorted({word for sentence in sentences for word in sentence.split()} - {MASK}))
    by_length: dict[int, list[NDArray[np.int64]]] = defaultdict(list)
    for ids in encode(sentences, words):
        by_length[len(ids)].append(ids)
    groups = [np.stack(by_length[length]) for length in sorted(by_length)]
    model = MiniBert(MiniBertConfig(len(words), max(by_length), **shape), seed=seed)
    adam, losses = Adam(model.parameters), []
    shares: dict[str, Any] = {"special_ids": np.array([0]), "mask_token_id": 0, "settings": MaskingSettings()}
    shares["vocab_size"] = len(words)
    for step in range(steps):
        rng = generator(seed, "minibert/masking", step)
        masked = [
            mask_tokens(group.ravel(), np.full(len(group), group.shape[1]), **shares, rng=rng) for group in groups
        ]
        total = sum(len(part.labels) for part in masked)
        loss, summed = 0.0, defaultdict[str, Any](float)
        # 各长度分组的损失都除以同一个总数，梯度相加即为整批的梯度
        for group, part in zip(groups, masked, strict=True):
            ids = part.input_ids.reshape(group.shape)
            share, gradients = model.loss_and_gradients(ids, part.positions, part.labels, total=total)
            loss += share
            for name, gradient in gradients.items():
                summed[name] = summed[name] + gradient
        adam.step(summed, learning_rate * (1 - step / steps))
        losses.append(loss)
    return TrainedMiniBert(model, words, tuple(losses))


def encode(sentences: Sequence[str], words: Sequence[str]) -> list[NDArray[np.int64]]:
    """Turns sentences into ids, the places of their words among `words`."""
    ids = {word: index for index, word in enumerate(words)}
    if not sentences:
        raise InputError("no sentences; give a few, with spaces between the words")
    encoded = []
    for number, sentence in enumerate(sentences, 1):
        split = sentence.split()
        unknown = [word for word in split if word not in ids]
        if unknown or not split:
            what = f"the word {unknown[0][:40]!r} is unknown" if unknown else "there are no words"
            raise InputError(f"sentence {number}: {what}; this model knows the words of its own sentences only")
        encoded.append(np.array([ids[word] for word in split]))
    return encoded


PEOPLE = ("man", "woman", "boy", "girl", "farmer", "baker")
DEEDS = {
    "reads": ("book", "letter", "map"),
    "eats": ("bread", "apple", "soup"),
    "drinks": ("milk", "tea"),
    "opens": ("door",),
}
"""Verb → what it is done to."""

VERBS = (*DEEDS, "sleeps")


def simple_sentences() -> tuple[str, ...]:
    """Returns the hundred-odd sentences of the lesson; `examples/minibert_sentences.txt` holds the same.

    Person and thing meet in two orders, so that the words around a gap do not settle what is missing: `the man reads
    the letter`, but `the letter near the man`. What fills a gap must follow from the other sentences.
    """
    things = [(verb, thing) for verb, objects in DEEDS.items() for thing in objects]
    sentences = []
    for number, person in enumerate(PEOPLE):
        for place, (verb, thing) in enumerate(things):
            # 每人留出一件事不说：测的是举一反三，不是背诵
            if place != number:
                sentences.append(f"the {person} {verb} the {thing}")
            sentences.append(f"the {thing} near the {person}")
        sentences.append(f"the {person} sleeps")
    return tuple(sentences)
