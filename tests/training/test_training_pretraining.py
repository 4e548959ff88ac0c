"""The token tasks: equal to transformers and sentence-transformers where those have them, and to slow plain versions where not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pretraining_models import MASK, TASKS, double, load, make_masked, slow_head, slow_retromae, slow_tsdae, total_loss

from tiny_models import TEXTS
from twinvec.training.pretraining.mlm import MaskedLanguageModel
from twinvec.training.pretraining.retromae import RetroMAE
from twinvec.training.pretraining.tsdae import TSDAE
from twinvec.training.pretraining.vocabulary import embedding_of

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    made: dict[str, tuple[Path, Any]] = {}

    def get(kind: str) -> tuple[Path, Any]:
        if kind not in made:
            made[kind] = make_masked(kind, tmp_path_factory.mktemp(kind))
        return made[kind]

    return get


# ---- values


@pytest.mark.parametrize("kind", ["bert", "roberta", "mpnet", "distilbert"])
def test_the_mlm_loss_is_that_of_transformers_with_the_heads_of_the_checkpoint(folders: Any, kind: str) -> None:
    folder, model = folders(kind)
    encoder, rows = load(folder)
    task = MaskedLanguageModel(encoder)
    assert task.head_was_stored
    task.heads.eval()
    prepared = task.prepare(rows, np.random.default_rng(3))
    width = max(map(len, rows))
    ids, mask, labels = (torch.full((len(rows), width), fill) for fill in (0, 0, -100))
    for i, row in enumerate(prepared.rows):
        ids[i, : len(row)], mask[i, : len(row)] = torch.tensor(row), 1
        labels[i, prepared.at[i]] = torch.from_numpy(prepared.targets[i])
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        for budget in (10_000, 20):
            found = sum(task.loss(encoder.net, micro) for micro in task.micros(prepared, budget))
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_retromae_is_its_formula(folders: Any) -> None:
    encoder, rows = load(folders("bert")[0], "cls")
    task = RetroMAE(encoder)
    double(task, encoder)
    prepared = task.prepare(rows, np.random.default_rng(1))
    head, decoder, table = task.heads["language"], task.heads["decoder"], embedding_of(encoder.net)
    backbone: Any = encoder.net.backbone
    hidden, rebuilt = [], []
    for i, (masked, row) in enumerate(zip(prepared.masked.rows, rows, strict=True)):
        states = backbone(input_ids=torch.tensor([masked])).last_hidden_state[0]
        hidden += [slow_head(head, states[at], table, row[at]) for at in prepared.masked.at[i]]
        decoded = slow_retromae(decoder, table, row, states[0], prepared.visible[i])
        rebuilt += [slow_head(head, decoded[at], table, token) for at, token in enumerate(row) if token > MASK]
    expected = torch.stack(hidden).mean() + torch.stack(rebuilt).mean()
    for budget in (10_000, 25):
        found = torch.stack([task.loss(encoder.net, micro) for micro in task.micros(prepared, budget)]).sum()
        torch.testing.assert_close(found, expected)


def test_tsdae_is_its_formula(folders: Any) -> None:
    encoder, rows = load(folders("bert")[0])
    task = TSDAE(encoder)
    assert task.tied
    double(task, encoder)
    prepared = task.prepare(rows, np.random.default_rng(1))
    head, table, backbone = task.heads["language"], embedding_of(encoder.net), encoder.net.backbone
    losses = []
    for i in prepared.used:
        states = backbone(input_ids=torch.tensor([prepared.noisy[i]])).last_hidden_state[0]  # type: ignore[operator]
        decoded = slow_tsdae(backbone, task.heads["decoder"], rows[i], states.mean(0))
        losses += [slow_head(head, state, table, target) for state, target in zip(decoded, rows[i][1:], strict=True)]
    for budget in (10_000, 25):
        found = torch.stack([task.loss(encoder.net, micro) for micro in task.micros(prepared, budget)]).sum()
        torch.testing.assert_close(found, torch.stack(losses).mean())


def test_tsdae_equals_the_loss_of_sentence_transformers(folders: Any) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import DenoisingAutoEncoderLoss

    folder, _ = folders("bert")
    texts = tuple(text for text in TEXTS if text)
    encoder, rows = load(folder, texts=texts)
    encoder.save(folder.parent / "for-peer")
    peer = SentenceTransformer(str(folder.parent / "for-peer"), device="cpu").eval()
    theirs = DenoisingAutoEncoderLoss(peer, str(folder), tie_encoder_decoder=True).eval()
    task = TSDAE(encoder)
    task.heads.eval()
    decoder: Any = theirs.decoder
    prediction = decoder.cls.predictions
    with torch.no_grad():
        for cross, layer in zip(task.heads["decoder"].crosses, decoder.bert.encoder.layer, strict=True):
            cross.value.load_state_dict(layer.crossattention.self.value.state_dict())
            cross.out.load_state_dict(layer.crossattention.output.dense.state_dict())
            cross.norm.load_state_dict(layer.crossattention.output.LayerNorm.state_dict())
        language = task.heads["language"]
        language.dense.load_state_dict(prediction.transform.dense.state_dict())
        language.norm.load_state_dict(prediction.transform.LayerNorm.state_dict())
        language.bias.copy_(prediction.bias)
        prepared = task.prepare(rows, np.random.default_rng(5))
        width, short = max(map(len, rows)), max(map(len, prepared.noisy))
        features = []
        for given, size in ((prepared.noisy, short), (rows, width)):
            ids = torch.tensor([row + [0] * (size - len(row)) for row in given])
            features.append({"input_ids": ids, "attention_mask": (ids != 0).long()})
        expected = theirs(features, torch.zeros(len(rows)))
        found = sum(task.loss(encoder.net, micro) for micro in task.micros(prepared, 60))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


# ---- what preparing does


@pytest.mark.parametrize("name", TASKS)
def test_preparing_depends_on_the_generator_alone(folders: Any, name: str) -> None:
    encoder, rows = load(folders("bert")[0])
    task = TASKS[name](encoder)
    torch.manual_seed(0)
    first = task.prepare(rows, np.random.default_rng([1, 2]))
    torch.manual_seed(1)
    again, other = task.prepare(rows, np.random.default_rng([1, 2])), task.prepare(rows, np.random.default_rng([1, 3]))
    assert repr(first) == repr(again)
    assert repr(first) != repr(other)
    assert rows == load(folders("bert")[0])[1]  # what was given is left alone


def test_special_and_unknown_tokens_are_never_hidden(folders: Any) -> None:
    encoder, rows = load(folders("bert")[0], texts=("the cat 龘 sat", "龘龘", "a man is playing"))
    task = MaskedLanguageModel(encoder, mask_share=0.9)
    for seed in range(20):
        prepared = task.prepare(rows, np.random.default_rng(seed))
        for row, at in zip(rows, prepared.at, strict=True):
            assert all(row[i] > MASK for i in at)
        assert len(prepared.at[1]) == 0  # nothing but unknown tokens
        assert len(task.micros(prepared, 100)[0].rows) == 2


@pytest.mark.parametrize("name", ["mlm", "tsdae"])
def test_whole_words_are_hidden_or_deleted_whole(folders: Any, name: str) -> None:
    encoder, rows = load(folders("bert")[0])
    task = TASKS[name](encoder, whole_word=True)
    pieces = encoder.tokens.tokenizer.convert_ids_to_tokens
    followed = 0
    for seed in range(10):
        prepared = task.prepare(rows, np.random.default_rng(seed))
        for i, row in enumerate(rows):
            if name == "mlm":
                hidden = np.isin(np.arange(len(row)), prepared.at[i])
                for at in range(1, len(row)):
                    if pieces(row[at]).startswith("##"):
                        assert hidden[at] == hidden[at - 1]
                        followed += 1
            else:
                left = pieces(prepared.noisy[i])
                words = " ".join(pieces(row)).replace(" ##", "##").split()
                kept = " ".join(left).replace(" ##", "##").split()
                assert set(kept) <= set(words)
                followed += len(kept) < len(words)
    assert followed


def test_tsdae_deletes_three_fifths_and_keeps_the_order(folders: Any) -> None:
    """The example of sentence-transformers' documentation keeps three fifths."""
    encoder, rows = load(folders("bert")[0])
    prepared = TSDAE(encoder).prepare(rows, np.random.default_rng(0))
    for row, noisy in zip(rows, prepared.noisy, strict=True):
        content = len(row) - 2
        assert len(noisy) - 2 == (content - min(int(content * 0.6 + 0.5), content - 1) if content else 0)
        assert (noisy[0], noisy[-1]) == (row[0], row[-1])
        left = iter(row)
        assert all(token in left for token in noisy)  # a subsequence


