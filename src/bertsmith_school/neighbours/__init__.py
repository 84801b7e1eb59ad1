"""BERT's neighbours, small and honest, on the same shards and the same trainer: for study and comparison.

All of them compute on the CPU, whatever the machine has.
"""

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
