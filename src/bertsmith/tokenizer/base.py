"""The interface of every tokenizer: what the other rooms may ask, whichever kind of pieces a model reads.

Two kinds implement it: `WordPieceTokenizer` (BERT's own, written here) and `LibraryTokenizer` (byte-level BPE, Unigram
and the rest, through the `tokenizers` library). It is a base class and not a protocol because the rows of model inputs
(`__call__`) and the small questions about special tokens are the same for all of them, and should be written once.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import InputError
from bertsmith.parallel import parallel_map
from bertsmith.tokenizer.batches import collector_paused, split_batches
from bertsmith.tokenizer.encoding import Encoding, Layout, Padding, Truncation, as_arrays, build_rows, pair_up
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
    """

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
        max_length: int | None = None,
        truncation: Truncation = "longest_first",
        padding: Padding = False,
        stride: int = 0,
        return_overflowing: bool = False,
        parse_special: bool = False,
        return_tensors: Literal["np", "pt"] | None = None,
    ) -> Encoding:
        """Builds model inputs: one text, or two, with special tokens around them as `template` says.

        Args:
            text: one text, or a list of them.
            pair: the second text, or as many of them as there are texts.
            max_length: most tokens in a row, special ones included; None does not truncate.
            truncation: which text gives way: the longer one, always the first, always the second, or none (False).
            padding: fill rows up to the longest of the batch or to `max_length`; False leaves them ragged.
            stride: tokens that neighbouring windows share, where windows are asked for.
            return_overflowing: a text that is too long gives several rows; `overflow_to_sample` says from which text.
            parse_special: recognise special tokens written in the texts.
            return_tensors: "np" gives int64 arrays instead of lists, "pt" torch tensors.

        Returns:
            `input_ids`, `token_type_ids`, `attention_mask`, `special_tokens_mask`, `offsets`, `word_ids`: lists over
            the tokens for one text, lists of such lists for many (also for one text, where windows are asked for).

        Raises:
            InputError: the options contradict each other, or a text cannot be cut as asked.
        """
        samples = pair_up(text, pair)
        pad_id = self.piece_to_id.get(self.special_tokens.pad)
        layout = Layout(self.template, pad_id, max_length, truncation, padding, stride, return_overflowing)
        with collector_paused():
            # 逐条生成：一条的中间结果用完即释放，内存总是热的
            encoding = build_rows(self._aligned(samples, parse_special=parse_special), layout)
        if return_tensors is not None:
            encoding = as_arrays(encoding, return_tensors)
        if isinstance(text, str) and not return_overflowing:
            return Encoding({name: values[0] for name, values in encoding.items()})
        return encoding

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
