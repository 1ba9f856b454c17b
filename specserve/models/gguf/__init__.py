"""Models in one GGUF file, llama.cpp's format: configuration, weights, tokenizer and template."""
