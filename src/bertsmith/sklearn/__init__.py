"""scikit-learn estimators over fine-tuning and vectors, for `Pipeline`, `GridSearchCV` and `cross_val_score`.

BertClassifier("run/model").fit(texts, labels).predict(more)
"""

from bertsmith.sklearn.embedder import BertEmbedder as BertEmbedder
from bertsmith.sklearn.tagger import BertTagger as BertTagger
from bertsmith.sklearn.texts import BertClassifier as BertClassifier
from bertsmith.sklearn.texts import BertRegressor as BertRegressor

__all__ = ["BertClassifier", "BertEmbedder", "BertRegressor", "BertTagger"]
