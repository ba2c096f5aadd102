"""Models between Hugging Face's folders and GGUF files: read, written, and proven."""
