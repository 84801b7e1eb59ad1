"""The WordPiece tokenizer: text to ids, ids to text, model inputs.

Notable:
- greedy longest match, as in the original release; a word that cannot be spelled, or is longer than 100 characters,
  is one `[UNK]`
- `encode` is one dictionary lookup per chunk of text (see `cache`), so it is as fast as C on text that repeats
- special tokens written in a text (`[MASK]`, `[SEP]`) are plain text unless the caller passes `parse_special=True`:
  what a user types cannot forge a segment border
"""

import functools
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bertsmith.errors import InputError
from bertsmith.tokenizer.cache import ChunkCache
from bertsmith.tokenizer.encoding import Encoding, Layout, Padding, Tokens, Truncation, as_arrays, build_rows
from bertsmith.tokenizer.files import SPECIAL_TOKENS, Settings, check_vocab, read_tokenizer, write_tokenizer
from bertsmith.tokenizer.learn import count_words, learn_vocab
from bertsmith.tokenizer.normalize import Normalizer, is_standalone

MAX_WORD_CHARS = 100
# 实测：一百万词的英文约十万个不同的块，一代足够装下；两代都满时约占 100 MB
CACHE_CAPACITY = 1 << 17

_SPECIAL = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
_NO_SPACE = re.compile(r" (?=[.,!?;:)%](?: |$))|(?<=\() ")
_CONTRACTION = re.compile(r"(?<=[^\W\d_]) ' (?=(?:s|t|m|d|re|ve|ll)\b)", re.IGNORECASE)


