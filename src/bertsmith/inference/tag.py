"""Tagging: a tag for every word, and entities as spans of characters (Devlin et al. 2019, §5.3).

- a word's tag is read at its first piece; a word without pieces (a soft hyphen, say) stands as `[UNK]`
- a sentence longer than the model reads is cut at word borders into windows that overlap; each word is read, and
  learned, in one window only: the one where it has most context on both sides
- training (`finetune.tag`) and prediction share the windows, so a given word is always seen as it was learned; in a raw
  text, words end at punctuation too, and may be other ones than those of the file that was learned
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.batch import RaggedBatch
from bertsmith.errors import CheckpointError, ConfigError, InputError
from bertsmith.inference.answer import behind_marks
from bertsmith.inference.chain import Chain, words_in
from bertsmith.inference.entities import (
    IOB1,
    OUTSIDE,
    Entity,
    Transitions,
    best_path,
    entities_of,
    is_iob1,
    is_plain,
    transitions_of,
)
from bertsmith.inference.linear import LinearPipeline
from bertsmith.inference.pipeline import one_or_many, parts, require_list
from bertsmith.inference.task_file import TaskFile, read_settings
from bertsmith.model import ModelConfig, ModelForTokenClassification, PretrainedModel
from bertsmith.model.features import FeatureTagger, Top
from bertsmith.tokenizer import Tokenizer

OVERLAP = 4
"""Neighbouring windows share a quarter of their pieces: every word then has an eighth of a window on either side."""


@dataclass(frozen=True)
class WordTags:
    """The likeliest tag of each word of a sentence, and its probability."""

    tags: tuple[str, ...]
    probabilities: tuple[float, ...]


@dataclass(frozen=True)
class TextEntity:
    """A typed stretch of a text, `end` excluded; its probability is the mean of those of its words' tags."""

    type: str
    start: int
    end: int
    text: str
    probability: float


@dataclass(frozen=True)
class TagSettings(TaskFile):
    """What `task.json` tells `Tag`: whether a sentence's tags are chosen together, to keep to their scheme.

    `scheme` is `IOB1` where entities begin with `I-`; empty where the tags themselves say it. By `outside` (nats) must
    `O` be likelier than another tag to be chosen.
    """

    constrained: bool = False
    scheme: str = ""
    outside: float = 0.0


@dataclass(frozen=True)
class WordPieces:
    """The ids of a sentence's words, one word after the other, and how many each has: at least one."""

    ids: list[int]
    sizes: list[int]


@dataclass(frozen=True)
class WordWindow:
    """A sequence for the model, and what is read from it.

    Tags are read of `words`, numbers within the sentence; each begins at its place of `positions` among the ids [S].
    """

    sentence: int
    input_ids: list[int]
    words: range
    positions: list[int]


