"""One Transformer block from end to end, for a token of the reader's sentence (Vaswani et al. 2017, §3.1 and §3.3)."""

from __future__ import annotations

import torch

from bertsmith.batch import RaggedBatch
from bertsmith.errors import InputError
from bertsmith.learn.computations.reading import SHOWN
from bertsmith.learn.lesson import Computation, Language, Step, Text
from bertsmith.learn.study import Study
from bertsmith.model import TransformerBlock


def bert_block(study: Study) -> TransformerBlock:
    """Returns the first block of a model.

    Raises:
        InputError: it is not of BERT's form.
    """
    block = next(iter(study.model.backbone.encoder.blocks))
    if not isinstance(block, TransformerBlock):
        raise InputError(
            f"a block of {study.model.family.name} goes another way than BERT's, which is shown here; take a model of"
            " BERT or of a family nearer to it"
        )
    return block


@torch.inference_mode()
def first_block(*, id: str, title: str, language: Language, study: Study, text: str, place: int) -> Computation:
    """Follows a token through the first block: attention, residual, norm, feed-forward layer, residual, norm.

    Raises:
        InputError: the sentence has no words or is too long, there is no token at that place, or the block is not of
            BERT's form.
    """
    ids = study.encode(text)[0]
    if place >= len(ids):
        raise InputError(f"place {place}: the sentence has the tokens 0 to {len(ids) - 1}")
    batch = RaggedBatch.from_sequences([ids])
    block = bert_block(study)
    hidden = study.model.backbone.embedding(batch)
    attended = block.attention(hidden, batch).states
    # 每个子层只给出“改动”，加回原来的状态上：梯度总有一条不经过任何矩阵的路
    middle = block.attention_norm(hidden + attended)
    wide = block.intermediate(middle)
    bent = block.activation(wide)
    back = block.output(bent)
    output = block.output_norm(middle + back)
    names = Text(
        "x|attention(x)|x + attention(x)|y = LayerNorm of it|feed-forward(y)|y + feed-forward(y)|LayerNorm of it",
        "x|注意力(x)|x + 注意力(x)|y = 上一行的 LayerNorm|前馈(y)|y + 前馈(y)|上一行的 LayerNorm",
    )(language).split("|")
    states = [hidden, attended, hidden + attended, middle, back, middle + back, output]
    inner, size = wide.shape[1], hidden.shape[1]
    function = study.model.config.hidden_act
    pieces = study.pieces(ids)
    steps = (
        Step(
            Text(f"the token {pieces[place]} at place {place}", f"第 {place} 个位置的词元 {pieces[place]}")(language),
            torch.stack([state[place, :SHOWN] for state in states]).tolist(),
            Text(f"the first {SHOWN} of {size} numbers", f"{size} 个数中的前 {SHOWN} 个")(language),
            tuple(names),
        ),
        Step(
            Text("inside the feed-forward layer", "前馈层内部")(language),
            torch.stack([wide[place, :SHOWN], bent[place, :SHOWN]]).tolist(),
            Text(f"the first {SHOWN} of {inner} numbers", f"{inner} 个数中的前 {SHOWN} 个")(language),
            ("y W_1 + b_1", function),
        ),
    )
    before, after = hidden[place], output[place]
    values = {
        "piece": pieces[place],
        "place": place,
        "hidden": size,
        "inner": inner,
        "function": function,
        "cosine": float(torch.cosine_similarity(before, after, dim=0)),
        "output": after.tolist(),
    }
    return Computation(id, title, steps, values, study.note(language))
