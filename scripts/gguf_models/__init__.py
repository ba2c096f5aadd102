"""Converts models between Hugging Face folders and GGUF files, and tests the result."""
