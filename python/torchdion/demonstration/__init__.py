"""``python -m torchdion demo``: a small GPT, trained here and now by an optimizer of this library and by AdamW."""
