"""Options and models that pretraining cannot use, with the error each gives. `CASES` is the table of the documentation.

Each case: a name; a function of a tiny encoder that does the wrong thing; the error; and a pattern that its message must match.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pretraining_models import make_masked

from tiny_models import CORPUS
from twinvec.errors import DataError, ModelError, TwinvecError, UsageError
from twinvec.model.encoder import Encoder
from twinvec.model.fresh import fresh_encoder
from twinvec.training.pretraining.mlm import MaskedLanguageModel
from twinvec.training.pretraining.retromae import RetroMAE
from twinvec.training.pretraining.tsdae import TSDAE


class Case(NamedTuple):
    name: str
    make: Callable[[Encoder], Any]
    error: type[TwinvecError]
    message: str


def fresh(**options: Any) -> Callable[[Encoder], Any]:
    return lambda _: fresh_encoder(options.pop("texts", CORPUS), **{"layers": 1, "hidden": 8, "heads": 2, **options})


def without_mask(encoder: Encoder) -> Encoder:
    encoder.tokens.tokenizer.mask_token = None
    return encoder


def without_marks(encoder: Encoder) -> Encoder:
    tokenizer = encoder.tokens.tokenizer
    known = {piece.replace("##", "_"): i for piece, i in tokenizer.get_vocab().items()}
    tokenizer.get_vocab = lambda: known
    return encoder


def too_few_embeddings(encoder: Encoder) -> Encoder:
    backbone: Any = encoder.net.backbone
    backbone.resize_token_embeddings(50)
    return encoder


def from_left_to_right(encoder: Encoder) -> Encoder:
    config: Any = encoder.net.backbone.config
    config.is_decoder = True
    return encoder


CASES = (
    Case("mlm: a share of nothing", lambda e: MaskedLanguageModel(e, mask_share=0.0), UsageError, r"mlm: mask_share = 0.0: wanted a share"),
    Case("mlm: a share of all", lambda e: MaskedLanguageModel(e, mask_share=1), UsageError, r"mlm: mask_share = 1: .*below 1"),
    Case("mlm: a percentage", lambda e: MaskedLanguageModel(e, mask_share=15), UsageError, r"mask_share = 15: .*above 0 and below 1"),
    Case("mlm: a share that is no number", lambda e: MaskedLanguageModel(e, mask_share="x"), UsageError, r"mask_share = 'x'"),
    Case("mlm: no mask token", lambda e: MaskedLanguageModel(without_mask(e)), UsageError, r"mlm: .*has no mask token; use tsdae"),
    Case("mlm: a decoder", lambda e: MaskedLanguageModel(from_left_to_right(e)), UsageError, r"reads from left to right .*use tsdae"),
    Case("mlm: words are not marked", lambda e: MaskedLanguageModel(without_marks(e), whole_word=True), UsageError, r"whole_word = true"),
    Case("mlm: tokenizer beyond the weights", lambda e: MaskedLanguageModel(too_few_embeddings(e)), ModelError, r"embeddings for 50"),
    Case("retromae: a wrong encoder mask", lambda e: RetroMAE(e, encoder_share=-0.1), UsageError, r"retromae: encoder_share = -0.1"),
    Case("retromae: a wrong decoder mask", lambda e: RetroMAE(e, decoder_share=float("nan")), UsageError, r"retromae: decoder_share = nan"),
    Case("retromae: no mask token", lambda e: RetroMAE(without_mask(e)), UsageError, r"retromae: .*has no mask token"),
    Case("tsdae: deletes all", lambda e: TSDAE(e, share=1.0), UsageError, r"tsdae: share = 1.0"),
    Case("tsdae: an unknown decoder", lambda e: TSDAE(e, decoder="big"), UsageError, r"decoder = 'big': choose one of auto, tied, fresh"),
    Case("tsdae: no layers", lambda e: TSDAE(e, decoder="fresh", decoder_layers=0), UsageError, r"decoder_layers = 0: .*1 or more"),
    Case("tsdae: layers of a tied decoder", lambda e: TSDAE(e, decoder="tied", decoder_layers=2), UsageError, r"as many layers as the encoder"),
    Case("fresh: no texts", fresh(texts=[]), DataError, r"texts: 0 rows without a single word"),
    Case("fresh: empty texts", fresh(texts=["", "  "]), DataError, r"texts: 2 rows without a single word"),
    Case("fresh: one string", fresh(texts="a text"), UsageError, r"texts: wanted a list of texts, got one string"),
    Case("fresh: a row that is no text", fresh(texts=["a", None]), DataError, r"texts, row 1: wanted a text, got NoneType"),
    Case("fresh: heads that do not divide", fresh(heads=3), UsageError, r"hidden = 8, heads = 3: hidden must be a multiple"),
    Case("fresh: no layers", fresh(layers=0), UsageError, r"layers = 0: wanted a whole number, 1 or more"),
    Case("fresh: half a layer", fresh(layers=1.5), UsageError, r"layers = 1.5"),
    Case("fresh: no room for a word", fresh(vocabulary=5), UsageError, r"vocabulary = 5: wanted a whole number, 6 or more"),
    Case("fresh: no room for a token", fresh(max_tokens=2), UsageError, r"max_tokens = 2: wanted a whole number, 3 or more"),
    Case("fresh: another kind", fresh(kind="gpt"), UsageError, r"kind = 'gpt': choose one of bert"),
    Case("fresh: an unknown pooling", fresh(pooling="meen"), UsageError, r"pooling = 'meen'.*did you mean 'mean'"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_masked("bert", tmp_path_factory.mktemp("pretraining"))[0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_bad_input_gets_its_message(case: Case, folder: Path, record_property: Callable[[str, object], None]) -> None:
    encoder = Encoder.load(folder, device="cpu", pooling="mean")
    with pytest.raises(case.error, match=case.message) as found:
        case.make(encoder)
    message = str(found.value)
    record_property("message", message)
    assert "\n" not in message
    assert len(message) < 600


def test_each_case_has_its_name() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


def test_a_model_without_a_tied_decoder_says_so(bare_model: Callable[[str], Path]) -> None:
    encoder = Encoder.load(bare_model("deberta-v2"), device="cpu", pooling="mean")
    with pytest.raises(UsageError, match=r"layers of a deberta-v2 model cannot be read as a decoder's; use decoder = 'fresh'"):
        TSDAE(encoder, decoder="tied")


def test_a_lone_surrogate_is_a_text_like_any_other() -> None:
    made = fresh_encoder([*CORPUS, "bad \ud800 text"], layers=1, hidden=8, heads=2, device="cpu")
    assert made.encode("bad \ud800 text").shape == (1, 8)
