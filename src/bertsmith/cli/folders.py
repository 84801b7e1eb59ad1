"""`bertsmith models`, `import`, `export`, `push` and `docs`: models of others and for others; documentation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer


def import_model(
    source: Annotated[
        Path, typer.Argument(help="Folder with bert_model.ckpt.* and vocab.txt, or with pytorch_model.bin.")
    ],
    out: Annotated[Path, typer.Option(help="Model folder; empty or not there yet.")],
    lowercase: Annotated[
        bool | None,
        typer.Option(
            "--lowercase/--no-lowercase", help="Lower-case the text; default: by its files, folder name or vocabulary."
        ),
    ] = None,
) -> None:
    """Turn a TensorFlow checkpoint or pickled PyTorch weights into a model folder."""
    from bertsmith.interop import import_checkpoint

    found = import_checkpoint(source, out, lowercase=lowercase)
    config = found.config
    shape = f"{config.num_hidden_layers} layers of {config.hidden_size}, {config.vocab_size:,} pieces"
    print(f"{found.kind}: {found.architecture}, {shape}, {found.num_tensors} tensors in {out}")
    if found.lowercase is None:
        print(f"no tokenizer written: {found.lowercase_reason}")
    else:
        print(f"the tokenizer {'lower-cases' if found.lowercase else 'keeps capitals'}: {found.lowercase_reason}")


export = typer.Typer(help="Write a model or an index for other tools.", no_args_is_help=True)

ModelArgument = Annotated[Path, typer.Argument(help="Model folder, or org/name of the Hub.")]


@export.command("onnx")
def export_to_onnx(
    model: ModelArgument,
    out: Annotated[Path, typer.Option(help="NAME.onnx writes that file alone; any other name a new or empty folder.")],
) -> None:
    """Write a model as ONNX, and check that ONNX Runtime computes the same."""
    from bertsmith.interop.onnx import export_onnx

    difference = export_onnx(model, out)
    names = ", ".join(sorted(path.name for path in out.iterdir())) if out.is_dir() else out.name
    print(f"{out}: {names}")
    print(f"ONNX Runtime gives the model's own outputs; largest difference {difference:.1e}")


@export.command("huggingface")
def export_to_huggingface(
    model: ModelArgument, out: Annotated[Path, typer.Option(help="Folder to write; empty or not there yet.")]
) -> None:
    """Check that a model folder loads in full, and write a clean copy for transformers."""
    from bertsmith.interop.huggingface import export_huggingface

    left_aside = export_huggingface(model, out)
    print(f"{out}: {', '.join(sorted(path.name for path in out.iterdir()))}")
    if left_aside:
        print(f"left aside, being no part of the architecture that config.json names: {', '.join(left_aside)}")


@export.command("passages")
def export_index(
    index: Annotated[Path, typer.Argument(help="Folder of an index.")],
    out: Annotated[Path, typer.Option(help="Parquet file to write.")],
) -> None:
    """Write an index's passages and vectors as Parquet, for LanceDB, Qdrant, pgvector or FAISS."""
    from bertsmith.retrieval.stored import export_passages

    print(f"{out}: {export_passages(index, out):,} passages")


def push(
    folder: Annotated[Path, typer.Argument(help="Model folder.")],
    repository: Annotated[str, typer.Argument(metavar="ORG/NAME", help="Repository on the Hub; created if missing.")],
    private: Annotated[bool, typer.Option("--private", help="Make the repository private.")] = False,
    branch: Annotated[str, typer.Option(help="Branch to write to, created if missing; default: main.")] = "",
    message: Annotated[str, typer.Option(help="Commit message.")] = "",
) -> None:
    """Upload a model folder with its card to the Hub; HF_TOKEN holds the token."""
    from bertsmith.interop.hub import push_model

    print(push_model(folder, repository, private=private, branch=branch, message=message))


def models(
    words: Annotated[
        list[str] | None, typer.Argument(help="Show rows with all these words, such as: vectors zh", show_default=False)
    ] = None,
) -> None:
    """List published encoders that load here, by purpose, language, size and licence."""
    import csv

    from bertsmith.errors import InputError

    path = Path(__file__).parents[1] / "published.tsv"
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
    wanted = {word.lower() for word in words or []}
    shown = [row for row in rows if wanted <= set(re.findall(r"[\w.-]+", " ".join(row).lower()))]
    if not shown:
        raise InputError(f"no model has all of {', '.join(sorted(wanted))}; bertsmith models shows them all")
    # 来源和模型卡的地址留给网页：终端放不下
    columns = [*zip(*[header, *shown], strict=True)][: header.index("source")]
    widths = [max(map(len, column)) for column in columns]
    for row in [header, *shown]:
        print("  ".join(map(str.ljust, row, widths)).rstrip())
    print("\n100: a hundred languages. Read the card of a model before you ship it: https://huggingface.co/NAME")
    print("A name works wherever --model takes a folder; the first use downloads it:")
    for purpose, command in _USES.items():
        if name := next((row[1] for row in shown if row[0] == purpose), None):
            print(f"  {command.format(name)}")


_USES = {
    "vectors": "bertsmith index FOLDER --model {} --out folder.index",
    "rank": 'bertsmith search folder.index "a question" --rerank {}',
    "fine-tune": "bertsmith finetune classify --model {} --train train.tsv --out runs/mine",
}
"""What the models of each purpose are used with."""


def docs(
    *,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8002,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
) -> None:
    """Read the guides, the commands and the Python interface in the browser, offline, in English or Chinese."""
    import contextlib
    import webbrowser

    from bertsmith.reporting.site import find_site, site_server

    with site_server(find_site(), port) as server:
        address = f"http://127.0.0.1:{server.server_port}/"
        print(f"The documentation is at {address} (Ctrl-C ends it)", flush=True)
        if browser:
            webbrowser.open(address)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
