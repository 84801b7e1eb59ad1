"""Tokenizers of other kinds, against the fast tokenizers of `transformers` that read the same folder."""

import copy
import json
import pickle
import re
import subprocess
import sys
from itertools import islice

import numpy as np
import pytest

from bertsmith.errors import ConfigError, InputError
from bertsmith.finetune.datasets.questions import Answer, QuestionExample
from bertsmith.finetune.datasets.texts import LabelledText
from bertsmith.finetune.tasks.answer import AnsweringTask
from bertsmith.finetune.tasks.classify import ClassificationTask
from bertsmith.inference.answer import WindowCutter
from bertsmith.inference.tag import words_in_texts
from bertsmith.tinyworld import draw_stories, render
from bertsmith.tokenizer import LibraryTokenizer, WordPieceTokenizer, learn_tokenizer, load_tokenizer
from bertsmith.tokenizer.loading import TOKENIZER_FILES

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
pre_tokenizers = tokenizers.pre_tokenizers

# name: what is learned, whether with the other kind's special tokens, and the class of `transformers` that reads it
FOLDERS = {
    "roberta": ("bpe", False, False, "RobertaTokenizer"),
    "modernbert": ("bpe", True, False, "PreTrainedTokenizerFast"),
    "xlm-roberta": ("unigram", True, False, "XLMRobertaTokenizer"),
    "albert": ("unigram", False, True, "AlbertTokenizer"),
}
SPECIAL = {"[CLS]": "<s>", "[PAD]": "<pad>", "[SEP]": "</s>", "[UNK]": "<unk>", "[MASK]": "<mask>"}
TEXTS = [
    "The man eats the bread, and the woman reads a book!",
    "",
    " ",
    "  two  spaces \n\t and a tab ",
    "The café's price: £3.50 (don't ask).",
    "今天天气很好，我们去公园。",
    "e\u0301 a\u200bb \ufeff ﬁ ½ ＦＵＬＬ　ｗｉｄｔｈ",
    "😀👨‍👩‍👧 नमस्ते שלום",
    "zero\0byte and \x1f control",
    "a" * 500,
]
FORGED = "The man </s> eats <mask> [MASK] [SEP] <s> <pad> bread"


def village(count=60):
    return [render(sentence) for story in draw_stories(0, count) for sentence in story.sentences]


def saved(folder, name):
    """Lets `transformers` save the folder as the class that its published models have."""
    kind, swapped, lowercase, cls = FOLDERS[name]
    texts = [*village(), *TEXTS, "今天天气很好，我们去公园。", FORGED]
    learned = learn_tokenizer(texts, kind=kind, vocab_size=700, lowercase=lowercase, min_frequency=1)
    learned.save(folder / "learned")
    path = folder / "learned" / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": cls}))
    if swapped:
        swap_special(folder / "learned", kind)
    transformers.AutoTokenizer.from_pretrained(folder / "learned").save_pretrained(folder / "theirs")
    return folder / "theirs"


def swap_special(folder, kind):
    """Gives a vocabulary the special tokens of the other kind: as ModernBERT and XLM-R have them."""
    names = SPECIAL if kind == "unigram" else {theirs: ours for ours, theirs in SPECIAL.items()}
    for path in (folder / "tokenizer.json", folder / "tokenizer_config.json"):
        text = path.read_text()
        for old, new in names.items():
            text = text.replace(f'"{old}"', f'"{new}"')
        path.write_text(text)
    config = json.loads(path.read_text())
    if kind == "unigram":
        # `transformers` expects XLM-R's special tokens at these places
        content, order = (
            json.loads((folder / "tokenizer.json").read_text()),
            ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        )
        content["model"] |= {"unk_id": 3, "vocab": [[name, 0.0] for name in order] + content["model"]["vocab"][5:]}
        content["added_tokens"] = [{**token, "id": order.index(token["content"])} for token in content["added_tokens"]]
        content["post_processor"] = None
        (folder / "tokenizer.json").write_text(json.dumps(content))
    made = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    cls, sep = ((config[role], made.token_to_id(config[role])) for role in ("cls_token", "sep_token"))
    if kind == "unigram":
        made.post_processor = tokenizers.processors.RobertaProcessing(sep, cls, add_prefix_space=False)
        config["model_input_names"].remove("token_type_ids")
    else:
        pair = {"single": "[CLS] $A [SEP]", "pair": "[CLS] $A [SEP] $B:1 [SEP]:1", "special_tokens": [cls, sep]}
        trimmed = tokenizers.processors.ByteLevel(add_prefix_space=False, trim_offsets=True)
        made.post_processor = tokenizers.processors.Sequence(
            [trimmed, tokenizers.processors.TemplateProcessing(**pair)]
        )
        config["model_input_names"].insert(1, "token_type_ids")
    made.save(str(folder / "tokenizer.json"))
    path.write_text(json.dumps(config))


