"""Learning a tokenizer of a chosen kind: WordPiece as BERT, byte-level BPE as RoBERTa, Unigram as ALBERT and XLM-R.

- WordPiece is learned here (`learn`); the other two by the trainers of the `tokenizers` library, which stream the text
  as well: what is kept in memory are the distinct words
- the same text gives the same file, byte for byte. The library's Unigram trainer adds floating-point numbers in the
  order of a hash table, so its scores differ from run to run; they are rounded and put in order
- special tokens stand first: of byte-level BPE RoBERTa's (`<s> <pad> </s> <unk> <mask>`, ids 0 to 4, texts of a pair in
  one segment), else BERT's (`[PAD] [UNK] [CLS] [SEP] [MASK]`, the second text in segment 1)
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, get_args

from bertsmith.errors import InputError
from bertsmith.files import HALF_CHARACTER
from bertsmith.tokenizer.base import Tokenizer
from bertsmith.tokenizer.encoding import split_batches
from bertsmith.tokenizer.files import dump_json
from bertsmith.tokenizer.learn import AlphabetError, Note, Progress
from bertsmith.tokenizer.library import LibraryTokenizer, import_library
from bertsmith.tokenizer.settings import BERT_TOKENS, SpecialTokens, check_user_tokens
from bertsmith.tokenizer.wordpiece import WordPieceTokenizer

TokenizerKind = Literal["wordpiece", "bpe", "unigram"]

_NAMES = {"bpe": SpecialTokens("<pad>", "<unk>", "<s>", "</s>", "<mask>"), "unigram": BERT_TOKENS}
_ORDER: dict[str, tuple[str, ...]] = {"bpe": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"), "unigram": BERT_TOKENS}
_BATCH_CHARS = 1 << 18
_SCORE_DIGITS = 6
_CHARACTER_STEP = 1e-4
SPECIAL_WORDS = re.compile(r"\[(?:PAD|UNK|CLS|SEP|MASK)\]|</?s>|<(?:pad|unk|mask)>", re.IGNORECASE)
"""Names of special tokens, as text holds them that a model wrote."""


def learn_tokenizer(
    texts: Iterable[str],
    *,
    kind: TokenizerKind = "wordpiece",
    vocab_size: int = 30522,
    lowercase: bool = True,
    min_frequency: int = 2,
    limit_alphabet: int | None = None,
    num_unused: int = 0,
    user_tokens: Sequence[str] = (),
    workers: int = 1,
    on_progress: Progress | None = None,
    on_note: Note | None = None,
) -> Tokenizer:
    """Learns a tokenizer from text.

    Args:
        texts: lines, documents, anything that does not cut words; read once, in bounded memory.
        kind: `wordpiece`, `bpe` (byte-level: it spells every text and needs no `[UNK]`) or `unigram` (chooses the
            likeliest pieces, for text without spaces too).
        vocab_size: most pieces; the vocabulary is smaller where the text supports no more.
        lowercase: lower-case words and strip accents.
        min_frequency: a pair seen less often is not merged; `unigram` has no such limit.
        limit_alphabet: keep only the most frequent characters; words with others become `[UNK]`; `wordpiece` only.
        num_unused: reserve this many `[unusedN]` places after `[PAD]`; `wordpiece` only.
        user_tokens: tokens that are to be one piece wherever they are written, such as `<url>`.
        workers: processes that count words for `wordpiece`; the library takes all cores.
        on_note: told what was left out or may not be expected, such as special tokens that the text holds as words.

    Raises:
        InputError: no words in the text, or an option that the kind does not have.
        AlphabetError: `vocab_size` is below the size of the alphabet.
        ConfigError: a value is out of range, or the library is needed and not installed.
    """
    if kind not in get_args(TokenizerKind):
        raise InputError(f"kind {kind!r} is unknown; use {', '.join(get_args(TokenizerKind))}")
    written: Counter[str] = Counter()
    # 换成空格而不是学成词片：网上抓来的模型输出里满是 [SEP]，"[sep" 这样的词片只会白占词表
    texts = _without_special(texts, written, replaced=kind != "wordpiece", users=user_tokens)

    def tell_written() -> None:
        if written and on_note is not None:
            listed = ", ".join(f"{token} {count:,} times" for token, count in written.most_common(5))
            treated = "read as plain characters" if kind == "wordpiece" else "left out of the learning"
            on_note(f"special tokens stand in the text as words ({listed}); they are {treated}, never ids of their own")

    if kind == "wordpiece":
        learned = WordPieceTokenizer.train(
            texts,
            vocab_size=vocab_size,
            lowercase=lowercase,
            min_frequency=min_frequency,
            limit_alphabet=limit_alphabet,
            num_unused=num_unused,
            user_tokens=user_tokens,
            workers=workers,
            on_progress=on_progress,
            on_note=on_note,
        )
        tell_written()
        return learned
    if limit_alphabet is not None or num_unused:
        raise InputError(f"limit_alphabet and num_unused belong to wordpiece; leave them out for {kind}")
    users = check_user_tokens(user_tokens, _ORDER[kind])
    library = import_library()
    made = _untrained(library, kind, lowercase)
    # 掩码的词片带着它前面的空格，所以 [MASK] 也吞掉自己前面的空格
    mask = _NAMES[kind].mask
    special = [library.AddedToken(name, lstrip=name == mask, special=True) for name in _ORDER[kind]]
    feed = _Feed(texts, on_progress, cut=kind == "unigram")
    settings: dict[str, Any] = {
        "vocab_size": vocab_size - len(users),
        "special_tokens": special,
        "show_progress": False,
    }
    if kind == "bpe":
        alphabet = library.pre_tokenizers.ByteLevel.alphabet()
        if settings["vocab_size"] < len(special) + len(alphabet):
            raise _too_small(vocab_size, len(special) + len(users), f"{len(alphabet)} bytes")
        trainer = library.trainers.BpeTrainer(**settings, min_frequency=min_frequency, initial_alphabet=alphabet)
    else:
        trainer = library.trainers.UnigramTrainer(**settings, unk_token=_NAMES[kind].unk)
    # 学习时不派生进程：让库用上所有的核；载入库时已经设过这一项
    before, os.environ["TOKENIZERS_PARALLELISM"] = os.environ["TOKENIZERS_PARALLELISM"], "true"
    try:
        made.train_from_iterator(feed, trainer)
    except Exception as error:
        if "not large enough" not in str(error):
            raise
        raise _too_small(vocab_size, len(special) + len(users), "the characters of this text") from None
    finally:
        os.environ["TOKENIZERS_PARALLELISM"] = before
    tell_written()
    if not feed.has_words:
        raise InputError("the texts hold no words to learn a vocabulary from; give at least one line of text")
    if on_progress is not None:
        on_progress("merging", made.get_vocab_size(), made.get_vocab_size())
    made.post_processor = _processor(library, kind, made)
    made.add_tokens([library.AddedToken(token, normalized=False) for token in users])
    return LibraryTokenizer(_in_order(made, len(special)), _config(kind))


def _without_special(
    texts: Iterable[str], written: Counter[str], *, replaced: bool, users: Sequence[str]
) -> Iterable[str]:
    """Counts the special tokens that texts hold as words, and replaces them by a space if asked to."""
    if isinstance(texts, str):
        return texts

    def each() -> Iterator[str]:
        for text in texts:
            if isinstance(text, str) and ("[" in text or "<" in text):
                found = [token for token in SPECIAL_WORDS.findall(text) if token not in users]
                written.update(found)
                if replaced and found:
                    text = SPECIAL_WORDS.sub(lambda match: match[0] if match[0] in users else " ", text)
            yield text

    return each()


class _Feed:
    """The texts in batches, told on as they are read, with what no vocabulary can hold replaced."""

    def __init__(self, texts: Iterable[str], on_progress: Progress | None, *, cut: bool) -> None:
        self._batches = split_batches(texts, _BATCH_CHARS)
        self._tell = on_progress
        self._cut = cut
        self.has_words = False

    def __iter__(self) -> Iterator[list[str]]:
        done = 0
        for batch in self._batches:
            done += sum(map(len, batch))
            self.has_words = self.has_words or any(not text.isspace() and text for text in batch)
            # 孤立的代理字符不能写成 UTF-8，学不了：当作空格
            clean = [HALF_CHARACTER.sub(" ", text) for text in batch]
            yield [text.replace("\0", " ") for text in clean] if self._cut else clean
            if self._tell is not None:
                self._tell("counting", done, 0)


def _untrained(library: Any, kind: str, lowercase: bool) -> Any:
    normalizers, pre_tokenizers = library.normalizers, library.pre_tokenizers
    # 去掉重音之后再合成（NFC）：否则韩文音节会留下一串字母
    lowered = [
        normalizers.NFKD() if kind == "unigram" else normalizers.NFD(),
        normalizers.StripAccents(),
        normalizers.Lowercase(),
        normalizers.NFC(),
    ]
    if kind == "bpe":
        made = library.Tokenizer(library.models.BPE())
        if lowercase:
            made.normalizer = normalizers.Sequence(lowered)
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = library.decoders.ByteLevel()
        return made
    made = library.Tokenizer(library.models.Unigram())
    one_space = normalizers.Replace(library.Regex(r"\s+"), " ")
    made.normalizer = normalizers.Sequence(
        [*(lowered if lowercase else [normalizers.NFKC()]), one_space, normalizers.Strip(left=False, right=True)]
    )
    # 只在整段文本的开头补空格：[MASK] 之后的逗号前面本来就没有空格
    spaces = {"replacement": "▁", "prepend_scheme": "first"}
    made.pre_tokenizer = pre_tokenizers.Metaspace(**spaces)
    made.decoder = library.decoders.Metaspace(**spaces)
    return made


def _processor(library: Any, kind: str, made: Any) -> Any:
    names = _NAMES[kind]
    cls, sep = ((name, made.token_to_id(name)) for name in (names.cls, names.sep))
    if kind == "bpe":
        return library.processors.RobertaProcessing(sep, cls, trim_offsets=True, add_prefix_space=False)
    return library.processors.TemplateProcessing(
        single=f"{cls[0]} $A {sep[0]}", pair=f"{cls[0]} $A {sep[0]} $B:1 {sep[0]}:1", special_tokens=[cls, sep]
    )


def _in_order(made: Any, num_special: int) -> str:
    """Returns the `tokenizer.json`; of a Unigram model with rounded scores and its pieces in their order."""
    content = json.loads(made.to_str())
    model = content["model"]
    if model["type"] == "Unigram":
        special, vocab = model["vocab"][:num_special], dict(model["vocab"][num_special:])
        # 库按哈希表的次序累加浮点数，末位不定：取整
        scores = {piece: round(score, _SCORE_DIGITS) for piece, score in vocab.items()}
        # 没学到的单字，库也按哈希表的次序给分：最低分起，每字多 0.0001；换成按文字的次序给
        characters = [piece for piece in scores if len(piece) == 1]
        limit = min(scores.values()) + _CHARACTER_STEP * len(characters)
        rare = sorted(piece for piece in characters if scores[piece] <= limit)
        scores |= dict(zip(rare, sorted((scores[piece] for piece in rare), reverse=True), strict=True))
        model["vocab"] = special + sorted(map(list, scores.items()), key=lambda row: (-row[1], row[0]))
        # 用户的词元若也是学到的词片，编号随它在词表里的新位置
        places = {piece: place for place, (piece, _) in enumerate(model["vocab"])}
        for token in content["added_tokens"]:
            token["id"] = places.get(token["content"], token["id"])
    return dump_json(content)


def _config(kind: str) -> dict[str, Any]:
    # 两段同属一个句段的模型没有句段向量：transformers 也就不要给出 token_type_ids
    types = [] if kind == "bpe" else ["token_type_ids"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{role}_token": name for role, name in _NAMES[kind]._asdict().items()},
        "model_input_names": ["input_ids", *types, "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }


def _too_small(vocab_size: int, reserved: int, alphabet: str) -> AlphabetError:
    return AlphabetError(
        f"a vocabulary of {vocab_size} cannot hold the {reserved} reserved tokens and {alphabet}; give it more"
    )
