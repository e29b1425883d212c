"""Steps that are slowed down to see more of them: operations, modules, kernels."""
