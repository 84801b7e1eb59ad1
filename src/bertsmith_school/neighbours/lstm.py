"""A language model of LSTMs that read both ways: the idea of ELMo (Peters et al. 2018), for comparison with BERT.

One stack of LSTMs reads from left to right and predicts the next piece, another reads from right to left and predicts
the one before (§3.1). They share the table of pieces and the decoder, but no states: what BERT calls shallowly
bidirectional (Devlin et al. 2019, §2.1 and figure 3). As features, the states of each layer are laid side by side.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import torch
from rich.console import Console
from torch import Tensor, nn

from bertsmith.batch import RaggedBatch
from bertsmith.data.corpus.shards import TRAIN, TokenCorpus
from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.data.stream.stream import PreTrainingStream, StreamNeeds, StreamSettings, heldout_batches
from bertsmith.files import claim_folder, locked, make_folder, write_json
from bertsmith.model.folder import read_modules, write_modules
from bertsmith.objectives import LossOutput
from bertsmith.seeding import torch_seed
from bertsmith.settings import Checked, option
from bertsmith.tokenizer import Tokenizer
from bertsmith.train.trainer import BertTrainer, TrainerSettings
from bertsmith_school.neighbours.runs import cross_entropy, train_to_the_end

SEQUENCE, HELDOUT_SEQUENCES = 128, 256
TENSOR_FILE, FIGURES = "lstm.safetensors", "figures.json"


@dataclass(frozen=True)
class LstmOptions(Checked):
    """The shape, and how it learns."""

    panel: ClassVar[str] = "Network and training"

    layers: int = option(2, min=1, help="LSTMs in each of the two stacks.")
    size: int = option(128, min=1, help="State size of each direction.")
    epochs: int = option(3, min=1, help="Passes over the text.")
    batch_size: int = option(16, min=1, help="Sequences of 128 pieces in a step.")
    learning_rate: float = option(5e-3, above=0, help="Peak learning rate.")
    dropout: float = option(0.1, min=0.0, below=1, help="Dropout between layers in training.")
    seed: int = option(0, help="Random seed.")


class TwoWayLSTM(nn.Module):
    """Two stacks over one table of pieces [V, H], which is the decoder's too."""

    def __init__(self, vocab_size: int, options: LstmOptions) -> None:
        super().__init__()
        self.word = nn.Embedding(vocab_size, options.size)
        # 表也是解码器：太小的初值让 logits 长时间贴着零，前几百步只学到词频
        nn.init.normal_(self.word.weight, std=2.0 / options.size**0.5)
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        stacks = [nn.LSTM(options.size, options.size, batch_first=True) for _ in range(2 * options.layers)]
        self.forwards = nn.ModuleList(stacks[: options.layers])
        self.backwards = nn.ModuleList(stacks[options.layers :])
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, batch: RaggedBatch) -> list[Tensor]:
        """Returns L+1 tensors [T, 2H] from below, the vectors of the pieces first: left states, then right ones."""
        embedded = self.word(batch.input_ids)
        # 从右往左读：先把每个序列的真实词元倒过来，填充仍在末尾，状态不会经过填充
        lengths = batch.cu_seqlens.diff().long()
        starts = torch.repeat_interleave(batch.first_token_positions, lengths)
        turned = 2 * starts + torch.repeat_interleave(lengths, lengths) - 1 - torch.arange(batch.num_tokens)
        left, right = embedded, embedded.index_select(0, turned)
        layers = [torch.cat([embedded, embedded], 1)]
        for number, (forwards, backwards) in enumerate(zip(self.forwards, self.backwards, strict=True)):
            read_left = batch.unpad(forwards(batch.pad(self.dropout(left)))[0])
            read_right = batch.unpad(backwards(batch.pad(self.dropout(right)))[0])
            # 第二层起加残差（与 ELMo 相同）：上层只学修正
            left, right = (read_left, read_right) if number == 0 else (left + read_left, right + read_right)
            layers.append(torch.cat([left, right.index_select(0, turned)], 1))
        return layers

    def decode(self, states: Tensor) -> Tensor:
        """Maps states [M, H] of either direction to logits [M, V]."""
        return nn.functional.linear(self.dropout(states), self.word.weight, self.bias)


def two_way_loss(model: TwoWayLSTM, batch: PreTrainingBatch) -> LossOutput:
    """Returns the mean of -log p over next pieces and pieces before, in nats (Peters et al. 2018, §3.1)."""
    ids, places = batch.tokens.input_ids, batch.masked_positions
    left, right = model(batch.tokens)[-1].chunk(2, 1)
    # 同一对相邻的词用两次：左边的状态猜右边的词，右边的状态猜左边的词
    ahead = cross_entropy(model.decode(left.index_select(0, places)), ids.index_select(0, places + 1))
    behind = cross_entropy(model.decode(right.index_select(0, places + 1)), ids.index_select(0, places))
    count = max(1, batch.global_masked)
    sums = {"loss": (float((ahead[0] + behind[0]).detach()), 2 * len(places))}
    for name, found in (("ahead", ahead), ("behind", behind)):
        sums[f"{name}_loss"] = (float(found[0].detach()), len(places))
        sums[f"{name}_accuracy"] = (float(found[1]), len(places))
    return LossOutput((ahead[0] + behind[0]) / (2 * count), sums)


def learn_two_ways(
    run: str | Path, corpus: TokenCorpus, tokenizer: Tokenizer, options: LstmOptions, *, console: Console | None = None
) -> tuple[TwoWayLSTM, dict[str, float]]:
    """Trains the model on token shards into `run/lstm.safetensors`, or resumes where the same call was stopped.

    Returns it in evaluation mode with its held-out figures: `loss`, and of each direction loss and accuracy.
    """
    run, console = Path(run), console or Console(quiet=True)
    torch.manual_seed(torch_seed(options.seed, "neighbours/initial weights"))
    model = TwoWayLSTM(len(corpus.piece_counts), options)
    # 每条序列有两个位置给了 [CLS] 和 [SEP]，一轮要按其余的位置算
    steps = max(1, round(options.epochs * corpus.counts[TRAIN].tokens / ((SEQUENCE - 2) * options.batch_size)))
    trainer = BertTrainer(
        model, two_way_loss, TrainerSettings(steps, options.learning_rate, epsilon=1e-8), seed=options.seed
    )
    reading = StreamSettings(sequence_length=SEQUENCE, batch_size=options.batch_size, packing="full")
    needs = StreamNeeds(pairs="none", targets="next_token")
    with locked(make_folder(run)):
        claim_folder(run, "lstm.json", {"corpus": corpus.fingerprint, **asdict(options)})
        if (run / TENSOR_FILE).exists():
            read_modules(run / TENSOR_FILE, {"lstm": model})
        else:
            stream = PreTrainingStream(corpus, tokenizer, reading, needs, seed=options.seed)
            train_to_the_end(run, trainer, stream, "LSTM both ways", console)
            write_modules(run / TENSOR_FILE, {"lstm": model})
        judged = heldout_batches(corpus, tokenizer, reading, needs, max_sequences=HELDOUT_SEQUENCES)
        figures = trainer.evaluate(judged)
        write_json(run / FIGURES, figures)
    return model.eval(), figures
