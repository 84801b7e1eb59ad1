"""The interface of every tokenizer: what the other rooms may ask, whichever kind of pieces a model reads.

Two kinds implement it: `WordPieceTokenizer` (BERT's own, written here) and `LibraryTokenizer` (all others). Scripts of
the field are full of `tokenizer(a, b, truncation=True, padding=True, return_tensors="pt")`: such words are put into our
own here.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith.parallel import parallel_map
from bertsmith.tokenizer.encoding import (
    Encoding,
    FlatIds,
    FlatTokens,
    Layout,
    Padding,
    Template,
    Tokens,
    Truncation,
    as_arrays,
    build_rows,
    collector_paused,
    pair_up,
    split_batches,
)
from bertsmith.tokenizer.settings import SpecialTokens

TruncationWord = Truncation | Literal[True, "do_not_truncate"]
PaddingWord = Padding | Literal[True, "do_not_pad"]
SpecialWord = bool | Literal["mask"]
"""Which special tokens written in a text are read as such: all, none, or the mask alone, whatever else is written."""
TokenizerT = TypeVar("TokenizerT", bound="Tokenizer")

_BATCH_CHARS = 1 << 20


class Tokenizer(ABC):
    """Cuts text into the pieces of a vocabulary, and builds the rows that a model reads.

    Attributes:
        vocab: V pieces in the order of their ids, spelled as the vocabulary spells them.
        special_tokens: what the special tokens are called; a name need not be in the vocabulary.
        user_tokens: tokens to recognise wherever they are written, before any other rule.
        model_max_length: most ids that the model beside it reads, as its folder says; None where it does not.
    """

    model_max_length: int | None = None

    vocab: list[str]
    piece_to_id: dict[str, int]
    lowercase: bool
    special_tokens: SpecialTokens
    special_ids: frozenset[int]
    user_tokens: tuple[str, ...]

    def encode(self, text: str, *, parse_special: SpecialWord = False) -> list[int]:
        """Turns a text into ids in [0, vocab_size), without special tokens around them.

        Special tokens written in the text, such as `[MASK]`, are ordinary characters unless `parse_special` is set;
        `"mask"` takes the mask alone for one.
        """
        return self.encode_batch([text], parse_special=parse_special)[0]

    @abstractmethod
    def encode_batch(self, texts: Iterable[str], *, parse_special: SpecialWord = False) -> list[list[int]]:
        """Turns many texts into lists of ids; see `encode`."""

    @abstractmethod
    def encode_flat(self, texts: Iterable[str], *, parse_special: SpecialWord = False) -> FlatIds:
        """Turns many texts into two arrays: all ids one after another, and where each text starts and ends."""

    @abstractmethod
    def align_flat(self, texts: Iterable[str], *, parse_special: SpecialWord = False) -> FlatTokens:
        """Turns many texts into arrays of ids, character offsets and word ids; see `encode`."""

    def encode_words(self, words: Iterable[str]) -> FlatIds:
        """Turns words into ids, each by itself, as it is read in the midst of a text: after a space."""
        return self.encode_flat(words)

    def align_words(self, texts: Iterable[str]) -> FlatTokens:
        """Finds the words of texts, and encodes each as `encode_words` does.

        A word lies between white space; a punctuation mark and a Chinese character are words by themselves. The places
        of the tokens are those of their word.
        """
        return self.align_flat(texts)

    def normalized(self, word: str) -> str:
        """Returns a word as this tokenizer reads it, such as lower-cased."""
        return word.lower() if self.lowercase else word

    @abstractmethod
    def spell(self, piece: str) -> list[int]:
        """Spells a piece that is not in the vocabulary with those that are."""

    @abstractmethod
    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Joins ids to readable text."""

    def piece_text(self, index: int) -> str:
        """Returns a piece as a person reads it: without the signs for a space that some vocabularies keep in it."""
        return self.vocab[index]

    @abstractmethod
    def with_pieces(self: TokenizerT, pieces: Sequence[str], user_tokens: Sequence[str] = ()) -> TokenizerT:
        """Makes a tokenizer with more pieces and the same settings; the ids of the pieces so far stay."""

    @abstractmethod
    def save(self, folder: str | Path, *, model_max_length: int | None = None) -> None:
        """Writes a folder that `transformers`, cutting at `model_max_length`, and `tokenizers` load to the same ids."""

    @property
    @abstractmethod
    def template(self) -> Template:
        """Where special tokens stand around one text and two."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hex digest of everything that decides the ids: two tokenizers with the same one give the same ids."""

    @property
    @abstractmethod
    def continuing(self) -> NDArray[np.bool_]:
        """[V], True for pieces that continue the word of the piece before them."""

    def continuations(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tells which pieces of a text continue the word of the piece before them."""
        return self.continuing[ids]

    def _tokens(self, text: str, *, parse_special: SpecialWord) -> Tokens:
        """Returns the tokens of a text with their places."""
        flat = self.align_flat([text], parse_special=parse_special)
        offsets = list(zip(flat.starts.tolist(), flat.ends.tolist(), strict=True))
        return Tokens(flat.ids.tolist(), offsets, flat.word_ids.tolist())

    def _aligned(
        self, samples: Sequence[tuple[str, str | None]], *, parse_special: SpecialWord
    ) -> Iterator[tuple[Tokens, Tokens | None]]:
        """Yields the tokens of texts and their second texts, one sample after the other."""
        held: tuple[str, Tokens] | None = None
        for first, second in samples:
            # 一个问题常配许多文档：问题只切一次
            if held is None or held[0] != first:
                held = first, self._tokens(first, parse_special=parse_special)
            yield held[1], None if second is None else self._tokens(second, parse_special=parse_special)

    def encode_stream(self, texts: Iterable[str], *, workers: int = 1) -> Iterator[FlatIds]:
        """Turns a corpus of any size into arrays, in batches of about a million characters, in order."""
        return parallel_map(self.encode_flat, split_batches(texts, _BATCH_CHARS), workers=workers)

    def tokenize(self, text: str, *, parse_special: SpecialWord = False) -> list[str]:
        """Cuts a text into pieces."""
        return [self.vocab[index] for index in self.encode(text, parse_special=parse_special)]

    def __call__(
        self,
        text: str | Sequence[str],
        pair: str | Sequence[str] | None = None,
        *,
        text_pair: str | Sequence[str] | None = None,
        max_length: int | None = None,
        truncation: TruncationWord | None = None,
        padding: PaddingWord = False,
        stride: int = 0,
        return_overflowing: bool = False,
        parse_special: SpecialWord = False,
        add_special_tokens: bool = True,
        return_tensors: Literal["np", "pt"] | None = None,
        return_attention_mask: bool = True,
        return_token_type_ids: bool = True,
        return_special_tokens_mask: bool = True,
        return_offsets_mapping: bool = False,
        return_overflowing_tokens: bool = False,
        return_length: bool = False,
    ) -> Encoding:
        """Builds model inputs: one text, or two, with special tokens around them as `template` says.

        Args:
            pair: the second text, or as many of them as there are texts.
            text_pair: the same, by the name that `transformers` gives it.
            max_length: most tokens in a row, special ones included; None: `model_max_length` where one is asked for.
            truncation: which text gives way: the longer one (`longest_first` or True), always the first, always the
                second, or none (False); None is the longer one where `max_length` is given.
            padding: fill rows up to the longest of the batch (`longest` or True) or to `max_length`; False leaves them
                ragged.
            stride: tokens that neighbouring windows share, where windows are asked for.
            return_overflowing: a text that is too long gives several rows; `overflow_to_sample` says from which text.
            parse_special: recognise special tokens written in the texts; "mask" the mask alone.
            return_tensors: "np" gives int64 arrays instead of lists, "pt" torch tensors.
            return_offsets_mapping: give `offsets` as `offset_mapping`, too.
            return_overflowing_tokens: as `return_overflowing`, with `overflow_to_sample_mapping` besides.
            return_length: give `length`, the number of tokens of each row.

        Returns:
            `input_ids`, `token_type_ids`, `attention_mask`, `special_tokens_mask`, `offsets`, `word_ids`: lists over
            the tokens for one text, lists of such lists for many (also for one text, where windows or arrays are asked
            for).
        """
        if pair is not None and text_pair is not None:
            raise InputError("pair and text_pair are the same thing; give one of them")
        samples = pair_up(text, text_pair if pair is None else pair)
        # True == 1：用 is 判断，免得把数字当成开关
        filled: Padding = "longest" if padding is True else False if padding == "do_not_pad" else padding
        limit = self._length_limit(max_length, truncation, filled)
        if truncation is None or truncation is True:
            truncation = "longest_first"
        elif truncation == "do_not_truncate":
            truncation = False
        pad_id = self.piece_to_id.get(self.special_tokens.pad)
        overflows = return_overflowing or return_overflowing_tokens
        around = self.template if add_special_tokens else replace(self.template, before=(), between=(), after=())
        layout = Layout(around, pad_id, limit, truncation, filled, stride, overflows)
        with collector_paused():
            # 逐条生成：一条的中间结果用完即释放，内存总是热的
            encoding = build_rows(self._aligned(samples, parse_special=parse_special), layout)
        for name, is_wanted in (
            ("attention_mask", return_attention_mask),
            ("token_type_ids", return_token_type_ids),
            ("special_tokens_mask", return_special_tokens_mask),
        ):
            if not is_wanted:
                del encoding[name]
        if return_offsets_mapping:
            encoding["offset_mapping"] = encoding["offsets"]
        if return_overflowing_tokens:
            encoding["overflow_to_sample_mapping"] = encoding["overflow_to_sample"]
        if return_length:
            encoding["length"] = [len(row) for row in encoding["input_ids"]]
        if return_tensors is not None:
            return as_arrays(encoding, return_tensors)
        if isinstance(text, str) and not overflows:
            return Encoding({name: values[0] for name, values in encoding.items()})
        return encoding

    def batch_decode(self, rows: Iterable[Iterable[int]], skip_special_tokens: bool = True) -> list[str]:
        """Joins many rows of ids, lists or arrays or tensors, to texts; see `decode`."""
        return [self.decode(row, skip_special_tokens) for row in rows]

    def convert_ids_to_tokens(self, ids: int | Iterable[int], skip_special_tokens: bool = False) -> str | list[str]:
        """Returns the piece of an id, or the pieces of many, spelled as the vocabulary spells them."""
        if isinstance(ids, (int, np.integer)):
            return self.vocab[self._known_ids([int(ids)])[0]]
        return [self.vocab[index] for index in self._known_ids(ids, skip_special_tokens)]

    def convert_tokens_to_ids(self, tokens: str | Iterable[str]) -> int | list[int]:
        """Returns the id of a piece, or those of many; of a piece that is not in the vocabulary that of `[UNK]`."""
        if isinstance(tokens, str):
            found = self.piece_to_id.get(tokens, self.unk_token_id)
            if found is None:
                raise InputError(f"the vocabulary has no piece {tokens!r}, and none for unknown ones")
            return found
        return [self.convert_tokens_to_ids(token) for token in tokens]  # type: ignore[misc]

    def get_vocab(self) -> dict[str, int]:
        """Returns piece → id."""
        return dict(self.piece_to_id)

    def _known_ids(self, ids: Iterable[int], skip_special_tokens: bool = False) -> list[int]:
        """Checks ids; a tensor or an array is one thing whose elements are no integers of Python."""
        known: list[int] = ids.tolist() if hasattr(ids, "tolist") else list(map(int, ids))
        for index in known:
            if not 0 <= index < len(self.vocab):
                raise InputError(
                    f"id {index} is not in the vocabulary of {len(self.vocab)} pieces; use the model's own tokenizer"
                )
        return [index for index in known if not (skip_special_tokens and index in self.special_ids)]

    def _length_limit(self, max_length: int | None, truncation: TruncationWord | None, padding: Padding) -> int | None:
        """Returns the most tokens of a row: what was given, or the model's limit where the call asks for a limit."""
        # 没有说 truncation 就是不限长；说了（True 或某种方式）却没给长度，用模型能读的长度
        is_asked = truncation not in (None, False, "do_not_truncate") or padding == "max_length"
        if max_length is not None or not is_asked:
            return max_length
        if self.model_max_length is None:
            asked = "padding='max_length'" if padding == "max_length" else f"truncation={truncation!r}"
            raise InputError(f"{asked} needs max_length, since this tokenizer's folder names no limit; give it")
        return self.model_max_length

    def __len__(self) -> int:
        return len(self.vocab)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.vocab)} pieces, lowercase={self.lowercase})"

    @property
    def vocab_size(self) -> int:
        """How many pieces there are."""
        return len(self.vocab)

    @property
    def pad_token_id(self) -> int:
        """The id of `[PAD]`."""
        return self._special_id(self.special_tokens.pad)

    @property
    def unk_token_id(self) -> int | None:
        """The id of `[UNK]`; None for a vocabulary that spells everything and has none."""
        return self.piece_to_id.get(self.special_tokens.unk)

    @property
    def cls_token_id(self) -> int:
        """The id of `[CLS]`."""
        return self._special_id(self.special_tokens.cls)

    @property
    def sep_token_id(self) -> int:
        """The id of `[SEP]`."""
        return self._special_id(self.special_tokens.sep)

    @property
    def mask_token_id(self) -> int:
        """The id of `[MASK]`."""
        return self._special_id(self.special_tokens.mask)

    @functools.cached_property
    def blank_token_id(self) -> int:
        """What stands for a word that is cut into no piece: `[UNK]`, or `[MASK]` where there is none."""
        return self.mask_token_id if self.unk_token_id is None else self.unk_token_id

    def _special_id(self, token: str) -> int:
        index = self.piece_to_id.get(token)
        if index is None:
            raise InputError(f"the vocabulary has no {token}, which is needed here; use a tokenizer that has it")
        return index
