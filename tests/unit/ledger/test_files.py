"""Weight files of a folder: what they weigh together, and what is missing of them."""

from __future__ import annotations

import json

import pytest

from gpuwatch.ledger.fields import ModelConfigError
from gpuwatch.ledger.files import load, weight_files
from gpuwatch.ledger.packed import bytes_of
from tests.unit.ledger.models import config

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize {}\n"


def pointer(size):
    return POINTER.format("a" * 64, size)


def test_what_git_lfs_left_in_place_of_files_says_their_sizes(tmp_path):
    (tmp_path / "model-00001-of-00002.safetensors").write_text(pointer(5_000_000_000))
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(bytes(1000))
    size, (note,) = weight_files(tmp_path)
    assert size == 5_000_001_000
    assert note.startswith("1 of 2 weight files are what Git LFS left in their place")


def test_some_of_several_files_are_not_all_of_the_weights(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config(2, 8, 128)))
    for part in ("00001", "00003"):
        (tmp_path / f"model-{part}-of-00005.safetensors").write_bytes(bytes(1000))
    size, (note,) = weight_files(tmp_path)
    assert size is None
    assert note.startswith("3 of 5 weight files, by the names of the others, are not in the folder")
    model, weights = load(str(tmp_path))
    assert weights is None
    assert note in model.notes


def test_another_file_beside_the_parts_does_not_hide_missing_ones(tmp_path):
    for name in ("model-00001-of-00004", "extra"):
        (tmp_path / f"{name}.safetensors").write_bytes(bytes(1000))
    size, (note,) = weight_files(tmp_path)
    assert size is None
    assert note.startswith("3 of 4 weight files, by the names of the others, are not in the folder")


def test_two_whole_sets_lie_side_by_side(tmp_path):
    for name in ("a-00001-of-00002", "a-00002-of-00002", "b-00001-of-00001"):
        (tmp_path / f"{name}.safetensors").write_bytes(bytes(1000))
    assert weight_files(tmp_path) == (3000, ())


def test_a_link_that_leads_nowhere_is_no_weight_file(tmp_path):
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "blobs" / "gone")
    size, (note,) = weight_files(tmp_path)
    assert size is None
    assert note.startswith("1 of 1 weight files cannot be read")


def test_names_that_are_too_long_for_a_file_are_names_of_none(tmp_path):
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"a": "b" * 300}}))
    size, (note,) = weight_files(tmp_path)
    assert size is None
    assert note.startswith("1 of 1 weight files of the index are not in the folder")
    with pytest.raises(ModelConfigError, match="is neither a folder nor a file"):
        load("a" * 300)


def test_files_too_small_for_the_shape_in_any_type_are_not_its_weights(tmp_path):
    # 2 layers of 497,025,024 and 2 x 778,567,680 of embedding and head: 5.1 GB in 16 bits, 0.64 in two
    (tmp_path / "config.json").write_text(json.dumps(config(2, 8, 128)))
    index = tmp_path / "model.safetensors.index.json"
    for stated, used in ((600_000_000, None), (700_000_000, 700_000_000)):
        index.write_text(json.dumps({"metadata": {"total_size": stated}, "weight_map": {}}))
        model, weights = load(str(tmp_path))
        assert weights == used
        assert any("one is wrong; the " + ("files' size" if used else "shape") + " is used" in n for n in model.notes)


@pytest.mark.parametrize("file", [None, ["b"], 5, {}])
def test_an_index_that_names_no_file_for_a_tensor_is_refused(tmp_path, file):
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"a": "b", "c": file}}))
    with pytest.raises(ModelConfigError, match=r"'c' is in .*; the name of a file is expected"):
        weight_files(tmp_path)


@pytest.mark.parametrize("total", ["24495564800", None, -1, True, 1e300])
def test_a_size_that_is_none_leaves_the_shape(tmp_path, total):
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": {"a": "b"}}))
    size, (note,) = weight_files(tmp_path)
    assert size is None
    assert note.startswith("1 of 1 weight files of the index are not in the folder; it states no size")


DESCRIPTION = {
    "model_quant_type": "W8A8_DYNAMIC",
    "model.embed_tokens.weight": "FLOAT",
    "model.layers.0.self_attn.q_proj.weight": "W8A8",
    "model.layers.0.self_attn.q_proj.weight_offset": "W8A8",
    "model.layers.0.self_attn.o_proj.weight": "FLOAT",
    "model.layers.1.self_attn.o_proj.weight": "FLOAT",
    "model.layers.0.mlp.experts.0.down_proj.weight": "W4A8_DYNAMIC",
    "model.layers.0.mlp.experts.1.down_proj.weight": "W8A8_DYNAMIC",
    "model.layers.1.self_attn.q_proj.weight": "W8A8_DYNAMIC",
    "lm_head.weight": "FLOAT",
}


@pytest.mark.parametrize("stated", [None, {"quant_method": "ascend"}])
def test_a_description_of_msmodelslim_says_how_each_module_is_stored(tmp_path, stated):
    moe = {"num_experts": 8, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps({**config(2, 8, 128, **moe), "quantization_config": stated}))
    (tmp_path / "quant_model_description.json").write_text(json.dumps(DESCRIPTION))
    model, _ = load(str(tmp_path))
    assert (model.quantisation.method, model.quantisation.bits, model.quantisation.known) == ("modelslim", 8, True)
    assert bytes_of(model).attention == pytest.approx(1 + model.q_heads / (2 * model.q_heads + 2 * 8))  # the output
    assert bytes_of(model).experts == pytest.approx((1 + 1 + (0.5 + 1) / 2) / 3)  # in the first layer of two


@pytest.mark.parametrize(("text", "message"), [("[]", "holds a list"), ("{}", "names no weight in fewer bits")])
def test_a_description_that_says_nothing_is_refused(tmp_path, text, message):
    (tmp_path / "config.json").write_text(json.dumps(config(2, 8, 128)))
    (tmp_path / "quant_model_description.json").write_text(text)
    with pytest.raises(ModelConfigError, match=message):
        load(str(tmp_path))
