"""A general model goes on learning: its vocabulary grows where asked, its loss falls, its family stays."""

import io

import pytest
import transformers
from rich.console import Console

from bertsmith import WordPieceTokenizer, adapt, load_pipeline
from bertsmith.errors import BertsmithError, CheckpointError, ConfigError
from bertsmith.inference.embed import SentenceFolder, read_sentence_folder, write_sentence_folder
from bertsmith.model import BertModel, ModelForPreTraining, family_named, load_any
from bertsmith.tinyworld import draw_stories, render
from bertsmith.tokenizer import learn_tokenizer
from typed_command import typed

SHORT = {"minutes": 0.05, "sequence_length": 32}


@pytest.fixture
def text(tmp_path):
    stories = "\n\n".join(" ".join(render(s) for s in story.sentences) for story in draw_stories(0, 120))
    (tmp_path / "stories.txt").write_text(stories, encoding="utf-8")
    return str(tmp_path / "stories.txt")


def save_general(folder, family="bert", tokenizer=None):
    """A random model whose vocabulary knows letters and little else."""
    tokenizer = tokenizer or WordPieceTokenizer.train(["abcdefghijklmnopqrstuvwxyz . , ! ? the man"] * 3, vocab_size=90)
    config = family_named(family).config.named("1/64", vocab_size=tokenizer.vocab_size, pad_token_id=0)
    model = ModelForPreTraining(config.with_position_limit(48), pair_head=family == "bert")
    model.save_pretrained(folder)
    tokenizer.save(folder)
    return str(folder)


@pytest.mark.slow
def test_a_model_learns_the_words_of_a_text_and_stays_of_its_family(text, tmp_path):
    shown = io.StringIO()
    general = save_general(tmp_path / "general", "roberta")
    asked = {**SHORT, "new_pieces": 30, "positions": 64}
    result = adapt(general, text, tmp_path / "run", console=Console(file=shown, width=100), **asked).details
    assert result.after.pieces_per_word < 0.9 * result.before.pieces_per_word
    assert result.loss_after < result.loss_before
    model = load_any(result.model_folder)
    assert model.architecture == "RobertaForMaskedLM"
    assert model.config.position_limit == 64
    assert len(WordPieceTokenizer.load(result.model_folder)) == model.config.vocab_size
    transformers.AutoModelForMaskedLM.from_pretrained(result.model_folder)
    assert "words that cost most pieces" in shown.getvalue()
    assert "it starts fresh" not in shown.getvalue()
    # the same command again has nothing left to do
    assert adapt(general, text, tmp_path / "run", **asked).details.loss_after == result.loss_after


@pytest.mark.slow
def test_without_new_pieces_the_model_is_trained_as_it_is(text, tmp_path, capsys):
    model = str(tmp_path / "encoder")
    # a sentence encoder: the tensors of the network, and none of a head
    BertModel.from_pretrained(save_general(tmp_path / "general")).save_pretrained(model)
    WordPieceTokenizer.load(tmp_path / "general").save(model)
    shown = typed(capsys, "adapt", "--model", model, "--text", text, "--out", tmp_path / "run", "--minutes", "0.05")
    assert "held-out loss" in shown
    assert "the model has no masked-lm, next-sentence head" in shown
    assert not (tmp_path / "run/start").exists()
    assert load_any(tmp_path / "run/model").architecture == "BertForPreTraining"


def test_a_sentence_encoder_stays_one_and_a_warning_says_what_it_learns(text, tmp_path):
    model, says = tmp_path / "encoder", SentenceFolder(pooling="cls", max_length=32, normalize=True)
    BertModel.from_pretrained(save_general(tmp_path / "general")).save_pretrained(model)
    WordPieceTokenizer.load(tmp_path / "general").save(model)
    write_sentence_folder(model, says, 64)
    with pytest.warns(UserWarning, match="is a sentence encoder, and masked LM teaches words, not vectors"):
        found = adapt(model, text, tmp_path / "run", **SHORT)
    assert read_sentence_folder(found.model_folder) == says
    assert load_pipeline("embed", found.model_folder)(["the man"]).shape == (1, 64)
    # a step that no copy can keep is named at once, not after the training
    (model / "1_Pooling/weights.bin").write_bytes(b"0")
    with pytest.raises(CheckpointError, match="pickled"):
        adapt(model, text, tmp_path / "other", **SHORT)
    assert not (tmp_path / "other").exists()


def test_what_cannot_be_adapted_is_refused(text, tmp_path):
    bpe = learn_tokenizer(["the man eats bread"] * 5, kind="bpe", vocab_size=280)
    model = save_general(tmp_path / "bpe", "roberta", bpe)
    with pytest.raises(ConfigError, match="--new-pieces needs a WordPiece vocabulary"):
        adapt(model, text, tmp_path / "run", **SHORT, new_pieces=3)
    (tmp_path / "bpe/generator").mkdir()
    with pytest.raises(ConfigError, match="its generator shares its table"):
        adapt(model, text, tmp_path / "run", **SHORT, positions=64)
    with pytest.raises(BertsmithError, match="nowhere"):
        adapt(tmp_path / "nowhere", text, tmp_path / "other", **SHORT)
    with pytest.raises(BertsmithError, match="sequences of 400 do not fit"):
        adapt(save_general(tmp_path / "general"), text, tmp_path / "long", minutes=0.1, sequence_length=400)
