"""The task of ranking: a cross-encoder reads query and text together and says how relevant the text is.

It is the model of the paper's sentence pairs (Devlin et al. 2019, §4.1) with one output, whose sigmoid is trained
towards the relevance by binary cross-entropy (Nogueira and Cho 2019, §3). Scores are by query: what counts is where a
relevant text ends up among the texts of its own query. The folder is one of `sentence_transformers.CrossEncoder`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.errors import InputError
from bertsmith.files import write_json
from bertsmith.finetune.datasets.texts import RANKINGS, RankingExample
from bertsmith.finetune.metrics import bootstrap_interval
from bertsmith.finetune.metrics.ranking import ranking_scores
from bertsmith.finetune.tasks.task import (
    CardText,
    EncodedExample,
    Evaluation,
    InputFields,
    Mistake,
    NoOptions,
    Record,
    Rows,
    TaskSpec,
    WordsTask,
    worst,
)
from bertsmith.inference.classify import ACTIVATION_CLASSES, Activation, Rank
from bertsmith.inference.task_file import USAGE_FILE, read_told
from bertsmith.inference.words import RELEVANCE
from bertsmith.model import ModelConfig, ModelForSequenceClassification
from bertsmith.model.folder import read_architecture
from bertsmith.objectives import MultiLabelObjective
from bertsmith.tokenizer import Tokenizer

RELEVANT = 0.5
"""A text of at least this relevance counts as relevant; graded judgements count in full in the loss."""


@dataclass(frozen=True)
class _Query:
    """The numbers of a query's examples, their scores, how relevant they are, and which of them count as relevant."""

    numbers: NDArray[np.int64]
    scores: NDArray[np.float64]
    grades: NDArray[np.float64]
    relevant: NDArray[np.bool_]


