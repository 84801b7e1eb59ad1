"""Each distillation loss against a literal computation, the objective over them, and runs that go on after a kill."""

import json
import math
import shutil
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from bertsmith.data.stream.stream import PreTrainingStream, StreamSettings
from bertsmith.errors import BertsmithError, CheckpointError, ConfigError, RunFolderError
from bertsmith.model import BertConfig, ModelForPreTraining, family_named, keep_layers
from bertsmith.model.folder import fingerprint_weights
from bertsmith.objectives import objective_named
from bertsmith.objectives.distillation import (
    LOSSES,
    DistilledObjective,
    Seen,
    TeacherSettings,
    distillation_loss_named,
    recorded_qkv,
)
from bertsmith.train.choosing import recipe_for
from bertsmith.train.distributed import Ranks
from bertsmith.train.pretraining import RunOptions, pretrain
from bertsmith.train.trainer import BertTrainer

LENGTHS = [3, 1, 4]


def seen(width, heads, seed, lengths=LENGTHS):
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    states = torch.randn(total, width, generator=generator)
    logits = torch.randn(5, 11, generator=generator)
    return Seen(logits, states, torch.randn(total, 3, heads, width // heads, generator=generator), lengths)


def test_soft_targets_are_the_divergence_of_flattened_distributions():
    student, teacher = seen(8, 2, 0), seen(8, 2, 1)
    loss, count = distillation_loss_named("soft")(student, teacher, 3.0)
    expected = 0.0
    for own, other in zip(student.logits, teacher.logits, strict=True):
        p, q = (other / 3).softmax(0), (own / 3).softmax(0)
        expected += 9 * sum(float(a) * (math.log(float(a)) - math.log(float(b))) for a, b in zip(p, q, strict=True))
    assert float(loss) == pytest.approx(expected, rel=1e-4)
    assert count == 5


@pytest.mark.parametrize("padded", ["student", "teacher"])
def test_rows_that_fill_up_a_vocabulary_are_not_compared(padded):
    models = {"student": seen(8, 2, 0), "teacher": seen(8, 2, 1)}
    expected, _ = distillation_loss_named("soft")(**models, temperature=3.0)
    models[padded] = replace(models[padded], logits=F.pad(models[padded].logits, (0, 5), value=9.0))
    assert float(distillation_loss_named("soft")(**models, temperature=3.0)[0]) == pytest.approx(float(expected))


def test_states_are_compared_by_their_direction():
    student, teacher = seen(8, 2, 0), seen(8, 2, 1)
    loss, count = distillation_loss_named("states")(student, teacher, 2.0)
    pairs = zip(student.states, teacher.states, strict=True)
    expected = sum(1 - float(a @ b / a.norm() / b.norm()) for a, b in pairs)
    assert float(loss) == pytest.approx(expected, rel=1e-4)
    assert count == 8


@pytest.mark.parametrize(("widths", "heads", "relation_heads"), [((8, 8), (2, 2), 8), ((8, 12), (2, 3), 4)])
def test_relations_are_those_of_every_token_with_its_own_text(widths, heads, relation_heads):
    student, teacher = seen(widths[0], heads[0], 0), seen(widths[1], heads[1], 1)
    loss, count = distillation_loss_named("relations")(student, teacher, 2.0)
    expected = 0.0
    for kind in range(3):
        for head in range(relation_heads):
            start = 0
            for length in LENGTHS:
                tables = []
                for model in (student, teacher):
                    rows = model.qkv[start : start + length, kind].flatten(1)
                    size = rows.shape[1] // relation_heads
                    part = rows[:, head * size : (head + 1) * size]
                    tables.append((part @ part.T / math.sqrt(size)).log_softmax(-1))
                expected += float(F.kl_div(tables[0], tables[1], reduction="sum", log_target=True))
                start += length
    assert float(loss) == pytest.approx(expected / (3 * relation_heads), rel=1e-4)
    assert count == 8


@pytest.mark.parametrize("name", list(LOSSES))
def test_a_student_that_equals_its_teacher_has_nothing_to_learn(name):
    teacher = seen(8, 2, 0)
    assert float(distillation_loss_named(name)(teacher, teacher, 2.0)[0]) == pytest.approx(0.0, abs=1e-5)


def test_losses_have_finite_gradients():
    student, teacher = seen(8, 2, 0), seen(8, 2, 1)
    for value in (student.qkv, student.logits, student.states):
        value.requires_grad_()
    total = sum(loss(student, teacher, 2.0)[0] for loss in LOSSES.values())
    total.backward()
    for value in (student.qkv, student.logits, student.states):
        assert torch.isfinite(value.grad).all()
        assert value.grad.abs().sum() > 0


@pytest.fixture
def teacher(village_small, tmp_path):
    """Two layers, saved as a masked LM."""
    _, tokenizer = village_small
    torch.manual_seed(1)
    config = BertConfig.named("2/64", vocab_size=tokenizer.vocab_size, max_position_embeddings=64)
    ModelForPreTraining(config.changed(initializer_range=0.2)).save_pretrained(tmp_path / "teacher")
    tokenizer.save(tmp_path / "teacher")
    return tmp_path / "teacher"


def batches(village_small, objective, count=2):
    corpus, tokenizer = village_small
    stream = PreTrainingStream(corpus, tokenizer, StreamSettings(sequence_length=48, batch_size=8), objective.needs)
    return [next(stream) for _ in range(count)]


@pytest.mark.parametrize("family", ["bert", "modernbert", "albert", "distilbert"])
def test_the_objective_adds_up_weighted_parts(family, village_small, teacher):
    settings = TeacherSettings(str(teacher), ("soft", "relations"), 2.0)
    objective = DistilledObjective(objective_named("mlm"), settings)
    config = family_named(family).config.named("1/64", vocab_size=village_small[1].vocab_size)
    torch.manual_seed(0)
    student = objective.build_model(config.changed(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    (batch, _) = batches(village_small, objective)
    output = objective(student, batch)
    figures = {name: value / count for name, (value, count) in output.sums.items()}
    assert set(figures) == {"mlm_loss", "mlm_accuracy", "soft_loss", "relations_loss"}
    expected = 2 * figures["mlm_loss"] + 5 * figures["soft_loss"] + figures["relations_loss"]
    assert float(output.loss) == pytest.approx(expected, rel=1e-4)
    assert objective.total_loss(figures) == pytest.approx(expected, rel=1e-6)
    output.loss.backward()
    assert all(parameter.grad is None for parameter in objective.network.parameters())
    plain = objective_named("mlm")(student, batch)
    assert figures["mlm_loss"] == pytest.approx(plain.sums["mlm_loss"][0] / plain.sums["mlm_loss"][1], rel=1e-6)


def test_the_boundaries_of_spans_are_in_the_total():
    objective = DistilledObjective(objective_named("mlm").for_masking("span"), TeacherSettings("teacher"))
    figures = {"mlm_loss": 2.0, "mlm_accuracy": 0.5, "sbo_loss": 3.0, "soft_loss": 0.5}
    assert objective.total_loss(figures) == 2 * (2.0 + 3.0) + 5 * 0.5
    assert math.isnan(objective.total_loss({}))


def test_what_is_recorded_is_not_turned_whether_gradients_are_taken_or_not(village_small):
    """Without gradients queries and keys are turned in place, which must not reach what was recorded before."""
    torch.manual_seed(0)
    kind = family_named("modernbert")
    config = kind.config.named("1/64", vocab_size=village_small[1].vocab_size, attention_probs_dropout_prob=0.0)
    model = kind.backbone(config)
    (batch, _) = batches(village_small, objective_named("mlm"))
    found = []
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients), recorded_qkv(model) as recorded:
            model(batch.tokens)
        found.append(recorded[-1].detach())
    torch.testing.assert_close(*found)


def test_the_teacher_and_itself_agree_at_every_mask(village_small, teacher):
    objective = DistilledObjective(objective_named("mlm"), TeacherSettings(str(teacher)))
    student = ModelForPreTraining.from_pretrained(teacher, pair_head=False).eval()
    figures = objective(student, batches(village_small, objective)[0]).sums
    assert figures["soft_loss"][0] == pytest.approx(0.0, abs=1e-3)
    assert figures["states_loss"][0] == pytest.approx(0.0, abs=1e-3)


def test_a_run_learns_from_its_teacher_and_goes_on_after_it_died(village_small, teacher, tmp_path, monkeypatch):
    corpus, tokenizer = village_small
    recipe = recipe_for("1/64", family="bert", objective="mlm", teacher=str(teacher), steps=6, sequence_length=48)
    whole = pretrain(tmp_path / "whole", corpus, tokenizer, recipe)
    rows = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    heldout = [row for row in rows if row["kind"] == "heldout"]
    assert heldout[-1]["soft_loss"] < heldout[0]["soft_loss"]
    assert f'weights = "{fingerprint_weights(teacher)}"' in (tmp_path / "whole" / "recipe.toml").read_text()

    def dies(self, *parts):
        if self.step == 3:
            raise KeyboardInterrupt
        return original(self, *parts)

    original = BertTrainer.train_batch
    monkeypatch.setattr(BertTrainer, "train_batch", dies)
    monkeypatch.setattr("bertsmith.train.pretraining.SAVING_SHARE", 1e9)
    with pytest.raises(KeyboardInterrupt):
        pretrain(tmp_path / "parts", corpus, tokenizer, recipe, RunOptions(save_every=0.0))
    monkeypatch.setattr(BertTrainer, "train_batch", original)
    parts = pretrain(tmp_path / "parts", corpus, tokenizer, recipe)
    assert parts.heldout == whole.heldout
    expected, found = (load_file(tmp_path / run / "model" / "model.safetensors") for run in ("whole", "parts"))
    assert all(expected[name].equal(found[name]) for name in expected)


def test_a_teacher_that_changed_is_refused(village_small, teacher, tmp_path):
    corpus, tokenizer = village_small
    own = tmp_path / "own"
    shutil.copytree(teacher, own)
    recipe = recipe_for("1/64", family="bert", objective="mlm", teacher=str(own), steps=2, sequence_length=48)
    pretrain(tmp_path / "run", corpus, tokenizer, recipe)
    network = ModelForPreTraining.from_pretrained(own)
    with torch.no_grad():
        network.backbone.embedding.word.weight[0] += 1
    network.save_pretrained(own)
    with pytest.raises(RunFolderError, match="teacher_weights"):
        pretrain(tmp_path / "run", corpus, tokenizer, recipe.changed(steps=4))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"teacher_loss": ("warmth",)}, "teacher loss"),
        ({"teacher_loss": ("states", "states")}, "named twice"),
        ({"teacher_temperature": 0.0}, "is 0.0; give more than 0"),
        ({"teacher_temperature": math.nan}, "is nan; give a finite number"),
        ({"objective": "ltr"}, "use mlm"),
        ({"family": "electra", "objective": "rtd"}, "use mlm"),
    ],
)
def test_what_cannot_be_distilled(settings, message, teacher):
    with pytest.raises(ConfigError, match=message):
        recipe_for("1/64", **{"family": "bert", "objective": "mlm", "teacher": str(teacher), "steps": 2, **settings})
    with pytest.raises(ConfigError, match="learns from a teacher alone"):
        recipe_for("1/64", family="bert", objective="imitation", steps=2)
    with pytest.raises(ConfigError, match="needs a --teacher"):
        recipe_for("1/64", family="bert", objective="mlm", steps=2, teacher_loss=("states",))


