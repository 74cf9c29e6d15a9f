"""A stub: vLLM imports Triton."""
