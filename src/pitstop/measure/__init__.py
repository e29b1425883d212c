"""What is measured: memory, load, machine ceilings and arithmetic. Torch is imported late."""
