"""The canary: tiny models with the real architecture, their problems and their tokenizer."""
