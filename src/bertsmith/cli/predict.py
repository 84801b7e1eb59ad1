"""`bertsmith fill-mask`, `generate`, `predict`, `embed`, `similarity` and `next-sentence`: using a model."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertsmith.cli.corpus import EngineOption
from bertsmith.cli.options import Given, declares

if TYPE_CHECKING:
    from bertsmith.inference.embed_files import EmbedSettings


class PrecisionOption(str, Enum):
    """The precision of the matmuls."""

    float32 = "float32"
    bf16 = "bf16"
    int8 = "int8"
    auto = "auto"


ModelOption = Annotated[Path, typer.Option(help="Model folder, or org/name of the Hub.")]
Precision = Annotated[
    PrecisionOption | None,
    typer.Option(help="auto measures and takes the fastest that is faithful; default: bf16 where native."),
]


def fill_mask(
    text: Annotated[str, typer.Argument(help="A text with one or more [MASK].")],
    model: ModelOption,
    top_k: Annotated[int, typer.Option(min=1, help="Candidates for each mask.")] = 5,
    candidate: Annotated[
        list[str] | None, typer.Option(help="Consider these words alone; once for each, every one a single piece.")
    ] = None,
    precision: Precision = None,
) -> None:
    """Fill the masks in a text."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from bertsmith.inference import load_pipeline

    require_readable(text, *(candidate or []))
    pipeline = load_pipeline("fill-mask", model, precision=precision.value if precision else None)
    for number, candidates in enumerate(pipeline(text, top_k=top_k, candidates=candidate or None), 1):
        table = Table(title=f"mask {number}", title_justify="left")
        table.add_column("piece")
        table.add_column("probability", justify="right")
        for found in candidates:
            # 词片里的方括号（[unused1]、[E1]）不是排版标记
            table.add_row(Text(found.piece), f"{found.probability:.1%}")
        Console().print(table)


