"""Clips and spikes: files, packs, samples."""
