"""*Tokens*: how a text becomes the sum of three embeddings (Devlin et al. 2019, §3, figure 2), in numbers."""

from __future__ import annotations

from dataclasses import dataclass

import gradio as gr
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from bertsmith_school.lab.markup import notice, pieces, table
from bertsmith_school.lab.models import LabError, LabModel, received
from bertsmith_school.lab.page_state import PageState
from bertsmith_school.learn.lesson import Text
from bertsmith_school.looking.maps import encode_whole

_FIRST, _SECOND = Text("Text A", "文本 A"), Text("Text B, or nothing", "文本 B，可以不写")
_STARTS = ("the man reads the newspaper .", "Tokenization is embarrassingly simple.", "今天天气很好。")
_NORMS = {
    "token": Text("token embedding", "词元嵌入"),
    "segment": Text("segment embedding", "段嵌入"),
    "position": Text("position embedding", "位置嵌入"),
    "sum": Text("their sum", "它们的和"),
}


@dataclass(frozen=True)
class Tokens:
    """What the model reads of one text or pair: S pieces, their ids, places in their text, and texts (0 or 1)."""

    texts: tuple[str, str]
    pieces: list[str]
    ids: list[int]
    offsets: list[tuple[int, int]]
    sequence_ids: list[int]
    norms: dict[str, NDArray[np.float32]]
    dropped: int


def tokens_of(model: LabModel, first: str, second: str) -> Tokens:
    """Takes the input of a model apart."""
    first, second = received(first, _FIRST), received(second, _SECOND, may_be_empty=True)
    pair = second if second.strip() else None
    embedding, tokenizer = model.encoder.embedding, model.tokenizer
    encoded, dropped = encode_whole(tokenizer, model.encoder.config.position_limit, first, pair)
    if pair is not None and not model.encoder.config.reads_pairs:
        raise LabError(
            "The model knows one segment only; leave text B empty.", "这个模型只有一种段嵌入，请不要写文本 B。"
        )
    with torch.inference_mode():
        device = embedding.word.weight.device
        ids, segments = (torch.tensor(encoded[name], device=device) for name in ("input_ids", "token_type_ids"))
        parts = {"token": F.embedding(ids, embedding.word.weight)}
        # 有的家族不分片段，有的不学位置：有哪张表就加哪一项
        if hasattr(embedding, "token_type"):
            known = segments.clamp(max=embedding.token_type.num_embeddings - 1)
            parts["segment"] = F.embedding(known, embedding.token_type.weight)
        if hasattr(embedding, "position"):
            parts["position"] = embedding.position.weight[model.encoder.config.first_position :][: len(ids)]
        parts["sum"] = torch.stack(list(parts.values())).sum(0)
        parts["normed"] = embedding.norm(parts["sum"])
        # 只看长度：几百维的向量画不出来，长度已能说明三种嵌入各占多少、归一化做了什么
        norms = {name: vectors.float().norm(dim=-1).cpu().numpy() for name, vectors in parts.items()}
    names = [tokenizer.vocab[index] for index in encoded["input_ids"]]
    places, texts = encoded["offsets"], encoded["sequence_ids"]
    return Tokens((first, pair or ""), names, encoded["input_ids"], places, texts, norms, dropped)


def build(state: PageState) -> None:
    """Lays the tab out."""
    state.lead(
        "A text is cut into pieces of the vocabulary. Each becomes the sum of three learned vectors: which piece it"
        " is, which text it is from, where it stands.",
        "文本先切成词表里的词片。每个词片变成三个学来的向量之和：它是哪个词片，属于哪段文本，在第几个位置。",
    )
    place = state.place_for_notice()
    first, second = state.field(_FIRST, "tokens-first", _STARTS), state.field(_SECOND, "tokens-second")
    button = state.button("Cut into tokens", "切成词元", "tokens-button", variant="primary")
    results = gr.HTML(elem_id="tokens-results")

    def show(model: LabModel, one: str, two: str) -> tuple[str]:
        return (_results(state, tokens_of(model, one, two)),)

    state.answer([button.click, first.submit, second.submit], show, [first, second], place, [results])
    state.on_choice(lambda _: [""], [results])


def _results(state: PageState, found: Tokens) -> str:
    parts, size = [], len(found.pieces)
    if found.dropped:
        said = Text(
            f"The model reads {size} tokens; the last {found.dropped} are cut off.",
            f"模型只读 {size} 个词元，末尾的 {found.dropped} 个被截去了。",
        )
        parts.append(notice(state.say(said)))
    if missing := [name for key, name in _NORMS.items() if key not in found.norms]:
        named = Text(" and no ".join(name.en for name in missing), "和".join(name.zh for name in missing))
        said = Text(f"This model's family adds no {named.en}.", f"这个模型所属的家族不加{named.zh}。")
        parts.append(notice(state.say(said)))
    parts.append(pieces(zip(found.pieces, found.sequence_ids, strict=True)))
    head = [
        *state.say("piece|in the text|id|characters|text|position", "词片|原文|id|字符|文本|位置").split("|"),
        *(f"‖{state.say(one)}‖" for name, one in _NORMS.items() if name in found.norms),
        state.say("‖after LayerNorm‖", "‖LayerNorm 之后‖"),
    ]
    columns = zip(found.pieces, found.ids, found.offsets, found.sequence_ids, *found.norms.values(), strict=True)
    rows = [
        [
            piece,
            found.texts[source][start:end],
            f"{index}",
            f"{start}–{end}" if end else "–",
            "AB"[source],
            f"{position}",
            *(f"{norm:.3f}" for norm in norms),
        ]
        for position, (piece, index, (start, end), source, *norms) in enumerate(columns)
    ]
    parts.append(table(head, rows, name=state.say("Tokens", "词元"), texts=2))
    return "".join(parts)