@pytest.mark.parametrize("name", TASKS)
def test_rows_without_text_cost_nothing_and_a_batch_of_them_has_no_parts(folders: Any, name: str) -> None:
    encoder, rows = load(folders("bert")[0], texts=("", "the cat sat on the mat", "x", "  "))
    task = TASKS[name](encoder)
    encoder.net.eval()
    task.heads.eval()
    prepared = task.prepare(rows, np.random.default_rng(0))
    micros = task.micros(prepared, 1000)
    assert len(micros) == 1
    assert torch.isfinite(task.loss(encoder.net, micros[0]))
    for empty in ([rows[0], rows[3]], [[], []], []):
        assert task.micros(task.prepare(empty, np.random.default_rng(0)), 1000) == []


@pytest.mark.parametrize("name", TASKS)
def test_parts_keep_to_the_budget(folders: Any, name: str) -> None:
    encoder, rows = load(folders("bert")[0], texts=TEXTS * 4)
    task = TASKS[name](encoder)
    micros = task.micros(task.prepare(rows, np.random.default_rng(0)), 50)
    sizes = [[len(row) for row in (micro.masked.rows if name == "retromae" else micro.rows)] for micro in micros]
    assert all(sum(lengths) <= 50 or len(lengths) == 1 for lengths in sizes)
    # Without the empty text; "x" is an unknown token, which may be deleted but not masked.
    assert sum(len(lengths) for lengths in sizes) == 4 * (7 if name.startswith("tsdae") else 6)


