"""A smaller model from a larger one, on text without labels (Hinton et al. 2015; Sanh et al. 2019).

The student, some of the teacher's layers or a fresh model of a size, learns masked LM and what the teacher says of the
same masks; of a teacher without a masked-LM head, such as a sentence encoder, its states alone. The folder is the run
folder of the pre-training, plus `corpus/` (token shards by the teacher's tokenizer) and, where layers are kept,
`start/`. A stage whose result is there is not done again, so the same command resumes after a crash.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape

from bertsmith.data.reading.records import FileNames
from bertsmith.errors import ConfigError
from bertsmith.files import claim_folder, working_in
from bertsmith.hub import model_folder
from bertsmith.inference.embed import read_sentence_folder, write_sentence_folder
from bertsmith.journeys.source import (
    WORK,
    TextOptions,
    counted,
    own_text,
    shards_of,
    text_files,
    write_report,
)
from bertsmith.kernels.layers import best_device, on_device
from bertsmith.model import Backbone, ModelConfig, as_distilbert, keep_layers, layers_written
from bertsmith.model.folder import stored_heads
from bertsmith.objectives import objective_named
from bertsmith.settings import Checked, Result, built, divided, option, values_of
from bertsmith.tokenizer import load_tokenizer
from bertsmith.train.choosing import native_settings, recipe_for, recipe_to_continue
from bertsmith.train.monitor import figures_before_training
from bertsmith.train.pretraining import pretrain
from bertsmith.train.recipe import PreTrainingRecipe


@dataclass(frozen=True)
class DistillationOptions(Checked):
    """What the command line was asked for."""

    keep_layers: str = option("", help="Teacher layers that the student starts from, such as 0,2,4.")
    size: str = option("", help="Instead: size of a fresh student: tiny, mini, small or L/H such as 3/384.")
    family: str = option(
        "",
        shown_default="the teacher's",
        help="Architecture of a fresh student; distilbert: also for kept BERT layers.",
    )
    minutes: float = option(10.0, min=0.05, help="Minutes of training.")
    loss: tuple[str, ...] = option(
        (),
        shown_default="soft where both predict pieces; states where both are equally wide, else relations",
        help="Distillation loss: soft, states or relations; once for each.",
    )
    temperature: float = option(2.0, above=0, help="Temperature of the soft targets.")
    learning_rate: float | None = option(None, above=0, shown_default="by size", help="Peak learning rate.")
    reading: TextOptions = field(default_factory=TextOptions)
    seed: int = option(0, help="Random seed.")

    def _check_together(self) -> None:
        if bool(self.keep_layers) == bool(self.size):
            raise ConfigError("say what the student is: --keep-layers 0,2,4 of the teacher, or --size for a fresh one")
        if self.keep_layers and self.family not in ("", "distilbert"):
            raise ConfigError("kept layers stay of the teacher's family, or become a distilbert: leave --family out")


@dataclass(frozen=True)
class DistillationResult:
    """Held-out masked-LM losses in nats, or distances from the teacher's states; parameters are without heads."""

    model_folder: Path
    loss_before: float
    loss_after: float
    parameters: int
    teacher_parameters: int


def distil(
    teacher: str | Path,
    text: FileNames,
    out: str | Path,
    *,
    console: Console | None = None,
    device: torch.device | str | None = None,
    **settings: Any,
) -> Result[DistillationResult]:
    """Trains a smaller model to say what a larger one says, on text without labels.

    Examples:
        >>> import bertsmith
        >>> small = bertsmith.distil("run/model", "texts", "small", size="1/64", minutes=0.05)
        >>> sorted(small.metrics)
        ['loss_after', 'loss_before', 'parameters', 'teacher_parameters']

    Args:
        teacher: a model folder, or `org/name` on the Hub.
        text: files, folders or patterns of text and documents.
        out: the run folder; the same call resumes where it was broken off.
        console: shows what is done; silent when None.
        device: None takes the GPU where there is one.
        **settings: the options of `bertsmith distil`, with underscores: `size` or `keep_layers`, `minutes` and so on.

    Returns:
        `metrics`: the student's held-out losses, parameters of both; `model_folder`: the student; `report`: the curves.

    Raises:
        BertsmithError: a setting, the input or the output folder is unusable; what was complete stays.
        TrainingStopped: a signal came, and the state is saved.
    """
    (chosen,) = divided(settings, DistillationOptions, command="distil")
    options, folder, files = built(DistillationOptions, chosen), Path(out), text_files(text)
    with on_device(device), working_in(folder, *WORK):
        found = _distilled(str(teacher), files, folder, options, console or Console(quiet=True))
    names = ("loss_after", "loss_before", "parameters", "teacher_parameters")
    metrics = {name: float(getattr(found, name)) for name in names}
    return Result(folder, metrics, found.model_folder, write_report([folder]), found)


