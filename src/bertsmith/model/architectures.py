"""The whole models: one encoder, and the head of each task (Devlin et al. 2019, figures 1 and 4).

Each is a dozen lines: which states it reads, which head reads them. `ARCHITECTURES` finds the class for a folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.errors import CheckpointError, InputError
from bertsmith.model.bert import BertModel, BertOutput
from bertsmith.model.checkpoint import read_architecture, stored_rows
from bertsmith.model.config import BertConfig
from bertsmith.model.heads import (
    MaskedLMHead,
    MultipleChoiceHead,
    NextSentenceHead,
    QASpanHead,
    SequenceClassifier,
    SpanScores,
    TokenClassifier,
)
from bertsmith.model.pretrained import PretrainedBert, initialize_weights


@dataclass(frozen=True)
class PreTrainingOutput:
    """What `BertForPreTraining` returns: `mlm_logits` [M, V], `nsp_logits` [N, 2], `bert`.

    Class 0 is "is next" (or, for sentence order, "in order").
    """

    mlm_logits: Tensor
    nsp_logits: Tensor
    bert: BertOutput


class BertForPreTraining(PretrainedBert):
    """BERT with its two pre-training heads: masked LM and next sentence (§3.1)."""

    architecture = "BertForPreTraining"
    heads = ("masked_lm", "next_sentence")

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = BertModel(config)
        self.masked_lm = MaskedLMHead(config)
        self.next_sentence = NextSentenceHead(config)
        initialize_weights(self.masked_lm, config.initializer_range)
        initialize_weights(self.next_sentence, config.initializer_range)

    def forward(self, batch: RaggedBatch, masked_positions: Tensor, *, causal: bool = False) -> PreTrainingOutput:
        """Predicts the masked pieces and whether B follows A.

        Args:
            batch: N sequences `[CLS] A [SEP] B [SEP]`.
            masked_positions: [M] int64 indices into the T tokens.
            causal: as in `BertModel`, for left-to-right LM.

        Returns:
            Logits, see `PreTrainingOutput`.
        """
        output = self.bert(batch, causal=causal)
        # 只取被遮盖的位置再做词表投影：其余 85% 的 logits 没有人看
        masked_states = output.hidden_states.index_select(0, masked_positions)
        mlm_logits = self.masked_lm(masked_states, self.bert.embedding.word.weight)
        return PreTrainingOutput(mlm_logits, self.next_sentence(output.pooled), output)


class BertForMaskedLM(PretrainedBert):
    """BERT with the masked-LM head alone: the ablation "no NSP" (§5.1), and the usual folder for filling masks."""

    architecture = "BertForMaskedLM"
    heads = ("masked_lm",)

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = BertModel(config, need_pooler=False)
        self.masked_lm = MaskedLMHead(config)
        initialize_weights(self.masked_lm, config.initializer_range)

    def forward(self, batch: RaggedBatch, masked_positions: Tensor, *, causal: bool = False) -> Tensor:
        """Returns logits [M, V] of the pieces at `masked_positions` [M], indices into the T tokens.

        With `causal` the tokens read those before them only, as in `BertModel`.
        """
        masked_states = self.bert(batch, causal=causal).hidden_states.index_select(0, masked_positions)
        logits: Tensor = self.masked_lm(masked_states, self.bert.embedding.word.weight)
        return logits


class BertForNextSentencePrediction(PretrainedBert):
    """BERT with the next-sentence head alone (§3.1)."""

    architecture = "BertForNextSentencePrediction"
    heads = ("next_sentence",)

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = BertModel(config)
        self.next_sentence = NextSentenceHead(config)
        initialize_weights(self.next_sentence, config.initializer_range)

    def forward(self, batch: RaggedBatch) -> Tensor:
        """Returns logits [N, 2] for N sequences `[CLS] A [SEP] B [SEP]`; class 0 is "is next"."""
        logits: Tensor = self.next_sentence(self.bert(batch).pooled)
        return logits


class LabelledBert(PretrainedBert):
    """A model whose head has one output for each of the labels in `config.id2label`."""

    heads = ("classifier",)

    @classmethod
    def complete_config(cls, config: BertConfig, folder: str | Path, fresh: tuple[str, ...]) -> BertConfig:
        """Names the labels of a folder that holds a head but no names: `LABEL_0`, `LABEL_1` …, as its writer does."""
        if config.id2label or fresh:
            return config
        rows = stored_rows(folder, "classifier.weight")
        if rows is None:
            raise CheckpointError(
                f"{folder}: holds no classifier; fine-tune one, or start one with new_heads=True and id2label"
            )
        return config.changed(id2label={index: f"LABEL_{index}" for index in range(rows)})


class BertForSequenceClassification(LabelledBert):
    """One linear layer over the pooled `[CLS]`, for texts and pairs of texts (§4.1).

    The outputs are classes, labels that do not exclude one another, or a number: see `config.problem_type`.
    """

    architecture = "BertForSequenceClassification"

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = BertModel(config)
        self.classifier = SequenceClassifier(config, num_labels=_num_labels(config))
        initialize_weights(self.classifier, config.initializer_range)

    def forward(self, batch: RaggedBatch) -> Tensor:
        """Returns logits [N, num_labels]."""
        logits: Tensor = self.classifier(self.bert(batch).pooled)
        return logits


class BertForTokenClassification(LabelledBert):
    """One linear layer over every token's state, for tagging (§5.3)."""

    architecture = "BertForTokenClassification"

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = BertModel(config, need_pooler=False)
        self.classifier = TokenClassifier(config, num_labels=_num_labels(config))
        initialize_weights(self.classifier, config.initializer_range)

    def forward(self, batch: RaggedBatch) -> Tensor:
        """Returns logits [T, num_labels]."""
        logits: Tensor = self.classifier(self.bert(batch).hidden_states)
        return logits


