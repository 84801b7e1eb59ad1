"""The pre-training objectives: the parts that a stream's batches ask for, added up (Devlin et al. 2019, appendix A.2).

    mlm+nsp    masked LM and next sentence: the paper
    mlm        masked LM alone (§5.1, "no NSP"; Liu et al. 2019)
    mlm+sop    masked LM and sentence order (Lan et al. 2020)
    ltr        left-to-right LM (§5.1, "LTR & no NSP")
    ltr+nsp    left-to-right LM and next sentence, read from the last token

With span masking the span boundary loss comes on top of masked LM.
"""

from __future__ import annotations

from torch import nn

from bertsmith.batch import CAUSAL, FULL
from bertsmith.data.stream.batches import PreTrainingBatch
from bertsmith.data.stream.stream import OBJECTIVES, StreamSettings
from bertsmith.errors import ConfigError
from bertsmith.model import BertForPreTraining, ModelConfig
from bertsmith.objectives.causal_lm import CausalLMLoss
from bertsmith.objectives.loss_output import LossOutput
from bertsmith.objectives.masked_lm import MaskedLMLoss
from bertsmith.objectives.next_sentence import NSPLoss
from bertsmith.objectives.sentence_order import SOPLoss
from bertsmith.objectives.span_boundary import SpanBoundaryLoss

PAIR_LOSSES: dict[str, type[NSPLoss] | type[SOPLoss]] = {"nsp": NSPLoss, "sop": SOPLoss}


class PreTrainingObjective:
    """Runs the model on a batch and adds up the losses.

    A batch that is a share of a larger one (of another rank's, or of several parts) is divided by the counts of the
    larger one: the losses of the shares, and their gradients, then add up to those of the whole.

    Attributes:
        pieces: the loss over pieces, masked or next.
        pairs: the loss over pairs of segments, or None.
        span_boundary: the extra loss of span masking, or None.
    """

    def __init__(self, objective: str = "mlm+nsp", *, span_boundary: bool = False) -> None:
        """Puts an objective together.

        Args:
            objective: one of `OBJECTIVES`.
            span_boundary: train the span boundary head too; the batches then need span masking.

        Raises:
            ConfigError: there is no such objective, or it masks nothing and has no spans.
        """
        language_model, pair = _parts(objective)
        self.causal = language_model == "ltr"
        if self.causal and span_boundary:
            raise ConfigError(f"{objective} hides no spans; the span boundary objective goes with mlm")
        self.pieces: MaskedLMLoss | CausalLMLoss = CausalLMLoss() if self.causal else MaskedLMLoss()
        self.pairs = PAIR_LOSSES[pair]() if pair else None
        self.span_boundary = SpanBoundaryLoss() if span_boundary else None

    def __call__(self, model: nn.Module, batch: PreTrainingBatch) -> LossOutput:
        """Returns the summed loss and the figures of all parts.

        Args:
            model: as `build_pretraining_model` makes it for this objective, wrapped or not.
            batch: of a stream with the same objective.
        """
        spans = batch.masked_spans if self.span_boundary is not None else None
        mask = CAUSAL if self.causal else FULL
        output = model(batch.tokens, batch.masked_positions, mask=mask, masked_spans=spans)
        # 除以全局批次的个数，而不是这一份的：各份的遮盖数不同，先各自平均再平均会偏重遮得少的那份
        measures: list[LossOutput] = [self.pieces(output.mlm_logits, batch.masked_labels, total=batch.global_masked)]
        if self.pairs is not None:
            assert output.nsp_logits is not None
            measures.append(self.pairs(output.nsp_logits, batch.next_sentence_labels, total=batch.global_labelled))
        if self.span_boundary is not None:
            assert output.sbo_logits is not None
            measures.append(self.span_boundary(output.sbo_logits, batch.masked_labels, total=batch.global_masked))
        # 各部分已是各自的平均，直接相加即论文的损失（附录 A.2），不另设权重
        loss = measures[0].loss
        for measure in measures[1:]:
            loss = loss + measure.loss
        return LossOutput(loss, {name: value for measure in measures for name, value in measure.sums.items()})


def build_objective(settings: StreamSettings) -> PreTrainingObjective:
    """Returns what the batches of a stream are to be trained on."""
    return PreTrainingObjective(settings.objective, span_boundary=settings.masking.kind == "span")


def has_pairs(objective: str) -> bool:
    """Tells whether an objective trains the pair head.

    Raises:
        ConfigError: there is no such objective.
    """
    return bool(_parts(objective)[1])


def build_pretraining_model(objective: str, config: ModelConfig, *, span_boundary: bool = False) -> BertForPreTraining:
    """Returns a fresh model for an objective.

    Args:
        objective: one of `OBJECTIVES`.
        config: the shape.
        span_boundary: add the head that span masking trains; `save_pretrained` leaves it out.

    Raises:
        ConfigError: there is no such objective.
    """
    model = BertForPreTraining(config, pair_head=has_pairs(objective))
    if span_boundary:
        model.add_span_boundary()
    return model


def _parts(objective: str) -> tuple[str, str]:
    if objective not in OBJECTIVES:
        raise ConfigError(f"objective {objective!r} is unknown; use one of {', '.join(OBJECTIVES)}")
    language_model, _, pair = objective.partition("+")
    return language_model, pair