def generate(
    text: Annotated[str, typer.Argument(help="The beginning; may be empty.")],
    model: ModelOption,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most pieces to write.")] = 40,
    top_p: Annotated[
        float | None,
        typer.Option(help="Draw among the likeliest pieces with this probability together; else the first."),
    ] = None,
    temperature: Annotated[float, typer.Option(help="Over 1 draws more freely, below 1 less.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    precision: Precision = None,
) -> None:
    """Continue a text with a model that reads from left to right (pretrain --objective ltr)."""
    from bertsmith.inference import load_pipeline

    require_readable(text)
    pipeline = load_pipeline("generate", model, precision=precision.value if precision else None)
    how = {"max_new_tokens": max_new_tokens, "top_p": top_p, "temperature": temperature, "seed": seed}
    print(f"{text} {pipeline(text, **how).text}".strip())


def predict(
    texts: Annotated[list[str] | None, typer.Argument(help="Inputs; the fields of one with tabs between.")] = None,
    *,
    model: ModelOption,
    adapter: Annotated[Path | None, typer.Option(help="Folder of an adapter over that model.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="Text file: one input a line; or .jsonl: a text or a list of fields.")
    ] = None,
    encoding: Annotated[str, typer.Option(help="Of the file: auto, or a codec such as gb18030.")] = "auto",
    pairs: Annotated[
        bool | None, typer.Option("--pairs/--single", help="Two texts in a line, or one; default: as the model says.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write instead of printing: .jsonl with all details, otherwise TSV.")
    ] = None,
    precision: Precision = None,
) -> None:
    """Predict with a fine-tuned model; prints the prediction, its probability and the input.

    A line is a text or two (classify, multilabel, regress), a text (tag), a question and its passage (answer), a
    context and its choices (choose), a query and a text (rank), with tabs between. A blank line stays one.
    """
    import json
    from itertools import chain

    from bertsmith.data.reading.lines import require_file
    from bertsmith.errors import InputError
    from bertsmith.files import atomic_path, require_other_file
    from bertsmith.finetune.predict import Predictor, as_line

    require_readable(*(texts or []))
    if file is not None:
        # 载入模型之前先看文件在不在：大模型要载好几秒
        require_file(file)
        if out is not None:
            require_other_file(out, file)
    predictor = Predictor.load(model, adapter=adapter, pairs=pairs, precision=precision.value if precision else None)
    from_file = iter(()) if file is None else predictor.predict_file(file, encoding)
    records = chain(predictor.predict_lines(texts or []), from_file)
    # 先算出第一条再打开输出文件：输入有错时不会留下空文件
    first = next(records, None)
    if first is None:
        raise InputError("nothing to predict; give texts, or --file with one input a line")
    if out is None:
        for record in chain([first], records):
            print(as_line(record))
        return
    count = 0
    with atomic_path(out) as temporary, temporary.open("w", encoding="utf-8") as handle:
        for record in chain([first], records):
            line = json.dumps(record, ensure_ascii=False) if out.suffix == ".jsonl" else as_line(record)
            handle.write(line + "\n")
            count += record["prediction"] is not None
    print(f"{count} predictions in {out}")


@declares(settings="bertsmith.inference.embed_files.EmbedSettings")
def embed(
    files: Annotated[list[Path], typer.Argument(help="Text files: one text a line; plain, gzip or zstd.")],
    model: ModelOption,
    out: Annotated[
        Path, typer.Option(help=".npy or .parquet: a row for every line; the same command goes on where it stopped.")
    ],
    *,
    normalize: Annotated[bool, typer.Option("--normalize/--raw", help="Scale every vector to length 1.")] = True,
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the files; each takes one at a time.")] = 1,
    engine: Annotated[
        EngineOption, typer.Option(help="Processes here, or a Ray cluster (RAY_ADDRESS).")
    ] = EngineOption.local,
    settings: Given[EmbedSettings],
) -> None:
    """Turn every line of files into a vector; a blank line gives a row of zeros."""
    from rich.console import Console

    from bertsmith.inference.embed_files import embed_files
    from bertsmith.progress import LiveProgress

    chosen = replace(settings.build(), normalize=normalize)
    with LiveProgress(Console(stderr=True)) as progress:

        def show(done: int, total: int) -> None:
            rate = progress.rate("embedding", done)
            figures = f"{done:,} of {total:,} lines" + (f", {rate:,.0f} lines/s" if rate else "")
            progress.update("embedding", done, total, figures)

        found = embed_files(files, model, out, chosen, engine=engine.value, workers=workers, on_progress=show)
    blank = f" ({found.blank:,} blank lines are zeros)" if found.blank else ""
    print(f"{found.rows} vectors of {found.width} numbers in {out}, computed in {found.precision}{blank}")


def similarity(
    text: Annotated[str, typer.Argument(help="A text.")],
    others: Annotated[list[str], typer.Argument(help="What it is compared with.")],
    model: ModelOption,
    precision: Precision = None,
) -> None:
    """Compare a text with others; prints the cosine similarity of each, the most alike first."""
    from bertsmith.inference import load_pipeline

    require_readable(text, *others)
    pipeline = load_pipeline("similarity", model, precision=precision.value if precision else None)
    scores = pipeline([text], others)[0].tolist()
    for place in sorted(range(len(others)), key=lambda place: -scores[place]):
        print(f"{scores[place]:.4f}\t{others[place]}")


def next_sentence(
    text: Annotated[str, typer.Argument(help="Text A.")],
    next_text: Annotated[str, typer.Argument(help="Text B.")],
    model: ModelOption,
    precision: Precision = None,
) -> None:
    """Tell how likely text B follows text A, by the head of pre-training."""
    from bertsmith.inference import load_pipeline

    require_readable(text, next_text)
    pipeline = load_pipeline("next-sentence", model, precision=precision.value if precision else None)
    print(f"{float(pipeline([text], [next_text])[0]):.4f}")


def require_readable(*texts: str) -> None:
    """Refuses arguments that are in another encoding than the command line's.

    Raises:
        InputError: a text holds bytes that are no characters.
    """
    import sys

    from bertsmith.errors import InputError

    for text in texts:
        # 解不开的字节在参数里成了孤立代理：分词与写文件都认不得，趁载入模型之前就说明
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            encoding = sys.getfilesystemencoding()
            raise InputError(f"{text[:60]!r} holds bytes that are not {encoding}; convert the text to {encoding}")