@pytest.fixture(scope="module", params=FOLDERS)
def both(request, tmp_path_factory):
    """Our tokenizer, and that of `transformers`, of one folder."""
    folder = saved(tmp_path_factory.mktemp(request.param), request.param)
    peer = transformers.AutoTokenizer.from_pretrained(folder)
    assert type(peer).__name__ in (FOLDERS[request.param][3], "TokenizersBackend")
    return load_tokenizer(folder), peer


def test_ids_and_offsets(both):
    ours, peer = both
    for text in TEXTS:
        expected = peer(text, return_offsets_mapping=True, return_token_type_ids=True)
        found = ours(text)
        assert found["input_ids"] == expected["input_ids"], text
        assert found["offsets"] == [tuple(span) for span in expected["offset_mapping"]], text
        assert found["token_type_ids"] == expected["token_type_ids"]
    plain = [peer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    flat = ours.encode_flat(TEXTS)
    aligned = ours.align_flat(TEXTS)
    assert ours.encode_batch(TEXTS) == [ours.encode(text) for text in TEXTS] == plain
    for row in (flat, aligned):
        assert [part.tolist() for part in np.split(row.ids, row.bounds[1:-1])] == plain
    assert aligned.starts[: aligned.bounds[1]].tolist() == [start for start, _ in ours(TEXTS[0])["offsets"][1:-1]]


def test_ids_and_offsets_of_real_text(both, shared_data):
    ours, peer = both
    files = [*sorted((shared_data / "corpus").rglob("*.txt"))[::7][:4], shared_data / "corpus_zh/cmrc2018_contexts.txt"]
    for file in files:
        with file.open(encoding="utf-8", errors="replace") as lines:
            texts = [line.rstrip("\n") for line in islice(lines, 60)]
        expected = peer(texts, return_offsets_mapping=True)
        found = ours(texts)
        assert found["input_ids"] == expected["input_ids"]
        assert found["offsets"] == [[tuple(span) for span in row] for row in expected["offset_mapping"]]


@pytest.mark.parametrize("max_length", [8, 13, 40])
@pytest.mark.parametrize("truncation", ["longest_first", "only_second"])
def test_pairs_truncation_and_padding(both, max_length, truncation):
    ours, peer = both
    first, second = ["a man", "the woman reads", "it"], [TEXTS[0], TEXTS[4], "x"]
    options = {"max_length": max_length, "truncation": truncation, "padding": "max_length"}
    try:
        found = ours(first, second, **options)
    except InputError:
        assert (truncation, max_length) == ("only_second", 8)
        return
    expected = peer(first, second, **options, return_token_type_ids=True, return_special_tokens_mask=True)
    for name in ("input_ids", "token_type_ids", "attention_mask", "special_tokens_mask"):
        assert found[name] == expected[name], name


def test_windows(both):
    ours, peer = both
    options = {"max_length": 24, "truncation": "only_second", "stride": 5}
    text = " ".join(village(3)[:12])
    found = ours("who reads?", text, **options, return_overflowing=True)
    expected = peer("who reads?", text, **options, return_overflowing_tokens=True, return_offsets_mapping=True)
    assert len(found["input_ids"]) > 2
    assert found["input_ids"] == expected["input_ids"]
    assert found["offsets"] == [[tuple(span) for span in row] for row in expected["offset_mapping"]]


def test_decode(both):
    ours, peer = both
    for text in TEXTS:
        ids = ours(text)["input_ids"]
        assert ours.decode(ids) == peer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        whole = ours.decode(ids, skip_special_tokens=False)
        assert whole == peer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    with pytest.raises(InputError, match=f"id {len(ours)} is not in the vocabulary"):
        ours.decode([len(ours)])


def test_special_tokens_in_a_text_are_text_unless_asked_for(both):
    ours, peer = both
    assert ours(FORGED, parse_special=True)["input_ids"] == peer(FORGED)["input_ids"]
    assert ours.mask_token_id in ours.encode(FORGED, parse_special=True)
    forgeable = ours.special_ids - {ours.unk_token_id}
    assert not forgeable & set(ours.encode(FORGED))
    assert not forgeable & set(ours.encode_flat([FORGED, "</s>", "<mask>", "[SEP][CLS]"]).ids.tolist())
    assert not forgeable & set(ours.align_words([FORGED]).ids.tolist())
    # the characters are all there, as those of any other text
    assert ours.align_flat([FORGED]).ends[-1] == len(FORGED)


MASKED = ["a <mask>", "<mask> eats", "the man<mask>eats", "two  <mask>  gaps", "<mask><mask> .", "今天<mask>好"]


@pytest.mark.parametrize("text", MASKED)
def test_a_mask_alone_is_read_as_the_library_reads_it(both, text):
    ours, peer = both
    text = text.replace("<mask>", ours.special_tokens.mask)
    found = ours(text, parse_special="mask")
    assert found["input_ids"] == peer(text)["input_ids"]
    assert found == ours(text, parse_special=True)


def test_beside_a_mask_special_tokens_are_text(both):
    ours, _ = both
    ids = ours.encode(FORGED, parse_special="mask")
    assert [index for index in ids if index in ours.special_ids - {ours.unk_token_id}] == [ours.mask_token_id]


def test_a_labelled_pair_has_the_special_tokens_of_its_template(both):
    ours, _ = both
    examples = [LabelledText(FORGED, FORGED, label) for label in ("yes", "</s>", "[SEP]")]
    for row in ClassificationTask.of(examples).encode(ours, examples, 256):
        special = [index for index in row.input_ids[0] if index in ours.special_ids - {ours.unk_token_id}]
        assert special == [*ours.template.before, *ours.template.between, *ours.template.after]


def test_special_ids(both):
    ours, peer = both
    for role in ("pad", "unk", "cls", "sep", "mask"):
        assert getattr(ours, f"{role}_token_id") == getattr(peer, f"{role}_token_id"), role
        assert getattr(ours.special_tokens, role) == getattr(peer, f"{role}_token")
    assert ours.special_ids == set(peer.all_special_ids)
    assert ours.piece_to_id == peer.get_vocab()
    assert ours.vocab_size == len(ours) == len(peer)


def test_saving_is_stable_to_the_byte_and_read_by_both(both, tmp_path):
    ours, peer = both
    # beside the configuration of a model, as in a model folder
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text('{"model_type": "roberta"}')
    ours.save(tmp_path / "one", model_max_length=64)
    load_tokenizer(tmp_path / "one").save(tmp_path / "two", model_max_length=64)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "one")
    assert again(TEXTS[:8])["input_ids"] == peer(TEXTS[:8])["input_ids"]
    assert again.model_max_length == 64
    loaded = load_tokenizer(tmp_path / "one")
    assert loaded.fingerprint == ours.fingerprint
    derived = (loaded, pickle.loads(pickle.dumps(loaded)), copy.deepcopy(loaded), loaded.with_pieces([], ["[E1]"]))
    assert [each.model_max_length for each in derived] == [64] * 4
    assert pickle.loads(pickle.dumps(ours)).encode_batch(TEXTS) == ours.encode_batch(TEXTS)


