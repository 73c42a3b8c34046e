"""Makes a model of random numbers, or has llama.cpp generate from it:  llama_tokens.py make|run FILE."""
import sys

import numpy as np

LAYERS, WIDTH, INNER, BYTES = 4, 512, 1024, 256
what, path = sys.argv[1:]


def make():
    import gguf

    chance = np.random.default_rng(1)
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(BYTES)]
    model = gguf.GGUFWriter(path, "llama")
    model.add_context_length(256)
    model.add_embedding_length(WIDTH)
    model.add_block_count(LAYERS)
    model.add_feed_forward_length(INNER)
    model.add_head_count(WIDTH // 64)
    model.add_head_count_kv(WIDTH // 64)
    model.add_rope_dimension_count(64)
    model.add_layer_norm_rms_eps(1e-5)
    model.add_vocab_size(len(names))
    model.add_tokenizer_model("llama")
    model.add_token_list(names)
    model.add_token_scores([0.0] * len(names))
    model.add_token_types([gguf.TokenType.UNKNOWN] + [gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.BYTE] * BYTES)
    model.add_bos_token_id(1)
    model.add_eos_token_id(2)

    def add(name, rows, columns=None):
        content = np.ones(rows, "f4")
        if columns:
            content = (chance.standard_normal((rows, columns), "f4") / columns**0.5).astype("f2")
        model.add_tensor(name + ".weight", content)

    add("token_embd", len(names), WIDTH)
    add("output_norm", WIDTH)
    add("output", len(names), WIDTH)
    for layer in range(LAYERS):
        for name in "attn_norm", "ffn_norm":
            add(f"blk.{layer}.{name}", WIDTH)
        for name in "attn_q", "attn_k", "attn_v", "attn_output":
            add(f"blk.{layer}.{name}", WIDTH, WIDTH)
        add(f"blk.{layer}.ffn_gate", INNER, WIDTH)
        add(f"blk.{layer}.ffn_up", INNER, WIDTH)
        add(f"blk.{layer}.ffn_down", WIDTH, INNER)
    model.write_header_to_file()
    model.write_kv_data_to_file()
    model.write_tensors_to_file()
    model.close()


def run():
    import xllamacpp

    settings = xllamacpp.CommonParams()
    settings.model.path = path
    settings.port = settings.verbosity = settings.n_gpu_layers = 0
    settings.n_ctx, settings.n_batch, settings.n_parallel = 256, 64, 1
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 2
    settings.warmup = settings.fit_params = False
    wanted = {"prompt": "It was a dark and stormy night", "max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": 1}
    answer = xllamacpp.Server(settings).handle_completions(wanted)
    for token in answer["choices"][0]["logprobs"]["content"]:
        print(token["id"], token["logprob"])


{"make": make, "run": run}[what]()
