"""Changing a model that already exists: fewer heads or layers, more pieces or positions, parts that stay as they are.

- a model is changed in place, weights and `config` together, so what is saved next loads as it is
- a changed parameter is a new tensor: create the optimizer afterwards, or it goes on moving the old one
- the folders load in `transformers` too, except those with pruned heads: its version 5 no longer builds such models
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.batch import RaggedBatch
from bertsmith.errors import ConfigError, InputError
from bertsmith.model.architectures import ModelForPreTraining
from bertsmith.model.attention import MultiHeadSelfAttention
from bertsmith.model.backbone import Backbone, PretrainedModel
from bertsmith.model.family import family_named
from bertsmith.model.heads import MaskedLMHead
from bertsmith.tokenizer import Tokenizer, WordPieceTokenizer


def prune_heads(model: PretrainedModel, heads: Mapping[int, Collection[int]]) -> None:
    """Cuts attention heads out, for good (Michel et al. 2019, "Are Sixteen Heads Really Better than One?").

    The result is what the whole model computes when these heads contribute nothing, at less cost.

    Args:
        heads: by layer from 0, the heads to cut, numbered as in the whole model; those gone already may be named again.
    """
    config = model.config
    pruned = {layer: set(gone) for layer, gone in config.pruned_heads.items()}
    for layer, gone in heads.items():
        pruned.setdefault(int(layer), set()).update(map(int, gone))
    smaller = config.changed(
        pruned_heads={layer: tuple(sorted(pruned[layer])) for layer in sorted(pruned) if pruned[layer]}
    )
    blocks = model.backbone.encoder.blocks
    first_of = {block: layer for layer, block in reversed(list(enumerate(blocks)))}
    for layer, block in enumerate(blocks):
        # 共享权重的几层其实是同一个模块：剪掉一层的头，就是剪掉每一层的
        if smaller.heads_left(layer) != smaller.heads_left(first_of[block]):
            raise ConfigError(
                f"layers {first_of[block]} and {layer} share their weights; prune the same heads in each of them"
            )
    for block, layer in first_of.items():
        before, after = config.heads_left(layer), smaller.heads_left(layer)
        if before != after:
            _keep_heads(block.attention, [before.index(head) for head in after])
    model.set_config(smaller)


def keep_layers(model: PretrainedModel, layers: int | Sequence[int]) -> None:
    """Drops layers: those on top, or all but some.

    A pooler stays as it is, although it was trained on the states of the layer that was on top.

    Args:
        layers: how many to keep, from below: 1 to L; or which, counted from 0, in rising order.
    """
    config = model.config
    there = config.num_hidden_layers
    kept = list(range(layers)) if isinstance(layers, int) else list(layers)
    if not kept or not all(0 <= one < there for one in kept) or kept != sorted(set(kept)):
        said = layers if isinstance(layers, int) else ",".join(map(str, kept))
        raise ConfigError(
            f"keep_layers {said}: the model has {there} layers; keep 1 or more of them, numbered from 0 in rising order"
        )
    encoder = model.backbone.encoder
    for place, one in enumerate(kept):
        # 有的家族按层号决定窗口与位置编码，第一层还少一个归一化：换了位置就不是同一种层
        if _kind_of(encoder.blocks[one]) != _kind_of(encoder.blocks[place]):
            raise ConfigError(f"keep_layers: layer {one} is of another kind than layer {place}, where it would stand")
    pruned = {kept.index(layer): heads for layer, heads in config.pruned_heads.items() if layer in kept}
    blocks = [encoder.blocks[one] for one in kept]
    encoder.blocks = blocks if isinstance(encoder.blocks, list) else nn.ModuleList(blocks)
    model.set_config(config.changed(num_hidden_layers=len(kept), pruned_heads=pruned))


def layers_written(text: str) -> list[int]:
    """Reads numbers of layers from 0, with commas, such as `0,2,4`."""
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise ConfigError(f"layers {text}: write numbers from 0, such as 0,2,4") from None


def _kind_of(block: nn.Module) -> tuple[object, ...]:
    attention: Any = block.attention
    return (attention.window, attention.rotary_base, *(name for name, _ in block.named_parameters()))


def extend_positions(model: PretrainedModel, num_positions: int) -> None:
    """Gives the model more positions, or fewer: up to `num_positions` tokens in a sequence.

    More: the learned table is stretched by linear interpolation, so that the first and the last row stay the first
    and the last. Neighbours are then closer than the model is used to: train it on before relying on it. Fewer: the
    rows of the last positions are dropped. A family that learns no positions reads as far as it is told to.
    """
    config = model.config.with_position_limit(num_positions)
    position = model.backbone.position_table
    if position is None:
        # 位置是角度（RoPE）：没有表可拉伸，只改允许的长度
        model.set_config(config)
        return
    # 有的家族头几行不是位置（RoBERTa 从第 2 行数起）：原样留下，只拉伸其余各行
    before, table = position.weight.detach().tensor_split([config.first_position])
    if num_positions > len(table):
        # 双精度插值再舍入一次：首尾两行与原表逐位相同
        curves = table.double().T[None]
        table = F.interpolate(curves, size=num_positions, mode="linear", align_corners=True)[0].T.to(table.dtype)
    _replace(position, "weight", torch.cat([before, table[:num_positions]]))
    model.set_config(config)


@torch.no_grad()
def as_distilbert(model: PretrainedModel) -> PretrainedModel:
    """Returns a DistilBERT with a BERT's weights (Sanh et al. 2019, §3): no segments and no pooler.

    For a text read alone it computes what the BERT does. The second text of a pair is read as the first.
    """
    config, heads = model.config, {name for name, _ in model.named_children()} - {"backbone"}
    if config.model_type != "bert":
        raise ConfigError(f"a {config.model_type} has parts that a DistilBERT has not; only a bert can become one")
    family = family_named("distilbert")
    both = set(family.config.field_names()) & set(config.field_names())
    smaller_config = family.config(**{name: getattr(config, name) for name in both})
    smaller: PretrainedModel
    if isinstance(model, Backbone):
        smaller = family.backbone(smaller_config, need_pooler=False)
    elif heads <= {"masked_lm", "next_sentence"}:
        smaller = ModelForPreTraining(smaller_config, pair_head=False)
    else:
        raise ConfigError(f"a DistilBERT has no such {', '.join(sorted(heads))} as a bert; fine-tune it afterwards")
    weights = model.state_dict()
    table = next(name for name in weights if name.endswith("embedding.position.weight"))
    embedding = cast("Any", model.backbone.embedding)
    # 单独一段文本总是段 0：把这一行并进每个位置，和不变
    weights[table] = embedding.position.weight + embedding.token_type.weight[0]
    smaller.load_state_dict({name: weights[name] for name in smaller.state_dict()})
    return smaller


@torch.no_grad()
def resize_vocabulary(model: PretrainedModel, new_size: int, *, sources: Sequence[Sequence[int]] | None = None) -> None:
    """Gives the model room for more pieces, or takes the last ones away.

    A new piece starts as the mean of all pieces, or better of those that used to spell it (Hewitt 2021, "Initializing
    New Word Embeddings"). So do its bias in the masked-LM head and its row of a decoder that is not tied.

    Args:
        new_size: pieces after the change; more than `pad_token_id`.
        sources: for each new piece the old ids whose mean it starts as; empty, or None for every piece: the mean of
            all.
    """
    old_size = model.config.vocab_size
    config = model.config.changed(vocab_size=new_size)
    if new_size <= config.pad_token_id:
        raise ConfigError(f"vocab_size {new_size} leaves no place for pad_token_id {config.pad_token_id}")
    num_new = max(0, new_size - old_size)
    spelled = [()] * num_new if sources is None else sources
    if len(spelled) != num_new:
        raise InputError(f"{len(spelled)} sources for {num_new} new pieces; give one for each")
    for place, ids in enumerate(spelled):
        if not all(0 <= index < old_size for index in ids):
            raise InputError(f"sources[{place}] {list(ids)}: an id is outside the old vocabulary of {old_size} pieces")
    for module, name in _piece_tables(model):
        table = module.get_parameter(name)
        mean = table.mean(0)
        rows = [table[list(ids)].mean(0) if len(ids) else mean for ids in spelled]
        _replace(module, name, torch.cat([table, torch.stack(rows)]) if rows else table[:new_size])
    model.set_config(config)


@torch.no_grad()
def cut_vocabulary(model: PretrainedModel, tokenizer: WordPieceTokenizer, used: Collection[int]) -> WordPieceTokenizer:
    """Takes all pieces but those `used` out of a vocabulary and of the model, and returns the tokenizer that is left.

    Special tokens, the user's own, and single characters stay, so that every word that could be spelled still can be.
    The pieces keep their order; save the tokenizer beside the model.
    """
    pieces = tokenizer.vocab
    if len(pieces) > model.config.vocab_size:
        raise InputError(f"the tokenizer has {len(pieces)} pieces, the model {model.config.vocab_size}; use its own")
    if not set(used) <= set(range(len(pieces))):
        raise InputError("an id to keep is none of the tokenizer's pieces; use those of the same tokenizer")
    always = {*tokenizer.special_ids, *(tokenizer.piece_to_id[token] for token in tokenizer.user_tokens)}
    kept = [
        number
        for number, piece in enumerate(pieces)
        if number in used or number in always or len(piece.removeprefix("##")) == 1
    ]
    smaller = tokenizer.with_only(kept)
    rows = torch.tensor(kept, device=model.backbone.embedding.word.weight.device)
    for module, name in _piece_tables(model):
        _replace(module, name, module.get_parameter(name)[rows])
    pad = kept.index(model.config.pad_token_id) if model.config.pad_token_id in kept else 0
    model.set_config(model.config.changed(vocab_size=len(kept), pad_token_id=pad))
    return smaller


def extend_vocabulary(
    model: PretrainedModel,
    tokenizer: Tokenizer,
    new_pieces: Sequence[str],
    *,
    user_tokens: Sequence[str] = (),
) -> Tokenizer:
    """Adds pieces, such as the terms of a domain, to a vocabulary and to the model, and returns the new tokenizer.

    Each starts as the mean of the pieces that the old tokenizer spells it with. Rows of the model that belong to no
    piece of the tokenizer (a vocabulary padded to a round size) are dropped first. Save the tokenizer beside the model.

    Args:
        new_pieces: whole words, and parts of words with `##`, normalised (such as in lower case) as the tokenizer does.
        user_tokens: new pieces that are recognised wherever they are written, such as `[E1]`.
    """
    if len(tokenizer) > model.config.vocab_size:
        raise InputError(
            f"the tokenizer has {len(tokenizer)} pieces, the model {model.config.vocab_size}; use the model's own"
        )
    if isinstance(new_pieces, str):
        raise InputError(f"new_pieces is the single string {new_pieces!r}; pass a list of pieces")
    pieces = [*new_pieces, *user_tokens]
    for piece, times in Counter(pieces).items():
        if piece in tokenizer.piece_to_id or times > 1:
            raise InputError(f"piece {piece!r} is in the vocabulary already, or given twice; leave it out")
    sources = [*map(tokenizer.spell, new_pieces), *map(tokenizer.encode, user_tokens)]
    larger = tokenizer.with_pieces(new_pieces, user_tokens)
    # 拼不出来的部分没有意义：[UNK] 的向量不说明任何词，去掉它，一个不剩就取全表均值
    known = [[index for index in ids if index != tokenizer.unk_token_id] for ids in sources]
    resize_vocabulary(model, len(tokenizer))
    resize_vocabulary(model, len(larger), sources=known)
    return larger


def freeze(model: PretrainedModel, *, embeddings: bool, layers: int) -> None:
    """Keeps the lower part of a model, the embeddings and some blocks from below, as it is while the rest is trained.

    Nothing is thawed: `model.requires_grad_(True)` does that. A decoder tied to the word embedding is frozen with it.
    """
    if not 0 <= layers <= model.config.num_hidden_layers:
        raise ConfigError(
            f"freeze layers {layers}: the model has {model.config.num_hidden_layers}; give 0 or more of them"
        )
    backbone = model.backbone
    lower, upper = backbone.encoder.blocks[:layers], backbone.encoder.blocks[layers:]
    if set(lower) & set(upper):
        raise ConfigError(
            f"freeze layers {layers}: the layers share their weights; freeze none or all"
            f" {model.config.num_hidden_layers} of them"
        )
    if embeddings:
        backbone.embedding.requires_grad_(False)
    for block in lower:
        block.requires_grad_(False)


@torch.no_grad()
def _keep_heads(attention: MultiHeadSelfAttention, places: list[int]) -> None:
    kept = torch.tensor(places, device=attention.qkv.weight.device)
    shape = (3, attention.num_heads, attention.head_size)
    # qkv 的行按 [查询|键|值] × 头 × D 排列：三段里都要取同样的头
    for name, parameter in list(attention.qkv.named_parameters()):
        rows = parameter.unflatten(0, shape).index_select(1, kept).flatten(0, 2)
        _replace(attention.qkv, name, rows)
    # output 的偏置属于全体头之和，不随剪枝改变；只取对应的列
    columns = attention.output.weight.unflatten(1, shape[1:]).index_select(1, kept).flatten(1)
    _replace(attention.output, "weight", columns)
    attention.num_heads = len(places)


def _piece_tables(model: PretrainedModel) -> Iterator[tuple[nn.Module, str]]:
    """Yields module and name of every parameter that has a row for each piece."""
    yield model.backbone.embedding.word, "weight"
    for head in model.modules():
        if isinstance(head, MaskedLMHead):
            # 共享解码器时只有偏置是自己的；不共享时矩阵和偏置都在 decoder 里
            yield from [(head, "bias")] if head.decoder is None else [(head.decoder, "weight"), (head.decoder, "bias")]


def _replace(module: nn.Module, name: str, value: Tensor) -> None:
    """Puts a tensor of another shape in the place of a parameter, frozen if that was; a module then says that shape."""
    trained = module.get_parameter(name).requires_grad
    # 克隆：切片只是旧表的视图，会让整张旧表留在内存里
    fresh = value.detach().clone(memory_format=torch.contiguous_format)
    module.register_parameter(name, nn.Parameter(fresh, requires_grad=trained))
    if name == "weight" and isinstance(module, nn.Embedding):
        module.num_embeddings = len(fresh)
    elif name == "weight" and isinstance(module, nn.Linear):
        module.out_features, module.in_features = fresh.shape


def head_importance(
    model: PretrainedModel, batches: Iterable[Any], loss: Callable[[Any, Any], Tensor]
) -> list[list[float]]:
    """Returns the importance of every head: for each layer those of its heads, in the order that they have now.

    I(head) = mean over texts of |∂loss / ∂gate|. The gate is a factor before the head's output that is always 1: its
    gradient says how the loss would change if the head said a little less. `loss` is a mean over sequences. The
    importances of a layer are scaled to length 1, since gradients grow and shrink between layers (Michel et al. 2019).
    """
    blocks: list[Any] = list(model.backbone.encoder.blocks)
    attentions = list(dict.fromkeys(block.attention for block in blocks))
    sums = [torch.zeros(attention.num_heads) for attention in attentions]
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    was_training = model.training
    model.eval().requires_grad_(False)
    try:
        for batch in batches:
            gates: list[list[Tensor]] = [[] for _ in attentions]
            with ExitStack() as stack:
                for attention, opened in zip(attentions, gates, strict=True):
                    stack.enter_context(_gated(attention, opened))
                loss(model, batch).backward()
            for total, opened in zip(sums, gates, strict=True):
                for gate in opened:
                    # 每条序列各自的梯度先取绝对值再相加：正负相抵会让重要的头看起来没用；
                    # 损失已除以批里的条数，乘回来，最后一批再小也不多算
                    total += gate.grad.abs().sum(0).cpu() * len(gate) if gate.grad is not None else 0.0
    finally:
        model.train(was_training)
        for parameter in learning:
            parameter.requires_grad_(True)
    scaled = [(total / total.norm().clamp(min=1e-30)).tolist() for total in sums]
    return [scaled[attentions.index(block.attention)] for block in blocks]


@contextmanager
def _gated(attention: Any, opened: list[Tensor]) -> Iterator[None]:
    """Puts a factor 1 before each head of each sequence, [N, A], and adds it to `opened`, for as long as it lasts."""
    read: list[RaggedBatch] = []

    def remember(_module: nn.Module, given: tuple[Any, ...]) -> None:
        read[:] = [given[1]]

    def multiply(_module: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
        (mixed,), batch = given, read[0]
        gate = torch.ones(batch.num_sequences, attention.num_heads, device=mixed.device, requires_grad=True)
        opened.append(gate)
        lengths = torch.tensor(batch.lengths, device=mixed.device)
        per_token = gate.repeat_interleave(lengths, dim=0).to(mixed.dtype)  # [T, A]
        return ((mixed.unflatten(1, (attention.num_heads, -1)) * per_token[..., None]).flatten(1),)

    handles = [attention.register_forward_pre_hook(remember), attention.output.register_forward_pre_hook(multiply)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
