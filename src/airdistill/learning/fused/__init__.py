"""Kernels for networks of the paper's form: convolution, 2×2 max-pooling, ReLU, dense layers."""
