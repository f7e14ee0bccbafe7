"""What the machine, the process and MLX hold, as one `MemorySample`."""