class _Spans(NamedTuple):
    """The tokens of a chunk: ids, where each starts and ends in the chunk, and the word of the chunk it belongs to."""

    ids: tuple[int, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    word_ids: tuple[int, ...]
    num_words: int


class WordPieceTokenizer:
    """Cuts text into pieces of a vocabulary (Wu et al. 2016, as used by Devlin et al. 2019, §3).

    Attributes:
        vocab: the pieces; the place in the list is the id.
        piece_to_id: the same, the other way round.
        lowercase: words are lower-cased.
        strip_accents: accents are stripped; None follows `lowercase`.
        tokenize_chinese_chars: every CJK character is a word of its own.
        special_ids: ids of the special tokens in the vocabulary.
    """

    def __init__(
        self,
        vocab: Sequence[str],
        *,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        tokenize_chinese_chars: bool = True,
    ) -> None:
        """Takes a vocabulary.

        Args:
            vocab: the pieces in the order of their ids; pieces inside a word start with `##`.
            lowercase: lower-case the text.
            strip_accents: strip accents; None means exactly when lower-casing, as in the original release.
            tokenize_chinese_chars: set CJK characters apart.

        Raises:
            InputError: the vocabulary is empty, holds a word-starting piece twice, or has no `[UNK]`.
        """
        self.vocab = list(vocab)
        check_vocab(self.vocab, "vocab")
        self.piece_to_id = {piece: index for index, piece in enumerate(self.vocab)}
        self.lowercase = lowercase
        self.strip_accents = strip_accents
        self.tokenize_chinese_chars = tokenize_chinese_chars
        self.special_ids = frozenset(self.piece_to_id[token] for token in SPECIAL_TOKENS if token in self.piece_to_id)
        self._normalizer = Normalizer(
            lowercase, lowercase if strip_accents is None else strip_accents, tokenize_chinese_chars
        )
        self._unk = self.piece_to_id["[UNK]"]
        # 词内片段去掉 ## 另存一表：匹配时不必为每次尝试拼接字符串
        self._tails = {piece[2:]: index for piece, index in self.piece_to_id.items() if piece.startswith("##")}
        self._longest_head = max(map(len, self.vocab))
        self._longest_tail = max(map(len, self._tails), default=0)
        self._ids = ChunkCache(self._chunk_ids, CACHE_CAPACITY)
        self._spans = ChunkCache(self._chunk_spans, CACHE_CAPACITY // 4)
        self._lookup = self._ids.__getitem__

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
    ) -> "WordPieceTokenizer":
        """Learns a vocabulary from text by merging the most frequent pair of pieces, again and again.

        Pairs are scored by frequency rather than by WordPiece's likelihood ratio: that yields fewer pieces per word
        (see `learn`). The result depends on the word counts only, not on the order of the texts; ties are broken by
        the text of the pair.

        Args:
            texts: lines, documents, anything that does not cut words.
            vocab_size: most pieces; the vocabulary is smaller where the text supports no more.
            lowercase: lower-case the text.
            strip_accents: strip accents; None follows `lowercase`.
            tokenize_chinese_chars: set CJK characters apart.
            min_frequency: a pair seen less often is not merged.
            limit_alphabet: keep only the most frequent characters; words with others become `[UNK]`.
            num_unused: reserve this many `[unusedN]` places after `[PAD]`.

        Returns:
            A tokenizer with the learned vocabulary.

        Raises:
            InputError: no words in the text, a value out of range, or `vocab_size` below the alphabet's size.
        """
        stripped = lowercase if strip_accents is None else strip_accents
        words = count_words(texts, Normalizer(lowercase, stripped, tokenize_chinese_chars))
        vocab = learn_vocab(
            words,
            vocab_size=vocab_size,
            min_frequency=min_frequency,
            limit_alphabet=limit_alphabet,
            num_unused=num_unused,
            tokenize_chinese_chars=tokenize_chinese_chars,
            max_word_chars=MAX_WORD_CHARS,
        )
        return cls(
            vocab,
            lowercase=lowercase,
            strip_accents=strip_accents,
            tokenize_chinese_chars=tokenize_chinese_chars,
        )

    @classmethod
    def load(cls, path: str | Path, *, lowercase: bool | None = None) -> "WordPieceTokenizer":
        """Loads a tokenizer folder, or a `vocab.txt` alone.

        Args:
            path: the folder (`vocab.txt` or `tokenizer.json`, and its settings) or the vocabulary file.
            lowercase: overrules the folder's setting; a vocabulary file alone says nothing, and True is assumed.

        Returns:
            The tokenizer.

        Raises:
            InputError: a file is missing or malformed.
        """
        vocab, settings = read_tokenizer(Path(path))
        return cls(
            vocab,
            lowercase=settings.lowercase if lowercase is None else lowercase,
            strip_accents=settings.strip_accents,
            tokenize_chinese_chars=settings.tokenize_chinese_chars,
        )

    def save(self, folder: str | Path) -> None:
        """Writes `vocab.txt`, `tokenizer_config.json`, `special_tokens_map.json` and `tokenizer.json`.

        Args:
            folder: where; created if it is missing. `transformers` and `tokenizers` load it to the same ids.

        Raises:
            RunFolderError: the folder cannot be written.
        """
        write_tokenizer(Path(folder), self.vocab, self._settings(), MAX_WORD_CHARS)

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Turns a text into ids, without `[CLS]` and `[SEP]`.

        Args:
            text: any text.
            parse_special: recognise special tokens written in the text, such as `[MASK]`; otherwise they are
                ordinary brackets and words.

        Returns:
            The ids, each in [0, vocab_size).
        """
        if parse_special:
            return self._encode_special(text)
        return [*chain.from_iterable(map(self._lookup, self._normalizer.chunks(text)))]

    def encode_batch(self, texts: Iterable[str], *, parse_special: bool = False) -> list[list[int]]:
        """Turns many texts into ids; the fast path for corpora.

        Args:
            texts: any texts.
            parse_special: as in `encode`.

        Returns:
            For each text its ids.
        """
        if parse_special:
            return [self._encode_special(text) for text in texts]
        lookup, chunks, flatten = self._lookup, self._normalizer.chunks, chain.from_iterable
        return [[*flatten(map(lookup, chunks(text)))] for text in texts]

    def tokenize(self, text: str, *, parse_special: bool = False) -> list[str]:
        """Cuts a text into pieces.

        Args:
            text: any text.
            parse_special: as in `encode`.

        Returns:
            The pieces, `##` marking those inside a word.
        """
        return [self.vocab[index] for index in self.encode(text, parse_special=parse_special)]

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
        parts: list[str] = []
        for index in ids:
            if skip_special_tokens and index in self.special_ids:
                continue
            if not 0 <= index < len(self.vocab):
                raise InputError(
                    f"id {index} is not in the vocabulary of {len(self.vocab)} pieces; use the model's own tokenizer"
                )
            piece = self.vocab[index]
            if piece.startswith("##") and parts:
                parts.append(piece[2:])
                continue
            if parts and not (self._is_cjk(piece) and self._is_cjk(parts[-1])):
                parts.append(" ")
            parts.append(piece)
        return _NO_SPACE.sub("", _CONTRACTION.sub("'", "".join(parts)))

    def __call__(
        self,
        text: str | Sequence[str],
        pair: str | Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        truncation: Truncation = "longest_first",
        padding: Padding = False,
        stride: int = 0,
        return_overflowing: bool = False,
        parse_special: bool = False,
        return_tensors: Literal["np"] | None = None,
    ) -> Encoding:
        """Builds model inputs: `[CLS] text [SEP]`, or `[CLS] text [SEP] pair [SEP]`.

        Args:
            text: one text, or a list of them.
            pair: the second text, or as many of them as there are texts.
            max_length: most tokens in a row, special ones included; None does not truncate.
            truncation: which text gives way: the longer one, always the first, always the second, or none (False).
            padding: fill rows up to the longest of the batch or to `max_length`; False leaves them ragged.
            stride: tokens that neighbouring windows share, where windows are asked for.
            return_overflowing: a text that is too long gives several rows; `overflow_to_sample` says from which text.
            parse_special: recognise special tokens written in the texts.
            return_tensors: "np" gives int64 arrays instead of lists.

        Returns:
            `input_ids`, `token_type_ids`, `attention_mask`, `special_tokens_mask`, `offsets`, `word_ids`: lists over
            the tokens for one text, lists of such lists for many (also for one text, where windows are asked for).

        Raises:
            InputError: the options contradict each other, or a text cannot be cut as asked.
        """
        single = isinstance(text, str)
        texts = [text] if isinstance(text, str) else list(text)
        pairs: list[str] | None = None if pair is None else [pair] if isinstance(pair, str) else list(pair)
        if pairs is not None and (isinstance(pair, str) is not single or len(pairs) != len(texts)):
            raise InputError(f"{len(texts)} texts but {len(pairs)} pairs; give one second text for every text")
        pad_id = self.piece_to_id.get("[PAD]")
        layout = Layout(
            self.cls_token_id, self.sep_token_id, pad_id, max_length, truncation, padding, stride, return_overflowing
        )
        firsts = [self._tokens(item, parse_special) for item in texts]
        seconds = [None] * len(texts) if pairs is None else [self._tokens(item, parse_special) for item in pairs]
        encoding = build_rows(list(zip(firsts, seconds, strict=True)), layout)
        if return_tensors == "np":
            encoding = as_arrays(encoding)
        elif return_tensors is not None:
            raise InputError(f"return_tensors={return_tensors!r} is unknown; use 'np' or None")
        if single and not return_overflowing:
            return Encoding({name: values[0] for name, values in encoding.items()})
        return encoding

    def __len__(self) -> int:
        return len(self.vocab)

    def __repr__(self) -> str:
        return f"WordPieceTokenizer({len(self.vocab)} pieces, lowercase={self.lowercase})"

    def __reduce__(self) -> tuple[Any, ...]:
        # 缓存不随对象序列化：子进程只收到词表，自己重新积累
        return _rebuild, (self.vocab, self._settings())

    @property
    def vocab_size(self) -> int:
        """How many pieces there are."""
        return len(self.vocab)

    @property
    def pad_token_id(self) -> int:
        """The id of `[PAD]`."""
        return self._special_id("[PAD]")

    @property
    def unk_token_id(self) -> int:
        """The id of `[UNK]`."""
        return self._unk

    @property
    def cls_token_id(self) -> int:
        """The id of `[CLS]`."""
        return self._special_id("[CLS]")

    @property
    def sep_token_id(self) -> int:
        """The id of `[SEP]`."""
        return self._special_id("[SEP]")

    @property
    def mask_token_id(self) -> int:
        """The id of `[MASK]`."""
        return self._special_id("[MASK]")

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hex digest of everything that decides the ids: two tokenizers with the same one give the same ids."""
        # None 与其实际取值同义，先化简再取摘要
        described = [MAX_WORD_CHARS, *vars(self._normalizer).values(), self.vocab]
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()

    def _settings(self) -> Settings:
        return Settings(self.lowercase, self.strip_accents, self.tokenize_chinese_chars)

    def _special_id(self, token: str) -> int:
        index = self.piece_to_id.get(token)
        if index is None:
            raise InputError(f"the vocabulary has no {token}, which is needed here; add it as a line of vocab.txt")
        return index

    def _chunk_ids(self, chunk: str) -> tuple[int, ...]:
        """Does the careful work for a chunk that is not remembered."""
        parts = self._normalizer.split_cjk(chunk)
        if parts is not None and len(parts) > 1:
            return tuple(chain.from_iterable(map(self._lookup, parts)))
        return tuple(chain.from_iterable(map(self._match, self._normalizer.words(chunk))))

    def _match(self, word: str) -> Sequence[int]:
        """Spells a word with the longest piece that fits, from left to right; `[UNK]` where none fits."""
        whole = self.piece_to_id.get(word)
        length = len(word)
        if length > MAX_WORD_CHARS:
            return (self._unk,)
        if whole is not None and not word.startswith("##"):
            return (whole,)
        ids: list[int] = []
        table, longest, start = self.piece_to_id, self._longest_head, 0
        while start < length:
            # 候选长度不超过词表里最长的片段，恶意长词也只花线性时间
            for end in range(min(length, start + longest), start, -1):
                index = table.get(word[start:end])
                if index is not None:
                    ids.append(index)
                    start = end
                    break
            else:
                return (self._unk,)
            table, longest = self._tails, self._longest_tail
        return ids

    def _chunk_spans(self, chunk: str) -> _Spans:
        """Finds the tokens of a chunk and where each of them stems from."""
        ids: list[int] = []
        starts: list[int] = []
        ends: list[int] = []
        word_ids: list[int] = []
        words = self._normalizer.aligned_words(chunk)
        for number, (word, sources) in enumerate(words):
            position = 0
            for index in self._match(word):
                piece = self.vocab[index]
                size = len(word) if index == self._unk else len(piece) - 2 if position else len(piece)
                ids.append(index)
                starts.append(sources[position])
                ends.append(sources[position + size - 1] + 1)
                word_ids.append(number)
                position += size
        return _Spans(tuple(ids), tuple(starts), tuple(ends), tuple(word_ids), len(words))

    def _tokens(self, text: str, parse_special: bool) -> Tokens:
        """Tokenizes a text with offsets and word ids."""
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        word_ids: list[int] = []
        words = 0
        for piece, begin in _split_special(text) if parse_special else [(text, 0)]:
            special = self.piece_to_id.get(piece) if parse_special and piece in SPECIAL_TOKENS else None
            if special is not None:
                ids.append(special)
                offsets.append((begin, begin + len(piece)))
                word_ids.append(words)
                words += 1
                continue
            for match in self._normalizer.find_chunks(piece):
                spans = self._spans[match.group()]
                base = begin + match.start()
                ids += spans.ids
                offsets += [(base + start, base + end) for start, end in zip(spans.starts, spans.ends, strict=True)]
                word_ids += [words + number for number in spans.word_ids]
                words += spans.num_words
        return Tokens(ids, offsets, word_ids)

    def _encode_special(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece, _ in _split_special(text):
            special = self.piece_to_id.get(piece) if piece in SPECIAL_TOKENS else None
            ids += self.encode(piece) if special is None else [special]
        return ids

    def _is_cjk(self, piece: str) -> bool:
        return len(piece) == 1 and not piece.isascii() and is_standalone(piece, self.tokenize_chinese_chars)


def _split_special(text: str) -> Iterable[tuple[str, int]]:
    """Yields the special tokens of a text and the stretches between them, each with its place."""
    start = 0
    for match in _SPECIAL.finditer(text):
        yield text[start : match.start()], start
        yield match.group(), match.start()
        start = match.end()
    yield text[start:], start


def _rebuild(vocab: list[str], settings: Settings) -> WordPieceTokenizer:
    return WordPieceTokenizer(vocab, **settings._asdict())