def test_a_teacher_that_does_not_fit(village_small, teacher, tiny_model, tmp_path):
    corpus, tokenizer = village_small
    asked = {"family": "bert", "objective": "mlm", "steps": 2, "sequence_length": 48}
    with pytest.raises(CheckpointError, match="another vocabulary"):
        pretrain(tmp_path / "a", corpus, tokenizer, recipe_for("1/64", teacher=str(tiny_model), **asked))
    narrow = recipe_for("1/128", teacher=str(teacher), teacher_loss=("states",), **asked)
    with pytest.raises(ConfigError, match="the student has 128 and the teacher 64: use relations"):
        pretrain(tmp_path / "b", corpus, tokenizer, narrow)
    with pytest.raises(BertsmithError, match="tokenizer"):
        pretrain(tmp_path / "c", corpus, tokenizer, recipe_for("1/64", teacher=str(tmp_path), **asked))
    encoder = ModelForPreTraining.from_pretrained(teacher).backbone
    encoder.save_pretrained(tmp_path / "headless")
    tokenizer.save(tmp_path / "headless")
    with pytest.raises(ConfigError, match="no masked-LM head"):
        pretrain(tmp_path / "d", corpus, tokenizer, recipe_for("1/64", teacher=str(tmp_path / "headless"), **asked))