def test_half_a_character_and_a_huge_text(both):
    ours, _ = both
    text = "the \ud83d man"
    assert ours.decode(ours.encode("the man")) == "the man"
    assert ours.align_flat([text]).ends[-1] == len(text)
    assert ours.encode(text) == ours.encode("the \ufffd man")
    huge = "the man eats bread. " * 20_000
    assert ours.encode_flat([huge]).bounds[-1] == len(ours.encode(huge)) > 60_000
    assert len(ours("x" * 100_000, max_length=16)["input_ids"]) == 16


def test_a_stream_is_in_order_whatever_the_workers(both, monkeypatch):
    ours, _ = both
    monkeypatch.setattr("bertsmith.tokenizer.base._BATCH_CHARS", 2000)
    texts = village(20)
    expected = ours.encode_flat(texts)
    for workers in (1, 2):
        parts = list(ours.encode_stream(texts, workers=workers))
        assert len(parts) > 2
        assert np.concatenate([part.ids for part in parts]).tolist() == expected.ids.tolist()


def test_words_are_those_of_the_text(both):
    ours, _ = both
    text = "The man's café, (今天) B2B ok."
    flat = ours.align_words([text, "", text])
    words = ["The", "man", "'", "s", "café", ",", "(", "今", "天", ")", "B2B", "ok", "."]
    spans = dict(zip(flat.word_ids[: flat.bounds[1]], zip(flat.starts, flat.ends, strict=True), strict=False))
    assert [text[start:end] for start, end in spans.values()] == words
    assert flat.bounds[1] == flat.bounds[2] == flat.bounds[3] // 2
    # a word by itself has the pieces that it has inside of a text
    inside, alone = ours.encode("a man eats"), ours.encode_words(["man"]).ids.tolist()
    assert any(inside[at : at + len(alone)] == alone for at in range(len(inside)))


