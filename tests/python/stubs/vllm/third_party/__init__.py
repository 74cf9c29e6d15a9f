"""Part of a stub of vLLM."""
