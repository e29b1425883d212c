"""What is done to a model before it trains: recompute, compile, layout, spans, a teacher."""
