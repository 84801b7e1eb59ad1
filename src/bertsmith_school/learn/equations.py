"""The equations of the lessons in PyTorch, about ten lines each: to be read beside the numbers, and written oneself.

Nothing else uses them; `check_equation` compares one, or what a reader wrote in its place, with the code that trains.
Letters: S tokens, H hidden size, A heads of width D = H/A, V pieces.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm

from bertsmith.batch import RaggedBatch
from bertsmith.data.stream.masking import MaskingSettings, mask_tokens
from bertsmith.errors import InputError
from bertsmith.objectives import MaskedLMLoss, NSPLoss
from bertsmith.seeding import generator
from bertsmith_school.learn.study import Study

IMPORTS = "import math\n\nimport torch\nfrom torch import Tensor\nfrom torch.nn.functional import gelu, layer_norm\n"
"""What the functions below need, for a notebook."""
CLOSE = 1e-4


def masked_attention(query: Tensor, key: Tensor, value: Tensor, may_read: Tensor) -> Tensor:
    """Attention where token i reads token j only if may_read[i, j]; `torch.ones(S, S).tril()` reads to the left."""
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    scores = scores.masked_fill(may_read == 0, -torch.inf)
    return scores.softmax(dim=-1) @ value


def embeddings(ids: Tensor, segments: Tensor, w: dict[str, Tensor]) -> Tensor:
    """The sum of three rows for each token, normalised: [S] ids and segments → [S, H]."""
    what = w["word.weight"][ids]
    which = w["token_type.weight"][segments]
    where = w["position.weight"][: len(ids)]
    total = what + which + where
    return layer_norm(total, total.shape[-1:], w["norm.weight"], w["norm.bias"], eps=1e-12)


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Z = softmax(Q Kᵀ / √D) V for [..., S, D] (Vaswani et al. 2017, equation 1)."""
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    weights = scores.softmax(dim=-1)
    return weights @ value


def multi_head_attention(x: Tensor, w: dict[str, Tensor], heads: int) -> Tensor:
    """Attention in A heads on the states [S, H]; the rows of `qkv` are those of Q, K and V, head by head."""
    projected = x @ w["qkv.weight"].T + w["qkv.bias"]
    query, key, value = projected.view(len(x), 3, heads, -1).permute(1, 2, 0, 3)
    joined = attention(query, key, value).transpose(0, 1).reshape(len(x), -1)
    return joined @ w["output.weight"].T + w["output.bias"]


def block(x: Tensor, w: dict[str, Tensor], heads: int) -> Tensor:
    """A block on [S, H]: attention, then a feed-forward layer; each is added to its input, and the sum normalised."""

    def norm(states: Tensor, name: str) -> Tensor:
        return layer_norm(states, states.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], eps=1e-12)

    own = {name.removeprefix("attention."): each for name, each in w.items() if name.startswith("attention.")}
    x = norm(x + multi_head_attention(x, own, heads), "attention_norm")
    inner = gelu(x @ w["intermediate.weight"].T + w["intermediate.bias"])
    return norm(x + inner @ w["output.weight"].T + w["output.bias"], "output_norm")


def hide_pieces(ids: Tensor, special: Tensor, mask_id: int, vocab_size: int) -> tuple[Tensor, Tensor]:
    """Chooses 15 % of the pieces; 80 % of these become [MASK], 10 % another piece, 10 % stay. Returns labels, too."""
    chosen = (torch.rand(len(ids)) < 0.15) & ~special
    fate = torch.rand(len(ids))
    hidden = torch.where(chosen & (fate < 0.8), mask_id, ids)
    hidden = torch.where(chosen & (fate >= 0.9), torch.randint(vocab_size, ids.shape), hidden)
    return hidden, torch.where(chosen, ids, -100)


