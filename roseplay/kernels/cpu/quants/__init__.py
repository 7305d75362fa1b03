"""Products with weights in ggml's quantized blocks, which a GGUF file stores, without converting them to floats."""
