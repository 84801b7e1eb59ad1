"""The numbers that lessons speak of besides their computations: read from the settings and counted by the code."""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace

from bertsmith.data.stream.masking import MaskingSettings
from bertsmith.errors import CheckpointError
from bertsmith.finetune.search import PAPER_GRID
from bertsmith.json_files import read_json
from bertsmith.learn.computations import experiments, published, schedule
from bertsmith.model import NAMED_SIZES, BertConfig
from bertsmith.model.sizes import ParameterCounts
from bertsmith.tinyworld import MADE, trained_model


@functools.cache
def facts() -> SimpleNamespace:
    """Returns every fact by name; texts refer to them as `{facts.NAME}`."""
    masking = MaskingSettings()
    village = read_json(trained_model() / MADE, dict, CheckpointError, "install bertsmith again")
    kept = 1 - masking.mask_share - masking.random_share
    base, large = BertConfig.named("base"), BertConfig.named("large")
    grid_size = math.prod(len(values) for values in PAPER_GRID.values())
    return SimpleNamespace(
        mask_rate=masking.rate,
        mask_share=masking.mask_share,
        random_share=masking.random_share,
        kept_share=kept,
        # 读者容易问的：真正变成 [MASK] 的占全部词片的多少
        overall_mask_share=masking.rate * masking.mask_share,
        unseen_share=1 - masking.rate,
        base_layers=base.num_hidden_layers,
        base_hidden=base.hidden_size,
        base_heads=base.num_attention_heads,
        base_head_size=base.head_size,
        base_inner=base.intermediate_size,
        base_vocabulary=base.vocab_size,
        base_positions=base.max_position_embeddings,
        base_millions=_millions(base),
        # 中文以亿计数
        base_hundred_millions=_millions(base) / 100,
        large_layers=large.num_hidden_layers,
        large_hidden=large.hidden_size,
        large_millions=_millions(large),
        large_hundred_millions=_millions(large) / 100,
        large_times=_millions(large) / _millions(base),
        inner_times=base.intermediate_size // base.hidden_size,
        smallest_layers=NAMED_SIZES["tiny"][0],
        coin_loss=math.log(2),
        blind_loss=math.log(base.vocab_size),
        grid_size=grid_size,
        grid_rates=", ".join(f"{rate:.0e}".replace("e-0", "e-") for rate in PAPER_GRID["learning_rate"]),
        grid_batches=", ".join(map(str, PAPER_GRID["batch_size"])),
        grid_epochs=", ".join(map(str, PAPER_GRID["epochs"])),
        peak_rate=f"{schedule.PEAK:.0e}".replace("e-0", "e-"),
        batch_sequences=schedule.BATCH,
        batch_length=schedule.LENGTH,
        batch_tokens=schedule.BATCH * schedule.LENGTH,
        short_length=schedule.SHORT,
        short_share=schedule.SHORT_SHARE,
        probe=experiments.PROBE,
        ablation_whole=published.figure("ablation", "whole", "SQuAD"),
        ablation_no_pairs=published.figure("ablation", "no next sentence", "SQuAD"),
        ablation_left=published.figure("ablation", "left to right, no next sentence", "SQuAD"),
        books_millions=schedule.BOOKS_WORDS / 1e6,
        wikipedia_millions=schedule.WIKIPEDIA_WORDS / 1e6,
        # 中文以亿计数
        books_hundred_millions=schedule.BOOKS_WORDS / 1e8,
        wikipedia_hundred_millions=schedule.WIKIPEDIA_WORDS / 1e8,
        village_accuracy=village["heldout"]["mlm_accuracy"],
        village_loss=village["heldout"]["mlm_loss"],
        village_entropy=village["unigram_entropy"],
        village_pairs=village["heldout"]["nsp_accuracy"],
    )


def _millions(config: BertConfig) -> float:
    counts = ParameterCounts.of(config)
    return (counts.total - counts.heads) / 1e6
