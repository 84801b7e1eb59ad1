"""The school's commands, for the entry point `bertsmith.commands`; heavy imports happen inside them."""

from __future__ import annotations

import typer

from bertsmith.cli.options import Command, DeviceCommand
from bertsmith_school.commands import lab, learn, looking, study, words

PANEL = "Look"


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("learn", rich_help_panel=PANEL)(learn.learn)
    app.command("lab", cls=DeviceCommand, rich_help_panel=PANEL)(lab.lab)
    app.command("attention", cls=DeviceCommand, rich_help_panel=PANEL)(looking.attention)
    app.command("attribute", cls=DeviceCommand, rich_help_panel=PANEL)(looking.attribute)
    app.command("probe", cls=DeviceCommand, rich_help_panel=PANEL)(looking.probe)
    app.command("study", cls=DeviceCommand, rich_help_panel=PANEL)(study.study)
    compare = typer.Typer(help="Train and ask what BERT is compared with: word vectors, LSTMs, the whole Transformer.")
    compare.command("word-vectors", cls=Command)(words.word_vectors)
    compare.command("nearest")(words.nearest)
    compare.command("lstm", cls=Command)(words.lstm)
    compare.command("seq2seq", cls=Command)(words.seq2seq)
    compare.command("rewrite")(words.rewrite)
    app.add_typer(compare, name="compare", no_args_is_help=True, rich_help_panel=PANEL)
