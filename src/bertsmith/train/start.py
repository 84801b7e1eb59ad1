"""What a recipe starts from: the model with its first weights, its trainer, its stream of batches.

Fresh weights, or those of a model folder that is trained further (continued pre-training on the text of a domain:
Gururangan et al. 2020). Heads that the folder lacks start afresh.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from bertsmith.data.corpus.cooccurrence import piece_vectors
from bertsmith.data.corpus.shards import TokenCorpus
from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.data.stream.masking import MaskingSettings
from bertsmith.data.stream.stream import PreTrainingStream, heldout_batches
from bertsmith.errors import CheckpointError
from bertsmith.hub import commit_of, model_folder
from bertsmith.kernels.processor import ASYNCHRONOUS
from bertsmith.model import PretrainedModel
from bertsmith.model.folder import fingerprint_weights
from bertsmith.seeding import torch_seed
from bertsmith.tokenizer import Tokenizer, load_tokenizer
from bertsmith.tokenizer.loading import TOKENIZER_FILES
from bertsmith.train.distributed import Ranks
from bertsmith.train.recipe import PreTrainingRecipe
from bertsmith.train.trainer import BertTrainer

HELDOUT_SEQUENCES = 512
"""Held-out sequences per evaluation, or as many tokens in longer ones: about 10,000 masked pieces at length 128."""

EXPLODED_LOSS = 3.0
"""A loss above this multiple of that of guessing evenly has exploded."""


def open_stream(
    recipe: PreTrainingRecipe,
    corpus: TokenCorpus,
    tokenizer: Tokenizer,
    *,
    phase: int = 0,
    ranks: Ranks | None = None,
) -> PreTrainingStream:
    """Returns the batches of a phase from their beginning; with ranks, this one's share of each."""
    settings, needs, ranks = recipe.stream_settings(phase), recipe.build_objective().needs, ranks or Ranks()
    rank, size = ranks.rank, ranks.world_size
    return PreTrainingStream(corpus, tokenizer, settings, needs, seed=recipe.seed, rank=rank, world_size=size)