def test_pieces_that_go_on_with_a_word(both):
    ours, _ = both
    text = "The womankind eats, (today) 天气"
    row = ours(text)
    spans: dict[int, tuple[int, int]] = {}
    for (start, end), word in zip(row["offsets"][1:-1], row["word_ids"][1:-1], strict=True):
        first, last = spans.get(word, (start, end))
        spans[word] = (min(first, start), max(last, end))
    words = [text[start:end].strip() for start, end in spans.values()]
    assert words == ["The", "womankind", "eats", ",", "(", "today", ")", "天", "气"]
    goes_on = ours.continuations(np.array(ours.encode(text)))
    # of a text's first piece nobody knows what stood before it
    assert (~goes_on[1:]).sum() == len(words) - 1


def test_user_tokens_can_be_added(both):
    ours, _ = both
    larger = ours.with_pieces([], ["[E1]", "<url>"])
    assert larger.vocab[len(ours) :] == ["[E1]", "<url>"]
    assert {len(ours), len(ours) + 1} <= set(larger.encode("see [E1] at <url>"))
    assert larger.encode("the man") == ours.encode("the man")
    with pytest.raises(InputError, match="cannot take new pieces"):
        ours.with_pieces(["bread"])


def test_wordpiece_stays_ours(tmp_path):
    WordPieceTokenizer.train(village(5), vocab_size=200).save(tmp_path)
    assert isinstance(load_tokenizer(tmp_path), WordPieceTokenizer)
    assert isinstance(load_tokenizer(tmp_path / "vocab.txt"), WordPieceTokenizer)
    assert isinstance(load_tokenizer(tmp_path / "tokenizer.json"), WordPieceTokenizer)


def test_folders_of_old_have_two_files(tmp_path):
    learned = learn_tokenizer(village(), kind="bpe", vocab_size=600, lowercase=False)
    learned.save(tmp_path / "new")
    (tmp_path / "old").mkdir()
    rust = tokenizers.Tokenizer.from_file(str(tmp_path / "new" / "tokenizer.json"))
    rust.model.save(str(tmp_path / "old"))
    old = load_tokenizer(tmp_path / "old")
    texts = [*TEXTS, "the <mask> eats"]
    assert old.encode_batch(texts, parse_special=True) == learned.encode_batch(texts, parse_special=True)
    assert old.template == learned.template
    assert old.special_tokens == learned.special_tokens
    peer = transformers.RobertaTokenizer.from_pretrained(tmp_path / "old")
    assert old("a man", "the woman")["input_ids"] == peer("a man", "the woman")["input_ids"]
    with pytest.raises(InputError, match=r"tokenizr\.json: no such file"):
        load_tokenizer(tmp_path / "old" / "tokenizr.json")
    (tmp_path / "old" / "merges.txt").write_text("#version: 0.2\nzz qq\n")
    with pytest.raises(InputError, match=r"vocab\.json and merges\.txt make no tokenizer") as caught:
        load_tokenizer(tmp_path / "old")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["spiece.model", "sentencepiece.bpe.model", "tokenizer.model", "spm.model"])
