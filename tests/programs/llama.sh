# llama.cpp on weights of random numbers in a GGUF file, which it maps: the tokens that it finds most likely, and their probabilities.
# shellcheck shell=bash disable=SC2034,SC2154
commands=(python3)
pypi=(numpy gguf xllamacpp)

work() {
    "$PYTHON" "$here/llama_tokens.py" make model.gguf
    serve 20 --map '*.gguf'
    under "$PYTHON" "$here/llama_tokens.py" run model.gguf
    digest model.gguf
}
