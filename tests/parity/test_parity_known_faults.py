"""Faults of input and encoding that users of other tools report: each row of that list is a test, here or where the table says.

ST is sentence-transformers, TEI is text-embeddings-inference.

| source | right value | test |
|---|---|---|
| whatlies#312, #290; mteb#1043 | an empty text: finite, flagged, the same every time | tests/model/test_model_encode.py::test_empty_texts_are_finite_and_the_same_every_time |
| FlagEmbedding#624 | an empty query is refused | tests/search/test_search_searcher.py::test_an_empty_query_is_refused |
| FlagEmbedding#624 | an indexed empty text is never found | tests/index/test_index_collection.py::test_an_empty_text_is_kept_reported_and_never_found |
| model2vec PR#368 | a float16 zero row stays zero | tests/model/test_model_static.py::test_a_zero_row_in_half_precision_stays_zero |
| model2vec PR#368 | the same in torch | tests/model/test_model_pooling.py::test_unit_rows_of_nothing_and_of_very_little |
| ST#3371 | a Series with gaps in its index is as a list | tests/model/test_model_encode.py::test_kinds_that_are_accepted |
| ST PR#3372; ST 6.2.0 | dict, set, nested lists: an error that names the kind or the row | tests/model/test_model_encode.py::test_kinds_that_are_refused |
| ST 6.2.0 | a generator works | tests/parity/test_parity_ways.py::test_every_way_gives_the_same_vectors |
| ST 6.2.0 | lone surrogates are replaced | tests/model/test_model_encode.py::test_lone_surrogates_are_replaced |
| ST#2839, #3278, #2312; FlagEmbedding#1113; instructor-embedding#76; vllm#16815 | no vector changes with the batch | tests/parity/test_parity_ways.py::test_every_way_gives_the_same_vectors |
| ST#2886; transformers#45491; ST#3498 | NaN is found in every batch and named by row | tests/parity/test_parity_ways.py::test_nan_and_infinity_are_named_by_row |
| ST#2886 | a half-precision row that overflows is done again | tests/parity/test_parity_ways.py::test_a_row_that_overflows_in_half_precision_is_done_again_in_float32 |
| ST 6.2.0 | a prompt that fills the window is an error | tests/model/test_model_encode.py::test_prompt_that_fills_the_window |
| TEI#28 | the limit counts special tokens; limit and limit +- 1 work | tests/model/test_model_encode.py::test_window_exactly |
| TEI#27, #356, #107; dify#6807 | too long: the message names option and row | tests/model/test_model_encode.py::test_window_exactly |
| ST#3208; ST PR#3598 | left padding changes nothing, for any pooling, prompt left out or not | tests/model/test_model_forward.py::test_left_padding_equals_right_padding |
| text2vec LAST_AVG, uniem last_weighted, FlagEmbedding cls | padding takes no part | tests/model/test_model_pooling.py::test_against_the_definition |
| mlx-embeddings PR#63; plur#270; vec2text#28; fastembed#22 | golden vectors are checked on load | tests/parity/test_parity_ways.py::test_golden_vectors_guard_every_kind |
| ModernBERT#168; ST#2958 | an untuned backbone is said aloud | tests/model/test_model_bad_inputs.py::test_a_bare_folder_is_a_guess_and_says_so |
| ST#3234; FlagEmbedding#590 | query and document prompts are chosen, stored and shown | tests/index/test_index_collection.py::test_prompts_are_chosen_stored_and_used |
| ST#3234 | the prompt of a search is reported | tests/search/test_search_searcher.py::test_the_query_prompt_of_the_collection_is_used_and_reported |
| unilm#1325; mteb#3641, #2867 | a model with prompts and none used is told | tests/evaluation/test_evaluation_evaluate.py::test_a_model_with_prompts_and_none_used_is_told |
| ST#1287; embeddings.cpp#1 | the unknown rate is in the report, with a warning | tests/parity/test_parity_ways.py::test_unknown_words_are_counted_and_said |
| ST 6.2.0 | NFKC, recorded in the model | tests/model/test_model_encode.py::test_lower_case_and_nfkc |
| ST#1795; tokenizers#1539 | long words: memory flat | tests/model/test_model_encode.py::test_memory_of_long_words_stays_flat |
| ST#3138; fastembed#222 | millions of rows: memory flat | tests/scale/test_scale_bulk.py::test_memory_does_not_grow_with_the_rows |
| hindsight PR#3948; gaia#918 | a batch is cut by tokens | tests/model/test_model_batch.py::test_chunks_hold_every_row_once_within_the_budget |
| ST#1854 | a bounded queue | tests/scale/test_scale_processes.py::test_few_blocks_are_asked_for_ahead |
| ST PR#3920; fastembed PR#336 | a killed worker is an error within seconds | tests/scale/test_scale_processes.py::test_a_killed_worker_is_an_error_within_seconds |
| langchain#40597; FlagEmbedding#615 | no process outlives a failure | tests/scale/test_scale_processes.py::test_a_model_that_is_not_there_is_an_error_and_no_process_stays |
| TEI#170; ST#683, #1321, #889 | threads follow the quota | tests/model/test_model_threads.py::test_threads_follow_the_quota_unless_told |
| ST PR#3847 | int8 clips | tests/scale/test_scale_stored.py::test_int8_clips_and_never_wraps |
| similarities#8 | the default model is pinned by its hash | tests/model/test_model_minilm.py::test_other_weights_are_refused |
| text2vec#25, #34 | a web page as a model; offline | tests/model/test_model_bad_inputs.py::test_bad_model |
| text2vec#34 | offline is said at once | tests/model/test_model_bad_inputs.py::test_a_hub_id_without_a_network |

Rows of serving over HTTP belong to the server's tests.
"""  # noqa: E501

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from twinvec.cli.console import print_json
from twinvec.errors import UsageError
from twinvec.model.encoder import Encoder