# ---- gradients


@pytest.mark.parametrize("name", TASKS)
def test_the_gradient_of_small_parts_adds_up_to_that_of_the_batch(folders: Any, name: str) -> None:
    encoder, rows = load(folders("bert")[0])
    task = TASKS[name](encoder)
    double(task, encoder)
    prepared = task.prepare(rows, np.random.default_rng(0))
    grads = []
    for budget in (10_000, 20):
        encoder.net.zero_grad()
        task.heads.zero_grad()
        micros = task.micros(prepared, budget)
        assert (len(micros) > 1) == (budget == 20)
        for micro in micros:
            task.loss(encoder.net, micro).backward()
        grads.append({key: p.grad for part in (encoder.net, task.heads) for key, p in part.named_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys()
    for key in grads[0]:
        torch.testing.assert_close(grads[0][key], grads[1][key], atol=1e-12, rtol=1e-6)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("kind", ["bert", "mpnet", "distilbert"])
def test_every_weight_is_trained_and_none_twice(folders: Any, kind: str, name: str) -> None:
    encoder, rows = load(folders(kind)[0])
    task = TASKS[name](encoder)
    encoder.net.train()
    task.heads.train()
    total_loss(task, encoder, rows).backward()
    own = dict(task.heads.named_parameters())
    theirs = dict(encoder.net.named_parameters())
    assert not {id(p) for p in own.values()} & {id(p) for p in theirs.values()}
    assert len(task.heads.state_dict()) == len(own)
    for key, p in {**own, **theirs}.items():
        assert p.grad is not None, key
        assert torch.isfinite(p.grad).all(), key
        # A key's bias moves all scores of a query alike, which softmax does not see.
        if not key.endswith(("key.bias", "attn.k.bias", "k_lin.bias")):
            assert p.grad.any(), key


@pytest.mark.parametrize("name", ["mlm", "retromae", "tsdae"])
def test_the_gradient_is_right_in_every_direction_tried(folders: Any, name: str) -> None:
    """Central differences in float64, along random directions of all weights at once."""
    encoder, rows = load(folders("bert")[0])
    task = TASKS[name](encoder)
    double(task, encoder)
    weights = [*encoder.net.parameters(), *task.heads.parameters()]
    total_loss(task, encoder, rows).backward()
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        way = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in weights]
        slope = sum(((p.grad * d).sum() for p, d in zip(weights, way, strict=True) if p.grad is not None), torch.zeros(()))
        values = []
        with torch.no_grad():
            for step in (1e-6, -2e-6, 1e-6):
                for p, d in zip(weights, way, strict=True):
                    p += step * d
                values.append(total_loss(task, encoder, rows).item())
        assert (values[0] - values[1]) / 2e-6 == pytest.approx(slope.item(), rel=1e-5)


@pytest.mark.parametrize("name", TASKS)
def test_dropout_comes_from_torchs_own_generator(folders: Any, name: str) -> None:
    encoder, rows = load(folders("bert")[0])
    task = TASKS[name](encoder)
    encoder.net.train()
    task.heads.train()
    losses = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        losses.append(total_loss(task, encoder, rows).item())
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("name", TASKS)
def test_bf16_autocast_gives_nearly_the_same_loss(folders: Any, name: str) -> None:
    encoder, rows = load(folders("bert")[0])
    task = TASKS[name](encoder)
    encoder.net.eval()
    task.heads.eval()
    exact = total_loss(task, encoder, rows).item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = total_loss(task, encoder, rows)
    loss.backward()
    assert loss.item() == pytest.approx(exact, rel=0.03)
    assert all(torch.isfinite(p.grad).all() for p in encoder.net.parameters() if p.grad is not None)
