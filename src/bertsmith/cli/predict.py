"""`bertsmith fill-mask`, `generate`, `predict` and `embed`: using a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bertsmith.cli.options import declares
from bertsmith.cli.standard_input import (
    MOST_AT_ONCE,
    PIPE,
    JsonOption,
    batches,
    is_piped,
    print_json,
    require_readable,
    texts,
)

if TYPE_CHECKING:
    from bertsmith.inference.embed_files import EmbedSettings


ModelOption = Annotated[Path, typer.Option(help="Model folder, or org/name of the Hub.")]
Precision = Annotated[
    Literal["float32", "bf16", "int8", "auto"] | None,
    typer.Option(help="auto: measure, take the fastest accurate one; default: bf16 where native."),
]

EngineKind = Literal["torch", "onnxruntime", "openvino", "auto"]
ENGINE_HELP = "What computes on a CPU: torch, openvino, onnxruntime, or auto: the fastest, measured once."


def fill_mask(
    text: Annotated[
        str | None, typer.Argument(help="Text with one or more [MASK]; - reads lines of standard input.")
    ] = None,
    *,
    model: ModelOption,
    top_k: Annotated[int, typer.Option(min=1, help="Candidates for each mask.")] = 5,
    candidate: Annotated[
        list[str] | None, typer.Option(help="Rank only these words, each a single piece; may be repeated.")
    ] = None,
    precision: Precision = None,
    as_json: JsonOption = False,
) -> None:
    """Fill the masks in a text."""
    from dataclasses import asdict

    from bertsmith.inference import load_pipeline

    require_readable(*(candidate or []))
    given = texts(text)
    pipeline = load_pipeline("fill-mask", model, precision=precision)
    for one in given:
        masks = pipeline(one.text, top_k=top_k, candidates=candidate or None)
        if as_json:
            print_json({"text": one.text, "masks": [[asdict(found) for found in mask] for mask in masks]})
            continue
        if text is None or text == PIPE:
            print(one.text)
        _print_masks(masks)


def _print_masks(masks: list[list[Any]]) -> None:
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    for number, candidates in enumerate(masks, 1):
        table = Table("piece", Column("probability", justify="right"), title=f"mask {number}", title_justify="left")
        for found in candidates:
            # 词片里的方括号（[unused1]、[E1]）不是排版标记
            table.add_row(Text(found.piece), f"{found.probability:.1%}")
        Console().print(table)


def generate(
    text: Annotated[
        str | None, typer.Argument(help="Beginning of the text, may be empty; - reads lines of standard input.")
    ] = None,
    *,
    model: ModelOption,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of pieces to generate.")] = 40,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the likeliest pieces that sum to this; default: greedy.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="Sampling temperature: above 1 more random, below 1 less.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Random seed of the sampling.")] = 0,
    precision: Precision = None,
    as_json: JsonOption = False,
) -> None:
    """Continue a text with a model that reads from left to right (pretrain --objective ltr)."""
    from bertsmith.inference import load_pipeline

    given = texts(text)
    pipeline = load_pipeline("generate", model, precision=precision)
    how = {"max_new_tokens": max_new_tokens, "top_p": top_p, "temperature": temperature, "seed": seed}
    for one in given:
        found = pipeline(one.text, **how)
        if as_json:
            print_json({"text": one.text, "generated": found.text, "is_complete": found.is_complete})
        else:
            print(f"{one.text} {found.text}".strip(), flush=True)


@declares("bertsmith.finetune.datasets.InputOptions")
def predict(
    given: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXTS]...", help="Inputs, fields separated by tabs; - reads lines of standard input."),
    ] = None,
    *,
    model: ModelOption,
    adapter: Annotated[Path | None, typer.Option(help="Adapter folder to load on top of the model.")] = None,
    file: Annotated[
        str | None, typer.Option("--file", help="File or URL: a table as in fine-tuning, or text with an input a line.")
    ] = None,
    pairs: Annotated[
        bool | None,
        typer.Option("--pairs/--single", help="Two texts in a line, or one; default: as the model was trained."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write instead of printing: .jsonl with all details, otherwise TSV.")
    ] = None,
    calibrated: Annotated[
        bool, typer.Option("--calibrated", help="classify, multilabel: apply the temperature fitted on dev.")
    ] = False,
    class_thresholds: Annotated[
        bool, typer.Option("--class-thresholds", help="multilabel, two classes: use the thresholds fitted on dev.")
    ] = False,
    constrained: Annotated[
        bool, typer.Option("--constrained", help="tag: decode a sentence's tags jointly, so that they are valid BIO.")
    ] = False,
    only: Annotated[
        Literal["words", "encoder"] | None, typer.Option(help="One part of a folder of `bertsmith solve`.")
    ] = None,
    precision: Precision = None,
    engine: Annotated[EngineKind, typer.Option(help=ENGINE_HELP)] = "torch",
    next_sentence: Annotated[
        bool, typer.Option("--next-sentence", help="Probability that text B follows A, by the head of pre-training.")
    ] = False,
    as_json: JsonOption = False,
    **settings: Any,
) -> None:
    """Predict with a fine-tuned model; prints the prediction, its probability and the input.

    A line is a text or two (classify, multilabel, regress), a text (tag), a question and its passage (answer), a
    context and its choices (choose), a query and a text (rank), with tabs between. A blank line stays blank.
    The columns of a table are found as in fine-tuning; those that are not needed come back in the output.
    """
    import json
    import sys
    from functools import partial

    from bertsmith.data.reading.lines import require_file
    from bertsmith.data.reading.sources import is_url
    from bertsmith.errors import ConfigError, InputError
    from bertsmith.files import atomic_path, require_other_file
    from bertsmith.finetune.datasets import ReadingOptions
    from bertsmith.finetune.predict import Predictor, as_line
    from bertsmith.settings import built

    require_readable(*(given or []))
    if next_sentence:
        others = (settings, adapter, file, pairs is not None, out, only, calibrated, class_thresholds, constrained)
        if any(others) or engine != "torch":
            raise ConfigError("--next-sentence takes texts, --model, --precision and --json, and nothing else")
        _print_next_sentences(given or [], model, precision, as_json=as_json)
        return
    if as_json and out is not None:
        raise ConfigError("--json prints; for a file give it a name that ends in .jsonl with --out")
    options = built(ReadingOptions, settings)
    if file is not None and not is_url(file):
        # 载入模型之前先看文件在不在：大模型要载好几秒
        require_file(Path(file))
        if out is not None:
            require_other_file(out, Path(file))
    inputs = batches(given or [], options.encoding) if given or (file is None and is_piped()) else iter(())
    predictor = Predictor.load(
        model,
        adapter=adapter,
        pairs=pairs,
        precision=precision,
        engine=engine,
        calibrated=calibrated,
        class_thresholds=class_thresholds,
        constrained=constrained,
        only=only,
    )
    # 答案在标准输出：说明走标准错误，管道里只有答案
    note = partial(print, file=sys.stderr)
    from_file = iter(()) if file is None else predictor.predict_file(file, options, on_note=note)
    records = chain(chain.from_iterable(map(predictor.predict_placed, inputs)), from_file)
    # 先算出第一条再打开输出文件：输入有错时不会留下空文件
    first = next(records, None)
    if first is None:
        raise InputError("nothing to predict; give texts, - for standard input, or --file with one input a line")
    in_json = as_json or (out is not None and out.suffix == ".jsonl")
    written = partial(json.dumps, ensure_ascii=False, default=str) if in_json else as_line
    count = faults = 0
    with ExitStack() as stack:
        handle = None
        if out is not None:
            handle = stack.enter_context(stack.enter_context(atomic_path(out)).open("w", encoding="utf-8"))
        for record in chain([first], records):
            print(written(record), file=handle, flush=out is None)
            count += record["prediction"] is not None
            faults += "fault" in record
    if out is not None:
        print(f"{count} predictions in {out}")
    if faults:
        raise InputError(f"{faults} input(s) could not be predicted; each says why in its place")


@declares("bertsmith.inference.embed_files.EmbedSettings")
def embed(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Text files (plain, .gz, .zst), a text per line; with --json also -.")
    ] = None,
    *,
    model: ModelOption,
    out: Annotated[
        Path | None, typer.Option(help=".npy or .parquet, a row per line; the same command resumes after a stop.")
    ] = None,
    normalize: Annotated[bool, typer.Option("--normalize/--raw", help="Scale every vector to length 1.")] = True,
    workers: Annotated[int, typer.Option(min=1, help="Processes; each takes one file at a time.")] = 1,
    engine: Annotated[
        Literal["torch", "onnxruntime", "openvino", "auto", "ray"],
        typer.Option(help=ENGINE_HELP + " ray: torch, on a Ray cluster (RAY_ADDRESS)."),
    ] = "torch",
    compare: Annotated[
        list[str] | None,
        typer.Option(help="Instead of --out: a text; print how alike it is to every line, and to a second --compare."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Instead of --out: print a JSON line with text and vector for each text.")
    ] = False,
    **settings: Any,
) -> None:
    """Turn every line of files into a vector, a blank line into zeros; or compare texts by their vectors."""
    from rich.console import Console

    from bertsmith.errors import ConfigError
    from bertsmith.inference.embed_files import EmbedSettings, embed_files
    from bertsmith.reporting.progress import LiveProgress
    from bertsmith.settings import built

    kind: EngineKind = "torch" if engine == "ray" else engine
    chosen = replace(built(EmbedSettings, settings), normalize=normalize, engine=kind)
    if compare:
        require_readable(*compare)
        others = settings.keys() - {"pooling", "precision", "encoding"}
        if out is not None or workers != 1 or engine == "ray" or not normalize or others:
            raise ConfigError(
                "--compare prints: of the options leave --pooling, --precision, --engine, --encoding and --json"
            )
        _print_similarities(compare, files or [], model, chosen, as_json=as_json)
        return
    if as_json:
        if out is not None or workers != 1 or engine == "ray":
            raise ConfigError("--json prints, in this process: leave --out, --workers and --engine ray out")
        _print_vectors(files or [], model, chosen)
        return
    if out is None:
        raise ConfigError("say with --out where the vectors go, or print them with --json")
    if not files or Path(PIPE) in files:
        raise ConfigError("name text files; standard input goes with --json, since a file must be readable again")
    with LiveProgress(Console(stderr=True)) as progress:
        show = progress.counter("embedding", "lines")
        where: Literal["local", "ray"] = "ray" if engine == "ray" else "local"
        told: dict[str, Any] = {"on_progress": show, "on_note": progress.note}
        found = embed_files(files, model, out, chosen, engine=where, workers=workers, **told)
    blank = f" ({found.blank:,} blank lines are zeros)" if found.blank else ""
    print(f"{found.rows} vectors of {found.width} numbers in {out}, computed in {found.precision}{blank}")


def _lines_of(files: Sequence[Path], encoding: str) -> Iterator[list[str]]:
    """Yields the lines of files, some at a time; standard input where `-` stands, or where there is no file."""
    import sys

    from bertsmith.data.reading.lines import numbered_lines, require_file
    from bertsmith.data.reading.opening import opening_lines
    from bertsmith.data.reading.sources import check_encoding
    from bertsmith.data.reading.text import require_plain_text

    require_plain_text(files, "a line each")
    check_encoding(encoding)
    if named := [file for file in files if file != Path(PIPE)]:
        for file in named:
            require_file(file)
        # 答案在标准输出：说明走标准错误
        print(*opening_lines(named, named, encoding), sep="\n", file=sys.stderr)
    for file in files or [Path(PIPE)]:
        if file == Path(PIPE):
            yield from ([one.text for one in batch] for batch in batches([PIPE] if files else [], encoding))
            continue
        lines = (line for _, line in numbered_lines(file, encoding))
        while part := list(islice(lines, MOST_AT_ONCE)):
            yield part


def _print_vectors(files: Sequence[Path], model: Path, chosen: EmbedSettings) -> None:
    from bertsmith.inference import load_pipeline

    pipeline = load_pipeline(
        "embed", model, precision=chosen.precision, batch_tokens=chosen.batch_tokens, engine=chosen.engine
    )
    how = {"pooling": chosen.pooling, "normalize": chosen.normalize, "dims": chosen.dims, "prompt": chosen.prompt}
    for given in _lines_of(files, chosen.encoding):
        filled = iter(pipeline([text for text in given if text.strip()], **how).tolist())
        for text in given:
            # 空行也占一行，没有向量：第几行就是输入的第几行
            print_json({"text": text, "vector": next(filled) if text.strip() else None})


def _print_similarities(
    compared: Sequence[str], files: Sequence[Path], model: Path, chosen: EmbedSettings, *, as_json: bool
) -> None:
    """Prints how alike the first text is to the others, the most alike first, and to lines of files as they come."""
    from bertsmith.inference import load_pipeline

    text, *others = compared
    pipeline = load_pipeline("embed", model, precision=chosen.precision, engine=chosen.engine)
    lines = _lines_of(files, chosen.encoding) if files or not others else iter(())
    for given, is_typed in chain([(others, True)], ((part, False) for part in lines)):
        texts = [one for one in given if one.strip()]
        scores = pipeline.compare([text], texts, pooling=chosen.pooling)[0].tolist() if texts else []
        rows = list(zip(scores, texts, strict=True))
        # 管道与文件里的各行照来的次序；命令行上写的按相似排
        for score, other in sorted(rows, key=lambda row: -row[0]) if is_typed else rows:
            if as_json:
                print_json({"text": text, "other": other, "similarity": score})
            else:
                print(f"{score:.4f}\t{other}", flush=True)


def _print_next_sentences(given: Sequence[str], model: Path, precision: Precision, *, as_json: bool) -> None:
    from bertsmith.errors import InputError
    from bertsmith.inference import load_pipeline

    inputs = batches(given)
    pipeline = load_pipeline("next-sentence", model, precision=precision)
    for lines in inputs:
        pairs = [one.text.partition("\t") for one in lines]
        for one, (_, tab, _) in zip(lines, pairs, strict=True):
            if one.text.strip() and not tab:
                raise InputError(f"{one.place} has no tab between text A and text B")
        found = pipeline([first for first, _, _ in pairs], [second for _, _, second in pairs]).tolist()
        for one, (first, _, second), value in zip(lines, pairs, found, strict=True):
            # 空行也占一行，没有概率：第几行就是输入的第几行
            probability = value if one.text.strip() else None
            if as_json:
                print_json({"text": first, "next_text": second, "probability": probability})
            else:
                print("" if probability is None else f"{probability:.4f}", flush=True)
