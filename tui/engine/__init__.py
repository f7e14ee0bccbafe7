"""The process that owns the model. Nothing here imports Textual."""