def _distilled(
    teacher: str, text: list[str], out: Path, options: DistillationOptions, console: Console
) -> DistillationResult:
    source = own_text(text, **vars(options.reading), leave_out=out)
    origin = model_folder(teacher)
    # 学生照搬不了的句向量设置，现在就说，而不是训练完才说
    says = read_sentence_folder(origin) if (origin / "modules.json").exists() else None
    claim_folder(out, "distil.json", {"teacher": teacher, **source.settings, **values_of(options)})
    source.tell(console)
    tokenizer = load_tokenizer(origin)
    console.print("[bold]1 · token shards[/bold]")
    recipe = _recipe(teacher, out, options)
    corpus = shards_of(source, tokenizer, out / "corpus")
    source.keep_read(out)
    console.print(f"    {counted(corpus)}")
    console.print("[bold]2 · training the student[/bold]")
    result = pretrain(out, corpus, tokenizer, recipe, console=console, device=best_device())
    first = figures_before_training(out / "metrics.jsonl")
    # 第一个量到的损失最好懂：有掩码时是 MLM，没有时是与老师状态的距离
    name = next(name for name in ("mlm_loss", "states_loss", "relations_loss") if name in first)
    small, large = (_parameters(folder) for folder in (out / "model", origin))
    done = DistillationResult(out / "model", first[name], result.heldout[name], small, large)
    if says is not None:
        # 句向量老师的学生照样合并：它怎么合并，学生也怎么合并；比老师窄的学生留不下那么多个数
        width = ModelConfig.load(done.model_folder).hidden_size
        kept = replace(says, dims=says.dims if says.dims <= width else 0)
        write_sentence_folder(done.model_folder, kept, width)
    console.print(
        f"{large / 1e6:.1f} M parameters became {small / 1e6:.1f} M; held-out {name.replace('_', ' ')}"
        f" {done.loss_before:.3f} before, {done.loss_after:.3f} after; model: {escape(str(done.model_folder))}",
        soft_wrap=True,
    )
    return done


def _parameters(folder: Path) -> int:
    return sum(weight.numel() for weight in Backbone.from_pretrained(folder, need_pooler=False).parameters())


def _recipe(teacher: str, out: Path, options: DistillationOptions) -> PreTrainingRecipe:
    asked: dict[str, Any] = {
        "minutes": options.minutes,
        "objective": "mlm" if "masked_lm" in stored_heads(model_folder(teacher)) else "imitation",
        "teacher": teacher,
        "teacher_loss": options.loss or None,
        "teacher_temperature": options.temperature,
        "learning_rate": options.learning_rate,
        **native_settings(best_device(), out),
        "seed": options.seed,
    }
    config = ModelConfig.load(teacher)
    if options.size:
        length = min(128, config.position_limit)
        family = options.family or config.model_type
        return recipe_for(options.size, device=best_device(), family=family, sequence_length=length, **asked)
    start = out / "start"
    if not (start / "tokenizer.json").exists():
        # 从老师自己的层开始：学生一开始就会说老师的话，只是说得不好
        objective = objective_named(asked["objective"])
        student = objective.models(objective.load_model(teacher))[""]
        keep_layers(student, layers_written(options.keep_layers))
        if options.family and student.config.model_type != options.family:
            student = as_distilbert(student)
        student.save_pretrained(start)
        load_tokenizer(model_folder(teacher)).save(start, model_max_length=student.config.position_limit)
    return recipe_to_continue(str(start), **asked)
