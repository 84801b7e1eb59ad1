"""The metric of clusters: V-measure, with a bootstrap interval (Rosenberg and Hirschberg 2007, §2).

The mean, harmonic, of how far a cluster holds one class only and how far a class lies in one cluster only. Both are
read off the table of counts, so that an interval needs no texts: to draw texts again is to draw cells of the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.finetune.metrics.bootstrap import Floats, Interval, interval_of
from bertsmith.seeding import generator


def v_measure(classes: Sequence[Any], clusters: Sequence[Any], *, resamples: int = 1000, seed: int = 0) -> Interval:
    """Returns the V-measure of a clustering, with the interval that the same clusters have on other texts.

    Args:
        classes: of N texts, at least one.
        clusters: of the same texts.
        resamples: sets that are drawn for the interval.
        seed: of the draws.
    """
    rows, columns = (np.unique(each, return_inverse=True)[1] for each in (classes, clusters))
    cells, counts = np.unique(np.stack([rows, columns], 1), axis=0, return_counts=True)
    drawn = generator(seed, "bootstrap/clusters").multinomial(counts.sum(), counts / counts.sum(), resamples)
    scores = _v_measures(cells, np.concatenate([counts[None], drawn]).astype(np.float64))
    return interval_of(float(scores[0]), scores[1:])


def cluster(vectors: NDArray[np.float32], count: int, seed: int = 0) -> NDArray[np.int32]:
    """Returns the number of the cluster of each vector [N, H], by k-means with `count` clusters."""
    from sklearn.cluster import KMeans

    found: NDArray[np.int32] = KMeans(count, n_init=3, random_state=seed).fit_predict(vectors)
    return found


def _v_measures(cells: NDArray[np.int64], counts: Floats) -> Floats:
    """Scores R tables, given as counts [R, M] of M cells (class, cluster)."""
    total = counts.sum(1, keepdims=True)
    joint = _entropy(counts / total)
    by_class, by_cluster = (_entropy(_summed(counts, cells[:, side]) / total) for side in (0, 1))
    # 互信息 = H(类) + H(簇) - H(类, 簇)；V 是它除以两个熵的平均；两边都只有一类时算作完全一致
    shared, both = by_class + by_cluster - joint, by_class + by_cluster
    return np.where(both > 1e-12, 2 * shared / np.maximum(both, 1e-12), 1.0)


def _summed(counts: Floats, groups: NDArray[np.int64]) -> Floats:
    table = np.zeros((len(counts), int(groups.max()) + 1))
    np.add.at(table.T, groups, counts.T)
    return table


def _entropy(shares: Floats) -> Floats:
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    entropy: Floats = -(shares * logs).sum(1)
    return entropy
