"""Pre-training instances against the released procedure, written out here as slowly and literally as it was.

The oracle is `create_instances_from_document`, `truncate_seq_pair` and `create_masked_lm_predictions` of the released
BERT, in words of our own but step for step, list by list. Both sides read documents with the sentence lengths of real
text, or where there is none at hand with lengths made of the bundled world's (of the words nothing depends but the
lengths; each document's ids are its own number, which tells where an instance comes from). A document's instances share
one draw of the target length, so they are not independent: one instance of each document and pass is drawn for the
tests, and those are.
"""

import random
import re

import numpy as np
import pytest
from scipy import stats

from bertsmith.data.corpus.shards import TRAIN, SplitCounts
from bertsmith.data.stream.masking import MaskingSettings
from bertsmith.data.stream.stream import PreTrainingStream, StreamSettings
from bertsmith.tinyworld import draw_stories, render
from bertsmith.tokenizer import WordPieceTokenizer

CLS, SEP = "[CLS]", "[SEP]"
DUPE_FACTOR, SHORT_SEQ_PROB, MASKED_LM_PROB = 5, 0.1, 0.15


def released_instances(all_documents, document_index, max_seq_length, max_predictions, rng):
    """(length of A, length of B, is random, masks, of those [MASK]) of every instance of a document."""
    document = all_documents[document_index]
    max_num_tokens = max_seq_length - 3
    target_seq_length = max_num_tokens
    if rng.random() < SHORT_SEQ_PROB:
        target_seq_length = rng.randint(2, max_num_tokens)
    instances, current_chunk, current_length, i = [], [], 0, 0
    while i < len(document):
        current_chunk.append(document[i])
        current_length += len(document[i])
        if i == len(document) - 1 or current_length >= target_seq_length:
            a_end = 1
            if len(current_chunk) >= 2:
                a_end = rng.randint(1, len(current_chunk) - 1)
            tokens_a = [token for sentence in current_chunk[:a_end] for token in sentence]
            tokens_b = []
            if len(current_chunk) == 1 or rng.random() < 0.5:
                is_random_next = True
                target_b_length = target_seq_length - len(tokens_a)
                for _ in range(10):
                    random_index = rng.randint(0, len(all_documents) - 1)
                    if random_index != document_index:
                        break
                other = all_documents[random_index]
                for j in range(rng.randint(0, len(other) - 1), len(other)):
                    tokens_b.extend(other[j])
                    if len(tokens_b) >= target_b_length:
                        break
                i -= len(current_chunk) - a_end
            else:
                is_random_next = False
                for j in range(a_end, len(current_chunk)):
                    tokens_b.extend(current_chunk[j])
            truncate(tokens_a, tokens_b, max_num_tokens, rng)
            tokens = [CLS, *tokens_a, SEP, *tokens_b, SEP]
            masks, hidden = released_masks(tokens, max_predictions, rng)
            instances.append((len(tokens_a), len(tokens_b), is_random_next, masks, hidden))
            current_chunk, current_length = [], 0
        i += 1
    return instances


def truncate(tokens_a, tokens_b, max_num_tokens, rng):
    while len(tokens_a) + len(tokens_b) > max_num_tokens:
        longer = tokens_a if len(tokens_a) > len(tokens_b) else tokens_b
        if rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()


def released_masks(tokens, max_predictions, rng):
    candidates = [i for i, token in enumerate(tokens) if token not in (CLS, SEP)]
    rng.shuffle(candidates)
    num_to_predict = min(max_predictions, max(1, round(len(tokens) * MASKED_LM_PROB)))
    masks = hidden = 0
    for _ in candidates:
        if masks >= num_to_predict:
            break
        hidden += rng.random() < 0.8
        masks += 1
    return masks, hidden


class Documents:
    """Documents in memory, with the face of a `TokenCorpus`; all ids of a document are its number plus 5."""

    def __init__(self, sentence_lengths):
        self.documents = [
            [np.full(length, 5 + number, np.int32) for length in lengths]
            for number, lengths in enumerate(sentence_lengths)
        ]
        sentences, tokens = sum(map(len, sentence_lengths)), sum(map(sum, sentence_lengths))
        self.counts = {TRAIN: SplitCounts(len(sentence_lengths), sentences, tokens)}
        self.tokenizer = WordPieceTokenizer(
            ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(len(sentence_lengths)))]
        )

    def text(self, split, index):
        return index

    def document(self, split, index):
        return self.documents[index]


@pytest.fixture(scope="module")
def corpus(request, minilm_folder):
    """1,000 documents of 1 to 30 sentences, which are as long as real ones under the published vocabulary."""
    tokenizer = WordPieceTokenizer.load(minilm_folder)
    try:
        texts = real_texts(request.getfixturevalue("shared_data"))
    except pytest.skip.Exception:
        texts = story_texts()
    rng = random.Random(0)
    documents = []
    for sentences in texts:
        lengths = [len(ids) for ids in tokenizer.encode_batch(sentences) if ids]
        while len(lengths) > 30 and len(documents) < 1000:
            size = rng.randint(1, 30)
            documents.append(lengths[:size])
            lengths = lengths[size:]
    assert len(documents) == 1000
    return Documents(documents)


def real_texts(folder):
    for path in sorted((folder / "corpus").rglob("*.txt")):
        text = path.read_text(encoding="utf-8", errors="replace")[:100_000]
        yield [" ".join(part.split()) for part in re.split(r"(?<=[.!?])\s+", text)]


def story_texts():
    """The village's sentences are a third as long as real ones: one to five in a row stand for one."""
    rng = random.Random(1)
    spoken = [render(sentence) for story in draw_stories(0, 1200) for sentence in story.sentences]
    starts = [rng.randrange(len(spoken) - 5) for _ in range(17_000)]
    yield [" ".join(spoken[start : start + rng.randint(1, 5)]) for start in starts]


