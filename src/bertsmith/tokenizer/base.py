"""The interface of every tokenizer: what the other rooms may ask, whichever kind of pieces a model reads.

Two kinds implement it: `WordPieceTokenizer` (BERT's own, written here) and `LibraryTokenizer` (byte-level BPE, Unigram
and the rest, through the `tokenizers` library). It is a base class and not a protocol because the rows of model inputs
(`__call__`) and the small questions about special tokens are the same for all of them, and should be written once.
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
from bertsmith.tokenizer.batches import collector_paused, split_batches
from bertsmith.tokenizer.calling import (
    Columns,
    PaddingWord,
    TruncationWord,
    as_ids,
    length_of,
    padding_of,
    second_of,
    truncation_of,
)
from bertsmith.tokenizer.encoding import Encoding, Layout, as_arrays, build_rows, pair_up
from bertsmith.tokenizer.flat import FlatIds, FlatTokens, Tokens
from bertsmith.tokenizer.settings import SpecialTokens
from bertsmith.tokenizer.template import Template

TokenizerT = TypeVar("TokenizerT", bound="Tokenizer")

_BATCH_CHARS = 1 << 20


class Tokenizer(ABC):
    """Cuts text into the pieces of a vocabulary, and builds the rows that a model reads.

    Attributes:
        vocab: V pieces in the order of their ids, spelled as the vocabulary spells them.
        piece_to_id: the same, the other way round.
        lowercase: text is lower-cased.
        special_tokens: what the special tokens are called; a name need not be in the vocabulary.
        special_ids: ids of the special tokens that are in the vocabulary.
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

    @abstractmethod
    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Turns a text into ids, without special tokens around them.

        Args:
            text: any text.
            parse_special: recognise special tokens written in the text, such as `[MASK]`; otherwise they are
                ordinary characters.

        Returns:
            The ids, each in [0, vocab_size).
        """

    @abstractmethod
    def encode_batch(self, texts: Iterable[str], *, parse_special: bool = False) -> list[list[int]]:
        """Turns many texts into lists of ids; see `encode`."""

    @abstractmethod
    def encode_flat(self, texts: Iterable[str], *, parse_special: bool = False) -> FlatIds:
        """Turns many texts into two arrays: all ids one after another, and where each text starts and ends."""

    @abstractmethod
    def align_flat(self, texts: Iterable[str]) -> FlatTokens:
        """Turns many texts into arrays of ids, character offsets and word ids; special tokens are plain text."""

    @abstractmethod
    def encode_words(self, words: Iterable[str]) -> FlatIds:
        """Turns words into ids, each by itself, as it is read in the midst of a text: after a space."""

    @abstractmethod
    def align_words(self, texts: Iterable[str]) -> FlatTokens:
        """Finds the words of texts, and encodes each as `encode_words` does.

        A word lies between white space; a punctuation mark and a Chinese character are words by themselves.

        Args:
            texts: any texts; all tokens are held in memory.

        Returns:
            The tokens of all words that are cut into any; their places lead back to the characters of their word.
        """

    @abstractmethod
    def spell(self, piece: str) -> list[int]:
        """Spells a piece that is not in the vocabulary with those that are.

        Raises:
            InputError: no text is ever cut into the piece.
        """

    @abstractmethod
    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Joins ids to readable text.

        Args:
            ids: ids in [0, vocab_size).
            skip_special_tokens: leave `[CLS]`, `[PAD]` and the like out.

        Raises:
            InputError: an id is not in the vocabulary.
        """

    @abstractmethod
    def piece_text(self, index: int) -> str:
        """Returns a piece as a person reads it: without the signs for a space that some vocabularies keep in it."""

    @abstractmethod
    def with_pieces(self: TokenizerT, pieces: Sequence[str], user_tokens: Sequence[str] = ()) -> TokenizerT:
        """Makes a tokenizer with more pieces and the same settings; the ids of the pieces so far stay."""

    @abstractmethod
    def save(self, folder: str | Path, *, model_max_length: int | None = None) -> None:
        """Writes a tokenizer folder that `transformers` and `tokenizers` load to the same ids.

        Args:
            folder: where; created if it is missing.
            model_max_length: most ids that the model beside it reads, with special tokens: where `transformers` cuts
                long texts. None where there is no model.

        Raises:
            RunFolderError: the folder cannot be written.
        """

    @property
    @abstractmethod
    def template(self) -> Template:
        """Where special tokens stand around one text and two.

        Raises:
            InputError: the vocabulary lacks one of them.
        """

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hex digest of everything that decides the ids: two tokenizers with the same one give the same ids."""

    @property
    @abstractmethod
    def continuing(self) -> NDArray[np.bool_]:
        """[V], True for pieces that go on with the word of the piece before them."""

    def continuations(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tells which pieces of a text go on with the word of the piece before them.

        Args:
            ids: [T] ids in the order of a text.

        Returns:
            [T]; of the first one, and of one behind a special token, only what its piece says.
        """
        return self.continuing[ids]

    @abstractmethod
    def _aligned(
        self, samples: Sequence[tuple[str, str | None]], *, parse_special: bool
    ) -> Iterator[tuple[Tokens, Tokens | None]]:
        """Yields the tokens of texts and their second texts, one sample after the other."""

    def encode_stream(self, texts: Iterable[str], *, workers: int = 1) -> Iterator[FlatIds]:
        """Turns a corpus of any size into arrays, batch by batch, over several processes if wanted.

        Args:
            texts: any texts; read a few batches of about a million characters ahead.
            workers: processes; 1 works right here.

        Returns:
            An iterator over the ids of consecutive texts, in the order of the texts whatever `workers` is.

        Raises:
            InputError: `texts` is one string or holds something else, or `workers` is below 1.
            BertsmithError: a worker process was killed (while iterating).
        """
        return parallel_map(self.encode_flat, split_batches(texts, _BATCH_CHARS), workers=workers)

    def tokenize(self, text: str, *, parse_special: bool = False) -> list[str]:
        """Cuts a text into pieces.

        Args:
            text: any text.
            parse_special: as in `encode`.

        Returns:
            The pieces, spelled as the vocabulary spells them.
        """
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
        parse_special: bool = False,
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
            text: one text, or a list of them.
            pair: the second text, or as many of them as there are texts.
            text_pair: the same, by the name that `transformers` gives it.
            max_length: most tokens in a row, special ones included; None is no limit, or `model_max_length` where
                `truncation` or `padding="max_length"` asks for one.
            truncation: which text gives way: the longer one (`longest_first` or True), always the first, always the
                second, or none (False); None is the longer one where `max_length` is given.
            padding: fill rows up to the longest of the batch (`longest` or True) or to `max_length`; False leaves them
                ragged.
            stride: tokens that neighbouring windows share, where windows are asked for.
            return_overflowing: a text that is too long gives several rows; `overflow_to_sample` says from which text.
            parse_special: recognise special tokens written in the texts.
            add_special_tokens: put `[CLS]` and `[SEP]` around the texts.
            return_tensors: "np" gives int64 arrays instead of lists, "pt" torch tensors.
            return_attention_mask: False leaves the column out.
            return_token_type_ids: False leaves the column out.
            return_special_tokens_mask: False leaves the column out.
            return_offsets_mapping: give `offsets` as `offset_mapping`, too.
            return_overflowing_tokens: as `return_overflowing`, with `overflow_to_sample_mapping` besides.
            return_length: give `length`, the number of tokens of each row.

        Returns:
            `input_ids`, `token_type_ids`, `attention_mask`, `special_tokens_mask`, `offsets`, `word_ids`: lists over
            the tokens for one text, lists of such lists for many (also for one text, where windows or arrays are asked
            for).

        Raises:
            InputError: the options contradict each other, or a text cannot be cut as asked.
        """
        samples = pair_up(text, second_of(pair, text_pair))
        pad_id = self.piece_to_id.get(self.special_tokens.pad)
        filled = padding_of(padding)
        limit = length_of(max_length, self.model_max_length, truncation, filled)
        gives_way = truncation_of("longest_first" if truncation is None else truncation)
        overflows = return_overflowing or return_overflowing_tokens
        around = self.template if add_special_tokens else replace(self.template, before=(), between=(), after=())
        layout = Layout(around, pad_id, limit, gives_way, filled, stride, overflows)
        with collector_paused():
            # 逐条生成：一条的中间结果用完即释放，内存总是热的
            encoding = build_rows(self._aligned(samples, parse_special=parse_special), layout)
        encoding = Columns(
            attention_mask=return_attention_mask,
            token_type_ids=return_token_type_ids,
            special_tokens_mask=return_special_tokens_mask,
            offsets_mapping=return_offsets_mapping,
            overflowing_tokens=return_overflowing_tokens,
            length=return_length,
        ).of(encoding)
        if return_tensors is not None:
            return as_arrays(encoding, return_tensors)
        if isinstance(text, str) and not overflows:
            return Encoding({name: values[0] for name, values in encoding.items()})
        return encoding

    def batch_decode(self, rows: Iterable[Iterable[int]], skip_special_tokens: bool = True) -> list[str]:
        """Joins many rows of ids, lists or arrays or tensors, to texts; see `decode`."""
        return [self.decode(row, skip_special_tokens) for row in rows]

    def convert_ids_to_tokens(self, ids: int | Iterable[int], skip_special_tokens: bool = False) -> str | list[str]:
        """Returns the piece of an id, or the pieces of many, spelled as the vocabulary spells them.

        Raises:
            InputError: an id is not in the vocabulary.
        """
        if isinstance(ids, (int, np.integer)):
            return self.vocab[self._known_id(int(ids))]
        known = [self._known_id(index) for index in as_ids(ids)]
        return [self.vocab[index] for index in known if not (skip_special_tokens and index in self.special_ids)]

    def convert_tokens_to_ids(self, tokens: str | Iterable[str]) -> int | list[int]:
        """Returns the id of a piece, or those of many; of a piece that is not in the vocabulary that of `[UNK]`.

        Raises:
            InputError: it is not there, and the vocabulary has no `[UNK]`.
        """
        if isinstance(tokens, str):
            found = self.piece_to_id.get(tokens, self.unk_token_id)
            if found is None:
                raise InputError(f"the vocabulary has no piece {tokens!r}, and none for unknown ones")
            return found
        return [self.convert_tokens_to_ids(token) for token in tokens]  # type: ignore[misc]

    def get_vocab(self) -> dict[str, int]:
        """Returns piece → id."""
        return dict(self.piece_to_id)

    def _known_id(self, index: int) -> int:
        if not 0 <= index < len(self.vocab):
            raise InputError(f"id {index} is not in the vocabulary of {len(self.vocab)} pieces")
        return index

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
