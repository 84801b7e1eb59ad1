"""BERT's neighbours on the same shards and trainer, for study and comparison; they always compute on the CPU."""

from bertsmith_school.neighbours.encoder_decoder import EncoderDecoder
from bertsmith_school.neighbours.lstm import LstmOptions, TwoWayLSTM, learn_two_ways
from bertsmith_school.neighbours.seq2seq import Rewriter, Seq2SeqOptions, learn_to_rewrite
from bertsmith_school.neighbours.word2vec import WordVectorOptions, WordVectors, learn_word_vectors

__all__ = [
    "EncoderDecoder",
    "LstmOptions",
    "Rewriter",
    "Seq2SeqOptions",
    "TwoWayLSTM",
    "WordVectorOptions",
    "WordVectors",
    "learn_to_rewrite",
    "learn_two_ways",
    "learn_word_vectors",
]