torch.set_num_threads(1)
TESTS = Path(__file__).resolve().parents[1]
LONG = "the cat sat on the mat and looked at the dog " * 20
Subject = Callable[[str], Path]


def test_the_table_names_tests_that_are_there() -> None:
    named = re.findall(r"tests/(\w+/\w+\.py)::(\w+)", __doc__ or "")
    assert len(named) > 30
    missing = [f"{file}::{name}" for file, name in named if f"def {name}(" not in (TESTS / file).read_text(encoding="utf-8")]
    assert missing == []


@pytest.mark.parametrize("on_long", ["truncate", "split"])
def test_a_string_and_a_list_are_cut_alike(on_long: str, encoder: Encoder) -> None:
    """TEI#52, #56, #218, #227: truncation was honoured for a string and not for a list."""
    alone, listed = encoder.encode(LONG, on_long=on_long), encoder.encode([LONG, "x"], on_long=on_long)
    np.testing.assert_allclose(alone[0], listed[0], atol=1e-5)


def test_a_text_larger_than_the_batch_goes_through(encoder: Encoder) -> None:
    """TEI PR#725 (#723, #694): one input larger than the token budget was an endless loop."""
    found = encoder.encode([LONG, "a cat", LONG + " more"], batch_tokens=3, on_long="split")
    np.testing.assert_allclose(found, encoder.encode([LONG, "a cat", LONG + " more"], on_long="split"), atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta", "mpnet", "distilbert", "modernbert", "deberta-v2", "qwen2"])
def test_the_mean_of_the_token_vectors_is_the_sentence_vector(encoder: Encoder) -> None:
    """TEI#278, PR#332: /embed was not the mean of /embed_all. Before the Normalize head, by transformers' own forward pass."""
    text = "a man is playing a guitar"
    row = encoder.tokens.cut(encoder.tokens.content([text])[0])
    with torch.no_grad():
        states = encoder.net.backbone(torch.tensor([row])).last_hidden_state[0]
        plain = encoder.net([row], normalize=False)[0]
    torch.testing.assert_close(plain, states.mean(0), atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.from_numpy(encoder.encode(text)[0]), plain / plain.norm(), atol=1e-5, rtol=0)


def test_counting_and_encoding_see_the_same_text(encoder: Encoder) -> None:
    """ST#3262: tokenize stripped a text that encode did not."""
    for text in (" a cat", "a cat ", "\ta  cat\n", "a cat", "  "):
        report = encoder.encode_with_report(text).report
        assert [report.longest] == encoder.count_tokens([text]), repr(text)
        assert report.tokens == min(report.longest, encoder.max_tokens)


def test_an_english_model_says_that_it_does_not_know_chinese() -> None:
    """ST#1287; embeddings.cpp#1: 你好 is [UNK], and "a 😀" is the same as "a 龘" to it."""
    encoder = Encoder.load("minilm")
    found = encoder.encode_with_report(["你好", "a 😀", "a 龘"])
    assert found.report.unknown_rate > 0.2
    assert any("does not know this language or script" in note for note in found.report.warnings())
    np.testing.assert_allclose(found.vectors[1], found.vectors[2], atol=1e-5)
    assert encoder.encode_with_report(["hello there", "a man plays the guitar"]).report.warnings() == []


@pytest.mark.parametrize("lower", [True, False])
def test_capitals_in_a_chinese_vocabulary(lower: bool, tmp_path: Path, subject: Subject) -> None:
    """embeddings.cpp#1: a Chinese vocabulary of small letters that is not told to lower case makes GPT unknown: known, or warned of."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    vocab = {token: i for i, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"大家好我是", "gpt"])}
    raw = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    raw.normalizer, raw.pre_tokenizer = normalizers.BertNormalizer(lowercase=lower), pre_tokenizers.BertPreTokenizer()
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=raw, model_max_length=16, **names).save_pretrained(tmp_path)
    config = BertConfig(vocab_size=len(vocab), hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    BertModel(config, add_pooling_layer=False).save_pretrained(tmp_path)
    report = Encoder.load(tmp_path, pooling="mean").encode_with_report("大家好我是GPT").report
    assert report.unknown_rate == (0 if lower else pytest.approx(1 / 6))
    assert Encoder.load(tmp_path, pooling="mean").encode_with_report("GPT 大").report.warnings() == [] or not lower


def test_zero_width_spaces_and_compositions(subject: Subject) -> None:
    """ST 6.2.0: a zero-width space is dropped and NFC equals NFD, but full-width forms are other letters unless NFKC is asked for."""
    encoder = Encoder.load(subject("static words"))
    assert encoder.tokens.nfkc
    np.testing.assert_array_equal(encoder.encode("ｃａｔ"), encoder.encode("cat"))
    bert = Encoder.load(subject("bert"))
    np.testing.assert_allclose(bert.encode("cat"), bert.encode("c\u200bat"), atol=1e-6)
    bert.tokens.nfkc = True
    np.testing.assert_allclose(bert.encode("ＣＡＴ"), bert.encode("cat"), atol=1e-6)


@pytest.mark.parametrize("kind", ["bert", "deberta-v2", "qwen2"])
def test_bf16_gives_float32_arrays(folder: Path) -> None:
    """ST#3155; mteb#1297: bfloat16 cannot become NumPy."""
    found = Encoder.load(folder, precision="bf16").encode(["a cat", "a dog on the mat"])
    assert found.dtype == np.float32
    assert np.isfinite(found).all()
    assert (found * Encoder.load(folder).encode(["a cat", "a dog on the mat"])).sum(1).min() > 0.99


def test_half_precision_on_a_cpu_is_refused(subject: Subject) -> None:
    """LEANN#405; ST docs: float16 on a CPU crashes or runs at a hundredth of the speed."""
    with pytest.raises(
        UsageError, match=r"precision = 'float16': on a CPU half precision is about ten times slower than float32; use float32 or bf16"
    ):
        Encoder.load(subject("bert"), precision="float16", device="cpu")


def test_nan_never_reaches_json() -> None:
    """ollama#15582: NaN in a JSON answer."""
    for value in (float("nan"), float("inf"), [1.0, float("nan")]):
        with pytest.raises(ValueError, match="not JSON compliant"):
            print_json({"value": value})


def test_a_pool_needs_no_main_guard(subject: Subject, tmp_path: Path) -> None:
    """ST#1127, #2235, #2331, #844: a pool hung in a notebook, or without `if __name__ == "__main__"`."""
    script = tmp_path / "script.py"
    script.write_text(
        f"""
from twinvec.scale.processes import Pool
with Pool({str(subject("static words"))!r}, processes=2) as pool:
    print(pool.encode(["the cat", "a dog"] * 100).shape)
""",
        encoding="utf-8",
    )
    found = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert found.stdout.strip() == "(200, 24)", found.stderr


def test_a_process_pool_shows_one_bar(subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ST#1651: no progress in multi-process encoding."""
    from twinvec.progress import Progress
    from twinvec.scale.bulk import encode_files

    bars: list[Progress] = []

    class Seen(Progress):
        def __enter__(self) -> Progress:
            bars.append(self)
            return super().__enter__()

    monkeypatch.setattr("twinvec.scale.run.Progress", Seen)
    (tmp_path / "texts.txt").write_text("the cat\na dog\n" * 50, encoding="utf-8")
    encode_files(subject("static words"), tmp_path / "texts.txt", tmp_path / "v.npy", processes=2, shard_rows=20, progress=True)
    assert [bar.done for bar in bars] == [100]


@pytest.mark.parametrize("engine", ["onnx", "ctranslate2"])
def test_an_int8_export_says_what_it_costs(engine: str, subject: Subject, tmp_path: Path) -> None:
    """optimum#2145; fastembed#22: an export that differs from its model; here its cosine, and the loss on the user's data, stand in its manifest."""
    pytest.importorskip({"onnx": "onnxruntime"}.get(engine, engine))
    from twinvec.model.engines.export import export

    manifest = export(subject("bert"), engine=engine, precision="int8", output=tmp_path / "out", measure=lambda encoder: 80.0)
    assert 0.99 < manifest.least_cosine <= 1
    assert manifest.quality is not None
    assert (manifest.quality["before"], manifest.quality["after"]) == (80.0, 80.0)
