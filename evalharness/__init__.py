"""End-to-end accuracy regression harness for CUDA-graph capture paths in LLM inference."""

__version__ = "0.1.0"
