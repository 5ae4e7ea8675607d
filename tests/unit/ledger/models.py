"""Configurations for the ledger's tests, with the fields that Hugging Face writes."""

from __future__ import annotations

from gpuwatch.ledger.reading import read_model


def config(layers, kv_heads, head_dim, **more):
    return {
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_size": 5120,
        "num_attention_heads": 40,
        "intermediate_size": 27648,
        "vocab_size": 152064,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        **more,
    }


def model(layers, kv_heads, head_dim, **more):
    return read_model(config(layers, kv_heads, head_dim, **more), "m")