@dataclass(frozen=True)
class RankingTask(WordsTask[RankingExample, float]):
    """The relevance of texts to queries.

    Attributes:
        prompt: what stands before every query; that of the ranker that is trained further.
        activation: what makes a score of the output: of that ranker, too; the loss is over the sigmoid all the same.
    """

    prompt: str = ""
    activation: Activation = "Sigmoid"

    spec: ClassVar = TaskSpec(
        "rank",
        ("ranking by relevance to a query", "按与查询的相关度排序"),
        ModelForSequenceClassification,
        RANKINGS,
        Rank,
        InputFields(("Query", "查询"), lines=("Texts to rank, one a line", "要排序的文本，每行一段"), least=2, most=2),
        CardText(
            "text-ranking",
            "scores how well a text fits a query",
            "Scores compare texts for one query; between queries they mean little.",
            ('("a query", ["first text", "second text"])',),
            (
                "from sentence_transformers import CrossEncoder\n\n"
                'CrossEncoder("FOLDER").predict([("a query", "first text")])',
            ),
        ),
    )
    metric: ClassVar[str] = "mrr"
    problem: ClassVar[str] = RELEVANCE
    # 一个输出，没有类型：CrossEncoder 就是这样存的
    labels = ("relevance",)
    # 一个输出的二元交叉熵就是只有一个标签的多标签损失，目标可以是 0 到 1 之间的数
    objective: ClassVar = MultiLabelObjective()
    obeys_folder: ClassVar[bool] = True

    @classmethod
    def learned_from(cls, train: Sequence[RankingExample], _options: NoOptions) -> RankingTask:
        """Returns the task; nothing is read off a training file."""
        if len({example.relevance for example in train}) < 2:
            raise InputError("the texts of the training file are all equally relevant; there is nothing to learn")
        return cls()

    def targets(self, examples: Sequence[RankingExample]) -> list[list[float]]:
        """Returns how relevant each text is."""
        for example in examples:
            if not 0.0 <= example.relevance <= 1.0:
                raise InputError(f"{example.text[:40]!r}: the relevance {example.relevance} is not in [0, 1]")
        # 没有一条相关文本的文件评不了分，要在训练之前就报
        _judged_queries(examples, [0.0] * len(examples))
        return [[example.relevance] for example in examples]

    def classes_of(self, example: RankingExample) -> tuple[str, ...]:
        """Returns whether its text is relevant: some are needed in every part."""
        return ("relevant",) if example.relevance >= RELEVANT else ()

    def columns(self, examples: Sequence[RankingExample]) -> tuple[list[str], list[str]]:
        """Returns queries and texts."""
        return [example.query for example in examples], [example.text for example in examples]

    def told(self, pipeline: Rank, outputs: Tensor, _examples: Sequence[RankingExample]) -> list[float]:
        """Returns the scores."""
        scores: list[float] = pipeline.told(outputs).tolist()
        return scores

    def shown(self, examples: Sequence[RankingExample]) -> list[tuple[str, str]]:
        """Returns each query with its text, and the relevance."""
        return [(f"{one.query} ⏐ {one.text}", f"{one.relevance:g}") for one in examples]

    def said(self, pipeline: Rank, outputs: Tensor) -> list[str]:
        """Returns the scores."""
        return [f"{score:.3f}" for score in pipeline.told(outputs)]

    def starting_from(self, folder: Path) -> RankingTask:
        """Returns the task with the prompt and the activation of a ranker."""
        # 句向量文件夹也有提示词，那不是给排序用的
        if not Rank.is_for(read_architecture(folder) or "", ModelConfig.load(folder)):
            return self
        says = Rank.settings_in(folder)
        return replace(self, prompt=says.prompt, activation=says.activation)

    def add_files(self, folder: Path, config: ModelConfig, max_length: int) -> None:  # noqa: ARG002
        """Says activation and prompt as `CrossEncoder` does, where they are not the usual ones."""
        path = folder / "config.json"
        # 适配器没有 config.json：它的设置只在 task.json 里
        if self.activation != "Sigmoid" and path.is_file():
            says = {"sentence_transformers": {"activation_fn": ACTIVATION_CLASSES[self.activation]}}
            write_json(path, read_told(path, dict) | says)
        if self.prompt:
            prompts = {"prompts": {"query": self.prompt}, "default_prompt_name": "query"}
            write_json(folder / USAGE_FILE, {"model_type": "CrossEncoder", **prompts})
            reads = {"text": {"method": "forward", "method_output_name": "logits"}}
            task = {"transformer_task": "sequence-classification", "module_output_name": "scores"}
            write_json(folder / "sentence_bert_config.json", {**task, "modality_config": reads})
            kind = "sentence_transformers.base.modules.transformer.Transformer"
            write_json(folder / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": kind}])

    def cautions(self, examples: Sequence[RankingExample]) -> list[str]:
        """Says besides where the order of a query's texts cannot be wrong."""
        judged = _judged_queries(examples, [0.0] * len(examples))
        easy = sum(bool(query.relevant.all()) for query in judged)
        said = f"{easy} of {len(judged)} queries have relevant texts only, and are right in any order"
        return [*super().cautions(examples), *([said] if easy else [])]

    def group_of(self, example: RankingExample) -> str:
        """Returns its query: it has several texts."""
        return example.query

    def encode(self, tokenizer: Tokenizer, examples: Sequence[RankingExample], max_length: int) -> list[EncodedExample]:
        """Returns one sequence `[CLS] query [SEP] text [SEP]` for each pair, the prompt before the query."""
        return super().encode(tokenizer, [replace(one, query=self.prompt + one.query) for one in examples], max_length)

    def example_from(self, record: Record) -> RankingExample:
        """Returns a query and a text with their relevance."""
        query, text = record["input"]
        return RankingExample(query, text, record["prediction"])

    def metrics(self, examples: Sequence[RankingExample], predictions: Sequence[float]) -> dict[str, float]:
        """Returns means over the queries that have a relevant text.

        `mrr` is 1 over the rank of the best relevant text, `accuracy_at_1` how often that is the first, and
        `average_precision` the mean, over the relevant texts, of the share of relevant ones down to there; `ndcg_at_10`
        also tells more relevant texts from less relevant ones, see `ranking_scores`.
        """
        columns = _by_query(_judged_queries(examples, predictions))
        return {name: float(column.mean()) for name, column in columns.items()}

    def evaluate(self, examples: Sequence[RankingExample], predictions: Sequence[float]) -> Evaluation:
        """Adds the intervals over queries, and the surest wrong texts on top of a query's list."""
        queries = _judged_queries(examples, predictions)
        columns, wrong = _by_query(queries), []
        for query in itertools.compress(queries, columns["mrr"] < 1.0):
            best, first = (_best(query, relevant) for relevant in (True, False))
            wrong.append(Mistake(examples[best].query, examples[best].text, examples[first].text, predictions[first]))
        return Evaluation(
            self.metrics(examples, predictions),
            intervals={name: bootstrap_interval(column) for name, column in columns.items()},
            mistakes=worst(wrong),
        )

    @classmethod
    def records(cls, pipeline: Rank, rows: Rows) -> Iterator[Record]:
        """Yields the relevance of each text to its query."""
        scores = pipeline.scores([query for query, _ in rows], [text for _, text in rows])
        for row, score in zip(rows, scores.tolist(), strict=True):
            yield {"prediction": score, "input": row}


def _judged_queries(examples: Sequence[RankingExample], predictions: Sequence[float]) -> list[_Query]:
    """Groups examples by query, in the order of the file; queries without a relevant text are left out."""
    numbers: dict[str, list[int]] = {}
    for number, example in enumerate(examples):
        numbers.setdefault(example.query, []).append(number)
    scores = np.asarray(predictions, dtype=np.float64)
    grades = np.array([example.relevance for example in examples])
    queries = [
        _Query(np.array(places), scores[places], grades[places], grades[places] >= RELEVANT)
        for places in numbers.values()
    ]
    # 没有相关文本的查询，怎么排都是 0 分：算进去只说明文件，不说明模型
    judged = [query for query in queries if query.relevant.any()]
    if not judged:
        raise InputError(
            f"{examples[0].at}no query has a text with a relevance of {RELEVANT} or more, here or below; a ranking"
            " cannot be scored without one"
        )
    return judged


def _by_query(queries: Sequence[_Query]) -> dict[str, NDArray[np.float64]]:
    found = ranking_scores((query.scores, query.relevant) for query in queries)
    first = (found["mrr"] == 1.0).astype(np.float64)
    ndcg = ranking_scores((query.scores, query.grades) for query in queries)["ndcg_at_10"]
    return {"mrr": found["mrr"], "accuracy_at_1": first, "average_precision": found["map"], "ndcg_at_10": ndcg}


def _best(query: _Query, relevant: bool) -> int:
    """Returns the number of the example with the highest score among the relevant ones, or among the others."""
    places = np.flatnonzero(query.relevant == relevant)
    return int(query.numbers[places[query.scores[places].argmax()]])
