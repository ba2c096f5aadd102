"""Parts of scripts/export_gguf.py."""
