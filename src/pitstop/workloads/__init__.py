"""Complete training tasks: the models, data and metrics that the engine runs."""
