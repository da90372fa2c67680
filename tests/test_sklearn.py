"""Estimators of texts: scikit-learn's own checks, and its tools."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError, SkipTestWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks

from bertworks.errors import OtherRunError, SettingsError
from bertworks.loading import load
from bertworks.model import Model
from bertworks.sklearn import TextClassifier, TextEncoder, TextRegressor
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.finetune import finetune
from tests.training.letters import CONFIG, PIECES, make_rows

ROWS = make_rows(24, 3)
TEXTS = [row["text"] for row in ROWS]
CLASSES = np.array([row["label"] == "yes" for row in ROWS])
FAST = {"epochs": 1, "learning_rate": 1e-2, "batch_size": 8, "max_seq_length": 16}

CHECKS = (
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "model"
    Model.fresh(CONFIG, Tokenizer.from_vocabulary(PIECES)).save(path)
    return str(path)


@pytest.mark.parametrize("kind", [TextClassifier, TextRegressor, TextEncoder])
def test_estimators_pass_the_checks_that_need_no_numbers(kind: type) -> None:
    """The other checks of `check_estimator` fit numbers: it leaves them out for texts."""
    with pytest.warns(SkipTestWarning, match="requires input"):
        estimator_checks.check_estimator(kind())
    for name in CHECKS:
        getattr(estimator_checks, name)(kind.__name__, kind())


@pytest.mark.long
def test_classifier_works_with_the_tools_of_scikit_learn(directory: str) -> None:
    classifier = TextClassifier(directory, **FAST)
    assert cross_val_score(classifier, TEXTS, CLASSES, cv=2).shape == (2,)
    search = GridSearchCV(classifier, {"epochs": [0.4, 1]}, cv=2).fit(TEXTS, CLASSES)
    best = search.best_estimator_
    assert best.get_params() == {**classifier.get_params(), **search.best_params_}
    assert best.classes_.tolist() == [False, True]
    probabilities = best.predict_proba(TEXTS)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    assert best.score(TEXTS, CLASSES) == np.mean((probabilities[:, 1] > 0.5) == CLASSES)
    copy = pickle.loads(pickle.dumps(best))
    np.testing.assert_array_equal(copy.predict_proba(TEXTS), probabilities)
    assert clone(best).get_params() == best.get_params()
    with pytest.raises(NotFittedError):
        clone(best).predict(TEXTS)


def test_classes_may_be_any_values_and_the_run_is_kept(directory: str, tmp_path: Path) -> None:
    classifier = TextClassifier(directory, **FAST, directory=tmp_path / "run")
    numbers = np.where(CLASSES, 7, -1).astype(object)  # as in a column that had gaps
    fitted_classifier = classifier.fit(np.array(TEXTS)[:, None], numbers)
    assert fitted_classifier is classifier
    assert classifier.classes_.tolist() == [-1, 7]
    assert set(classifier.predict(TEXTS)) <= {-1, 7}
    assert load(tmp_path / "run").predict(TEXTS[:1]) == classifier.model_.predict(TEXTS[:1])


@pytest.mark.long
def test_run_in_a_directory_is_replaced_only_with_overwrite(directory: str, tmp_path: Path) -> None:
    classifier = TextClassifier(directory, **FAST, directory=tmp_path / "run")
    probabilities = classifier.fit(TEXTS, CLASSES).predict_proba(TEXTS)
    weights = tmp_path / "run" / "model" / "model.safetensors"
    content = weights.read_bytes()
    resumed_classifier = clone(classifier).fit(TEXTS, CLASSES)
    np.testing.assert_array_equal(resumed_classifier.predict_proba(TEXTS), probabilities)
    with pytest.raises(OtherRunError, match=r"other rows for train.*overwrite=True.*clones"):
        clone(classifier).fit(TEXTS[:20], CLASSES[:20])
    assert weights.read_bytes() == content
    clone(classifier).set_params(overwrite=True).fit(TEXTS[:20], CLASSES[:20])
    assert weights.read_bytes() != content


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        ({"epochs": 1}, {"epochs": 2}),
        ({}, {"seed": 3}),
        ({"directory": None}, {"overwrite": True}),
        ({}, {"text_column": "x"}),
        ({}, {"no_label": "-"}),
    ],
)
def test_argument_that_settings_have_too_is_an_error(
    directory: str, arguments: dict[str, Any], setting: dict[str, Any]
) -> None:
    classifier = TextClassifier(directory, **arguments, settings=setting)
    ((name, value),) = setting.items()
    with pytest.raises(SettingsError, match=f"settings has {name}={value!r}, but the estimator"):
        classifier.fit(TEXTS, CLASSES)


def test_dev_is_a_share_of_a_classifiers_texts(directory: str) -> None:
    classifier = TextClassifier(directory, settings={"dev": ROWS})
    with pytest.raises(SettingsError, match="dev is not a share of the texts"):
        classifier.fit(TEXTS, CLASSES)
    for dev in (None, np.float32(0.2)):
        assert TextClassifier(directory, settings={"dev": dev})._other_settings() == {"dev": dev}


@pytest.mark.long
def test_estimators_are_those_of_finetune(directory: str, tmp_path: Path) -> None:
    regressor = TextRegressor(directory, **FAST).fit(TEXTS, 1.0 * CLASSES)
    rows = [{"text": text, "label": float(one)} for text, one in zip(TEXTS, CLASSES, strict=True)]
    result = finetune(directory, "regression", train=rows, out=tmp_path / "values", **FAST)
    expected = [one["value"] for one in result.model.predict(TEXTS)]
    np.testing.assert_allclose(regressor.predict(TEXTS), expected, atol=1e-6)
    classifier = TextClassifier(directory, **FAST).fit(TEXTS, [row["label"] for row in ROWS])
    result = finetune(directory, "classification", train=ROWS, out=tmp_path / "classes", **FAST)
    assert classifier.classes_.tolist() == list(result.model.labels)
    expected = result.model.predict_proba(TEXTS)
    np.testing.assert_allclose(classifier.predict_proba(TEXTS), expected, atol=1e-6)


def test_encoder_is_a_step_of_a_pipeline(directory: str) -> None:
    encoder = TextEncoder(directory, settings={"pooling": "max"})
    pipeline = make_pipeline(encoder, LogisticRegression()).fit(TEXTS, CLASSES)
    expected = load(directory).embed(TEXTS, pooling="max")
    np.testing.assert_array_equal(pipeline[0].transform(TEXTS), expected)
    copy = pickle.loads(pickle.dumps(pipeline))
    np.testing.assert_array_equal(copy.predict(TEXTS), pipeline.predict(TEXTS))


def test_other_inputs_are_refused(directory: str) -> None:
    for wrong, message in (
        ("a b", "one text"),
        ([[1, 2]], "sequence of texts"),
        ([], "no texts"),
        (["a", None, "b"], r"X\[1\] is None: X must be a sequence of texts"),
        (np.array([["a"], [float("nan")]], dtype=object), r"X\[1\] is nan: X must be"),
    ):
        with pytest.raises(ValueError, match=message):
            TextEncoder(directory).fit(wrong)
    with pytest.raises(ValueError, match="inconsistent"):
        TextClassifier(directory).fit(TEXTS, CLASSES[:3])
    with pytest.raises(ValueError, match="one class"):
        TextClassifier(directory).fit(TEXTS[:3], [1, 1, 1])
    for labels, message in (
        ([0.0, 1.0, float("nan")], "contains NaN"),
        (np.array(["a", "b", float("nan")], object), "contains NaN"),
        (np.array(["a", "b", None]), "None or NA"),
        (pd.Series(["a", "b", None], dtype="string"), "None or NA"),
        ([0.1, 0.7, 0.25], "Unknown label type: continuous"),
    ):
        with pytest.raises(ValueError, match=message):
            TextClassifier(directory).fit(TEXTS[:3], labels)