def test_several_processes_do_not_wait_for_weights_that_relations_leave_alone(village_small, teacher, tmp_path):
    asked = {"family": "bert", "objective": "imitation", "teacher": str(teacher), "steps": 2, "sequence_length": 48}
    for losses in ((), ("relations",)):
        recipe = recipe_for("1/64", teacher_loss=losses, **asked)
        with pytest.raises(ConfigError, match="add --teacher-loss states"):
            pretrain(tmp_path / "run", *village_small, recipe, ranks=Ranks(0, 2))
    assert not (tmp_path / "run").exists()


def test_layers_are_kept_by_their_numbers(teacher):
    model = ModelForPreTraining.from_pretrained(teacher)
    upper = model.backbone.encoder.blocks[1].attention.qkv.weight.detach().clone()
    keep_layers(model, [1])
    assert model.config.num_hidden_layers == 1
    assert model.backbone.encoder.blocks[0].attention.qkv.weight.equal(upper)
    for wrong in ([], [1], [0, 0], [-1]):
        with pytest.raises(ConfigError, match="keep_layers"):
            keep_layers(model, wrong)


def test_layers_that_alternate_cannot_change_places():
    config = family_named("modernbert").config.named("4/64", vocab_size=50)
    model = ModelForPreTraining(config, pair_head=False)
    with pytest.raises(ConfigError, match="of another kind"):
        keep_layers(model, [1, 2])
    keep_layers(model, [0, 1, 2])
    assert model.config.num_hidden_layers == 3