def heldout_set(recipe: PreTrainingRecipe, corpus: TokenCorpus, tokenizer: Tokenizer) -> list[PreTrainingBatch]:
    """Returns the validation batches, always the same, at the length of the last phase: what the model is to read.

    As much is hidden as in the paper, 15 %, whatever the run itself hides: so the losses of all runs compare.
    """
    settings, needs, paper = recipe.stream_settings(-1), recipe.build_objective().needs, MaskingSettings()
    as_in_paper = ("rate", "spread", "mask_share", "random_share", "max_predictions_per_seq")
    masking = replace(settings.masking, **{name: getattr(paper, name) for name in as_in_paper})
    settings = replace(settings, masking=masking)
    sequences = min(HELDOUT_SEQUENCES, max(1, HELDOUT_SEQUENCES * 128 // settings.sequence_length))
    return heldout_batches(corpus, tokenizer, settings, needs, seed=recipe.seed, max_sequences=sequences)


def build_model(
    recipe: PreTrainingRecipe, corpus: TokenCorpus, tokenizer: Tokenizer, device: torch.device | str = "cpu"
) -> nn.Module:
    """Returns what the objective trains, before its first step, on the CPU.

    On a GPU in bf16, attention weights have no dropout, whatever the recipe's: the kernel that computes no padding has
    none, and without it a batch would be laid out as a rectangle. Hidden states keep theirs.

    The biases of fresh heads start as priors: the log frequency of every piece, and the log odds of a replaced token.
    That saves the thousand steps in which a model learns nothing but which pieces are common.
    """
    torch.manual_seed(torch_seed(recipe.seed, "train/initial weights"))
    objective, start = recipe.build_objective(), recipe.model.start_from
    has_kernel = torch.device(device).type in ASYNCHRONOUS and recipe.model.precision == "bf16"
    on_weights = 0.0 if has_kernel else recipe.model.dropout or 0.0
    if start:
        dropout = recipe.model.dropout or 0.0
        model = objective.load_model(start, hidden_dropout_prob=dropout, attention_probs_dropout_prob=on_weights)
    else:
        config = recipe.model_config(tokenizer)
        model = objective.build_model(config.changed(attention_probs_dropout_prob=on_weights))
    parts = objective.models(model).values()
    if not start and recipe.model.first_vectors == "counted":
        # ELECTRA 的两个模型共用一张词表：只数一次
        for table in {part.backbone.embedding.word.weight for part in parts}:
            _start_as_counted(table, corpus, recipe.seed)
        for projection in filter(None, (getattr(part.backbone.embedding, "projection", None) for part in parts)):
            # 正交的矩阵保住向量之间的角度：数出来的相近，到了隐藏状态里仍相近
            nn.init.orthogonal_(projection.weight)
    for part in parts:
        if not start and recipe.model.sinusoids:
            _start_as_sinusoids(part, recipe.model.sinusoids)
        _start_at_priors(part, corpus, recipe.data.masking.rate)
        part.set_compute_dtype(torch.bfloat16 if recipe.model.precision == "bf16" else torch.float32)
    return model


def _start_as_counted(table: Tensor, corpus: TokenCorpus, seed: int) -> None:
    """Starts a fresh table [V, E] from which pieces stand together; rows of length 1 survive Adam's first steps."""
    # 用法相近的词从第一步起就相近，读与猜（解码器用同一张表）都受益；长度取 1，是随机初值的三倍：得分的离散程度约为 1
    vectors = torch.from_numpy(piece_vectors(corpus, table.shape[1], seed=seed))
    with torch.no_grad():
        # 没出现过的词（如 [MASK]）没有可数的邻居：保留随机初值，彼此才有区别
        table[: len(vectors)] = torch.where(vectors.any(dim=1, keepdim=True), vectors, table[: len(vectors)])


def _start_as_sinusoids(model: PretrainedModel, amplitude: float) -> None:
    """Starts a fresh table of positions as `sinusoids`: neighbouring places then look alike from the first step."""
    if (table := model.backbone.position_table) is not None:
        with torch.no_grad():
            table.weight.copy_(amplitude * sinusoids(*table.weight.shape))


def sinusoids(places: int, width: int) -> Tensor:
    """Returns [places, width], waves of growing length; sines first (Vaswani et al. 2017, §3.5)."""
    lengths = 10_000.0 ** (torch.arange(0, width, 2) / width)
    angles = torch.arange(places)[:, None] / lengths  # [positions, ⌈E/2⌉]
    return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :width]


def _start_at_priors(model: PretrainedModel, corpus: TokenCorpus, mask_rate: float) -> None:
    """Gives fresh biases what is known before anything is read: how frequent pieces are, how often one is replaced."""
    # 输出偏置即词频先验：加一平滑避免 log 0；模型词表可以比语料的大，多出的词按零次计
    counts = np.ones(model.config.vocab_size)
    counts[: len(corpus.piece_counts)] += corpus.piece_counts
    # 判别器也要先验：从 0 起，各处的状态会先一齐偏向“没有替换”，彼此就分不开了
    log_odds = np.array([math.log(mask_rate / (1 - mask_rate))])
    biases = dict(model.named_parameters())
    for name, prior in (("masked_lm.bias", np.log(counts / counts.sum())), ("replaced_tokens.linear.bias", log_odds)):
        if name in biases and (model.load_report is None or name in model.load_report.fresh):
            with torch.no_grad():
                biases[name].copy_(torch.from_numpy(prior))


def make_trainer(
    recipe: PreTrainingRecipe,
    corpus: TokenCorpus,
    tokenizer: Tokenizer,
    device: torch.device | str = "cpu",
    ranks: Ranks | None = None,
    *,
    compiled: bool = False,
) -> BertTrainer[nn.Module]:
    """Returns a trainer at step 0 for a recipe; `compiled` fuses the kernels of every block, on a GPU."""
    objective = recipe.build_objective()
    model = build_model(recipe, corpus, tokenizer, device)
    for part in objective.models(model).values() if compiled else ():
        part.compile_blocks()
    return BertTrainer(
        model,
        objective,
        recipe.trainer,
        seed=recipe.seed,
        # 均匀猜测的损失（如 log V）是起点：超出它几倍的损失不是学习，是爆炸
        loss_limit=EXPLODED_LOSS * objective.guessing_loss(len(corpus.piece_counts)),
        device=device,
        ranks=ranks,
    )


def fingerprint_teacher(recipe: PreTrainingRecipe, tokenizer: Tokenizer) -> PreTrainingRecipe:
    """Notes the weights of a recipe's teacher, after making sure that it reads the same pieces."""
    teacher = recipe.teacher.folder
    if not teacher:
        return recipe
    folder = model_folder(teacher)
    if load_tokenizer(folder).vocab != tokenizer.vocab:
        raise CheckpointError(
            f"{teacher}: the teacher reads another vocabulary than the tokenizer of the corpus; build the corpus with"
            f" --tokenizer {teacher}"
        )
    return recipe.changed(teacher_weights=fingerprint_weights(folder))


def fingerprint_start(recipe: PreTrainingRecipe, tokenizer: Tokenizer) -> PreTrainingRecipe:
    """Notes which weights a recipe starts from, and of which commit, after making sure that the tokenizer is theirs."""
    if not recipe.model.start_from:
        return recipe
    start = recipe.model.start_from
    folder = model_folder(start)
    vocab_size = recipe.model_config(tokenizer).vocab_size
    has = {name: (folder / name).exists() for name in (*TOKENIZER_FILES, "tokenizer_config.json")}
    different = "another vocabulary"
    if any(has[name] for name in TOKENIZER_FILES):
        own = load_tokenizer(folder)
        fits = own.vocab == tokenizer.vocab
        # 只有 vocab.txt 的文件夹没有说大小写等规则：只能比词表
        if fits and (not has["vocab.txt"] or has["tokenizer.json"] or has["tokenizer_config.json"]):
            fits = own.fingerprint == tokenizer.fingerprint
            different = "text by other rules (its casing, accents or special tokens)"
    else:
        fits = tokenizer.vocab_size <= vocab_size
    if not fits:
        raise CheckpointError(
            f"{start}: the model reads {different} than the tokenizer of the corpus;"
            f" build the corpus with --tokenizer {start}"
        )
    parts = [folder / each for each in recipe.build_objective().folders]
    found = [fingerprint_weights(part) for part in parts if part == folder or (part / "config.json").is_file()]
    return recipe.changed(start_weights=" ".join(found), start_commit=commit_of(start))