class BertForQuestionAnswering(PretrainedBert):
    """A start and an end vector, for spans that answer a question (§4.2, §4.3)."""

    architecture = "BertForQuestionAnswering"
    heads = ("spans",)

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = BertModel(config, need_pooler=False)
        self.spans = QASpanHead(config)
        initialize_weights(self.spans, config.initializer_range)

    def forward(self, batch: RaggedBatch) -> SpanScores:
        """Returns the start and end scores of every token; read answers from them with `best_spans`."""
        scores: SpanScores = self.spans(self.bert(batch).hidden_states)
        return scores


class BertForMultipleChoice(PretrainedBert):
    """One vector over the pooled `[CLS]` scores each choice (§4.4)."""

    architecture = "BertForMultipleChoice"
    heads = ("classifier",)

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = BertModel(config)
        self.classifier = MultipleChoiceHead(config)
        initialize_weights(self.classifier, config.initializer_range)

    def forward(self, batch: RaggedBatch, num_choices: int) -> Tensor:
        """Scores the choices of every question.

        Args:
            batch: `num_choices` sequences for each question, one question after the other.
            num_choices: choices per question, at least 1.

        Returns:
            [N / num_choices, num_choices] logits; their softmax is over the choices of a question.

        Raises:
            InputError: the sequences do not divide into questions.
        """
        if num_choices < 1 or batch.num_sequences % num_choices:
            raise InputError(f"{batch.num_sequences} sequences do not divide into questions of {num_choices} choices")
        scores: Tensor = self.classifier(self.bert(batch).pooled)
        return scores.view(-1, num_choices)


ARCHITECTURES: dict[str, type[PretrainedBert]] = {
    model.architecture: model
    for model in (
        BertModel,
        BertForPreTraining,
        BertForMaskedLM,
        BertForNextSentencePrediction,
        BertForSequenceClassification,
        BertForTokenClassification,
        BertForQuestionAnswering,
        BertForMultipleChoice,
    )
}
"""Every architecture by the name that `config.json` has for it."""


def load_any(folder: str | Path) -> PretrainedBert:
    """Loads a folder as the architecture that its `config.json` names.

    Args:
        folder: a model folder.

    Raises:
        CheckpointError: it names none, or one that is not among `ARCHITECTURES`; or see `from_pretrained`.
    """
    name = read_architecture(folder)
    if name not in ARCHITECTURES:
        raise CheckpointError(
            f"{folder}/config.json: architecture {name!r} is none of {', '.join(ARCHITECTURES)}; load the folder with"
            " the class you want"
        )
    return ARCHITECTURES[name].from_pretrained(folder)


def _num_labels(config: BertConfig) -> int:
    if not config.id2label:
        raise InputError("a classifier needs the names of its labels; give id2label")
    return len(config.id2label)