def masked_lm_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean of -log p(true piece) over the hidden ones: [S, V] and [S], -100 where nothing was hidden."""
    hidden = labels != -100
    log_p = logits[hidden].log_softmax(dim=-1)
    return -log_p.gather(1, labels[hidden, None]).mean()


def next_sentence_loss(c: Tensor, w: dict[str, Tensor], follows: bool) -> Tensor:
    """-log p of the truth, from the pooled state of [CLS], [H]: class 0 says that B follows A."""
    log_p = (w["weight"] @ c + w["bias"]).log_softmax(dim=-1)
    return -log_p[0 if follows else 1]


Equation = Callable[..., Any]
EQUATIONS: Mapping[str, Equation] = {
    "both_sides": masked_attention,
    "input_sum": embeddings,
    "two_tokens": attention,
    "two_heads": multi_head_attention,
    "first_block": block,
    "masking": hide_pieces,
    "mlm_loss": masked_lm_loss,
    "nsp_loss": next_sentence_loss,
}
"""Name of a computation → its equation."""


def source_of(function: Equation) -> str:
    """Returns the lines of an equation."""
    return inspect.getsource(function).rstrip()


@torch.no_grad()
def check_equation(id: str, function: Equation) -> float:
    """Compares an equation with bertsmith's own code on the village model, and returns the largest difference.

    Args:
        id: name of the computation that it stands beside.
        function: takes and returns what the one in `EQUATIONS` does; of `masking`, which draws, shares are compared.

    Raises:
        InputError: there is no such equation, or the results differ.
    """
    if id not in EQUATIONS:
        raise InputError(f"there is no equation {id[:40]!r}; there are {', '.join(EQUATIONS)}")
    arguments, expected = _case(id)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found = function(*arguments)
    wanted, parts = 2 if id == "masking" else 1, found if isinstance(found, tuple) else (found,)
    if len(parts) != wanted or not all(isinstance(part, Tensor) for part in parts):
        raise InputError(f"{id}: returns {type(found).__name__}; give {wanted} tensor{'s' if wanted > 1 else ''}")
    limit = CLOSE
    if id == "masking":
        # 抽签的结果各不相同：比各种命运的份额，不比每一个词片
        found, limit = _fates(arguments[2], *found), 0.02
    if found.shape != expected.shape:
        raise InputError(f"{id}: the result has the shape {list(found.shape)}, bertsmith's {list(expected.shape)}")
    difference = float((found - expected).abs().max())
    if not difference <= limit:
        raise InputError(f"{id}: differs from bertsmith's by up to {difference:.2g}")
    return difference


def _case(id: str) -> tuple[tuple[Any, ...], Tensor]:
    """Returns arguments for an equation, and what bertsmith makes of them."""
    if id == "masking":
        return _masking_case()
    study = Study.village()
    model, heads = study.model, study.model.config.num_attention_heads
    embedding: Any = model.backbone.embedding
    first: Any = model.backbone.encoder.blocks[0]
    ids, segments = study.encode("the man reads the book", "the woman eats bread")
    batch = RaggedBatch.from_sequences([ids], [segments])
    x, output = embedding(batch), model.backbone(batch)
    qkv = first.attention.qkv(x).view(len(x), 3, heads, -1).permute(1, 2, 0, 3)
    left, place = torch.ones(len(x), len(x)).tril(), torch.arange(len(x))
    logits = model.masked_lm(output.hidden_states, embedding.word.weight)
    labels = torch.where(place % 4 == 2, torch.tensor(ids), -100)
    cases: dict[str, tuple[tuple[Any, ...], Tensor]] = {
        "both_sides": ((*qkv, left), first.attention.attend(*qkv[:, None], left == 0)[0]),
        "input_sum": ((torch.tensor(ids), torch.tensor(segments), embedding.state_dict()), x),
        "two_tokens": (tuple(qkv), first.attention.attend(*qkv[:, None], None)[0]),
        "two_heads": ((x, first.attention.state_dict(), heads), first.attention(x, batch).states),
        "first_block": ((x, first.state_dict(), heads), first(x, batch).states),
        "mlm_loss": ((logits, labels), MaskedLMLoss()(logits, labels).loss),
        "nsp_loss": (
            (output.pooled[0], model.next_sentence.linear.state_dict(), True),
            NSPLoss()(model.next_sentence(output.pooled), torch.tensor([0])).loss,
        ),
    }
    return cases[id]


def _masking_case() -> tuple[tuple[Any, ...], Tensor]:
    """Returns a long text of drawn pieces, and the shares of the fates that bertsmith gives to its pieces."""
    count, vocab_size, mask_id = 50_000, 1000, 4
    ids = generator(0, "learn/equations").integers(10, vocab_size, count)
    made = mask_tokens(
        ids,
        np.array([count]),
        special_ids=np.arange(10),
        mask_token_id=mask_id,
        vocab_size=vocab_size,
        settings=MaskingSettings(max_predictions_per_seq=0),
        rng=generator(0, "learn/equations/masking"),
    )
    labels = np.full(count, -100)
    labels[made.positions] = made.labels
    text, hidden, true = (torch.from_numpy(each) for each in (ids, made.input_ids, labels))
    return (text, torch.zeros(count, dtype=torch.bool), mask_id, vocab_size), _fates(mask_id, hidden, true)


def _fates(mask_id: int, hidden: Tensor, labels: Tensor) -> Tensor:
    """Returns the shares of pieces that are chosen, and of these that became [MASK], or stayed."""
    chosen = labels != -100
    fates = (chosen, hidden[chosen] == mask_id, hidden[chosen] == labels[chosen])
    return torch.stack([each.float().mean() for each in fates])
