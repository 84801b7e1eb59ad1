"""The WordPiece tokenizer: text to ids, ids to text, model inputs, files.

`encode` is one dictionary lookup per chunk of text (see `lookup`), so it is as fast as C on text that repeats. Encoding
drops spaces, so decoding has to guess them. Only guesses that cannot change the ids are made: a space is left out where
the tokenizer would cut anyway, beside punctuation and between CJK characters.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith.hub import model_folder
from bertsmith.tokenizer.base import SpecialWord, Tokenizer
from bertsmith.tokenizer.encoding import FlatIds, FlatTokens, Template, Tokens, collector_paused, no_text, split_batches
from bertsmith.tokenizer.files import check_vocab, read_config, read_length_limit, read_tokenizer, write_tokenizer
from bertsmith.tokenizer.learn import Note, Progress, VocabularySettings, learn_vocab, unused_tokens
from bertsmith.tokenizer.lookup import TextEncoder, WordMatcher
from bertsmith.tokenizer.normalize import is_standalone
from bertsmith.tokenizer.settings import BERT_TOKENS, Settings, SpecialTokens, WrittenTokens, check_user_tokens

# 每代缓存的容量（字符数加每条固定开销）：约十六万个英文块；两代都满时实测 ids 约 90 MB，带位置的最多 200 MB
CACHE_CAPACITY = 1 << 22
# 查表时合成一批的字符数：中间结果留在高速缓存里
_LOOKUP_CHARS = 1 << 13


class WordPieceTokenizer(Tokenizer):
    """Cuts text into pieces of a vocabulary (Wu et al. 2016; Devlin et al. 2019, §3); `##` begins those inside a word.

    Attributes:
        strip_accents: accents are stripped; None means exactly when lower-casing, as in the original release.
        tokenize_chinese_chars: every CJK character is a word of its own.
        max_word_chars: longer words are `[UNK]`.

    Raises:
        InputError: the vocabulary is empty, holds a word-starting piece twice, or lacks `[UNK]` or a user token.
    """

    def __init__(
        self,
        vocab: Sequence[str],
        *,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        tokenize_chinese_chars: bool = True,
        special_tokens: SpecialTokens = BERT_TOKENS,
        user_tokens: Sequence[str] = (),
        max_word_chars: int = 100,
    ) -> None:
        self.vocab = list(vocab)
        check_vocab(self.vocab, "vocab", special_tokens.unk)
        self.piece_to_id = {piece: index for index, piece in enumerate(self.vocab)}
        self.lowercase = lowercase
        self.strip_accents = strip_accents
        self.tokenize_chinese_chars = tokenize_chinese_chars
        self.special_tokens = special_tokens
        self.user_tokens = check_user_tokens(user_tokens, special_tokens, self.piece_to_id)
        self.max_word_chars = max_word_chars
        self._settings = Settings(
            lowercase, strip_accents, tokenize_chinese_chars, special_tokens, self.user_tokens, max_word_chars
        )
        special = {token: self.piece_to_id[token] for token in special_tokens if token in self.piece_to_id}
        users = {token: self.piece_to_id[token] for token in self.user_tokens}
        self.special_ids = frozenset(special.values())
        masks = {token: index for token, index in special.items() if token == special_tokens.mask}
        # 默认只认用户自定义的词元；特殊词元要调用者明说才认，用户文本无法伪造分段
        read: dict[SpecialWord, dict[str, int]] = {False: users, "mask": masks | users, True: special | users}
        self._written = {word: WrittenTokens(ids) if ids else None for word, ids in read.items()}
        self._integers = np.arange(len(self.vocab)).astype(object)
        self._normalizer = self._settings.normalizer()
        self._matcher = WordMatcher(self.piece_to_id, self.piece_to_id[special_tokens.unk], max_word_chars)
        self._encoder = TextEncoder(self._normalizer, self._matcher, CACHE_CAPACITY)

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        *,
        vocab_size: int = 30522,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        tokenize_chinese_chars: bool = True,
        min_frequency: int = 2,
        limit_alphabet: int | None = None,
        num_unused: int = 0,
        user_tokens: Sequence[str] = (),
        workers: int = 1,
        on_progress: Progress | None = None,
        on_note: Note | None = None,
    ) -> "WordPieceTokenizer":
        """Learns a vocabulary from text by merging the most frequent pair of pieces, again and again.

        Pairs are scored by frequency rather than by WordPiece's likelihood ratio (see `learn`). The result depends on
        the word counts only, not on the order of the texts nor on `workers`.

        The arguments are those of `learn_tokenizer`; `strip_accents` None means exactly when lower-casing, and without
        `tokenize_chinese_chars` a CJK character is no word of its own.

        Raises:
            InputError: no words in the text, a user token that is taken or cannot be written, or `vocab_size` below the
                alphabet's size.
            ConfigError: a value is out of range.
            BertsmithError: a worker process was killed.
        """
        # 数完几十 GB 才发现词元重名就太晚了：先查
        taken = [*BERT_TOKENS, *unused_tokens(num_unused)]
        checked = check_user_tokens(user_tokens, taken)
        settings = Settings(lowercase, strip_accents, tokenize_chinese_chars, user_tokens=checked)
        wanted = VocabularySettings(vocab_size, min_frequency, limit_alphabet, num_unused, checked)
        how: dict[str, Any] = {"workers": workers, "on_progress": on_progress, "on_note": on_note}
        vocab, longest = learn_vocab(texts, settings.normalizer(), wanted, **how)
        return _rebuild(vocab, settings._replace(max_word_chars=longest))

    @classmethod
    def load(cls, path: str | Path, *, lowercase: bool | None = None) -> "WordPieceTokenizer":
        """Loads a tokenizer folder, or a `vocab.txt` alone.

        `lowercase` overrules the folder's setting; a vocabulary file alone says nothing, and True is assumed.

        Raises:
            InputError: a file is missing or malformed, or asks for something other than BERT's tokenization.
        """
        folder = model_folder(path, weights=False)
        vocab, settings = read_tokenizer(folder)
        if lowercase is not None:
            settings = settings._replace(lowercase=lowercase)
        return _rebuild(vocab, settings, read_length_limit(read_config(folder)))

    def with_pieces(self, pieces: Sequence[str], user_tokens: Sequence[str] = ()) -> "WordPieceTokenizer":
        """Makes a tokenizer with more pieces and the same settings; the ids of the pieces so far stay."""
        settings = self._settings._replace(user_tokens=(*self.user_tokens, *user_tokens))
        return _rebuild([*self.vocab, *pieces, *user_tokens], settings, self.model_max_length)

    def with_only(self, ids: Sequence[int]) -> "WordPieceTokenizer":
        """Makes a tokenizer with some of the pieces and the same settings; the ids count anew, in the order given."""
        return _rebuild([self.vocab[index] for index in ids], self._settings, self.model_max_length)

    def save(self, folder: str | Path, *, model_max_length: int | None = None) -> None:
        """Writes `vocab.txt`, `tokenizer_config.json`, `special_tokens_map.json` and `tokenizer.json`."""
        write_tokenizer(Path(folder), self.vocab, self._settings, model_max_length)

    def encode(self, text: str, *, parse_special: SpecialWord = False) -> list[int]:
        """Turns a text into ids, without `[CLS]` and `[SEP]`."""
        if not isinstance(text, str):
            raise no_text(text, "the text")
        return memoryview(self._encoder.encode(text, self._written[parse_special])).cast("i").tolist()

    def encode_batch(self, texts: Iterable[str], *, parse_special: SpecialWord = False) -> list[list[int]]:
        """Turns many texts into lists of ids; `encode_flat` gives arrays."""
        rows: list[list[int]] = []
        with collector_paused():
            for batch in split_batches(texts, _LOOKUP_CHARS):
                packed = self._encoder.encode_marked(batch, self._written[parse_special])
                flat = FlatIds.from_marked(packed)
                # 每个 id 只有一个整数对象，各行共用：取引用比为每个 token 新建对象快得多，也省内存
                ids = self._integers[flat.ids].tolist()
                rows += [ids[start:end] for start, end in pairwise(flat.bounds.tolist())]
        return rows

    def encode_flat(self, texts: Iterable[str], *, parse_special: SpecialWord = False) -> FlatIds:
        """Turns many texts into two arrays: all ids one after another, and where each text starts and ends."""
        encode, written = self._encoder.encode_marked, self._written[parse_special]
        # 每个文本之后有一个 -1：一遍流过就同时得到 id 和边界，途中没有 id 列表
        return FlatIds.from_marked(b"".join(encode(batch, written) for batch in split_batches(texts, _LOOKUP_CHARS)))

    def align_flat(self, texts: Iterable[str], *, parse_special: SpecialWord = False) -> FlatTokens:
        """Turns many texts into arrays of ids, character offsets and word ids."""
        return self._encoder.align_flat(texts, self._written[parse_special])

    def normalized(self, word: str) -> str:
        """Returns a word as the vocabulary spells it: lower-cased and without accents where the settings say so."""
        return "".join(self._normalizer.words(word))

    def spell(self, piece: str) -> list[int]:
        """Spells a piece that is not in the vocabulary with those that are."""
        text = piece.removeprefix("##")
        words = [word for chunk in self._normalizer.chunks(text) for word in self._normalizer.words(chunk)]
        # 标点和汉字总是独立成词，词中的写法谁也读不到
        is_apart = piece != text and is_standalone(text[:1], self.tokenize_chinese_chars)
        if words != [text] or len(text) > self.max_word_chars or is_apart:
            raise InputError(
                f"piece {piece!r}: no text is ever cut into it, {text!r} is read as the words {words}; write it as the"
                " tokenizer reads it, or pass it among user_tokens"
            )
        if text == piece:
            return self.encode(text)
        return memoryview(self._matcher.spell_inside(text)).cast("i").tolist()

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Joins ids to readable text; encoding that text gives the same ids again.

        Case, accents and spaces that encoding dropped do not come back. Closing punctuation and English
        contractions are joined to the word before them, and CJK characters to one another.
        """
        pieces = [self.vocab[index] for index in self._known_ids(ids, skip_special_tokens)]
        return join_pieces(pieces, self.tokenize_chinese_chars)

    def _tokens(self, text: str, *, parse_special: SpecialWord) -> Tokens:
        return self._encoder.align(text, self._written[parse_special])

    def __reduce__(self) -> tuple[Any, ...]:
        # 缓存不随对象序列化：别的进程只收到词表，自己重新积累
        return _rebuild, (self.vocab, self._settings, self.model_max_length)

    @functools.cached_property
    def template(self) -> Template:
        """`[CLS] A [SEP]`, and `[CLS] A [SEP] B [SEP]` with B in segment 1."""
        start, separator = (self.cls_token_id,), (self.sep_token_id,)
        return Template(start, separator, separator)

    @functools.cached_property
    def continuing(self) -> NDArray[np.bool_]:
        """[V], True for `##` pieces."""
        return np.fromiter((piece.startswith("##") for piece in self.vocab), np.bool_, len(self.vocab))

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hex digest of everything that decides the ids: two tokenizers with the same one give the same ids."""
        return self._settings.fingerprint(self.vocab)


def _rebuild(vocab: list[str], settings: Settings, model_max_length: int | None = None) -> WordPieceTokenizer:
    made = WordPieceTokenizer(vocab, **settings._asdict())
    made.model_max_length = model_max_length
    return made


_NO_SPACE = re.compile(r" (?=[.,!?;:)%](?: |$))|(?<=\() ")
_CONTRACTION = re.compile(r"(?<=[^\W\d_]) ' (?=(?:s|t|m|d|re|ve|ll)\b)", re.IGNORECASE)


def join_pieces(pieces: Sequence[str], tokenize_chinese_chars: bool) -> str:
    """Joins pieces to readable text."""
    parts: list[str] = []
    after_cjk = False
    for piece in pieces:
        if piece.startswith("##") and parts:
            parts.append(piece[2:])
            after_cjk = False
            continue
        # 单个汉字或全角标点两侧不加空格：分词时它们总会被切开
        is_cjk = len(piece) == 1 and not piece.isascii() and is_standalone(piece, tokenize_chinese_chars)
        if parts and not (is_cjk and after_cjk):
            parts.append(" ")
        parts.append(piece)
        after_cjk = is_cjk
    return _NO_SPACE.sub("", _CONTRACTION.sub("'", "".join(parts)))