def test_sentencepiece_files_are_refused_with_the_way_out(tmp_path, name):
    (tmp_path / name).write_bytes(b"\n\x0b")
    with pytest.raises(InputError, match=r"convert it .*save_pretrained") as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)
    assert name in TOKENIZER_FILES


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text[: len(text) // 2], "save the tokenizer again"),
        (lambda text: text.replace('"BPE"', '"Bpe2"'), "cannot read it"),
        (
            lambda text: json.dumps({**json.loads(text), "model": {"type": "BPE", "vocab": [], "merges": []}}),
            "vocabulary",
        ),
        (lambda text: json.dumps({**json.loads(text), "model": {"type": "Unigram", "vocab": [["a"]]}}), "vocabulary"),
        (lambda text: json.dumps({**json.loads(text), "added_tokens": [{"id": "x"}]}), "added token"),
        (lambda text: json.dumps({**json.loads(text), "pre_tokenizer": {"type": "Nothing"}}), "cannot read it"),
        (
            lambda text: json.dumps({**json.loads(text), "post_processor": {"type": "RobertaProcessing"}}),
            "template|read",
        ),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path, change, says):
    learn_tokenizer(village(5), kind="bpe", vocab_size=300).save(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(change(path.read_text()))
    with pytest.raises(InputError, match=says) as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)
    assert "tokenizer.json" in str(caught.value)


def test_without_a_template_rows_are_refused(tmp_path):
    learn_tokenizer(village(5), kind="bpe", vocab_size=300).save(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "post_processor": None}))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("the man")
    with pytest.raises(InputError, match="which special tokens stand around a text"):
        tokenizer("the man")


def test_a_vocabulary_without_unk(tmp_path):
    learn_tokenizer(village(5), kind="bpe", vocab_size=300).save(tmp_path)
    text = (tmp_path / "tokenizer.json").read_text().replace('"<unk>"', '"spare"')
    (tmp_path / "tokenizer.json").write_text(text)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config.pop("unk_token")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.unk_token_id is None
    assert tokenizer.blank_token_id == tokenizer.mask_token_id


def test_the_library_is_needed_only_where_it_is(tmp_path, monkeypatch):
    learn_tokenizer(village(5), kind="bpe", vocab_size=300).save(tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r"pip install 'bertsmith\[tokenizers\]'"):
        load_tokenizer(tmp_path)
    WordPieceTokenizer.train(village(5), vocab_size=200).save(tmp_path / "own")
    assert isinstance(load_tokenizer(tmp_path / "own"), WordPieceTokenizer)


def test_importing_costs_no_library():
    code = (
        "import sys, bertsmith, bertsmith.tokenizer, bertsmith.inference, bertsmith.data.corpus.build;"
        " assert 'tokenizers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_special_token_is_special_where_only_the_settings_say_so(tmp_path):
    words = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "the": 5, "man": 6}
    rust = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    rust.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    places = [("[SEP]", 3), ("[CLS]", 2)]
    rust.post_processor = tokenizers.processors.BertProcessing(*places)
    rust.save(str(tmp_path / "tokenizer.json"))
    roles = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(roles))
    tokenizer = load_tokenizer(tmp_path)
    assert isinstance(tokenizer, LibraryTokenizer)
    assert tokenizer.encode("the [MASK] man", parse_special=True) == [5, 4, 6]
    # a word-level model knows "[MASK]" as a word of its own: in plain text it is an unknown one
    assert tokenizer.encode("the [MASK] man") == [5, 1, 6]
    assert tokenizer.encode("the [MASK] [SEP]", parse_special="mask") == [5, 4, 1]
    assert tokenizer("the", "man")["token_type_ids"] == [0, 0, 0, 1, 1]
    assert tokenizer.continuing.sum() == 0


@pytest.mark.parametrize("pair", ["<s> $A </s> $B", "<s>:1 $A </s> $B </s>", "<s> $A </s> $B:1 </s>"])
def test_a_template_that_no_encoder_reads_is_refused(tmp_path, pair):
    learn_tokenizer(village(5), kind="bpe", vocab_size=300).save(tmp_path)
    rust = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    special = [(name, rust.token_to_id(name)) for name in ("<s>", "</s>")]
    rust.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", pair=pair, special_tokens=special
    )
    rust.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InputError, match=r"tokenizer\.json: its template of special tokens is neither"):
        load_tokenizer(tmp_path)


SPACED = {
    "Split": lambda: pre_tokenizers.Split(tokenizers.Regex(r"\s+"), "isolated"),
    "Metaspace": lambda: pre_tokenizers.Metaspace(prepend_scheme="never"),
    "Whitespace": pre_tokenizers.Whitespace,
    "WhitespaceSplit": pre_tokenizers.WhitespaceSplit,
    "Digits": pre_tokenizers.Digits,
    "Punctuation": pre_tokenizers.Punctuation,
    "alone": None,
}


