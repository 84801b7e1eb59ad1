"""How long a run is: minutes, tokens or floating-point operations, turned into a number of steps before it begins.

The number goes into the recipe. So the schedule is known from the first step, and a run is the same run after a
restart, on a slower day or on other hardware.
"""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bertsmith.batch import RaggedBatch
from bertsmith.data.corpus.shards import TRAIN, TokenCorpus
from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.data.stream.stream import PreTrainingStream
from bertsmith.model import ModelConfig
from bertsmith.model.heads import SpanBoundaryHead
from bertsmith.model.sizes import BatchCosts, MatmulWeights
from bertsmith.objectives.pretraining import Objective
from bertsmith.tokenizer import Tokenizer
from bertsmith.train.choosing import DROPOUT, MANY_PASSES
from bertsmith.train.distributed import Ranks
from bertsmith.train.recipe import PreTrainingRecipe
from bertsmith.train.start import heldout_set, make_trainer, open_stream
from bertsmith.train.trainer import BertTrainer

EVALUATIONS = 12
"""Evaluations spread over a run, besides the one before the first step."""

SAVING_SHARE = 0.02
"""Most of the time that saving may take; where a state is slow to write, states are saved less often."""

SAMPLED_BATCHES = 16
TIMED_STEPS, WARMUP_STEPS = 16, 4
FEWEST_STEPS = 20


@dataclass(frozen=True)
class StepCosts:
    """What a step of a phase costs on average, over all ranks: tokens and operations."""

    tokens: float
    flops: float


def training_flops(config: ModelConfig, batch: PreTrainingBatch, objective: Objective | None = None) -> float:
    """Returns the operations of a step on a batch, forward and backward, by the formula of `BatchCosts`.

    Args:
        objective: says which networks run; None is one that predicts pieces and, where there are labels, judges pairs.
    """
    predicting, *judging = (config,) if objective is None else objective.networks(config)
    weights, hidden, width = MatmulWeights.of(predicting), predicting.hidden_size, predicting.embedding_size
    per_masked = 2 * weights.masked_lm
    if batch.masked_spans is not None:
        # 跨度边界头：两层感知机（左右边界各 H、位置嵌入，→H→E），再解码一遍词表
        first = (2 * hidden + SpanBoundaryHead.PLACE_SIZE) * hidden
        per_masked += 2 * (first + hidden * width + width * predicting.vocab_size)
    # 不学句对的目标（mlm、ltr）既没有 pooler，也没有句对头
    per_sequence = 2 * (weights.pooler + weights.next_sentence) if batch.global_labelled else 0
    forward = _encoder_flops(predicting, batch.tokens)
    if objective is None or not objective.reads_all_states:
        # 最后一层的前馈只算被遮的词片和每条序列的摘要
        unread = batch.tokens.num_tokens - len(batch.masked_positions) - batch.tokens.num_sequences
        forward -= 2 * weights.last * unread
    forward += len(batch.masked_positions) * per_masked + batch.tokens.num_sequences * per_sequence
    for judge in judging:
        per_token = 2 * judge.hidden_size * (judge.hidden_size + 1)
        forward += _encoder_flops(judge, batch.tokens) + batch.tokens.num_tokens * per_token
    return 3.0 * forward


def _encoder_flops(config: ModelConfig, tokens: RaggedBatch) -> float:
    lengths = Counter(np.diff(tokens.cu_seqlens.cpu().numpy()).tolist())
    return sum(count * BatchCosts(config, 1, length).encoder_flops for length, count in sorted(lengths.items()))


def steps_for(
    recipe: PreTrainingRecipe,
    corpus: TokenCorpus,
    tokenizer: Tokenizer,
    device: torch.device | str = "cpu",
    *,
    ranks: Ranks | None = None,
    accumulate: int = 1,
    evaluations: int = EVALUATIONS,
    compiled: bool = False,
) -> int:
    """Returns the number of steps after which the first of the recipe's ends is reached.

    Args:
        evaluations: spread over the run, besides the first; they take their part of the minutes. 0 is no first either.
    """
    if not recipe.length.has_budget:
        return recipe.trainer.total_steps
    ranks = ranks or Ranks()
    shares = recipe.length.shares
    costs = [sample_costs(recipe, corpus, tokenizer, phase) for phase in range(len(shares))]
    # 词元与运算要用满，所以向上取整；时间不可超过，所以向下
    limits = [recipe.trainer.total_steps] if recipe.trainer.total_steps else []
    for budget in ("tokens", "flops"):
        if whole := getattr(recipe.length, budget):
            per_step = sum(share * getattr(cost, budget) for share, cost in zip(shares, costs, strict=True))
            limits.append(math.ceil(whole / per_step))
    if recipe.length.minutes:
        within = _steps_within(recipe, corpus, tokenizer, device, ranks, accumulate, evaluations, compiled)
        limits.append(math.floor(within))
    # 各进程计时略有差别：以 0 号进程的结果为准
    return ranks.on_first(lambda: max(1, min(limits)))


