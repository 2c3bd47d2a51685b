# SPDX-License-Identifier: MIT
"""EXL3 weights in stock vLLM. Importable without CUDA and without vLLM."""

__version__ = "0.1.0"