class Tag(LinearPipeline, name="tag"):
    """Tags words, or finds entities in texts.

    `outside`, and `constrained` where the labels have a scheme, are as in `TagSettings` and may be set.
    """

    settings = TagSettings
    words_kind = Chain
    constrained = False
    scheme: str
    outside: float
    architectures: ClassVar[tuple[type[PretrainedModel], ...]] = (ModelForTokenClassification,)
    endpoints = ("/tag",)

    @one_or_many
    def __call__(self, texts: Sequence[str]) -> list[list[TextEntity]]:
        """Finds the entities of raw texts, of any length; for each text, in order, its entities from left to right.

        The words are the tokenizer's: between white space, punctuation and Chinese characters each by itself; those of
        `chain.words_in` where the folder holds words alone. Labels that do not mark entities (parts of speech) give
        every word with its tag.
        """
        require_list(texts)
        found: list[list[TextEntity]] = []
        for part in parts(len(texts)):
            chosen = list(texts[part])
            if self.tokenizer is None:
                pieces, places = None, [words_in(text) for text in chosen]
            else:
                pieces, places = words_in_texts(self.tokenizer, chosen)
            words = [[text[start:end] for start, end in row] for text, row in zip(chosen, places, strict=True)]
            tagged = self.told(self._outputs(words, pieces), [len(row) for row in words])
            found += [self._entities(*row) for row in zip(chosen, places, tagged, strict=True)]
        return found

    def tag_words(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """Tags sentences that are split into words already: one tag a word; `InputError` for raw texts."""
        return [list(row.tags) for row in self.score_words(sentences)]

    def score_words(self, sentences: Sequence[Sequence[str]]) -> list[WordTags]:
        """Returns a tag and its probability for each word of N lists of words."""
        found: list[WordTags] = []
        for part in parts(len(sentences)):
            found += self.told(self.logits(sentences[part]), [len(words) for words in sentences[part]])
        return found

    def logits(self, sentences: Sequence[Sequence[str]]) -> Tensor:
        """Returns [W, K] float32, the log-probability of each tag for each of the W words of N lists of words.

        Where words stand beside an encoder, these are sums of such. `InputError` for raw texts.
        """
        if isinstance(sentences, str) or any(isinstance(sentence, str) for sentence in sentences):
            raise InputError("give lists of words: [['the', 'man'], ...]; call the pipeline itself for raw texts")
        pieces = None if self.tokenizer is None else pieces_of_words(self.tokenizer, sentences)
        return self._outputs(sentences, pieces)

    def _outputs(self, sentences: Sequence[Sequence[str]], pieces: Sequence[WordPieces] | None) -> Tensor:
        return self.together((sentences,), lambda: self._read(pieces or []))

    def _read(self, sentences: Sequence[WordPieces]) -> Tensor:
        windows = list(word_windows(self.tokenizer, sentences, self.max_length))
        rows = self.engine.run_tokens([window.input_ids for window in windows], None, _log_probabilities)
        # 窗口按句子和词的先后排列，各读各的词：依次接上就是整句
        read = [row[window.positions] for window, row in zip(windows, rows, strict=True)]
        return torch.cat([torch.zeros(0, len(self.labels)), *read])

    def told(self, outputs: Tensor, sizes: Sequence[int]) -> list[WordTags]:
        """Returns what outputs [W, K] say of sentences of `sizes` words, W together."""
        scores = outputs.double().log_softmax(-1).numpy()
        chosen = scores.copy()
        if self.outside:
            chosen[:, self.labels.index(OUTSIDE)] -= self.outside
        ends = list(accumulate(sizes))
        places = chosen.argmax(-1) if len(chosen) else np.zeros(0, dtype=np.int64)
        if self.constrained:
            allowed = self._transitions()
            paths = (best_path(chosen[end - size : end], allowed) for size, end in zip(sizes, ends, strict=True))
            places = np.fromiter(chain.from_iterable(paths), dtype=np.int64, count=len(chosen))
        tags = [self.labels[place] for place in places.tolist()]
        sure = np.exp(scores[np.arange(len(places)), places]).tolist()
        return [
            WordTags(tuple(tags[end - size : end]), tuple(sure[end - size : end]))
            for size, end in zip(sizes, ends, strict=True)
        ]

    def _transitions(self) -> Transitions:
        """Returns what the scheme of the tags allows."""
        transitions = transitions_of(self.labels, iob1=self.scheme == IOB1 or is_iob1(self.labels))
        if transitions is None:
            raise ConfigError(f"tags without a scheme such as BIO ({', '.join(self.labels[:4])}) constrain nothing")
        return transitions

    def _entities(
        self, text: str, places: Sequence[Sequence[int]] | NDArray[np.int64], tagged: WordTags
    ) -> list[TextEntity]:
        if marks_entities(self.labels):
            entities = entities_of(tagged.tags, plain=is_plain([self.labels]))
        else:
            entities = [Entity(tag, number, number) for number, tag in enumerate(tagged.tags)]
        found = []
        for entity in entities:
            start, end = int(places[entity.first][0]), int(places[entity.last][1])
            probability = float(np.mean(tagged.probabilities[entity.first : entity.last + 1]))
            found.append(TextEntity(entity.type, start, end, text[start:end], probability))
        return found


@dataclass(frozen=True)
class FeatureSettings(TaskFile):
    """What `task.json` says of the network; `layers` are the encoder's states it reads, as in `LayerFeatures`."""

    required: ClassVar[tuple[str, ...]] = (*TaskFile.required, "labels", "layers", "tagger_head", "tagger_head_size")

    labels: tuple[str, ...] = ()
    layers: str | int = ""
    tagger_head: Top = "linear"
    tagger_head_size: int = 0

    def _check_together(self) -> None:
        if self.task and not self.labels:
            raise ValueError("labels is empty")
        if self.tagger_head_size < (self.tagger_head == "bilstm"):
            raise ValueError(f"tagger_head {self.tagger_head!r} and tagger_head_size {self.tagger_head_size}")


class FeatureTag(Tag, name="features"):
    """Tags words by a small model over a frozen encoder, as `bertsmith finetune features` has written it (§5.3)."""

    architectures = (FeatureTagger,)

    @classmethod
    def is_for(cls, _architecture: str, _config: ModelConfig) -> bool:
        """Returns False: only `task.json` tells such a folder from that of a bare encoder."""
        return False

    @classmethod
    def model_in(cls, folder: str | Path) -> Any:
        """Loads the encoder, and the network that `task.json` describes."""
        told = read_settings(folder, FeatureSettings, cls.name)
        if told.task != cls.name:
            raise CheckpointError(
                f"{folder}: was not written by `bertsmith finetune features`; ask for another pipeline"
            )
        shape = (told.layers, told.tagger_head, told.tagger_head_size)
        return FeatureTagger.load(folder, told.labels, *shape)  # type: ignore[arg-type]


def marks_entities(labels: Sequence[str]) -> bool:
    """Whether labels mark stretches of words: they have prefixes (BIO, BIOES), or there is an `O` for the rest."""
    return OUTSIDE in labels or not is_plain([labels])


def pieces_of_words(tokenizer: Tokenizer, sentences: Sequence[Sequence[str]]) -> list[WordPieces]:
    """Cuts the words of N sentences into pieces, each word by itself."""
    flat = tokenizer.encode_words(chain.from_iterable(sentences))
    sizes = np.diff(flat.bounds)
    # 切不出词片的词（只有零宽字符）用 [UNK] 占位：每个词都要有一处可读标签的地方
    silent = np.flatnonzero(sizes == 0)
    ids = np.insert(flat.ids, flat.bounds[silent], tokenizer.blank_token_id)
    sizes[silent] = 1
    return _by_sentence(ids, sizes, [len(sentence) for sentence in sentences])


def words_in_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[list[WordPieces], list[NDArray[np.int64]]]:
    """Finds the words of raw texts: for each its W words as pieces, and [W, 2] where they begin and end."""
    flat = tokenizer.align_words(texts)
    if not len(flat.ids):
        return [WordPieces([], []) for _ in texts], [np.zeros((0, 2), dtype=np.int64) for _ in texts]
    begins = np.ones(len(flat.ids), dtype=bool)
    begins[1:] = flat.word_ids[1:] != flat.word_ids[:-1]
    # 每个文本的词号都从 0 数起：相邻两个单词文本的词号相同，所以文本的开头另外标出
    begins[flat.bounds[:-1][np.diff(flat.bounds) > 0]] = True
    first = np.flatnonzero(begins)
    sizes = np.diff(np.append(first, len(flat.ids)))
    places = np.stack([np.minimum.reduceat(flat.starts, first), np.maximum.reduceat(flat.ends, first)], 1)
    bounds = np.searchsorted(first, flat.bounds)
    rows = [places[start:end].astype(np.int64) for start, end in pairwise(bounds.tolist())]
    for text, row in zip(texts, rows, strict=True):
        # 词尾的组合符号被分词去掉了，却是词的一部分
        if not text.isascii():
            row[:, 1] = [behind_marks(text, end) for end in row[:, 1].tolist()]
    return _by_sentence(flat.ids, sizes, np.diff(bounds).tolist()), rows


def word_windows(tokenizer: Tokenizer, sentences: Sequence[WordPieces], max_length: int) -> Iterator[WordWindow]:
    """Lays sentences out in order, as sequences of at most `max_length` ids; every word is read in exactly one.

    Of a single word with more pieces than a sequence holds the first ones are kept. A sentence without words gives no
    window.
    """
    template = tokenizer.template
    room = max_length - template.size(pair=False)
    if room < 1:
        raise InputError(f"max_length={max_length} leaves no room for a word between [CLS] and [SEP]; raise it")
    for number, given in enumerate(sentences):
        sentence = _shortened(given, room)
        bounds = [0, *accumulate(sentence.sizes)]
        for first, last, words in _spans(bounds, room):
            ids = sentence.ids[bounds[first] : bounds[last]]
            positions = [len(template.before) + bounds[word] - bounds[first] for word in words]
            yield WordWindow(number, template.wrap(ids), words, positions)


def _spans(bounds: list[int], room: int) -> Iterator[tuple[int, int, range]]:
    """Yields each window's first word, the one behind its last, and those read in it; words begin at `bounds` [W+1]."""
    count = len(bounds) - 1
    windows = [(0, bisect_right(bounds, room) - 1)]
    while (last := windows[-1][1]) < count:
        # 下一窗与本窗共有四分之一，但至少要放得下本窗之后的那个词，否则不会前进
        first = bisect_left(bounds, max(bounds[last] - room // OVERLAP, bounds[last + 1] - room))
        last = bisect_right(bounds, bounds[first] + room) - 1
        # 最后一窗向左补满：句尾的词能多看到上文
        windows.append((bisect_left(bounds, bounds[count] - room) if last == count else first, last))
    centres = [one + two for one, two in pairwise(bounds)]
    # 两窗共有的词从中间分开：左半离前一窗的右边界更远，右半离后一窗的左边界更远
    cuts = [bisect_left(centres, bounds[later[0]] + bounds[earlier[1]]) for earlier, later in pairwise(windows)]
    for (first, last), (start, end) in zip(windows, pairwise([0, *cuts, count]), strict=True):
        if start < end:
            yield first, last, range(start, end)


def _shortened(sentence: WordPieces, room: int) -> WordPieces:
    if not sentence.sizes or max(sentence.sizes) <= room:
        return sentence
    bounds = [0, *accumulate(sentence.sizes)]
    kept = [sentence.ids[start : min(end, start + room)] for start, end in pairwise(bounds)]
    return WordPieces(list(chain.from_iterable(kept)), [len(ids) for ids in kept])


def _by_sentence(ids: NDArray[np.int32], sizes: NDArray[np.int64], counts: Sequence[int]) -> list[WordPieces]:
    words = [0, *accumulate(counts)]
    pieces = np.concatenate([[0], np.cumsum(sizes)])[words].tolist()
    all_ids, all_sizes = ids.tolist(), sizes.tolist()
    return [
        WordPieces(all_ids[slice(*of_ids)], all_sizes[slice(*of_words)])
        for of_ids, of_words in zip(pairwise(pieces), pairwise(words), strict=True)
    ]


def _log_probabilities(model: ModelForTokenClassification, batch: RaggedBatch) -> Tensor:
    """Returns [T, K]: the log-probability of each tag of each token."""
    scores: Tensor = model(batch).float().log_softmax(-1)
    return scores
