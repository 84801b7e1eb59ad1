"""The WordPiece tokenizer: text to ids, ids to text, model inputs, files.

Notable:
- `encode` is one dictionary lookup per chunk of text (see `lookup`), so it is as fast as C on text that repeats
- special tokens written in a text (`[MASK]`, `[SEP]`) are plain text unless the caller passes `parse_special=True`:
  what a user types cannot forge a segment border
- what all tokenizers share (rows of model inputs, streams) is in `base`; the rest lives next door: rules for words in
  `normalize`, matching in `match`, the hot loop in `lookup`, learning in `learn`
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith.hub import model_folder
from bertsmith.tokenizer.base import Tokenizer
from bertsmith.tokenizer.batches import collector_paused, split_batches
from bertsmith.tokenizer.calling import as_ids
from bertsmith.tokenizer.decode import join_pieces
from bertsmith.tokenizer.files import read_length_limit, read_tokenizer, write_tokenizer
from bertsmith.tokenizer.flat import FlatIds, FlatTokens, Tokens
from bertsmith.tokenizer.learn import Progress, VocabularySettings, learn_vocab, unused_tokens
from bertsmith.tokenizer.lookup import TextEncoder
from bertsmith.tokenizer.match import WordMatcher
from bertsmith.tokenizer.settings import BERT_TOKENS, Settings, SpecialTokens, WrittenTokens, check_user_tokens
from bertsmith.tokenizer.template import Template
from bertsmith.tokenizer.vocabulary import check_vocab

# 每代缓存的容量（字符数加每条固定开销）：约十六万个英文块；两代都满时实测 ids 约 90 MB，带位置的最多 200 MB
CACHE_CAPACITY = 1 << 22
# 查表时合成一批的字符数：中间结果留在高速缓存里
_LOOKUP_CHARS = 1 << 13


class WordPieceTokenizer(Tokenizer):
    """Cuts text into pieces of a vocabulary (Wu et al. 2016, as used by Devlin et al. 2019, §3).

    Attributes:
        vocab: the pieces in the order of their ids; those inside a word start with `##`.
        piece_to_id: the same, the other way round.
        lowercase: words are lower-cased.
        strip_accents: accents are stripped; None means exactly when lower-casing, as in the original release.
        tokenize_chinese_chars: every CJK character is a word of its own.
        special_tokens: what the special tokens are called in this vocabulary.
        special_ids: ids of the special tokens that are in the vocabulary.
        user_tokens: pieces to recognise wherever they are written, before any other rule.
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
        # 默认只认用户自定义的词元；特殊词元要调用者明说才认，用户文本无法伪造分段
        self._written = {False: WrittenTokens(users) if users else None, True: WrittenTokens(special | users)}
        self._integers = np.arange(len(self.vocab)).astype(object)
        self._normalizer = self._settings.normalizer()
        self._matcher = WordMatcher(self.piece_to_id, self.unk_token_id, max_word_chars)
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
    ) -> "WordPieceTokenizer":
        """Learns a vocabulary from text by merging the most frequent pair of pieces, again and again.

        Pairs are scored by frequency rather than by WordPiece's likelihood ratio: that yields fewer pieces per word
        (see `learn`). The result depends on the word counts only, not on the order of the texts nor on `workers`;
        ties are broken by the text of the pair.

        Args:
            texts: lines, documents, anything that does not cut words; read once, in bounded memory.
            vocab_size: most pieces; the vocabulary is smaller where the text supports no more.
            lowercase: lower-case words.
            strip_accents: strip accents; None means exactly when lower-casing.
            tokenize_chinese_chars: make every CJK character a word of its own.
            min_frequency: a pair seen less often is not merged.
            limit_alphabet: keep only the most frequent characters; words with others become `[UNK]`.
            num_unused: reserve this many `[unusedN]` places after `[PAD]`.
            user_tokens: tokens that are to be one piece wherever they are written, such as `<url>`.
            workers: processes that count words.
            on_progress: told now and then what is done and how far.

        Returns:
            A tokenizer with the learned vocabulary.

        Raises:
            InputError: no words in the text, a value out of range, a user token that is taken or cannot be written, or
                `vocab_size` below the alphabet's size.
            BertsmithError: a worker process was killed.
        """
        # 数完几十 GB 才发现词元重名就太晚了：先查
        taken = [*BERT_TOKENS, *unused_tokens(num_unused)]
        checked = check_user_tokens(user_tokens, taken)
        settings = Settings(lowercase, strip_accents, tokenize_chinese_chars, user_tokens=checked)
        wanted = VocabularySettings(vocab_size, min_frequency, limit_alphabet, num_unused, checked)
        vocab = learn_vocab(texts, settings.normalizer(), wanted, workers=workers, on_progress=on_progress)
        return _rebuild(vocab, settings)

    @classmethod
    def load(cls, path: str | Path, *, lowercase: bool | None = None) -> "WordPieceTokenizer":
        """Loads a tokenizer folder, or a `vocab.txt` alone.

        Args:
            path: the folder (`vocab.txt` or `tokenizer.json`, and its settings) or the vocabulary file.
            lowercase: overrules the folder's setting; a vocabulary file alone says nothing, and True is assumed.

        Returns:
            The tokenizer.

        Raises:
            InputError: a file is missing or malformed, or asks for something other than BERT's tokenization.
        """
        folder = model_folder(path, weights=False)
        vocab, settings = read_tokenizer(folder)
        if lowercase is not None:
            settings = settings._replace(lowercase=lowercase)
        made = _rebuild(vocab, settings)
        made.model_max_length = read_length_limit(folder)
        return made

    def with_pieces(self, pieces: Sequence[str], user_tokens: Sequence[str] = ()) -> "WordPieceTokenizer":
        """Makes a tokenizer with more pieces and the same settings; the ids of the pieces so far stay.

        Args:
            pieces: what to add, in the order of the new ids.
            user_tokens: more tokens that are one piece wherever they are written; added after `pieces`.

        Returns:
            The larger tokenizer.

        Raises:
            InputError: a piece is there already, or a user token cannot be one.
        """
        settings = self._settings._replace(user_tokens=(*self.user_tokens, *user_tokens))
        return _rebuild([*self.vocab, *pieces, *user_tokens], settings)

    def with_only(self, ids: Sequence[int]) -> "WordPieceTokenizer":
        """Makes a tokenizer with some of the pieces and the same settings; the ids count anew, in the order given.

        Raises:
            InputError: `[UNK]` or a user token is left out.
        """
        return _rebuild([self.vocab[index] for index in ids], self._settings)

    def save(self, folder: str | Path, *, model_max_length: int | None = None) -> None:
        """Writes `vocab.txt`, `tokenizer_config.json`, `special_tokens_map.json` and `tokenizer.json`.

        Args:
            folder: where; created if it is missing. `transformers` and `tokenizers` load it to the same ids.
            model_max_length: most ids that the model beside it reads, with `[CLS]` and `[SEP]`: where `transformers`
                cuts long texts. None where there is no model.

        Raises:
            RunFolderError: the folder cannot be written.
        """
        write_tokenizer(Path(folder), self.vocab, self._settings, model_max_length)

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Turns a text into ids, without `[CLS]` and `[SEP]`.

        Args:
            text: any text.
            parse_special: recognise special tokens written in the text, such as `[MASK]`; otherwise they are
                ordinary brackets and words.

        Returns:
            The ids, each in [0, vocab_size).
        """
        return memoryview(self._encoder.encode(text, self._written[parse_special])).cast("i").tolist()

    def encode_batch(self, texts: Iterable[str], *, parse_special: bool = False) -> list[list[int]]:
        """Turns many texts into lists of ids; `encode_flat` gives arrays.

        Args:
            texts: any texts.
            parse_special: as in `encode`.

        Returns:
            For each text its ids.
        """
        rows: list[list[int]] = []
        with collector_paused():
            for batch in split_batches(texts, _LOOKUP_CHARS):
                packed = self._encoder.encode_marked(batch, self._written[parse_special])
                flat = FlatIds.from_marked(packed)
                # 每个 id 只有一个整数对象，各行共用：取引用比为每个 token 新建对象快得多，也省内存
                ids = self._integers[flat.ids].tolist()
                rows += [ids[start:end] for start, end in pairwise(flat.bounds.tolist())]
        return rows

    def encode_flat(self, texts: Iterable[str], *, parse_special: bool = False) -> FlatIds:
        """Turns many texts into two arrays: all ids one after another, and where each text starts and ends.

        Args:
            texts: any texts; all ids are held in memory, `encode_stream` has no such limit.
            parse_special: as in `encode`.

        Returns:
            The ids of the texts.
        """
        encode, written = self._encoder.encode_marked, self._written[parse_special]
        # 每个文本之后有一个 -1：一遍流过就同时得到 id 和边界，途中没有 id 列表
        return FlatIds.from_marked(b"".join(encode(batch, written) for batch in split_batches(texts, _LOOKUP_CHARS)))

    def align_flat(self, texts: Iterable[str]) -> FlatTokens:
        """Turns many texts into arrays of ids, character offsets and word ids.

        Special tokens written in the texts are plain text.

        Args:
            texts: any texts; all tokens are held in memory.

        Returns:
            The tokens of the texts, without `[CLS]` and `[SEP]`.
        """
        return self._encoder.align_flat(texts, self._written[False])

    def spell(self, piece: str) -> list[int]:
        """Spells a piece that is not in the vocabulary with those that are.

        Args:
            piece: a word, or a part of one that starts with `##`.

        Returns:
            The ids: of a part of a word only pieces that start with `##`; `[UNK]` where there is no spelling.

        Raises:
            InputError: no text is ever cut into the piece.
        """
        text = piece.removeprefix("##")
        words = [word for chunk in self._normalizer.chunks(text) for word in self._normalizer.words(chunk)]
        if words != [text] or len(text) > self.max_word_chars:
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

        Args:
            ids: ids in [0, vocab_size).
            skip_special_tokens: leave `[CLS]`, `[PAD]` and the like out.

        Returns:
            The text.

        Raises:
            InputError: an id is not in the vocabulary.
        """
        pieces: list[str] = []
        for index in as_ids(ids):
            if not 0 <= index < len(self.vocab):
                raise InputError(
                    f"id {index} is not in the vocabulary of {len(self.vocab)} pieces; use the model's own tokenizer"
                )
            if not (skip_special_tokens and index in self.special_ids):
                pieces.append(self.vocab[index])
        return join_pieces(pieces, self.tokenize_chinese_chars)

    def piece_text(self, index: int) -> str:
        """Returns a piece as the vocabulary spells it: `##` marks one inside a word."""
        return self.vocab[index]

    def encode_words(self, words: Iterable[str]) -> FlatIds:
        """Turns words into ids, each by itself; a word gives the same ids wherever it stands."""
        return self.encode_flat(words)

    def align_words(self, texts: Iterable[str]) -> FlatTokens:
        """Finds the words of texts and their pieces: those of `align_flat`, whose rules for words these are."""
        return self.align_flat(texts)

    def _aligned(
        self, samples: Sequence[tuple[str, str | None]], *, parse_special: bool
    ) -> Iterator[tuple[Tokens, Tokens | None]]:
        written, align = self._written[parse_special], self._encoder.align
        return (
            (align(first, written), None if second is None else align(second, written)) for first, second in samples
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # 缓存不随对象序列化：别的进程只收到词表，自己重新积累
        return _rebuild, (self.vocab, self._settings)

    @functools.cached_property
    def template(self) -> Template:
        """`[CLS] A [SEP]`, and `[CLS] A [SEP] B [SEP]` with B in segment 1."""
        start, separator = (self.cls_token_id,), (self.sep_token_id,)
        return Template(start, separator, separator)

    @property
    def unk_token_id(self) -> int:
        """The id of `[UNK]`, which every vocabulary has."""
        return self.piece_to_id[self.special_tokens.unk]

    @functools.cached_property
    def continuing(self) -> NDArray[np.bool_]:
        """[V], True for `##` pieces."""
        return np.fromiter((piece.startswith("##") for piece in self.vocab), np.bool_, len(self.vocab))

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hex digest of everything that decides the ids: two tokenizers with the same one give the same ids."""
        return self._settings.fingerprint(self.vocab)

    def _special_id(self, token: str) -> int:
        index = self.piece_to_id.get(token)
        if index is None:
            raise InputError(f"the vocabulary has no {token}, which is needed here; add it as a line of vocab.txt")
        return index


def _rebuild(vocab: list[str], settings: Settings) -> WordPieceTokenizer:
    return WordPieceTokenizer(vocab, **settings._asdict())
