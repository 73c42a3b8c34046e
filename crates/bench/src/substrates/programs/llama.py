"""llama.cpp on a model of random weights in a GGUF file, which it maps. Operations are tokens of a text
that is given: what a model of random weights would go on with repeats itself, and so do the experts that it uses. The first token includes the
time to load the model. As `llama_experts.py` the model has 32 experts in each layer, of which a token uses 4."""

import os
import sys
import zlib

import program

WIDTH, BYTES, CONTEXT = 1024, 256, 128
INNER, EXPERTS, USED = (1024, 32, 4) if os.path.basename(sys.argv[0]) == "llama_experts.py" else (4096, 0, 0)


def make(data, bytes):
    import gguf
    import numpy as np

    chance = np.random.default_rng(1)
    layer_bytes = 2 * (4 * WIDTH * WIDTH + 3 * WIDTH * INNER * max(EXPERTS, 1))
    layers = max(bytes // layer_bytes, 1)
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(BYTES)]
    kinds = [gguf.TokenType.UNKNOWN] + [gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.BYTE] * BYTES
    model = gguf.GGUFWriter(f"{data}/model.gguf", "llama", use_temp_file=False)
    model.add_context_length(CONTEXT)
    model.add_embedding_length(WIDTH)
    model.add_block_count(layers)
    model.add_feed_forward_length(INNER)
    model.add_head_count(WIDTH // 64)
    model.add_head_count_kv(WIDTH // 64)
    model.add_rope_dimension_count(64)
    model.add_layer_norm_rms_eps(1e-5)
    model.add_vocab_size(len(names))
    model.add_tokenizer_model("llama")
    model.add_token_list(names)
    model.add_token_scores([0.0] * len(names))
    model.add_token_types(kinds)
    model.add_bos_token_id(1)
    model.add_eos_token_id(2)
    if EXPERTS:
        model.add_expert_count(EXPERTS)
        model.add_expert_used_count(USED)

    shapes = {"token_embd": (len(names), WIDTH), "output_norm": (WIDTH,), "output": (len(names), WIDTH)}
    for layer in range(layers):
        of_layer = {name: (WIDTH,) for name in ("attn_norm", "ffn_norm")}
        of_layer |= {name: (WIDTH, WIDTH) for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
        many, suffix = ((EXPERTS,), "_exps") if EXPERTS else ((), "")
        if EXPERTS:
            of_layer["ffn_gate_inp"] = (EXPERTS, WIDTH)
        of_layer |= {f"ffn_{name}{suffix}": (*many, INNER, WIDTH) for name in ("gate", "up")}
        of_layer[f"ffn_down{suffix}"] = (*many, WIDTH, INNER)
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in of_layer.items()}
    # Norms and what chooses the experts are numbers of 4 bytes, all else of 2.
    full = {name for name in shapes if name.endswith("norm") or name.endswith("ffn_gate_inp")}
    for name, shape in shapes.items():
        kind = np.dtype("f4" if name in full else "f2")
        model.add_tensor_info(f"{name}.weight", shape, kind, int(np.prod(shape)) * kind.itemsize)
    model.write_header_to_file()
    model.write_kv_data_to_file()
    model.write_ti_data_to_file()
    for name, shape in shapes.items():
        if len(shape) == 1:
            content = np.ones(shape, "f4")
        else:
            content = (chance.standard_normal(shape, "f4") / shape[-1] ** 0.5).astype("f4" if name in full else "f2")
        model.write_tensor_data(content)
    model.close()


class Llama:
    """The model, and the tokens before the next one."""

    def __init__(self, path):
        import llama_cpp as llama

        # It lives as long as the library may call it.
        self.silent = llama.llama_log_callback(lambda level, text, user: None)
        llama.llama_log_set(self.silent, None)
        llama.llama_backend_init()
        settings = llama.llama_model_default_params()
        # Weights stay in the file: some processors' own kinds of them are copies in memory.
        settings.use_extra_bufts = False
        self.weights = llama.llama_model_load_from_file(path.encode(), settings) or sys.exit(f"llama.cpp cannot load {path}")
        settings = llama.llama_context_default_params()
        settings.n_ctx, settings.n_batch = CONTEXT, 1
        settings.n_threads = settings.n_threads_batch = len(os.sched_getaffinity(0))
        self.llama, self.context = llama, llama.llama_init_from_model(self.weights, settings) or sys.exit("llama.cpp has no context")
        self.words = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.weights))
        self.token = (llama.llama_token * 1)()

    def restart(self):
        self.llama.llama_memory_clear(self.llama.llama_get_memory(self.context), True)

    def chances(self, token):
        """The chances of what comes after a token."""
        import numpy as np

        self.token[0] = token
        if self.llama.llama_decode(self.context, self.llama.llama_batch_get_one(self.token, 1)) != 0:
            sys.exit("llama_decode failed")
        return np.ctypeslib.as_array(self.llama.llama_get_logits(self.context), (self.words,))


def begin(data):
    models = []

    def batch(number):
        if not models:
            models.append(Llama(f"{data}/model.gguf"))
        if number % CONTEXT == 0:
            models[0].restart()
        return 1, zlib.crc32(models[0].chances(3 + program.scattered(number, BYTES)).tobytes())

    return batch


program.main(make, begin)
