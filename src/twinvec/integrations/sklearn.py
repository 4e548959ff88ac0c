"""A twinvec encoder as a step of a scikit-learn pipeline: texts in, vectors out. It needs no scikit-learn itself until it is cloned or searched."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twinvec.errors import InputTypeError, UsageError
from twinvec.integrations.prompts import opened
from twinvec.records import Vectors

if TYPE_CHECKING:
    from twinvec.model.encoder import Encoder


class SentenceVectors:
    """`make_pipeline(SentenceVectors("minilm"), LogisticRegression())`.

    model: what `Encoder.load` takes, or an `Encoder`; it is loaded at fit or at the first transform, once for each name, prompt and so on.
    prompt: a name of the model's prompts, "" for none, None for its default. dimensions: only the first so many, at length 1 again.
    engine, precision, batch_tokens: as `Encoder.load` and `encode` take them. Parameters are kept as given, so that `clone` and grid search work.
    """

    def __init__(
        self, model: Any = "minilm", *, prompt: str | None = None, dimensions: int | None = None, engine: str | None = None,
        precision: str | None = None, batch_tokens: int | None = None,
    ) -> None:  # fmt: skip
        self.model, self.prompt, self.dimensions = model, prompt, dimensions
        self.engine, self.precision, self.batch_tokens = engine, precision, batch_tokens

    # --- parameters, as scikit-learn's BaseEstimator has them

    @classmethod
    def _names(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names()}

    def set_params(self, **params: Any) -> SentenceVectors:
        for name, value in params.items():
            if name not in self._names():
                raise ValueError(f"SentenceVectors has no parameter {name!r}; it has {', '.join(self._names())}")
            setattr(self, name, value)
        return self

    def __sklearn_clone__(self) -> SentenceVectors:
        """A copy without what was loaded; an `Encoder` given as model is shared, since copying weights would help nobody."""
        return type(self)(**self.get_params())

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type=None, target_tags=TargetTags(required=False), transformer_tags=TransformerTags(), requires_fit=False,
            input_tags=InputTags(one_d_array=True, two_d_array=False, string=True),
        )  # fmt: skip

    def __sklearn_is_fitted__(self) -> bool:
        return True  # nothing is learnt

    def __getstate__(self) -> dict[str, Any]:
        """Without the loaded weights: another process loads them itself."""
        return {name: value for name, value in vars(self).items() if name in self._names()}

    # --- the work

    @property
    def encoder(self) -> Encoder:
        """The encoder; loaded anew when a parameter of loading has changed."""
        key = (id(self.model) if not isinstance(self.model, (str, Path)) else str(self.model), self.engine, self.precision)
        if getattr(self, "_loaded_for", None) != key:
            load = {name: getattr(self, name) for name in ("engine", "precision") if getattr(self, name) is not None}
            self._encoder, self._loaded_for = opened(self.model, **load), key
        return self._encoder

    def fit(self, X: Any, y: Any = None, **_: Any) -> SentenceVectors:  # noqa: N803 - scikit-learn's name
        """Loads the model and checks the options; learns nothing."""
        have = self.encoder.dimensions
        self.encoder.prompt_text(self.prompt)
        if self.dimensions is not None and not 1 <= self.dimensions <= have:
            raise UsageError(f"dimensions = {self.dimensions}: this model has {have}; wanted 1 to {have}")
        return self

    def transform(self, X: Any) -> Vectors:  # noqa: N803
        """Texts (n,), also as one column (n, 1) as a ColumnTransformer gives them -> float32 (n, D)."""
        vectors = self.fit(X).encoder.encode(_texts(X), prompt=self.prompt, batch_tokens=self.batch_tokens)
        if self.dimensions is None or self.dimensions == vectors.shape[1]:
            return vectors
        cut = vectors[:, : self.dimensions]
        norms = np.linalg.norm(cut, axis=1, keepdims=True)
        return np.asarray(cut / np.where(norms > 0, norms, 1), dtype=np.float32)

    def fit_transform(self, X: Any, y: Any = None, **_: Any) -> Vectors:  # noqa: N803
        return self.transform(X)

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """sentencevectors0, sentencevectors1, ..., as scikit-learn's own transformers of this kind name them."""
        count = self.dimensions or self.encoder.dimensions
        return np.asarray([f"sentencevectors{i}" for i in range(count)], dtype=object)

    def __repr__(self) -> str:
        given = [f"{name}={value!r}" for name, value in self.get_params().items() if value is not None]
        return f"SentenceVectors({', '.join(given)})"


def _texts(x: Any) -> list[Any]:
    """A list of cells. InputTypeError for several columns; what is no text in a cell is the encoder's to refuse, with its row."""
    if isinstance(x, str):
        raise InputTypeError("SentenceVectors: one text alone; wanted a list of texts, as every step of a pipeline gets")
    shape = getattr(x, "shape", None)
    if shape is not None and len(shape) == 2:
        if shape[1] != 1:
            raise InputTypeError(f"SentenceVectors: {shape[1]} columns; wanted one column of texts (a ColumnTransformer can choose it)")
        return [cell for row in np.asarray(x, dtype=object) for cell in row]
    return list(x)
