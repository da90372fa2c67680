"""Metrics that are read when they are asked for: of the served models, and of keys' quotas."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from .models import Models
from .quotas import Quotas


class _LazyCollector(Collector):
    """A collector of which nothing is read when it is registered."""

    def describe(self) -> list[Metric]:
        """Return nothing."""
        return []


class ModelCollector(_LazyCollector):
    """Reads the metrics of some models when they are asked for."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        models = self._models
        yield GaugeMetricFamily(
            "bertworks_unavailable_models", "models that could not be loaded", len(models.failures)
        )
        load_time = GaugeMetricFamily(
            "bertworks_model_load_time_seconds",
            "when a model was loaded, in seconds since 1970, and the SHA-256 of its weights",
            labels=["model", "digest"],
        )
        size = GaugeMetricFamily(
            "bertworks_model_weight_bytes", "bytes of a loaded model's weights", labels=["model"]
        )
        for model in models.list_loaded():
            load_time.add_metric([model.name, model.digest], model.load_time)
            size.add_metric([model.name], model.num_bytes)
        yield load_time
        yield size
        for name, what, counts in (
            ("loads", "times a model was loaded", models.num_loads),
            ("unloads", "times a model was unloaded for others", models.num_unloads),
        ):
            counter = CounterMetricFamily(f"bertworks_model_{name}", what, labels=["model"])
            for model_name in models.sources:
                counter.add_metric([model_name], counts[model_name])
            yield counter


class QuotaCollector(_LazyCollector):
    """Reads how many requests each key's quota refused."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas

    def collect(self) -> Iterable[Metric]:
        """Return the metric."""
        counter = CounterMetricFamily(
            "bertworks_quota_refusals", "requests beyond a key's quota", labels=["client"]
        )
        for name, count in self._quotas.refusals.items():
            counter.add_metric([name], count)
        yield counter
