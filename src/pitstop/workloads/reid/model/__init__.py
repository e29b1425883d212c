"""CLIP for people in five modalities."""
