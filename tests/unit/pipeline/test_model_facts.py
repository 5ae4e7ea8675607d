"""What the configuration of a local model tells."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from gpuwatch.clock import ManualClock
from gpuwatch.config import Config, EngineConfig
from gpuwatch.ledger.portable import from_portable
from gpuwatch.ledger.reading import read_model
from gpuwatch.pipeline.collect import Collector
from gpuwatch.pipeline.model_facts import hub_cache, model_facts, model_folders, served_context
from gpuwatch.sources.discovery.find import Discovered, FoundEngine

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
    "max_position_embeddings": 32768,
}


def facts(folder, config, name="m"):
    (folder / name).mkdir(exist_ok=True)
    text = config if isinstance(config, str) else json.dumps(config)
    (folder / name / "config.json").write_text(text)
    return {fact.key: fact.value for fact in model_facts([folder / "none", folder / name], "s:1", 5)}


def test_heads_and_context_are_read_from_the_folder_that_the_engine_sees(tmp_path):
    found = facts(tmp_path, LLAMA)
    assert (found["model.kv_heads"], found["model.context"]) == (4, 32768)
    assert from_portable(found["model.config"], "m") == read_model(LLAMA, "m")
    (fact, *_) = model_facts([tmp_path / "m"], "s:1", 5)
    assert (fact.source, fact.server, fact.time) == (str(tmp_path / "m" / "config.json"), "s:1", 5)


def test_the_bytes_of_the_weight_files_are_told_where_there_are_any(tmp_path):
    assert "model.weights_bytes" not in facts(tmp_path, LLAMA)
    (tmp_path / "m" / "model.safetensors").write_bytes(b"x" * 100)
    (tmp_path / "m" / "consolidated.safetensors").write_bytes(b"x" * 100)
    assert facts(tmp_path, LLAMA)["model.weights_bytes"] == 100


def test_the_folder_of_a_model_is_the_one_that_the_process_sees(tmp_path):
    pid = os.getpid()
    own = tmp_path / str(pid)
    assert model_folders("/models/a", pid, tmp_path) == (own / "root" / "models" / "a",)
    assert model_folders("tiny", pid, tmp_path) == (own / "cwd" / "tiny",)
    assert model_folders("", pid, tmp_path) == ()


def test_a_model_of_a_hub_is_read_from_the_cache_of_the_engine(tmp_path):
    """The cache is found by the variables of the process: here a child whose root is this machine's."""
    cache = tmp_path / "hf" / "hub" / "models--meta--llama"
    for revision in ("old", "new"):
        (cache / "snapshots" / revision).mkdir(parents=True)
        config = LLAMA | {"num_key_value_heads": {"old": 2, "new": 4}[revision]}
        (cache / "snapshots" / revision / "config.json").write_text(json.dumps(config))
    code = "import sys; print(flush=True); sys.stdin.read()"
    environ = {**os.environ, "HF_HOME": str(tmp_path / "hf")}
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ)
    process.stdout.readline()  # before it runs its own program its variables are not readable
    try:
        assert model_facts(model_folders("meta/llama", process.pid), "s:1", 5) == ()  # two revisions, none named
        (cache / "refs").mkdir()
        (cache / "refs" / "main").write_text("new\n")
        found = {fact.key: fact.value for fact in model_facts(model_folders("meta/llama", process.pid), "s:1", 5)}
        assert found["model.kv_heads"] == 4
    finally:
        process.communicate(timeout=10)


def test_a_configuration_that_becomes_readable_later_is_told_then_and_once(tmp_path):
    server = "127.0.0.1:8000"
    config = Config(gpus=False, discovery=False, kernel_log="off", engines=(EngineConfig(f"http://{server}"),))
    collector = Collector(config, ManualClock())
    model = tmp_path / "m"
    found = Discovered(
        (FoundEngine(server, f"http://{server}", "vllm", os.getpid(), flags=(("model", str(model)),)),), ()
    )

    def told():
        collector._read_models(found)
        return [fact.key for batch in collector._take_in(found) for fact in batch.facts]

    assert "model.kv_heads" not in told()
    assert told() == []
    model.mkdir()
    (model / "config.json").write_text(json.dumps(LLAMA))
    assert "model.kv_heads" in told()
    assert told() == []


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b", "HOME": "/h"}, "/a"),
        ({"HF_HOME": "/b", "XDG_CACHE_HOME": "/c"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c", "HOME": "/h"}, "/c/huggingface/hub"),
        ({"HOME": "/h"}, "/h/.cache/huggingface/hub"),
        ({}, "/root/.cache/huggingface/hub"),
    ],
)
def test_the_hubs_cache_is_where_its_library_puts_it(environ, folder):
    assert hub_cache(environ) == folder


def test_how_weights_are_stored_is_read_from_the_file_beside_the_config_too(tmp_path):
    stated = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "hf_quant_config.json").write_text(json.dumps(stated))
    config = json.loads(facts(tmp_path, LLAMA)["model.config"])
    assert config["quantization_config"]["quant_algo"] == "NVFP4"
    assert config["quantization_config"]["kv_cache_quant_algo"] == "FP8"


def test_a_latent_cache_has_one_head(tmp_path):
    mla = LLAMA | {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
    mla["architectures"] = ["DeepseekV3ForCausalLM"]
    assert facts(tmp_path, mla)["model.kv_heads"] == 1


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, 32768),
        ({"rope_scaling": None}, 32768),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
            131072,
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, 131072),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2}}, 65536),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 32768),
        ({"rope_scaling": {"rope_type": "yarn", "factor": "much"}}, 32768),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 0.5}}, 32768),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "yarn", "factor": 2.0,
          "original_max_position_embeddings": 32768}}, 131072),
        ({"max_position_embeddings": None}, None),
        ({"max_position_embeddings": True}, None),
    ],
)  # fmt: skip
def test_the_context_includes_a_scaling_that_stretches_it(more, expected):
    assert served_context(LLAMA | more) == expected


def test_the_text_part_of_a_model_that_sees_counts():
    assert served_context({"text_config": {"max_position_embeddings": 4096}}) == 4096


@pytest.mark.parametrize("content", ["", "[1]", "{", '{"num_hidden_layers": "many"}', "[" * 100_000])
def test_what_is_no_configuration_tells_nothing(tmp_path, content):
    assert facts(tmp_path, content) == {}


def test_a_missing_folder_and_a_pipe_tell_nothing(tmp_path):
    (tmp_path / "p").mkdir()
    os.mkfifo(tmp_path / "p" / "config.json")
    assert model_facts([tmp_path / "none", tmp_path / "p"], "s:1", 0) == ()