def with_dropout(recipe: PreTrainingRecipe, passes: float) -> PreTrainingRecipe:
    """Returns a recipe that says its dropout: as chosen, or by how often the text will be read.

    A text that is read a few times is never the same twice, since its masks are drawn anew; dropout then only slows
    learning. Read very often it is learned by heart.
    """
    if recipe.model.dropout is not None:
        return recipe
    # 接着训练的模型已经学过很多：沿用论文的 dropout，免得忘掉旧的、背下新的
    often = passes >= MANY_PASSES or bool(recipe.model.start_from)
    return recipe.changed(dropout=DROPOUT if often else 0.0)


def passes_over(recipe: PreTrainingRecipe, corpus: TokenCorpus, tokenizer: Tokenizer) -> float:
    """Returns how often a recipe of known steps reads the text."""
    shares = recipe.length.shares
    per_step = sum(share * sample_costs(recipe, corpus, tokenizer, phase).tokens for phase, share in enumerate(shares))
    return recipe.trainer.total_steps * per_step / corpus.counts[TRAIN].tokens


def sample_costs(recipe: PreTrainingRecipe, corpus: TokenCorpus, tokenizer: Tokenizer, phase: int) -> StepCosts:
    """Returns what a step of a phase costs, from its first batches."""
    stream = open_stream(recipe, corpus, tokenizer, phase=phase)
    config, objective = recipe.model_config(tokenizer), recipe.build_objective()
    batches = [next(stream) for _ in range(SAMPLED_BATCHES)]
    costs = [(batch.tokens.num_tokens, training_flops(config, batch, objective)) for batch in batches]
    return StepCosts(*map(float, np.mean(costs, axis=0)))


def _steps_within(
    recipe: PreTrainingRecipe,
    corpus: TokenCorpus,
    tokenizer: Tokenizer,
    device: torch.device | str,
    ranks: Ranks,
    accumulate: int,
    evaluations: int,
    compiled: bool,
) -> float:
    """Finds how many steps fit into the minutes asked for, by timing a throw-away model on real batches."""
    # 计时用的是丢弃的模型和独立的数据流：步数一旦定下，训练本身与快慢无关；词向量的初值也不必去数
    timed = recipe.changed(steps=max(1, recipe.trainer.total_steps), first_vectors="drawn")
    trainer = make_trainer(timed, corpus, tokenizer, device, ranks, compiled=compiled)
    per_step = 0.0
    for phase, share in enumerate(recipe.length.shares):
        stream = open_stream(recipe, corpus, tokenizer, phase=phase, ranks=ranks)
        per_step += share * seconds_per_step(trainer, stream, accumulate=accumulate)
    evaluating = 0.0
    if evaluations:
        batches = heldout_set(recipe, corpus, tokenizer)
        # 第一批要编译或安排内核，各进程各有自己的一批：每次评估只算之后的时间
        trainer.evaluate(batches[: ranks.world_size])
        begun = time.perf_counter()
        trainer.evaluate(batches)
        evaluating = time.perf_counter() - begun
    steps = steps_within(recipe.length.minutes * 60, per_step, evaluating, evaluations)
    if steps < FEWEST_STEPS and ranks.is_first:
        enough = seconds_for(FEWEST_STEPS, per_step, evaluating, evaluations) / 60
        warnings.warn(
            f"a run takes at least {FEWEST_STEPS} steps, here about {max(0.01, round(enough, 2)):,g} minutes"
            f" instead of {recipe.length.minutes:g}; give more minutes, or choose a smaller model or shorter sequences",
            stacklevel=3,
        )
    return max(FEWEST_STEPS, steps)


def steps_within(seconds: float, per_step: float, evaluating: float, evaluations: int = EVALUATIONS) -> float:
    """Returns how many steps fit into a time beside the evaluations and savings of a run."""
    return (seconds - evaluating * (evaluations + 1)) / (per_step * (1 + SAVING_SHARE))


def seconds_for(steps: int, per_step: float, evaluating: float, evaluations: int = EVALUATIONS) -> float:
    """Returns in what time `steps_within` finds so many steps."""
    return steps * per_step * (1 + SAVING_SHARE) + evaluating * (evaluations + 1)


def seconds_per_step(
    trainer: BertTrainer[Any],
    stream: PreTrainingStream,
    *,
    timed: int = TIMED_STEPS,
    warm: int = WARMUP_STEPS,
    accumulate: int = 1,
) -> float:
    """Takes `timed` steps of a model that is thrown away, and returns the mean time of those after the first `warm`."""
    times = []
    for _ in range(timed):
        begun = time.perf_counter()
        trainer.train_batch(*next(stream).split(accumulate))
        if trainer.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return float(np.mean(times[warm:]))
