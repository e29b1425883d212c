"""VRT, its spike branch, and the networks that judge it."""
