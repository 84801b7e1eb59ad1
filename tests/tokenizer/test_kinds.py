"""Learning BPE and Unigram, and everything a tokenizer of such a kind is used for, on a tiny random model."""

import json
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch

from bertsmith.batch import RaggedBatch
from bertsmith.data.corpus.build import build_from_documents
from bertsmith.data.corpus.vocabulary import learn_vocabulary
from bertsmith.data.reading.text import Document
from bertsmith.data.stream.masking import MaskingSettings
from bertsmith.data.stream.stream import PreTrainingStream, StreamNeeds, StreamSettings
from bertsmith.errors import ConfigError, InputError, RunFolderError
from bertsmith.inference import load_pipeline
from bertsmith.inference.answer import BestSpans, outside_passages
from bertsmith.model import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from bertsmith.tinyworld import draw_stories, render
from bertsmith.tokenizer import WordPieceTokenizer, learn_tokenizer, load_tokenizer
from bertsmith.tokenizer.learn import AlphabetError

pytest.importorskip("tokenizers")

DOCUMENTS = [tuple(render(sentence) for sentence in story.sentences) for story in draw_stories(0, 60)]
TEXTS = [sentence for document in DOCUMENTS for sentence in document]


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def learned(request):
    return learn_tokenizer(TEXTS, kind=request.param, vocab_size=600, user_tokens=["<url>"])