def our_instances(corpus, *, pairing, max_seq_length, max_predictions):
    """(length of A, length of B, is random, masks, of those [MASK]) of every instance, by document and pass."""
    settings = StreamSettings(
        sequence_length=max_seq_length,
        batch_size=64,
        short_probability=SHORT_SEQ_PROB,
        pairing=pairing,
        masking=MaskingSettings(rate=MASKED_LM_PROB, max_predictions_per_seq=max_predictions),
    )
    stream = PreTrainingStream(corpus, corpus.tokenizer, settings)
    found = {}
    while (epoch := stream.position.epoch) < DUPE_FACTOR:
        batch = next(stream)
        tokens, positions = batch.tokens, batch.masked_positions
        ids = tokens.input_ids.clone()
        ids[positions] = batch.masked_labels
        documents = ids[tokens.first_token_positions + 1].tolist()
        lengths = np.diff(tokens.cu_seqlens.numpy())
        owner = np.repeat(np.arange(len(lengths)), lengths)
        second = np.bincount(owner, weights=tokens.token_type_ids.numpy()).astype(int)
        hidden = (tokens.input_ids[positions] == corpus.tokenizer.mask_token_id).numpy()
        columns = (
            lengths - 2 - second,
            second - 1,
            batch.next_sentence_labels.numpy() == 1,
            np.bincount(owner[positions], minlength=len(lengths)),
            np.bincount(owner[positions], weights=hidden, minlength=len(lengths)).astype(int),
        )
        for document, row in zip(documents, np.stack(columns, axis=1), strict=True):
            found.setdefault((document, epoch), []).append(row)
    return found


def one_of_each(instances, seed):
    rng = random.Random(seed)
    return np.array([rng.choice(group) for group in instances.values()])


@pytest.fixture(scope="module", params=[(128, 20), (64, 8)], ids=["128 tokens", "64 tokens, 8 masks at most"])
def both(request, corpus):
    length, most = request.param
    rng = random.Random(1)
    documents = [[ids.tolist() for ids in document] for document in corpus.documents]
    released = {
        (index, number): [np.array(row) for row in released_instances(documents, index, length, most, rng)]
        for number in range(DUPE_FACTOR)
        for index in range(len(documents))
    }
    ours = our_instances(corpus, pairing="google", max_seq_length=length, max_predictions=most)
    return released, ours, length, most


@pytest.mark.parametrize("what", ["sequence", "first segment", "second segment"])
def test_lengths_are_distributed_as_released(both, what):
    released, ours = one_of_each(both[0], 0), one_of_each(both[1], 1)
    columns = {"sequence": [0, 1], "first segment": [0], "second segment": [1]}[what]
    for label in (0, 1):
        lengths = [side[side[:, 2] == label][:, columns].sum(1) for side in (released, ours)]
        assert min(map(len, lengths)) > 1000
        assert stats.ks_2samp(*lengths).pvalue > 1e-4


def test_the_joint_distribution_of_segment_lengths_is_as_released(both):
    """Chi-square over a grid of both lengths and the label: KS on the margins would miss a wrong truncation side."""
    sides, length = [one_of_each(both[0], 2), one_of_each(both[1], 3)], both[2]
    edges = [0, *np.linspace(2, length - 4, 7).astype(int), length]
    tables = np.array([np.histogramdd(side[:, :3], bins=[edges, edges, [-0.5, 0.5, 1.5]])[0].ravel() for side in sides])
    seen = tables[:, tables.sum(0) >= 20]
    assert seen.shape[1] > 20
    assert stats.chi2_contingency(seen).pvalue > 1e-4


def test_mask_counts_are_as_released(both):
    sides, most = [one_of_each(both[0], 4), one_of_each(both[1], 5)], both[3]
    assert sides[0][:, 3].max() == sides[1][:, 3].max() <= most
    counts = np.array([np.bincount(side[:, 3], minlength=most + 1) for side in sides])
    counts = counts[:, counts.sum(0) >= 10]
    assert counts.shape[1] > 5
    assert stats.chi2_contingency(counts).pvalue > 1e-4
    # of those, as many [MASK]
    shares = [[side[:, 4].sum(), side[:, 3].sum() - side[:, 4].sum()] for side in sides]
    assert stats.chi2_contingency(shares).pvalue > 1e-4


def test_labels_are_as_released_and_not_half_and_half(both):
    sides = [one_of_each(both[0], 6), one_of_each(both[1], 7)]
    labels = np.array([np.bincount(side[:, 2], minlength=2) for side in sides])
    assert stats.chi2_contingency(labels).pvalue > 1e-4
    # a chunk of one sentence is always called random
    assert min(side[:, 2].mean() for side in sides) > 0.51


def test_a_document_makes_as_many_instances_as_released(both):
    """What a lost put-back of unused sentences would change."""
    counts = [[len(group) for group in side.values()] for side in both[:2]]
    assert stats.ks_2samp(*counts).pvalue > 1e-4
    assert np.mean(counts[1]) == pytest.approx(np.mean(counts[0]), rel=0.03)


def test_balanced_pairing_is_half_and_half_on_the_same_text(corpus):
    """Each label is a coin of its own, so all instances count here."""
    ours = our_instances(corpus, pairing="balanced", max_seq_length=64, max_predictions=8)
    random_next = [bool(row[2]) for group in ours.values() for row in group if row[1] >= 0]
    assert len(random_next) > 30_000
    assert stats.binomtest(sum(random_next), len(random_next), 0.5).pvalue > 1e-4
