"""The operators of attention, and their gradients."""
