"""What the tasks over whole texts and pairs share: sequences, columns, inputs, and refusing a label nobody learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bertsmith.errors import InputError
from bertsmith.finetune.datasets.texts import LabelledText, MultiLabelledText, ScoredText
from bertsmith.finetune.tasks.spec import CardText, InputFields
from bertsmith.finetune.tasks.task import EncodedExample, Rows
from bertsmith.tokenizer import Tokenizer

AnyText = LabelledText | MultiLabelledText | ScoredText

TEXT_INPUTS = InputFields(("Text", "文本"), most=2, pairs=True)


def text_card(does: str, limit: str, *, arguments: str = "", call: str = "") -> CardText:
    """Returns what the card of a model over texts or pairs says.

    Args:
        does: as in `CardText`.
        limit: as in `CardText`.
        arguments: further ones of `transformers.pipeline`, with a comma before.
        call: further arguments of its call, with a comma before.
    """
    made = f'from transformers import pipeline\n\npipeline("text-classification", "FOLDER"{arguments})'
    return CardText(
        "text-classification",
        does,
        limit,
        ours=('(["first text", "second text"])', '(["first text"], ["what it is compared with"])'),
        theirs=(
            f'{made}("first text"{call})',
            f'{made}({{"text": "first text", "text_pair": "second text"}}{call})',
        ),
    )


def encode_texts(
    tokenizer: Tokenizer, examples: Sequence[AnyText], paired: bool, max_length: int, labels: Sequence[Any]
) -> list[EncodedExample]:
    """Returns one sequence `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]` for each example, with its label.

    Args:
        tokenizer: cuts the texts.
        examples: N texts or pairs.
        paired: whether they are pairs.
        max_length: most ids in a sequence, special tokens included; longer texts are cut.
        labels: N, as the task's `batch` understands them.

    Raises:
        InputError: as in `columns_of`.
    """
    encoded = tokenizer(*columns_of(examples, paired), max_length=max_length)
    return [
        EncodedExample([ids], [types], label)
        for ids, types, label in zip(encoded["input_ids"], encoded["token_type_ids"], labels, strict=True)
    ]


def columns_of(examples: Sequence[AnyText], paired: bool) -> tuple[list[str], list[str] | None]:
    """Returns all texts, and all second texts where there are any.

    Raises:
        InputError: some examples are pairs, others, or those the model was trained on, are not.
    """
    other = next((example for example in examples if (example.pair is not None) != paired), None)
    if other is not None:
        wanted, found = ("pairs of texts", "a single text") if paired else ("single texts", "a pair of texts")
        raise InputError(f"{other.at}{found}, and the model reads {wanted}; name the columns to read")
    return [example.text for example in examples], [example.pair or "" for example in examples] if paired else None


def columns_of_rows(rows: Rows) -> tuple[list[str], list[str] | None]:
    """Returns the first texts of inputs, and their second ones where they are pairs."""
    return [row[0] for row in rows], [row[1] for row in rows] if len(rows[0]) > 1 else None


def shown(example: AnyText) -> str:
    """Returns a text, or both texts of a pair, for a report."""
    return example.text if example.pair is None else f"{example.text} ⏐ {example.pair}"


def require_known(examples: Sequence[AnyText], labels: Sequence[Sequence[str]], known: Sequence[str]) -> None:
    """Makes sure that examples have no label that the training file lacks.

    Raises:
        InputError: one has; the message names its place.
    """
    for example, found in zip(examples, labels, strict=True):
        strange = [label for label in found if label not in known]
        if strange:
            raise InputError(
                f"{example.at}label {strange[0]!r} does not occur in the training file ({', '.join(known[:8])})"
            )
