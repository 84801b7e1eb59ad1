"""bertsmith: from a folder of text files to a working BERT."""

__version__ = "0.1.0"
