"""``flash_attn.layers``: the rotation of queries and keys."""
