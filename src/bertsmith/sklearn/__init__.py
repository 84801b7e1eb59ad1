"""scikit-learn estimators over fine-tuning and vectors, for `Pipeline`, `GridSearchCV` and `cross_val_score`.

BertClassifier("run/model").fit(texts, labels).predict(more)
"""

from bertsmith.sklearn.estimators import BertClassifier as BertClassifier
from bertsmith.sklearn.estimators import BertEmbedder as BertEmbedder
from bertsmith.sklearn.estimators import BertRegressor as BertRegressor
from bertsmith.sklearn.estimators import BertTagger as BertTagger

__all__ = ["BertClassifier", "BertEmbedder", "BertRegressor", "BertTagger"]