def test_special_tokens_come_first_in_the_order_of_the_family(learned):
    if learned.template.second_type:
        assert learned.vocab[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        assert learned("a", "b")["token_type_ids"][-2:] == [1, 1]
    else:
        assert learned.vocab[:5] == ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        row = learned("the man", "the woman")
        assert row["input_ids"].count(2) == 3
        assert set(row["token_type_ids"]) == {0}
    assert learned.vocab[-1] == "<url>"
    assert len(learned) <= 600
    assert learned.encode("see <url> now").count(len(learned) - 1) == 1


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_the_same_text_gives_the_same_file_in_every_process(kind, tmp_path):
    code = (
        "import sys; from bertsmith.tokenizer import learn_tokenizer\n"
        "texts = open(sys.argv[1], encoding='utf-8').read().split('\\n')\n"
        "learn_tokenizer(texts, kind=sys.argv[2], vocab_size=500).save(sys.argv[3])"
    )
    (tmp_path / "text").write_text("\n".join([*TEXTS, "rare: £ { & } ½ 今天天气"]), encoding="utf-8")
    made = []
    for name in ("one", "two"):
        arguments = [str(tmp_path / "text"), kind, str(tmp_path / name)]
        subprocess.run([sys.executable, "-c", code, *arguments], check=True)
        made.append((tmp_path / name / "tokenizer.json").read_bytes())
    assert made[0] == made[1]


def test_a_user_token_that_is_learned_as_a_piece_has_one_id():
    symbols = [*map(chr, range(0x2600, 0x261D)), "§"]
    learned = learn_tokenizer([*TEXTS, *symbols], kind="unigram", vocab_size=600, user_tokens=["§"])
    assert learned.vocab[learned.encode("§")[-1]] == "§"
    assert len(set(learned.vocab)) == len(learned.piece_to_id) == len(learned)


def test_lowercase_applies_to_every_kind():
    texts = [*TEXTS, "CAFÉ École"]
    for kind in ("wordpiece", "bpe", "unigram"):
        lower, cased = (learn_tokenizer(texts, kind=kind, vocab_size=500, lowercase=flag) for flag in (True, False))
        assert (lower.lowercase, cased.lowercase) == (True, False)
        assert lower.encode("THE CAFÉ") == lower.encode("the cafe")
        assert cased.encode("THE CAFÉ") != cased.encode("the cafe")


def test_byte_level_bpe_spells_everything():
    tokenizer = learn_tokenizer(TEXTS, kind="bpe", vocab_size=300, lowercase=False)
    for text in ("今天 😀 שלום \x00", "tabs\tand\nlines  two"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.unk_token_id not in tokenizer.encode(text)


def test_what_cannot_be_learned_is_one_line():
    for kind, says in (("bpe", "256 bytes"), ("unigram", "characters")):
        with pytest.raises(AlphabetError, match=says):
            learn_tokenizer(TEXTS, kind=kind, vocab_size=12)
        with pytest.raises(InputError, match="hold no words"):
            learn_tokenizer([" ", ""], kind=kind, vocab_size=300)
        with pytest.raises(InputError, match="belong to wordpiece"):
            learn_tokenizer(TEXTS, kind=kind, num_unused=3)
        with pytest.raises(InputError, match="text 2 is int"):
            learn_tokenizer(["a", 1], kind=kind)
        with pytest.raises(InputError, match="special or reserved"):
            learn_tokenizer(TEXTS, kind=kind, user_tokens=["<mask>" if kind == "bpe" else "[MASK]"])
    with pytest.raises(InputError, match="use wordpiece, bpe, unigram"):
        learn_tokenizer(TEXTS, kind="words")


def test_wordpiece_is_what_it_was():
    ours = WordPieceTokenizer.train(TEXTS, vocab_size=300)
    assert learn_tokenizer(TEXTS, vocab_size=300).fingerprint == ours.fingerprint


def test_a_vocabulary_from_files(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    options = {"kind": "bpe", "cased": True}
    seen = []
    learned = learn_vocabulary(
        [tmp_path / "a.txt"], tmp_path / "out", on_progress=lambda *told: seen.append(told), **options
    )
    assert learned.metrics["files"] == 1
    assert {stage for stage, _, _ in seen} == {"counting", "merging"}
    assert load_tokenizer(tmp_path / "out").fingerprint == learned.details.fingerprint
    learn_vocabulary([tmp_path / "a.txt"], tmp_path / "out", **options)
    with pytest.raises(RunFolderError, match="other text or settings"):
        learn_vocabulary([tmp_path / "a.txt"], tmp_path / "out", kind="unigram", cased=True)
    # folders of before the other kinds do not say which kind they are
    learn_vocabulary([tmp_path / "a.txt"], tmp_path / "own")
    assert "kind" not in json.loads((tmp_path / "own" / "vocabulary.json").read_text())


@pytest.mark.parametrize("pairs", ["next_sentence", "none"])
def test_a_corpus_is_streamed_with_whole_words(learned, tmp_path, pairs):
    documents = [Document("t", sentences) for sentences in DOCUMENTS]
    corpus = build_from_documents(documents, learned, tmp_path / "corpus")
    settings = StreamSettings(batch_size=16, sequence_length=40, masking=MaskingSettings(kind="whole-word", rate=0.3))
    stream = PreTrainingStream(corpus, learned, settings, StreamNeeds(pairs=pairs), seed=1)
    template = learned.template
    for _ in range(3):
        batch = next(stream)
        tokens = batch.tokens
        ids = tokens.input_ids.clone()
        ids[batch.masked_positions] = batch.masked_labels
        bounds = tokens.cu_seqlens.tolist()
        for start, end in pairwise(bounds):
            row, types = ids[start:end].tolist(), tokens.token_type_ids[start:end].tolist()
            assert len(row) <= 40
            assert tuple(row[: len(template.before)]) == template.before
            assert tuple(row[-len(template.after) :]) == template.after
            special = [index for index in row if index in learned.special_ids]
            is_pair = len(special) == template.size(pair=True)
            assert is_pair or len(special) == template.size(pair=False)
            assert (max(types) == 1) == bool(is_pair and template.second_type)
            # all pieces of a word are chosen, or none
            chosen = np.isin(np.arange(start, end), batch.masked_positions.numpy())
            goes_on = learned.continuations(np.array(row))
            ordinary = ~np.isin(row, sorted(learned.special_ids))
            inside = goes_on[1:] & ordinary[1:] & ordinary[:-1]
            assert (chosen[1:][inside] == chosen[:-1][inside]).all()
        assert tokens.input_ids[batch.masked_positions].eq(learned.mask_token_id).float().mean() > 0.5


def test_full_packing_and_short_sequences(learned, tmp_path):
    corpus = build_from_documents([Document("t", s) for s in DOCUMENTS], learned, tmp_path / "corpus")
    stream = PreTrainingStream(
        corpus, learned, StreamSettings(batch_size=4, sequence_length=64, packing="full"), StreamNeeds(pairs="none")
    )
    assert next(stream).tokens.max_seqlen <= 64
    least = learned.template.size(pair=True) + 2
    PreTrainingStream(corpus, learned, StreamSettings(batch_size=4, sequence_length=max(5, least)))
    if least > 5:
        with pytest.raises(ConfigError, match="too short"):
            PreTrainingStream(corpus, learned, StreamSettings(batch_size=4, sequence_length=5))


def model_folder(tmp_path, tokenizer, model_class, **labels):
    torch.manual_seed(0)
    config = BertConfig.named("1/64", vocab_size=len(tokenizer), max_position_embeddings=64, **labels)
    config = config.changed(pad_token_id=tokenizer.pad_token_id)
    model_class(config).save_pretrained(tmp_path / "model")
    tokenizer.save(tmp_path / "model", model_max_length=64)
    return tmp_path / "model"


def test_fill_mask(learned, tmp_path):
    pipeline = load_pipeline("fill-mask", model_folder(tmp_path, learned, BertForMaskedLM), device="cpu")
    mask = learned.special_tokens.mask
    (found,) = pipeline(f"the man eats the {mask}.", top_k=len(learned))
    assert len(found) == len(learned)
    assert not any(candidate.piece.startswith(("Ġ", "▁", " ")) for candidate in found if len(candidate.piece) > 1)
    assert "man" in {candidate.piece for candidate in found}
    (chosen,) = pipeline(f"the man eats the {mask}.", candidates=["man", "the"])
    assert {candidate.piece for candidate in chosen} == {"man", "the"}
    other = "[MASK]" if mask == "<mask>" else "<mask>"
    with pytest.raises(InputError, match=f"write {mask}".replace("[", r"\[")):
        pipeline(f"the man eats {other}")


def test_embed_classify_and_tag(learned, tmp_path):
    vectors = load_pipeline("embed", model_folder(tmp_path / "e", learned, BertForMaskedLM), device="cpu")(TEXTS[:3])
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    labels = {"id2label": {0: "no", 1: "yes"}}
    folder = model_folder(tmp_path / "c", learned, BertForSequenceClassification, **labels)
    classify = load_pipeline("classify", folder, device="cpu")
    assert [row.label in ("no", "yes") for row in classify(TEXTS[:2], TEXTS[2:4])] == [True, True]
    names = {"id2label": {0: "O", 1: "B-X"}}
    tag = load_pipeline("tag", model_folder(tmp_path / "t", learned, BertForTokenClassification, **names), device="cpu")
    text = "The man's bread, 今天!"
    assert len(tag.tag_words([["The", "man", "\u00ad", ""]])[0]) == 4
    for entity in tag([text])[0]:
        assert text[entity.start : entity.end] == entity.text == entity.text.strip()


def test_answer(learned, tmp_path):
    folder = model_folder(tmp_path, learned, BertForQuestionAnswering)
    pipeline = load_pipeline("answer", folder, device="cpu")
    context = " ".join(TEXTS[:20])
    (found,) = pipeline(["who eats bread?"], [context])
    for candidate in found.candidates:
        assert context[candidate.start : candidate.end] == candidate.text == candidate.text.strip()
    # no candidate reaches into the question, whichever way the two are told apart
    question = pipeline.cutter.cut("who eats bread?", context)
    windows = list(question.windows())
    assert len(windows) > 1
    for window in windows:
        row = window.input_ids
        assert row[: window.head] == question.head
        assert row[window.head : window.head + window.size] == question.passage.ids[window.first :][: window.size]
        assert len(row) == len(window.token_type_ids) <= 64
    batch = RaggedBatch.from_sequences([w.input_ids for w in windows], [w.token_type_ids for w in windows])
    outside = outside_passages(batch, learned.sep_token_id, len(learned.template.between))
    expected = [
        not window.head <= place < window.head + window.size
        for window in windows
        for place in range(len(window.input_ids))
    ]
    assert outside.tolist() == expected
    assert isinstance(pipeline._read, BestSpans)
