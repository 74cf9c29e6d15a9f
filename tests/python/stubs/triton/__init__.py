"""A stub: vLLM asks for Triton."""
