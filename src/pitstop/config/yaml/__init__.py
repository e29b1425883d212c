"""YAML files as one tree that knows where everything was written."""
