"""`check_equation`: an equation of the lessons, or what a reader wrote in its place, beside the code that trains.

Each case is a method of `_Cases`, named after the computation: it returns arguments for the equation, and what the
layer, the loss or the optimizer of bertsmith makes of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertsmith.batch import FULL, RaggedBatch
from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.data.stream.masking import MaskingSettings, mask_tokens
from bertsmith.errors import InputError
from bertsmith.model import (
    BertConfig,
    BertForPreTraining,
    MultiHeadSelfAttention,
    MultipleChoiceHead,
    QASpanHead,
    SequenceClassifier,
    TokenClassifier,
    best_spans,
)
from bertsmith.model.attention import rotated
from bertsmith.model.families import albert, modernbert
from bertsmith.model.sizes import ParameterCounts
from bertsmith.objectives import (
    ChoiceObjective,
    ClassificationObjective,
    LabelledBatch,
    MaskedLMLoss,
    NSPLoss,
    ReplacedTokenLoss,
    TaggingObjective,
    objective_named,
)
from bertsmith.seeding import generator
from bertsmith.train.optimizer import build_optimizer, learning_rate_at
from bertsmith_school.learn.computations import finetuning
from bertsmith_school.learn.equations import EQUATIONS, Equation
from bertsmith_school.learn.study import Study

CLOSE = 1e-4
"""Largest difference that rounding may make."""

Case = tuple[tuple[Any, ...], Tensor]


@torch.no_grad()
def check_equation(id: str, function: Equation) -> float:
    """Compares an equation with bertsmith's own code, and returns the largest difference.

    Args:
        id: name of the computation that it stands beside.
        function: takes and returns what the one in `EQUATIONS` does; of `masking`, which draws, shares are compared.

    Raises:
        InputError: there is no such equation, or the results differ.
    """
    if id not in EQUATIONS:
        raise InputError(f"there is no equation {id[:40]!r}; there are {', '.join(EQUATIONS)}")
    with torch.random.fork_rng(devices=[]):
        # 新建的头和层也由这个种子初始化：每次比较的都是同样的数
        torch.manual_seed(0)
        arguments, expected = getattr(_Cases(), id)()
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


class _Cases:
    """The cases; most are of a pair of sentences that the village model reads."""

    def __init__(self) -> None:
        self.study = Study.village()
        self.model: Any = self.study.model
        self.config = self.study.model.config
        self.embedding = self.model.backbone.embedding
        self.block = self.model.backbone.encoder.blocks[0]
        ids, segments = self.study.encode("the man reads the book", "the woman eats bread")
        self.ids, self.segments = torch.tensor(ids), torch.tensor(segments)
        self.batch = RaggedBatch.from_sequences([ids], [segments])
        self.x, self.output = self.embedding(self.batch), self.model.backbone(self.batch)
        self.length = len(ids)

    @property
    def qkv(self) -> Tensor:
        """[3, A, S, D], those of the first block."""
        heads = self.config.num_attention_heads
        projected: Tensor = self.block.attention.qkv(self.x)
        return projected.view(self.length, 3, heads, -1).permute(1, 2, 0, 3)

    @property
    def labels(self) -> Tensor:
        """[S], every fourth piece, elsewhere -100."""
        return torch.where(torch.arange(self.length) % 4 == 2, self.ids, -100)

    def both_sides(self) -> Case:
        left = torch.ones(self.length, self.length).tril()
        return (*self.qkv, left), self.block.attention.attend(*self.qkv[:, None], left == 0)[0]

    def pieces_of_a_word(self) -> Case:
        word, tokenizer = "homewards", self.study.tokenizer
        return (word, dict(tokenizer.piece_to_id)), torch.tensor(tokenizer.encode(word))

    def input_sum(self) -> Case:
        return (self.ids, self.segments, self.embedding.state_dict()), self.x

    def two_tokens(self) -> Case:
        return tuple(self.qkv), self.block.attention.attend(*self.qkv[:, None], None)[0]

    def two_heads(self) -> Case:
        attention = self.block.attention
        return (self.x, attention.state_dict(), attention.num_heads), attention(self.x, self.batch).states

    def first_block(self) -> Case:
        heads = self.block.attention.num_heads
        return (self.x, self.block.state_dict(), heads), self.block(self.x, self.batch).states

    def parameters(self) -> Case:
        config = BertConfig.named("mini")
        counts = ParameterCounts.of(config)
        sizes = (config.vocab_size, config.max_position_embeddings, config.hidden_size, config.intermediate_size)
        return (*sizes, config.num_hidden_layers), torch.tensor(counts.total - counts.heads)

    def masking(self) -> Case:
        """A long text of drawn pieces, and the shares of the fates that bertsmith gives to them."""
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

    def mlm_loss(self) -> Case:
        logits = self._logits()
        return (logits, self.labels), MaskedLMLoss()(logits, self.labels).loss

    def nsp_loss(self) -> Case:
        head = self.model.next_sentence
        expected = NSPLoss()(head(self.output.pooled), torch.tensor([0])).loss
        return (self.output.pooled[0], head.linear.state_dict(), True), expected

    def one_example(self) -> Case:
        places = (self.labels != -100).nonzero().squeeze(1)
        batch = PreTrainingBatch(self.batch, places, self.labels[places], torch.tensor([1]))
        head = self.model.next_sentence.linear.state_dict()
        expected = objective_named("mlm+nsp")(self.model, batch).loss
        return (self._logits(), self.labels, self.output.pooled[0], head, False), expected

    def learning_curve(self) -> Case:
        """Three steps of the optimizer that trains, on one matrix of a fresh model."""
        rate, decay = 0.01, 0.1
        model: Any = BertForPreTraining(BertConfig.named("1/64", vocab_size=50))
        optimizer = build_optimizer(model, weight_decay=decay)
        for group in optimizer.param_groups:
            group["lr"] = rate
        weights = model.backbone.pooler.weight
        before, gradients = weights.clone(), list(torch.randn(3, *weights.shape))
        for gradient in gradients:
            weights.grad = gradient
            optimizer.step()
        return (before, gradients, rate, decay), weights.detach()

    def head_sizes(self) -> Case:
        head = SequenceClassifier(self._with_labels(3)).eval()
        labelled = LabelledBatch(self.batch, torch.tensor([2]))
        expected = ClassificationObjective().measure(head(self.output.pooled), labelled).loss
        pooler = self.model.backbone.pooler.state_dict()
        w = {f"pooler.{name}": each for name, each in pooler.items()}
        w |= {f"classifier.{name}": each for name, each in head.linear.state_dict().items()}
        return (self.output.cls[0], w, 2), expected

    def tag_words(self) -> Case:
        head = TokenClassifier(self._with_labels(len(finetuning.TAGS))).eval()
        row = finetuning.tagged_pieces(self.study.tokenizer, finetuning.EXAMPLE)
        batch, labels = RaggedBatch.from_sequences([row.ids]), torch.tensor(row.labels)
        states = self.model.backbone(batch).hidden_states
        rows = head(states)[labels != finetuning.IGNORED]
        expected = TaggingObjective().measure(rows, LabelledBatch(batch, labels)).loss
        return (states, head.linear.state_dict(), labels), expected

    def answer_span(self) -> Case:
        head, states = QASpanHead(self.config), self.output.hidden_states
        scores, allowed = head(states[None]), torch.arange(self.length)[None] > 0
        best = best_spans(scores, allowed, count=1, max_tokens=self.length)[0, 0]
        return (states, head.linear.state_dict()), torch.cat([best, scores.start[0, :1] + scores.end[0, :1]])

    def choose_ending(self) -> Case:
        head = MultipleChoiceHead(self.config).eval()
        endings = [self.study.encode("the man reads the book", ending)[0] for ending in ("he sleeps", "he eats bread")]
        batch = RaggedBatch.from_sequences(endings)
        pooled = self.model.backbone(batch).pooled
        expected = ChoiceObjective().measure(head(pooled)[None], LabelledBatch(batch, torch.tensor([1]))).loss
        return (pooled, head.linear.state_dict(), 1), expected

    def schedule(self) -> Case:
        rates = [learning_rate_at(step, peak=1.0, warmup_steps=10, total_steps=100) for step in range(100)]
        return (torch.arange(100), 1.0, 10, 100), torch.tensor(rates)

    def gradient_check(self) -> Case:
        logits, labels = torch.randn(4, 7), torch.tensor([3, 0, 6, 3])
        with torch.enable_grad():
            leaf = logits.clone().requires_grad_()
            (expected,) = torch.autograd.grad(MaskedLMLoss()(leaf, labels).loss, leaf)
        return (logits, labels), expected

    def recovered_attention(self) -> Case:
        attention = MultiHeadSelfAttention(BertConfig.named("1/64"), bias=False).eval()
        x = torch.randn(self.length, 64)
        query, key, value = (each.T for each in attention.qkv.weight.chunk(3))
        expected = attention(x, self.batch).states
        return (x, query @ key.T, value @ attention.output.weight.T, attention.head_size), expected

    def distilbert_layers(self) -> Case:
        student, teacher = torch.randn(2, 5, 9)
        return (student, teacher, 2.0), ClassificationObjective().imitation(student, teacher)

    def albert_sharing(self) -> Case:
        config = albert.AlbertConfig.named("3/64", vocab_size=self.config.vocab_size, embedding_size=32)
        model = albert.AlbertModel(config).eval()
        batch = RaggedBatch.from_sequences([self.ids.tolist()])
        w = model.embedding.state_dict()

        def run_block(x: Tensor) -> Tensor:
            states: Tensor = model.encoder.block(x, batch).states
            return states

        return (self.ids, w, run_block, config.num_hidden_layers), model(batch).hidden_states

    def electra_replaced(self) -> Case:
        read = torch.where(torch.arange(self.length) % 4 == 2, self.ids + 1, self.ids)
        logits = torch.randn(self.length)
        return (logits, self.ids, read), ReplacedTokenLoss()(logits, self.ids != read).loss

    def modernbert_block(self) -> Case:
        block = modernbert.ModernBertBlock(modernbert.ModernBertConfig.named("2/64"), layer=1).eval()
        x = torch.randn(self.length, 64)

        def attend(states: Tensor) -> Tensor:
            mixed: Tensor = block.attention(states, self.batch).states
            return mixed

        return (x, block.state_dict(), attend), block(x, self.batch).states

    def rotary_shift(self) -> Case:
        x, base = torch.randn(self.length, 8), 10_000.0
        # 不求梯度时旋转就地改写：给它一份副本
        qkv = x[:, None, None].repeat(1, 3, 1, 1)
        return (x, base), rotated(qkv, self.batch, base)[:, 0, 0]

    def local_window(self) -> Case:
        far = FULL.within(2).hidden_by_place(self.length, torch.device("cpu"))
        return (*self.qkv, 2), self.block.attention.attend(*self.qkv[:, None], far)[0]

    def _logits(self) -> Tensor:
        """[S, V], the scores of every piece at every token."""
        logits: Tensor = self.model.masked_lm(self.output.hidden_states, self.embedding.word.weight)
        return logits

    def _with_labels(self, count: int) -> Any:
        return self.config.changed(id2label={number: str(number) for number in range(count)})


def _fates(mask_id: int, hidden: Tensor, labels: Tensor) -> Tensor:
    """Returns the shares of pieces that are chosen, and of these that became [MASK], or stayed."""
    chosen = labels != -100
    fates = (chosen, hidden[chosen] == mask_id, hidden[chosen] == labels[chosen])
    return torch.stack([each.float().mean() for each in fates])