def of_library(folder, first, *, adds_space=True, processor=True):
    """Makes a folder whose pre-tokenizer is a sequence, as RobBERT's; `processor`: what the post-processor says."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=adds_space)
    made.pre_tokenizer = pre_tokenizers.Sequence([SPACED[first](), by_bytes]) if SPACED[first] else by_bytes
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=500, special_tokens=tokens, initial_alphabet=alphabet)
    made.train_from_iterator(village(), trainer)
    made.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0), True, processor)
    made.decoder = tokenizers.decoders.ByteLevel()
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    names = dict(zip(("cls", "pad", "sep", "unk", "mask"), tokens, strict=True))
    (folder / "tokenizer_config.json").write_text(json.dumps({f"{role}_token": name for role, name in names.items()}))
    return load_tokenizer(folder)


@pytest.mark.parametrize("processor", [True, False])
@pytest.mark.parametrize("adds_space", [True, False])
@pytest.mark.parametrize("first", SPACED)
def test_offsets_are_where_the_piece_stands(first, adds_space, processor, tmp_path):
    tokenizer = of_library(tmp_path, first, adds_space=adds_space, processor=processor)
    text = "The man eats  bread, a b\u3000I am 12 years! café"
    aligned = tokenizer.align_flat([text, "x", text])
    rows = [tokenizer(text), tokenizer(text, parse_special=True)]
    spans = list(zip(aligned.starts[: aligned.bounds[1]].tolist(), aligned.ends.tolist(), strict=False))
    assert rows[0]["offsets"][1:-1] == rows[1]["offsets"][1:-1] == spans
    covered = set()
    for (start, end), index in zip(spans, aligned.ids.tolist(), strict=False):
        piece = tokenizer.piece_text(index)
        if tokenizer.vocab[index].strip("Ġ").isascii():
            assert text[start:end].strip() == ("" if tokenizer.vocab[index].strip("Ġ") == "" else piece)
        covered |= set(range(start, end))
    assert {place for place, char in enumerate(text) if not char.isspace()} <= covered


@pytest.mark.parametrize(
    ("texts", "normalizer", "text", "pieces"),
    [
        (["ACGTACGTAACCGGTT"] * 9, None, "123ACGT 4ACGT", ["ACGT", "ACGT"]),
        (["bread and fish"] * 9, r"\d", "bread 12fish 3and", ["bread", "fish", "and"]),
    ],
    ids=["another alphabet", "digits dropped"],
)
def test_what_a_vocabulary_cannot_write_belongs_to_no_piece(texts, normalizer, text, pieces, tmp_path):
    """Letters that it lacks are no fault of the library: the next piece is not made longer by them."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits()])
    if normalizer:
        made.normalizer = tokenizers.normalizers.Replace(tokenizers.Regex(normalizer), "")
    tokens = ["<s>", "<pad>", "</s>", "<mask>"]
    made.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(vocab_size=60, special_tokens=tokens))
    made.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0), True, False)
    made.save(str(tmp_path / "tokenizer.json"))
    names = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "mask_token": "<mask>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names))
    tokenizer = load_tokenizer(tmp_path)
    aligned = tokenizer.align_flat([text])
    assert [tokenizer.vocab[index] for index in aligned.ids.tolist()] == pieces
    assert [text[start:end] for start, end in zip(aligned.starts, aligned.ends, strict=True)] == pieces


@pytest.mark.parametrize("first", SPACED)
def test_answers_and_words_are_found_whatever_the_pre_tokenizer(first, tmp_path):
    tokenizer = of_library(tmp_path, first, processor=False)
    context = "I live in Amsterdam, b , with the doctor 12"
    places = []
    for answer in ("I", "Amsterdam", "b", "doctor", "12"):
        truth = Answer(answer, context.index(f" {answer}") + 1 if answer != "I" else 0)
        (row,) = AnsweringTask().encode(tokenizer, [QuestionExample("1", "who ?", context, (truth,))], 128)
        cut = WindowCutter(tokenizer, 128, 0).cut("who ?", context)
        start, end = (place - len(cut.head) for place in row.label)
        places.append(context[cut.passage.starts[start] : cut.passage.ends[end]])
    assert places == ["I", "Amsterdam", "b", "doctor", "12"]
    words, spans = words_in_texts(tokenizer, [context])
    assert [context[start:end] for start, end in spans[0].tolist()] == re.findall(r"\w+|,", context)
    if first == "Whitespace":
        assert words[0].ids == tokenizer.encode(context)
